//! Explains an object: reads it, and asks every recovery that has verdicts on its kind.

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use kube::Client;
use salvor_api::config::Configuration;
use salvor_recovery::ids::{ResourceVersion, Uid};
use serde::Deserialize;

use crate::{
    client::live,
    explain::{
        Answer, ExplainError, Explains, Explanation, Involved, ObjectKind, ObjectName, Question, cannot_read,
    },
    recoveries::recoveries,
    time::Time,
};

/// The kinds that can be explained: namespaced ones first, otherwise in the order of the recoveries.
pub fn explained_kinds() -> Vec<&'static ObjectKind> {
    let mut kinds: Vec<&'static ObjectKind> = Vec::new();
    for Explains { kind, .. } in recoveries().flat_map(|entry| entry.explains) {
        if !kinds.iter().any(|known| known.word == kind.word) {
            kinds.push(kind);
        }
    }
    kinds.sort_by_key(|kind| !kind.namespaced);
    kinds
}

/// Salvor's verdict on an object now.
///
/// # Errors
/// If there is no such object, or something that a verdict depends on cannot be read.
pub fn explain<'a>(
    config: kube::Config,
    configuration: &'a Configuration,
    kind: &'static ObjectKind,
    object: &'a ObjectName,
) -> BoxFuture<'a, Result<Explanation, ExplainError>> {
    async move {
        let subject = format!("{} {object}", kind.word);
        let time = Time::system();
        let client = crate::client::connect(config, &time).map_err(|e| cannot_read("the API", e))?;
        // First, because the server's clock is unknown before its first answer.
        let read = live::get(&client, &path_of(kind, object)).await.map_err(|e| cannot_read(&subject, e))?;
        let text = read.ok_or_else(|| ExplainError::NotFound(subject.clone()))?;
        let involved = match kind.involved {
            Involved::Uid => uid_of(&text).map_err(|e| cannot_read(&subject, e))?.into(),
            Involved::Name => object.name.clone(),
        };
        let namespace = object.namespace.as_deref().unwrap_or("default");
        let told = history(&client, namespace, &involved).await.map_err(|e| cannot_read("events", e))?;
        let question = Question {
            client: &client,
            configuration,
            time: &time,
            subject: &subject,
            object: &text,
            history: &told,
        };
        let (mut reports, mut details) = (Vec::new(), Vec::new());
        let explaining = recoveries().flat_map(|entry| entry.explains);
        for Explains { explain, .. } in explaining.filter(|explains| explains.kind.word == kind.word) {
            if let Some(Answer { report, details: more }) = explain(&question).await? {
                reports.push(report);
                details.extend(more);
            }
        }
        Ok(Explanation { subject, recoveries: reports, details, history: told })
    }
    .boxed()
}

fn path_of(
    ObjectKind { path, plural, .. }: &ObjectKind,
    ObjectName { namespace, name }: &ObjectName,
) -> String {
    match namespace {
        Some(namespace) => format!("{path}/namespaces/{namespace}/{plural}/{name}"),
        None => format!("{path}/{plural}/{name}"),
    }
}

fn uid_of(object: &str) -> kube::Result<Uid> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: Uid,
    }
    let object: Object = serde_json::from_str(object).map_err(kube::Error::SerdeError)?;
    Ok(object.metadata.uid)
}

/// Salvor's events about an object, selected by the UID in them. For some kinds that is a name, see [`Involved`].
pub(crate) async fn history(client: &Client, namespace: &str, involved: &str) -> kube::Result<Vec<String>> {
    let path = format!("/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.uid%3D{involved}");
    let Some(text) = live::get(client, &path).await? else { return Ok(Vec::new()) };
    told_in(&text).map_err(kube::Error::SerdeError)
}

/// Those lines of a list of events that are ours, oldest first.
fn told_in(list: &str) -> Result<Vec<String>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Events {
        items: Vec<Event>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Event {
        #[serde(default)]
        metadata: Metadata,
        event_time: Option<String>,
        /// The only time of an event that was written by the older API.
        last_timestamp: Option<String>,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        message: String,
        #[serde(default)]
        reporting_component: String,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        resource_version: ResourceVersion,
    }
    let events: Events = serde_json::from_str(list)?;
    let ours: Vec<&str> = recoveries().map(|entry| entry.reporter).collect();
    let mut told: Vec<(Timestamp, u64, String)> = events
        .items
        .into_iter()
        .filter(|e| ours.contains(&e.reporting_component.as_str()))
        .map(|e| {
            let at = e.event_time.or(e.last_timestamp).unwrap_or_default();
            // Times have a precision of seconds; within one, revisions give the order.
            let revision = e.metadata.resource_version.revision().number();
            let time: Timestamp = at.parse().unwrap_or(Timestamp::MIN);
            let second = Timestamp::from_second(time.as_second()).unwrap_or(time);
            (second, revision, format!("{at} {}: {}", e.reason, e.message))
        })
        .collect();
    told.sort();
    Ok(told.into_iter().map(|(_, _, line)| line).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_of_either_api_have_a_time_and_those_of_one_second_an_order() {
        let event = |times: serde_json::Value, by: &str, reason: &str, revision: &str| {
            let metadata = json!({"resourceVersion": revision});
            let mut event =
                json!({"metadata": metadata, "reportingComponent": by, "reason": reason, "message": "m"});
            event.as_object_mut().unwrap().append(&mut times.as_object().unwrap().clone());
            event
        };
        let core = json!({
            "eventTime": null, "firstTimestamp": "2026-11-15T05:00:01Z", "lastTimestamp": "2026-11-15T05:00:02Z",
        });
        let newer = json!({"eventTime": "2026-11-15T05:00:01.500000Z", "lastTimestamp": null});
        let list = json!({"items": [
            event(core.clone(), "salvor-eviction", "Finished", "10"),
            event(core.clone(), "job-controller", "SuccessfulCreate", "9"),
            event(newer, "pod-termination-controller", "Terminated", "8"),
            event(core, "kubelet", "Pulled", "7"),
        ]});
        let expected = [
            "2026-11-15T05:00:01.500000Z Terminated: m",
            "2026-11-15T05:00:02Z SuccessfulCreate: m",
            "2026-11-15T05:00:02Z Finished: m",
        ];
        assert_eq!(told_in(&list.to_string()).unwrap(), expected);
    }

    #[test]
    fn objects_are_read_where_their_kind_is_and_named_as_people_do() {
        let of = |namespace: Option<&str>, name: &str| ObjectName {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let cases = [
            ("pod", of(Some("ns"), "p"), "/api/v1/namespaces/ns/pods/p", "ns/p"),
            ("job", of(Some("ns"), "j"), "/apis/batch/v1/namespaces/ns/jobs/j", "ns/j"),
            ("node", of(None, "n"), "/api/v1/nodes/n", "n"),
        ];
        for (word, object, path, named) in cases {
            let kind = explained_kinds().into_iter().find(|kind| kind.word == word).unwrap();
            assert_eq!(path_of(kind, &object), path);
            assert_eq!(object.to_string(), named);
        }
    }

    #[test]
    fn each_kind_is_there_once_and_those_in_namespaces_come_first() {
        let kinds: Vec<_> = explained_kinds().into_iter().map(|kind| (kind.word, kind.namespaced)).collect();
        let words: std::collections::BTreeSet<_> = kinds.iter().map(|(word, _)| word).collect();
        assert_eq!(words.len(), kinds.len(), "{kinds:?}");
        assert!(kinds.is_sorted_by_key(|(_, namespaced)| !namespaced), "{kinds:?}");
    }
}
