//! Pods that the API server refuses. The refusal is in a condition of the owner, or in an event about it.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    answer::Object,
    code::Code,
    diagnosis::{Finding, Rules},
    json::{holds, list, name, named, namespace, since, text, told_at, uid},
    kinds::{Kind, MUTATING, VALIDATING},
};

pub(crate) struct Refusal {
    pub(crate) message: String,
    pub(crate) at: Option<Timestamp>,
}

impl Rules<'_> {
    /// The most recent refusal of a pod of this owner.
    pub(crate) fn refusal(&self, owner: &Value) -> Option<Refusal> {
        // ReplicaSets and the like record the refusal as a condition, which outlives the events.
        if let Some(failure) = holds(owner, "ReplicaFailure") {
            return Some(Refusal { message: text(failure, "/message").to_owned(), at: since(failure) });
        }
        let events = self.world.events(namespace(owner), uid(owner))?;
        let event = events.into_iter().rev().find(|event| text(event, "/reason") == "FailedCreate")?;
        Some(Refusal { message: text(event, "/message").to_owned(), at: told_at(event) })
    }

    /// Finds the quota, policy or webhook that refused a pod.
    pub(crate) fn refused(&self, kind: &Kind, owner: &Value, refusal: &Refusal) -> Finding {
        let message = &refusal.message;
        let me = named(&kind.kind, owner);
        let found =
            |object: Object| Finding::new(Code::AdmissionRefused, object, message.clone()).since(refusal.at);
        if let Some(policy) = between(message, "ValidatingAdmissionPolicy '", "'") {
            let object = Object::of("ValidatingAdmissionPolicy", "", policy);
            return found(object)
                .advice(format!(
                    "Change what makes the pod so that policy {policy} accepts it, as the message says"
                ))
                .under(me, "its pods are refused");
        }
        let webhook = between(message, "admission webhook \"", "\"")
            .or_else(|| between(message, "failed calling webhook \"", "\""));
        if let Some(webhook) = webhook {
            let advice = if message.contains("failed calling webhook") {
                format!(
                    "Look whether the server behind webhook {webhook} runs: the API server cannot reach it"
                )
            } else {
                format!("Change what makes the pod so that webhook {webhook} accepts it, as the message says")
            };
            let object = self.configuration_of(webhook).unwrap_or_else(|| me.clone());
            let in_owner = object == me;
            let finding = found(object).advice(advice);
            return if in_owner { finding } else { finding.under(me, "its pods are refused") };
        }
        found(me).advice(format!(
            "Change the pod template of {} {} as the message says",
            kind.kind,
            name(owner)
        ))
    }

    fn configuration_of(&self, webhook: &str) -> Option<Object> {
        [&VALIDATING, &MUTATING].into_iter().find_map(|kind| {
            let all = self.world.list(kind, "", "", "")?;
            let has = |configuration: &&Value| {
                list(configuration, "/webhooks").iter().any(|one| text(one, "/name") == webhook)
            };
            all.into_iter().find(has).map(|configuration| named(&kind.kind, configuration))
        })
    }
}

pub(crate) fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(between, _)| between)
}
