//! A request to create or update an AppWrapper, as the API server sends it to a webhook.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    Create,
    Update {
        /// The object as stored.
        old: &'a Value,
    },
}

/// A request to create or update an AppWrapper.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub operation: Operation<'a>,
    pub namespace: &'a str,
    pub user: &'a User,
    /// The object after the request.
    pub object: &'a Value,
}

/// The user in `userInfo` of an AdmissionReview.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    pub username: String,
    /// Empty if the user has none.
    pub uid: String,
    pub groups: Vec<String>,
    /// Further attributes from authenticators.
    pub extra: BTreeMap<String, Vec<String>>,
}
