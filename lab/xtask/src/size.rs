//! How large each crate is, and that none outgrows its number in the table of the architecture page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::source::tokens;
use crate::{Outcome, entries, is_rust, read, rust_files};

/// The page with the table, and the table's first line.
const PAGE: &str = "docs/develop/architecture.md";
const TABLE: &str = "| folder | production lines |";

/// A production file with more lines is listed.
const LONG: usize = 600;

#[derive(Default)]
struct Size {
    production: usize,
    tests: usize,
    files: usize,
    largest_folder: (usize, PathBuf),
    long: Vec<(usize, PathBuf)>,
}

pub(crate) fn check(root: &Path) -> Result<Outcome, String> {
    let numbers = numbers(&read(&root.join(PAGE))?)?;
    let mut folders: Vec<PathBuf> =
        ["crates", "lab"].iter().flat_map(|house| entries(&root.join(house))).collect();
    folders.retain(|folder| folder.join("Cargo.toml").exists());
    folders.extend(["tests", "fuzz"].map(|folder| root.join(folder)));
    let mut sizes = BTreeMap::new();
    for folder in folders {
        let name = relative(root, &folder);
        sizes.insert(name.display().to_string(), size(root, &folder)?);
    }
    Ok(Outcome { report: table(&sizes, &numbers), complaints: complaints(&sizes, &numbers) })
}

/// The most production lines of each folder, as the page says.
fn numbers(page: &str) -> Result<BTreeMap<String, usize>, String> {
    let (_, rows) = page.split_once(TABLE).ok_or_else(|| format!("{PAGE} has no table `{TABLE}`"))?;
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let folder = cells.next()?.trim_matches('`').to_owned();
        Some((folder, cells.next()?.replace(',', "").parse().ok()?))
    };
    // The rest of the first line, and the line below it.
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|line| row(line).ok_or_else(|| format!("{PAGE}: `{line}` is not a folder and a number")))
        .collect()
}

fn size(root: &Path, folder: &Path) -> Result<Size, String> {
    let mut size = Size::default();
    let mut texts = Vec::new();
    let mut test_modules = BTreeSet::new();
    for file in rust_files(folder) {
        let text = read(&file)?;
        test_modules.extend(modules_for_tests(&file, &text));
        texts.push((file, text));
    }
    let mut in_folder: BTreeMap<&Path, usize> = BTreeMap::new();
    for (file, text) in &texts {
        let path = relative(root, file);
        let lines = text.lines().count();
        // The path below the root of the repository decides: the clone itself may be in a folder `tests`.
        let tests = if is_test(&path) || is_below(file, &test_modules) { lines } else { test_lines(text) };
        size.files += 1;
        size.tests += tests;
        size.production += lines - tests;
        if lines - tests > LONG {
            size.long.push((lines - tests, path));
        }
        *in_folder.entry(file.parent().unwrap_or(folder)).or_default() += 1;
    }
    let largest = in_folder.into_iter().max_by_key(|(_, files)| *files);
    size.largest_folder = largest.map(|(path, files)| (files, relative(root, path))).unwrap_or_default();
    Ok(size)
}

fn relative(root: &Path, path: &Path) -> PathBuf {
    path.strip_prefix(root).unwrap_or(path).to_owned()
}

/// By its name alone: end-to-end suites, fuzz targets, `tests.rs`, and what is in a folder `tests`.
fn is_test(path: &Path) -> bool {
    path.starts_with("fuzz") || path.iter().any(|part| part == "tests" || part == "tests.rs")
}

/// The modules that a file declares for its tests only, as paths without an extension.
fn modules_for_tests(file: &Path, text: &str) -> Vec<PathBuf> {
    let is_root =
        ["lib.rs", "main.rs", "mod.rs"].iter().any(|name| file.file_name().is_some_and(|it| it == *name));
    let folder = if is_root { file.parent().unwrap_or(file).to_owned() } else { file.with_extension("") };
    let tokens = if has_tests(text) { tokens(text) } else { Vec::new() };
    let declared =
        tokens.windows(3).filter(|three| three[0].test && three[0].text == "mod" && three[2].text == ";");
    declared.map(|three| folder.join(three[1].text)).collect()
}

fn is_below(file: &Path, modules: &BTreeSet<PathBuf>) -> bool {
    let path = if is_rust(file) { file.with_extension("") } else { file.to_owned() };
    path.ancestors().any(|path| modules.contains(path))
}

/// Most files have none, and need not be read closely.
fn has_tests(text: &str) -> bool {
    text.contains("cfg(test)")
}

/// The lines of a file that are for its tests only.
fn test_lines(text: &str) -> usize {
    let tokens = if has_tests(text) { tokens(text) } else { Vec::new() };
    let parts = tokens.chunk_by(|one, next| one.test == next.test).filter(|part| part[0].test);
    parts.map(|part| part[part.len() - 1].line - part[0].line + 1).sum()
}

fn table(sizes: &BTreeMap<String, Size>, numbers: &BTreeMap<String, usize>) -> String {
    let mut text = format!(
        "{:<16} {:>10} {:>9} {:>8} {:>6}  {}\n",
        "folder", "production", "number", "tests", "files", "largest folder"
    );
    let mut all = (0, 0, 0);
    for (name, size) in sizes {
        let number = numbers.get(name).map_or("-".to_owned(), |number| grouped(*number));
        let (most, folder) = &size.largest_folder;
        let _ = writeln!(
            text,
            "{name:<16} {:>10} {number:>9} {:>8} {:>6}  {most} in {}",
            grouped(size.production),
            grouped(size.tests),
            size.files,
            folder.display()
        );
        all = (all.0 + size.production, all.1 + size.tests, all.2 + size.files);
    }
    let number = grouped(numbers.values().sum());
    let _ = writeln!(
        text,
        "{:<16} {:>10} {number:>9} {:>8} {:>6}",
        "all",
        grouped(all.0),
        grouped(all.1),
        grouped(all.2)
    );
    let mut long: Vec<_> = sizes.values().flat_map(|size| &size.long).collect();
    long.sort_by(|one, other| other.cmp(one));
    let _ = writeln!(text, "\n{} files with more than {LONG} production lines", long.len());
    for (lines, path) in long {
        let _ = writeln!(text, "{lines:>6}  {}", path.display());
    }
    text
}

fn complaints(sizes: &BTreeMap<String, Size>, numbers: &BTreeMap<String, usize>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, size) in sizes.iter().filter(|(_, size)| size.production > 0) {
        let now = grouped(size.production);
        match numbers.get(name) {
            None => {
                complaints.push(format!("{name} is not in the table of {PAGE}; it has {now} production lines"));
            }
            Some(number) if size.production > number + number / 10 => complaints.push(format!(
                "{name} has {now} production lines, more than a tenth above its {} in {PAGE}: remove some, or say in the \
                 commit why it grows and change the table",
                grouped(*number)
            )),
            Some(_) => {}
        }
    }
    let gone = numbers.keys().filter(|name| !sizes.contains_key(*name));
    complaints.extend(gone.map(|name| format!("{PAGE}: there is no folder {name} any more")));
    complaints
}

/// `12345` as `12,345`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(production: usize) -> BTreeMap<String, Size> {
        BTreeMap::from([("crates/api".to_owned(), Size { production, ..Size::default() })])
    }

    #[test]
    fn a_crate_may_pass_its_number_by_a_tenth() {
        let page = format!("# Page\n\n{TABLE}\n|---|---|\n| `crates/api` | 1,000 |\n\nMore.\n| a | b |\n");
        let numbers = numbers(&page).unwrap();
        assert_eq!(numbers, BTreeMap::from([("crates/api".to_owned(), 1_000)]));
        assert!(complaints(&sizes(1_100), &numbers).is_empty());
        assert!(complaints(&sizes(1_101), &numbers)[0].starts_with("crates/api has 1,101 production lines"));
        assert!(complaints(&BTreeMap::new(), &numbers)[0].contains("no folder crates/api"));
        assert!(complaints(&sizes(1), &BTreeMap::new())[0].contains("crates/api is not in the table"));
    }

    #[test]
    fn a_page_without_the_table_or_with_another_is_refused() {
        assert!(numbers("# Page\n").is_err());
        assert!(numbers(&format!("{TABLE}\n|---|---|\n| `crates/api` | many |\n")).is_err());
    }

    #[test]
    fn lines_of_tests_are_told_from_production() {
        assert_eq!(test_lines("fn a() {}\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n"), 4);
        assert_eq!(test_lines("fn a() {}\n"), 0);
        let modules = |file| modules_for_tests(Path::new(file), "#[cfg(test)]\nmod fake;\nmod b;");
        assert_eq!(modules("src/lib.rs"), [Path::new("src/fake")]);
        assert_eq!(modules("src/a.rs"), [Path::new("src/a/fake")]);
        let modules = BTreeSet::from_iter(modules("src/a.rs"));
        assert!(is_below(Path::new("src/a/fake.rs"), &modules));
        assert!(is_below(Path::new("src/a/fake/pods.rs"), &modules));
        assert!(!is_below(Path::new("src/a/faked.rs"), &modules));
        assert!(
            is_test(Path::new("crates/api/src/tests.rs")) && !is_test(Path::new("lab/testkit/src/lib.rs"))
        );
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
