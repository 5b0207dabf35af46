//! Creates AppWrappers, plays the kubelet for their pods, and watches their progress.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use http::Method;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    requests::{JSON, STRATEGIC, concurrently, send},
    watching::{Seen, Versioned, watch},
};

/// The number of the benchmark's own concurrent requests.
const AT_ONCE: usize = 32;
/// The time limit of a wait.
const GIVE_UP: Duration = Duration::from_secs(900);

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: String,
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: String,
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Status {
    fn holds(&self, kind: &str) -> bool {
        self.conditions.iter().any(|condition| condition.kind == kind && condition.status == "True")
    }
}

impl Versioned for Object {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

enum Sight {
    Wrapper {
        name: String,
        phase: String,
        ready: bool,
    },
    Pod {
        name: String,
        phase: String,
    },
    /// A Job is Complete. It has the name of its AppWrapper.
    JobComplete {
        name: String,
    },
    /// Nothing that matters.
    Other,
    /// The watch failed.
    Blind(String),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Wrapped {
    Job,
    Pod,
}

/// One namespace full of AppWrappers.
pub(crate) struct Load {
    client: Client,
    namespace: String,
    sights: mpsc::UnboundedReceiver<(Instant, Sight)>,
    /// When each AppWrapper was first seen in a phase, or in one of the states below.
    pub(crate) reached: HashMap<(String, String), Instant>,
    pub(crate) pods: HashSet<String>,
}

impl Load {
    /// Creates the namespace and starts to watch it. With a kubelet, pods run as soon as they exist.
    pub(crate) async fn open(client: &Client, namespace: &str) -> Result<Self, String> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        send(client, Method::POST, "/api/v1/namespaces", JSON, &body).await?;
        let (tell, sights) = mpsc::unbounded_channel();
        let (tell_pod, tell_job) = (tell.clone(), tell.clone());
        watch(client, wrappers(namespace), move |seen: Result<Seen<Object>, _>| {
            let sight = match seen {
                Ok(Seen { object, .. }) => {
                    let ready = object.status.holds("PodsReady");
                    Sight::Wrapper { name: object.metadata.name, phase: object.status.phase, ready }
                }
                Err(problem) => Sight::Blind(problem),
            };
            tell.send((Instant::now(), sight)).is_ok()
        })
        .await?;
        watch(
            client,
            format!("/api/v1/namespaces/{namespace}/pods"),
            move |seen: Result<Seen<Object>, _>| {
                let sight = match seen {
                    Ok(Seen { object, .. }) => {
                        Sight::Pod { name: object.metadata.name, phase: object.status.phase }
                    }
                    Err(problem) => Sight::Blind(problem),
                };
                tell_pod.send((Instant::now(), sight)).is_ok()
            },
        )
        .await?;
        watch(
            client,
            format!("/apis/batch/v1/namespaces/{namespace}/jobs"),
            move |seen: Result<Seen<Object>, _>| {
                let sight = match seen {
                    Ok(Seen { object, .. }) if object.status.holds("Complete") => {
                        Sight::JobComplete { name: object.metadata.name }
                    }
                    Ok(_) => Sight::Other,
                    Err(problem) => Sight::Blind(problem),
                };
                tell_job.send((Instant::now(), sight)).is_ok()
            },
        )
        .await?;
        Ok(Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            sights,
            reached: HashMap::new(),
            pods: HashSet::new(),
        })
    }

    /// Creates AppWrappers of one component each, many at a time.
    pub(crate) async fn create(
        &self,
        names: Vec<String>,
        wrapped: Wrapped,
        annotations: Value,
    ) -> Result<(), String> {
        let (client, path) = (self.client.clone(), wrappers(&self.namespace));
        concurrently(AT_ONCE, names, move |name| {
            let (client, path) = (client.clone(), path.clone());
            let body = json!({
                "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"suspend": false, "components": [{"template": wrapped.template(&name)}]},
            });
            async move { send(&client, Method::POST, &path, JSON, &body).await }
        })
        .await
        .map(|_| ())
    }

    /// Moves all pods that were seen so far to a phase, many at a time.
    pub(crate) async fn move_pods(&self, phase: &'static str) -> Result<(), String> {
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        let pods: Vec<String> = self.pods.iter().cloned().collect();
        concurrently(AT_ONCE, pods, move |pod| {
            let (client, namespace) = (client.clone(), namespace.clone());
            async move { set_phase(&client, &namespace, &pod, phase).await }
        })
        .await
        .map(|_| ())
    }

    /// Waits until this many AppWrappers were in a phase. Returns the seconds from `start` to the last of them.
    pub(crate) async fn until(&mut self, start: Instant, count: usize, phase: &str) -> Result<f64, String> {
        let mut running = 0;
        loop {
            let there: Vec<Instant> =
                self.reached.iter().filter(|((_, seen), _)| seen == phase).map(|(_, at)| *at).collect();
            if there.len() >= count {
                let last = there.into_iter().max().unwrap_or(start);
                return Ok(last.duration_since(start).as_secs_f64());
            }
            let Ok(sight) = tokio::time::timeout_at((start + GIVE_UP).into(), self.sights.recv()).await
            else {
                return Err(format!("only {} of {count} AppWrappers got to {phase}", there.len()));
            };
            let (at, sight) = sight.ok_or("the benchmark's watches ended")?;
            match sight {
                Sight::Wrapper { name, phase, ready } => {
                    if ready && phase == "Running" {
                        self.reached.entry((name.clone(), READY.to_owned())).or_insert(at);
                    }
                    self.reached.entry((name, phase)).or_insert(at);
                }
                Sight::Pod { name, phase } if phase == "Pending" => {
                    if self.pods.insert(name.clone()) {
                        // The kubelet: one task for each pod, since they come one by one.
                        let (client, namespace) = (self.client.clone(), self.namespace.clone());
                        tokio::spawn(async move {
                            if let Err(problem) = set_phase(&client, &namespace, &name, "Running").await {
                                eprintln!("{problem}");
                            }
                        });
                        running += 1;
                    }
                }
                Sight::JobComplete { name } => {
                    self.reached.entry((name, JOB_COMPLETE.to_owned())).or_insert(at);
                }
                Sight::Pod { .. } | Sight::Other => {}
                Sight::Blind(problem) => return Err(format!("{problem} ({running} pods)")),
            }
        }
    }
}

/// Not a phase of AppWrappers: Running, and all pods are ready.
pub(crate) const READY: &str = "Ready";
/// Not a phase either: the Job inside is Complete.
pub(crate) const JOB_COMPLETE: &str = "JobComplete";

impl Wrapped {
    fn template(self, name: &str) -> Value {
        let container = json!({"name": "main", "image": "example.org/work:1", "command": ["work"]});
        let spec =
            json!({"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 0});
        match self {
            Self::Job => json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
                "spec": {"backoffLimit": 0, "template": {"spec": spec}},
            }),
            Self::Pod => json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}),
        }
    }
}

fn wrappers(namespace: &str) -> String {
    format!("/apis/workload.codeflare.dev/v1beta2/namespaces/{namespace}/appwrappers")
}

async fn set_phase(client: &Client, namespace: &str, pod: &str, phase: &str) -> Result<(), String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/status");
    send(client, Method::PATCH, &path, STRATEGIC, &json!({"status": {"phase": phase}})).await.map(|_| ())
}
