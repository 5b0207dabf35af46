//! However a process with a control plane ends, none of its processes and folders are left.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use salvor_testkit::{ControlPlane, Part};

/// Marks the child process of a test.
const CHILD: &str = "SALVOR_TESTKIT_CHILD";

/// The processes whose command line names the folder: all parts and all supervisors, but no zombies, since those no
/// longer have a command line.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let command_line = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("cmdline")).ok();
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(command_line);
    processes.filter(|line| line.contains(folder)).map(|line| line.replace('\0', " ")).collect()
}

/// A process that has a control plane with all its parts, and the only folder in which it may write.
struct Owner {
    process: Child,
    stdout: BufReader<ChildStdout>,
    temporary: tempfile::TempDir,
}

impl Owner {
    fn spawn(command: &mut Command) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut process = command
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // As a shell does for a foreground job: Ctrl-C reaches this group.
            .process_group(0)
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { process, stdout, temporary }
    }

    /// The program of this crate, with all parts.
    fn program() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_control-plane"));
        Self::spawn(command.args(["kube-controller-manager", "kube-scheduler"]))
    }

    /// Waits until it reports that its control plane is ready, and then closes its stdin.
    fn ready(mut self) -> Self {
        let mut lines = self.stdout.by_ref().lines().map_while(Result::ok);
        assert!(lines.any(|line| line.starts_with("export KUBECONFIG=")), "no control plane was started");
        // Four parts, each with its supervisor: otherwise their absence later would prove nothing.
        let processes = processes_of(self.temporary.path());
        assert_eq!(processes.len(), 8, "{processes:#?}");
        drop(self.process.stdin.take());
        self
    }

    fn is_empty(&self) -> bool {
        self.temporary.path().read_dir().unwrap().next().is_none()
    }

    /// Waits for the process, and then until nothing is left.
    fn ends_and_leaves_nothing(mut self) -> ExitStatus {
        let status = self.process.wait().unwrap();
        let processes = || processes_of(self.temporary.path());
        until("nothing is left", || processes().is_empty() && self.is_empty());
        status
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Only needed for a test that failed: the others have waited for the end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn after_sigkill() {
    let mut owner = Owner::program().ready();
    owner.process.kill().unwrap();
    assert!(!owner.ends_and_leaves_nothing().success());
}

#[test]
fn after_sigkill_in_the_middle_of_the_start() {
    let mut owner = Owner::program();
    until("there is something that could be left", || !owner.is_empty());
    owner.process.kill().unwrap();
    assert!(!owner.ends_and_leaves_nothing().success());
}

#[test]
fn after_ctrl_c() {
    let owner = Owner::program().ready();
    let group = format!("-{}", owner.process.id());
    let interrupt = Command::new("/bin/sh").args(["-c", "kill -s INT -- \"$0\"", &group]).status();
    assert!(interrupt.unwrap().success());
    assert!(owner.ends_and_leaves_nothing().success());
}

#[tokio::test]
async fn after_a_panic_which_also_shows_the_logs() {
    if std::env::var_os(CHILD).is_some() {
        let everything = ControlPlane::builder().with(Part::ControllerManager).with(Part::Scheduler);
        let plane = everything.start().await.unwrap();
        println!("\nexport KUBECONFIG={}", plane.kubeconfig().display());
        // Not before the parent has seen all processes that must end.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        panic!("as planned");
    }
    let mut said = tempfile::tempfile().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "after_a_panic_which_also_shows_the_logs", "--nocapture"])
        .env(CHILD, "yes")
        .stderr(said.try_clone().unwrap());
    assert!(!Owner::spawn(&mut command).ready().ends_and_leaves_nothing().success());

    let mut text = String::new();
    said.rewind().unwrap();
    said.read_to_string(&mut text).unwrap();
    assert!(text.contains("as planned"), "{text}");
    for part in Part::ALL {
        assert!(text.contains(&format!("---- {part}: the last ")), "no log of {part} in: {text}");
    }
}
