//! Many machines: each plays a part of the seeds.

use std::path::Path;

use serde_json::{Value, json};

use super::{SimulateArgs, SimulateError, read};
use crate::error::CliError;
use crate::output;

/// The image that the manifests use.
pub(super) const IMAGE: &str = concat!("salvor:", env!("CARGO_PKG_VERSION"));

/// The name of the ConfigMap and the Job.
const NAME: &str = "salvor-simulate";

/// One of several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) index: u64,
    pub(super) count: u64,
}

pub(super) fn part(text: &str) -> Result<Part, String> {
    let usage = || "write I/N, such as 0/4 for the first of four parts".to_owned();
    let (index, count) = text.split_once('/').ok_or_else(usage)?;
    let part =
        Part { index: index.parse().map_err(|_| usage())?, count: count.parse().map_err(|_| usage())? };
    if part.index < part.count { Ok(part) } else { Err(usage()) }
}

/// A ConfigMap with the scenario, and an Indexed Job of which each pod plays its part and writes the report to its log.
pub(super) fn job(args: &SimulateArgs, path: &Path, parts: u32) -> Result<String, CliError> {
    let scenario = if args.live.from_cluster { String::new() } else { read(path)? };
    let names_files = ["csv:", "configFile:"].iter().any(|key| scenario.contains(key));
    if !args.compare.is_empty() || args.live.from_cluster || names_files {
        return Err(SimulateError::OtherFiles.into());
    }
    let seeds = args.seeds.as_ref().map(|seeds| format!("{}..{}", seeds.0.start(), seeds.0.end()));
    let mut arguments: Vec<String> = vec![
        "simulate".into(),
        "/scenario/scenario.yaml".into(),
        format!("--seeds={}", seeds.unwrap_or_default()),
        format!("--shard=$(JOB_COMPLETION_INDEX)/{parts}"),
        "--output=json".into(),
    ];
    arguments.extend(args.sweep.iter().map(|sweep| format!("--sweep={sweep}")));
    arguments.extend(args.fail.iter().map(|failure| format!("--fail={failure}")));
    arguments.extend(args.against.iter().map(|peer| format!("--against={peer}")));
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": NAME },
        "data": { "scenario.yaml": scenario },
    });
    let documents = [map, indexed_job(&args.image, parts, &arguments)];
    let mut text = format!(
        "# Collect the reports, and join them:\n#   for i in $(seq 0 {}); do kubectl logs -l batch.kubernetes.io/job-name={NAME},batch.kubernetes.io/job-completion-index=$i --tail=-1 > results/$i.json; done\n#   salvor simulate merge results\n",
        parts - 1
    );
    for document in documents {
        text.push_str("---\n");
        text.push_str(&output::yaml(&document)?);
    }
    Ok(text)
}

fn indexed_job(image: &str, parts: u32, arguments: &[String]) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": NAME },
        "spec": {
            "completionMode": "Indexed", "completions": parts, "parallelism": parts, "backoffLimitPerIndex": 3,
            "template": { "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "simulate", "image": image, "args": arguments,
                    "resources": { "requests": { "cpu": "1", "memory": "1Gi" } },
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                    "volumeMounts": [{ "name": "scenario", "mountPath": "/scenario" }],
                }],
                "volumes": [{ "name": "scenario", "configMap": { "name": NAME } }],
            } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_of_several() {
        assert_eq!(part("0/4"), Ok(Part { index: 0, count: 4 }));
        for bad in ["", "4/4", "1", "a/b", "-1/4", "0/0"] {
            assert!(part(bad).unwrap_err().contains("write I/N"), "{bad}");
        }
    }
}
