//! Problems of a configuration, with their position.

use std::fmt;

/// One step into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A field of an object.
    Field(String),
    /// An entry of a list.
    Index(usize),
    /// A key of a map with free keys, such as a label.
    Key(String),
}

/// The path to a field, for example `failureRecoveryPolicy.rules[0].terminatePod`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(Vec<Segment>);

impl Path {
    /// Parses a dotted path that has no list entries.
    pub(crate) fn of(dotted: &str) -> Self {
        dotted.split('.').fold(Self::default(), |path, name| path.field(name))
    }

    pub(crate) fn field(&self, name: &str) -> Self {
        self.with(Segment::Field(name.into()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    pub(crate) fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.into()))
    }

    fn with(&self, segment: Segment) -> Self {
        Self(self.0.iter().cloned().chain([segment]).collect())
    }

    /// Whether `other` is this field or inside it.
    pub(crate) fn leads_to(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    /// The steps from the document's root.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Field(name) if position == 0 => f.write_str(name)?,
                Segment::Field(name) => write!(f, ".{name}")?,
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => write!(f, "[{key}]")?,
            }
        }
        Ok(())
    }
}

/// One problem: its field, its value, and a correct form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field. Empty if the problem concerns the whole file.
    pub path: Path,
    /// The line in the file, if the configuration came from one.
    pub line: Option<u32>,
    /// The value and a correct form.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(path: Path, message: impl Into<String>) -> Self {
        Self { path, line: None, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.segments().is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of an unusable configuration, in the order of the file's fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.problems))]
pub struct ConfigError {
    /// Never empty.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    pub(crate) fn whole_file(message: impl Into<String>) -> Self {
        Self { problems: vec![Problem::new(Path::default(), message)] }
    }

    pub(crate) fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
