//! Locates the control plane's binaries: the repository's `control-plane/build` knows where they are, and builds them
//! if necessary.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::part::Part;

/// The control plane's binaries are not available.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no binaries from {script}: {problem}\n{said}")]
pub struct AssetsError {
    script: String,
    problem: String,
    said: String,
}

/// The folder that holds the binaries. The first call of a process runs the build script, which may take minutes.
pub(crate) fn folder() -> Result<&'static Path, AssetsError> {
    static FOLDER: OnceLock<Result<PathBuf, AssetsError>> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../control-plane/build");
            // Not `eprintln!`: the test harness would buffer that until the test ends.
            build(Command::new(script), &mut std::io::stderr())
        })
        .as_deref()
        .map_err(Clone::clone)
}

/// The path of a part's program.
///
/// # Errors
/// If there is none, and none can be built.
pub fn program_of(part: Part) -> Result<PathBuf, AssetsError> {
    Ok(folder()?.join(part.program()))
}

/// Runs a script that prints a folder. A first build takes minutes, so its output is shown at once, and kept for the
/// error message.
pub(crate) fn build(mut script: Command, show: &mut impl Write) -> Result<PathBuf, AssetsError> {
    let name = script.get_program().display().to_string();
    let mut said = String::new();
    let failed =
        |problem: String, said: &str| AssetsError { script: name.clone(), problem, said: said.to_owned() };
    let mut child = script
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("it does not start: {error}"), ""))?;
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            // A closed output is no reason to stop a build.
            let _ = writeln!(show, "{line}");
            said.push_str(&line);
            said.push('\n');
        }
    }
    let output = child
        .wait_with_output()
        .map_err(|error| failed(format!("it cannot be waited for: {error}"), &said))?;
    if !output.status.success() {
        return Err(failed(format!("it ended with {}", output.status), &said));
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    match printed.trim() {
        "" => Err(failed("it printed no folder".to_owned(), &said)),
        folder => Ok(PathBuf::from(folder)),
    }
}

/// The Kubernetes minor that the tests run on, as chosen by `SALVOR_KUBERNETES`.
pub fn kubernetes_minor() -> String {
    std::env::var("SALVOR_KUBERNETES").ok().filter(|v| !v.is_empty()).unwrap_or_else(|| "1.37".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn the_folder_is_what_the_script_prints() {
        let outcome = build(script("echo talk >&2; echo /some/where"), &mut Vec::new());
        assert_eq!(outcome.unwrap(), Path::new("/some/where"));
    }

    #[test]
    fn a_failed_build_says_what_the_script_said() {
        let mut shown = Vec::new();
        let outcome = build(script("echo 'no Go here' >&2; exit 3"), &mut shown);
        assert_eq!(shown, b"no Go here\n");
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains("exit status: 3") && message.contains("no Go here"), "{message}");
    }

    #[test]
    fn a_script_that_prints_nothing_is_an_error() {
        let message = build(script("exit 0"), &mut Vec::new()).unwrap_err().to_string();
        assert!(message.contains("printed no folder"), "{message}");
    }
}
