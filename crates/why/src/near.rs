//! Names that a person may have meant.

/// At most this many are offered.
const MOST: usize = 3;

/// The names that are similar to a word, best first.
pub fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let word = word.to_lowercase();
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    let mut similar: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|name| {
            let low = name.to_lowercase();
            let edits = edits(&word, &low);
            // Half a name is also a way to name it: `train` for `train-7d9f`.
            let part = word.len() >= 3 && low.contains(&word);
            (edits > 0 && (edits <= allowed || part)).then_some((edits, name))
        })
        .collect();
    similar.sort_unstable();
    similar.dedup();
    similar.into_iter().take(MOST).map(|(_, name)| name.to_owned()).collect()
}

/// `; did you mean a, b or c?`, or nothing.
pub fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [most @ .., last] => format!("; did you mean {} or {last}?", most.join(", ")),
    }
}

/// The number of inserted, removed, changed or swapped characters between two words.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_near() {
        let known = ["train", "trainer-7d9f", "serve", "Team-A", "team-b", "x"];
        for (word, expected) in [
            ("trian", &["train"][..]),
            ("trainr", &["train"]),
            ("team-a1", &["Team-A", "team-b"]),
            ("trainer", &["train", "trainer-7d9f"]),
            ("nothing-like-it", &[]),
            ("train", &["trainer-7d9f"]),
            ("", &["x"]),
        ] {
            assert_eq!(near(word, known), expected, "{word}");
        }
        assert_eq!(edits("jbo", "job"), 1);
        assert_eq!(edits("", "abc"), 3);
    }

    #[test]
    fn names_are_offered_as_a_question() {
        let offered =
            |names: &[&str]| did_you_mean(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(offered(&[]), "");
        assert_eq!(offered(&["a"]), "; did you mean a?");
        assert_eq!(offered(&["a", "b", "c"]), "; did you mean a, b or c?");
    }
}
