//! Undoes the preparations of a repair that is no longer needed.

use jiff::Timestamp;

use crate::repair::member::Member;
use crate::repair::progress::Progress;
use crate::repair::steps::Step;
use crate::repair::views::NodeView;

/// Removes the forced termination time that Salvor set and that is no longer needed.
pub(super) fn take_back_termination(member: &Member<'_>) -> Option<Step> {
    let (claim, before) = member.prepared()?;
    // Karpenter fails on anything that is not a timestamp.
    let before = if before.parse::<Timestamp>().is_ok() { before } else { "" };
    Some(Step::TakeBackTermination {
        claim: claim.object.clone(),
        resource_version: claim.resource_version.clone(),
        before: before.to_owned(),
    })
}

pub(super) fn uncordon(node: &NodeView, progress: Option<Progress>) -> Step {
    Step::Uncordon {
        node: node.node.clone(),
        resource_version: node.resource_version.clone(),
        progress: progress.map(|progress| Progress { cordoned: false, draining_since: None, ..progress }),
    }
}
