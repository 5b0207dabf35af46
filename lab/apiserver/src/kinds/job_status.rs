//! Validation of a Job's status.
//!
//! Most rules are checked only when their fields change, so that a status that was already wrong can still be written
//! elsewhere.

use serde_json::{Value, json};

use super::validation::negative;
use super::{go, indexes};
use crate::object;
use crate::protocol::status::Cause;

const CONDITIONS: &str = "status.conditions";

/// Accessors for the status of a Job.
#[derive(Clone, Copy)]
struct Job<'v>(&'v Value);

impl<'v> Job<'v> {
    fn spec(self, key: &str) -> Option<&'v Value> {
        self.0.get("spec")?.get(key).filter(|field| !field.is_null())
    }

    fn field(self, key: &str) -> Option<&'v Value> {
        self.0.get("status")?.get(key).filter(|field| !field.is_null())
    }

    fn number(self, key: &str) -> i64 {
        self.field(key).and_then(Value::as_i64).unwrap_or(0)
    }

    fn text(self, key: &str) -> &'v str {
        self.field(key).and_then(Value::as_str).unwrap_or("")
    }

    fn time(self, key: &str) -> Option<jiff::Timestamp> {
        self.text(key).parse().ok()
    }

    fn has(self, condition: &str, status: &str) -> bool {
        object::list(self.0, "/status/conditions").iter().any(|known| {
            object::text(known, "/type") == condition && object::text(known, "/status") == status
        })
    }

    fn is(self, condition: &str) -> bool {
        self.has(condition, "True")
    }

    fn is_finished(self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn completions(self) -> Option<i64> {
        self.spec("completions")?.as_i64()
    }

    fn is_indexed(self) -> bool {
        self.spec("completionMode") == Some(&json!("Indexed"))
    }

    fn is_suspended(self) -> bool {
        self.spec("suspend") == Some(&json!(true))
    }
}

/// Two states of one Job.
struct Update<'v> {
    old: Job<'v>,
    new: Job<'v>,
}

impl Update<'_> {
    fn changes_field(&self, key: &str) -> bool {
        self.old.field(key) != self.new.field(key)
    }

    fn changes(&self, condition: &str) -> bool {
        self.old.is(condition) != self.new.is(condition)
    }

    fn finishes(&self) -> bool {
        self.old.is_finished() != self.new.is_finished()
    }
}

pub(crate) fn update(current: &Value, new: &Value) -> Vec<Cause> {
    let update = Update { old: Job(current), new: Job(new) };
    let mut causes = counters(update.new);
    causes.extend(uncounted(update.new));
    causes.extend(ends(&update));
    causes.extend(finished(&update));
    causes.extend(named_indexes(&update));
    causes.extend(pods_left(&update));
    causes.extend(success_criteria(update.new));
    causes.extend(transitions(&update));
    causes
}

fn counters(job: Job<'_>) -> Vec<Cause> {
    ["active", "succeeded", "failed", "ready", "terminating"]
        .iter()
        .filter(|key| job.number(key) < 0)
        .map(|key| negative(format!("status.{key}"), &json!(job.number(key))))
        .collect()
}

fn uncounted(job: Job<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut seen: Vec<&Value> = Vec::new();
    for list in ["succeeded", "failed"] {
        let uids = job.field("uncountedTerminatedPods").and_then(|pods| pods.get(list));
        for (index, uid) in uids.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let at = format!("status.uncountedTerminatedPods.{list}[{index}]");
            if uid == &json!("") {
                causes.push(Cause::invalid(at, uid, "must not be empty"));
            } else if seen.contains(&uid) {
                causes.push(Cause::duplicate(at, uid));
            } else {
                seen.push(uid);
            }
        }
    }
    causes
}

/// Fields that require the Job to be finished, or to be finished in a certain way.
fn ends(update: &Update<'_>) -> Vec<Cause> {
    let new = update.new;
    let mut causes = Vec::new();
    let mut refuse = |applies: bool, why: &str| {
        if applies {
            causes.push(Cause::invalid_whole(CONDITIONS, why));
        }
    };
    refuse(
        (update.changes("Complete") || update.changes("Failed")) && new.is("Complete") && new.is("Failed"),
        "cannot set Complete=True and Failed=true conditions",
    );
    refuse(
        (update.changes("Complete") || update.changes("FailureTarget"))
            && new.is("Complete")
            && new.is("FailureTarget"),
        "cannot set Complete=True and FailureTarget=true conditions",
    );
    let completed_at = new.field("completionTime");
    if update.changes("Complete") || update.changes_field("completionTime") {
        match completed_at {
            Some(time) if !new.is("Complete") => causes.push(Cause::invalid(
                "status.completionTime",
                time,
                "cannot set completionTime when there is no Complete=True condition",
            )),
            None if new.is("Complete") => causes.push(Cause::required(
                "status.completionTime",
                "completionTime is required for Complete jobs",
            )),
            _ => {}
        }
    }
    if (update.changes_field("startTime") || update.changes_field("completionTime"))
        && let (Some(started), Some(completed)) = (new.time("startTime"), new.time("completionTime"))
        && completed < started
    {
        causes.push(Cause::invalid(
            "status.completionTime",
            completed_at.unwrap_or(&Value::Null),
            "must be equal to or after `startTime`",
        ));
    }
    let mut refuse = |applies: bool, why: &str| {
        if applies {
            causes.push(Cause::invalid_whole(CONDITIONS, why));
        }
    };
    refuse(
        (update.changes("Failed") || update.changes_field("failedIndexes"))
            && new.is("Failed")
            && !new.is("FailureTarget"),
        "cannot set Failed=True condition without the FailureTarget=true condition",
    );
    refuse(
        (update.changes("Complete") || update.changes("SuccessCriteriaMet"))
            && new.is("Complete")
            && !new.is("SuccessCriteriaMet"),
        "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
    );
    causes
}

/// Fields that a finished Job may not have.
fn finished(update: &Update<'_>) -> Vec<Cause> {
    let new = update.new;
    let mut causes = Vec::new();
    if !new.is_finished() {
        return causes;
    }
    if (update.finishes() || update.changes_field("active")) && new.number("active") > 0 {
        let shown = json!(new.number("active"));
        causes.push(Cause::invalid("status.active", &shown, "active>0 is invalid for finished job"));
    }
    let never_starts = new.is_suspended() && new.completions() == Some(0);
    if (update.finishes() || update.changes_field("startTime"))
        && !never_starts
        && new.field("startTime").is_none()
    {
        causes.push(Cause::required("status.startTime", "startTime is required for finished job"));
    }
    let is_listed =
        |pods: &&Value| ["/succeeded", "/failed"].iter().any(|list| !object::list(pods, list).is_empty());
    if (update.finishes() || update.changes_field("uncountedTerminatedPods"))
        && let Some(pods) = new.field("uncountedTerminatedPods").filter(is_listed)
    {
        causes.push(Cause::invalid_text(
            "status.uncountedTerminatedPods",
            &go::uncounted_pods(pods),
            "must be empty for finished job",
        ));
    }
    causes
}

fn named_indexes(update: &Update<'_>) -> Vec<Cause> {
    let new = update.new;
    let mut causes = Vec::new();
    let completed = new.text("completedIndexes");
    let failed = new.field("failedIndexes");
    let limited = new.spec("backoffLimitPerIndex").is_some();
    let (completed_changes, failed_changes) =
        (update.changes_field("completedIndexes"), update.changes_field("failedIndexes"));
    let mut malformed = |key: &str, text: &str| {
        if let Some(completions) = new.completions()
            && let Err(why) = indexes::count(text, completions)
        {
            let why = format!("error parsing {key}: {why}");
            causes.push(Cause::invalid(format!("status.{key}"), &json!(text), &why));
        }
    };
    if completed_changes {
        malformed("completedIndexes", completed);
    }
    if failed_changes && limited && failed.is_some() {
        malformed("failedIndexes", new.text("failedIndexes"));
    }
    if completed_changes && !completed.is_empty() && !new.is_indexed() {
        causes.push(Cause::invalid(
            "status.completedIndexes",
            &json!(completed),
            "cannot set non-empty completedIndexes when non-indexed completion mode",
        ));
    }
    if let Some(failed) = failed {
        if failed_changes && !limited {
            causes.push(Cause::invalid(
                "status.failedIndexes",
                failed,
                "cannot set non-null failedIndexes when backoffLimitPerIndex is null",
            ));
        }
        if (failed_changes || completed_changes)
            && let Some(completions) = new.completions()
            && let Some(index) = indexes::overlap(completed, new.text("failedIndexes"), completions)
        {
            let why = format!("failedIndexes and completedIndexes overlap at index: {index}");
            causes.push(Cause::invalid("status.failedIndexes", failed, &why));
        }
    }
    causes
}

fn pods_left(update: &Update<'_>) -> Vec<Cause> {
    let new = update.new;
    let mut causes = Vec::new();
    if (update.finishes() || update.changes_field("terminating"))
        && new.is_finished()
        && new.number("terminating") > 0
    {
        let shown = json!(new.number("terminating"));
        causes.push(Cause::invalid(
            "status.terminating",
            &shown,
            "terminating>0 is invalid for finished job",
        ));
    }
    if (update.changes_field("ready") || update.changes_field("active"))
        && let Some(ready) = new.field("ready")
        && new.number("ready") > new.number("active")
    {
        causes.push(Cause::invalid("status.ready", ready, "cannot set more ready pods than active"));
    }
    causes
}

fn success_criteria(job: Job<'_>) -> Vec<Cause> {
    let is_met = job.is("SuccessCriteriaMet");
    [
        (is_met && job.is("Failed"), "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        (
            is_met && job.is("FailureTarget"),
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ),
        (
            job.spec("successPolicy").is_some() && !is_met && job.is("Complete"),
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        ),
    ]
    .into_iter()
    .filter(|(applies, _)| *applies)
    .map(|(_, why)| Cause::invalid_whole(CONDITIONS, why))
    .collect()
}

/// Fields that may not be reverted.
fn transitions(update: &Update<'_>) -> Vec<Cause> {
    let (old, new) = (update.old, update.new);
    let mut causes = Vec::new();
    for condition in ["Failed", "Complete", "FailureTarget"] {
        if old.is(condition) && !new.is(condition) {
            let why = format!("cannot disable the terminal {condition}=True condition");
            causes.push(Cause::invalid_whole(CONDITIONS, &why));
        }
    }
    // An Indexed Job with equal completions and parallelism can be scaled down.
    let may_shrink = new.is_indexed() && new.spec("completions") == new.spec("parallelism");
    for (key, may_decrease) in [("failed", false), ("succeeded", may_shrink)] {
        if !may_decrease && new.number(key) < old.number(key) {
            let why = format!("cannot decrease the {key} counter");
            causes.push(Cause::invalid(format!("status.{key}"), &json!(new.number(key)), &why));
        }
    }
    if let (Some(before), Some(after)) = (old.field("completionTime"), new.field("completionTime"))
        && before != after
    {
        causes.push(Cause::invalid("status.completionTime", after, "field is immutable"));
    }
    let resumes = old.is("Suspended") && new.has("Suspended", "False");
    if old.field("startTime").is_some()
        && update.changes_field("startTime")
        && !resumes
        && !new.is_suspended()
    {
        causes.push(Cause::invalid(
            "status.startTime",
            new.field("startTime").unwrap_or(&Value::Null),
            "field is immutable for unsuspended job once set",
        ));
    }
    if old.is("SuccessCriteriaMet") && !new.is("SuccessCriteriaMet") {
        causes.push(Cause::invalid_whole(CONDITIONS, "cannot disable the SuccessCriteriaMet=True condition"));
    }
    if old.is("Complete") && !old.is("SuccessCriteriaMet") && new.is("SuccessCriteriaMet") {
        causes.push(Cause::invalid_whole(
            CONDITIONS,
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
        ));
    }
    causes
}
