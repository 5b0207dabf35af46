//! The decision of zombie recovery about a pod and node that another caller has read: for `salvor why`, which has many
//! of them at once.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use salvor_api::config::Configuration;
use salvor_recovery::{
    Verdict,
    brake::{Held, Outage},
    liveness::Heartbeat,
    pause::Pause,
    zombie::{Disabled, NodeView, PodWhy, ZombiePolicy, decide_pod},
};

use super::recheck::{parse_pod, see_at_first_sight};
use crate::{
    client::live,
    lead::{brake_of, pause::paused},
};

/// The objects that a verdict on a pod depends on, as JSON.
#[derive(Clone, Copy, Debug)]
pub struct PodObjects<'a> {
    pub pod: &'a str,
    pub node: Option<&'a str>,
    /// The Lease of that node's kubelet, if there is one.
    pub node_lease: Option<&'a str>,
    /// The Lease of Salvor's election, if there is one: it carries the pause and the brake state.
    pub election: Option<&'a Lease>,
}

/// The results of zombie recovery for a pod. Each field is valid whatever the preceding ones say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVerdict {
    /// Why its owner has not consented, in the words of `explain`; `None` if they have.
    pub without_consent: Option<String>,
    /// Why the recovery writes nothing at all; `None` if it would.
    pub off: Option<String>,
    /// What it would do if it had consent and were enabled.
    pub next: Next,
    /// The same in the words of `explain`.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The pod does not concern it.
    Nothing,
    Waits(Timestamp),
    Held {
        /// If that is known.
        until: Option<Timestamp>,
        /// True if a user has paused Salvor.
        paused: bool,
        /// True if too many nodes are lost.
        outage: bool,
    },
    Acts,
    /// Everything that its owner consented to is done.
    Done,
}

/// Why zombie recovery writes nothing at all with a configuration; `None` if it would.
pub fn why_off(configuration: &Configuration) -> Option<String> {
    match (ZombiePolicy::new(configuration).disabled, configuration.dry_run) {
        (Some(Disabled::Gate), _) => Some("feature gate FailureRecoveryPolicy is off".to_owned()),
        (Some(Disabled::Controllers), _) => Some("controller zombie is not enabled".to_owned()),
        (None, true) => Some("it runs in a dry run, which writes nothing".to_owned()),
        (None, false) => None,
    }
}

/// Decodes a node, with the heartbeat that its Lease, or its `Ready` condition, shows at a glance.
fn see_with_heartbeat(
    node: &str,
    lease: Option<&str>,
    now: Timestamp,
) -> Result<NodeView, serde_json::Error> {
    let mut view = see_at_first_sight(node, now)
        .map_err(|error| -> serde_json::Error { serde::de::Error::custom(error) })?;
    let lease = lease.map(live::read_node_lease).transpose()?.flatten();
    view.heartbeat = Heartbeat::at_a_glance(lease.or(view.ready_heartbeat), now);
    Ok(view)
}

/// The heartbeat of a node's kubelet, in words; `None` if it is silent. It is evaluated as recoveries do, from the
/// texts of its Node and its Lease.
///
/// # Errors
/// If one of the objects cannot be decoded.
pub fn heartbeat_of_kubelet(
    node: &str,
    lease: Option<&str>,
    now: Timestamp,
) -> Result<Option<String>, serde_json::Error> {
    let heartbeat = see_with_heartbeat(node, lease, now)?.heartbeat;
    Ok(heartbeat.alive_until(now).map(|_| heartbeat.to_string()))
}

/// True if a pod is given up when its node is lost, although nothing deletes it: `salvor.dev/evict-after`.
///
/// # Errors
/// If the pod cannot be decoded.
pub fn gives_up_without_deletion(
    pod: &str,
    configuration: &Configuration,
) -> Result<bool, serde_json::Error> {
    let pod = parse_pod(pod).map_err(|error| -> serde_json::Error { serde::de::Error::custom(error) })?;
    let runs = !pod.phase.is_terminal() || pod.mark.is_some();
    Ok(runs && ZombiePolicy::new(configuration).gives_up_without_deletion(&pod.consent))
}

/// Decides about a pod by the rules that act, from objects that were already read.
///
/// # Errors
/// If one of the objects cannot be decoded.
pub fn pod_verdict(
    seen: PodObjects<'_>,
    configuration: &Configuration,
    now: Timestamp,
) -> Result<PodVerdict, serde_json::Error> {
    let unread = |error: kube::Error| serde::de::Error::custom(error);
    let mut pod = parse_pod(seen.pod).map_err(unread)?;
    (pod.announced, pod.wait_told, pod.evict_told) = (true, true, true);
    // Its Job was not read here.
    pod.job = None;
    let node = seen.node.map(|node| see_with_heartbeat(node, seen.node_lease, now)).transpose()?;
    let off = why_off(configuration);
    let mut policy = ZombiePolicy::new(configuration);
    policy.disabled = None;
    let decision = decide_pod(&pod, node.as_ref(), &policy, now);
    let decision = match seen.election.and_then(|lease| paused(lease, now)) {
        Some(paused) => decision.held_back(Held::Paused { pause: Box::new(Pause::read(paused)) }),
        None => {
            brake_of(configuration.brake.clone(), seen.election, now).review(now, decision, Outage::Holds)
        }
    };
    let why = decision.verdict.why();
    let mut without_consent = None;
    let next = match &decision.verdict {
        Verdict::Wait { until, .. } => Next::Waits(*until),
        Verdict::Blocked { by, .. } => Next::Held {
            until: by.until(),
            paused: matches!(by, Held::Paused { .. }),
            outage: matches!(by, Held::MaxUnreachablePercent { .. } | Held::ZoneDown { .. }),
        },
        Verdict::Act { .. } => Next::Acts,
        Verdict::Ignore(why) => match why {
            PodWhy::NotOptedIn { .. } => {
                without_consent = Some(why.to_string());
                Next::Nothing
            }
            PodWhy::AlreadyRecovered { .. } | PodWhy::AlreadyTerminal { .. } => Next::Done,
            PodWhy::Disabled(_)
            | PodWhy::NotTerminating { .. }
            | PodWhy::Unannounced
            | PodWhy::NotScheduled
            | PodWhy::NodeMissing { .. }
            | PodWhy::NodeReachable { .. }
            | PodWhy::NodeReady { .. }
            | PodWhy::UnreadableWait(_)
            | PodWhy::UnreadableEvictAfter(_)
            | PodWhy::EvictAfterRunning { .. }
            | PodWhy::GraceRunning { .. }
            | PodWhy::UnreachableTooBriefly { .. }
            | PodWhy::KubeletAlive { .. }
            | PodWhy::JobUnread { .. }
            | PodWhy::JobUnreadable { .. }
            | PodWhy::JobWouldFail { .. }
            | PodWhy::RaisesBackoffLimit { .. }
            | PodWhy::AwaitsBackoffLimit { .. }
            | PodWhy::Zombie(_)
            | PodWhy::HalfRecovered(_) => Next::Nothing,
        },
    };
    let message = match &decision.verdict {
        Verdict::Blocked { by, .. } => by.to_string(),
        Verdict::Ignore(_) | Verdict::Wait { .. } | Verdict::Act { .. } => why.to_string(),
    };
    Ok(PodVerdict { without_consent, off, next, message })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_question_is_answered_whatever_the_one_before_it_says() {
        let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
        let pod = |annotations| {
            json!({
                "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1", "annotations": annotations,
                    "deletionTimestamp": "2026-11-16T09:59:50Z", "deletionGracePeriodSeconds": 30},
                "spec": {"nodeName": "n"}, "status": {"phase": "Running"},
            })
            .to_string()
        };
        let taint = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-16T09:50:00Z"});
        let node = json!({
            "metadata": {"name": "n", "uid": "n", "resourceVersion": "1"}, "spec": {"taints": [taint]},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        })
        .to_string();
        let lease = json!({"spec": {"renewTime": "2026-11-16T09:49:00.000000Z", "leaseDurationSeconds": 40}})
            .to_string();
        let look = |annotations, gate: bool| {
            let text = format!(
                "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\nfeatureGates: {{FailureRecoveryPolicy: {gate}}}\n"
            );
            let configuration = salvor_api::config::parse(&text).unwrap();
            let pod = pod(annotations);
            let seen = PodObjects { pod: &pod, node: Some(&node), node_lease: Some(&lease), election: None };
            pod_verdict(seen, &configuration, now).unwrap()
        };
        let unconsented_pod = look(json!({}), false);
        assert!(
            unconsented_pod.without_consent.is_some() && unconsented_pod.off.is_some(),
            "{unconsented_pod:?}"
        );
        let consents = json!({"kueue.x-k8s.io/safe-to-forcefully-delete": "true"});
        let off = look(consents.clone(), false);
        assert!(off.without_consent.is_none() && off.off.is_some(), "{off:?}");
        let waits = look(consents, true);
        assert!(waits.off.is_none() && matches!(waits.next, Next::Waits(until) if until > now), "{waits:?}");
    }
}
