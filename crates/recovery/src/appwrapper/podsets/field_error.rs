//! Errors in fields of an AppWrapper, in the wording of Kubernetes.

use std::fmt;

/// The maximum length of a value in a message.
const LONGEST_SHOWN: usize = 80;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// For example `spec.components[0].template`.
    pub field: String,
    pub kind: FieldErrorKind,
    /// What would be correct.
    pub detail: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    Required,
    /// With the invalid value.
    Invalid(String),
    /// With the duplicate value.
    Duplicate(String),
    /// The value is well formed, but not allowed.
    Forbidden,
    /// The field could not be checked.
    Internal,
}

impl FieldError {
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Required, detail: detail.into() }
    }

    pub fn invalid(field: impl Into<String>, value: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Invalid(shown(value)), detail: detail.into() }
    }

    pub fn duplicate(field: impl Into<String>, value: impl fmt::Display) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Duplicate(shown(value)), detail: String::new() }
    }

    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Forbidden, detail: detail.into() }
    }

    /// The field could not be checked.
    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Internal, detail: detail.into() }
    }

    /// Prefixes the field with the path of the enclosing object.
    pub fn within(mut self, outer: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{outer}{dot}{}", self.field);
        self
    }
}

/// The beginning of a value. Formatting stops there, so neither a huge nor a deeply nested value is expensive.
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

/// Shortens a text for a message.
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
