//! Writes on pods that more than one recovery requests.

use std::fmt;

use jiff::Timestamp;
use salvor_api::names::reasons;
use serde::Serialize;

use crate::event::Condition;
use crate::objects::{PodPhase, PodRef};
use crate::step::{Changed, Delete, Guard, Merge, Patch, Step, Verb, Write};

/// The condition of a pod that serves. Kubernetes' own.
const READY: &str = "Ready";

/// Patches the pod's status: sets conditions to `True`, and the phase if there is one. If the end of its work is known,
/// `Ready` is False since then: containers are not reported as terminated, because an invented exit code would match
/// rules of a podFailurePolicy. Foreign conditions stay.
pub(crate) fn patch_status<'a, S: Step>(
    step: &'a S,
    guard: Guard<'a>,
    phase: Option<PodPhase>,
    conditions: &[Condition],
    ended: Option<Timestamp>,
) -> Result<Write<'a>, Changed> {
    let holds = conditions.iter().map(|c| PodCondition {
        kind: c.kind,
        status: "True",
        reason: c.reason,
        message: &c.message,
        last_transition_time: c.last_transition_time,
    });
    let not_ready = ended.map(|at| PodCondition {
        kind: READY,
        status: "False",
        reason: reasons::TERMINATION_BY_SALVOR,
        message: "The node of the pod showed its last sign of life at this time",
        last_transition_time: at,
    });
    let status =
        PodStatus { conditions: holds.chain(not_ready).collect(), phase: phase.map(PodPhase::as_str) };
    // Strategic: conditions are merged by their type, so foreign ones stay without being read.
    Ok(Write::of(step, guard, Verb::Patch(Patch::status(Merge::Strategic, &status)?)))
}

/// Deletes the pod, if it is still in the state that the decision rests on.
pub(crate) fn delete<'a, S: Step>(step: &'a S, guard: Guard<'a>, how: Delete) -> Write<'a> {
    Write::of(step, guard, Verb::Delete(how))
}

/// The sentence for a change of a pod's status.
pub(crate) fn tell_patch(
    f: &mut fmt::Formatter<'_>,
    pod: &PodRef,
    phase: Option<PodPhase>,
    conditions: &[Condition],
) -> fmt::Result {
    write!(f, "patch the status of pod {pod}:")?;
    match phase {
        Some(phase) => write!(f, " phase {phase},")?,
        None => f.write_str(" phase kept,")?,
    }
    for (position, condition) in conditions.iter().enumerate() {
        let separator = if position == 0 { "" } else { "," };
        write!(f, "{separator} condition {}=True ({})", condition.kind, condition.reason)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct PodStatus<'a> {
    conditions: Vec<PodCondition<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodCondition<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
    last_transition_time: Timestamp,
}
