//! What a manifest needs so that its work comes back quickly from a lost node: consent, a short wait, and a Job that
//! does not count lost pods.
//!
//! The result is a list of edits. `salvor opt-in` makes them in the text of a manifest.

mod clock;
mod edit;
mod kinds;
mod once;
mod terms;

use std::fmt;

use salvor_api::GoDuration;
use salvor_api::names::annotations;
use serde_json::{Map, Value, json};

pub use self::clock::Clock;
pub use self::edit::{Edit, Path, Segment};
pub use self::kinds::Kind;
use self::kinds::{Template, entries, templates};
pub use self::once::Claims;
use self::terms::place;
pub use self::terms::{Consent, Problem};

/// The wait that opting in asks for, unless the owner says another: long enough for a network that blips.
pub const EVICT_AFTER: GoDuration = GoDuration::from_secs(30);
/// How often an index may fail if the Job has no limit of its own: Kubernetes' default for the whole Job.
const BACKOFF_LIMIT: u64 = 6;
/// The API refuses a limit for each index in Jobs with more indexes, unless `maxFailedIndexes` is set too.
const MOST_INDEXES: u64 = 100_000;
/// The API refuses a `podFailurePolicy` with more rules.
const MOST_RULES: usize = 20;
/// The entry of a TrainJob's `runtimePatches` that belongs to opting in.
const PATCH_MANAGER: &str = "salvor.dev/opt-in";
/// The Job of a training runtime that trains.
const TRAINER_JOB: &str = "node";

/// How to opt in.
#[derive(Clone, Debug)]
pub struct OptIn<'a> {
    /// What the owner said in words. If `None`, the kind decides, and work that may run only once is refused.
    pub consent: Option<Consent>,
    /// If `None`, [`EVICT_AFTER`], unless the object has another value.
    pub evict_after: Option<GoDuration>,
    /// Kinds of owners whose pods must never run twice, in the form of `atMostOne.owners`.
    pub at_most_one_owners: &'a [String],
    /// The access modes of claims, as far as they are known.
    pub claims: &'a Claims,
}

/// How an object changes, and what that means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order, each for the object as the ones before have left it.
    pub edits: Vec<Edit>,
    /// What was left as it is, and why.
    pub notes: Vec<String>,
    /// The time that a lost node costs, for each pod template, without repetitions.
    pub clocks: Vec<Clock>,
}

impl Plan {
    /// The object after all edits.
    pub fn applied(&self, object: &Value) -> Value {
        let mut changed = object.clone();
        for edit in &self.edits {
            edit.apply(&mut changed);
        }
        changed
    }
}

/// What an object lacks to be recovered quickly. An object that lacks nothing has a plan without edits.
///
/// # Errors
/// Its work may run only once and `how` names no consent, or a field is not what it must be.
pub fn opt_in(kind: Kind, object: &Value, how: &OptIn<'_>) -> Result<Plan, Problem> {
    let mut draft = Draft::of(object);
    if how.consent.is_none() {
        for template in templates(kind, object)? {
            let consents = draft.annotation(&template, Consent::Terminate.annotation()).is_some()
                || draft.annotation(&template, Consent::Delete.annotation()).is_some();
            if !consents && let Some(why) = once::why(object, &template, how.at_most_one_owners, how.claims) {
                return Err(Problem::AtMostOne { at: template.at, why });
            }
        }
    }
    for train_job in train_jobs(kind, object)? {
        draft.patch_runtime(&train_job, how)?;
    }
    let found = templates(kind, &draft.object)?;
    if found.is_empty() {
        draft.plan.notes.push("it has no pod template".to_owned());
    }
    for template in &found {
        draft.opt_in(template, how)?;
    }
    Ok(draft.plan)
}

/// How to undo [`opt_in`]: removes the annotations, and from Jobs whose pods had them what `opt_in` writes there. A value
/// that `opt_in` would not write stays.
///
/// # Errors
/// A field is not what it must be.
pub fn opt_out(kind: Kind, object: &Value) -> Result<Plan, Problem> {
    let mut draft = Draft::of(object);
    for train_job in train_jobs(kind, object)? {
        draft.remove_patch(&train_job)?;
    }
    for template in templates(kind, &draft.object)? {
        draft.opt_out(&template)?;
    }
    for train_job in train_jobs(kind, object)? {
        draft.remove_empty_overrides(&train_job)?;
    }
    Ok(draft.plan)
}

/// The places of TrainJobs: the object itself, or components of it.
fn train_jobs(kind: Kind, object: &Value) -> Result<Vec<Path>, Problem> {
    let root = Path::default();
    match kind {
        Kind::TrainJob => Ok(vec![root]),
        Kind::AppWrapper => {
            let components = entries(object, &root.to(&["spec", "components"]))?.into_iter();
            let inner = components.map(|component| component.to(&["template"]));
            Ok(inner.filter(|at| at.of(object).and_then(Kind::of) == Some(Kind::TrainJob)).collect())
        }
        Kind::Pod
        | Kind::Deployment
        | Kind::StatefulSet
        | Kind::Job
        | Kind::CronJob
        | Kind::JobSet
        | Kind::LeaderWorkerSet
        | Kind::PyTorchJob
        | Kind::RayJob
        | Kind::RayCluster => Ok(Vec::new()),
    }
}

fn ignores_disruptions() -> Value {
    json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
}

/// The action of a rule that says something about disrupted pods.
fn action_on_disruption(rule: &Value) -> Option<&str> {
    let conditions = rule["onPodConditions"].as_array()?;
    let is_it = |condition: &Value| {
        condition["type"] == "DisruptionTarget" && condition["status"].as_str().is_none_or(|it| it == "True")
    };
    conditions.iter().any(is_it).then(|| rule["action"].as_str().unwrap_or_default())
}

fn count(value: Option<&Value>) -> Option<u64> {
    value.and_then(Value::as_u64)
}

/// An object that changes step by step, so that each step sees what the ones before have done.
struct Draft {
    object: Value,
    plan: Plan,
}

impl Draft {
    fn of(object: &Value) -> Self {
        Self { object: object.clone(), plan: Plan::default() }
    }

    fn make(&mut self, edit: Edit) {
        edit.apply(&mut self.object);
        self.plan.edits.push(edit);
    }

    fn put(&mut self, at: Path, value: Value) {
        self.make(Edit::Put { at, value });
    }

    fn remove(&mut self, at: Path) {
        self.make(Edit::Remove { at });
    }

    fn note(&mut self, at: &Path, text: impl fmt::Display) {
        self.plan.notes.push(format!("{}{text}", place(at)));
    }

    fn annotation(&self, template: &Template, key: &str) -> Option<&Value> {
        template.at.to(&["metadata", "annotations", key]).of(&self.object)
    }

    /// Sets annotations of a pod template, and makes the objects that hold them.
    fn annotate(&mut self, template: &Path, pairs: &[(&str, String)]) -> Result<(), Problem> {
        if pairs.is_empty() {
            return Ok(());
        }
        let (metadata, annotations) = (template.to(&["metadata"]), template.to(&["metadata", "annotations"]));
        let all = || pairs.iter().map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str())));
        let all = || Value::Object(all().collect::<Map<_, _>>());
        match (metadata.of(&self.object), annotations.of(&self.object)) {
            (None, _) => self.put(metadata, json!({"annotations": all()})),
            (Some(Value::Object(_)), None) => self.put(annotations, all()),
            (Some(Value::Object(_)), Some(Value::Object(_))) => {
                for (key, value) in pairs {
                    self.put(annotations.to(&[*key]), value.as_str().into());
                }
            }
            (Some(Value::Object(_)), Some(other)) => {
                return Err(Problem::wrong(&annotations, other, "it must be a map of strings"));
            }
            (Some(other), _) => return Err(Problem::wrong(&metadata, other, "it must be an object")),
        }
        Ok(())
    }

    fn opt_in(&mut self, template: &Template, how: &OptIn<'_>) -> Result<(), Problem> {
        let says = |draft: &Self, consent: Consent| draft.annotation(template, consent.annotation()).cloned();
        let (terminate, delete) = (says(self, Consent::Terminate), says(self, Consent::Delete));
        for (consent, value) in [(Consent::Terminate, &terminate), (Consent::Delete, &delete)] {
            if let Some(value) = value.as_ref().filter(|value| *value != annotations::CONSENT) {
                let key = consent.annotation();
                self.note(
                    &template.at,
                    format_args!("{key} is {value}, which is no consent: it is left as it is"),
                );
                return Ok(());
            }
        }
        let said = delete.map(|_| Consent::Delete).or(terminate.map(|_| Consent::Terminate));
        let consent = match (how.consent, said) {
            (None, Some(_)) => None,
            (None, None) => Some(template.consent()),
            (Some(Consent::Terminate), Some(Consent::Delete)) => {
                self.note(
                    &template.at,
                    "it consents to be deleted already, which includes being marked Failed",
                );
                None
            }
            (Some(asked), said) => (said != Some(asked)).then_some(asked),
        };
        let mut pairs: Vec<_> =
            consent.iter().map(|it| (it.annotation(), annotations::CONSENT.to_owned())).collect();
        let now = self.annotation(template, annotations::EVICT_AFTER).cloned();
        let asked = how.evict_after.or(now.is_none().then_some(EVICT_AFTER)).map(clock::shown);
        if let Some(asked) = asked.filter(|asked| now.as_ref() != Some(&Value::from(asked.as_str()))) {
            pairs.push((annotations::EVICT_AFTER, asked));
        }
        self.annotate(&template.at, &pairs)?;
        if let Some(job) = &template.job {
            self.opt_in_job(template, job)?;
        }
        let clock = Clock::of(template.at.of(&self.object).unwrap_or(&Value::Null), template.by);
        if !self.plan.clocks.contains(&clock) {
            self.plan.clocks.push(clock);
        }
        Ok(())
    }

    /// Lost pods must neither be replaced before they have ended, nor count as failures of the Job.
    fn opt_in_job(&mut self, template: &Template, job: &Path) -> Result<(), Problem> {
        let at = |field: &str| job.to(&[field]);
        let is_in_a_set = template.by == Some(Kind::JobSet);
        let backoff_limit = count(at("backoffLimit").of(&self.object));
        match at("podReplacementPolicy").of(&self.object) {
            None => self.put(at("podReplacementPolicy"), "Failed".into()),
            Some(policy) if policy == "Failed" => {}
            Some(policy) => {
                let text = format!(
                    "it is {policy}, so a pod is replaced while it may still run, and the API allows no podFailurePolicy: both \
                     are left as they are"
                );
                self.note(&at("podReplacementPolicy"), text);
                return Ok(());
            }
        }
        let restart = template.at.to(&["spec", "restartPolicy"]);
        if restart.of(&self.object).is_none_or(|policy| policy != "Never") {
            let text = "it is not Never, so the API allows neither podFailurePolicy nor backoffLimitPerIndex: lost pods count as \
                        failures, and Salvor raises backoffLimit where they would fail the Job";
            self.note(&restart, text);
            return Ok(());
        }
        if is_in_a_set && backoff_limit == Some(0) {
            let text = "it is 0, so a lost pod fails its Job, and the JobSet restarts all of them: no podFailurePolicy is added";
            self.note(&at("backoffLimit"), text);
            return Ok(());
        }
        self.ignore_disruptions(&at("podFailurePolicy"))?;
        let is_indexed = at("completionMode").of(&self.object).is_some_and(|mode| mode == "Indexed");
        let per_index = at("backoffLimitPerIndex");
        // In a JobSet, a Job whose index has failed for good must fail at once, so that the set restarts.
        if is_indexed && !is_in_a_set && per_index.of(&self.object).is_none() {
            if count(at("completions").of(&self.object)).is_some_and(|it| it > MOST_INDEXES) {
                let text = format!(
                    "it is more than {MOST_INDEXES}, so backoffLimitPerIndex is not added: it would need maxFailedIndexes"
                );
                self.note(&at("completions"), text);
            } else {
                self.put(per_index, backoff_limit.unwrap_or(BACKOFF_LIMIT).into());
            }
        }
        Ok(())
    }

    fn ignore_disruptions(&mut self, policy: &Path) -> Result<(), Problem> {
        let rules = policy.to(&["rules"]);
        match (policy.of(&self.object), rules.of(&self.object)) {
            (None, _) => self.put(policy.clone(), json!({"rules": [ignores_disruptions()]})),
            (Some(Value::Object(_)), None) => self.put(rules, json!([ignores_disruptions()])),
            (Some(Value::Object(_)), Some(Value::Array(list))) => {
                match list.iter().find_map(action_on_disruption) {
                    Some("Ignore") => {}
                    Some(action) => {
                        let text = format!("a rule says {action} for DisruptionTarget: it is left as it is");
                        self.note(&rules, text);
                    }
                    None if list.len() >= MOST_RULES => {
                        self.note(&rules, "it is full, so no rule for DisruptionTarget is added");
                    }
                    // The first rule that matches counts, and others may match the exit code of a disrupted pod.
                    None => self.put(rules.index(0), ignores_disruptions()),
                }
            }
            (Some(Value::Object(_)), Some(other)) => {
                return Err(Problem::wrong(&rules, other, "it must be a list"));
            }
            (Some(other), _) => return Err(Problem::wrong(policy, other, "it must be an object")),
        }
        Ok(())
    }

    /// A TrainJob has no pod template of its own: it patches those of its runtime.
    fn patch_runtime(&mut self, train_job: &Path, how: &OptIn<'_>) -> Result<(), Problem> {
        let spec = train_job.to(&["spec"]);
        match spec.of(&self.object) {
            Some(Value::Object(_)) => {}
            None => return Ok(()),
            Some(other) => return Err(Problem::wrong(&spec, other, "it must be an object")),
        }
        let consent = how.consent.unwrap_or(Kind::TrainJob.consent()).annotation();
        let evict_after = clock::shown(how.evict_after.unwrap_or(EVICT_AFTER));
        let metadata =
            json!({"annotations": {consent: annotations::CONSENT, (annotations::EVICT_AFTER): evict_after}});
        let text = format!(
            "only the Job {TRAINER_JOB} of the training runtime is patched: annotate other Jobs in the runtime"
        );
        self.note(train_job, text);
        let (patches, overrides) = (spec.to(&["runtimePatches"]), spec.to(&["podTemplateOverrides"]));
        if entries(&self.object, &patches)?.iter().any(|it| self.is_our_patch(it)) {
            return Ok(());
        }
        // A TrainJob of an older API has these instead.
        let (list, entry) = if overrides.of(&self.object).is_some() {
            let targets = |it: &Path| {
                let jobs = it.to(&["targetJobs"]).of(&self.object).and_then(Value::as_array);
                jobs.into_iter().flatten().any(|job| job["name"] == TRAINER_JOB)
            };
            if entries(&self.object, &overrides)?.iter().any(targets) {
                return Ok(());
            }
            (overrides, json!({"targetJobs": [{"name": TRAINER_JOB}], "metadata": metadata}))
        } else {
            let job =
                json!({"name": TRAINER_JOB, "template": {"spec": {"template": {"metadata": metadata}}}});
            let runtime = json!({"template": {"spec": {"replicatedJobs": [job]}}});
            (patches, json!({"manager": PATCH_MANAGER, "trainingRuntimeSpec": runtime}))
        };
        match list.of(&self.object).and_then(Value::as_array).map(Vec::len) {
            None => self.put(list, json!([entry])),
            Some(length) => self.put(list.index(length), entry),
        }
        Ok(())
    }

    fn is_our_patch(&self, patch: &Path) -> bool {
        patch.to(&["manager"]).of(&self.object).is_some_and(|manager| manager == PATCH_MANAGER)
    }

    fn remove_patch(&mut self, train_job: &Path) -> Result<(), Problem> {
        let patches = train_job.to(&["spec", "runtimePatches"]);
        let all = entries(&self.object, &patches)?;
        let Some(ours) = all.iter().find(|it| self.is_our_patch(it)).cloned() else { return Ok(()) };
        self.remove(if all.len() == 1 { patches } else { ours });
        Ok(())
    }

    /// Removes overrides of pod templates that change nothing.
    fn remove_empty_overrides(&mut self, train_job: &Path) -> Result<(), Problem> {
        let overrides = train_job.to(&["spec", "podTemplateOverrides"]);
        let is_empty = |draft: &Self, it: &Path| {
            let fields = it.of(&draft.object).and_then(Value::as_object);
            fields.is_some_and(|fields| fields.keys().eq(["targetJobs"]))
        };
        for at in entries(&self.object, &overrides)?.into_iter().rev() {
            if is_empty(self, &at) {
                let is_last = entries(&self.object, &overrides)?.len() == 1;
                self.remove(if is_last { overrides.clone() } else { at });
            }
        }
        Ok(())
    }

    fn opt_out(&mut self, template: &Template) -> Result<(), Problem> {
        let is_consent = |value: &Value| value == annotations::CONSENT;
        let is_wait = |value: &Value| {
            let wait = value.as_str().and_then(|text| text.parse::<GoDuration>().ok());
            wait.is_some_and(|wait| !wait.is_negative())
        };
        let has = |key, is_ours: fn(&Value) -> bool| self.annotation(template, key).is_some_and(is_ours);
        let mut keys = vec![Consent::Terminate.annotation(), Consent::Delete.annotation()];
        keys.retain(|key| has(key, is_consent));
        keys.extend([annotations::EVICT_AFTER].iter().filter(|key| has(key, is_wait)));
        if keys.is_empty() {
            return Ok(());
        }
        if let Some(job) = &template.job {
            self.opt_out_job(template, job)?;
        }
        let metadata = template.at.to(&["metadata"]);
        let annotations = metadata.to(&["annotations"]);
        let length = |path: &Path| path.of(&self.object).and_then(Value::as_object).map_or(0, Map::len);
        let empties = length(&annotations) == keys.len();
        // A template without metadata is valid; a Pod without is not, and has a name there anyway.
        if empties && length(&metadata) == 1 && !template.at.segments().is_empty() {
            self.remove(metadata);
        } else if empties {
            self.remove(annotations);
        } else {
            for key in keys {
                self.remove(annotations.to(&[key]));
            }
        }
        Ok(())
    }

    fn opt_out_job(&mut self, template: &Template, job: &Path) -> Result<(), Problem> {
        let at = |field: &str| job.to(&[field]);
        let ours = count(at("backoffLimit").of(&self.object)).unwrap_or(BACKOFF_LIMIT);
        if template.by != Some(Kind::JobSet)
            && count(at("backoffLimitPerIndex").of(&self.object)) == Some(ours)
        {
            self.remove(at("backoffLimitPerIndex"));
        }
        let policy = at("podFailurePolicy");
        let rules = entries(&self.object, &policy.to(&["rules"]))?;
        let rule = ignores_disruptions();
        if let Some(place) = rules.iter().find(|it| it.of(&self.object) == Some(&rule)) {
            self.remove(if rules.len() == 1 { policy } else { place.clone() });
        }
        if at("podReplacementPolicy").of(&self.object).is_some_and(|value| value == "Failed") {
            self.remove(at("podReplacementPolicy"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
