//! The labels of an object.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, Visitor},
};

/// Labels in a single string. The operator keeps those of tens of thousands of objects and rarely reads them.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(Box<str>);

/// Read access to labels, however they are stored.
pub trait Labelled {
    /// The value of this label.
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labelled for Labels {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)
    }
}

/// Neither character occurs in a key or a value.
const BETWEEN: char = '=';
const END: char = '\n';

impl Labels {
    /// The value of this label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// All keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.split_terminator(END).filter_map(|label| label.split_once(BETWEEN))
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut text = String::new();
        for (key, value) in pairs {
            text.push_str(key.as_ref());
            text.push(BETWEEN);
            text.push_str(value.as_ref());
            text.push(END);
        }
        Self(text.into())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Pairs)
    }
}

struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Labels;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels")
    }

    fn visit_unit<E>(self) -> Result<Labels, E> {
        Ok(Labels::default())
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Labels, M::Error> {
        // The labels of a Job's pod fit into this.
        let mut text = String::with_capacity(320);
        while map.next_key_seed(Append { text: &mut text, then: BETWEEN })?.is_some() {
            map.next_value_seed(Append { text: &mut text, then: END })?;
        }
        Ok(Labels(text.into()))
    }
}

/// Appends a string and a separator to an existing text.
struct Append<'a> {
    text: &'a mut String,
    then: char,
}

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, read: &str) -> Result<(), E> {
        self.text.push_str(read);
        self.text.push(self.then);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_as_they_were_written() {
        let labels: Labels = serde_json::from_str(r#"{"a.b/c": "1", "empty": "", "c": "2"}"#).unwrap();
        assert_eq!(
            [labels.get("a.b/c"), labels.get("empty"), labels.get("c"), labels.get("b/c"), labels.get("")],
            [Some("1"), Some(""), Some("2"), None, None]
        );
        assert_eq!(labels, [("a.b/c", "1"), ("empty", ""), ("c", "2")].into_iter().collect());
        assert_eq!(format!("{labels:?}"), r#"{"a.b/c": "1", "empty": "", "c": "2"}"#);
    }

    #[test]
    fn no_labels_are_none() {
        for text in ["{}", "null"] {
            let labels: Labels = serde_json::from_str(text).unwrap();
            assert_eq!((labels.get(""), labels.iter().count()), (None, 0));
        }
    }
}
