//! A child process that cannot outlive this process, however it ends.
//!
//! A signal on the parent's death would be bound to the *thread* that started the child, and test threads come and go.
//! So a small shell runs in between: it holds the read end of a pipe from us. The kernel closes that pipe even when we
//! are killed with SIGKILL, and its end is the order to kill the part and to remove the folder. The part is reaped by
//! that shell alone and only after an order, so that no process id is used after its process.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::watch;

/// stdin: orders. stdout: reports. stderr: passed on to the part as descriptor 3, which it never writes to; once the
/// shell has closed its own copy, the end of that pipe shows that the part is dead.
///
/// Each supervisor removes the folder after its own part is dead, so when the last one does, no process is left that
/// could add a file.
const SUPERVISOR: &str = r#"
folder=$1 log=$2
shift 2
trap '' HUP INT PIPE TERM
[ -d "$folder" ] || mkdir -m 700 "$folder" || exit 1
"$@" </dev/null >>"$log" 3>&2 2>&1 &
part=$!
exec 2>/dev/null
echo "pid $part"
read -r order
kill -KILL "$part"
wait "$part"
echo "exit $?"
while [ "$order" = kill ]; do read -r order; done
[ "$order" = leave ] || rm -rf "$folder"
"#;

/// A supervisor has this long to kill its part and to remove the folder.
const FAREWELL: Duration = Duration::from_secs(30);

/// A part of the control plane under its supervisor.
///
/// Dropping it kills the part and removes the folder, exactly as if this process had died.
#[derive(Debug)]
pub(crate) struct Supervised {
    pid: u32,
    orders: Mutex<Option<ChildStdin>>,
    ended: watch::Receiver<bool>,
    exit: watch::Receiver<Option<i32>>,
    gone: Mutex<mpsc::Receiver<()>>,
}

impl Supervised {
    /// Starts `program` with its output appended to `log`. The first supervisor creates the folder, so that the folder
    /// never exists without a process that removes it.
    pub(crate) fn start(
        folder: &Path,
        log: &Path,
        program: &Path,
        arguments: &[String],
    ) -> std::io::Result<Self> {
        let mut supervisor = Command::new("/bin/sh")
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(folder)
            .arg(log)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C on the terminal is for us; the supervisors notice our end.
            .process_group(0)
            .spawn()?;
        let missing = || std::io::Error::other("the supervisor has no pipes");
        let orders = supervisor.stdin.take().ok_or_else(missing)?;
        let mut reports = BufReader::new(supervisor.stdout.take().ok_or_else(missing)?);
        let mut alive = supervisor.stderr.take().ok_or_else(missing)?;

        let mut first = String::new();
        reports.read_line(&mut first)?;
        let Some(pid) = first.strip_prefix("pid ").and_then(|pid| pid.trim().parse().ok()) else {
            let mut said = String::new();
            alive.read_to_string(&mut said)?;
            supervisor.wait()?;
            return Err(std::io::Error::other(format!(
                "no supervisor for {}: {first}{said}",
                program.display()
            )));
        };

        // Plain threads: a part belongs to the process, not to the async runtime of the test that started it.
        let (tell_ended, ended) = watch::channel(false);
        std::thread::spawn(move || {
            // Nothing is ever written here; the read returns when the part's copy is closed.
            let _ = alive.read_to_end(&mut Vec::new());
            tell_ended.send_replace(true);
        });
        let (tell_exit, exit) = watch::channel(None);
        let (tell_gone, gone) = mpsc::channel();
        std::thread::spawn(move || follow(reports, supervisor, &tell_exit, &tell_gone));

        Ok(Self { pid, orders: Mutex::new(Some(orders)), ended, exit, gone: Mutex::new(gone) })
    }

    /// The part's process id. The number stays taken until the part is killed through us.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// True if the part is dead, for any reason.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits until the part is dead, for any reason.
    pub(crate) async fn end(&self) {
        // The sender is only dropped after it has sent.
        let _ = self.ended.clone().wait_for(|&ended| ended).await;
    }

    /// Kills the part with SIGKILL, waits for its death, and returns its exit status as the shell counts it. The folder
    /// stays.
    pub(crate) async fn kill(&self) -> Option<i32> {
        self.order("kill\n");
        self.end().await;
        let mut exit = self.exit.clone();
        exit.wait_for(Option::is_some).await.ok().and_then(|code| *code)
    }

    /// Ends the supervisor, and with it a part that still runs, but keeps the folder for later ones.
    pub(crate) fn leave(&self) {
        self.order("leave\n");
        self.let_go();
    }

    /// Orders the end without waiting for it: the part dies, the folder is removed.
    pub(crate) fn let_go(&self) {
        if let Ok(mut orders) = self.orders.lock() {
            orders.take();
        }
    }

    fn order(&self, order: &str) {
        if let Ok(mut orders) = self.orders.lock()
            && let Some(pipe) = orders.as_mut()
        {
            // A supervisor that no longer reads has nothing left to kill.
            let _ = pipe.write_all(order.as_bytes());
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.let_go();
        if let Ok(gone) = self.gone.lock() {
            // Bounded: a test must end even when a process cannot be killed. The supervisor keeps trying.
            let _ = gone.recv_timeout(FAREWELL);
        }
    }
}

fn follow(
    reports: impl BufRead,
    mut supervisor: Child,
    exit: &watch::Sender<Option<i32>>,
    gone: &mpsc::Sender<()>,
) {
    for report in reports.lines().map_while(Result::ok) {
        if let Some(code) = report.strip_prefix("exit ") {
            exit.send_replace(code.parse().ok());
        }
    }
    let _ = supervisor.wait();
    // The receiver is gone if the owner was leaked on purpose.
    let _ = gone.send(());
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct Place {
        _parent: tempfile::TempDir,
        folder: PathBuf,
        log: PathBuf,
    }

    fn place() -> Place {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("plane");
        let log = folder.join("part.log");
        Place { _parent: parent, folder, log }
    }

    fn sh(place: &Place, script: &str) -> Supervised {
        let arguments = ["-c".to_owned(), script.to_owned()];
        Supervised::start(&place.folder, &place.log, Path::new("/bin/sh"), &arguments).unwrap()
    }

    fn exists(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn dropping_it_kills_the_part_and_removes_the_folder() {
        let place = place();
        let part = sh(&place, "exec sleep 1000");
        let pid = part.pid();
        assert!(exists(pid) && place.folder.exists());
        drop(part);
        assert!(!exists(pid) && !place.folder.exists());
    }

    #[tokio::test]
    async fn a_killed_part_leaves_the_folder_until_the_end() {
        let place = place();
        let part = sh(&place, "exec sleep 1000");
        let pid = part.pid();
        assert_eq!(part.kill().await, Some(128 + 9));
        assert!(!exists(pid) && part.has_ended() && place.folder.exists());
        drop(part);
        assert!(!place.folder.exists());
    }

    #[tokio::test]
    async fn the_supervisor_of_a_killed_part_can_leave_the_folder_to_the_next() {
        let place = place();
        let first = sh(&place, "exec sleep 1000");
        first.kill().await;
        let second = sh(&place, "exec sleep 1000");
        first.leave();
        assert!(place.folder.exists());
        drop(second);
        assert!(!place.folder.exists());
    }

    #[tokio::test]
    async fn a_part_that_ends_by_itself_is_noticed_and_its_status_and_output_kept() {
        let place = place();
        let part = sh(&place, "echo to stdout; echo to stderr >&2; exit 7");
        part.end().await;
        assert_eq!(std::fs::read_to_string(&place.log).unwrap(), "to stdout\nto stderr\n");
        assert_eq!(part.kill().await, Some(7));
    }

    #[tokio::test]
    async fn a_program_that_is_missing_ends_at_once_and_the_log_says_so() {
        let place = place();
        let part = Supervised::start(&place.folder, &place.log, Path::new("/no/such/program"), &[]).unwrap();
        part.end().await;
        assert!(std::fs::read_to_string(&place.log).unwrap().contains("/no/such/program"));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let place = place();
        let nowhere = place.folder.join("deeper");
        let error = Supervised::start(&nowhere, &place.log, Path::new("/bin/true"), &[]).unwrap_err();
        assert!(error.to_string().contains("/bin/true"), "{error}");
    }
}
