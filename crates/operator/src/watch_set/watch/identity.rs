//! Which object it is that cannot be read.

use salvor_recovery::ids::{ResourceVersion, Uid};
use serde::Deserialize;

/// The fields that even an undecodable object has.
#[derive(Deserialize, Default)]
pub(super) struct Identity {
    #[serde(default)]
    pub(super) metadata: IdentityMeta,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct IdentityMeta {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Uid,
    pub(super) resource_version: ResourceVersion,
}
