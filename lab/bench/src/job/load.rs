//! Creates Jobs, plays the kubelet for their pods, and watches their progress.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use http::Method;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    requests::{JSON, STRATEGIC, concurrently, send},
    watching::{Seen, Versioned, watch},
};

/// The number of the benchmark's own concurrent requests.
const AT_ONCE: usize = 32;
/// The time limit of a wait.
const GIVE_UP: Duration = Duration::from_secs(600);

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
    finalizers: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: String,
    active: usize,
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Versioned for Object {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

enum Sight {
    Job {
        name: String,
        active: bool,
        complete: bool,
    },
    Pod {
        name: String,
        let_go: bool,
    },
    /// The watch failed.
    Blind(String),
}

/// One namespace full of Jobs.
pub(crate) struct Load {
    client: Client,
    namespace: String,
    sights: mpsc::UnboundedReceiver<(Instant, Sight)>,
    pub(crate) active: HashSet<String>,
    pub(crate) complete: HashSet<String>,
    pub(crate) pods: HashSet<String>,
    /// Pods without their finalizer.
    pub(crate) let_go: HashSet<String>,
}

impl Load {
    /// Creates the namespace and starts to watch it.
    pub(crate) async fn open(client: &Client, namespace: &str) -> Result<Self, String> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        send(client, Method::POST, "/api/v1/namespaces", JSON, &body).await?;
        let (tell, sights) = mpsc::unbounded_channel();
        let tell_pod = tell.clone();
        watch(client, format!("/apis/batch/v1/namespaces/{namespace}/jobs"), move |seen| {
            tell.send((Instant::now(), seen.map_or_else(Sight::Blind, see_job))).is_ok()
        })
        .await?;
        watch(
            client,
            format!("/api/v1/namespaces/{namespace}/pods"),
            move |seen: Result<Seen<Object>, _>| {
                let sight = match seen {
                    Ok(Seen { object, .. }) => Sight::Pod {
                        name: object.metadata.name,
                        let_go: object.metadata.finalizers.is_empty(),
                    },
                    Err(problem) => Sight::Blind(problem),
                };
                tell_pod.send((Instant::now(), sight)).is_ok()
            },
        )
        .await?;
        Ok(Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            sights,
            active: HashSet::new(),
            complete: HashSet::new(),
            pods: HashSet::new(),
            let_go: HashSet::new(),
        })
    }

    /// Creates Jobs with this spec, many at a time.
    pub(crate) async fn create(&self, names: Vec<String>, spec: &Value) -> Result<(), String> {
        let (client, spec) = (self.client.clone(), spec.clone());
        let path = format!("/apis/batch/v1/namespaces/{}/jobs", self.namespace);
        concurrently(AT_ONCE, names, move |name| {
            let (client, path) = (client.clone(), path.clone());
            let body =
                json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
            async move { send(&client, Method::POST, &path, JSON, &body).await }
        })
        .await
        .map(|_| ())
    }

    /// Terminates all pods that were seen so far, many at a time.
    pub(crate) async fn end_pods(&self) -> Result<(), String> {
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        let pods: Vec<String> = self.pods.iter().cloned().collect();
        concurrently(AT_ONCE, pods, move |pod| {
            let (client, namespace) = (client.clone(), namespace.clone());
            async move { succeed(&client, &namespace, &pod).await }
        })
        .await
        .map(|_| ())
    }

    /// Waits until enough is seen. Returns the seconds from `start` to the last of it.
    pub(crate) async fn until(
        &mut self,
        start: Instant,
        what: &str,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<f64, String> {
        let mut last = start;
        while !enough(self) {
            let Ok(sight) = tokio::time::timeout_at((start + GIVE_UP).into(), self.sights.recv()).await
            else {
                let (active, complete, pods) = (self.active.len(), self.complete.len(), self.pods.len());
                return Err(format!("not {what}: {active} Jobs active, {complete} complete, {pods} pods"));
            };
            let (at, sight) = sight.ok_or("the benchmark's watches ended")?;
            last = last.max(at);
            match sight {
                Sight::Job { name, active, complete } => {
                    if active {
                        self.active.insert(name.clone());
                    }
                    if complete {
                        self.complete.insert(name);
                    }
                }
                Sight::Pod { name, let_go } => {
                    if let_go {
                        self.let_go.insert(name.clone());
                    }
                    self.pods.insert(name);
                }
                Sight::Blind(problem) => return Err(problem),
            }
        }
        Ok(last.duration_since(start).as_secs_f64())
    }

    /// Waits for the work that remains when the Jobs are Complete: it does not count for their time, but for their
    /// cost.
    pub(crate) async fn until_let_go(&mut self) -> Result<(), String> {
        self.until(Instant::now(), "all pods let go", |load| load.let_go.len() == load.pods.len())
            .await
            .map(|_| ())
    }

    /// Removes everything, so that the next turn finds the same state as this one.
    pub(crate) async fn close(self) -> Result<(), String> {
        let Self { client, namespace, .. } = self;
        for path in [
            format!("/apis/batch/v1/namespaces/{namespace}/jobs?propagationPolicy=Background"),
            format!("/api/v1/namespaces/{namespace}/pods"),
            format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"),
        ] {
            send(&client, Method::DELETE, &path, JSON, &Value::Null).await?;
        }
        Ok(())
    }
}

fn see_job(seen: Seen<Object>) -> Sight {
    let Object { metadata, status } = seen.object;
    let complete = status.conditions.iter().any(|c| c.kind == "Complete" && c.status == "True");
    Sight::Job { name: metadata.name, active: status.active > 0, complete }
}

async fn succeed(client: &Client, namespace: &str, pod: &str) -> Result<(), String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/status");
    let body = json!({"status": {"phase": "Succeeded"}});
    send(client, Method::PATCH, &path, STRATEGIC, &body).await.map(|_| ())
}

/// Terminates every pod as soon as it exists. Dropping it stops it.
pub(crate) struct Kubelet(Vec<JoinHandle<()>>);

impl Kubelet {
    pub(crate) async fn start(client: &Client, namespace: &str) -> Result<Self, String> {
        let (tell, pods) = mpsc::unbounded_channel();
        watch(
            client,
            format!("/api/v1/namespaces/{namespace}/pods"),
            move |seen: Result<Seen<Object>, _>| match seen {
                Ok(seen) if seen.object.status.phase == "Pending" => {
                    tell.send(seen.object.metadata.name).is_ok()
                }
                Ok(_) => true,
                Err(_) => false,
            },
        )
        .await?;
        let pods = std::sync::Arc::new(tokio::sync::Mutex::new(pods));
        let hand = |_| {
            let (client, namespace, pods) = (client.clone(), namespace.to_owned(), pods.clone());
            tokio::spawn(async move {
                loop {
                    let next = pods.lock().await.recv().await;
                    let Some(pod) = next else { return };
                    if let Err(problem) = succeed(&client, &namespace, &pod).await {
                        eprintln!("{problem}");
                    }
                }
            })
        };
        Ok(Self((0..AT_ONCE).map(hand).collect()))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        for hand in &self.0 {
            hand.abort();
        }
    }
}
