//! The format as a JSON schema, for editors.

use serde_json::{Value, json};

use super::{API_VERSION, KIND};

pub fn schema() -> Value {
    let whole = |about: &str| json!({ "type": "integer", "minimum": 0, "description": about });
    let text = |about: &str| json!({ "type": "string", "description": about });
    let names = |about: &str| json!({ "type": "object", "additionalProperties": { "type": "string" }, "description": about });
    let plain =
        |about: &str| json!({ "type": "string", "pattern": PLAIN, "maxLength": 40, "description": about });
    let amounts =
        |about: &str| json!({ "type": "object", "additionalProperties": quantity(""), "description": about });
    let neither = |fields: &[&str]| json!({ "not": { "anyOf": fields.iter().map(|it| json!({ "required": [it] })).collect::<Vec<_>>() } });
    let only_of = |kinds: &[&str], field: &str| {
        json!({
            "if": { "required": ["kind", field] },
            "then": { "properties": { "kind": { "enum": kinds } } },
        })
    };
    let at_most_one = |fields: &[&str]| -> Vec<Value> {
        let pairs = fields.iter().enumerate().flat_map(|(n, a)| fields[n + 1..].iter().map(move |b| (a, b)));
        pairs.map(|(a, b)| json!({ "not": { "required": [a, b] } })).collect()
    };
    let jobs = ["Job", "IndexedJob", "JobSet"];
    let working = ["Job", "IndexedJob", "JobSet", "AppWrapper"];
    let short_form = neither(&["zones", "nodesPerZone", "gpuNodes"]);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Scenario of salvor demo and salvor simulate",
        "type": "object",
        "additionalProperties": false,
        "required": ["title"],
        "allOf": [
            { "if": { "required": ["pools"] }, "then": short_form },
            {
                "if": { "required": ["failures"], "properties": { "failures": { "contains": { "required": ["mtbf"] } } } },
                "then": { "required": ["end"] },
            },
        ],
        "properties": {
            "apiVersion": { "const": API_VERSION, "description": "The version of the format; may be left out." },
            "kind": { "const": KIND, "description": "May be left out." },
            "title": text("The name of the scenario, and the first chapter of the demo."),
            "say": text("A sentence or two about it."),
            "zones": { "type": "integer", "minimum": 1, "maximum": 26, "description": "Short form: zones a, b, c, ...; default 3." },
            "nodesPerZone": { "type": "integer", "minimum": 1, "maximum": 1000, "description": "Short form: nodes in each zone; default 4." },
            "gpuNodes": { "type": "integer", "minimum": 0, "maximum": 100, "description": "Short form: nodes with an accelerator, in the last zone; default 0." },
            "work": {
                "type": "object", "additionalProperties": false,
                "description": "Short form: pods of each workload of the demo.",
                "properties": {
                    "training": whole("An Indexed Job."), "database": whole("A StatefulSet with volumes."),
                    "website": whole("A Deployment."), "batch": whole("A queue of pieces of two minutes."),
                    "simulation": whole("An AppWrapper."), "tuning": whole("An Indexed Job that needs accelerators."),
                },
            },
            "pools": { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/pool" }, "description": "The nodes, in place of zones, nodesPerZone and gpuNodes." },
            "workloads": { "type": "array", "items": { "$ref": "#/$defs/workload" }, "description": "The work, in place of or besides work." },
            "salvor": { "$ref": "#/$defs/salvor" },
            "patience": duration("Without end: the play ends this long after the last failure; default 10m."),
            "end": duration("The play ends at this time."),
            "backSoon": duration("A kill is in vain if the machine was back within this time after it; default 5m."),
            "steps": { "type": "array", "items": { "$ref": "#/$defs/step" }, "description": "Chapters with what happens in them." },
            "failures": { "type": "array", "items": { "$ref": "#/$defs/failure" }, "description": "What fails." },
        },
        "$defs": {
            "pool": {
                "type": "object", "additionalProperties": false, "required": ["name", "nodes"],
                "properties": {
                    "name": plain("Its name, which is the label pool of its nodes. They are named NAME-ZONE1, NAME-ZONE2, ..."),
                    "nodes": { "type": "integer", "minimum": 1, "maximum": 20_000, "description": "Nodes in all, dealt out to the zones." },
                    "zones": { "type": "array", "items": { "type": "string", "pattern": PLAIN, "maxLength": 40 }, "description": "Its zones; default [a]." },
                    "racksPerZone": { "type": "integer", "minimum": 1, "description": "Racks in each zone, named ZONE1, ZONE2, ..." },
                    "labels": names("Labels of its nodes."),
                    "taints": { "type": "array", "items": { "$ref": "#/$defs/taint" }, "description": "Taints of its nodes." },
                    "capacity": amounts("Resources of each node; default 8 CPUs, 32Gi and 110 pods."),
                    "spot": { "type": "boolean", "description": "True if the nodes are spot nodes; a target can name them." },
                    "machines": { "$ref": "#/$defs/machines" },
                },
            },
            "taint": {
                "type": "object", "additionalProperties": false, "required": ["key", "effect"],
                "properties": {
                    "key": text("Its key."), "value": text("Its value."),
                    "effect": { "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"] },
                },
            },
            "machines": {
                "type": "object", "additionalProperties": false, "required": ["shutdown", "boot"],
                "description": "The nodes have NodeClaims, and a simulated Karpenter replaces them. They are named NAME-1, NAME-2, ...",
                "properties": { "shutdown": duration("A machine ends in this time."), "boot": duration("A machine starts in this time.") },
            },
            "workload": {
                "type": "object", "additionalProperties": false, "required": ["name", "kind", "pods"],
                "allOf": [
                    only_of(&["JobSet"], "jobs"), only_of(&["Job", "IndexedJob"], "parallelism"), only_of(&jobs, "podReplacementPolicy"),
                    only_of(&working, "takes"), only_of(&working, "checkpointEvery"), only_of(&["StatefulSet"], "volume"),
                ],
                "properties": {
                    "name": plain("Its name, which is the label app of its pods."),
                    "kind": { "enum": ["Job", "IndexedJob", "JobSet", "StatefulSet", "Deployment", "AppWrapper"], "description": "A JobSet is Indexed Jobs; an AppWrapper wraps an Indexed Job." },
                    "pods": { "type": "integer", "minimum": 1, "maximum": 200_000, "description": "Its pods; of a Job, its completions; of a JobSet, those of each Job." },
                    "jobs": { "type": "integer", "minimum": 1, "description": "The Jobs of a JobSet; default 1." },
                    "parallelism": { "type": "integer", "minimum": 1, "description": "Pods of a Job at once; default all." },
                    "podReplacementPolicy": { "enum": ["Failed", "TerminatingOrFailed"], "description": "When a Job replaces a pod; default TerminatingOrFailed." },
                    "takes": duration("The time that one pod needs; without it, it runs on."),
                    "checkpointEvery": duration("The work of a pod is saved this often. Without it, all is lost when the pod dies."),
                    "startDelay": duration("From the admission of a pod to its start, such as the time to pull an image."),
                    "consent": { "enum": ["none", "terminate", "delete"], "description": "The opt-in annotation of its pods: safe-to-forcefully-terminate or -delete; default none." },
                    "evictAfter": duration("The annotation salvor.dev/evict-after of its pods: they are given up this long after their node became unreachable. Needs consent."),
                    "gracePeriod": duration("Its pods' grace period; default 30s."),
                    "toleratesUnreachable": duration("Its pods tolerate an unreachable or not ready node for this long; default 5m, which is the cluster's."),
                    "requests": amounts("Resources of each pod; default 1 CPU."),
                    "volume": quantity("The size of the volume of each pod of a StatefulSet, such as 10Gi."),
                    "pool": text("Its pods run on nodes of this pool only, and tolerate its taints."),
                    "annotations": names("Annotations of its pods; of an AppWrapper, its own."),
                    "budget": { "$ref": "#/$defs/budget" },
                },
            },
            "budget": {
                "type": "object", "additionalProperties": false, "minProperties": 1, "maxProperties": 1,
                "description": "A PodDisruptionBudget of its pods: drains respect it.",
                "properties": {
                    "minAvailable": amount("So many pods must be left, or such a share of them."),
                    "maxUnavailable": amount("So many pods may be away, or such a share of them."),
                },
            },
            "salvor": {
                "type": "object", "additionalProperties": false, "not": { "required": ["config", "configFile"] },
                "properties": {
                    "enabled": { "type": "boolean", "description": "False plays without Salvor; default true." },
                    "config": { "type": "object", "description": "Its configuration; apiVersion and kind may be left out." },
                    "configFile": text("Its configuration, as a file beside the scenario."),
                    "repairPolicies": { "type": "object", "description": "The spec of each NodeRepairPolicy, by name." },
                },
            },
            "target": {
                "type": "object", "additionalProperties": false, "minProperties": 1,
                "description": "All nodes that fit what is written.",
                "if": { "required": ["node"] }, "then": { "maxProperties": 1 },
                "properties": {
                    "zone": text("Nodes of this zone."), "node": text("This node."), "pool": text("Nodes of this pool."),
                    "rack": text("Nodes of this rack."), "spot": { "type": "boolean", "description": "Nodes that are spot nodes, or that are not." },
                },
            },
            "step": {
                "type": "object", "additionalProperties": false, "required": ["after", "title"],
                "allOf": at_most_one(&["crash", "partition", "heal", "reboot", "failAccelerator"]),
                "properties": {
                    "after": duration("The time after the step before."),
                    "title": text("A chapter."), "say": text("Its text."),
                    "expect": { "const": "recovered", "description": "All work must run by now." },
                    "crash": { "$ref": "#/$defs/target" }, "partition": { "$ref": "#/$defs/target" },
                    "heal": { "$ref": "#/$defs/target" }, "reboot": { "$ref": "#/$defs/target" },
                    "failAccelerator": { "$ref": "#/$defs/target" },
                },
            },
            "failure": {
                "type": "object", "additionalProperties": false,
                "if": { "required": ["csv"] },
                "then": { "maxProperties": 1 },
                "else": {
                    "required": ["kind"],
                    "oneOf": [{ "required": ["at"] }, { "required": ["mtbf"] }],
                    "allOf": [
                        only_of(&["slow"], "delay"), only_of(&["flapping"], "down"), only_of(&["flapping"], "up"), only_of(&["sick"], "condition"),
                        { "not": { "required": ["lasts", "lastsMean"] } },
                        { "not": { "required": ["at", "per"] } },
                        { "not": { "required": ["mtbf", "pick"] } },
                        { "if": { "properties": { "kind": { "const": "reboot" } } }, "then": neither(&["lasts", "lastsMean"]) },
                    ],
                },
                "properties": {
                    "kind": { "enum": ["crash", "partition", "kubeletStop", "slow", "flapping", "sick", "reboot"] },
                    "target": { "$ref": "#/$defs/target" },
                    "at": duration("It happens at this time."),
                    "pick": { "type": "integer", "minimum": 1, "description": "With at: only to so many nodes of the target, drawn by the seed." },
                    "mtbf": duration("It happens again and again, with this mean time between, drawn by the seed."),
                    "per": { "enum": ["node", "rack", "zone", "pool"], "description": "With mtbf: what fails together; default node." },
                    "lasts": duration("It is over after this time; without, it lasts to the end."),
                    "lastsMean": duration("It is over after a time with this mean, drawn by the seed."),
                    "oneEvery": duration("Nodes fail one after another, this long apart, as in a rollout."),
                    "delay": duration("slow: each call of the kubelet takes this much longer; default 5s."),
                    "down": duration("flapping: cut off for this long each time; default 60s."),
                    "up": duration("flapping: back for this long each time; default 60s."),
                    "condition": { "$ref": "#/$defs/condition" },
                    "csv": text("A recorded list, as a file beside the scenario, with the columns at,kind,target,lasts."),
                },
            },
            "condition": {
                "type": "object", "additionalProperties": false, "required": ["type"],
                "description": "sick: the condition of the node; default AcceleratedHardwareReady False.",
                "properties": { "type": text("Its type."), "status": text("Its status while the node is sick; default False."), "reason": text("Its reason.") },
            },
        },
    })
}

fn amount(about: &str) -> Value {
    let share = json!({ "type": "string", "pattern": "^(100|[0-9]{1,2})%$" });
    json!({ "oneOf": [{ "type": "integer", "minimum": 0 }, share], "description": about })
}

/// A name from which names of objects are built.
const PLAIN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// An amount of a resource. YAML parses one without a unit as a number.
fn quantity(about: &str) -> Value {
    let pattern = r"^([0-9]+\.?[0-9]*|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi)?$";
    json!({ "type": ["string", "number"], "pattern": pattern, "minimum": 0, "description": about })
}

/// A duration. YAML parses `0` as a number.
fn duration(about: &str) -> Value {
    let pattern = r"^\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$|^\+?0$";
    json!({ "type": ["string", "integer"], "pattern": pattern, "minimum": 0, "maximum": 0, "description": about })
}
