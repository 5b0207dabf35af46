//! Splits a simulation over several machines, each of which plays a part of the seeds.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use salvor_simulate::scenario::other_files;
use serde_json::{Map, Value, json};

use super::args::SimulateArgs;
use super::error::{MOST_BYTES, SimulateError, read};
use crate::error::CliError;
use crate::output;

/// The name of the ConfigMap and the Job.
const NAME: &str = "salvor-simulate";

/// The mount path in the pods.
const FOLDER: &str = "/scenario";
const SCENARIO: &str = "scenario.yaml";

/// A ConfigMap with the scenario and all files it needs, and an Indexed Job whose pods each play one part and write the
/// report to their log.
pub(super) fn job(args: &SimulateArgs, text: &str, folder: &Path, parts: u32) -> Result<String, CliError> {
    let mut files = Files([(SCENARIO.to_owned(), text.to_owned())].into());
    for file in other_files(text) {
        files.add(&file, &folder.join(&file))?;
    }
    let seeds = args.seeds.as_ref().map(|seeds| format!("{}..{}", seeds.0.start(), seeds.0.end()));
    let mut arguments: Vec<String> = vec![
        "simulate".into(),
        format!("{FOLDER}/{SCENARIO}"),
        format!("--seeds={}", seeds.unwrap_or_default()),
        format!("--shard=$(JOB_COMPLETION_INDEX)/{parts}"),
        "--output=json".into(),
    ];
    for pair in args.compare.chunks(2) {
        arguments.push("--compare".into());
        for path in pair {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            let written = path.to_str().filter(|it| is_below(it)).map_or(name, str::to_owned);
            files.add(&written, path)?;
            arguments.push(written);
        }
    }
    arguments.extend(args.sweep.iter().map(|sweep| format!("--sweep={sweep}")));
    arguments.extend(args.fail.iter().map(|failure| format!("--fail={failure}")));
    arguments.extend(args.against.iter().map(|peer| format!("--against={peer}")));
    let (map, volume) = files.mounted()?;
    let documents = [map, indexed_job(&args.image, parts, &arguments, &volume)];
    let mut text = format!(
        "# Collect the reports, and join them:\n#   mkdir -p results; for i in $(seq 0 {}); do kubectl logs -l batch.kubernetes.io/job-name={NAME},batch.kubernetes.io/job-completion-index=$i --tail=-1 > results/$i.json; done\n#   salvor simulate merge results\n",
        parts - 1
    );
    for document in documents {
        text.push_str("---\n");
        text.push_str(&output::yaml(&document)?);
    }
    Ok(text)
}

/// The files for the pods, by path.
struct Files(BTreeMap<String, String>);

impl Files {
    /// Adds a file under this path.
    fn add(&mut self, as_path: &str, file: &Path) -> Result<(), SimulateError> {
        let as_path = as_path.trim_start_matches("./");
        if !is_below(as_path) {
            return Err(SimulateError::Outside(as_path.to_owned()));
        }
        let text = read(file)?;
        match self.0.insert(as_path.to_owned(), text.clone()) {
            Some(known) if known != text => Err(SimulateError::SameName(as_path.to_owned())),
            _ => Ok(()),
        }
    }

    /// The ConfigMap and the volume that mounts it. Keys of a ConfigMap cannot contain folders, so files other than the
    /// scenario are numbered.
    fn mounted(self) -> Result<(Value, Value), SimulateError> {
        let bytes = self.0.iter().map(|(path, text)| path.len() + text.len()).sum();
        if bytes > MOST_BYTES {
            return Err(SimulateError::TooLarge(bytes));
        }
        let is_alone = self.0.len() == 1;
        let (mut data, mut items) = (Map::new(), Vec::new());
        for (number, (path, text)) in self.0.into_iter().enumerate() {
            let key = if path == SCENARIO { path.clone() } else { format!("file-{number}") };
            items.push(json!({ "key": key, "path": path }));
            data.insert(key, text.into());
        }
        let map =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": NAME }, "data": data });
        let mut volume = json!({ "name": NAME });
        if !is_alone {
            volume["items"] = items.into();
        }
        Ok((map, json!({ "name": "scenario", "configMap": volume })))
    }
}

/// Whether a path leads to a file below its starting folder.
fn is_below(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn indexed_job(image: &str, parts: u32, arguments: &[String], volume: &Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": NAME },
        "spec": {
            "completionMode": "Indexed", "completions": parts, "parallelism": parts, "backoffLimitPerIndex": 3,
            "template": { "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "simulate", "image": image, "args": arguments, "workingDir": FOLDER,
                    "resources": { "requests": { "cpu": "1", "memory": "1Gi" } },
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                    "volumeMounts": [{ "name": "scenario", "mountPath": FOLDER }],
                }],
                "volumes": [volume],
            } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_below_the_scenario_can_be_taken_along() {
        for good in ["a.csv", "b/a.csv"] {
            assert!(is_below(good), "{good}");
        }
        for bad in ["", "/a.csv", "../a.csv", "b/../../a.csv"] {
            assert!(!is_below(bad), "{bad}");
        }
    }
}
