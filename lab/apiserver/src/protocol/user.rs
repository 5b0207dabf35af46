//! All authenticated clients are the same user.

pub(crate) const USER: &str = "admin";
pub(crate) const GROUPS: [&str; 2] = ["system:masters", "system:authenticated"];
