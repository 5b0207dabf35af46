//! The scenario file, as users write it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::{Location, Spanned};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct File {
    pub(super) api_version: Option<Spanned<String>>,
    pub(super) kind: Option<Spanned<String>>,
    pub(super) title: String,
    #[serde(default)]
    pub(super) say: String,
    pub(super) zones: Option<Spanned<u32>>,
    pub(super) nodes_per_zone: Option<Spanned<u32>>,
    pub(super) gpu_nodes: Option<Spanned<u32>>,
    pub(super) work: Option<Spanned<Work>>,
    pub(super) pools: Option<Spanned<Vec<Spanned<Pool>>>>,
    pub(super) workloads: Option<Spanned<Vec<Spanned<Workload>>>>,
    pub(super) salvor: Option<Spanned<Salvor>>,
    #[serde(default = "ten_minutes")]
    pub(super) patience: Spanned<String>,
    pub(super) end: Option<Spanned<String>>,
    pub(super) back_soon: Option<Spanned<String>>,
    pub(super) steps: Option<Vec<Spanned<Step>>>,
    #[serde(default)]
    pub(super) failures: Vec<Spanned<Failure>>,
}

/// The number of pods of each workload of the short form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Work {
    pub(super) training: u32,
    pub(super) database: u32,
    pub(super) website: u32,
    pub(super) batch: u32,
    pub(super) simulation: u32,
    /// Each needs its own accelerator.
    pub(super) tuning: u32,
}

impl Default for Work {
    fn default() -> Self {
        Self { training: 6, database: 3, website: 6, batch: 24, simulation: 4, tuning: 0 }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Pool {
    pub(super) name: Spanned<String>,
    pub(super) nodes: Spanned<u32>,
    #[serde(default)]
    pub(super) zones: Vec<String>,
    pub(super) racks_per_zone: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) taints: Vec<Spanned<Taint>>,
    #[serde(default)]
    pub(super) capacity: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) spot: bool,
    pub(super) machines: Option<Machines>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Taint {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) effect: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Machines {
    pub(super) shutdown: Spanned<String>,
    pub(super) boot: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Workload {
    pub(super) name: Spanned<String>,
    pub(super) kind: Spanned<String>,
    pub(super) pods: Spanned<u32>,
    pub(super) jobs: Option<Spanned<u32>>,
    pub(super) parallelism: Option<Spanned<u32>>,
    pub(super) pod_replacement_policy: Option<Spanned<String>>,
    pub(super) takes: Option<Spanned<String>>,
    pub(super) checkpoint_every: Option<Spanned<String>>,
    pub(super) start_delay: Option<Spanned<String>>,
    pub(super) consent: Option<Spanned<String>>,
    pub(super) evict_after: Option<Spanned<String>>,
    pub(super) grace_period: Option<Spanned<String>>,
    pub(super) tolerates_unreachable: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) requests: BTreeMap<String, String>,
    pub(super) volume: Option<Spanned<String>>,
    pub(super) pool: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) budget: Option<Spanned<Budget>>,
}

/// A PodDisruptionBudget. Each field is a number of pods, or a percentage, for example `50%`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Budget {
    pub(super) min_available: Option<Value>,
    pub(super) max_unavailable: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Salvor {
    #[serde(default = "yes")]
    pub(super) enabled: bool,
    pub(super) config: Option<Spanned<Value>>,
    pub(super) config_file: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) repair_policies: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Step {
    pub(super) after: Spanned<String>,
    pub(super) title: String,
    #[serde(default)]
    pub(super) say: String,
    pub(super) expect: Option<Spanned<String>>,
    pub(super) crash: Option<Spanned<Target>>,
    pub(super) partition: Option<Spanned<Target>>,
    pub(super) heal: Option<Spanned<Target>>,
    pub(super) reboot: Option<Spanned<Target>>,
    pub(super) fail_accelerator: Option<Spanned<Target>>,
}

/// Selects the nodes that match all given fields.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    pub(super) zone: Option<String>,
    pub(super) node: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) rack: Option<String>,
    pub(super) spot: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Failure {
    pub(super) kind: Option<Spanned<String>>,
    pub(super) target: Option<Spanned<Target>>,
    pub(super) at: Option<Spanned<String>>,
    pub(super) mtbf: Option<Spanned<String>>,
    pub(super) per: Option<Spanned<String>>,
    pub(super) pick: Option<Spanned<u32>>,
    pub(super) lasts: Option<Spanned<String>>,
    pub(super) lasts_mean: Option<Spanned<String>>,
    pub(super) one_every: Option<Spanned<String>>,
    pub(super) delay: Option<Spanned<String>>,
    pub(super) down: Option<Spanned<String>>,
    pub(super) up: Option<Spanned<String>>,
    pub(super) condition: Option<Condition>,
    pub(super) csv: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default = "false_text")]
    pub(super) status: String,
    #[serde(default = "simulated")]
    pub(super) reason: String,
}

fn yes() -> bool {
    true
}

fn false_text() -> String {
    "False".to_owned()
}

fn simulated() -> String {
    "Simulated".to_owned()
}

fn ten_minutes() -> Spanned<String> {
    unplaced("10m".to_owned())
}

/// A value that does not come from a file.
pub(super) fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned { value, referenced: Location::UNKNOWN, defined: Location::UNKNOWN }
}

/// The files that a scenario names, in its order: a configuration, and recorded lists.
pub fn other_files(text: &str) -> Vec<String> {
    let Ok(value) = serde_saphyr::from_str::<Value>(text) else { return Vec::new() };
    let lists = value["failures"].as_array().into_iter().flatten().map(|failure| &failure["csv"]);
    let all = std::iter::once(&value["salvor"]["configFile"]).chain(lists);
    all.filter_map(|it| it.as_str().map(str::to_owned)).collect()
}
