//! One type for each identifier, so that none can be passed where another is meant.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    marker::PhantomData,
    ops::Deref,
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};

/// A string that is stored once, however often it is cloned: several maps use the UID and the name of every object as
/// keys. `None` is the empty string, so that it can be a constant.
#[derive(Clone, Default)]
struct Shared(Option<Arc<str>>);

impl Deref for Shared {
    type Target = str;

    fn deref(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<&str> for Shared {
    fn from(text: &str) -> Self {
        Self((!text.is_empty()).then(|| text.into()))
    }
}

/// A string type of its own. JSON has it as a plain string.
macro_rules! text {
    ($(#[$meta:meta])* $name:ident($kept:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Default)]
        pub struct $name($kept);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// True if there is no text: it is not known.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.as_str().into())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.as_str().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                *self.0 == *other.0
            }
        }

        impl Eq for $name {}

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                (*self.0).hash(state);
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                *self.0 == *other
            }
        }

        impl PartialEq<String> for $name {
            fn eq(&self, other: &String) -> bool {
                *self.0 == **other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                *self.0 == **other
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text(PhantomData)).map(Self)
            }
        }
    };
}

/// Reads a string directly into the form in which it is stored.
struct Text<T>(PhantomData<T>);

impl<T: for<'a> From<&'a str>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(text.into())
    }
}

/// Makes a string type a map key, which can also be looked up by a plain `str`.
macro_rules! key {
    ($name:ident) => {
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                self.0.cmp(&*other.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text! {
    /// `metadata.uid`: no two objects ever have the same. Empty if it is not known.
    Uid(Shared)
}
key!(Uid);

text! {
    /// The name of a node, as `spec.nodeName` of a pod has it. Another node may have it later.
    NodeName(Shared)
}
key!(NodeName);

static UNKNOWN: Uid = Uid(Shared(None));

impl Uid {
    /// The UID of an object that is known only by its name.
    pub const fn unknown() -> &'static Self {
        &UNKNOWN
    }
}

text! {
    /// `metadata.resourceVersion`: a state of an object, or of a list. The server gets it back as it came. There is no order of
    /// these texts: [`ResourceVersion::revision`] is compared instead.
    ResourceVersion(Box<str>)
}

impl ResourceVersion {
    /// The number that orders two states of an object.
    pub fn revision(&self) -> Revision {
        // Zero is no state of any object: to the API it means "any".
        Revision(self.0.parse().ok().filter(|number| *number > 0))
    }
}

/// A [`ResourceVersion`] as a number. Only revisions of one history can be compared.
///
/// A server may send something that is not a number. Such a revision is neither older nor newer than another, nor equal
/// to it, so callers treat it as a change.
#[derive(Clone, Copy, Debug)]
pub struct Revision(Option<u64>);

impl Revision {
    /// 0 for none.
    pub fn numbered(number: u64) -> Self {
        Self(Some(number).filter(|number| *number > 0))
    }

    /// A number that grows; 0 for none.
    pub fn number(self) -> u64 {
        self.0.unwrap_or(0)
    }

    /// True if it is known to be later than the other.
    pub fn is_after(self, other: Self) -> bool {
        self > other
    }
}

impl PartialEq for Revision {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Revision {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.0?.cmp(&other.0?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn ids_are_plain_text_in_json_in_words_and_to_maps() {
        let uid: Uid = serde_json::from_str(r#""u1""#).unwrap();
        assert_eq!(serde_json::to_string(&uid).unwrap(), r#""u1""#);
        assert_eq!((format!("{uid:>4}"), format!("{uid:?}")), ("  u1".into(), r#""u1""#.into()));
        let map = BTreeMap::from([(uid.clone(), 1)]);
        assert_eq!((map.get("u1"), map.get(&uid), map.get("u2")), (Some(&1), Some(&1), None));
        let keys = serde_json::to_string(&map).unwrap();
        assert_eq!(keys, r#"{"u1":1}"#, "also as the key of an object");
        assert_eq!(serde_json::from_str::<BTreeMap<Uid, i32>>(&keys).unwrap(), map);
        assert!(Uid::unknown().is_empty() && uid != *Uid::unknown());
    }

    #[test]
    fn revisions_are_numbers_and_anything_else_cannot_be_compared() {
        let revision = |text: &str| ResourceVersion::from(text).revision();
        let older = |a: &str, b: &str| revision(a) < revision(b);
        assert!(older("9", "10") && !older("10", "9") && !older("10", "10"));
        assert!(revision("10").is_after(revision("9")) && revision("9") == revision("9"));
        for odd in ["", "0", "-1", "x", "1.5", "99999999999999999999999"] {
            assert!(!older(odd, "10") && !older("10", odd), "{odd:?}");
            assert!(revision(odd) != revision("10") && revision(odd) != revision(odd), "{odd:?}");
            assert_eq!(revision(odd).number(), 0, "{odd:?}");
        }
        assert_eq!(Revision::numbered(7), revision("7"));
        assert_ne!(Revision::numbered(0), Revision::numbered(0));
    }
}
