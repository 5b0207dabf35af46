//! The paths of PodSets: `template`, then `.field` and `[index]` as often as needed.

use serde_json::Value;

use super::field_error::shorten;

/// Why a path leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It begins with something else.
    #[error("must begin with template")]
    Start,
    /// Something stands where a `.` or `[` must be.
    #[error("has {found:?} where . or [ must be")]
    Stray {
        /// What stands there.
        found: char,
    },
    /// A `[` has no `]`.
    #[error("has a [ without a ]")]
    Unterminated,
    /// Something stands between brackets that is no whole number.
    #[error("has {index:?} as an index: write a whole number")]
    Index {
        /// What stands there.
        index: String,
    },
    /// An index follows on something that is no list.
    #[error("has an index behind {at}, which is no list")]
    NotAList {
        /// The way to it.
        at: String,
    },
    /// The list is shorter.
    #[error("has the index {index}, but {at} has {length} entries")]
    OutOfBounds {
        /// The way to the list.
        at: String,
        /// The index.
        index: i64,
        /// How many entries there are.
        length: usize,
    },
    /// A field follows on something that is no object.
    #[error("has a field behind {at}, which is no object")]
    NotAnObject {
        /// The way to it.
        at: String,
    },
    /// The object has no such field.
    #[error("leads to {field:?}, but {at} has no such field")]
    Missing {
        /// The way to the object.
        at: String,
        /// The field.
        field: String,
    },
}

/// One step, and how long the path is in front of it.
struct Step<'p> {
    before: usize,
    to: To<'p>,
}

enum To<'p> {
    Field(&'p str),
    Index(i64),
}

fn steps(path: &str) -> Result<Vec<Step<'_>>, PathError> {
    let mut rest = path.strip_prefix("template").ok_or(PathError::Start)?;
    let mut steps = Vec::new();
    while let Some(first) = rest.chars().next() {
        let before = path.len() - rest.len();
        let inside = &rest[first.len_utf8()..];
        match first {
            '.' => {
                let end = inside.find(['.', '[']).unwrap_or(inside.len());
                steps.push(Step { before, to: To::Field(&inside[..end]) });
                rest = &inside[end..];
            }
            '[' => {
                let (index, after) = inside.split_once(']').ok_or(PathError::Unterminated)?;
                let number = index.parse().map_err(|_| PathError::Index { index: shorten(index) })?;
                steps.push(Step { before, to: To::Index(number) });
                rest = after;
            }
            found => return Err(PathError::Stray { found }),
        }
    }
    Ok(steps)
}

/// The value to which a path leads in a component's template.
pub(in super::super) fn find<'v>(template: &'v Value, path: &str) -> Result<&'v Value, PathError> {
    let mut at = template;
    for Step { before, to } in steps(path)? {
        let here = || shorten(&path[..before]);
        at = match to {
            To::Field(field) => {
                let object = at.as_object().ok_or_else(|| PathError::NotAnObject { at: here() })?;
                let missing = || PathError::Missing { at: here(), field: shorten(field) };
                object.get(field).ok_or_else(missing)?
            }
            To::Index(index) => {
                let list = at.as_array().ok_or_else(|| PathError::NotAList { at: here() })?;
                let length = list.len();
                let beyond = || PathError::OutOfBounds { at: here(), index, length };
                usize::try_from(index).ok().and_then(|index| list.get(index)).ok_or_else(beyond)?
            }
        };
    }
    Ok(at)
}

/// The same, to be changed.
pub(in super::super) fn find_mut<'v>(
    template: &'v mut Value,
    path: &str,
) -> Result<&'v mut Value, PathError> {
    // Everything that can be wrong is found, and told, by reading.
    find(template, path)?;
    let mut at = template;
    for step in steps(path)? {
        at = match step.to {
            To::Field(field) => &mut at[field],
            To::Index(index) => &mut at[usize::try_from(index).unwrap_or_default()],
        };
    }
    Ok(at)
}
