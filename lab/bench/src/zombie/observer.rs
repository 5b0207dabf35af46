//! Watches when each pod of a set is recovered, by any contender.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use salvor_testkit::ControlPlane;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::world::Consent;
use crate::watching::{Seen, Versioned, watch};

/// A storm that is not over by then has failed.
const GIVE_UP: Duration = Duration::from_secs(300);
/// Events are the only writes that a contender may drop: the observer waits for them this long after the last pod.
const EVENTS_WITHIN: Duration = Duration::from_secs(10);

/// The observations of a set of pods.
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
    /// The watch failed.
    Blind(String),
}

/// Two open watches: of the pods and of the events of one namespace.
pub(crate) struct Observer {
    sights: mpsc::UnboundedReceiver<(Instant, Sight)>,
    awaited: HashSet<String>,
}

/// The fields that are read from an object of either watch.
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

impl Versioned for SeenObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
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

impl Observer {
    /// Starts to watch; changes from now on are seen.
    pub(crate) async fn start(
        plane: &ControlPlane,
        namespace: &str,
        awaited: HashSet<String>,
        consent: Consent,
    ) -> Result<Self, String> {
        let client = plane.admin().client("bench-observer");
        let (tell, sights) = mpsc::unbounded_channel();
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let tell_pod = tell.clone();
        watch(&client, pods, move |seen: Result<Seen<SeenObject>, String>| {
            let sight = match seen {
                Ok(Seen { kind, object }) => {
                    let recovered = match consent {
                        Consent::Terminate => object.status.phase == "Failed",
                        Consent::Delete => kind == "DELETED",
                    };
                    recovered.then_some(Sight::Recovered(object.metadata.name))
                }
                Err(problem) => Some(Sight::Blind(problem)),
            };
            sight.is_none_or(|sight| tell_pod.send((Instant::now(), sight)).is_ok())
        })
        .await?;
        let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        watch(&client, events, move |seen: Result<Seen<SeenObject>, String>| {
            let told = |seen: Seen<SeenObject>| Sight::Told(seen.object.regarding.name);
            tell.send((Instant::now(), seen.map_or_else(Sight::Blind, told))).is_ok()
        })
        .await?;
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
