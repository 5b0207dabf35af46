//! Regular expressions with Go's syntax.

use regex::Regex;

/// Compiles a pattern. In Go, a brace that begins no repetition is a literal.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern)
        .or_else(|error| Regex::new(&with_plain_braces(pattern)).map_err(|_| error.to_string()))
}

fn with_plain_braces(pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern.chars();
    while let Some(next) = rest.next() {
        let after = rest.as_str();
        match next {
            '\\' => {
                out.push(next);
                let escaped = rest.next();
                out.extend(escaped);
                // The brace of a character class, `\p{Greek}`.
                if matches!(escaped, Some('p' | 'P' | 'x')) && rest.as_str().starts_with('{') {
                    out.extend(rest.next());
                }
            }
            '{' if !is_repetition(after) => out.push_str("\\{"),
            _ => out.push(next),
        }
    }
    out
}

/// True if what follows a brace is `3}`, `3,}` or `3,5}`.
fn is_repetition(after: &str) -> bool {
    let Some((inside, _)) = after.split_once('}') else { return false };
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    !least.is_empty() && [least, most].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::compile;

    #[test]
    fn a_brace_that_repeats_nothing_is_a_brace() {
        assert!(compile(r"^\${[a-z]+}$").unwrap().is_match("${abc}"));
        assert!(compile("^a{2,3}$").unwrap().is_match("aaa"));
        assert!(compile(r"^\p{Greek}{2}{$").unwrap().is_match("αβ{"));
        assert!(compile("([").is_err());
    }
}
