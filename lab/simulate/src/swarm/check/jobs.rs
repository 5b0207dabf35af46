//! Checks Jobs that Salvor manages: each pod is created once, counted once, and never beside one that it replaces.

use std::collections::{BTreeMap, BTreeSet};

use salvor_apiserver::ChangeKind;
use serde_json::Value;

use super::{
    Seen,
    invariants::{Invariant, Violation},
    text,
};

const INDEX: &str = "batch.kubernetes.io/job-completion-index";

#[derive(Clone, Debug, Default)]
struct Pod {
    name: String,
    index: Option<String>,
    succeeded: bool,
    /// It failed, is being deleted, or is gone without having succeeded.
    lost: bool,
    /// It is terminal, or gone.
    over: bool,
}

#[derive(Clone, Debug, Default)]
struct Job {
    parallelism: usize,
    waits_for_the_end: bool,
    names: BTreeSet<String>,
    pods: BTreeMap<String, Pod>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Jobs {
    by_uid: BTreeMap<String, Job>,
}

impl Jobs {
    pub(super) fn see(&mut self, seen: &Seen<'_>, wrong: &mut Vec<Violation>) {
        match seen.resource {
            "jobs" => self.see_job(seen, wrong),
            "pods" => self.see_pod(seen, wrong),
            _ => {}
        }
    }

    fn see_job(&mut self, seen: &Seen<'_>, wrong: &mut Vec<Violation>) {
        let job = self.by_uid.entry(seen.uid().to_owned()).or_default();
        let spec = &seen.object["spec"];
        job.parallelism = count(&spec["parallelism"]);
        job.waits_for_the_end = spec["podReplacementPolicy"] == "Failed";
        if seen.by.is_none() {
            return;
        }
        let status = &seen.object["status"];
        let uncounted = |which: &str| status["uncountedTerminatedPods"][which].as_array().map_or(0, Vec::len);
        let pods = |is: fn(&Pod) -> bool| job.pods.values().filter(|pod| is(pod)).count();
        let counted = [
            ("succeeded", count(&status["succeeded"]) + uncounted("succeeded"), pods(|pod| pod.succeeded)),
            ("failed", count(&status["failed"]) + uncounted("failed"), pods(|pod| pod.lost)),
        ];
        for (what, counted, ended) in counted {
            if counted > ended {
                let text = format!("{} counts {counted} pods that {what}, and {ended} did", seen.name());
                wrong.push(Violation::new(Invariant::JobCount, seen.at, text));
            }
        }
        if let Some(before) = seen.before {
            for what in ["succeeded", "failed"] {
                let (was, is) = (count(&before["status"][what]), count(&status[what]));
                if is < was {
                    let text =
                        format!("{} counts {is} pods that {what}, and counted {was} before", seen.name());
                    wrong.push(Violation::new(Invariant::JobCount, seen.at, text));
                }
            }
        }
    }

    fn see_pod(&mut self, seen: &Seen<'_>, wrong: &mut Vec<Violation>) {
        let owners = seen.object["metadata"]["ownerReferences"].as_array();
        let owner = owners.into_iter().flatten().find(|owner| owner["kind"] == "Job");
        let Some(job) = owner.and_then(|owner| self.by_uid.get_mut(text(&owner["uid"]))) else { return };
        let pod = Pod::of(seen);
        if seen.kind == ChangeKind::Added && seen.by.is_some() {
            job.pod_is_made(seen, &pod, wrong);
        }
        let known = job.pods.entry(seen.uid().to_owned()).or_default();
        let (succeeded, over) = (known.succeeded || pod.succeeded, known.over || pod.over);
        let lost = known.lost || (pod.lost && !succeeded);
        *known = Pod { succeeded, lost, over, ..pod };
    }
}

impl Job {
    fn pod_is_made(&mut self, seen: &Seen<'_>, pod: &Pod, wrong: &mut Vec<Violation>) {
        let mut report = |text: String| wrong.push(Violation::new(Invariant::JobPods, seen.at, text));
        if !self.names.insert(pod.name.clone()) {
            report(format!("the name {} is used twice", pod.name));
        }
        // A Job that does not wait for the end of a pod replaces it when its deletion begins.
        let is_there = |it: &&Pod| !it.over && (self.waits_for_the_end || !it.lost);
        let there: Vec<&Pod> = self.pods.values().filter(is_there).collect();
        if there.len() >= self.parallelism {
            let names: Vec<&str> = there.iter().map(|it| it.name.as_str()).collect();
            report(format!(
                "{} is made beside {names:?}, and the parallelism is {}",
                pod.name, self.parallelism
            ));
        }
        if let Some(twin) = there.iter().find(|it| it.index.is_some() && it.index == pod.index) {
            report(format!("{} is made beside {}, which has the same index", pod.name, twin.name));
        }
    }
}

impl Pod {
    fn of(seen: &Seen<'_>) -> Self {
        let metadata = &seen.object["metadata"];
        let (phase, gone) = (text(&seen.object["status"]["phase"]), seen.kind == ChangeKind::Removed);
        let is_going = !metadata["deletionTimestamp"].is_null();
        Self {
            name: seen.name().to_owned(),
            index: metadata["annotations"][INDEX].as_str().map(str::to_owned),
            succeeded: phase == "Succeeded",
            lost: phase == "Failed" || is_going || gone,
            over: matches!(phase, "Succeeded" | "Failed") || gone,
        }
    }
}

fn count(value: &Value) -> usize {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}
