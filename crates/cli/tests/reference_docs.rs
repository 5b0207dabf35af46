//! The generated pages in `docs/reference` say what the binary says.

use std::fs;
use std::path::Path;
use std::process::Command;

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
            "docs/reference/{} is out of date: run `cargo run -p salvor -- docs docs/reference`",
            page.display()
        );
    }
}
