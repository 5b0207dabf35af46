//! Reads the history of a cluster, revision by revision, and reports what an AppWrapper must never do.

pub(super) use salvor_simulate::audit::appwrapper::{Rule, holds};

use salvor_simulate::audit::appwrapper::Audit;

use crate::stage::Happening;

/// All problems in a history, one line each, except for rules that the user of this story breaks.
pub(super) fn problems(history: &[Happening], retry_limit: i64, but: &[Rule]) -> Vec<String> {
    let mut audit = Audit::new(retry_limit);
    let wrong = history.iter().enumerate().flat_map(|(line, Happening { at, change, resource, object })| {
        audit.read(line, *at, *change, resource, object)
    });
    let wrong = wrong.filter(|(rule, _)| !but.contains(rule));
    wrong.map(|(rule, text)| format!("{rule:?}: {text}")).collect()
}
