//! A YAML document that records the line of every value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::problem::{ConfigError, Path, Problem, Segment};

#[derive(Debug)]
pub(super) struct Located {
    pub(super) line: u32,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Located>),
    Map(Vec<Entry>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: u32,
    pub(super) value: Located,
}

/// Reads one YAML document. An empty one is an empty map.
pub(super) fn read(text: &str) -> Result<Located, ConfigError> {
    // `y`, `on` and the like are strings, as readers expect.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options::<Located>(text, options).map_err(|error| {
        let mut problem = Problem::new(Path::default(), format!("not YAML: {}", summary(&error)));
        problem.line = error.location().and_then(|location| known_line(location.line()));
        ConfigError { problems: vec![problem] }
    })
}

/// The message of the error, without its excerpt of the file.
fn summary(error: &serde_saphyr::Error) -> String {
    error.without_snippet().to_string().lines().next().unwrap_or_default().to_owned()
}

fn known_line<N: TryInto<u32>>(line: N) -> Option<u32> {
    line.try_into().ok().filter(|line| *line > 0)
}

impl Located {
    /// The line of a field, or of the nearest parent that is in the document.
    pub(super) fn line_of(&self, path: &Path) -> Option<u32> {
        let mut line = self.line;
        let mut at = self;
        for segment in path.segments() {
            let next = match (segment, &at.value) {
                (Segment::Field(key) | Segment::Key(key), Value::Map(entries)) => {
                    entries.iter().find(|entry| entry.key == *key).map(|entry| (entry.line, &entry.value))
                }
                (Segment::Index(index), Value::List(items)) => {
                    items.get(*index).map(|item| (item.line, item))
                }
                _ => None,
            };
            let Some((found, inner)) = next else { break };
            line = found;
            at = inner;
        }
        known_line(line)
    }
}

/// The value as error messages show it: on one line and cut if it is long.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST_SHOWN: usize = 80;
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) if text.chars().count() > LONGEST_SHOWN => {
                write!(f, "{:?}…", text.chars().take(LONGEST_SHOWN).collect::<String>())
            }
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("an object"),
        }
    }
}

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: known_line(spanned.referenced.line()).unwrap_or(0), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let line = known_line(key.referenced.line()).unwrap_or(0);
            entries.push(Entry { key: key.value, line, value: map.next_value()? });
        }
        Ok(Value::Map(entries))
    }
}
