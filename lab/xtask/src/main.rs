//! Checks of the repository's own text, which no compiler makes: `cargo run -p salvor-xtask -- circles size`.

mod circles;
mod documents;
mod modules;
mod selects;
mod size;
mod source;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

/// What a check prints, and what is wrong. Nothing is wrong if the list is empty.
#[derive(Default)]
struct Outcome {
    report: String,
    complaints: Vec<String>,
}

fn main() -> ExitCode {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut code = ExitCode::SUCCESS;
    let commands: Vec<String> = env::args().skip(1).collect();
    if commands.is_empty() {
        eprintln!("usage: cargo run -p salvor-xtask -- circles|documents|selects|size ...");
        return ExitCode::FAILURE;
    }
    for command in commands {
        let outcome = match command.as_str() {
            "circles" => circles::check(root),
            "documents" => documents::check(root),
            "selects" => selects::check(root),
            "size" => size::check(root),
            _ => Err(format!("no such command: {command}")),
        };
        let outcome =
            outcome.unwrap_or_else(|error| Outcome { complaints: vec![error], ..Outcome::default() });
        print(&outcome.report);
        for complaint in outcome.complaints {
            eprintln!("{command}: {complaint}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print(text: &str) {
    print!("{text}");
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The entries of a folder, in the order of their names; none if there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// All Rust files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let below = |path: PathBuf| if path.is_dir() { rust_files(&path) } else { vec![path] };
    entries(folder).into_iter().flat_map(below).filter(|path| is_rust(path)).collect()
}
