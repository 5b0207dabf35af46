//! The validation rules of kube-apiserver (1.32 and later) for a write to `jobs/status`.

use crate::ids::Uid;
use crate::job::indexes::Indexes;
use crate::job::views::{JobSpec, JobStatus};

/// The rules that a write breaks, by number and name.
pub(super) fn broken(spec: &JobSpec, old: &JobStatus, new: &JobStatus) -> Vec<&'static str> {
    let mut broken = Vec::new();
    let mut rule = |name: &'static str, holds: bool| {
        if !holds {
            broken.push(name);
        }
    };
    let is = |status: &JobStatus, kind: &str| status.holds(kind).is_some();
    let (complete, failed) = (is(new, "Complete"), is(new, "Failed"));
    let (success, target) = (is(new, "SuccessCriteriaMet"), is(new, "FailureTarget"));
    let finished = complete || failed;
    let changed = |kind: &str| is(old, kind) != is(new, kind);
    let finished_changed = old.finished().is_some() != finished;
    let numbers =
        [new.active, new.succeeded, new.failed, new.ready.unwrap_or(0), new.terminating.unwrap_or(0)];
    rule("1 counters are not negative", numbers.iter().all(|n| *n >= 0));
    let lists = new.uncounted_terminated_pods.clone().unwrap_or_default();
    rule("2 uncounted: no empty UID", !lists.contains(Uid::unknown()));
    rule("2 uncounted: no UID in both lists", lists.succeeded.is_disjoint(&lists.failed));
    let kinds: std::collections::BTreeSet<_> = new.conditions.iter().map(|c| &c.kind).collect();
    rule("0 one condition of a type", kinds.len() == new.conditions.len());
    rule("3 SuccessCriteriaMet and Failed", !(success && failed));
    rule("4 SuccessCriteriaMet and FailureTarget", !(success && target));
    rule(
        "5 successPolicy: Complete needs SuccessCriteriaMet",
        spec.success_policy.is_none() || !complete || success,
    );
    rule("6 SuccessCriteriaMet stays", !is(old, "SuccessCriteriaMet") || success);
    rule("7 no late SuccessCriteriaMet", !(is(old, "Complete") && !is(old, "SuccessCriteriaMet") && success));
    if changed("Complete") || changed("Failed") {
        rule("9 Complete and Failed", !(complete && failed));
    }
    if changed("Complete") || changed("FailureTarget") {
        rule("10 Complete and FailureTarget", !(complete && target));
    }
    if changed("Complete") || old.completion_time != new.completion_time {
        rule("11, 12 completionTime if and only if Complete", new.completion_time.is_some() == complete);
    }
    if old.completion_time != new.completion_time || old.start_time != new.start_time {
        rule(
            "13 completionTime is not before startTime",
            match (new.completion_time, new.start_time) {
                (Some(end), Some(start)) => end >= start,
                _ => true,
            },
        );
    }
    let end_moved = old.completion_time.is_some() && new.completion_time.is_some();
    rule("14 completionTime stays", !end_moved || old.completion_time == new.completion_time);
    if changed("Failed") || old.failed_indexes != new.failed_indexes {
        rule("15 Failed needs FailureTarget", !failed || target);
    }
    if changed("Complete") || changed("SuccessCriteriaMet") {
        rule("16 Complete needs SuccessCriteriaMet", !complete || success);
    }
    if finished_changed || old.active != new.active {
        rule("17 finished with active pods", !finished || new.active == 0);
    }
    if finished_changed || old.terminating != new.terminating {
        rule("18 finished with terminating pods", !finished || new.terminating.unwrap_or(0) == 0);
    }
    if finished_changed || old.start_time != new.start_time {
        let never_began = spec.suspend && spec.completions == Some(0);
        rule("19 finished without startTime", !finished || never_began || new.start_time.is_some());
    }
    if finished_changed || old.uncounted_terminated_pods != new.uncounted_terminated_pods {
        rule("20 finished with uncounted pods", !finished || lists.is_empty());
    }
    let bound = u32::try_from(spec.completions.unwrap_or(0)).unwrap_or(0);
    let well_formed = |text: &str| Indexes::parse(text, bound).is_ok_and(|set| set.to_string() == text);
    let failed_indexes = new.failed_indexes.as_deref();
    if old.completed_indexes != new.completed_indexes {
        rule("21 completedIndexes are well formed", well_formed(&new.completed_indexes));
        rule("23 completedIndexes need Indexed", spec.is_indexed() || new.completed_indexes.is_empty());
    }
    if old.failed_indexes != new.failed_indexes {
        rule("22 failedIndexes are well formed", failed_indexes.is_none_or(well_formed));
        rule(
            "24 failedIndexes need backoffLimitPerIndex",
            failed_indexes.is_none() || spec.backoff_limit_per_index.is_some(),
        );
    }
    let read = |text: &str| Indexes::parse(text, bound).unwrap_or_default();
    let completed = read(&new.completed_indexes);
    let overlap = read(failed_indexes.unwrap_or_default()).intersection(&completed);
    rule("25 no index is completed and failed", overlap.is_empty());
    rule("26 ready is at most active", new.ready.unwrap_or(0) <= new.active);
    rule("27 failed does not fall", new.failed >= old.failed);
    let elastic = spec.is_indexed() && spec.completions == spec.parallelism;
    rule("28 succeeded does not fall", elastic || new.succeeded >= old.succeeded);
    for kind in ["Failed", "Complete", "FailureTarget"] {
        rule("29 Failed, Complete and FailureTarget stay", !is(old, kind) || is(new, kind));
    }
    let resumed = is(old, "Suspended") && !is(new, "Suspended");
    let moved = old.start_time.is_some() && old.start_time != new.start_time;
    rule("30 startTime stays while not suspended", spec.suspend || resumed || !moved);
    broken
}
