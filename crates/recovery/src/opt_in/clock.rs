//! What a lost node costs a pod in time, with the wait of its opt-in and without.

use std::fmt;

use salvor_api::GoDuration;
use salvor_api::names::{annotations, taints};
use serde_json::Value;

use super::kinds::Kind;

/// From the crash of a node until it is unreachable, with default settings of the control plane: 50 seconds of
/// silence, of which some have passed since the last renewal.
const DETECT: GoDuration = GoDuration::from_secs(47);
/// Kubernetes' default of `tolerationSeconds` for unreachable nodes.
const TOLERATION: u64 = 300;
/// Kubernetes' default of `terminationGracePeriodSeconds`.
const GRACE: u64 = 30;
/// The default of `failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod`.
const WAIT: GoDuration = GoDuration::from_secs(60);

/// The time from the crash of a node until its pods are replaced, and of what it consists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The wait that the pod asks for. None if it cannot be read.
    evict_after: Option<GoDuration>,
    /// None if the pod tolerates unreachable nodes forever.
    toleration: Option<GoDuration>,
    /// The grace period and the wait after it, if the controller waits for the pod's end.
    end: Option<(GoDuration, GoDuration)>,
}

impl Clock {
    pub(super) fn of(template: &Value, by: Option<Kind>) -> Self {
        let annotation = |key: &str| {
            let text = template["metadata"]["annotations"][key].as_str();
            text.and_then(|text| text.parse::<GoDuration>().ok()).filter(|wait| !wait.is_negative())
        };
        let spec = &template["spec"];
        let grace = seconds(spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(GRACE));
        let wait = annotation(annotations::TERMINATION_GRACE_AFTER).unwrap_or(WAIT);
        Self {
            evict_after: annotation(annotations::EVICT_AFTER),
            toleration: toleration(&spec["tolerations"]),
            end: by.is_none_or(Kind::waits_for_the_end).then_some((grace, wait)),
        }
    }
}

fn seconds(count: u64) -> GoDuration {
    GoDuration::from_secs(u32::try_from(count).unwrap_or(u32::MAX))
}

/// How long a pod stays on an unreachable node before Kubernetes deletes it.
fn toleration(all: &Value) -> Option<GoDuration> {
    let mut shortest: Option<Option<u64>> = None;
    for toleration in all.as_array().into_iter().flatten() {
        let exists = toleration["operator"] == "Exists";
        let key = toleration["key"].as_str().unwrap_or_default();
        let effect = toleration["effect"].as_str().unwrap_or_default();
        // The taint has no value, so `Equal` matches it only without one.
        let matches_value = exists || toleration["value"].as_str().unwrap_or_default().is_empty();
        let matches_key = key == taints::UNREACHABLE || (key.is_empty() && exists);
        if matches_key && matches_value && (effect.is_empty() || effect == taints::NO_EXECUTE) {
            let asked =
                toleration["tolerationSeconds"].as_i64().map(|it| u64::try_from(it).unwrap_or_default());
            shortest = Some(match (shortest, asked) {
                (None | Some(None), asked) => asked,
                (Some(Some(known)), None) => Some(known),
                (Some(Some(known)), Some(asked)) => Some(known.min(asked)),
            });
        }
    }
    shortest.unwrap_or(Some(TOLERATION)).map(seconds)
}

fn sum(all: impl IntoIterator<Item = GoDuration>) -> GoDuration {
    let nanos = all.into_iter().fold(0_i64, |sum, it| sum.saturating_add(it.as_nanos()));
    GoDuration::from_nanos(nanos)
}

/// A duration without trailing zeros: `5m` instead of `5m0s`. Go reads both.
pub(super) fn shown(duration: GoDuration) -> String {
    let text = duration.to_string();
    let text = text.strip_suffix("m0s").map_or(text.clone(), |rest| format!("{rest}m"));
    text.strip_suffix("h0m").map_or(text.clone(), |rest| format!("{rest}h"))
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.evict_after {
            Some(wait) => {
                let all = shown(sum([DETECT, wait]));
                write!(
                    f,
                    "a lost node costs {all}: detect {}, evict-after {}; ",
                    shown(DETECT),
                    shown(wait)
                )?;
            }
            None => f.write_str("salvor.dev/evict-after is not a duration; ")?,
        }
        let Some(toleration) = self.toleration else {
            return f.write_str(
                "without evict-after it costs forever, because it tolerates unreachable nodes forever",
            );
        };
        let end = self.end.iter().flat_map(|(grace, wait)| [*grace, *wait]);
        let all = shown(sum([DETECT, toleration].into_iter().chain(end)));
        write!(
            f,
            "without evict-after it costs {all}: detect {}, toleration {}",
            shown(DETECT),
            shown(toleration)
        )?;
        match self.end {
            Some((grace, wait)) => write!(f, ", grace {}, wait {}", shown(grace), shown(wait)),
            None => Ok(()),
        }
    }
}
