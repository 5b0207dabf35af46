//! Changes of an object as data: the `add` and `remove` of a JSON patch (RFC 6902).

use std::fmt;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    Field(String),
    Index(usize),
}

/// The place of a value in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(Vec<Segment>);

impl Path {
    /// The path of a field of a field, from here.
    pub fn to(&self, fields: &[&str]) -> Self {
        let mut path = self.clone();
        path.0.extend(fields.iter().map(|field| Segment::Field((*field).to_owned())));
        path
    }

    pub fn index(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.0.push(Segment::Index(index));
        path
    }

    /// This path, as seen from an object in which the object of this path is at `prefix`.
    pub(super) fn behind(&self, prefix: &Self) -> Self {
        Self(prefix.0.iter().chain(&self.0).cloned().collect())
    }

    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// As a JSON pointer (RFC 6901).
    pub fn pointer(&self) -> String {
        let escaped = self.0.iter().map(|segment| match segment {
            Segment::Field(field) => format!("/{}", field.replace('~', "~0").replace('/', "~1")),
            Segment::Index(index) => format!("/{index}"),
        });
        escaped.collect()
    }

    /// The value at this path. A null counts as absent.
    pub fn of<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        object.pointer(&self.pointer()).filter(|value| !value.is_null())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Field(field) if field.contains(['.', '/']) => write!(f, "[{field}]")?,
                Segment::Field(field) if place == 0 => f.write_str(field)?,
                Segment::Field(field) => write!(f, ".{field}")?,
                Segment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Sets a field of an object that is there, or inserts an entry into a list that is there.
    Put { at: Path, value: Value },
    /// Removes a field or an entry that is there.
    Remove { at: Path },
}

impl Edit {
    pub fn at(&self) -> &Path {
        match self {
            Self::Put { at, .. } | Self::Remove { at } => at,
        }
    }

    /// This edit, as seen from an object in which its object is at `prefix`.
    pub fn behind(&self, prefix: &Path) -> Self {
        match self {
            Self::Put { at, value } => Self::Put { at: at.behind(prefix), value: value.clone() },
            Self::Remove { at } => Self::Remove { at: at.behind(prefix) },
        }
    }

    /// Changes an object. An edit of another object than the one that it was made for changes nothing.
    pub fn apply(&self, object: &mut Value) {
        let Some((last, parents)) = self.at().0.split_last() else { return };
        let parent = Path(parents.to_vec());
        match (object.pointer_mut(&parent.pointer()), last, self) {
            (Some(Value::Object(fields)), Segment::Field(field), Self::Put { value, .. }) => {
                fields.insert(field.clone(), value.clone());
            }
            (Some(Value::Object(fields)), Segment::Field(field), Self::Remove { .. }) => {
                fields.remove(field);
            }
            (Some(Value::Array(list)), Segment::Index(index), Self::Put { value, .. })
                if *index <= list.len() =>
            {
                list.insert(*index, value.clone());
            }
            (Some(Value::Array(list)), Segment::Index(index), Self::Remove { .. }) if *index < list.len() => {
                list.remove(*index);
            }
            (
                Some(_) | None,
                Segment::Field(_) | Segment::Index(_),
                Self::Put { .. } | Self::Remove { .. },
            ) => {}
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { at, value: Value::String(text) } => write!(f, "{at}: {text}"),
            Self::Put { at, value } => write!(f, "{at}: {value}"),
            Self::Remove { at } => write!(f, "{at}: removed"),
        }
    }
}
