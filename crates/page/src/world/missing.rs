//! All workloads that do not recover, grouped by root cause as in `salvor why --all`.

use salvor_why::{NotSeen, Overview, Remedy, RootCause, Waiting};
use serde::Serialize;

use crate::objects::brief;

/// Further root causes are only counted.
const MOST_CAUSES: usize = 6;
/// Workloads that are named per root cause.
const MOST_WORKLOADS: usize = 4;
/// Unreadable objects that are named.
const MOST_NOT_SEEN: usize = 4;

/// The list, shortened for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Missing {
    /// Worst first.
    causes: Vec<Cause>,
    more_causes: usize,
    not_seen: Vec<NotSeen>,
    /// Why there is no list.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cause {
    #[serde(flatten)]
    root: RootCause,
    workloads: Vec<Waiting>,
    more_workloads: usize,
    /// Only the first remedy is shown.
    remedy: Option<Remedy>,
}

impl Missing {
    pub(crate) fn of(overview: Overview) -> Self {
        let Overview { groups, mut not_seen } = overview;
        let more_causes = groups.len().saturating_sub(MOST_CAUSES);
        let causes = groups.into_iter().take(MOST_CAUSES).map(|group| {
            let mut workloads = group.workloads;
            let more_workloads = workloads.len().saturating_sub(MOST_WORKLOADS);
            workloads.truncate(MOST_WORKLOADS);
            for workload in &mut workloads {
                workload.missing = brief(&workload.missing);
            }
            let message = brief(&group.root_cause.message);
            let root = RootCause { message, ..group.root_cause };
            Cause { root, workloads, more_workloads, remedy: group.remedies.into_iter().next() }
        });
        let causes = causes.collect();
        not_seen.truncate(MOST_NOT_SEEN);
        for NotSeen { why, .. } in &mut not_seen {
            *why = brief(why);
        }
        Self { causes, more_causes, not_seen, problem: None }
    }

    pub(crate) fn unknown(problem: &str) -> Self {
        Self { problem: Some(brief(problem)), ..Self::default() }
    }
}
