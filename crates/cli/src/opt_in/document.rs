//! The documents of a file, and how their text changes.

use salvor_recovery::opt_in::Edit;
use serde_json::Value;

use super::text::{self, Form};

/// One document of a file. Together, the texts of all documents are the file.
#[derive(Debug)]
pub(super) struct Document<'f> {
    /// The line of the file in which it begins.
    pub(super) line: usize,
    pub(super) value: Value,
    text: &'f str,
    form: Form,
}

pub(super) struct Edited {
    pub(super) text: String,
    /// True if comments and the order of fields are lost.
    pub(super) is_reprinted: bool,
}

#[derive(Debug)]
pub(super) struct ReadError {
    pub(super) line: usize,
    pub(super) problem: String,
}

/// The documents of a file, all of which must be sound.
pub(super) fn read(file: &str) -> Result<Vec<Document<'_>>, ReadError> {
    if file.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(file)
    {
        return Ok(vec![Document { line: 1, value, text: file, form: Form::Json }]);
    }
    let mut documents = Vec::new();
    let mut line = 1;
    for text in split(file) {
        let value = parse(text, Form::Yaml)
            .map_err(|error| ReadError { line: line + error.line.saturating_sub(1), ..error })?;
        documents.push(Document { line, value, text, form: Form::Yaml });
        line += text.matches('\n').count();
    }
    Ok(documents)
}

/// Splits before every `---`. YAML allows no such line inside of a document, not even in a block of text.
fn split(file: &str) -> Vec<&str> {
    let mut starts = vec![0];
    let mut at = 0;
    for line in file.split_inclusive('\n') {
        let is_start =
            line.strip_prefix("---").is_some_and(|rest| rest.trim_start() != rest || rest.is_empty());
        if is_start && at > 0 {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).copied().chain([file.len()]);
    starts.iter().zip(ends).map(|(start, end)| &file[*start..end]).collect()
}

fn parse(text: &str, form: Form) -> Result<Value, ReadError> {
    match form {
        Form::Json => serde_json::from_str(text)
            .map_err(|error| ReadError { line: error.line(), problem: error.to_string() }),
        Form::Yaml => {
            // `y`, `on` and the like are strings, as readers expect.
            let options = serde_saphyr::options! { strict_booleans: true };
            serde_saphyr::from_str_with_options(text, options).map_err(|error| ReadError {
                line: error.location().and_then(|it| usize::try_from(it.line()).ok()).unwrap_or(1),
                problem: error.without_snippet().to_string().lines().next().unwrap_or_default().to_owned(),
            })
        }
    }
}

impl Document<'_> {
    /// The text after some changes. It is changed in place if the result is surely the same, and otherwise printed from
    /// the changed value.
    pub(super) fn edited(&self, edits: &[Edit]) -> Edited {
        if edits.is_empty() {
            return Edited { text: self.text.to_owned(), is_reprinted: false };
        }
        let mut expected = self.value.clone();
        for edit in edits {
            edit.apply(&mut expected);
        }
        let in_place = self.in_place(edits);
        let sound = in_place.filter(|text| parse(text, self.form).is_ok_and(|value| value == expected));
        match sound {
            Some(text) => Edited { text, is_reprinted: false },
            None => Edited { text: self.reprinted(&expected), is_reprinted: true },
        }
    }

    fn in_place(&self, edits: &[Edit]) -> Option<String> {
        let mut text = self.text.to_owned();
        for edit in edits {
            text = text::edit(&text, self.form, edit)?;
        }
        Some(text)
    }

    fn reprinted(&self, value: &Value) -> String {
        let start = if self.text.starts_with("---") { "---\n" } else { "" };
        let printed = match self.form {
            Form::Json => serde_json::to_string_pretty(value).map_err(|error| error.to_string()),
            Form::Yaml => serde_saphyr::to_string(value).map_err(|error| error.to_string()),
        };
        // Values that were parsed can be printed; JSON is YAML, too.
        let mut text = start.to_owned() + &printed.unwrap_or_else(|_| value.to_string());
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text
    }
}
