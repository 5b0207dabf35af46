//! Size limits of an AppWrapper. Each component costs the API server and every watcher memory for as long as it exists.

use std::fmt;
use std::io;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::components::components;
use super::podsets::FieldError;

pub const MOST_COMPONENTS: usize = 128;
/// In bytes of JSON without spaces: a third of etcd's limit for one object.
pub const LARGEST_SPEC: usize = 512 * 1024;
/// The maximum length of a message in a status, in bytes of JSON. It keeps everything written about an AppWrapper that
/// exceeds a limit below 8 KiB.
pub(super) const LONGEST_MESSAGE: usize = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub components: usize,
    /// The length of `spec` as JSON, in bytes.
    pub spec: usize,
}

impl Size {
    pub fn of(object: &Value) -> Self {
        let mut counter = Counter(0);
        // Counting cannot fail.
        let _ = serde_json::to_writer(&mut counter, &object["spec"]);
        Self { components: components(object).len(), spec: counter.0 }
    }

    /// The size of an object as the API server sends it. The object is not kept in memory.
    ///
    /// # Errors
    /// The text is not an object.
    pub fn of_text(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Object<'a> {
            #[serde(borrow)]
            spec: Option<&'a RawValue>,
        }
        let object: Object<'_> = serde_json::from_str(text)?;
        object.spec.map_or(Ok(Self::default()), Self::of_spec)
    }

    /// The same from its `spec` alone.
    ///
    /// # Errors
    /// The text is not a spec.
    pub fn of_spec(spec: &RawValue) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Spec {
            components: Count,
        }
        let Spec { components } = Option::deserialize(spec)?.unwrap_or_default();
        Ok(Self { components: components.0, spec: spec.get().len() })
    }

    /// The limit that it exceeds.
    pub fn excess(self) -> Option<FieldError> {
        let Self { components, spec } = self;
        if components > MOST_COMPONENTS {
            let detail =
                format!("must have at most {MOST_COMPONENTS} components: split it into several AppWrappers");
            return Some(FieldError::invalid("spec.components", format!("{components} components"), detail));
        }
        (spec > LARGEST_SPEC).then(|| {
            let detail = format!(
                "must have at most {LARGEST_SPEC} bytes as JSON: put data into ConfigMaps or volumes, or split it into \
                 several AppWrappers"
            );
            FieldError::invalid("spec", format!("{spec} bytes"), detail)
        })
    }

    /// The limit that an update exceeds. An AppWrapper that was too large before may keep its size or shrink.
    pub fn excess_since(self, before: Self) -> Option<FieldError> {
        let grows = self.components > before.components || self.spec > before.spec;
        self.excess().filter(|_| grows)
    }
}

/// The longest prefix of a message that fits in `most` bytes of JSON.
pub(super) fn shortened(message: &str, most: usize) -> String {
    let mut left = most;
    let fits = |letter: &char| {
        let bytes = match letter {
            '"' | '\\' => 2,
            letter if letter.is_control() => 6,
            letter => letter.len_utf8(),
        };
        left.checked_sub(bytes).map(|rest| left = rest).is_some()
    };
    message.chars().take_while(fits).collect()
}

/// A writer that counts bytes and discards them.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The length of a list; 0 for anything else.
#[derive(Default)]
struct Count(usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting;
        impl<'de> Visitor<'de> for Counting {
            type Value = usize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<usize, A::Error> {
                let mut count = 0;
                while items.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(count)
            }
        }
        let raw = <&RawValue>::deserialize(deserializer)?;
        // The admission rules refuse anything that is not a list.
        let mut text = serde_json::Deserializer::from_str(raw.get());
        Ok(Self(Deserializer::deserialize_seq(&mut text, Counting).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(components: usize, padding: usize) -> Value {
        json!({"spec": {"components": vec![json!({"template": {}}); components], "managedBy": "x".repeat(padding)}})
    }

    #[test]
    fn a_size_is_the_same_by_its_text_and_what_breaks_a_bound_is_named() {
        let empty = Size::of(&spec(0, 0)).spec;
        for (object, says) in [
            (json!({}), None),
            (json!({"spec": null}), None),
            (json!({"spec": {"components": "many"}}), None),
            (spec(MOST_COMPONENTS, 0), None),
            (
                spec(MOST_COMPONENTS + 1, 0),
                Some("spec.components: Invalid value: \"129 components\": must have at most 128"),
            ),
            (spec(0, LARGEST_SPEC - empty), None),
            (
                spec(0, LARGEST_SPEC - empty + 1),
                Some("spec: Invalid value: \"524289 bytes\": must have at most 524288"),
            ),
        ] {
            let size = Size::of(&object);
            let excess = size.excess().map(|it| it.to_string());
            assert_eq!(excess.is_some(), says.is_some(), "{excess:?}");
            assert!(excess.unwrap_or_default().starts_with(says.unwrap_or_default()));
            let by_text = Size::of_text(&object.to_string()).unwrap();
            // A missing spec and a null spec count the same.
            assert_eq!((by_text.components, by_text.spec.max(4)), (size.components, size.spec));
        }
        assert!(Size::of_text("[").is_err());
    }

    #[test]
    fn what_was_too_large_before_may_shrink_and_not_grow() {
        let size = |components, spec| Size { components, spec };
        for (before, now, refused) in [
            (size(200, 10), size(200, 10), false),
            (size(200, 10), size(199, 9), false),
            (size(200, 10), size(201, 10), true),
            (size(200, 10), size(200, 11), true),
            (size(1, 10), size(1, LARGEST_SPEC + 1), true),
            (size(1, 10), size(2, 20), false),
        ] {
            assert_eq!(now.excess_since(before).is_some(), refused, "{before:?} {now:?}");
        }
    }

    #[test]
    fn a_message_is_cut_by_its_length_as_json() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "abc");
        assert_eq!(shortened("\"\"\"", 4), "\"\"");
        assert_eq!(shortened("ää", 3), "ä");
        let hostile = "\u{1}\"\u{9f}ä".repeat(1000);
        let cut = json!(shortened(&hostile, LONGEST_MESSAGE)).to_string();
        assert!(cut.len() <= LONGEST_MESSAGE + 2, "{}", cut.len());
    }
}
