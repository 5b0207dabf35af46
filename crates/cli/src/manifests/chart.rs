//! Generates the files of the Helm chart that depend on the code: rights, memory, webhooks and CRDs. The chart's
//! templates only combine them, so that the chart and `salvor manifests` always grant the same rights. `salvor docs
//! --chart` writes the files.

use std::collections::{BTreeMap, BTreeSet};

use salvor_api::Controller;
use salvor_api::config::Configuration;
use salvor_operator::webhooks::{Target, WebhookKind, configuration as webhook_configuration};
use salvor_operator::{RecoveryEntry, Resource, Scope, Verb, recoveries, webhooks_in_effect};
use serde_json::{Map, Value, json};

use super::memory;
use crate::error::CliError;
use crate::output;

const HEADER: &str = "# Generated from Salvor's code by `salvor docs --chart`; change it there.\n";

/// A setting of a recovery that changes its rights.
struct Setting {
    recovery: Controller,
    /// Its name in the chart's templates.
    name: &'static str,
    /// A JSON pointer into the configuration.
    field: &'static str,
    /// Each possible value, in the form of the templates and of the configuration.
    values: fn() -> Vec<(&'static str, Value)>,
}

const SETTINGS: &[Setting] = &[
    Setting {
        recovery: Controller::Zombie,
        name: "taintNodeOutOfService",
        field: "/failureRecoveryPolicy/rules",
        values: || {
            let rule = json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "unreachableNodeTimeout": "5m"});
            vec![("false", json!([])), ("true", json!([{ "taintNodeOutOfService": rule }]))]
        },
    },
    Setting {
        recovery: Controller::Zombie,
        name: "lostPods",
        field: "/failureRecoveryPolicy/jobs/lostPods",
        values: || ["Count", "Hold", "RaiseLimit"].map(|value| (value, json!(value))).to_vec(),
    },
    Setting {
        recovery: Controller::Job,
        name: "deleteFinishedJobs",
        field: "/job/deleteFinishedJobs",
        values: booleans,
    },
    Setting {
        recovery: Controller::AppWrapper,
        name: "userRBACAdmissionCheck",
        field: "/appwrapper/userRBACAdmissionCheck",
        values: booleans,
    },
    Setting {
        recovery: Controller::Repair,
        name: "clusterAPI",
        field: "/repair/clusterAPI",
        values: || vec![("Remediate", json!("Remediate")), ("Delete", json!("Delete"))],
    },
];

fn booleans() -> Vec<(&'static str, Value)> {
    vec![("false", json!(false)), ("true", json!(true))]
}

/// The modes of a release, as the templates name them.
const MODES: [(&str, bool); 2] = [("acting", false), ("dryRun", true)];

/// Single rights, so that sets of them can be compared.
type Rights = BTreeSet<(Scope, Resource, Verb)>;

/// Each generated file of the chart, with its path.
pub(crate) fn files() -> Result<Vec<(String, String)>, CliError> {
    let mut files = vec![("files/salvor.yaml".to_owned(), format!("{HEADER}{}", output::yaml(&data()?)?))];
    for entry in recoveries() {
        for definition in entry.definitions {
            files.push((format!("files/crds/{}.yaml", entry.controller), format!("{HEADER}{definition}")));
        }
    }
    Ok(files)
}

fn data() -> Result<Value, CliError> {
    let default = Configuration::default();
    let mut memory = Map::from_iter([("base".to_owned(), memory::BASE.into())]);
    let (mut rights, mut webhooks) = (Map::new(), Map::new());
    for entry in recoveries() {
        let name = entry.controller.name().to_owned();
        memory.insert(name.clone(), entry.memory.into());
        rights.insert(name.clone(), rights_of(entry)?);
        if let Some(declared) = webhooks_of(entry)? {
            webhooks.insert(name, declared);
        }
    }
    let names: Vec<&str> = recoveries().map(|entry| entry.controller.name()).collect();
    Ok(json!({
        "recoveries": names,
        "defaults": {
            "bind": default.bind,
            "pageBind": default.page.bind,
            "webhooksBind": default.webhooks.bind,
            "leaseName": default.leader_election.lease_name,
            "wrappedKinds": default.appwrapper.wrapped_kinds,
        },
        "memory": memory,
        "rights": rights,
        "wrapped": wrapped()?,
        "webhooks": webhooks,
    }))
}

/// A configuration with only this recovery, no wrapped kinds, and these fields.
fn configuration(entry: &RecoveryEntry, fields: &[(&str, Value)]) -> Result<Configuration, CliError> {
    let mut value = json(&Configuration::default())?;
    let mut set = |pointer: &str, new: &Value| {
        if let Some(old) = value.pointer_mut(pointer) {
            *old = new.clone();
        }
    };
    set("/controllers", &json!([entry.controller.name()]));
    set("/appwrapper/wrappedKinds", &json!([]));
    if let Some(gate) = entry.gate {
        set("/featureGates", &json!({ gate.to_string(): true }));
    }
    for (pointer, new) in fields {
        set(pointer, new);
    }
    serde_json::from_value(value).map_err(|error| CliError::Output(error.into()))
}

fn json(configuration: &Configuration) -> Result<Value, CliError> {
    serde_json::to_value(configuration).map_err(|error| CliError::Output(error.into()))
}

fn rights(configuration: &Configuration, entry: &RecoveryEntry) -> Rights {
    let each = entry.rights(configuration).into_iter();
    each.flat_map(|right| {
        right.verbs.into_iter().map(move |verb| (right.scope.clone(), right.resource.clone(), verb))
    })
    .collect()
}

/// The rights of a recovery independent of its options, and those that each value of an option adds.
fn rights_of(entry: &RecoveryEntry) -> Result<Value, CliError> {
    let mut rows = Map::new();
    let mut options: BTreeMap<&str, BTreeMap<&str, Map<String, Value>>> = BTreeMap::new();
    for (mode, dry) in MODES {
        let mut always: Option<Rights> = None;
        let mut each = Vec::new();
        for option in SETTINGS.iter().filter(|option| option.recovery == entry.controller) {
            for (name, value) in (option.values)() {
                // All other settings have the value that adds no rights.
                let others = SETTINGS.iter().filter(|other| other.recovery == entry.controller);
                let mut fields: Vec<(&str, Value)> = others
                    .filter_map(|other| Some((other.field, (other.values)().into_iter().next()?.1)))
                    .collect();
                fields.extend([("/dryRun", json!(dry)), (option.field, value)]);
                let found = rights(&configuration(entry, &fields)?, entry);
                always = Some(always.map_or_else(|| found.clone(), |always| &always & &found));
                each.push((option.name, name, found));
            }
        }
        let always = match always {
            Some(always) => always,
            None => rights(&configuration(entry, &[("/dryRun", json!(dry))])?, entry),
        };
        for (option, value, found) in each {
            let more = &found - &always;
            if !more.is_empty() {
                options
                    .entry(option)
                    .or_default()
                    .entry(value)
                    .or_default()
                    .insert(mode.to_owned(), table(&more));
            }
        }
        rows.insert(mode.to_owned(), table(&always));
    }
    rows.insert("options".to_owned(), json!(options));
    Ok(Value::Object(rows))
}

/// Rights in the format of the templates.
fn table(rights: &Rights) -> Value {
    let mut rows: BTreeMap<(&Scope, &Resource), Vec<&str>> = BTreeMap::new();
    for (scope, resource, verb) in rights {
        rows.entry((scope, resource)).or_default().push(verb.name());
    }
    let row = |((scope, resource), verbs): ((&Scope, &Resource), Vec<&str>)| {
        let namespace = match scope {
            Scope::Cluster => "",
            Scope::Namespace(namespace) => namespace,
        };
        json!({
            "namespace": namespace, "group": resource.group, "resource": resource.plural,
            "name": resource.name.as_deref().unwrap_or_default(), "verbs": verbs,
        })
    };
    rows.into_iter().map(row).collect()
}

/// The verbs on each wrapped kind.
fn wrapped() -> Result<Value, CliError> {
    let mut verbs = Map::new();
    for entry in recoveries().filter(|entry| entry.controller == Controller::AppWrapper) {
        for (mode, dry) in MODES {
            let kinds = [("/dryRun", json!(dry)), ("/appwrapper/wrappedKinds", json!(["Thing.example.com"]))];
            let with = rights(&configuration(entry, &kinds)?, entry);
            let of_it = with.into_iter().filter(|(_, resource, _)| resource.group == "example.com");
            verbs.insert(mode.to_owned(), of_it.map(|(_, _, verb)| verb.name()).collect());
        }
    }
    Ok(Value::Object(verbs))
}

/// The webhooks of a recovery, by the kind of their configuration. The release sets the namespace of their Service.
fn webhooks_of(entry: &RecoveryEntry) -> Result<Option<Value>, CliError> {
    let declared = webhooks_in_effect(&configuration(entry, &[])?);
    let target = Target::Service { namespace: String::new() };
    let of_kind = |kind: WebhookKind| {
        let mut made = webhook_configuration(kind, &declared, &target)?;
        Some((kind.configuration().to_owned(), made["webhooks"].take()))
    };
    let kinds: Map<String, Value> = WebhookKind::ALL.into_iter().filter_map(of_kind).collect();
    Ok((!kinds.is_empty()).then_some(Value::Object(kinds)))
}

#[cfg(test)]
mod tests {
    use salvor_api::config::{FIELDS, Kind};

    use super::*;

    /// If a setting that changes rights is missing here, the chart grants too much or too little.
    #[test]
    fn every_switch_that_changes_rights_is_an_option() {
        let known = ["/dryRun", "/webhooks/enabled", "/leaderElection/enabled"];
        for entry in recoveries() {
            // Only with this check do the webhooks need rights of their own.
            let base = [("/appwrapper/userRBACAdmissionCheck", json!(true))];
            let before = rights(&configuration(entry, &base).unwrap(), entry);
            for field in FIELDS.iter().filter(|field| matches!(field.kind, Kind::Bool)) {
                let pointer = format!("/{}", field.path.replace('.', "/"));
                let default = json(&Configuration::default()).unwrap();
                let Some(Value::Bool(value)) = default.pointer(&pointer) else { continue };
                let mut fields = base.to_vec();
                fields.push((&*pointer, json!(!value)));
                let changes = rights(&configuration(entry, &fields).unwrap(), entry) != before;
                let listed = SETTINGS.iter().any(|option| option.field == pointer)
                    || known.contains(&pointer.as_str());
                assert!(
                    !changes || listed,
                    "{}: {pointer} changes rights: add it to SETTINGS",
                    entry.controller
                );
            }
        }
    }

    #[test]
    fn an_option_adds_rights_and_takes_none_away() {
        let data = data().unwrap();
        let patch = json!([{"namespace": "", "group": "cluster.x-k8s.io", "resource": "machines", "name": "", "verbs": ["patch"]}]);
        assert_eq!(data["rights"]["repair"]["options"]["clusterAPI"]["Remediate"]["acting"], patch);
        let delete =
            json!([{"namespace": "", "group": "", "resource": "nodes", "name": "", "verbs": ["patch"]}]);
        assert_eq!(
            data["rights"]["zombie"]["options"]["taintNodeOutOfService"],
            json!({"true": {"acting": delete}})
        );
        assert_eq!(
            data["wrapped"],
            json!({"acting": ["get", "list", "watch", "create", "delete"], "dryRun": ["get", "list", "watch"]})
        );
        assert_eq!(data["rights"]["eviction"]["options"], json!({}));
        assert_eq!(data["webhooks"]["appwrapper"].as_object().unwrap().len(), 2);
    }
}
