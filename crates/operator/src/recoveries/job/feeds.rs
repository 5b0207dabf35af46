//! Selects which Jobs and pods are kept as they are read, and splits long lists into parts, so that other tasks get
//! their turn in between.

use std::sync::Arc;

use salvor_api::names::job::BUILT_IN_CONTROLLER;
use salvor_recovery::job::{JobPolicy, JobView};

use super::{
    news::{News, Part, SeenJob},
    pods::interest::Interest,
    wire::{JobWire, PodWire, SeenPod},
};
use crate::watch_set::watch::{Change, Project};

/// Objects of a list that are processed at a time.
const PART: usize = 25;

pub(super) struct OurJobs(pub(super) Arc<JobPolicy>);

impl Project for OurJobs {
    type Wire = JobWire;
    type Kept = SeenJob;

    fn keep(&self, wire: JobWire) -> Option<SeenJob> {
        let job = JobView::from(wire);
        if self.0.manages(job.spec.managed_by.as_deref()) {
            return Some(SeenJob::Ours(Box::new(job)));
        }
        let controller = job.spec.managed_by.filter(|name| name != BUILT_IN_CONTROLLER)?;
        Some(SeenJob::Others { uid: job.job.uid.clone(), controller: controller_label(&controller) })
    }
}

/// The name of another controller as a metric's label. Any user who may create Jobs can make names up, so only known
/// ones get their own label.
fn controller_label(name: &str) -> &'static str {
    const KNOWN: [&str; 1] = ["kueue.x-k8s.io/multikueue"];
    KNOWN.into_iter().find(|known| *known == name).unwrap_or("other")
}

pub(super) struct PodsOfJobs {
    /// True if we replace the built-in controller.
    pub(super) stands_in: bool,
    pub(super) interest: Interest,
}

impl Project for PodsOfJobs {
    type Wire = PodWire;
    type Kept = SeenPod;

    fn keep(&self, wire: PodWire) -> Option<SeenPod> {
        if !wire.may_be_ours(self.stands_in) {
            return None;
        }
        let seen = SeenPod::new(wire, self.stands_in);
        self.interest.state().sift(seen)
    }
}

/// Splits a long list into parts.
pub(super) fn in_parts<T>(
    mut change: Change<T>,
    part: fn(Part<T>) -> News,
    whole: fn(Change<T>) -> News,
) -> Vec<News> {
    let mut parts = Vec::new();
    while let Change::Reset { all, revision, .. } = &mut change
        && all.len() > PART
    {
        let all = all.split_off(all.len() - PART);
        parts.push(part(Part { all, revision: revision.revision, new_history: revision.new_history }));
    }
    parts.push(whole(change));
    parts
}

#[cfg(test)]
mod tests {
    use salvor_recovery::ids::ResourceVersion;

    use super::*;

    #[test]
    fn a_long_list_comes_in_parts_and_ends_as_a_whole() {
        let bare = |n: usize| SeenPod::Bare {
            uid: n.to_string().into(),
            revision: ResourceVersion::from("1").revision(),
        };
        let all = (0..60).map(bare).collect();
        let list = Change::Reset { all, revision: "7".into(), asked: 3 };
        let gone = Change::Gone("x".into());
        let parts = [list, gone].map(|change| in_parts(change, News::SomePods, News::Pod));
        let size = |news| match news {
            News::SomePods(part) => part.all.len(),
            News::Pod(Change::Reset { all, asked: 3, .. }) => all.len() + 1000,
            News::Pod(Change::Gone(_)) => 0,
            other => panic!("{other:?}"),
        };
        let sizes: Vec<usize> = parts.into_iter().flatten().map(size).collect();
        assert_eq!(sizes, [25, 25, 1010, 0]);
    }

    #[test]
    fn controllers_that_nobody_knows_share_a_label() {
        let labels =
            ["kueue.x-k8s.io/multikueue", "example.com/a", "example.com/b", ""].map(controller_label);
        assert_eq!(labels, ["kueue.x-k8s.io/multikueue", "other", "other", "other"]);
    }
}
