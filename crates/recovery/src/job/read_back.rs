//! Reads back what was recorded about a Job. An unreadable value does not count as empty, or finished work would be
//! repeated: the Job is blocked until a person corrects it.

use salvor_api::names::job::USED_NAMES;

use super::indexes::Indexes;
use super::names::UsedNames;
use super::unreadable::Unreadable;
use super::views::{JobView, PodView};

const INDEXES: &str = "indexes and ranges of them are right, lowest first, such as 1,3-5,7";
const COUNT: &str = "0 or more is right";
const UIDS: &str = "the UID of each pod once is right, in one of the two lists";
const NAMES: &str =
    "what Salvor wrote is right; without the annotation, names of deleted pods may be used again";

/// The parsed content of a Job's status and annotations.
#[derive(Debug)]
pub(super) struct ReadBack {
    pub(super) completed: Indexes,
    /// Indexes that failed for good.
    pub(super) failed: Indexes,
    /// None if they were never recorded.
    pub(super) names: Option<UsedNames>,
}

impl ReadBack {
    pub(super) fn of(job: &JobView, pods: &[PodView]) -> Result<Self, Unreadable> {
        let status = &job.status;
        let bound = job.spec.index_bound();
        let indexes = |field: &str, text: &str| {
            let read = if job.spec.is_indexed() { Indexes::parse(text, bound) } else { Ok(Indexes::NONE) };
            read.map_err(|_| Unreadable::new(field, text, INDEXES))
        };
        let completed = indexes("status.completedIndexes", &status.completed_indexes)?;
        let failed = indexes("status.failedIndexes", status.failed_indexes.as_deref().unwrap_or_default())?;
        for (field, count) in [("status.succeeded", status.succeeded), ("status.failed", status.failed)] {
            if count < 0 {
                return Err(Unreadable::new(field, &count.to_string(), COUNT));
            }
        }
        if let Some(lists) = &status.uncounted_terminated_pods {
            let twice = lists.succeeded.intersection(&lists.failed).next();
            let empty = lists.succeeded.get("").or_else(|| lists.failed.get(""));
            if let Some(uid) = twice.or(empty) {
                return Err(Unreadable::new("status.uncountedTerminatedPods", uid.as_str(), UIDS));
            }
        }
        let names = job.used_names.as_deref().map(|text| {
            let field = format!("metadata.annotations[{USED_NAMES}]");
            UsedNames::read(text).map_err(|_| Unreadable::new(field, text, NAMES))
        });
        let names = names.transpose()?;
        let counts_by_index = job.spec.backoff_limit_per_index.is_some();
        let unreadable = pods.iter().filter(|pod| counts_by_index && pod.is_tracked());
        match unreadable.filter_map(|pod| pod.unreadable.as_deref()).next() {
            Some(unreadable) => Err(unreadable.clone()),
            None => Ok(Self { completed, failed, names }),
        }
    }
}
