//! The two things that are done to a sick node.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is done to a sick node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// The node is replaced by another.
    Replace,
    /// An agent is asked to reboot it.
    Reboot,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replace => "Replace",
            Self::Reboot => "Reboot",
        })
    }
}
