//! What is wrong with a field of an AppWrapper, in the words that Kubernetes uses.

use std::fmt;

/// The longest value that a message shows.
const LONGEST_SHOWN: usize = 80;

/// A field that cannot stay as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Where it is, for example `spec.components[0].template`.
    pub field: String,
    /// What kind of trouble it is.
    pub kind: FieldErrorKind,
    /// What would be right.
    pub detail: String,
}

/// The kinds of trouble that a field can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// It must be set.
    Required,
    /// Its value, which is here, means nothing.
    Invalid(String),
    /// Its value is there twice.
    Duplicate(String),
    /// It is well formed, and not allowed.
    Forbidden,
    /// It could not be judged.
    Internal,
}

impl FieldError {
    /// A field that must be set.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Required, detail: detail.into() }
    }

    /// A field whose value means nothing.
    pub fn invalid(field: impl Into<String>, value: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Invalid(shown(value)), detail: detail.into() }
    }

    /// A field whose value is there twice.
    pub fn duplicate(field: impl Into<String>, value: impl fmt::Display) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Duplicate(shown(value)), detail: String::new() }
    }

    /// A field whose value is not allowed.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Forbidden, detail: detail.into() }
    }

    /// A field that could not be judged.
    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Internal, detail: detail.into() }
    }

    /// The same trouble, seen from further out.
    pub fn within(mut self, outer: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{outer}{dot}{}", self.field);
        self
    }
}

/// The value's beginning. Printing stops there, so that neither a huge nor a deep value costs anything.
fn shown(value: impl fmt::Display) -> String {
    let mut beginning = Beginning { text: String::new(), left: LONGEST_SHOWN };
    if fmt::write(&mut beginning, format_args!("{value}")).is_err() {
        beginning.text.push('…');
    }
    beginning.text
}

struct Beginning {
    text: String,
    left: usize,
}

impl fmt::Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(letter);
        }
        Ok(())
    }
}

/// A text that is never very long.
pub(super) fn shorten(text: &str) -> String {
    shown(text)
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, kind, detail } = self;
        match kind {
            FieldErrorKind::Required => write!(f, "{field}: Required value: {detail}"),
            FieldErrorKind::Invalid(value) => write!(f, "{field}: Invalid value: {value:?}: {detail}"),
            FieldErrorKind::Duplicate(value) => write!(f, "{field}: Duplicate value: {value:?}"),
            FieldErrorKind::Forbidden => write!(f, "{field}: Forbidden: {detail}"),
            FieldErrorKind::Internal => write!(f, "{field}: Internal error: {detail}"),
        }
    }
}

impl std::error::Error for FieldError {}
