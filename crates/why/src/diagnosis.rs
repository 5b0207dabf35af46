//! Merges findings into an answer.

use std::fmt::Display;

use jiff::Timestamp;
use salvor_recovery::expected::ExpectedBack;
use serde_json::Value;

use crate::{
    answer::{Answer, Link, Object, Remedy, RootCause},
    code::Code,
    json::{name, named, namespace},
    kinds::{APP_WRAPPER, CLAIM, CRON_JOB, DEPLOYMENT, JOB, JOB_SET, Kind, NODE, POD, WORKLOAD},
    presence::Judge,
    world::{Seen, World},
};

/// As many as fit on a screen.
const MOST_REMEDIES: usize = 6;
const MOST_CAUSES: usize = 50;

/// What the owner of a pod has to consent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Consent {
    /// Salvor marks the pod Failed. That is enough for a Job to replace it.
    Terminate,
    /// Salvor marks the pod Failed and deletes it. Only that frees its name, or unblocks a parent that waits for the
    /// deletion.
    Delete,
}

/// A root cause and the chain of objects that leads to it.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) cause: RootCause,
    /// Ends with the object of the cause.
    pub(crate) path: Vec<Link>,
    /// The pods that wait for this cause.
    pub(crate) pods: Vec<Object>,
    /// The pods whose owners have not consented, and to what, where that is the cause.
    pub(crate) lacking: Vec<(Object, Consent)>,
    pub(crate) remedies: Vec<Remedy>,
}

impl Finding {
    pub(crate) fn new(code: Code, object: Object, message: impl Into<String>) -> Self {
        let message = clean(&message.into());
        let path = vec![Link { object: object.clone(), says: message.clone() }];
        let expected_back = ExpectedBack::default();
        let cause = RootCause { code, object, message, since: None, until: None, expected_back };
        Self { cause, path, pods: Vec::new(), lacking: Vec::new(), remedies: Vec::new() }
    }

    pub(crate) fn since(mut self, since: Option<Timestamp>) -> Self {
        self.cause.since = since;
        self
    }

    pub(crate) fn until(mut self, until: Option<Timestamp>) -> Self {
        self.cause.until = until;
        self
    }

    pub(crate) fn expects(mut self, expected_back: ExpectedBack) -> Self {
        self.cause.expected_back = expected_back;
        self
    }

    pub(crate) fn remedy(mut self, remedy: Remedy) -> Self {
        self.remedies.push(remedy);
        self
    }

    pub(crate) fn lacking(mut self, pod: Object, consent: Consent) -> Self {
        self.lacking.push((pod, consent));
        self
    }

    pub(crate) fn advice(self, text: impl Into<String>) -> Self {
        self.remedy(Remedy::text(text))
    }

    /// Adds an object to the top of the chain.
    pub(crate) fn under(mut self, object: Object, says: impl Into<String>) -> Self {
        self.path.insert(0, Link { object, says: says.into() });
        self
    }

    /// Moves the finding to the requested object: an unknown cause must not blame another object.
    fn told_of(mut self, about: &Object) -> Self {
        if self.cause.object != *about {
            let looked_at = format!("{} {}", self.cause.object.kind, self.cause.object.name);
            self.cause.message = clean(&format!("{looked_at}: {}", self.cause.message));
            self.cause.object = about.clone();
        }
        self.path = vec![Link { object: about.clone(), says: self.cause.message.clone() }];
        self
    }

    pub(crate) fn waiting(mut self, pod: Object) -> Self {
        self.pods.push(pod);
        self
    }
}

/// In characters. Longer text of other programs is cut.
const LONGEST: usize = 600;

/// Text of other programs, on one line without control characters. Anyone may write an event, and a terminal executes
/// escape sequences.
pub(crate) fn clean(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() { plain + "…" } else { plain }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Diagnosis {
    pub(crate) missing: Missing,
    pub(crate) findings: Vec<Finding>,
    /// What there is to say of an object of which nothing is missing.
    pub(crate) note: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Missing {
    #[default]
    Nothing,
    /// With `missing` 0, nothing is missing.
    Pods {
        missing: usize,
        of: usize,
    },
    Phrase(String),
}

impl Missing {
    pub(crate) fn told(&self) -> Option<String> {
        match self {
            Self::Nothing | Self::Pods { missing: 0, .. } => None,
            Self::Pods { missing, of } => Some(format!("{missing} of {of} pods")),
            Self::Phrase(phrase) => Some(phrase.clone()),
        }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, other) | (other, Self::Nothing) => other,
            (Self::Pods { missing: a, of: b }, Self::Pods { missing: c, of: d }) => {
                Self::Pods { missing: a.saturating_add(c), of: b.saturating_add(d) }
            }
            (Self::Phrase(phrase), _) | (_, Self::Phrase(phrase)) => Self::Phrase(phrase),
        }
    }
}

impl Diagnosis {
    pub(crate) fn of(missing: Missing, findings: Vec<Finding>) -> Self {
        Self { missing, findings, note: None }
    }

    pub(crate) fn phrase(phrase: impl Display, findings: Vec<Finding>) -> Self {
        Self { missing: Missing::Phrase(phrase.to_string()), findings, note: None }
    }

    pub(crate) fn note(note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..Self::default() }
    }

    /// Adds an object to the top of every finding's chain.
    pub(crate) fn under(mut self, object: &Object, says: &str) -> Self {
        self.findings = self.findings.into_iter().map(|f| f.under(object.clone(), says)).collect();
        self
    }

    /// One finding for each code and object, in the order of the answer.
    pub(crate) fn merged(self, about: &Object) -> Vec<Finding> {
        if self.missing.told().is_none() {
            return Vec::new();
        }
        let mut merged: Vec<Finding> = Vec::new();
        for finding in self.findings {
            let finding = if finding.cause.code == Code::Unknown { finding.told_of(about) } else { finding };
            let finding = finding.with_expectation();
            let same = |known: &&mut Finding| {
                known.cause.code == finding.cause.code && known.cause.object == finding.cause.object
            };
            match merged.iter_mut().find(same) {
                None => merged.push(finding),
                Some(known) => {
                    known.cause.since = known.cause.since.into_iter().chain(finding.cause.since).min();
                    known.cause.until = known.cause.until.into_iter().chain(finding.cause.until).max();
                    let expected = std::mem::take(&mut known.cause.expected_back);
                    known.cause.expected_back = expected.and(finding.cause.expected_back);
                    for pod in finding.pods {
                        if !known.pods.contains(&pod) {
                            known.pods.push(pod);
                        }
                    }
                    for lacking in finding.lacking {
                        if !known.lacking.contains(&lacking) {
                            known.lacking.push(lacking);
                        }
                    }
                    for remedy in finding.remedies {
                        if !known.remedies.contains(&remedy) {
                            known.remedies.push(remedy);
                        }
                    }
                }
            }
        }
        // Known causes hide unknown ones.
        if merged.iter().any(|finding| finding.cause.code != Code::Unknown) {
            merged.retain(|finding| finding.cause.code != Code::Unknown);
        }
        merged.sort_by(|a, b| (a.cause.code, b.pods.len()).cmp(&(b.cause.code, a.pods.len())));
        merged.truncate(MOST_CAUSES);
        merged
    }
}

pub(crate) struct Rules<'w> {
    pub(crate) world: &'w World,
    pub(crate) judge: &'w Judge,
}

impl Rules<'_> {
    pub(crate) fn diagnose(&self, kind: &Kind, object: &Value) -> Diagnosis {
        if *kind == POD {
            self.asked_pod(object)
        } else if *kind == NODE {
            self.asked_node(object)
        } else if *kind == CLAIM {
            self.asked_claim(object)
        } else if *kind == JOB {
            self.job(object)
        } else if *kind == CRON_JOB {
            self.cron_job(object)
        } else if *kind == DEPLOYMENT {
            self.deployment(object)
        } else if *kind == JOB_SET {
            self.job_set(object)
        } else if *kind == APP_WRAPPER {
            self.app_wrapper(object)
        } else if *kind == WORKLOAD {
            self.workload(object)
        } else {
            self.replicas_or_owner(kind, object)
        }
    }

    /// The remedies of a finding, with those that depend on all its pods.
    pub(crate) fn remedies(&self, finding: &Finding) -> Vec<Remedy> {
        let mut remedies = finding.remedies.clone();
        remedies.extend(self.remedies_on_node(finding));
        for remedy in &mut remedies {
            // Texts may contain names that other people chose, such as images.
            remedy.text = clean(&remedy.text);
        }
        // A remedy that may make work run twice never comes first.
        remedies.sort_by_key(|remedy| remedy.text.contains("twice"));
        remedies
    }
}

/// Diagnoses an object. Returns `None` if the object does not exist or was not read yet.
pub fn why(world: &World, judge: &Judge, kind: &Kind, namespace_: &str, name_: &str) -> Option<Answer> {
    let Seen::Here(object) = world.get(kind, namespace_, name_) else { return None };
    let rules = Rules { world, judge };
    let about = named(&kind.kind, object);
    let diagnosis = rules.diagnose(kind, object);
    let missing = diagnosis.missing.told();
    let note = diagnosis.note.clone().filter(|_| missing.is_none());
    let mut findings = diagnosis.merged(&about);
    if missing.is_some() && findings.is_empty() {
        let message = format!(
            "nothing that was looked at (the object, its pods, its events) says why; {} {} may need a closer look",
            kind.kind,
            name(object)
        );
        let on =
            if namespace(object).is_empty() { String::new() } else { format!(" -n {}", namespace(object)) };
        let look = format!("kubectl describe {} {}{on}", kind.word(), name(object));
        let unknown = Finding::new(Code::Unknown, about.clone(), message)
            .remedy(Remedy::command("Look at all that is known of it", look));
        findings.push(unknown.with_expectation());
    }
    // Cut before sorting: remedies of the worst cause take the places first, even those that may make work run twice.
    let mut remedies: Vec<Remedy> = Vec::new();
    for remedy in findings.iter().flat_map(|finding| rules.remedies(finding)) {
        if remedies.len() < MOST_REMEDIES && !remedies.contains(&remedy) {
            remedies.push(remedy);
        }
    }
    remedies.sort_by_key(|remedy| remedy.text.contains("twice"));
    let note = note.map(|says| vec![Link { object: about.clone(), says }]);
    let chain = findings.first().map(|finding| finding.path.clone()).or(note).unwrap_or_default();
    let root_causes: Vec<RootCause> = findings.into_iter().map(|finding| finding.cause).collect();
    let each = root_causes.iter().map(|cause| cause.expected_back.clone());
    let expected_back = each.fold(ExpectedBack::default(), ExpectedBack::and);
    Some(Answer { about, missing, root_causes, expected_back, chain, remedies, not_seen: Vec::new() })
}
