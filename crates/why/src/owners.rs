//! Owners of pods: ReplicaSets, Deployments, AppWrappers and any other kind.

use serde_json::Value;

use crate::{
    admission::Refusal,
    answer::{Object, Remedy},
    code::Code,
    diagnosis::{Diagnosis, Finding, Missing, Rules},
    json::{
        condition, has_ended, is_active, is_terminating, is_true, list, name, named, namespace, number,
        selector, since, text, uid,
    },
    kinds::{
        APP_WRAPPER, CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, JOB_SET, Kind, POD, REPLICA_SET,
        REPLICATION_CONTROLLER, STATEFUL_SET,
    },
    words::{counted, verb},
    world::Seen,
};

/// How an owner creates its pods.
#[derive(Clone, Copy)]
pub(crate) struct Creation {
    /// It creates a pod only after the previous one is gone.
    pub(crate) waits_for_ending: bool,
    /// JSON pointer to its pod template.
    pub(crate) template: &'static str,
}

pub(crate) fn add_up(all: impl Iterator<Item = Diagnosis>) -> Diagnosis {
    let mut sum = Diagnosis::default();
    for one in all {
        sum.missing = sum.missing.and(one.missing);
        sum.findings.extend(one.findings);
    }
    sum
}

impl Rules<'_> {
    pub(crate) fn of_pods(
        &self,
        kind: &Kind,
        owner: &Value,
        of: usize,
        pods: &[&Value],
        how: Creation,
    ) -> Diagnosis {
        let sorted = sort(kind, pods);
        let ready = sorted.active.iter().filter(|pod| self.runs(pod)).count();
        let missing = Missing::Pods { missing: of.saturating_sub(ready), of };
        if ready >= of {
            return Diagnosis::of(missing, Vec::new());
        }
        let mut findings: Vec<Finding> = sorted.active.iter().flat_map(|pod| self.not_running(pod)).collect();
        if sorted.active.len() < of {
            let of_ending = || sorted.ending.iter().flat_map(|pod| self.ending(pod));
            let mut there = sorted.active.len();
            if how.waits_for_ending {
                findings.extend(of_ending());
                there += sorted.ending.len();
            }
            if there < of {
                let uncreated = self.uncreated(kind, owner, pods, how, of - there);
                if uncreated.cause.code != Code::Unknown {
                    findings.push(uncreated);
                } else if findings.is_empty() {
                    findings.extend(of_ending());
                    findings.push(uncreated);
                }
            }
        }
        Diagnosis::of(missing, findings)
    }

    /// An owner whose pods cannot be read. Its own status says how many are ready.
    pub(crate) fn unseen(&self, kind: &Kind, owner: &Value, of: usize) -> Diagnosis {
        let ready = ["/status/readyReplicas", "/status/numberReady", "/status/ready"];
        let ready = ready.iter().find_map(|path| number(owner, path)).unwrap_or(0);
        let missing = of.saturating_sub(usize::try_from(ready).unwrap_or(0));
        let message = "its pods cannot be seen from here, and it does not say why they are missing";
        let finding = Finding::new(Code::Unknown, named(&kind.kind, owner), message)
            .advice("Ask somebody who may list pods in its namespace");
        Diagnosis::of(Missing::Pods { missing, of }, vec![finding])
    }

    /// Why an owner does not create the pods that it lacks.
    fn uncreated(
        &self,
        kind: &Kind,
        owner: &Value,
        pods: &[&Value],
        how: Creation,
        lacking: usize,
    ) -> Finding {
        let refused = self.refusal(owner);
        let requested = refused.as_ref().map_or("", |refusal| refusal.message.as_str());
        let template = owner.pointer(how.template).unwrap_or(&Value::Null);
        if let Some(finding) = self.quota(owner, template, requested, lacking) {
            return finding.since(refused.and_then(|refusal| refusal.at));
        }
        if *kind == JOB
            && let Some(finding) = self.backoff(owner, pods)
        {
            return finding;
        }
        if let Some(refusal) = refused {
            return self.refused(kind, owner, &refusal);
        }
        let me = named(&kind.kind, owner);
        let message = format!(
            "{} {} not made, and nothing says why: looked at its conditions, its pods ({}), the quotas of its namespace \
             and its events (none tells of a refusal; events expire after an hour)",
            counted(lacking, "pod"),
            verb(lacking, "was", "were"),
            pods.len()
        );
        Finding::new(Code::Unknown, me, message).remedy(Remedy::command(
            "Look at all that is known of it",
            format!("kubectl describe {} {} -n {}", kind.word(), name(owner), namespace(owner)),
        ))
    }

    pub(crate) fn deployment(&self, deployment: &Value) -> Diagnosis {
        let me = named("Deployment", deployment);
        let of = count(deployment, "/spec/replicas", 1);
        let labels = selector(deployment.pointer("/spec/selector/matchLabels"));
        let Some(sets) = self.world.owned(&REPLICA_SET, namespace(deployment), uid(deployment), &labels)
        else {
            return self.unseen(&DEPLOYMENT, deployment, of);
        };
        let (mut ready, mut findings, mut ending) = (0, Vec::new(), Vec::new());
        for set in sets {
            let of_set = named("ReplicaSet", set);
            let Some(pods) = self.world.owned(&POD, namespace(set), uid(set), &labels_of(set)) else {
                return self.unseen(&DEPLOYMENT, deployment, of);
            };
            ready += pods.iter().filter(|pod| self.runs(pod)).count();
            for pod in pods.iter().filter(|pod| is_terminating(pod)) {
                let under = |finding: Finding| finding.under(of_set.clone(), "its pod is being deleted");
                ending.extend(self.ending(pod).into_iter().map(under));
            }
            let wanted = count(set, "/spec/replicas", 0);
            if wanted == 0 {
                continue;
            }
            let how = Creation { waits_for_ending: false, template: "/spec/template" };
            let diagnosis = self.of_pods(&REPLICA_SET, set, wanted, &pods, how);
            findings.extend(diagnosis.under_owner(&of_set).findings);
        }
        // No ReplicaSet lacks pods yet: the strategy Recreate waits for the old pods first.
        if findings.is_empty() {
            findings = ending;
            findings.extend(self.no_replica_set(deployment));
        }
        if findings.is_empty() && is_true(deployment, "/spec/paused") {
            findings.push(paused(deployment));
        }
        let missing = Missing::Pods { missing: of.saturating_sub(ready), of };
        Diagnosis::of(missing, findings).under_owner(&me)
    }

    /// A Deployment that cannot create its ReplicaSet reports so in a condition.
    fn no_replica_set(&self, deployment: &Value) -> Option<Finding> {
        let progress = condition(deployment, "Progressing")
            .filter(|progress| text(progress, "/reason") == "ReplicaSetCreateError")?;
        let refusal = Refusal { message: text(progress, "/message").to_owned(), at: since(progress) };
        let template = deployment.pointer("/spec/template").unwrap_or(&Value::Null);
        let by_quota = self.quota(deployment, template, &refusal.message, 1);
        Some(match by_quota {
            Some(finding) => finding.since(refusal.at),
            None => self.refused(&DEPLOYMENT, deployment, &refusal),
        })
    }

    /// A kind with replicas, or any other kind that owns pods.
    pub(crate) fn replicas_or_owner(&self, kind: &Kind, object: &Value) -> Diagnosis {
        let me = named(&kind.kind, object);
        let of = if *kind == DAEMON_SET {
            count(object, "/status/desiredNumberScheduled", 0)
        } else if [&REPLICA_SET, &STATEFUL_SET, &REPLICATION_CONTROLLER].contains(&kind) {
            count(object, "/spec/replicas", 1)
        } else {
            return self.any_owner(kind, object);
        };
        let labels = labels_of(object);
        let Some(pods) = self.world.owned(&POD, namespace(object), uid(object), &labels) else {
            return self.unseen(kind, object, of);
        };
        let waits = [&STATEFUL_SET, &DAEMON_SET].contains(&kind);
        let how = Creation { waits_for_ending: waits, template: "/spec/template" };
        self.of_pods(kind, object, of, &pods, how).under_owner(&me)
    }

    /// An unknown kind: counts its pods, and the objects with pods that it owns.
    fn any_owner(&self, kind: &Kind, object: &Value) -> Diagnosis {
        let me = named(&kind.kind, object);
        let owned = |kind: &Kind| self.world.owned(kind, namespace(object), uid(object), "");
        let mut sum = Diagnosis::default();
        for kind in [&JOB, &JOB_SET, &STATEFUL_SET, &DEPLOYMENT, &REPLICA_SET, &DAEMON_SET, &CRON_JOB] {
            for child in owned(kind).unwrap_or_default() {
                let diagnosis = self.diagnose(kind, child);
                sum.missing = sum.missing.and(diagnosis.missing);
                sum.findings.extend(diagnosis.findings);
            }
        }
        let Some(pods) = owned(&POD) else {
            if sum.missing == Missing::Nothing {
                return Diagnosis::phrase("what cannot be seen from here", vec![out_of_sight(me, "pods")]);
            }
            return sum.under_owner(&me);
        };
        let pods: Vec<&Value> =
            pods.into_iter().filter(|pod| text(pod, "/status/phase") != "Succeeded").collect();
        let ready = pods.iter().filter(|pod| self.runs(pod)).count();
        if !pods.is_empty() {
            sum.missing = sum.missing.and(Missing::Pods { missing: pods.len() - ready, of: pods.len() });
        }
        sum.findings.extend(pods.iter().flat_map(|pod| self.not_running(pod)));
        sum.under_owner(&me)
    }

    pub(crate) fn app_wrapper(&self, wrapper: &Value) -> Diagnosis {
        let me = named("AppWrapper", wrapper);
        let components = list(wrapper, "/spec/components");
        let of: usize = components.iter().map(expected_pods).fold(0, usize::saturating_add);
        let whole = Missing::Pods { missing: of.max(1), of: of.max(1) };
        let phase = text(wrapper, "/status/phase");
        let told = |kind: &str| {
            crate::json::condition(wrapper, kind).map_or("", |condition| text(condition, "/message"))
        };
        let at = |kind: &str| crate::json::condition(wrapper, kind).and_then(crate::json::since);
        let says_no = |kind: &str| {
            crate::json::condition(wrapper, kind).is_some_and(|it| text(it, "/status") == "False")
        };
        match phase {
            "Succeeded" => return Diagnosis::default(),
            "Failed" => {
                let message = format!(
                    "AppWrapper {} has failed, and is not tried again: {}",
                    me.name,
                    told("Unhealthy")
                );
                let finding = Finding::new(Code::WorkloadFailed, me, message.trim_end_matches(": "))
                    .since(at("Unhealthy"))
                    .advice("Put right what failed, then make the AppWrapper anew: one that has failed does not run again");
                return Diagnosis::of(whole, vec![finding]);
            }
            // It was changed after admission, or is refused now. It does not start again without a change.
            "Resetting" if says_no("ComponentsValid") => {
                let message = format!(
                    "AppWrapper {} is being reset, and does not start again as it is: {}",
                    me.name,
                    told("ComponentsValid")
                );
                let finding = Finding::new(Code::WorkloadResetting, me, message.trim_end_matches(": "))
                    .since(at("ComponentsValid"))
                    .advice("Change back what was changed, or delete the AppWrapper and make it anew");
                return Diagnosis::of(whole, vec![finding]);
            }
            "Resetting" => {
                let message = format!(
                    "AppWrapper {} is being reset, and starts again by itself: {}",
                    me.name,
                    told("Unhealthy")
                );
                let finding = Finding::new(Code::WorkloadResetting, me, message.trim_end_matches(": "))
                    .since(at("Unhealthy"))
                    .advice("Nothing needs to be done: it starts again when all that it had made is gone");
                return Diagnosis::of(whole, vec![finding]);
            }
            _ => {}
        }
        if is_true(wrapper, "/spec/suspend") {
            return Diagnosis::of(whole, vec![self.suspended(&APP_WRAPPER, "appwrappers", wrapper)]);
        }
        let mut sum = Diagnosis::default();
        for component in components {
            let template = component.get("template").unwrap_or(&Value::Null);
            let (group, _) = text(template, "/apiVersion").split_once('/').unwrap_or(("", ""));
            let kind =
                Kind { group: group.to_owned().into(), kind: text(template, "/kind").to_owned().into() };
            // A nested AppWrapper is refused, and one that contains itself would recurse forever.
            if kind == APP_WRAPPER {
                continue;
            }
            match self.world.get(&kind, namespace(wrapper), text(template, "/metadata/name")) {
                Seen::Here(child) => {
                    let diagnosis = self.diagnose(&kind, child);
                    let missing = match diagnosis.missing {
                        Missing::Phrase(_) => Missing::Pods { missing: 1, of: 1 },
                        Missing::Nothing if kind == POD && !has_ended(child) => {
                            Missing::Pods { missing: 0, of: 1 }
                        }
                        other => other,
                    };
                    sum.missing = sum.missing.and(missing);
                    sum.findings.extend(diagnosis.findings);
                }
                Seen::Absent => {
                    let pods = expected_pods(component);
                    sum.missing = sum.missing.and(Missing::Pods { missing: pods, of: pods });
                }
                Seen::Unknown => {}
            }
        }
        sum.under_owner(&me)
    }
}

impl Diagnosis {
    /// Adds the owner to the top of the chain, unless the owner itself is the cause.
    pub(crate) fn under_owner(mut self, owner: &Object) -> Self {
        let says =
            self.missing.told().map_or_else(|| "waits".to_owned(), |missing| format!("misses {missing}"));
        self.findings = self
            .findings
            .into_iter()
            .map(|finding| match finding.path.first() {
                Some(first) if first.object == *owner => finding,
                _ => finding.under(owner.clone(), says.clone()),
            })
            .collect();
        self
    }
}

struct Sorted<'a> {
    active: Vec<&'a Value>,
    /// Terminating, and not ended yet.
    ending: Vec<&'a Value>,
}

fn sort<'a>(kind: &Kind, pods: &[&'a Value]) -> Sorted<'a> {
    let active = pods.iter().filter(|pod| is_active(pod) || is_true(pod, "/healthy")).copied().collect();
    // A Job replaces a pod as soon as it has ended, even while it is terminating. Other owners need its name.
    let ending =
        pods.iter().filter(|pod| is_terminating(pod) && (*kind != JOB || !has_ended(pod))).copied().collect();
    Sorted { active, ending }
}

/// The objects of an owner cannot be listed with these rights.
pub(crate) fn out_of_sight(owner: Object, what: &str) -> Finding {
    let message = format!("its {what} cannot be seen from here");
    Finding::new(Code::Unknown, owner, message)
        .advice(format!("Ask somebody who may list {what} in its namespace"))
}

fn expected_pods(component: &Value) -> usize {
    let sets = list(component, "/podSets");
    if sets.is_empty() {
        let template = component.get("template").unwrap_or(&Value::Null);
        return template_pods(text(template, "/kind"), template);
    }
    sets.iter().map(|set| count(set, "/replicas", 1)).fold(0, usize::saturating_add)
}

pub(crate) fn template_pods(kind: &str, template: &Value) -> usize {
    let count = |path, default| usize::try_from(number(template, path).unwrap_or(default)).unwrap_or(0);
    match kind {
        "Pod" => 1,
        "Job" => {
            let parallelism = count("/spec/parallelism", 1);
            number(template, "/spec/completions")
                .map_or(parallelism, |_| parallelism.min(count("/spec/completions", 1)))
        }
        "Deployment" | "StatefulSet" | "ReplicaSet" => count("/spec/replicas", 1),
        _ => 0,
    }
}

fn count(object: &Value, path: &str, default: i64) -> usize {
    usize::try_from(number(object, path).unwrap_or(default)).unwrap_or(0)
}

fn labels_of(set: &Value) -> String {
    // A ReplicationController's selector is a plain map.
    selector(set.pointer("/spec/selector/matchLabels").or_else(|| set.pointer("/spec/selector")))
}

/// A Deployment with `spec.paused`: its controller makes no ReplicaSet of a new template.
fn paused(deployment: &Value) -> Finding {
    let at = condition(deployment, "Progressing")
        .filter(|progress| text(progress, "/reason") == "DeploymentPaused")
        .and_then(since);
    let message = format!(
        "Deployment {} is paused (spec.paused): a changed template is not rolled out",
        name(deployment)
    );
    Finding::new(Code::Suspended, named("Deployment", deployment), message).since(at).remedy(Remedy::command(
        "Let it run",
        format!("kubectl rollout resume deployment/{} -n {}", name(deployment), namespace(deployment)),
    ))
}
