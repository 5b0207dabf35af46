//! Finds where the objects of a list begin and end in its text.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The text around the objects; alone, it is an empty list.
    Frame,
    /// White space and commas between objects.
    Between,
    /// Part of an object; `ends` is true for its last part.
    Object { ends: bool },
}

/// Follows the text of a list from its first byte on. It stores none of it, and does not parse the objects.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    depth: usize,
    in_string: bool,
    escaped: bool,
    place: Place,
    /// The last string read among the list's own members, as far as it may be a key of interest.
    string: Vec<u8>,
    /// True within the list's `items` member.
    is_items: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Frame,
    BetweenObjects,
    InObject,
}

const ITEMS: &[u8] = b"items";
/// The depth of nesting within the list, and within the array of its objects.
const LIST: usize = 1;
const ARRAY: usize = 2;

impl Splitter {
    /// The number of leading bytes (at least one) that belong together, and their meaning.
    pub(super) fn cut(&mut self, bytes: &[u8]) -> (usize, Part) {
        match self.place {
            Place::Frame => (self.frame(bytes), Part::Frame),
            Place::BetweenObjects => self.between(bytes),
            Place::InObject => self.object(bytes),
        }
    }

    fn frame(&mut self, bytes: &[u8]) -> usize {
        for (at, &byte) in bytes.iter().enumerate() {
            if self.is_in_string(byte) {
                if self.depth == LIST && byte != b'"' && self.string.len() <= ITEMS.len() {
                    self.string.push(byte);
                }
                continue;
            }
            match byte {
                b'"' if self.depth == LIST => self.string.clear(),
                b':' if self.depth == LIST => self.is_items = self.string == ITEMS,
                b',' if self.depth == LIST => self.is_items = false,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if byte == b'[' && self.depth == ARRAY && self.is_items {
                self.place = Place::BetweenObjects;
                return at + 1;
            }
        }
        bytes.len()
    }

    fn between(&mut self, bytes: &[u8]) -> (usize, Part) {
        let is_between = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b',');
        match bytes.iter().position(|byte| !is_between(byte)) {
            None => (bytes.len(), Part::Between),
            Some(0) if bytes[0] == b']' => {
                self.depth = LIST;
                self.place = Place::Frame;
                (1, Part::Frame)
            }
            Some(0) => {
                self.place = Place::InObject;
                self.object(bytes)
            }
            Some(at) => (at, Part::Between),
        }
    }

    fn object(&mut self, bytes: &[u8]) -> (usize, Part) {
        for (at, &byte) in bytes.iter().enumerate() {
            if self.is_in_string(byte) {
                continue;
            }
            let ends = match byte {
                b'{' | b'[' => {
                    self.depth += 1;
                    None
                }
                // An element that is no object.
                b']' | b',' if self.depth == ARRAY => Some(at),
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    (self.depth == ARRAY).then_some(at + 1)
                }
                _ => None,
            };
            if let Some(length) = ends {
                self.place = Place::BetweenObjects;
                return (length, Part::Object { ends: true });
            }
        }
        (bytes.len(), Part::Object { ends: false })
    }

    /// True if a byte is inside a string; the closing quote counts, the opening one does not.
    fn is_in_string(&mut self, byte: u8) -> bool {
        if !self.in_string {
            self.in_string = byte == b'"';
            return false;
        }
        if self.escaped {
            self.escaped = false;
        } else if byte == b'\\' {
            self.escaped = true;
        } else if byte == b'"' {
            self.in_string = false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The frame and the objects of a text that arrives in these parts.
    fn split<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (String, Vec<String>) {
        let (mut splitter, mut frame, mut object, mut objects) =
            (Splitter::default(), Vec::new(), Vec::new(), Vec::new());
        for mut part in parts {
            while !part.is_empty() {
                let (length, kind) = splitter.cut(part);
                let (bytes, rest) = part.split_at(length);
                part = rest;
                match kind {
                    Part::Frame => frame.extend_from_slice(bytes),
                    Part::Between => {}
                    Part::Object { ends } => {
                        object.extend_from_slice(bytes);
                        if ends {
                            objects.push(String::from_utf8(std::mem::take(&mut object)).unwrap());
                        }
                    }
                }
            }
        }
        assert!(object.is_empty(), "half an object is left");
        (String::from_utf8(frame).unwrap(), objects)
    }

    fn tricky() -> Vec<Value> {
        vec![
            json!({}),
            json!({"metadata": {"name": "a"}, "items": [{"items": [1, [2]]}, "]"]}),
            json!({"text": "\"}],{[ \\", "\\\"": "\\\\", "deep": [[[{"x": {}}]]]}),
            json!({"unicode": "ü ] \u{1F600}", "empty": ""}),
        ]
    }

    #[test]
    fn a_list_is_cut_in_the_same_way_however_it_arrives() {
        let list = json!({
            "kind": "ThingList", "apiVersion": "items",
            "metadata": {"resourceVersion": "7", "items": [{"no": "object"}], "continue": "a\"b"},
            "items": tricky(), "more": {"items": [1]},
        });
        for text in [list.to_string(), serde_json::to_string_pretty(&list).unwrap()] {
            let (frame, whole) = split([text.as_bytes()]);
            let objects: Vec<Value> = whole.iter().map(|o| serde_json::from_str(o).unwrap()).collect();
            assert_eq!(objects, tricky());
            let mut expected = list.clone();
            expected["items"] = json!([]);
            assert_eq!(serde_json::from_str::<Value>(&frame).unwrap(), expected);
            for at in 0..text.len() {
                let (first, second) = text.as_bytes().split_at(at);
                assert_eq!(split([first, second]), (frame.clone(), whole.clone()), "cut at {at}");
            }
            assert_eq!(split(text.as_bytes().chunks(1)), (frame, whole));
        }
    }

    #[test]
    fn a_list_without_objects_and_objects_that_are_none() {
        for (text, objects) in [
            (r#"{"metadata":{},"items":null}"#, vec![]),
            (r#"{"metadata":{},"items":[]}"#, vec![]),
            (r#"{"metadata":{}}"#, vec![]),
            (r#"{"items":[null, 1 ,"x",[{}]],"metadata":{}}"#, vec!["null", "1 ", "\"x\"", "[{}]"]),
            ("", vec![]),
        ] {
            let found = split(text.as_bytes().chunks(1));
            assert_eq!(found.1, objects, "{text}");
            assert_eq!(split([text.as_bytes()]), found, "{text}");
        }
    }
}
