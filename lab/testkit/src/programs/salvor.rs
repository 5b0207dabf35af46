//! `salvor run` beside a test, and its output.

use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use super::program::Program;
use crate::access::Access;
use crate::plane::site::Site;
use crate::watch::wait;

/// A running `salvor run`, with the files that it was started with. Dropping it kills it.
#[derive(Debug)]
pub struct Salvor {
    pub program: Program,
    binary: PathBuf,
    folder: PathBuf,
}

impl Salvor {
    /// Starts it with this access, this configuration (the part after `kind: Configuration`), these arguments besides
    /// those that every test needs, and these additional environment variables.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(
        binary: &str,
        who: &Access,
        configuration: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        let binary = Path::new(binary);
        let folder = Program::folder(binary);
        let (kubeconfig, config) = (folder.join(KUBECONFIG), folder.join(CONFIG));
        let prepared = std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .and_then(|()| who.write_kubeconfig(&kubeconfig))
            .and_then(|()| std::fs::write(&config, format!("{head}{configuration}")));
        if let Err(error) = prepared {
            panic!("salvor's files cannot be written: {error}");
        }
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let config = format!("--config={}", config.display());
        let all = ["run", &kubeconfig, &config, "--bind=127.0.0.1:0", "--log-format=json"];
        let all = all.iter().chain(arguments);
        let program = Program::start_in(&folder, binary, all, environment);
        Self { program, binary: binary.to_owned(), folder }
    }

    /// Starts another command of the same binary against the same cluster.
    pub fn spawn(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Program {
        let kubeconfig = format!("--kubeconfig={}", self.folder.join(KUBECONFIG).display());
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        Program::start(&self.binary, arguments.chain([kubeconfig.into()]), &[])
    }

    /// Runs another command of the same binary against the same cluster, and returns its output.
    ///
    /// # Panics
    /// If it ends with another exit code.
    pub async fn command(&self, arguments: &[&str], code: i32) -> String {
        let program = self.spawn(arguments);
        assert_eq!(program.exit_code().await, Some(code), "{arguments:?}: {}", program.output());
        program.output()
    }

    /// The output of `salvor explain` for an object, with the same configuration.
    ///
    /// # Panics
    /// If it cannot be explained.
    pub async fn explain(&self, kind: &str, name: &str) -> String {
        let config = format!("--config={}", self.folder.join(CONFIG).display());
        self.command(&["explain", kind, name, &config], 0).await
    }

    /// Waits until its log contains this text.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub async fn says(&self, text: &str) {
        self.said(text, |output| output.contains(text).then_some(())).await;
    }

    /// The value of the first field of this name in its log, once there is one.
    ///
    /// # Panics
    /// If no line has it in time.
    pub async fn field(&self, name: &str) -> String {
        let start = format!("\"{name}\":\"");
        let value = |output: &str| Some(output.split_once(&start)?.1.split_once('"')?.0.to_owned());
        self.said(&start, value).await
    }

    /// Waits for a text in its log, by polling.
    async fn said<T>(&self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let found = wait::patience().until(async {
            loop {
                if let Some(found) = find(&self.program.output()) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        found.await.unwrap_or_else(|| panic!("salvor never said {what:?}:\n{}", self.program.output()))
    }

    /// The number of lines in its log that contain all of these texts.
    pub fn count(&self, texts: &[&str]) -> usize {
        let output = self.program.output();
        output.lines().filter(|line| texts.iter().all(|text| line.contains(text))).count()
    }

    /// Waits until its metrics contain this line.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub async fn shows(&self, line: &str) {
        self.until_answer("/metrics", &format!("\n{line}\n")).await;
    }

    /// The answer to a GET of this path, head and body.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn get(&self, path: &str) -> String {
        let address = self.field("address").await;
        get(&address, path).await.unwrap_or_else(|error| panic!("http://{address}{path}: {error}"))
    }

    /// Waits until its answer to a GET of this path contains this text; polled, because an answer cannot be watched.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub async fn until_answer(&self, path: &str, text: &str) {
        let mut answer = String::new();
        let held = wait::patience().until(async {
            while !answer.contains(text) {
                answer = self.get(path).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let in_time = held.await.is_some();
        assert!(in_time, "{path} never held {text:?}:\n{answer}");
    }
}

/// The moment between a decision and its write, in which a `salvor run` is blocked until it is released.
#[derive(Debug)]
pub struct Hold {
    folder: tempfile::TempDir,
    setting: String,
}

impl Hold {
    /// Before the n-th write of a process.
    ///
    /// # Panics
    /// If no file can be created.
    pub fn before_write(number: usize) -> Self {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
        let setting = format!("hold:{number}:{}", folder.path().join(HELD).display());
        Self { folder, setting }
    }

    /// The environment variable that configures it in a process.
    pub fn variable(&self) -> (&'static str, &str) {
        ("SALVOR_TEST_CRASH", &self.setting)
    }

    /// Waits until the process is blocked; polled, because a file cannot be watched.
    pub async fn reached(&self) {
        while !self.folder.path().join(HELD).exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Releases the process.
    ///
    /// # Panics
    /// If it is not blocked.
    pub fn let_go(self) {
        if let Err(error) = std::fs::remove_file(self.folder.path().join(HELD)) {
            panic!("nobody is held: {error}");
        }
    }
}

/// The Salvor of a test: its own, or one that all tests on the shared control plane use.
#[derive(Debug)]
pub enum Ours {
    Shared(&'static Salvor),
    Own(Box<Salvor>),
}

impl Ours {
    /// One for an arena of this site: each embedded cluster has its own, the shared control plane has one, in this
    /// cell.
    pub async fn at(site: Site, shared: &'static OnceCell<Salvor>, start: impl FnOnce() -> Salvor) -> Self {
        match site {
            Site::Real => Self::Shared(shared.get_or_init(|| async { start() }).await),
            Site::Embedded => Self::Own(Box::new(start())),
        }
    }
}

impl Deref for Ours {
    type Target = Salvor;

    fn deref(&self) -> &Salvor {
        match self {
            Self::Shared(salvor) => salvor,
            Self::Own(salvor) => salvor,
        }
    }
}

const HELD: &str = "held";
const KUBECONFIG: &str = "kubeconfig";
const CONFIG: &str = "config.yaml";

async fn get(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
