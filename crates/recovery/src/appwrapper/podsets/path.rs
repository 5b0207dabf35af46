//! The paths of PodSets: `template`, then `.field` and `[index]` as often as needed.

use serde_json::Value;

use super::field_error::shorten;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("must begin with template")]
    Start,
    #[error("has {found:?} where . or [ must be")]
    Stray {
        /// The character in that place.
        found: char,
    },
    #[error("has a [ without a ]")]
    Unterminated,
    #[error("has {index:?} as an index: write a whole number")]
    Index {
        /// The text between the brackets.
        index: String,
    },
    #[error("has an index behind {at}, which is no list")]
    NotAList {
        /// The path up to that value.
        at: String,
    },
    #[error("has the index {index}, but {at} has {length} entries")]
    OutOfBounds {
        /// The path of the list.
        at: String,
        index: i64,
        length: usize,
    },
    #[error("has a field behind {at}, which is no object")]
    NotAnObject {
        /// The path up to that value.
        at: String,
    },
    #[error("leads to {field:?}, but {at} has no such field")]
    Missing {
        /// The path of the object.
        at: String,
        field: String,
    },
}

/// One step of a path, and the length of the path before it.
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

/// The value at a path in a component's template.
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

/// The same, mutable.
pub(in super::super) fn find_mut<'v>(
    template: &'v mut Value,
    path: &str,
) -> Result<&'v mut Value, PathError> {
    // The immutable lookup finds and reports every possible error.
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
