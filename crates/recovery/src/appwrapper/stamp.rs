//! The author of an AppWrapper's components, recorded in a stamp that only the webhook can make.
//!
//! Salvor creates users' objects with its own rights, so it checks what their author may do. Only the webhook knows the
//! author, and it is not always called: its configuration may be deleted, or exclude a namespace. So the webhook leaves
//! a stamp in an annotation, and the controller trusts nothing else. A stamp names the author, the AppWrapper and a
//! digest of its components, and is signed. A stamp that is forged, copied from another AppWrapper, or made for other
//! components is rejected.
//!
//! When an AppWrapper is created, the webhook knows neither its UID nor, with `generateName`, its name. Such a stamp is
//! valid for an AppWrapper that was created [at about the same time](WITHIN). The next update that the webhook sees
//! binds it to the UID.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::appwrapper as names;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::admission::{Operation, Request, User};
use super::admitted::components_digest;
use crate::signing::Keys;

/// The maximum time between the creation of an AppWrapper and a stamp without UID. Other webhooks may run after
/// Salvor's and take their time.
pub const WITHIN: SignedDuration = SignedDuration::from_mins(1);
/// The version of the stamp format.
const VERSION: u32 = 1;
/// A prefix of the signed bytes, so that the same key cannot sign anything else by mistake.
const PURPOSE: &[u8] = b"salvor: who wrote the components of an AppWrapper\n";

/// Every field is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Stamp {
    version: u32,
    user: User,
    /// The digest of the components.
    components: String,
    namespace: String,
    /// Empty if the API server had not generated it yet.
    name: String,
    /// The `generateName` prefix, if the API server generates the name.
    generate_name: String,
    /// Empty if the API server had not assigned it yet.
    uid: String,
    /// When the components were written.
    at: Timestamp,
}

impl Stamp {
    fn signed_bytes(&self) -> Vec<u8> {
        let mut bytes = PURPOSE.to_vec();
        // Strings, numbers, lists and maps of strings always serialize.
        bytes.extend(serde_json::to_vec(self).unwrap_or_default());
        bytes
    }

    /// The text of the annotation.
    fn signed(self, keys: &Keys) -> String {
        let signature = keys.sign(&self.signed_bytes());
        // Always serializes, as above.
        serde_json::to_string(&Signed { written_by: self, signature }).unwrap_or_default()
    }

    /// True if the stamp belongs to this object, as stored by the API server.
    fn is_of(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        if self.namespace != text("namespace") {
            return false;
        }
        if !self.uid.is_empty() {
            return self.uid == text("uid");
        }
        let is_named = if self.name.is_empty() {
            !self.generate_name.is_empty()
                && self.generate_name == text("generateName")
                && text("name").starts_with(&self.generate_name)
        } else {
            self.name == text("name")
        };
        let created = text("creationTimestamp").parse::<Timestamp>();
        is_named && created.is_ok_and(|created| created.duration_since(self.at).abs() <= WITHIN)
    }
}

/// The annotation's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Signed {
    written_by: Stamp,
    signature: String,
}

/// A stamp that matches its AppWrapper. Its signature is not verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim(Signed);

impl Claim {
    /// The author, if one of these keys signed the stamp.
    ///
    /// # Errors
    /// [`Unstamped::Forged`].
    pub fn author(&self, keys: &Keys) -> Result<&User, Unstamped> {
        let Signed { written_by, signature } = &self.0;
        let is_signed = keys.have_signed(&written_by.signed_bytes(), signature);
        if is_signed { Ok(&written_by.user) } else { Err(Unstamped::Forged) }
    }
}

/// Why the author of an AppWrapper is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unstamped {
    Missing,
    /// The annotation does not contain a stamp.
    Unreadable,
    /// The stamp belongs to another AppWrapper.
    OfAnother,
    /// The stamp belongs to other components.
    OfOtherComponents,
    /// The stamp is not signed with Salvor's keys.
    Forged,
}

impl fmt::Display for Unstamped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let annotation = names::WRITTEN_BY;
        match self {
            Self::Missing => write!(f, "the annotation {annotation} is missing: no webhook was asked"),
            Self::Unreadable => write!(f, "the annotation {annotation} cannot be read"),
            Self::OfAnother => write!(f, "the annotation {annotation} is about another AppWrapper"),
            Self::OfOtherComponents => write!(f, "the annotation {annotation} is about other components"),
            Self::Forged => write!(f, "the annotation {annotation} is not signed by Salvor"),
        }
    }
}

/// Reads the stamp of an AppWrapper, as stored by the API server.
///
/// # Errors
/// No stamp matches the AppWrapper.
pub fn read(object: &Value) -> Result<Claim, Unstamped> {
    let text = match &object["metadata"]["annotations"][names::WRITTEN_BY] {
        Value::Null => return Err(Unstamped::Missing),
        Value::String(text) => text,
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            return Err(Unstamped::Unreadable);
        }
    };
    let signed: Signed = serde_json::from_str(text).map_err(|_| Unstamped::Unreadable)?;
    let stamp = &signed.written_by;
    if stamp.version != VERSION {
        return Err(Unstamped::Unreadable);
    }
    if !stamp.is_of(object) {
        return Err(Unstamped::OfAnother);
    }
    if stamp.components != components_digest(object) {
        return Err(Unstamped::OfOtherComponents);
    }
    Ok(Claim(signed))
}

/// The change of the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stamping {
    /// It stays as it is in the request.
    Keep,
    /// It is set to this text.
    Put(String),
    Remove,
}

/// True if an update would lose its stamp because none of these keys has signed it.
pub fn loses_its_stamp(request: &Request<'_>, keys: &Keys) -> bool {
    match request.operation {
        Operation::Create => false,
        Operation::Update { old } => read(old).is_ok_and(|claim| claim.author(keys).is_err()),
    }
}

/// Stamps an AppWrapper that is created or updated. The user who writes the components is their author. An update of
/// anything else, such as lifting a suspension, does not change the author. A stamp in the request itself is replaced.
pub fn stamp(request: &Request<'_>, keys: &Keys, now: Timestamp) -> Stamping {
    let Request { operation, namespace, user, object } = *request;
    // The API server stores times in whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let stamped = match operation {
        Operation::Create => {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            let (name, generate_name) = (text("name"), text("generateName"));
            let generate_name = if name.is_empty() { generate_name } else { String::new() };
            Some(Stamp {
                version: VERSION,
                user: user.clone(),
                components: components_digest(object),
                namespace: namespace.into(),
                name,
                generate_name,
                uid: String::new(),
                at: now,
            })
        }
        Operation::Update { old } => {
            let text = |field: &str| old["metadata"][field].as_str().unwrap_or_default().to_owned();
            let written = components_digest(object);
            let (author, at) = if written == components_digest(old) {
                let claim = read(old).ok();
                let kept = claim
                    .as_ref()
                    .and_then(|claim| Some((claim.author(keys).ok()?.clone(), claim.0.written_by.at)));
                kept.map_or((None, now), |(author, at)| (Some(author), at))
            } else {
                (Some(user.clone()), now)
            };
            author.map(|user| Stamp {
                version: VERSION,
                user,
                components: written,
                namespace: namespace.into(),
                name: text("name"),
                generate_name: String::new(),
                uid: text("uid"),
                at,
            })
        }
    };
    let there = &object["metadata"]["annotations"][names::WRITTEN_BY];
    match stamped.map(|stamp| stamp.signed(keys)) {
        Some(text) if *there == *text => Stamping::Keep,
        Some(text) => Stamping::Put(text),
        None if there.is_null() => Stamping::Keep,
        None => Stamping::Remove,
    }
}

#[cfg(test)]
mod tests;
