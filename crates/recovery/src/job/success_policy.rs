//! Whether enough indexes have succeeded by the Job's own rules.

use super::indexes::Indexes;
use super::views::SuccessPolicy;

/// The position of the first rule that is met.
pub(super) fn matched(policy: Option<&SuccessPolicy>, succeeded: &Indexes) -> Option<usize> {
    policy?.rules.iter().position(|rule| {
        let asked = rule.succeeded_indexes.as_ref().map(|text| Indexes::parse(text, u32::MAX));
        let needed = rule.succeeded_count.map(|count| u32::try_from(count).unwrap_or(0));
        match (asked, needed) {
            (Some(asked), None) => asked.minus(succeeded).is_empty(),
            (Some(asked), Some(needed)) => asked.intersection(succeeded).len() >= needed,
            (None, Some(needed)) => succeeded.len() >= needed,
            (None, None) => false,
        }
    })
}
