//! The verdict of the Job recovery for `salvor explain`.

use futures::FutureExt;
use salvor_api::Controller;
use salvor_recovery::{
    brake::Outage,
    job::{JobPolicy, Waiting, decide, recollect, waiting},
};

use super::recheck::{parse_live, read_live_pods};
use crate::explain::{Answer, Answering, Detail, DetailLine, Involved, ObjectKind, Question, cannot_read};

pub(super) static JOB: ObjectKind = ObjectKind {
    word: "job",
    title: "A Job",
    path: "/apis/batch/v1",
    plural: "jobs",
    namespaced: true,
    involved: Involved::Uid,
};

pub(super) fn job<'a>(question: &'a Question<'a>) -> Answering<'a> {
    async move {
        let view = parse_live(question.object).map_err(|e| question.cannot_read_it(e))?;
        let pods = read_live_pods(question.client, &view).await;
        let pods = pods.map_err(|e| cannot_read(&format!("the pods of {}", question.subject), e))?;
        let policy = JobPolicy::new(question.configuration);
        let memory = recollect(&view, &pods, &policy);
        let now = question.time.server();
        let decision = decide(&view, &pods, &[], &memory, &policy, now);
        let report = question.reviewed(Controller::Job, decision, Outage::Holds).await;
        let details = told(&waiting(&view, &pods, &memory, &policy, now)).into_iter().collect();
        Ok(Some(Answer { report, details }))
    }
    .boxed()
}

/// What each index waits for, lowest first; `None` if none waits.
fn told(all: &[Waiting]) -> Option<Detail> {
    if all.is_empty() {
        return None;
    }
    let indexed = all.iter().any(|waiting| waiting.indexes.is_some());
    let line = |Waiting { indexes, waits_for }: &Waiting| {
        let who = match indexes {
            Some(many) if many.contains([',', '-']) => format!("indexes {many}: "),
            Some(one) => format!("index {one}: "),
            None => String::new(),
        };
        DetailLine { text: format!("{who}{waits_for}"), until: waits_for.until() }
    };
    Some(Detail {
        key: "waiting",
        // Strings and times always serialize to JSON.
        value: serde_json::to_value(all).unwrap_or_default(),
        title: if indexed { "What each index waits for" } else { "What its pods wait for" }.to_owned(),
        lines: all.iter().map(line).collect(),
    })
}

#[cfg(test)]
mod tests {
    use salvor_recovery::job::WaitsFor;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_indexes_wait_for_is_told_to_people_and_to_machines() {
        let index = |index: &str, waits_for| Waiting { indexes: Some(index.into()), waits_for };
        let until = "2026-11-15T05:00:07Z".parse().unwrap();
        let termination = WaitsFor::Termination { pod: "w-0-x".into(), node: Some("n1".into()) };
        let all = [
            index("0", termination),
            index("1", WaitsFor::Backoff { until }),
            index("2,4", WaitsFor::Turn),
            index("5-9", WaitsFor::Creation),
        ];
        let detail = told(&all).unwrap();
        assert_eq!((detail.key, detail.title.as_str()), ("waiting", "What each index waits for"));
        let line = |text: &str, until| DetailLine { text: text.to_owned(), until };
        let expected = [
            line("index 0: pod w-0-x on node n1 to end", None),
            line("index 1: its backoff", Some(until)),
            line("indexes 2,4: its turn: the Job runs as many pods as it may", None),
            line("indexes 5-9: its pod to be created", None),
        ];
        assert_eq!(detail.lines, expected);
        let first = json!({"indexes": "0", "waitsFor": "Termination", "pod": "w-0-x", "node": "n1"});
        assert_eq!(detail.value[0], first);

        let work = told(&[Waiting { indexes: None, waits_for: WaitsFor::Work }]).unwrap();
        assert_eq!(work.title, "What its pods wait for");
        assert_eq!(work.lines, [line("its work to be done", None)]);
        assert_eq!(told(&[]), None);
    }
}
