//! Decides whether enough indexes have succeeded under the Job's success policy.

use super::indexes::Indexes;
use super::views::SuccessPolicy;

/// The position of the first rule that is met. None is met before an index below `bound` has succeeded.
pub(super) fn matched(policy: Option<&SuccessPolicy>, succeeded: &Indexes, bound: u32) -> Option<usize> {
    let policy = policy.filter(|_| !succeeded.is_empty())?;
    policy.rules.iter().position(|rule| {
        let needed = rule.succeeded_count.map(|count| u32::try_from(count).unwrap_or(0));
        let Some(asked) = &rule.succeeded_indexes else {
            return needed.is_some_and(|needed| succeeded.len() >= needed);
        };
        // The API refuses a rule that cannot be read.
        let asked = Indexes::parse(asked, bound).unwrap_or_default();
        let reached = asked.intersection(succeeded).len();
        !asked.is_empty() && (reached == asked.len() || needed.is_some_and(|needed| reached >= needed))
    })
}
