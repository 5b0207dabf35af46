//! The objects of a resource that a request selects.

use super::selectors::{Fields, Labels};
use crate::object::Stored;
use crate::protocol::request::{Query, Target};
use crate::protocol::status::Refusal;

/// The objects that a list, a watch or a deletion selects.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    pub(crate) prefix: String,
    pub(crate) labels: Labels,
    pub(crate) fields: Fields,
}

impl Selection {
    pub(crate) fn read(target: &Target, query: &Query) -> Result<Self, Refusal> {
        let prefix =
            if target.namespace.is_empty() { String::new() } else { format!("{}/", target.namespace) };
        Ok(Self {
            prefix,
            labels: Labels::parse(query.text("labelSelector"))?,
            fields: Fields::parse(query.text("fieldSelector"), &target.resource)?,
        })
    }

    pub(crate) fn matches(&self, stored: &Stored) -> bool {
        if self.is_everything() {
            return true;
        }
        let value = stored.value();
        self.labels.matches(&value) && self.fields.matches(&value)
    }

    /// True if the object with this key is in the requested namespace.
    pub(crate) fn covers(&self, key: &str) -> bool {
        key.starts_with(&self.prefix)
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}
