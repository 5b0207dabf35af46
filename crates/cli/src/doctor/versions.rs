//! Checks the version of the API server, and the features that the enabled recoveries need.

use salvor_api::{Controller, config::Configuration};

use super::finding::{Check, Finding, Severity};

/// The minor versions that Salvor is tested with.
const TESTED: [u32; 2] = [34, 37];

struct Feature {
    gate: &'static str,
    /// The minor version that introduced it, off by default.
    came: u32,
    /// The first minor version that enables it by default.
    on: u32,
    needed_by: &'static [Controller],
    why: &'static str,
}

static FEATURES: [Feature; 4] = [
    Feature {
        gate: "JobManagedBy",
        came: 30,
        on: 32,
        needed_by: &[Controller::Job],
        why: "without spec.managedBy the built-in controller runs every Job, and the job recovery none",
    },
    Feature {
        gate: "JobPodReplacementPolicy",
        came: 28,
        on: 29,
        needed_by: &[Controller::Job, Controller::Zombie],
        why: "without podReplacementPolicy: Failed a Job starts its pods anew while the old ones may still run",
    },
    Feature {
        gate: "PodDisruptionConditions",
        came: 25,
        on: 26,
        needed_by: &[Controller::Zombie, Controller::Eviction],
        why: "without the condition DisruptionTarget a Job counts a pod that was declared dead as its own failure",
    },
    Feature {
        gate: "NodeOutOfServiceVolumeDetach",
        came: 24,
        on: 26,
        needed_by: &[Controller::Zombie, Controller::Eviction],
        why: "without it the taint out-of-service frees no volumes",
    },
];

/// The version of an API server, and the features that it reports as disabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Version {
    /// As the server reports it, such as `v1.37.1`.
    pub(super) told: String,
    /// `None` if it does not parse.
    pub(super) minor: Option<u32>,
    /// Features that are disabled although their version enables them by default.
    pub(super) off: Vec<String>,
}

impl Version {
    /// Parses a minor version such as `37` or `37+`.
    pub(super) fn new(told: &str, minor: &str) -> Self {
        let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
        Self { told: told.to_owned(), minor: digits.parse().ok(), off: Vec::new() }
    }

    /// Whether any of the features can be disabled at all in this version.
    pub(super) fn worth_asking(&self) -> bool {
        // In later versions all of these gates are locked.
        self.minor.is_some_and(|minor| minor < 35)
    }

    /// Reads the states of features from the server's metrics.
    pub(super) fn read_metrics(&mut self, metrics: &str) {
        for feature in &FEATURES {
            let head = format!("kubernetes_feature_enabled{{name=\"{}\"", feature.gate);
            if metrics.lines().any(|line| line.starts_with(&head) && line.ends_with(" 0")) {
                self.off.push(feature.gate.to_owned());
            }
        }
    }
}

pub(super) fn check(version: &Version, configuration: &Configuration) -> Vec<Finding> {
    let Some(minor) = version.minor else {
        let what = format!("the API server calls its version {:?}", version.told);
        let why = "its features cannot be told from that";
        let fix = "Look up whether its features are those of a tested version";
        return vec![Finding::new(Severity::Warning, Check::Versions, what, why, fix)];
    };
    let mut findings = Vec::new();
    for Feature { gate, came, on, needed_by, why } in &FEATURES {
        let enabled: Vec<&str> = needed_by
            .iter()
            .filter(|controller| configuration.controllers.enabled(**controller))
            .map(|controller| controller.name())
            .collect();
        if enabled.is_empty() {
            continue;
        }
        let who = enabled.join(", ");
        let told = &version.told;
        let found = if minor < *came {
            let what = format!("Kubernetes {told} does not have {gate}, which {who} needs");
            Some((Severity::Error, what, format!("Upgrade to Kubernetes 1.{on} or later")))
        } else if version.off.iter().any(|off| off == gate) {
            let what = format!("the API server runs with the feature gate {gate} off, which {who} needs");
            Some((Severity::Error, what, format!("Start the API server with --feature-gates={gate}=true")))
        } else if minor < *on {
            let what = format!("Kubernetes {told} has {gate} switched off by default, and {who} needs it");
            let fix = format!("Start the API server with --feature-gates={gate}=true, or upgrade to 1.{on}");
            Some((Severity::Warning, what, fix))
        } else {
            None
        };
        findings.extend(
            found.map(|(severity, what, fix)| Finding::new(severity, Check::Versions, what, *why, fix)),
        );
    }
    let [first, last] = TESTED;
    if !(first..=last).contains(&minor) {
        let what = format!("Kubernetes {} is not among the tested versions", version.told);
        let why = format!("Salvor is tested with 1.{first} and 1.{last}");
        let fix = "Try it with --dry-run first, and look at what it would do";
        findings.push(Finding::new(Severity::Info, Check::Versions, what, why, fix));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn severities(minor: &str, off: &str) -> Vec<(Severity, String)> {
        let mut version = Version::new(&format!("v1.{minor}.0"), minor);
        version.read_metrics(off);
        let findings = check(&version, &Configuration::default());
        findings.into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    #[test]
    fn each_version_has_the_features_that_it_came_with() {
        let jobs = |minor: &str| {
            let all = severities(minor, "");
            all.into_iter().find(|(_, what)| what.contains("JobManagedBy")).map(|(severity, _)| severity)
        };
        assert_eq!(jobs("29"), Some(Severity::Error));
        assert_eq!(jobs("31+"), Some(Severity::Warning));
        assert_eq!(jobs("32"), None);
        assert_eq!(severities("37", ""), []);
        assert_eq!(severities("99", "").len(), 1);
        assert_eq!(severities("x", "")[0].0, Severity::Warning);
    }

    #[test]
    fn a_feature_that_somebody_switched_off_is_an_error() {
        let metrics = "kubernetes_feature_enabled{name=\"JobManagedBy\",stage=\"BETA\"} 0\n";
        let found = severities("34", metrics);
        assert!(found[0].0 == Severity::Error && found[0].1.contains("JobManagedBy off"), "{found:?}");
        let on = metrics.replace(" 0", " 1");
        assert_eq!(severities("34", &on), []);
    }

    #[test]
    fn a_recovery_that_is_off_needs_nothing() {
        let file = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\ncontrollers: [eviction]\n";
        let configuration = salvor_api::config::parse(file).unwrap();
        let findings = check(&Version::new("v1.29.0", "29"), &configuration);
        assert!(findings.iter().all(|finding| !finding.what.contains("JobManagedBy")), "{findings:?}");
    }
}
