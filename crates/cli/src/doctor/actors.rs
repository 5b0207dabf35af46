//! Other controllers that act on the same pods, nodes, Jobs or AppWrappers.

use salvor_api::{
    Controller, Gate,
    config::{ClusterApiRepair, Configuration},
};
use serde_json::Value;

use super::finding::{Check, Finding, Severity};

#[derive(Clone, Debug, Default)]
pub(super) struct Actors {
    /// Deployments and CronJobs.
    pub(super) workloads: Vec<Value>,
    /// Kueue's configuration files, as text.
    pub(super) kueue_settings: Vec<String>,
    /// The kinds of machine health checks that have objects, such as `nodehealthchecks.remediation.medik8s.io`.
    pub(super) health_checks: Vec<String>,
    /// Whether Cluster API Machines exist and the repair recovery is on.
    pub(super) has_machines: bool,
    /// Namespaces in which another Salvor leads.
    pub(super) other_leaders: Vec<String>,
}

pub(super) fn check(seen: &Actors, configuration: &Configuration) -> Vec<Finding> {
    let on = |controller| configuration.controllers.enabled(controller);
    let zombie = on(Controller::Zombie) && configuration.feature_gates.enabled(Gate::FailureRecoveryPolicy);
    let mut findings = Vec::new();
    let mut add = |severity, what: String, why: &str, fix: &str| {
        findings.push(Finding::new(severity, Check::Actors, what, why, fix));
    };
    for workload in &seen.workloads {
        let (name, place) = (text(&workload["metadata"]["name"]), place(workload));
        if is_called(workload, "kueue") {
            let settings = seen.kueue_settings.iter().map(String::as_str);
            if arguments(workload).chain(settings).any(has_failure_recovery) {
                add(
                    if zombie { Severity::Error } else { Severity::Info },
                    format!("Kueue ({place}) runs with its own FailureRecoveryPolicy"),
                    if zombie {
                        "both would declare the same pods dead, each after its own wait, and only one of them has a brake"
                    } else {
                        "with zombie recovery switched on, both would declare the same pods dead"
                    },
                    "Switch Kueue's feature gate FailureRecoveryPolicy off, or leave zombie out of controllers",
                );
            }
        } else if is_called(workload, "karpenter") {
            let repairs = |text: &str| text.contains("NodeRepair=true");
            if !arguments(workload).any(repairs) {
                continue;
            }
            if on(Controller::Repair) {
                add(
                    Severity::Error,
                    format!("Karpenter ({place}) runs with its feature gate NodeRepair"),
                    "both would replace the same sick nodes, each by its own tolerations and limits",
                    "Switch Karpenter's feature gate NodeRepair off, or leave repair out of controllers",
                );
            } else {
                add(
                    if zombie || on(Controller::Eviction) { Severity::Warning } else { Severity::Info },
                    format!("Karpenter ({place}) runs with its feature gate NodeRepair"),
                    "it replaces sick nodes by force while a recovery waits or is held by the brake",
                    "Decide which of the two acts on lost nodes, and switch the other one off",
                );
            }
        } else if name.contains("appwrapper-controller") {
            let collides = on(Controller::AppWrapper);
            add(
                if collides { Severity::Error } else { Severity::Info },
                format!("the AppWrapper controller of CodeFlare runs ({place})"),
                if collides {
                    "two controllers would write the status of the same AppWrappers"
                } else {
                    "it looks after the AppWrappers here, as long as appwrapper is not among controllers"
                },
                "Scale it to no replicas, or leave appwrapper out of controllers",
            );
        } else if is_called(workload, "descheduler") {
            add(
                Severity::Info,
                format!("a descheduler runs ({place})"),
                "it evicts pods by rules of its own, which look like disruptions to a Job",
                "Nothing, if its policies leave out what Salvor recovers",
            );
        } else if label(workload) == "salvor"
            && namespace(workload) != configuration.leader_election.lease_namespace
        {
            add(
                Severity::Error,
                format!("another Salvor is installed ({place})"),
                "each has a leader, a brake and a pause of its own, and both act on the same objects",
                "Remove one of them",
            );
        }
    }
    for namespace in &seen.other_leaders {
        let installed =
            |workload: &&Value| label(workload) == "salvor" && self::namespace(workload) == namespace;
        if seen.workloads.iter().find(installed).is_none() {
            add(
                Severity::Error,
                format!("another Salvor leads by the Lease {namespace}/salvor"),
                "each has a leader, a brake and a pause of its own, and both act on the same objects",
                "Stop one of them",
            );
        }
    }
    for kind in &seen.health_checks {
        add(
            Severity::Warning,
            format!("there are {kind}"),
            "whoever serves them remediates or deletes nodes, also while a recovery waits or is held by the brake",
            "Exclude the nodes that Salvor recovers, or let their timeout be longer than the waits of the recoveries",
        );
    }
    let checks_machines = seen.health_checks.iter().any(|kind| kind.ends_with(".cluster.x-k8s.io"));
    let remediates = configuration.repair.cluster_api == ClusterApiRepair::Remediate;
    if seen.has_machines && remediates && !checks_machines {
        add(
            Severity::Warning,
            "there are Machines of Cluster API, and no MachineHealthCheck".to_owned(),
            "with repair.clusterAPI: Remediate a repair is an annotation on the Machine, and only a MachineHealthCheck acts on it",
            "Create a MachineHealthCheck for these Machines, or set repair.clusterAPI to Delete",
        );
    }
    findings
}

/// Whether an argument or a file enables the gate, in any notation.
fn has_failure_recovery(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '"' | '\'')).collect();
    ["FailureRecoveryPolicy=true", "FailureRecoveryPolicy:true"].iter().any(|gate| plain.contains(gate))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn namespace(workload: &Value) -> &str {
    text(&workload["metadata"]["namespace"])
}

fn place(workload: &Value) -> String {
    format!("{}/{}", namespace(workload), text(&workload["metadata"]["name"]))
}

fn label(workload: &Value) -> &str {
    text(&workload["metadata"]["labels"]["app.kubernetes.io/name"])
}

/// Matches the label, or the name in the program's own manifests.
fn is_called(workload: &Value, program: &str) -> bool {
    let name = text(&workload["metadata"]["name"]);
    label(workload) == program || name == program || name == format!("{program}-controller-manager")
}

/// All command line arguments of the containers.
fn arguments(workload: &Value) -> impl Iterator<Item = &str> {
    let template = ["/spec/template", "/spec/jobTemplate/spec/template"];
    let template = template.iter().find_map(|path| workload.pointer(path));
    let containers = template.and_then(|template| template["spec"]["containers"].as_array());
    containers.into_iter().flatten().flat_map(|container| {
        let list = |key: &str| container[key].as_array().into_iter().flatten().filter_map(Value::as_str);
        let env = container["env"].as_array().into_iter().flatten();
        list("command").chain(list("args")).chain(env.filter_map(|env| env["value"].as_str()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(namespace: &str, name: &str, label: &str, argument: &str) -> Value {
        json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {"app.kubernetes.io/name": label}},
            "spec": {"template": {"spec": {"containers": [{"args": [argument], "env": [{"name": "X", "value": argument}]}]}}},
        })
    }

    const ALL: &str = "controllers: ['*', appwrapper]\nfeatureGates: {FailureRecoveryPolicy: true}\n";

    fn severities(workloads: Vec<Value>, settings: &str, configuration: &str) -> Vec<Severity> {
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        let configuration = salvor_api::config::parse(&format!("{head}{configuration}")).unwrap();
        let kueue_settings = vec![settings.to_owned()];
        let found = check(&Actors { workloads, kueue_settings, ..Actors::default() }, &configuration);
        found.into_iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn each_actor_is_known_by_its_name_and_its_gate() {
        let gates = "--feature-gates=A=true,FailureRecoveryPolicy=true";
        for (workload, settings, severity) in [
            (deployment("k", "kueue-controller-manager", "", gates), "", Some(Severity::Error)),
            (
                deployment("k", "x", "kueue", ""),
                "featureGates:\n  FailureRecoveryPolicy: true",
                Some(Severity::Error),
            ),
            (deployment("k", "kueue-controller-manager", "kueue", ""), "", None),
            (
                deployment("k", "karpenter", "", "SpotToSpot=false,NodeRepair=true"),
                "",
                Some(Severity::Warning),
            ),
            (deployment("k", "karpenter", "", "NodeRepair=false"), "", None),
            (deployment("a", "appwrapper-controller-manager", "", ""), "", Some(Severity::Error)),
            (deployment("d", "descheduler", "", ""), "", Some(Severity::Info)),
            (deployment("salvor-system", "salvor", "salvor", ""), "", None),
            (deployment("elsewhere", "salvor", "salvor", ""), "", Some(Severity::Error)),
            (deployment("web", "web", "web", gates), "", None),
        ] {
            let name = place(&workload);
            let expected: Vec<Severity> = severity.into_iter().collect();
            assert_eq!(severities(vec![workload], settings, ALL), expected, "{name}");
        }
        let quoted = "{\"featureGates\": {\"FailureRecoveryPolicy\": true}}";
        let kueue = deployment("k", "kueue-controller-manager", "kueue", "");
        assert_eq!(severities(vec![kueue], quoted, ALL), [Severity::Error]);
    }

    #[test]
    fn an_actor_is_named_also_while_the_recovery_that_it_would_collide_with_is_off() {
        for workload in [
            deployment("k", "kueue-controller-manager", "", "--feature-gates=FailureRecoveryPolicy=true"),
            deployment("k", "karpenter", "", "NodeRepair=true"),
            deployment("a", "appwrapper-controller-manager", "", ""),
        ] {
            let name = place(&workload);
            assert_eq!(severities(vec![workload], "", "controllers: [job]\n"), [Severity::Info], "{name}");
        }
    }
}
