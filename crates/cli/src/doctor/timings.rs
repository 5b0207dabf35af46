//! Compares who marks nodes as lost, and when: the settings of kube-controller-manager and kubelets with Salvor's.

use jiff::{SignedDuration, Timestamp};
use salvor_api::{Controller, GoDuration, config::Configuration};
use salvor_recovery::{expected, repair::Policy};
use serde_json::Value;

use super::clocks::KubeletLease;
use super::finding::{Check, Finding, Severity, count, some_of};

/// The default period at which the node lifecycle controller checks nodes.
const MONITOR_PERIOD: SignedDuration = SignedDuration::from_secs(5);
/// The default duration of a kubelet's Lease.
const LEASE_LASTS: SignedDuration = SignedDuration::from_secs(40);

/// The settings of kube-controller-manager, as far as its pod shows them.
#[derive(Clone, Debug, Default)]
pub(super) struct ControllerManager {
    /// The pod it was read from.
    place: String,
    arguments: Vec<String>,
}

impl ControllerManager {
    pub(super) fn read(pod: &Value) -> Option<Self> {
        let containers = pod["spec"]["containers"].as_array()?;
        let texts = |container: &Value, key: &str| -> Vec<String> {
            let list = container[key].as_array().into_iter().flatten();
            list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let arguments = containers.iter().flat_map(|container| {
            let mut all = texts(container, "command");
            all.extend(texts(container, "args"));
            all
        });
        let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
        Some(Self {
            place: format!("{}/{}", text("namespace"), text("name")),
            arguments: arguments.collect(),
        })
    }

    /// The value of a flag, as `--flag=value` or `--flag value`. The last one wins.
    fn flag(&self, name: &str) -> Option<&str> {
        let head = format!("--{name}");
        let mut found = None;
        for (index, argument) in self.arguments.iter().enumerate() {
            if let Some(rest) = argument.strip_prefix(&head) {
                match rest.strip_prefix('=') {
                    Some(value) => found = Some(value),
                    None if rest.is_empty() => found = self.arguments.get(index + 1).map(String::as_str),
                    None => {}
                }
            }
        }
        found
    }

    fn duration(&self, name: &str) -> Option<SignedDuration> {
        self.flag(name)?.parse::<GoDuration>().ok().map(SignedDuration::from)
    }

    /// Whether one of its controllers runs, by any of its names.
    fn runs(&self, names: &[&str]) -> bool {
        let list: Vec<&str> = self.flag("controllers").unwrap_or("*").split(',').map(str::trim).collect();
        let is =
            |entry: &&str, sign: &str| entry.strip_prefix(sign).is_some_and(|name| names.contains(&name));
        let named = list.iter().any(|entry| is(entry, ""));
        let left_out = list.iter().any(|entry| is(entry, "-"));
        named || (!left_out && list.contains(&"*"))
    }
}

#[derive(Debug)]
pub(super) struct Timings<'a> {
    /// `None` if it cannot be read.
    pub(super) manager: Option<&'a ControllerManager>,
    pub(super) minor: Option<u32>,
    pub(super) leases: &'a [KubeletLease],
    pub(super) policies: &'a [Policy],
    /// The API server's time. `None` if nodes were not read.
    pub(super) now: Option<Timestamp>,
}

pub(super) fn check(timings: &Timings<'_>, configuration: &Configuration) -> Vec<Finding> {
    let Timings { manager, minor, leases, policies, now } = timings;
    let on = |controller| configuration.controllers.enabled(controller);
    let of_nodes = on(Controller::Zombie) || on(Controller::Eviction);
    let mut findings = Vec::new();
    let mut add = |severity, what: String, why: &str, fix: String| {
        findings.push(Finding::new(severity, Check::Timings, what, why, fix));
    };
    if let Some(manager) = manager {
        let place = &manager.place;
        if of_nodes && !manager.runs(&["node-lifecycle-controller", "nodelifecycle"]) {
            add(
                Severity::Error,
                format!("kube-controller-manager ({place}) runs without its node lifecycle controller"),
                "nobody marks a node as unreachable, so no pod and no node is ever recovered",
                "Take node-lifecycle-controller out of what --controllers leaves out".to_owned(),
            );
        }
        if on(Controller::Job) && configuration.job.unmanaged_jobs && manager.runs(&["job-controller", "job"])
        {
            add(
                Severity::Error,
                format!("job.unmanagedJobs is set, and kube-controller-manager ({place}) runs its own Job controller"),
                "two controllers would run the same Jobs, and undo each other's work",
                "Start kube-controller-manager with --controllers=*,-job-controller, or set job.unmanagedJobs to false".to_owned(),
            );
        }
        let period = manager.duration("node-monitor-period").unwrap_or(MONITOR_PERIOD);
        let settle = SignedDuration::from(configuration.brake.settle_period);
        if of_nodes && configuration.brake.max_unreachable_percent > 0 && settle < period {
            add(
                Severity::Warning,
                format!(
                    "brake.settlePeriod={} is shorter than --node-monitor-period={} of kube-controller-manager ({place})",
                    words(settle),
                    words(period)
                ),
                "the brake lets go before it can be known that more nodes have come back",
                format!("Set brake.settlePeriod to {} or more", words(period.saturating_mul(2))),
            );
        }
    }
    let by_default = expected::default_monitor_grace(*minor);
    let told = manager.and_then(|manager| manager.duration("node-monitor-grace-period"));
    let (grace, source) = match told {
        Some(grace) => (grace, "--node-monitor-grace-period"),
        None => (by_default, "the default of --node-monitor-grace-period"),
    };
    let long: Vec<&str> =
        leases.iter().filter(|lease| lease.lasts > grace).map(|lease| lease.node.as_str()).collect();
    if of_nodes && !long.is_empty() {
        let lasts = leases.iter().map(|lease| lease.lasts).max().unwrap_or_default();
        add(
            Severity::Warning,
            format!(
                "{} with Leases that last longer (up to {}) than the {} after which a node is lost by {source}: {}",
                count(long.len(), "node"),
                words(lasts),
                words(grace),
                some_of(&long)
            ),
            "Salvor takes a kubelet for alive as long as its Lease lasts, so recoveries on these nodes begin later than the node is lost",
            "Set nodeLeaseDurationSeconds of these kubelets to less than --node-monitor-grace-period"
                .to_owned(),
        );
    }
    let unnoticed: Vec<&str> = now
        .iter()
        .flat_map(|now| leases.iter().filter(move |lease| lease.is_unnoticed(*now)))
        .map(|lease| lease.node.as_str())
        .collect();
    if of_nodes && !unnoticed.is_empty() {
        add(
            Severity::Warning,
            format!(
                "{} Ready although the Lease was not renewed for minutes: {}",
                if unnoticed.len() == 1 {
                    "1 node is".to_owned()
                } else {
                    format!("{} nodes are", unnoticed.len())
                },
                some_of(&unnoticed)
            ),
            "nobody has marked them as lost, and until somebody does nothing on them is recovered",
            "See whether the node lifecycle controller of kube-controller-manager runs".to_owned(),
        );
    }
    if on(Controller::Repair) {
        for policy in *policies {
            let short =
                policy.entries.iter().filter(|entry| entry.kind == "Ready" && !entry.ladder.is_empty());
            let shortest = short.filter_map(|entry| entry.toleration).min();
            if let Some(shortest) = shortest.filter(|shortest| *shortest < grace) {
                add(
                    Severity::Warning,
                    format!(
                        "{} tolerates Ready for {}, which is less than the {} of {source}",
                        policy.name(),
                        words(shortest),
                        words(grace)
                    ),
                    "a kubelet that is restarted, or a short loss of the network, is enough for a repair",
                    "Let its toleration be several minutes".to_owned(),
                );
            }
        }
    }
    findings
}

/// How long it takes on average until a crashed node is marked as lost.
pub(super) fn detection(timings: &Timings<'_>) -> SignedDuration {
    let told = |name| timings.manager.and_then(|manager| manager.duration(name));
    let grace =
        told("node-monitor-grace-period").unwrap_or_else(|| expected::default_monitor_grace(timings.minor));
    let period = told("node-monitor-period").unwrap_or(MONITOR_PERIOD);
    let lasts = timings.leases.iter().map(|lease| lease.lasts).max().unwrap_or(LEASE_LASTS);
    expected::detection(grace, period, lasts)
}

fn words(duration: SignedDuration) -> String {
    GoDuration::from_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manager(arguments: &[&str]) -> ControllerManager {
        let pod = json!({"metadata": {"name": "kcm"}, "spec": {"containers": [{"command": ["kube-controller-manager"], "args": arguments}]}});
        ControllerManager::read(&pod).unwrap()
    }

    fn whats(manager: Option<&ControllerManager>, leases: &[KubeletLease], rest: &str) -> Vec<String> {
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        let configuration = salvor_api::config::parse(&format!("{head}{rest}\n")).unwrap();
        let timings = Timings { manager, minor: Some(37), leases, policies: &[], now: None };
        check(&timings, &configuration).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn flags_are_read_in_both_forms() {
        let manager =
            manager(&["--node-monitor-period=7s", "--node-monitor-grace-period", "20s", "--node-monitor=x"]);
        assert_eq!(manager.duration("node-monitor-period"), Some(SignedDuration::from_secs(7)));
        assert_eq!(manager.duration("node-monitor-grace-period"), Some(SignedDuration::from_secs(20)));
        assert_eq!(manager.flag("controllers"), None);
    }

    #[test]
    fn detection_follows_the_flags_the_version_and_the_leases() {
        let detect = |manager: Option<&ControllerManager>, minor| {
            let timings = Timings { manager, minor: Some(minor), leases: &[], policies: &[], now: None };
            detection(&timings).as_secs()
        };
        assert_eq!((detect(None, 37), detect(None, 31)), (47, 37));
        let flags = manager(&["--node-monitor-grace-period=20s", "--node-monitor-period=2s"]);
        assert_eq!(detect(Some(&flags), 37), 16);
    }

    #[test]
    fn controllers_are_known_by_both_of_their_names() {
        for (list, runs) in [
            ("*", true),
            ("*,-nodelifecycle", false),
            ("*,-node-lifecycle-controller", false),
            ("job,nodelifecycle", true),
            ("job", false),
        ] {
            let flag = format!("--controllers={list}");
            let found = whats(Some(&manager(&[&flag])), &[], "");
            assert_eq!(found.is_empty(), runs, "{list}: {found:?}");
        }
        assert_eq!(whats(None, &[], ""), Vec::<String>::new());
    }

    #[test]
    fn two_job_controllers_are_an_error_only_where_both_take_the_same_jobs() {
        let all = "job: {unmanagedJobs: true}";
        assert_eq!(whats(Some(&manager(&[])), &[], all).len(), 1);
        assert_eq!(whats(Some(&manager(&["--controllers=*,-job-controller"])), &[], all).len(), 0);
        assert_eq!(whats(Some(&manager(&[])), &[], "").len(), 0);
    }

    #[test]
    fn a_lease_must_not_outlast_the_silence_after_which_a_node_is_lost() {
        let lease = |seconds: i64| {
            let lease = json!({"metadata": {"name": "n"}, "spec": {"renewTime": "2026-11-16T10:00:00Z", "leaseDurationSeconds": seconds}});
            KubeletLease::read(&lease, true).unwrap()
        };
        assert_eq!(whats(None, &[lease(40)], "").len(), 0);
        assert_eq!(whats(None, &[lease(60)], "").len(), 1);
        assert_eq!(whats(Some(&manager(&["--node-monitor-grace-period=20s"])), &[lease(40)], "").len(), 1);
        assert_eq!(whats(None, &[lease(60)], "controllers: [job]").len(), 0);
        let settle = "brake: {settlePeriod: 3s}";
        assert_eq!(whats(Some(&manager(&[])), &[], settle).len(), 1);
    }
}
