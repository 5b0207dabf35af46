//! The reference page of metrics.

use std::fmt::Write;

use super::{Description, FIRST, LAST};
use crate::recoveries::recoveries;

/// The reference page of all metrics, as markdown.
pub fn reference() -> String {
    let mut page = String::from(
        "# Metrics\n\nServed at `/metrics` on the address given by `bind`. Made from the code by `salvor`; do not edit.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    let of_recoveries = recoveries().flat_map(|entry| entry.metrics);
    for Description { name, kind, labels, help } in FIRST.iter().chain(of_recoveries).chain(LAST) {
        let suffix = if *kind == "counter" { "_total" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| `{name}{suffix}` | {kind} | {labels} | {help}. |");
    }
    page
}
