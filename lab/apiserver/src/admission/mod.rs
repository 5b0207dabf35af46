//! Admission webhooks: which webhooks review a write, in which order, and what their answers mean.
//!
//! The server does no I/O, so it cannot call a webhook. A request that needs an answer it does not have changes nothing
//! and returns the calls instead ([`Hearing`](hearing::Hearing)). The caller makes the calls and starts the request
//! again with the answers. If the object has changed meanwhile, the review differs and the webhook is called again, as
//! on the real server.

mod conditions;
pub(crate) mod hearing;
mod hooks;
mod review;
mod subject;
pub(crate) mod webhooks;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::environment::Environment;
use crate::kinds::events;
use crate::kinds::table::Resource;
use crate::patch::json_patch;
use crate::protocol::status::Refusal;
use crate::state::{self, Core};

use hooks::{Flow, Hook};
use review::Verdict;
pub(crate) use subject::{Body, Operation, Subject};

pub(crate) fn has_hooks(core: &Core) -> bool {
    [Flow::Mutating, Flow::Validating].into_iter().any(|flow| hooks::are_there(core, flow))
}

/// Calls the mutating webhooks and applies their changes to the subject. Returns whether there are any.
pub(crate) fn mutate(
    core: &Core,
    subject: &mut Subject<'_>,
    environment: &mut Environment<'_>,
) -> Result<bool, Refusal> {
    let hooks = hooks::all(core, Flow::Mutating);
    if hooks.is_empty() || subject.is_exempt() {
        return Ok(false);
    }
    let mut is_changed = false;
    // Webhooks that want to see changes made by later webhooks (reinvocationPolicy).
    let mut called: BTreeSet<usize> = BTreeSet::new();
    let mut to_call_again: BTreeSet<usize> = BTreeSet::new();
    for is_second_round in [false, true] {
        for (index, hook) in hooks.iter().enumerate() {
            let Some(seen_as) = hook.sees(core, subject)? else { continue };
            if is_second_round && !to_call_again.contains(&index) {
                continue;
            }
            if ask(core, hook, &seen_as, subject, environment)? {
                is_changed = true;
                to_call_again.append(&mut called);
            }
            if hook.wants_reinvocation() {
                called.insert(index);
            }
        }
        if to_call_again.is_empty() {
            break;
        }
    }
    Ok(is_changed)
}

/// Calls one mutating webhook, and applies its patch. Returns whether that changed the object.
fn ask(
    core: &Core,
    hook: &Hook,
    seen_as: &Arc<Resource>,
    subject: &mut Subject<'_>,
    environment: &mut Environment<'_>,
) -> Result<bool, Refusal> {
    let asked = review::of(hook, seen_as, subject, environment);
    let answer = environment.hearing.answer_to(hook.call(core, asked.encoded())).ok_or_else(unanswered)?;
    let verdict = review::read(hook, &asked, answer);
    let Some(patch) = weigh(hook, verdict, environment)? else { return Ok(false) };
    let (Some(before), Some(shown)) = (subject.body.object(), asked.object()) else {
        let why = format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
            hook.name()
        );
        return Err(Refusal::internal(why));
    };
    let mut patched = shown.clone();
    json_patch::apply(&mut patched, &patch).map_err(|failure| match failure {
        json_patch::Failure::Malformed(why) => Refusal::internal(why),
        json_patch::Failure::DoesNotApply => {
            Refusal::internal(format!("the patch of admission webhook {:?} does not apply", hook.name()))
        }
    })?;
    let patched = match &subject.body {
        Body::Typed { .. } => patched,
        Body::Stored { .. } => stored_form(seen_as, patched)?,
    };
    if patched == *before {
        return Ok(false);
    }
    match &mut subject.body {
        Body::Typed { object, .. } => *object = patched,
        Body::Stored { object, .. } => *object = Some(patched),
    }
    Ok(true)
}

/// An object as a webhook left it, in its stored form: unknown fields are dropped.
fn stored_form(resource: &Resource, patched: Value) -> Result<Value, Refusal> {
    let mut dropped = Vec::new();
    let value = state::normalise(resource, patched, &mut dropped)
        .map_err(|refusal| Refusal::internal(refusal.message()))?;
    let value = match resource.custom {
        Some(_) => crate::custom::prune_noting(resource, value, &mut dropped),
        None => value,
    };
    Ok(events::to_stored(resource, value))
}

/// Calls all validating webhooks. The first refusal wins, in the order of their names.
pub(crate) fn validate(
    core: &Core,
    subject: &Subject<'_>,
    environment: &mut Environment<'_>,
) -> Result<(), Refusal> {
    let hooks = hooks::all(core, Flow::Validating);
    if hooks.is_empty() || subject.is_exempt() {
        return Ok(());
    }
    let mut answers = Vec::new();
    for hook in &hooks {
        let Some(seen_as) = hook.sees(core, subject)? else { continue };
        let asked = review::of(hook, &seen_as, subject, environment);
        let answer = environment.hearing.answer_to(hook.call(core, asked.encoded()));
        answers.push((hook, asked, answer));
    }
    // All calls are known now; an open one keeps all other answers from counting.
    let mut verdicts = Vec::new();
    for (hook, asked, answer) in answers {
        verdicts.push((hook, review::read(hook, &asked, answer.ok_or_else(unanswered)?)));
    }
    for (hook, verdict) in verdicts {
        weigh(hook, verdict, environment)?;
    }
    Ok(())
}

/// Ends a request that waits for a webhook. No client ever sees this error.
fn unanswered() -> Refusal {
    Refusal::internal("a webhook has not answered yet")
}

/// The effect of a verdict on the request: a patch or nothing if it continues, or the refusal.
fn weigh(hook: &Hook, verdict: Verdict, environment: &mut Environment<'_>) -> Result<Option<Value>, Refusal> {
    match verdict {
        Verdict::Allowed { patch, warnings } => {
            environment.hearing.warn(warnings);
            Ok(patch)
        }
        Verdict::Refused { refusal, warnings } => {
            environment.hearing.warn(warnings);
            Err(refusal)
        }
        Verdict::Failed(_) if hook.fails_open() => Ok(None),
        Verdict::Failed(why) => {
            Err(Refusal::internal(format!("failed calling webhook {:?}: {why}", hook.name())))
        }
    }
}

pub(crate) fn deletion(
    core: &Core,
    mut subject: Subject<'_>,
    environment: &mut Environment<'_>,
) -> Result<(), Refusal> {
    mutate(core, &mut subject, environment)?;
    validate(core, &subject, environment)
}

/// Calls all webhooks for an object that is sent but not stored. Returns it as they left it.
pub(crate) fn typed(
    core: &Core,
    mut subject: Subject<'_>,
    environment: &mut Environment<'_>,
) -> Result<Value, Refusal> {
    mutate(core, &mut subject, environment)?;
    validate(core, &subject, environment)?;
    Ok(subject.body.object().cloned().unwrap_or_else(|| json!({})))
}
