//! The verdict of the AppWrapper recovery for `salvor explain`.

use std::collections::{BTreeMap, BTreeSet};

use futures::{FutureExt, future::BoxFuture};
use salvor_api::Controller;
use salvor_recovery::{
    appwrapper::{
        AppWrapperPolicy, AppWrapperView, FoundComponent, Memory, NodeView, PodView, Seen, Timers, decide,
        notes_told,
    },
    brake::Outage,
    ids::NodeName,
    liveness::Heartbeat,
};
use serde_json::json;

use super::{
    recheck::{Places, read_node, read_snapshot, read_works},
    snapshot::{Snapshot, view},
    webhooks::authors::{Reviews, authorship},
    wire::{App, Rules, SeenNode},
};
use crate::{
    client::{
        discovery::{Discovery, GroupKind, Versions},
        live,
    },
    explain::{Answer, Detail, DetailLine, ExplainError, Involved, ObjectKind, Question, cannot_read},
};

pub(super) static APPWRAPPER: ObjectKind = ObjectKind {
    word: "appwrapper",
    title: "An AppWrapper",
    path: "/apis/workload.codeflare.dev/v1beta2",
    plural: "appwrappers",
    namespaced: true,
    involved: Involved::Uid,
};

pub(super) fn appwrapper<'a>(
    question: &'a Question<'a>,
) -> BoxFuture<'a, Result<Option<Answer>, ExplainError>> {
    async move {
        let policy = AppWrapperPolicy::new(question.configuration);
        let rules = Rules::without_keys(question.configuration);
        let (app, _) = App::parse(question.object, &rules)
            .map_err(|error| question.cannot_read_it(kube::Error::SerdeError(error)))?;
        let what = format!("the components and pods of {}", question.subject);
        let snapshot =
            take_snapshot(question, &app, &rules, &policy).await.map_err(|e| cannot_read(&what, e))?;
        let authorship = authorship(&app, &rules, &Reviews::default());
        let mut view = view(&app, snapshot, Memory::default(), authorship);
        // The history shows which events are recorded; only a running operator knows which failed.
        view.memory.told = notes_told(&view);
        let now = question.time.server();
        read_works(question.client, &mut view, &policy, &BTreeSet::new(), now).await;
        let decision = decide(&view, &policy, now);
        let details = details(&view, &policy);
        let report = question.reviewed(Controller::AppWrapper, decision, Outage::Holds).await;
        Ok(Some(Answer { report, details }))
    }
    .boxed()
}

async fn take_snapshot(
    question: &Question<'_>,
    app: &App,
    rules: &Rules,
    policy: &AppWrapperPolicy,
) -> kube::Result<Snapshot> {
    let client = question.client;
    let discovery = Discovery::new(client.clone());
    let mut places = Places::new();
    for part in app.parts.iter().filter(|part| !part.is_unreadable()) {
        let place = if !rules.wraps(&part.kind) {
            Err(Seen::Unknown(format!("{} is not among appwrapper.wrappedKinds", part.kind)))
        } else {
            match discovery.find(&GroupKind::from(&part.kind).read_as(), Versions::Any).await?.served {
                Some(served) if served.namespaced => Ok(served),
                Some(_) => Err(Seen::Unknown("objects of its kind are in no namespace".into())),
                // A single answer does not prove that the kind is gone for good.
                None => Err(Seen::Unknown("the API server does not serve its kind now".into())),
            }
        };
        places.insert(part.kind.clone(), place);
    }
    let mut snapshot = read_snapshot(client, app, &places, &BTreeMap::new(), policy).await?;
    let names: BTreeSet<NodeName> =
        snapshot.pods.iter().filter_map(|pod| pod.view.node_name.clone()).collect();
    for name in names {
        let Some(SeenNode { mut view, ready_heartbeat, .. }) = read_node(client, &name, policy).await? else {
            continue;
        };
        if view.unreachable {
            let lease = live::node_lease(client, &name).await?;
            view.heartbeat = Heartbeat::at_a_glance(lease.or(ready_heartbeat), question.time.server());
        }
        snapshot.nodes.insert(name, view);
    }
    snapshot.nodes_known = true;
    Ok(snapshot)
}

/// Details beside the verdict: phase and retries, components, and pods, each with what blocks it.
fn details(view: &AppWrapperView, policy: &AppWrapperPolicy) -> Vec<Detail> {
    let timers = Timers::of(&view.annotations, policy);
    let (used, limit) = (view.status.resetting_count, timers.retry_limit.max(0));
    let left = limit.saturating_sub(used).max(0);
    let line = |text: String| DetailLine { text, until: None };
    let mut lines = vec![line(format!("{} with {left} of {limit} retries left", view.status.phase))];
    lines.extend(
        view.admitted.refusal().map(|refusal| line(format!("Changed since it was admitted: {refusal}"))),
    );
    lines.extend(view.status.resets.iter().map(|reset| {
        let at = reset.time.map(|time| format!("{time}: ")).unwrap_or_default();
        line(format!("{at}{}, {}", reset.phase, reset.message))
    }));
    let phase = Detail {
        key: "phase",
        value: json!({
            "phase": view.status.phase,
            "retriesLeft": left,
            "retryLimit": limit,
            "resets": view.status.resets,
        }),
        title: "Phase and resets".to_owned(),
        lines,
    };
    let components: Vec<String> = (0..view.components.len()).map(|index| component(view, index)).collect();
    let pods: Vec<String> = view.pods.iter().map(|it| pod(it, &view.nodes)).collect();
    let listed = |key, title: &str, all: Vec<String>| Detail {
        key,
        value: json!(all),
        title: title.to_owned(),
        lines: all.into_iter().map(line).collect(),
    };
    let mut details = vec![phase, listed("components", "Components", components)];
    if !pods.is_empty() {
        details.push(listed("pods", "Pods", pods));
    }
    details
}

fn component(view: &AppWrapperView, index: usize) -> String {
    let it = &view.components[index];
    let what = format!("{} {}", it.kind, view.name_of(index).unwrap_or(&it.name));
    let state = match &it.seen {
        Seen::Found(found) if !view.owns(found) => "exists and is not owned by this AppWrapper".to_owned(),
        Seen::Found(found) => found_state(found),
        Seen::Absent { .. } => "does not exist".to_owned(),
        Seen::NoSuchKind => "its kind is not served by the API server".to_owned(),
        Seen::Unknown(why) => why.clone(),
    };
    format!("{what}: {state}")
}

fn found_state(found: &FoundComponent) -> String {
    match (found.is_deleting(), found.finalizers.as_slice()) {
        (false, _) => found.state.to_string(),
        (true, []) => "terminating".to_owned(),
        (true, finalizers) => format!("terminating, held by finalizers {}", finalizers.join(", ")),
    }
}

fn pod(pod: &PodView, nodes: &BTreeMap<NodeName, NodeView>) -> String {
    let mut text = format!("{}: {}", pod.pod.name, pod.phase);
    if let Some(name) = &pod.node_name {
        text.push_str(&format!(" on node {name}"));
        match nodes.get(name) {
            None => text.push_str(", which does not exist"),
            Some(node) if node.force_evicted => text.push_str(", which is force-evicted or out of service"),
            Some(node) if node.unreachable => {
                text.push_str(&format!(", which is unreachable ({})", node.heartbeat));
            }
            Some(_) => {}
        }
    }
    if pod.unschedulable {
        text.push_str(", not schedulable");
    }
    if let Some(reason) = &pod.disruption {
        text.push_str(&format!(", disrupted by {reason}"));
    }
    if !pod.exit_codes.is_empty() {
        let codes: Vec<String> = pod.exit_codes.iter().map(ToString::to_string).collect();
        text.push_str(&format!(", exit codes {}", codes.join(", ")));
    }
    if pod.deletion.is_some() {
        text.push_str(", terminating");
        if !pod.finalizers.is_empty() {
            text.push_str(&format!(", held by finalizers {}", pod.finalizers.join(", ")));
        }
    }
    text
}
