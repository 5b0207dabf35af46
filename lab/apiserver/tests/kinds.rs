//! Every kind is served as on the real server: in the discovery documents, as a table, and through the life of one
//! object. A kind without a sample fails here, so that none can be added and forgotten.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![allow(dead_code, reason = "the support of transcripts has more than is needed here")]

#[path = "support/samples.rs"]
mod samples;
#[path = "support/served.rs"]
mod served;
mod support;

use std::collections::{BTreeMap, BTreeSet};

use salvor_apiserver::{Cluster, Settings};
use salvor_testkit::ControlPlane;
use samples::Sample;
use serde_json::{Value, json};
use served::Served;
use support::compare;
use support::player::{Player, Side};
use support::transcript::{Step, Transcript};

/// The Kubernetes minor that the embedded server imitates.
const EMBEDDED_MINOR: &str = "1.37";

/// Documents and resources that the real server serves and this one does not, with the reason.
const NOT_SERVED: &[(&str, &str)] = &[
    ("/api/v1 componentstatuses", "deprecated, and nothing runs that could be unwell"),
    ("/api/v1 nodes/proxy", "there are no kubelets to talk to"),
    ("/api/v1 pods/attach", "there are no kubelets to talk to"),
    ("/api/v1 pods/exec", "there are no kubelets to talk to"),
    ("/api/v1 pods/portforward", "there are no kubelets to talk to"),
    ("/api/v1 pods/proxy", "there are no kubelets to talk to"),
    ("/api/v1 serviceaccounts/token", "nobody logs in with a token of a pod"),
    ("/api/v1 services/proxy", "nothing routes to services"),
    ("/apis/apiregistration.k8s.io/v1", "there is one API server"),
    ("/apis/authentication.k8s.io/v1 tokenreviews", "nobody logs in with a token of a pod"),
    ("/apis/autoscaling/v1", "an older form of what autoscaling/v2 serves"),
];

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

async fn get(client: &kube::Client, path: &str, accept: &str) -> Value {
    let request = http::Request::get(path).header("accept", accept).body(Vec::new()).unwrap();
    client.request(request).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The resources of a document by name, without storage details.
async fn resources(client: &kube::Client, document: &str) -> BTreeMap<String, Value> {
    let mut list = get(client, document, "application/json").await;
    let entries = list["resources"].as_array_mut().unwrap().drain(..);
    entries
        .map(|mut entry| {
            entry.as_object_mut().unwrap().remove("storageVersionHash");
            (entry["name"].as_str().unwrap().to_owned(), entry)
        })
        .collect()
}

async fn all_documents(client: &kube::Client) -> BTreeMap<String, Vec<String>> {
    let list = get(client, "/apis", "application/json").await;
    let mut documents = BTreeMap::from([("".to_owned(), vec!["/api/v1".to_owned()])]);
    for group in list["groups"].as_array().unwrap() {
        let versions = group["versions"].as_array().unwrap().iter();
        let paths = versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        documents.insert(group["name"].as_str().unwrap().to_owned(), paths.collect());
    }
    documents
}

#[tokio::test]
async fn discovery_says_what_the_real_server_says() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not compared with another minor");
    }
    let real = ControlPlane::builder().start().await.unwrap();
    let theirs = real.admin().client("kinds");
    let ours = Cluster::new(Settings::default()).client();
    let mut absent: BTreeSet<&str> = NOT_SERVED.iter().map(|&(place, _)| place).collect();
    let mut report = Vec::new();
    let known = all_documents(&ours).await;
    for (group, documents) in all_documents(&theirs).await {
        for document in documents {
            if absent.remove(document.as_str()) {
                continue;
            }
            if !known.get(&group).is_some_and(|known| known.contains(&document)) {
                report.push(format!("{document} is not served"));
                continue;
            }
            let mut ours = resources(&ours, &document).await;
            for (name, their) in resources(&theirs, &document).await {
                match ours.remove(&name) {
                    Some(our) if our != their => {
                        report.push(format!("{document} {name}:\n  embedded: {our}\n  real:     {their}"));
                    }
                    Some(_) => {}
                    None if absent.remove(format!("{document} {name}").as_str()) => {}
                    None => report.push(format!("{document} {name} is not served")),
                }
            }
            report.extend(ours.keys().map(|name| format!("{document} {name} is not there on the real one")));
        }
    }
    report.extend(absent.iter().map(|place| format!("{place} is listed as not served, and is")));
    assert!(report.is_empty(), "the embedded API differs from the real one:\n{}", report.join("\n"));
    newer_discovery_says_the_same(&ours, &theirs).await;
}

/// The aggregated discovery documents, which newer clients read.
async fn newer_discovery_says_the_same(ours: &kube::Client, theirs: &kube::Client) {
    const ACCEPT: &str =
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let mut report = Vec::new();
    for path in ["/api", "/apis"] {
        let (ours, theirs) = (get(ours, path, ACCEPT).await, get(theirs, path, ACCEPT).await);
        let find = |list: &Value, key: &str, wanted: &Value| {
            let found = list.as_array().into_iter().flatten().find(|entry| entry[key] == *wanted);
            found.cloned().unwrap_or(Value::Null)
        };
        for group in ours["items"].as_array().unwrap() {
            let their_group =
                find(&theirs["items"], "metadata", &json!({ "name": group["metadata"]["name"] }));
            let their_group = if path == "/api" { theirs["items"][0].clone() } else { their_group };
            for version in group["versions"].as_array().unwrap() {
                let their_version = find(&their_group["versions"], "version", &version["version"]);
                for resource in version["resources"].as_array().unwrap() {
                    let mut their = find(&their_version["resources"], "resource", &resource["resource"]);
                    // Those that are not served were checked above.
                    if let Some(list) = their.get_mut("subresources").and_then(Value::as_array_mut) {
                        list.retain(|part| {
                            find(&resource["subresources"], "subresource", &part["subresource"])
                                != Value::Null
                        });
                    }
                    if their["subresources"] == json!([]) {
                        their.as_object_mut().unwrap().remove("subresources");
                    }
                    if *resource != their {
                        report.push(format!("{path}:\n  embedded: {resource}\n  real:     {their}"));
                    }
                }
            }
        }
    }
    assert!(report.is_empty(), "the embedded API differs from the real one:\n{}", report.join("\n"));
}

fn step(request: String, body: Option<Value>, kind: Option<&str>, table: bool, ignore: &[String]) -> Step {
    Step {
        request,
        body,
        kind: kind.map(str::to_owned),
        accept: table.then(|| TABLE.to_owned()),
        keep: BTreeMap::new(),
        ignore: ignore.to_vec(),
        only: Vec::new(),
        events: None,
        until: BTreeMap::new(),
        // Only the first answers must be a success; for the others the real server is the reference.
        expect: 0,
    }
}

/// The life of one object, and some reads of its kind.
fn life(kind: &Served, sample: &Sample) -> Transcript {
    let place = if kind.namespaced { "/namespaces/{ns}" } else { "" };
    let all = format!("{}{place}/{}", kind.below(), kind.plural);
    let name = sample.name();
    let one = format!("{all}/{name}");
    let only = format!("{all}?fieldSelector=metadata.name={name}");
    let table = |request: String| step(request, None, None, true, &sample.ignore);
    let plain = |request: String, body: Option<Value>, kind| step(request, body, kind, false, &sample.ignore);
    // A client can or cannot set the status of an object that it creates.
    let mut object = sample.object.clone();
    if let (Some(status), None) = (&sample.status, object.get("status")) {
        object["status"] = status.clone();
    }
    let mut steps = vec![
        Step { expect: 200, ..table(format!("GET {only}")) },
        Step { expect: 201, ..plain(format!("POST {all}"), Some(object), None) },
        Step { expect: 200, ..table(format!("GET {one}")) },
        Step { expect: 200, ..table(format!("GET {only}")) },
    ];
    if let Some(status) = &sample.status {
        let body = json!({ "metadata": { "labels": { "by": "status" } }, "status": status });
        let patch = plain(format!("PATCH {one}/status"), Some(body), Some("merge"));
        steps.push(Step { expect: 200, ..patch });
        steps.push(Step { expect: 200, ..table(format!("GET {only}")) });
    }
    if let Some(frozen) = &sample.frozen {
        let patch = plain(format!("PATCH {one}"), Some(frozen.clone()), Some("merge"));
        steps.push(Step { expect: 422, ..patch });
    }
    let mut change = sample.change.clone().unwrap_or_else(|| json!({}));
    change["metadata"] = json!({ "labels": { "a": "b" } });
    let mut missing = sample.object.clone();
    missing["metadata"]["name"] = json!(format!("{name}-2"));
    steps.extend([
        Step { expect: 200, ..plain(format!("PATCH {one}"), Some(change), Some("merge")) },
        Step { expect: 200, ..table(format!("GET {one}")) },
        plain(format!("PUT {one}"), Some(sample.object.clone()), None),
        plain(format!("PUT {one}-2"), Some(missing), None),
        plain(format!("GET {all}?fieldSelector=spec.colour=red"), None, None),
    ]);
    if !sample.stays {
        steps.push(plain(format!("DELETE {one}"), None, None));
        steps.push(plain(format!("GET {only}"), None, None));
    }
    Transcript { title: format!("{} {}", kind.group, kind.kind), steps }
}

/// `KIND=text` plays only kinds with that text.
#[tokio::test]
async fn an_object_of_every_kind_lives_alike() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not compared with another minor");
    }
    let chosen = std::env::var("KIND").unwrap_or_default();
    let mut samples = samples::all();
    let real = ControlPlane::builder().start().await.unwrap();
    let client = real.admin().client("kinds");
    let mut report = String::new();
    for (index, kind) in served::all().await.iter().enumerate() {
        let found = samples.iter().position(|sample| sample.kind == kind.kind && sample.group == kind.group);
        let Some(found) = found else {
            report.push_str(&format!("tests/samples.yaml has no object of {} {}\n", kind.group, kind.kind));
            continue;
        };
        let sample = samples.remove(found);
        if kind.subresources.iter().any(|part| part == "status") && sample.status.is_none() {
            report.push_str(&format!("the object of {} in tests/samples.yaml has no status\n", kind.kind));
        }
        let life = life(kind, &sample);
        if !life.title.contains(&chosen) {
            continue;
        }
        let namespace = format!("k{index}");
        let settings = Settings { start: support::wall_clock(), ..Settings::default() };
        let embedded = Cluster::new(settings).client();
        let ours = Player::new(embedded, &namespace, Side::Embedded).play(&life).await;
        let theirs = Player::new(client.clone(), &namespace, Side::Real).play(&life).await;
        for (step, (ours, theirs)) in life.steps.iter().zip(ours.iter().zip(&theirs)) {
            let mut said = Vec::new();
            if step.expect != 0 && theirs.status != step.expect {
                said.push(format!("  {} is expected, and the real one says {}", step.expect, theirs.body));
            }
            said.extend(compare::differences(ours, theirs).iter().map(ToString::to_string));
            if !said.is_empty() {
                report.push_str(&format!("{}, {}:\n{}\n", life.title, step.request, said.join("\n")));
            }
        }
    }
    let left: Vec<&str> = samples.iter().map(|sample| sample.kind.as_str()).collect();
    assert!(left.is_empty(), "tests/samples.yaml has objects of kinds that are not served: {left:?}");
    assert!(report.is_empty(), "the embedded API differs from the real one:\n{report}");
}
