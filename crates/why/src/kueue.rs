//! Workloads of Kueue.

use serde_json::Value;

use crate::{
    answer::Remedy,
    code::Code,
    diagnosis::{Diagnosis, Finding, Missing, Rules},
    json::{condition, controller, holds, list, name, named, namespace, number, since, text, time, uid},
    kinds::{Kind, WORKLOAD},
};

impl Rules<'_> {
    /// Why Kueue blocks an object. `None` if Kueue admits it or does not manage it.
    pub(crate) fn not_admitted(&self, object: &Value) -> Option<Finding> {
        let workloads = self.world.owned(&WORKLOAD, namespace(object), uid(object), "")?;
        let newest =
            workloads.into_iter().max_by_key(|workload| time(workload, "/metadata/creationTimestamp"))?;
        by_its_conditions(newest)
    }

    pub(crate) fn workload(&self, workload: &Value) -> Diagnosis {
        if holds(workload, "Finished").is_some() {
            return Diagnosis::default();
        }
        let of = list(workload, "/spec/podSets")
            .iter()
            .map(|set| usize::try_from(number(set, "/count").unwrap_or(1)).unwrap_or(0))
            .fold(0, usize::saturating_add);
        if let Some(finding) = by_its_conditions(workload) {
            return Diagnosis::of(Missing::Pods { missing: of, of }, vec![finding]);
        }
        let Some(owner) =
            controller(workload).or_else(|| list(workload, "/metadata/ownerReferences").first())
        else {
            return Diagnosis::default();
        };
        let (group, _) = text(owner, "/apiVersion").split_once('/').unwrap_or(("", ""));
        let kind = Kind { group: group.to_owned().into(), kind: text(owner, "/kind").to_owned().into() };
        if kind == WORKLOAD {
            return Diagnosis::default();
        }
        match self.world.get(&kind, namespace(workload), text(owner, "/name")).here() {
            Some(owner) => self.diagnose(&kind, owner).under(&named("Workload", workload), "is admitted"),
            None => Diagnosis::default(),
        }
    }
}

fn by_its_conditions(workload: &Value) -> Option<Finding> {
    if holds(workload, "Admitted").is_some() || holds(workload, "Finished").is_some() {
        return None;
    }
    let me = named("Workload", workload);
    let preempted = holds(workload, "Preempted")
        .or_else(|| holds(workload, "Evicted").filter(|evicted| text(evicted, "/reason") == "Preempted"));
    if let Some(preempted) = preempted {
        let message = format!("Kueue took its quota back: {}", text(preempted, "/message"));
        let finding = Finding::new(Code::KueuePreempted, me, message)
            .since(since(preempted))
            .advice("Wait: Kueue admits it again when there is room; or give it a higher priority, or its queue more quota");
        return Some(finding);
    }
    if workload.pointer("/spec/active").and_then(Value::as_bool) == Some(false) {
        let finding = Finding::new(Code::KueueNotAdmitted, me, "the Workload is deactivated: Kueue does not look at it")
            .since(condition(workload, "Evicted").and_then(since))
            .remedy(Remedy::command(
                "Let Kueue look at it again",
                format!("kubectl patch workloads.kueue.x-k8s.io {} -n {} --type=merge -p '{{\"spec\":{{\"active\":true}}}}'", name(workload), namespace(workload)),
            ));
        return Some(finding);
    }
    let told = condition(workload, "QuotaReserved")
        .filter(|reserved| text(reserved, "/status") != "True")
        .or_else(|| condition(workload, "Admitted"));
    let queue = text(workload, "/spec/queueName");
    let says = told.map_or("Kueue has not said why", |told| text(told, "/message"));
    let finding = Finding::new(
        Code::KueueNotAdmitted,
        me,
        format!("Kueue has not admitted it to queue {queue}: {says}"),
    )
    .since(told.and_then(since).or_else(|| time(workload, "/metadata/creationTimestamp")))
    .advice(format!(
        "Wait for room in queue {queue}, or give its ClusterQueue more quota: Kueue then starts it by itself"
    ));
    Some(finding)
}
