//! A value that was recorded about a Job, and that cannot be read.

use std::fmt;

/// A message shows at most this many bytes of a value.
const SHOWN: usize = 60;

/// A recorded value that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub field: String,
    pub value: String,
    /// The correct form.
    pub right: &'static str,
}

impl Unreadable {
    /// Keeps only the beginning of a long value.
    pub fn new(field: impl Into<String>, value: &str, right: &'static str) -> Self {
        let shown = value.floor_char_boundary(SHOWN);
        let more = if shown < value.len() { "…" } else { "" };
        Self { field: field.into(), value: format!("{}{more}", &value[..shown]), right }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {:?}; {}", self.field, self.value, self.right)
    }
}
