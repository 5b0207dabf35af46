//! Finds the path of the field at a position in a file.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// A line and a column, from 1.
type Place = (u64, u64);

/// The path at a position: the last field or entry that begins there or before. `None` if the file is no YAML.
pub(super) fn path_at(text: &str, at: &Location) -> Option<Path> {
    // A duplicate key has a position, too.
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    let tree: Tree = serde_saphyr::from_str_with_options(text, options).ok()?;
    let mut found = Path::default();
    tree.find(place(at), &Path::default(), &mut found);
    Some(found)
}

fn place(at: &Location) -> Place {
    (at.line(), at.column())
}

/// The path of a field, for example `pools[0].name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    text: String,
    /// The path of the enclosing mapping, if the position is that of a key.
    around: Option<String>,
}

impl Path {
    fn field(&self, name: &str) -> Self {
        let dot = if self.text.is_empty() { "" } else { "." };
        Self { text: format!("{}{dot}{name}", self.text), around: Some(self.text.clone()) }
    }

    fn entry(&self, index: usize) -> Self {
        Self { text: format!("{}[{index}]", self.text), around: None }
    }

    /// The path of a field that is missing in the mapping that was read last.
    pub(super) fn beside(&self, name: &str) -> Self {
        let around = self.around.clone().unwrap_or_else(|| self.text.clone());
        Self { text: around, around: None }.field(name)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A document of which only the positions matter.
struct Tree(Spanned<Node>);

enum Node {
    Leaf,
    List(Vec<Tree>),
    Map(Vec<(Spanned<String>, Tree)>),
}

impl Tree {
    fn find(&self, at: Place, own: &Path, found: &mut Path) {
        match &self.0.value {
            Node::Leaf => {}
            Node::List(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    if place(&entry.0.referenced) <= at {
                        *found = own.entry(index);
                        entry.find(at, &own.entry(index), found);
                    }
                }
            }
            Node::Map(fields) => {
                for (key, value) in fields {
                    if place(&key.referenced) <= at {
                        *found = own.field(&key.value);
                        value.find(at, &own.field(&key.value), found);
                    }
                }
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::<Node>::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = list.next_element()? {
            entries.push(entry);
        }
        Ok(Node::List(entries))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            fields.push((key, map.next_value()?));
        }
        Ok(Node::Map(fields))
    }
}
