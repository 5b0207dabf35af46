//! What is kept of Jobs and pods where they are read, and how it comes in: a long list in parts, so that others have their
//! turn between them.

use std::{future::Future, sync::Arc};

use salvor_api::names::job::BUILT_IN_CONTROLLER;
use salvor_recovery::job::{JobPolicy, JobView};
use tokio::sync::mpsc;

use super::{
    News, SeenJob,
    interest::Interest,
    wire::{JobWire, PodWire, SeenPod},
};
use crate::{
    revision::Revision,
    watch::{Change, Project},
};

/// So many objects of a list are taken in at a time.
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

/// The name of another controller as a metric's label. Anybody who may create Jobs can make names up, so only those are
/// told apart that are known.
fn controller_label(name: &str) -> &'static str {
    const KNOWN: [&str; 1] = ["kueue.x-k8s.io/multikueue"];
    KNOWN.into_iter().find(|known| *known == name).unwrap_or("other")
}

pub(super) struct PodsOfJobs {
    /// Whether we stand in for the built-in controller.
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

/// Part of a list, of which more follows.
#[derive(Debug)]
pub(crate) struct Part<T> {
    pub(super) all: Vec<T>,
    pub(super) revision: Revision,
    pub(super) anew: bool,
}

/// Runs a watch and wraps what it tells into news, a list in parts.
pub(super) async fn relay_in_parts<T: Send + 'static>(
    watch: impl Future<Output = ()>,
    mut changes: mpsc::Receiver<Change<T>>,
    news: mpsc::Sender<News>,
    part: fn(Part<T>) -> News,
    whole: fn(Change<T>) -> News,
) {
    let pass_on = async {
        while let Some(mut change) = changes.recv().await {
            while let Change::Reset { all, revision, .. } = &mut change
                && all.len() > PART
            {
                let all = all.split_off(all.len() - PART);
                let next = Part { all, revision: revision.revision, anew: revision.anew };
                if news.send(part(next)).await.is_err() {
                    return;
                }
            }
            if news.send(whole(change)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = watch => {}
        () = pass_on => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_list_comes_in_parts_and_ends_as_a_whole() {
        let (changes, inbox) = mpsc::channel(4);
        let (news, mut heard) = mpsc::channel(16);
        let bare = |n: usize| SeenPod::Bare { uid: n.to_string().into(), revision: Revision::of("1") };
        let all = (0..60).map(bare).collect();
        changes.send(Change::Reset { all, revision: "7".into(), asked: 3 }).await.unwrap();
        changes.send(Change::Gone("x".into())).await.unwrap();
        drop(changes);
        relay_in_parts(std::future::pending(), inbox, news, News::SomePods, News::Pod).await;
        let mut sizes = Vec::new();
        while let Some(news) = heard.recv().await {
            sizes.push(match news {
                News::SomePods(part) => part.all.len(),
                News::Pod(Change::Reset { all, asked: 3, .. }) => all.len() + 1000,
                News::Pod(Change::Gone(_)) => 0,
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(sizes, [25, 25, 1010, 0]);
    }

    #[test]
    fn controllers_that_nobody_knows_share_a_label() {
        let labels =
            ["kueue.x-k8s.io/multikueue", "example.com/a", "example.com/b", ""].map(controller_label);
        assert_eq!(labels, ["kueue.x-k8s.io/multikueue", "other", "other", "other"]);
    }
}
