//! A program under test, as a process that cannot outlive the test process.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::supervised::Supervised;
use crate::random;

/// A running program. Dropping it kills it; when a test panics, the end of its output is printed.
#[derive(Debug)]
pub struct Program {
    name: String,
    process: Supervised,
    log: PathBuf,
}

impl Program {
    /// Starts a program with these arguments and additional environment variables.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_in(&Self::folder(program), program, arguments, environment)
    }

    /// The path of a folder for this program alone.
    pub(crate) fn folder(program: &Path) -> PathBuf {
        std::env::temp_dir().join(format!("salvor-testkit-{}-{}", name(program), random::suffix(8)))
    }

    /// Like `start`, in a folder that may already have files. It is removed when the program is dropped, and when this
    /// process ends.
    pub(crate) fn start_in(
        folder: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        environment: &[(&str, &str)],
    ) -> Self {
        let name = name(program);
        let log = folder.join("output.log");
        // `env` sets the variables and then becomes the program: the process id is the program's own.
        let variables = environment.iter().map(|(key, value)| format!("{key}={value}"));
        let program = std::iter::once(program.to_string_lossy().into_owned());
        let arguments = arguments.into_iter().map(|a| a.as_ref().to_string_lossy().into_owned());
        let command: Vec<String> = variables.chain(program).chain(arguments).collect();
        match Supervised::start(folder, &log, Path::new("/usr/bin/env"), &command) {
            Ok(process) => Self { name, process, log },
            Err(error) => panic!("{name} cannot be started: {error}"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends a signal, by its name without `SIG`.
    ///
    /// # Panics
    /// If there is no such process or signal.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("/bin/sh").args(["-c", &format!("kill -{signal} {}", self.pid())]).status();
        assert!(status.is_ok_and(|s| s.success()), "{signal} could not be sent to {}", self.name);
    }

    /// True if it has ended for any reason.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Waits until it has ended by itself. Returns its exit code.
    pub async fn exit_code(&self) -> Option<i32> {
        self.process.end().await;
        self.process.kill().await
    }

    /// Kills it with SIGKILL and waits for its death.
    pub async fn kill(&self) {
        self.process.kill().await;
    }
}

fn name(program: &Path) -> String {
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = self.output();
            let lines: Vec<&str> = output.lines().collect();
            let tail = &lines[lines.len().saturating_sub(60)..];
            eprintln!(
                "---- {}: the last {} of {} lines ----\n{}",
                self.name,
                tail.len(),
                lines.len(),
                tail.join("\n")
            );
        }
    }
}
