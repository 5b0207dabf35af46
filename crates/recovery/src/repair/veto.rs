//! Vetoes: a person has said that a node is not to be repaired.

use jiff::Timestamp;
use salvor_api::names::repair::annotations;

use super::views::{Backend, NodeView};

/// A veto.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Veto {
    /// Where it is written.
    pub by: String,
    /// Until when it holds; none if for ever.
    pub until: Option<Timestamp>,
}

/// The veto on a node's repair, if there is one.
///
/// A value that is neither empty, `true`, `false` nor a time is a veto for ever: whoever wrote it wanted one.
pub fn veto(node: &NodeView, backend: &Backend, now: Timestamp) -> Option<Veto> {
    let by_salvor = node.do_not_repair.as_deref().and_then(|value| match value.trim() {
        "false" => None,
        value => match value.parse::<Timestamp>() {
            Ok(until) if until <= now => None,
            Ok(until) => {
                Some(Veto { by: format!("annotation {}", annotations::DO_NOT_REPAIR), until: Some(until) })
            }
            Err(_) => Some(Veto { by: format!("annotation {}", annotations::DO_NOT_REPAIR), until: None }),
        },
    });
    let by_karpenter = || {
        let value = node.karpenter_do_not_repair.as_deref().filter(|value| value.trim() != "false");
        value
            .map(|_| Veto { by: format!("annotation {}", annotations::KARPENTER_DO_NOT_REPAIR), until: None })
    };
    let by_owner = || {
        let owner = backend.owner()?;
        owner.veto.map(|key| Veto { by: format!("annotation {key} on {}", owner.object), until: None })
    };
    by_salvor.or_else(by_karpenter).or_else(by_owner)
}
