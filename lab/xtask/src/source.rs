//! Rust source as tokens, and which of them are tests.

use std::ops::Range;

#[derive(Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
    /// In an item with `#[cfg(test)]`.
    pub(crate) test: bool,
}

/// What stands for a literal: its text could look like code.
const LITERAL: &str = "\"\"";

/// The tokens of a file. Comments are left out.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Lexer { text, at: 0 }.all();
    mark_tests(&mut tokens);
    tokens
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

/// By bytes, without iterators: this reads everything several times, in a build that is not optimised.
impl<'a> Lexer<'a> {
    fn all(mut self) -> Vec<Token<'a>> {
        let ends: Vec<usize> = self.text.match_indices('\n').map(|(at, _)| at).collect();
        let mut line = 1;
        let mut tokens = Vec::new();
        while self.at < self.text.len() {
            let start = self.at;
            let text = match self.byte(0) {
                byte if byte.is_ascii_whitespace() => {
                    self.at += 1;
                    continue;
                }
                b'/' if self.byte(1) == b'/' => {
                    self.skip_past("\n");
                    continue;
                }
                b'/' if self.byte(1) == b'*' => {
                    self.block_comment();
                    continue;
                }
                b'"' => self.string(),
                b'\'' => self.quote(),
                byte if byte.is_ascii_digit() => self.number(),
                byte if is_word(byte) => self.word(),
                b':' if self.byte(1) == b':' => self.taken(2),
                _ => self.taken(1),
            };
            while ends.get(line - 1).is_some_and(|end| *end < start) {
                line += 1;
            }
            tokens.push(Token { text, line, test: false });
        }
        tokens
    }

    /// The byte that is so far ahead; 0 behind the end.
    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn taken(&mut self, bytes: usize) -> &'a str {
        let start = self.at;
        self.at += bytes;
        &self.text[start..self.at]
    }

    fn skip_past(&mut self, end: &str) {
        let rest = &self.text[self.at..];
        self.at += rest.find(end).map_or(rest.len(), |at| at + end.len());
    }

    fn skip_word(&mut self) {
        while is_word(self.byte(0)) {
            self.at += 1;
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.text.len() {
            match (self.byte(0), self.byte(1)) {
                (b'/', b'*') => depth += 1,
                (b'*', b'/') => depth -= 1,
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            self.at += 2;
            if depth == 0 {
                return;
            }
        }
    }

    /// A string with escapes, from its first quote on.
    fn string(&mut self) -> &'static str {
        self.at += 1;
        while self.at < self.text.len() && self.byte(0) != b'"' {
            self.at += if self.byte(0) == b'\\' { 2 } else { 1 };
        }
        self.at = (self.at + 1).min(self.text.len());
        LITERAL
    }

    /// A character, or a lifetime.
    fn quote(&mut self) -> &'a str {
        let start = self.at;
        let first = self.text[self.at + 1..].chars().next().map_or(1, char::len_utf8);
        if self.byte(1) == b'\\' {
            self.at += 3;
            self.skip_past("'");
            LITERAL
        } else if self.byte(1 + first) == b'\'' {
            self.at += first + 2;
            LITERAL
        } else {
            self.at += 1;
            self.skip_word();
            &self.text[start..self.at]
        }
    }

    fn number(&mut self) -> &'static str {
        self.skip_word();
        if self.byte(0) == b'.' && self.byte(1).is_ascii_digit() {
            self.at += 1;
            self.skip_word();
        }
        LITERAL
    }

    /// A word; or a literal, or a raw identifier, if this word is the prefix of one.
    fn word(&mut self) -> &'a str {
        let start = self.at;
        self.skip_word();
        let word = &self.text[start..self.at];
        if !matches!(word, "r" | "b" | "c" | "br" | "cr") {
            return word;
        }
        let mut hashes = 0;
        while self.byte(hashes) == b'#' {
            hashes += 1;
        }
        let quoted = self.byte(hashes) == b'"';
        if quoted && word.ends_with('r') {
            // A raw one ends with as many hashes as it began with.
            self.at += hashes + 1;
            self.skip_past(&format!("\"{}", "#".repeat(hashes)));
            LITERAL
        } else if quoted && hashes == 0 {
            self.string()
        } else if word == "b" && self.byte(0) == b'\'' {
            self.quote()
        } else if word == "r" && hashes == 1 {
            self.at += 1;
            self.word()
        } else {
            word
        }
    }
}

/// Bytes of other alphabets count too.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 128
}

fn mark_tests(tokens: &mut [Token<'_>]) {
    let mut at = 0;
    while at < tokens.len() {
        let is = |offset: usize, text: &str| tokens.get(at + offset).is_some_and(|it| it.text == text);
        let cfg_test =
            ["#", "[", "cfg", "(", "test", ")", "]"].iter().enumerate().all(|(n, text)| is(n, text));
        if cfg_test {
            let item = item_after(tokens, at + 7);
            tokens[at..item.end].iter_mut().for_each(|token| token.test = true);
            at = item.end;
        } else {
            at += 1;
        }
    }
}

/// The item, field or statement that follows an attribute: up to its semicolon, its braces or its comma.
fn item_after(tokens: &[Token<'_>], start: usize) -> Range<usize> {
    let mut first = start;
    // More attributes, and who may see it.
    loop {
        match tokens.get(first).map(|token| token.text) {
            Some("#") => first = group_end(tokens, first + 1),
            Some("pub") => {
                first += 1;
                if tokens.get(first).is_some_and(|it| it.text == "(") {
                    first = group_end(tokens, first);
                }
            }
            _ => break,
        }
    }
    let keyword = tokens.get(first).map_or("", |token| token.text);
    let ends_with_braces = matches!(
        keyword,
        "mod" | "fn" | "async" | "impl" | "struct" | "enum" | "trait" | "macro_rules" | "unsafe" | "{"
    ) || (keyword == "const"
        && tokens.get(first + 1).is_some_and(|it| it.text == "fn"));
    let is_item =
        ends_with_braces || matches!(keyword, "use" | "static" | "const" | "type" | "let" | "extern");
    let mut at = first;
    while let Some(token) = tokens.get(at) {
        match token.text {
            ";" => return start..at + 1,
            "," if !is_item => return start..at + 1,
            "}" | ")" | "]" => return start..at,
            "{" | "(" | "[" => {
                let braces = token.text == "{";
                at = group_end(tokens, at);
                if braces && ends_with_braces {
                    return start..at;
                }
            }
            _ => at += 1,
        }
    }
    start..tokens.len()
}

/// Behind the bracket that closes the one at this place.
pub(crate) fn group_end(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn production(text: &str) -> String {
        let tokens = tokens(text).into_iter().filter(|token| !token.test);
        tokens.map(|token| token.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(production("a // crate::b\n/* c /* d */ e */ f"), "a f");
        assert_eq!(production(r#"f("crate::a \" b", 'x', '\'', b'"', 1.5, 0..2)"#), {
            r#"f ( "" , "" , "" , "" , "" , "" . . "" )"#
        });
        assert_eq!(production("r\"\\\" r#\"a \"b\" c\"# br#\"d\"# r#type"), "\"\" \"\" \"\" type");
        assert_eq!(production("fn f<'a>(x: &'a str) -> char { 'é' }").matches("'a").count(), 2);
    }

    #[test]
    fn lines_are_counted_through_literals_and_comments() {
        let tokens = tokens("a\n\"b\n\" /*\n*/ c");
        assert_eq!(tokens.iter().map(|token| token.line).collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn what_is_for_tests_only_ends_where_its_item_ends() {
        assert_eq!(production("#[cfg(test)]\nmod tests;\nfn a() {}"), "fn a ( ) { }");
        assert_eq!(production("#[cfg(test)] mod tests { use super::*; } b"), "b");
        assert_eq!(production("#[cfg(test)] use a::{b, c}; d"), "d");
        assert_eq!(production("#[cfg(test)] #[path = \"x.rs\"] pub(crate) mod tests; d"), "d");
        assert_eq!(production("#[cfg(test)] pub(super) const fn f(a: [u8; 2]) -> u8 { 1 } d"), "d");
        assert_eq!(
            production("struct A { #[cfg(test)] pub(super) made: u64, b: u8 }"),
            "struct A { b : u8 }"
        );
        assert_eq!(production("struct A { b: u8, #[cfg(test)] made: u64 }"), "struct A { b : u8 , }");
        assert_eq!(production("#[cfg(test)] self.asked.fetch_add(1, A); d"), "d");
        assert_eq!(production("#[cfg(feature = \"a\")] mod b;"), "# [ cfg ( feature = \"\" ) ] mod b ;");
    }
}
