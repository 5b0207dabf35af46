//! Compares the clocks of the API servers, of this machine and of kubelets, by the Leases that kubelets renew.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::finding::{Check, Finding, Severity, count, some_of};

/// A smaller difference is normal: `Date` has a resolution of a second, and the request takes time.
const ORDINARY: SignedDuration = SignedDuration::from_secs(5);
/// A kubelet retries for this long if the server does not answer, with the original timestamp.
const SLOW_WRITE: SignedDuration = SignedDuration::from_secs(15);
/// Without a renewal for this long beyond the Lease duration, every node lifecycle controller considers a node lost.
const SURELY_LOST: SignedDuration = SignedDuration::from_mins(2);

/// The API server's clock, as seen from this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerTime {
    /// A lower bound of its time at the last request.
    pub(super) now: Timestamp,
    /// A lower and an upper bound of how far it is ahead of this machine.
    pub(super) ahead: (SignedDuration, SignedDuration),
    /// The number of different clocks in its answers.
    pub(super) clocks: usize,
}

#[derive(Clone, Debug)]
pub(super) struct KubeletLease {
    pub(super) node: String,
    pub(super) node_is_ready: bool,
    /// The time that the kubelet wrote.
    renewed: Timestamp,
    /// When the API server received the write, by its own clock. It records this in managedFields for most writers.
    written: Option<Timestamp>,
    pub(super) lasts: SignedDuration,
}

impl KubeletLease {
    pub(super) fn read(lease: &Value, node_is_ready: bool) -> Option<Self> {
        let time = |value: &Value| value.as_str()?.parse::<Timestamp>().ok();
        let writes_it = |entry: &&Value| entry.pointer("/fieldsV1/f:spec/f:renewTime").is_some();
        let writers = lease["metadata"]["managedFields"].as_array();
        Some(Self {
            node: lease["metadata"]["name"].as_str()?.to_owned(),
            node_is_ready,
            renewed: time(&lease["spec"]["renewTime"])?,
            written: writers.into_iter().flatten().filter(writes_it).filter_map(|it| time(&it["time"])).max(),
            lasts: SignedDuration::from_secs(lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(0)),
        })
    }

    /// How far the kubelet's clock is ahead of the API server's; negative if it is behind. `None` if the difference is
    /// normal.
    fn ahead(&self, now: Timestamp) -> Option<SignedDuration> {
        let seen = match self.written {
            Some(written) => self.renewed.duration_since(written),
            // The time of the write is unknown, except that it was before now.
            None if self.renewed > now => self.renewed.duration_since(now),
            None if self.node_is_ready && self.is_overdue(now) => self.renewed.duration_since(now),
            None => SignedDuration::ZERO,
        };
        (seen > ORDINARY || seen < -SLOW_WRITE).then_some(seen)
    }

    fn is_overdue(&self, now: Timestamp) -> bool {
        now.duration_since(self.renewed) > self.lasts.saturating_add(SURELY_LOST)
    }

    /// Whether the Lease has not been renewed for a long time by the server's clock, although the node still counts as
    /// Ready.
    pub(super) fn is_unnoticed(&self, now: Timestamp) -> bool {
        let silent =
            |written: Timestamp| now.duration_since(written) > self.lasts.saturating_add(SURELY_LOST);
        self.node_is_ready && self.written.is_some_and(silent)
    }
}

pub(super) fn check(server: &ServerTime, leases: &[KubeletLease]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |what: String, why: &str, fix: &str| {
        findings.push(Finding::new(Severity::Warning, Check::Clocks, what, why, fix));
    };
    if server.clocks > 1 {
        add(
            format!("answers of the API server tell {} different times", server.clocks),
            "Salvor goes by the earliest, so waits last longer, and does nothing irreversible for a while after they began to differ",
            "Synchronise the clocks of the control plane's machines",
        );
    }
    let (least, most) = server.ahead;
    if least > ORDINARY || most < -ORDINARY {
        let (by, way) = if least > ORDINARY { (least, "ahead of") } else { (-most, "behind") };
        add(
            format!("the API server's clock is {} s {way} the clock of this machine", by.as_secs()),
            "Salvor goes by the API server's clock; but where it runs, times in logs and the certificates that it makes go by its machine's",
            "Synchronise both clocks",
        );
    }
    let skewed = |is_ahead: bool| -> Vec<String> {
        let of = leases.iter().filter_map(|lease| Some((lease, lease.ahead(server.now)?)));
        let of = of.filter(|(_, ahead)| ahead.is_positive() == is_ahead);
        of.map(|(lease, ahead)| format!("{} by {} s", lease.node, ahead.abs().as_secs())).collect()
    };
    let (ahead, behind) = (skewed(true), skewed(false));
    if !ahead.is_empty() {
        add(
            format!(
                "{} with a clock that is ahead, by their Leases: {}",
                count(ahead.len(), "node"),
                some_of(&ahead)
            ),
            "a Lease from the future tells nothing: Salvor waits until it has not changed for as long as it lasts",
            "Synchronise the clocks of these machines",
        );
    }
    if !behind.is_empty() {
        add(
            format!(
                "{} with a clock that is behind, by their Leases: {}",
                count(behind.len(), "node"),
                some_of(&behind)
            ),
            "its Lease looks as if its kubelet were dead; Salvor finds out that it is not only by watching it change",
            "Synchronise the clocks of these machines",
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-11-16T10:00:00Z";

    fn lease(renewed: &str, written: Option<&str>, ready: bool) -> KubeletLease {
        let fields = json!([{"time": written, "fieldsV1": {"f:spec": {"f:renewTime": {}}}}]);
        let lease = json!({
            "metadata": {"name": "n", "managedFields": fields},
            "spec": {"renewTime": renewed, "leaseDurationSeconds": 40},
        });
        KubeletLease::read(&lease, ready).unwrap()
    }

    #[test]
    fn a_kubelets_clock_is_compared_with_when_the_server_took_its_word_in() {
        let now: Timestamp = NOW.parse().unwrap();
        for (renewed, written, ready, expected) in [
            ("2026-11-16T09:59:59.5Z", Some("2026-11-16T09:59:59Z"), true, None),
            // The Lease of a dead node is old, which says nothing about clocks.
            ("2026-11-16T08:00:00Z", Some("2026-11-16T08:00:01Z"), false, None),
            ("2026-11-16T09:50:00Z", Some("2026-11-16T09:59:59Z"), true, Some(-599)),
            ("2026-11-16T10:09:59Z", Some("2026-11-16T09:59:59Z"), true, Some(600)),
            ("2026-11-16T10:01:00Z", None, true, Some(60)),
            ("2026-11-16T09:59:30Z", None, true, None),
            ("2026-11-16T09:50:00Z", None, true, Some(-600)),
            ("2026-11-16T09:50:00Z", None, false, None),
        ] {
            let ahead = lease(renewed, written, ready).ahead(now).map(|it| it.as_secs());
            assert_eq!(ahead, expected, "{renewed} {written:?}");
        }
    }

    #[test]
    fn a_ready_node_that_nobody_has_heard_of_was_not_noticed() {
        let now: Timestamp = NOW.parse().unwrap();
        let old = "2026-11-16T09:00:00Z";
        assert!(lease(old, Some(old), true).is_unnoticed(now));
        assert!(!lease(old, Some(old), false).is_unnoticed(now));
        assert!(!lease(old, Some(NOW), true).is_unnoticed(now));
    }

    #[test]
    fn clocks_of_servers_and_of_this_machine_are_compared() {
        let now: Timestamp = NOW.parse().unwrap();
        let number = |seconds: i64, clocks: usize| {
            let ahead = (SignedDuration::from_secs(seconds - 1), SignedDuration::from_secs(seconds));
            check(&ServerTime { now, ahead, clocks }, &[]).len()
        };
        assert_eq!(
            (number(0, 1), number(4, 1), number(60, 1), number(-60, 1), number(0, 2)),
            (0, 0, 1, 1, 1)
        );
    }
}
