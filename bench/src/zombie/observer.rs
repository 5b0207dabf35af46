//! Sees by watch when each pod of a set is recovered, whoever does it.

use std::{
    collections::HashSet,
    pin::Pin,
    time::{Duration, Instant},
};

use futures::{AsyncBufRead, AsyncBufReadExt};
use http::Request;
use kube::Client;
use salvor_testkit::ControlPlane;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::storm::Consent;

/// A storm that is not over by then has failed.
const GIVE_UP: Duration = Duration::from_secs(300);
/// Events are the one thing that a contender may drop: they are waited for this long after the last pod.
const EVENTS_WITHIN: Duration = Duration::from_secs(10);

/// What was seen of a set of pods.
#[derive(Debug)]
pub(crate) struct Observed {
    /// From the start until the last pod was recovered and the last event recorded.
    pub(crate) seconds: f64,
    /// From the start until each pod was recovered, in seconds, sorted.
    pub(crate) latencies: Vec<f64>,
    /// Pods without an event.
    pub(crate) untold: usize,
}

impl Observed {
    /// The latency that this share of the pods did not exceed.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let rank = (self.latencies.len() as f64 * share).ceil() as usize;
        self.latencies.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }
}

enum Sight {
    Recovered(String),
    Told(String),
    /// A watch cannot go on.
    Blind(String),
}

/// Two open watches: of the pods and of the events of one namespace.
pub(crate) struct Observer {
    sights: mpsc::UnboundedReceiver<(Instant, Sight)>,
    awaited: HashSet<String>,
}

/// What is read of an event of either watch.
#[derive(Deserialize)]
struct Seen {
    #[serde(rename = "type")]
    kind: String,
    object: SeenObject,
}

#[derive(Deserialize)]
struct SeenObject {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    status: Status,
    #[serde(default)]
    regarding: Named,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: String,
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: String,
}

#[derive(Deserialize)]
struct List {
    metadata: Meta,
}

impl Observer {
    /// Begins to watch; what happens from now on is seen.
    pub(crate) async fn start(
        plane: &ControlPlane,
        namespace: &str,
        awaited: HashSet<String>,
        consent: Consent,
    ) -> Result<Self, String> {
        let client = plane.admin().client("bench-observer");
        let (tell, sights) = mpsc::unbounded_channel();
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        watch(&client, pods, tell.clone(), move |Seen { kind, object }| {
            let recovered = match consent {
                Consent::Terminate => object.status.phase == "Failed",
                Consent::Delete => kind == "DELETED",
            };
            recovered.then_some(Sight::Recovered(object.metadata.name))
        })
        .await?;
        let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        watch(&client, events, tell, |seen| Some(Sight::Told(seen.object.regarding.name))).await?;
        Ok(Self { sights, awaited })
    }

    /// Waits until all pods are recovered and all events recorded.
    pub(crate) async fn until_done(mut self, start: Instant) -> Result<Observed, String> {
        let total = self.awaited.len();
        let mut untold = self.awaited.clone();
        let mut latencies = Vec::with_capacity(total);
        let mut last = start;
        while !self.awaited.is_empty() || !untold.is_empty() {
            let give_up = if self.awaited.is_empty() { last + EVENTS_WITHIN } else { start + GIVE_UP };
            let Ok(sight) = tokio::time::timeout_at(give_up.into(), self.sights.recv()).await else { break };
            let (at, sight) = sight.ok_or("the observer's watches ended")?;
            let new = match sight {
                Sight::Recovered(name) => {
                    let new = self.awaited.remove(&name);
                    latencies.extend(new.then(|| at.duration_since(start).as_secs_f64()));
                    new
                }
                Sight::Told(name) => untold.remove(&name),
                Sight::Blind(problem) => return Err(problem),
            };
            if new {
                last = last.max(at);
            }
        }
        if !self.awaited.is_empty() {
            let (left, seconds) = (self.awaited.len(), GIVE_UP.as_secs());
            return Err(format!("{left} of {total} pods are not recovered after {seconds} s"));
        }
        latencies.sort_by(f64::total_cmp);
        Ok(Observed { seconds: last.duration_since(start).as_secs_f64(), latencies, untold: untold.len() })
    }
}

/// Opens a watch from now on, and follows it until nobody listens.
async fn watch(
    client: &Client,
    path: String,
    tell: mpsc::UnboundedSender<(Instant, Sight)>,
    read: impl Fn(Seen) -> Option<Sight> + Send + 'static,
) -> Result<(), String> {
    let list = get(&path, "limit=1")?;
    let list = client.request_text(list).await.map_err(|e| format!("{path}: {e}"))?;
    let List { metadata } = serde_json::from_str(&list).map_err(|e| format!("{path}: {e}"))?;
    let mut revision = metadata.resource_version;
    let mut lines = open(client, &path, &revision).await?;
    let client = client.clone();
    tokio::spawn(async move {
        let mut line = Vec::new();
        loop {
            line.clear();
            let sight = match lines.read_until(b'\n', &mut line).await {
                Ok(bytes) if bytes > 0 && line.ends_with(b"\n") => {
                    match serde_json::from_slice::<Seen>(&line) {
                        Ok(seen) if seen.kind == "ERROR" => {
                            Some(Sight::Blind(String::from_utf8_lossy(&line).into()))
                        }
                        Ok(seen) => {
                            revision.clone_from(&seen.object.metadata.resource_version);
                            read(seen)
                        }
                        Err(error) => Some(Sight::Blind(format!("{path}: {error}"))),
                    }
                }
                // The server drops a watch that does not keep up; nothing is lost by going on from the last event.
                _ => match open(&client, &path, &revision).await {
                    Ok(again) => {
                        lines = again;
                        None
                    }
                    Err(problem) => Some(Sight::Blind(problem)),
                },
            };
            let blind = matches!(sight, Some(Sight::Blind(_)));
            let heard = sight.is_none_or(|sight| tell.send((Instant::now(), sight)).is_ok());
            if blind || !heard {
                return;
            }
        }
    });
    Ok(())
}

async fn open(
    client: &Client,
    path: &str,
    revision: &str,
) -> Result<Pin<Box<dyn AsyncBufRead + Send>>, String> {
    let request = get(path, &format!("watch=true&timeoutSeconds=900&resourceVersion={revision}"))?;
    Ok(Box::pin(client.request_stream(request).await.map_err(|e| format!("{path}: {e}"))?))
}

fn get(path: &str, query: &str) -> Result<Request<Vec<u8>>, String> {
    Request::get(format!("{path}?{query}")).body(Vec::new()).map_err(|e| e.to_string())
}
