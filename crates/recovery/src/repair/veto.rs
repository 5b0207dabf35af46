//! Vetoes: a person has decided that a node must not be repaired.

use jiff::Timestamp;
use salvor_api::names::repair::annotations;

use super::views::{Backend, NodeView, PoolView};

/// The maximum length of a value in a message.
const LONGEST_VALUE: usize = 60;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Veto {
    /// The annotation and the object that has it.
    pub by: String,
    /// None if the veto has no end.
    pub until: Option<Timestamp>,
}

/// Looks for a veto on the node, then on its NodeClaim or Machine, then on its NodePool.
pub fn veto(node: &NodeView, backend: &Backend, pool: Option<&PoolView>, now: Timestamp) -> Option<Veto> {
    let on_node = || {
        of(
            node.marks().do_not_repair.as_deref(),
            node.marks().karpenter_do_not_repair.as_deref(),
            "the node",
            now,
        )
    };
    let on_owner = || {
        let owner = backend.owner()?;
        let by_cluster_api =
            owner.veto.map(|key| Veto { by: format!("annotation {key} on {}", owner.object), until: None });
        let (ours, karpenters) = (owner.do_not_repair.as_deref(), owner.karpenter_do_not_repair.as_deref());
        by_cluster_api.or_else(|| of(ours, karpenters, &owner.object.to_string(), now))
    };
    let on_pool = || {
        let pool = pool?;
        let (ours, karpenters) = (pool.do_not_repair.as_deref(), pool.karpenter_do_not_repair.as_deref());
        of(ours, karpenters, &pool.object.to_string(), now)
    };
    on_node().or_else(on_owner).or_else(on_pool)
}

/// The veto of two annotations on an object.
///
/// A value that is not empty, `true`, `false` or a time is a veto without end: its author meant one.
fn of(ours: Option<&str>, karpenters: Option<&str>, object: &str, now: Timestamp) -> Option<Veto> {
    let read = |key: &str, value: &str| {
        let by = format!("annotation {key} on {object}");
        match value.trim() {
            "false" => None,
            value => match value.parse::<Timestamp>() {
                Ok(until) if until <= now => None,
                Ok(until) => Some(Veto { by, until: Some(until) }),
                Err(_) if matches!(value, "" | "true") => Some(Veto { by, until: None }),
                Err(_) => {
                    let value: String = value.chars().take(LONGEST_VALUE).collect();
                    let by = format!(
                        "{by}, whose value {value:?} is no time such as 2030-01-31T08:00:00Z, so that it holds until it is removed"
                    );
                    Some(Veto { by, until: None })
                }
            },
        }
    };
    let by_salvor = ours.and_then(|value| read(annotations::DO_NOT_REPAIR, value));
    by_salvor.or_else(|| karpenters.and_then(|value| read(annotations::KARPENTER_DO_NOT_REPAIR, value)))
}
