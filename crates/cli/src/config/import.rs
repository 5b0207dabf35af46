//! `salvor config import-appwrapper`: converts the configuration of CodeFlare's AppWrapper controller.

use std::fs;
use std::path::Path;

use salvor_api::Controller;
use salvor_api::config::{self, Configuration, FIELDS};
use serde_json::{Map, Value, json};

use super::changes;
use crate::error::CliError;
use crate::output;

/// The converted file, and the fields that were not converted.
#[derive(Debug, PartialEq)]
struct Imported {
    file: Map<String, Value>,
    /// Each note names a field and says why it is not converted, or how.
    notes: Vec<String>,
}

pub(super) fn execute(path: &Path) -> Result<(), CliError> {
    let text = fs::read_to_string(path).map_err(|source| CliError::ReadConfig {
        path: path.into(),
        named_by: "the command line",
        source,
    })?;
    let refused = |problem| CliError::Import { path: path.into(), problem };
    let Imported { file, notes } = import(&text).map_err(refused)?;
    let configuration = config::parse(&output::yaml(&Value::Object(file))?).map_err(|mut error| {
        // The line numbers refer to a file that the user has not seen. The field names are the same in both files.
        error.problems.iter_mut().for_each(|problem| problem.line = None);
        CliError::Config { path: path.into(), error }
    })?;
    for note in notes {
        output::note(&note);
    }
    output::print(&output::yaml(&Value::Object(whole_file(&configuration)))?)
}

/// The settings that differ from the defaults, plus the header of a file.
fn whole_file(configuration: &Configuration) -> Map<String, Value> {
    let mut file = changes(configuration);
    file.insert("apiVersion".into(), configuration.api_version.clone().into());
    file.insert("kind".into(), configuration.kind.clone().into());
    file
}

fn import(text: &str) -> Result<Imported, String> {
    let document = read(text)?;
    let Value::Object(theirs) = in_config_map(document)? else {
        return Err(
            "it is neither a ConfigMap nor a configuration: give the ConfigMap of the AppWrapper operator"
                .into(),
        );
    };
    let mut imported = Imported {
        file: Map::from_iter([
            ("apiVersion".into(), json!(salvor_api::names::configuration::API_VERSION)),
            ("kind".into(), json!(salvor_api::names::configuration::KIND)),
            ("controllers".into(), json!([Controller::AppWrapper.name()])),
        ]),
        notes: Vec::new(),
    };
    for (key, value) in theirs {
        match key.as_str() {
            "appwrapper" => imported.appwrapper(value)?,
            "webhooksEnabled" => imported.webhooks_enabled(&value)?,
            "certManagement" => imported.without_counterpart(
                "certManagement",
                "Salvor makes and renews its certificates itself; section webhooks says where it is served",
            ),
            "controllerManager" => imported.controller_manager(&value)?,
            "enableKueueIntegrations" | "kueueJobReconciller" => {
                imported.without_counterpart(&key, "Kueue has its side of AppWrappers built in since 0.11");
            }
            _ => imported.without_counterpart(&key, "the key is not known"),
        }
    }
    Ok(imported)
}

fn read(text: &str) -> Result<Value, String> {
    let told = |error: serde_saphyr::Error| {
        let first = error.without_snippet().to_string().lines().next().unwrap_or_default().to_owned();
        format!("not YAML: {first}")
    };
    serde_saphyr::from_str(text).map_err(told)
}

/// The configuration inside a ConfigMap, or the document itself.
fn in_config_map(document: Value) -> Result<Value, String> {
    if document.get("kind").is_none() {
        return Ok(document);
    }
    let kind = &document["kind"];
    if kind != "ConfigMap" {
        return Err(format!("kind: {kind} cannot be used: give a ConfigMap, or the file that is in it"));
    }
    match document["data"].as_object().map(|data| data.iter().collect::<Vec<_>>()).as_deref() {
        Some([(key, Value::String(text))]) => read(text).map_err(|problem| format!("data.{key}: {problem}")),
        Some([(key, other)]) => Err(format!("data.{key}: {other} cannot be used: it must be a string")),
        Some([]) | None => Err("data: is empty: it must have exactly one key".into()),
        Some(several) => {
            let keys: Vec<_> = several.iter().map(|(key, _)| key.as_str()).collect();
            Err(format!("data: has the keys {}: it must have exactly one", keys.join(", ")))
        }
    }
}

impl Imported {
    fn without_counterpart(&mut self, field: &str, why: &str) {
        self.notes.push(format!("{field} has no counterpart: {why}"));
    }

    fn appwrapper(&mut self, value: Value) -> Result<(), String> {
        let mut ours = Map::new();
        for (key, value) in object("appwrapper", value)? {
            match key.as_str() {
                "userRBACAdmissionCheck" | "schedulerName" | "defaultQueueName" => {
                    ours.insert(key, value);
                }
                "autopilot" => {
                    let autopilot = self.autopilot(value)?;
                    ours.insert(key, autopilot);
                }
                "faultTolerance" => {
                    let tolerance = self.fault_tolerance(value)?;
                    ours.insert(key, tolerance);
                }
                "slackQueueName" => self.without_counterpart(
                    "appwrapper.slackQueueName",
                    "Salvor does not change lending limits, as AppWrapper does not since 1.1",
                ),
                _ => self.without_counterpart(&format!("appwrapper.{key}"), "the key is not known"),
            }
        }
        self.file.insert("appwrapper".into(), Value::Object(ours));
        Ok(())
    }

    fn autopilot(&mut self, value: Value) -> Result<Value, String> {
        if value.is_null() {
            return Ok(json!({"injectAntiAffinities": false, "monitorNodes": false}));
        }
        let place = "appwrapper.autopilot";
        let mut ours = Map::new();
        for (key, value) in object(place, value)? {
            match key.as_str() {
                "injectAntiAffinities" | "monitorNodes" => {
                    ours.insert(key, value);
                }
                "preferNoScheduleWeight" => {
                    // In CodeFlare's configuration a missing weight means 1.
                    ours.insert(key, if value.is_null() { json!(1) } else { value });
                }
                "resourceTaints" => {
                    let taints = self.resource_taints(value);
                    ours.insert(key, taints);
                }
                _ => self.without_counterpart(&format!("{place}.{key}"), "the key is not known"),
            }
        }
        Ok(Value::Object(ours))
    }

    /// CodeFlare's entries are taints of nodes, which have one field more.
    fn resource_taints(&mut self, mut resources: Value) -> Value {
        for (resource, taints) in resources.as_object_mut().into_iter().flatten() {
            if taints.is_null() {
                *taints = json!([]);
            }
            for (index, taint) in taints.as_array_mut().into_iter().flatten().enumerate() {
                let removed = taint.as_object_mut().and_then(|taint| taint.remove("timeAdded"));
                if removed.is_some() {
                    let field = format!("appwrapper.autopilot.resourceTaints[{resource}][{index}].timeAdded");
                    self.without_counterpart(&field, "it never had an effect");
                }
            }
        }
        resources
    }

    fn fault_tolerance(&mut self, value: Value) -> Result<Value, String> {
        let place = "appwrapper.faultTolerance";
        let mut ours = Map::new();
        for (key, value) in object(place, value)? {
            let field = format!("{place}.{key}");
            if !FIELDS.iter().any(|known| known.path == field) {
                self.without_counterpart(&field, "the key is not known");
                continue;
            }
            if key == "retryLimit" && value.as_i64().is_some_and(|limit| limit < 0) {
                self.notes.push(format!("{field} is {value}, which means the same as 0, and becomes 0"));
                ours.insert(key, json!(0));
                continue;
            }
            ours.insert(key, value);
        }
        Ok(Value::Object(ours))
    }

    fn webhooks_enabled(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Null | Value::Bool(true) => {}
            Value::Bool(false) => {
                if FIELDS.iter().any(|field| field.path == "webhooks.enabled") {
                    self.file.insert("webhooks".into(), json!({"enabled": false}));
                }
                self.notes.push(
                    "webhooksEnabled is false: then nobody knows who created an AppWrapper, so Salvor runs only kinds that \
                     appwrapper.wrappedKindsWithoutWebhooks names; add them"
                        .into(),
                );
            }
            other => return Err(format!("webhooksEnabled: {other} cannot be used: set it to true or false")),
        }
        Ok(())
    }

    fn controller_manager(&mut self, value: &Value) -> Result<(), String> {
        for (key, value) in object("controllerManager", value.clone())? {
            let field = format!("controllerManager.{key}");
            match key.as_str() {
                "metrics" | "health" => self.without_counterpart(
                    &field,
                    "Salvor serves metrics and health together, in plain HTTP, at the address in bind",
                ),
                "leaderElection" if value == true => {}
                "leaderElection" => self.without_counterpart(
                    &field,
                    "Salvor elects a leader; set leaderElection.enabled to false only where a single process runs",
                ),
                "enableHTTP2" => self.without_counterpart(&field, "Salvor decides this by itself"),
                _ => self.without_counterpart(&field, "the key is not known"),
            }
        }
        Ok(())
    }
}

/// The fields of a section. A null section has none.
fn object(place: &str, value: Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(fields) => Ok(fields),
        Value::Null => Ok(Map::new()),
        other => Err(format!("{place}: {other} cannot be used: it must be a map of fields")),
    }
}
