//! Every `tokio::select!` in code that is played in virtual time is biased. Otherwise it begins with a random branch,
//! and one seed would give many histories.

use std::path::Path;

use crate::source::tokens;
use crate::{Outcome, read, rust_files};

const PLAYED: [&str; 6] =
    ["crates/operator", "lab/nodes", "lab/apiserver", "lab/controllers", "lab/cluster", "lab/simulate"];

pub(crate) fn check(root: &Path) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let mut selects = 0;
    for file in PLAYED.iter().flat_map(|folder| rust_files(&root.join(folder).join("src"))) {
        let text = read(&file)?;
        if !text.contains("select!") {
            continue;
        }
        for (line, biased) in selects_in(&text) {
            selects += 1;
            if !biased {
                outcome.complaints.push(format!("{}:{line}: `biased;` is missing", file.display()));
            }
        }
    }
    outcome.report = format!("{selects} selects\n");
    if selects <= 5 {
        outcome.complaints.push("too few are found: do they look different now?".to_owned());
    }
    Ok(outcome)
}

/// The line of each `select!`, and if it is biased.
fn selects_in(text: &str) -> Vec<(usize, bool)> {
    let tokens = tokens(text);
    let are = |at: usize, texts: &[&str]| {
        tokens.len() >= at + texts.len() && tokens[at..].iter().zip(texts).all(|(it, text)| it.text == *text)
    };
    let places = (0..tokens.len()).filter(|at| are(*at, &["select", "!", "{"]));
    places.map(|at| (tokens[at].line, are(at + 3, &["biased", ";"]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_select_says_first_that_it_is_biased() {
        let text =
            "tokio::select! {\n    biased;\n    a = b => {}\n}\nselect! { a = b => {} } // select! { biased;";
        assert_eq!(selects_in(text), [(1, true), (5, false)]);
    }
}
