//! Generates random request sequences for both servers, and shrinks one that they answer differently.

use salvor_apiserver::{Cluster, Settings};
use serde_json::{Value, json};

use super::compare::{self, Difference};
use super::player::{Player, Side};
use super::transcript::{Step, Transcript};

const LONGEST: usize = 14;

/// A kind that sequences use: its path, an object of it, and changes that are valid for it.
struct Kind {
    below: &'static str,
    plural: &'static str,
    body: fn(&mut fastrand::Rng) -> Value,
    changes: fn(&mut fastrand::Rng) -> Value,
    status: Option<fn(&mut fastrand::Rng) -> Value>,
}

const CORE: &str = "/api/v1/namespaces/{ns}";

const KINDS: [Kind; 6] = [
    Kind {
        below: CORE,
        plural: "configmaps",
        body: |rng| json!({ "data": { "k": pick(rng, &["a", "b", ""]) } }),
        changes: |rng| {
            pick(
                rng,
                &[
                    json!({ "data": { "k": "a" } }),
                    json!({ "data": { "k": "b", "l": "c" } }),
                    json!({ "data": null }),
                    json!({ "data": { "k": null } }),
                    json!({ "immutable": true }),
                    json!({ "data": { "no key": "x" } }),
                ],
            )
        },
        status: None,
    },
    Kind {
        below: CORE,
        plural: "pods",
        body: |rng| {
            let mut spec = json!({ "containers": [{ "name": "main", "image": "x:1" }] });
            if rng.bool() {
                spec["nodeName"] = json!("somewhere");
            }
            if rng.u8(..4) == 0 {
                spec["terminationGracePeriodSeconds"] = json!(pick(rng, &[0, 5]));
            }
            json!({ "spec": spec })
        },
        changes: |rng| {
            pick(
                rng,
                &[
                    json!({ "spec": { "activeDeadlineSeconds": 50 } }),
                    json!({ "spec": { "tolerations": [] } }),
                    json!({ "spec": { "terminationGracePeriodSeconds": 1 } }),
                    json!({ "status": { "phase": "Failed" } }),
                ],
            )
        },
        status: Some(|rng| {
            let ready = json!({ "type": "Ready", "status": pick(rng, &["True", "False"]) });
            let terminated = json!({ "name": "main", "ready": false, "restartCount": 0, "image": "x", "imageID": "",
                "state": { "terminated": { "exitCode": 1 } } });
            pick(
                rng,
                &[
                    json!({ "phase": "Running", "conditions": [ready] }),
                    json!({ "phase": "Failed" }),
                    json!({ "phase": "Succeeded", "reason": "Done" }),
                    json!({ "podIP": "10.0.0.1" }),
                    json!({ "containerStatuses": [terminated] }),
                    json!({ "conditions": [] }),
                ],
            )
        }),
    },
    Kind {
        below: "/apis/coordination.k8s.io/v1/namespaces/{ns}",
        plural: "leases",
        body: |rng| json!({ "spec": { "holderIdentity": pick(rng, &["me", "you"]) } }),
        changes: |rng| {
            pick(
                rng,
                &[
                    json!({ "spec": { "renewTime": "2019-01-01T00:00:00.000001Z" } }),
                    json!({ "spec": { "leaseDurationSeconds": 0 } }),
                    json!({ "spec": { "leaseDurationSeconds": 10, "holderIdentity": "me" } }),
                    json!({ "spec": null }),
                ],
            )
        },
        status: None,
    },
    Kind {
        below: "/apis/policy/v1/namespaces/{ns}",
        plural: "poddisruptionbudgets",
        body: |rng| {
            let limit = pick(rng, &["minAvailable", "maxUnavailable"]);
            json!({ "spec": { limit: pick(rng, &[json!(1), json!("50%"), json!(0)]), "selector": { "matchLabels": { "app": "web" } } } })
        },
        changes: |rng| {
            pick(
                rng,
                &[
                    json!({ "spec": { "minAvailable": 2, "maxUnavailable": null } }),
                    json!({ "spec": { "unhealthyPodEvictionPolicy": "AlwaysAllow" } }),
                    json!({ "spec": { "minAvailable": -1, "maxUnavailable": null } }),
                ],
            )
        },
        status: Some(|rng| {
            json!({ "observedGeneration": rng.u8(..3), "disruptionsAllowed": rng.u8(..2), "currentHealthy": 1,
                "desiredHealthy": rng.u8(..2), "expectedPods": 1 })
        }),
    },
    Kind {
        below: "/apis/batch/v1/namespaces/{ns}",
        plural: "jobs",
        body: |rng| {
            let template = json!({ "spec": { "restartPolicy": pick(rng, &["Never", "Never", "OnFailure", "Always"]),
                "containers": [{ "name": "main", "image": "x:1" }] } });
            let mut spec = json!({ "template": template });
            if rng.bool() {
                spec["completionMode"] = json!("Indexed");
                spec["completions"] = json!(2);
            }
            if rng.u8(..3) == 0 {
                spec["suspend"] = json!(true);
            }
            json!({ "spec": spec })
        },
        changes: |rng| {
            pick(
                rng,
                &[
                    json!({ "spec": { "parallelism": 2 } }),
                    json!({ "spec": { "completions": 2, "parallelism": 2 } }),
                    json!({ "spec": { "suspend": false } }),
                    json!({ "spec": { "backoffLimit": -1 } }),
                    json!({ "spec": { "podReplacementPolicy": "Failed" } }),
                    json!({ "spec": { "completionMode": null } }),
                ],
            )
        },
        status: Some(|rng| {
            let condition = |kind: &str| json!({ "type": kind, "status": "True" });
            pick(
                rng,
                &[
                    json!({ "active": 1, "ready": 0, "startTime": "2019-01-01T00:00:00Z" }),
                    json!({ "failed": 1 }),
                    json!({ "active": 0, "failed": 0, "conditions": [condition("FailureTarget"), condition("Failed")] }),
                    json!({ "completionTime": "2019-01-01T00:00:01Z", "conditions": [condition("SuccessCriteriaMet"), condition("Complete")] }),
                    json!({ "completedIndexes": "0-1", "succeeded": 2 }),
                    json!({ "startTime": null }),
                    json!({ "ready": 3 }),
                ],
            )
        }),
    },
    Kind {
        below: "/apis/apps/v1/namespaces/{ns}",
        plural: "deployments",
        body: |rng| {
            json!({ "spec": { "replicas": rng.u8(..3), "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": pick(rng, &["web", "web", "db"]) } },
                    "spec": { "containers": [{ "name": "main", "image": "x:1" }] } } } })
        },
        changes: |rng| {
            pick(
                rng,
                &[
                    json!({ "spec": { "replicas": 3 } }),
                    json!({ "spec": { "replicas": -1 } }),
                    json!({ "spec": { "paused": true } }),
                    json!({ "spec": { "strategy": { "type": "Recreate", "rollingUpdate": null } } }),
                    json!({ "spec": { "selector": { "matchLabels": { "app": "db" } } } }),
                ],
            )
        },
        status: Some(|rng| json!({ "replicas": rng.u8(..3), "observedGeneration": 1 })),
    },
];

fn pick<T: Clone>(rng: &mut fastrand::Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())].clone()
}

/// Metadata that makes a difference.
fn metadata(rng: &mut fastrand::Rng, name: &str) -> Value {
    let mut metadata = json!({ "name": name });
    match rng.u8(..8) {
        0 => metadata["finalizers"] = json!(["example.com/hold"]),
        1 => metadata["labels"] = json!({ "app": "web", "tier": "1" }),
        2 | 3 => metadata["labels"] = json!({ "app": pick(rng, &["web", "db"]) }),
        4 => metadata["annotations"] = json!({ "example.com/note": "x" }),
        _ => {}
    }
    metadata
}

fn step(request: String, body: Value, kind: Option<&str>) -> Step {
    Step {
        request,
        body: (!body.is_null()).then_some(body),
        kind: kind.map(str::to_owned),
        accept: None,
        keep: std::collections::BTreeMap::new(),
        ignore: Vec::new(),
        only: Vec::new(),
        events: None,
        until: std::collections::BTreeMap::new(),
        expect: 0,
    }
}

/// One request for one of a few objects.
fn request(rng: &mut fastrand::Rng, kind: &Kind) -> Step {
    let name = pick(rng, &["a", "b"]);
    let collection = format!("{}/{}", kind.below, kind.plural);
    let object = format!("{collection}/{name}");
    let metadata_change = |rng: &mut fastrand::Rng| {
        pick(
            rng,
            &[
                json!({ "metadata": { "labels": { "app": "web" } } }),
                json!({ "metadata": { "labels": { "app": null, "tier": "2" } } }),
                json!({ "metadata": { "finalizers": null } }),
                json!({ "metadata": { "finalizers": ["example.com/hold"] } }),
                json!({ "metadata": { "annotations": { "example.com/note": "y" } } }),
                json!({ "metadata": { "resourceVersion": "1" } }),
                json!({ "metadata": { "name": "other" } }),
                json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u" }] } }),
                json!({}),
            ],
        )
    };
    match rng.u8(..20) {
        0..=4 => {
            let mut body = (kind.body)(rng);
            body["metadata"] = metadata(rng, name);
            let dry = if rng.u8(..8) == 0 { "?dryRun=All" } else { "" };
            step(format!("POST {collection}{dry}"), body, None)
        }
        5 | 6 => {
            let mut body = (kind.body)(rng);
            body["metadata"] = metadata(rng, name);
            step(format!("PUT {object}"), body, None)
        }
        7 | 8 => step(format!("PATCH {object}"), metadata_change(rng), Some("merge")),
        9 | 10 => {
            step(format!("PATCH {object}"), (kind.changes)(rng), Some(pick(rng, &["merge", "strategic"])))
        }
        11 => {
            let operation = pick(
                rng,
                &[
                    json!([{ "op": "add", "path": "/metadata/labels", "value": { "app": "db" } }]),
                    json!([{ "op": "remove", "path": "/metadata/labels" }]),
                    json!([{ "op": "test", "path": "/metadata/name", "value": "a" }, { "op": "remove", "path": "/metadata/finalizers" }]),
                ],
            );
            step(format!("PATCH {object}"), operation, Some("json"))
        }
        12 | 13 => match kind.status {
            Some(status) => {
                step(format!("PATCH {object}/status"), json!({ "status": status(rng) }), Some("merge"))
            }
            None => step(format!("GET {object}"), Value::Null, None),
        },
        14..=16 => {
            let options = pick(
                rng,
                &[
                    "",
                    "",
                    "?gracePeriodSeconds=0",
                    "?gracePeriodSeconds=3",
                    "?propagationPolicy=Foreground",
                    "?propagationPolicy=Orphan",
                    "?dryRun=All",
                ],
            );
            step(format!("DELETE {object}{options}"), Value::Null, None)
        }
        17 => {
            let query = pick(
                rng,
                &[
                    "",
                    "?labelSelector=app%3Dweb",
                    "?fieldSelector=metadata.name%3Da",
                    "?limit=1",
                    "?labelSelector=!app",
                ],
            );
            step(format!("GET {collection}{query}"), Value::Null, None)
        }
        18 if kind.plural == "pods" => {
            let eviction =
                json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name } });
            step(format!("POST {object}/eviction"), eviction, None)
        }
        18 => step(format!("GET {object}"), Value::Null, None),
        _ => {
            // The other party of a conflict differs by design: the writers before the first apply are not recorded.
            let manager = pick(rng, &["one", "two"]);
            let mut body = (kind.body)(rng);
            body["metadata"] = metadata(rng, name);
            let group = kind.below.trim_start_matches("/apis/").trim_start_matches("/api/");
            let version = group.trim_end_matches("/namespaces/{ns}");
            body["apiVersion"] = json!(version);
            body["kind"] = json!(match kind.plural {
                "configmaps" => "ConfigMap",
                "pods" => "Pod",
                "leases" => "Lease",
                "poddisruptionbudgets" => "PodDisruptionBudget",
                "jobs" => "Job",
                _ => "Deployment",
            });
            step(format!("PATCH {object}?fieldManager={manager}&force=true"), body, Some("apply"))
        }
    }
}

/// The sequence of a seed.
pub(crate) fn sequence(seed: u64) -> Vec<Step> {
    let mut rng = fastrand::Rng::with_seed(seed);
    // Most sequences use one or two kinds, so that requests affect the same objects.
    let kinds = [rng.usize(..KINDS.len()), rng.usize(..KINDS.len())];
    let length = rng.usize(3..=LONGEST);
    let mut steps: Vec<Step> = (0..length)
        .map(|_| {
            let kind = &KINDS[kinds[rng.usize(..2)]];
            request(&mut rng, kind)
        })
        .collect();
    for kind in kinds {
        let kind = &KINDS[kind];
        steps.push(step(format!("GET {}/{}", kind.below, kind.plural), Value::Null, None));
    }
    steps
}

pub(crate) struct Court<'c> {
    real: &'c kube::Client,
    namespaces: std::cell::Cell<u64>,
}

impl<'c> Court<'c> {
    pub(crate) fn new(real: &'c kube::Client) -> Self {
        Self { real, namespaces: std::cell::Cell::new(0) }
    }

    /// The first step that both answer differently, and how.
    pub(crate) async fn judge(&self, steps: Vec<Step>) -> (Vec<Step>, Option<(usize, Vec<Difference>)>) {
        self.namespaces.set(self.namespaces.get() + 1);
        let namespace = format!("g{}", self.namespaces.get());
        let transcript = Transcript { title: String::new(), steps };
        let settings = Settings { start: super::wall_clock(), ..Settings::default() };
        let ours = Player::new(Cluster::new(settings).client(), &namespace, Side::Embedded).play(&transcript);
        let ours = ours.await;
        let theirs = Player::new(self.real.clone(), &namespace, Side::Real).play(&transcript).await;
        let different = ours.iter().zip(&theirs).enumerate().find_map(|(index, (ours, theirs))| {
            let differences = compare::differences(ours, theirs);
            (!differences.is_empty()).then_some((index, differences))
        });
        (transcript.steps, different)
    }

    /// Leaves out steps as long as there is a difference without them.
    pub(crate) async fn shrink(&self, steps: Vec<Step>) -> (Vec<Step>, Vec<Difference>) {
        let (mut steps, found) = self.judge(steps).await;
        let Some((index, mut differences)) = found else { return (steps, Vec::new()) };
        steps.truncate(index + 1);
        let mut left_out = steps.len() - 1;
        while left_out > 0 {
            left_out -= 1;
            let fewer: Vec<Step> = steps
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != left_out)
                .map(|(_, step)| step.clone())
                .collect();
            if let (mut fewer, Some((index, found))) = self.judge(fewer).await {
                fewer.truncate(index + 1);
                left_out = left_out.min(fewer.len() - 1);
                (steps, differences) = (fewer, found);
            }
        }
        (steps, differences)
    }
}

/// In the form of a transcript.
pub(crate) fn show(steps: &[Step]) -> String {
    let line = |step: &Step| {
        let kind = step.kind.as_ref().map_or_else(String::new, |kind| format!(", as: {kind}"));
        let body = step.body.as_ref().map_or_else(String::new, |body| format!(", body: {body}"));
        format!("      - {{ request: {:?}{kind}{body}, expect: 0 }}", step.request)
    };
    steps.iter().map(line).collect::<Vec<_>>().join("\n")
}
