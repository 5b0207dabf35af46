//! The generated pages in `docs/reference` and the generated files of the chart match the binary.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// All files below a folder, with their relative paths.
fn files(folder: &Path, below: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder.join(below)).unwrap() {
        let path = format!("{below}/{}", entry.unwrap().file_name().to_str().unwrap());
        if folder.join(&path).is_dir() {
            found.extend(files(folder, &path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn the_generated_files_of_the_chart_are_current() {
    let (pages, chart) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut docs = Command::new(env!("CARGO_BIN_EXE_salvor"));
    let generated = docs.arg("docs").arg(pages.path()).arg("--chart").arg(chart.path()).status();
    assert!(generated.unwrap().success());
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/salvor");
    let how = "run `cargo run -p salvor -- docs docs/reference --chart charts/salvor`";
    for file in files(chart.path(), "files") {
        let is = fs::read_to_string(kept.join(&file)).unwrap_or_default();
        let should_be = fs::read_to_string(chart.path().join(&file)).unwrap();
        assert!(is == should_be, "charts/salvor/{file} is out of date: {how}");
    }
    // The only other files are the alert rules and the dashboard. Another test compares them with those in deploy/.
    let generated = files(chart.path(), "files");
    let mut others = files(&kept, "files");
    others.retain(|file| !generated.contains(file));
    assert_eq!(others, ["files/alerts.yaml", "files/dashboard.json"]);
}

#[test]
fn the_reference_pages_are_current() {
    let folder = tempfile::tempdir().unwrap();
    let generated = Command::new(env!("CARGO_BIN_EXE_salvor")).arg("docs").arg(folder.path()).status();
    assert!(generated.unwrap().success());

    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let mut pages: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    pages.sort();
    assert_eq!(pages, ["cli.md", "configuration.md", "metrics.md"]);
    for page in pages {
        let is = fs::read_to_string(kept.join(&page)).unwrap_or_default();
        let should_be = fs::read_to_string(folder.path().join(&page)).unwrap();
        assert!(
            is == should_be,
            "docs/reference/{} is out of date: run `cargo run -p salvor -- docs docs/reference --chart charts/salvor`",
            page.display()
        );
    }
}
