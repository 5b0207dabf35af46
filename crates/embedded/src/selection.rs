//! Which objects of a resource a request is about.

use serde_json::Value;

use crate::object;
use crate::request::{Query, Target};
use crate::selectors::{Fields, Labels};
use crate::status::Refusal;

/// Which objects a list, a watch or a deletion is about.
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

    pub(crate) fn matches(&self, value: &Value) -> bool {
        self.labels.matches(value) && self.fields.matches(value)
    }

    pub(crate) fn covers(&self, value: &Value) -> bool {
        let namespace = object::namespace(value);
        self.prefix.is_empty() || self.prefix.strip_suffix('/') == Some(namespace)
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}
