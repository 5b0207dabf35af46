//! Checks of the sources that no lint covers.

use std::{fs, path::Path};

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Without `biased`, `tokio::select!` begins with a random branch: one seed would give many histories.
#[test]
fn every_select_is_biased() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut selects = 0;
    for name in
        ["crates/operator", "lab/nodes", "lab/apiserver", "lab/controllers", "lab/cluster", "lab/simulate"]
    {
        for file in files(&root.join(name).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            let mut lines = text.lines().enumerate();
            while let Some((number, line)) = lines.next() {
                if line.trim_end().ends_with("select! {") {
                    selects += 1;
                    let next = lines.next().map(|(_, next)| next.trim()).unwrap_or_default();
                    assert_eq!(next, "biased;", "{}:{}", file.display(), number + 1);
                }
            }
        }
    }
    assert!(selects > 5, "only {selects} found: do they look different now?");
}
