//! A story for the demo, as a file: which nodes and work there are, and what happens to them.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use salvor_api::GoDuration;
use salvor_cluster::NodeFault;
use serde::Deserialize;
use serde_saphyr::Spanned;

/// The story that is played when no other is given.
pub(super) const DEFAULT: &str = include_str!("zone-outage.yaml");

/// More would not be a story any more, and a page of letters names the zones.
const MOST_ZONES: u32 = 26;
const MOST_NODES: u32 = 1_000;
const MOST_PODS: u32 = 10_000;
const MOST_GPU_NODES: u32 = 100;

/// The pool of the nodes with an accelerator. They are named after it.
pub(super) const GPU_POOL: &str = "gpu";

/// Why a file is no story.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScenarioError {
    #[error("{0}")]
    Yaml(String),
    #[error("line {line}: {field}: {problem}")]
    Value { line: u64, field: String, problem: String },
}

/// A story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) title: String,
    pub(super) say: String,
    pub(super) zones: u32,
    pub(super) nodes_per_zone: u32,
    /// Nodes with an accelerator, in the last zone. They are not among the others.
    pub(super) gpu_nodes: u32,
    pub(super) work: Work,
    /// Everything must have recovered this long after the last step.
    pub(super) patience: Duration,
    pub(super) steps: Vec<Step>,
}

/// The number of pods, by workload.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Work {
    pub(super) training: u32,
    pub(super) database: u32,
    pub(super) website: u32,
    pub(super) batch: u32,
    pub(super) simulation: u32,
    /// Each needs an accelerator of its own.
    pub(super) tuning: u32,
}

impl Default for Work {
    fn default() -> Self {
        Self { training: 6, database: 3, website: 6, batch: 24, simulation: 4, tuning: 0 }
    }
}

/// Something that happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Fault(NodeFault),
    /// The node is Ready, and its accelerator does not work.
    FailAccelerator,
}

impl Deed {
    /// Its name in a file.
    fn name(self) -> &'static str {
        match self {
            Self::Fault(fault) => fault.name(),
            Self::FailAccelerator => "failAccelerator",
        }
    }
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The time after the step before.
    pub(super) after: Duration,
    pub(super) title: String,
    pub(super) say: String,
    /// All work must run by now.
    pub(super) expect_recovered: bool,
    /// The deed, and its nodes.
    pub(super) strike: Option<(Deed, Vec<String>)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    say: String,
    #[serde(default = "three")]
    zones: Spanned<u32>,
    #[serde(default = "four")]
    nodes_per_zone: Spanned<u32>,
    #[serde(default = "none")]
    gpu_nodes: Spanned<u32>,
    #[serde(default)]
    work: Option<Spanned<Work>>,
    #[serde(default = "ten_minutes")]
    patience: Spanned<String>,
    steps: Vec<Spanned<FileStep>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileStep {
    after: Spanned<String>,
    title: String,
    #[serde(default)]
    say: String,
    #[serde(default)]
    expect: Option<Spanned<String>>,
    crash: Option<Spanned<Target>>,
    partition: Option<Spanned<Target>>,
    heal: Option<Spanned<Target>>,
    reboot: Option<Spanned<Target>>,
    fail_accelerator: Option<Spanned<Target>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    zone: Option<String>,
    node: Option<String>,
}

fn none() -> Spanned<u32> {
    unplaced(0)
}

fn three() -> Spanned<u32> {
    unplaced(3)
}

fn four() -> Spanned<u32> {
    unplaced(4)
}

fn ten_minutes() -> Spanned<String> {
    unplaced("10m".to_owned())
}

fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned { value, referenced: serde_saphyr::Location::UNKNOWN, defined: serde_saphyr::Location::UNKNOWN }
}

impl Scenario {
    /// Reads a story.
    pub(super) fn parse(text: &str) -> Result<Self, ScenarioError> {
        let file: File = serde_saphyr::from_str(text)
            .map_err(|error| ScenarioError::Yaml(error.to_string().trim_end().to_owned()))?;
        let zones = within(&file.zones, "zones", 1, MOST_ZONES)?;
        let nodes_per_zone = within(&file.nodes_per_zone, "nodesPerZone", 1, MOST_NODES / zones)?;
        let gpu_nodes = within(&file.gpu_nodes, "gpuNodes", 0, MOST_GPU_NODES)?;
        let work = match file.work {
            Some(work) => {
                let line = work.referenced.line();
                let Work { training, database, website, batch, simulation, tuning } = work.value;
                let all = [training, database, website, batch, simulation, tuning];
                let pods = all.iter().map(|n| u64::from(*n)).sum::<u64>();
                if pods > u64::from(MOST_PODS) {
                    return Err(bad(line, "work", format!("{pods} pods are too many: at most {MOST_PODS}")));
                }
                if tuning > gpu_nodes {
                    let problem = format!(
                        "{tuning} pods need an accelerator each, and gpuNodes is {gpu_nodes}: write no more than that"
                    );
                    return Err(bad(line, "work.tuning", problem));
                }
                work.value
            }
            None => Work::default(),
        };
        let mut scenario = Self {
            title: file.title,
            say: file.say,
            zones,
            nodes_per_zone,
            gpu_nodes,
            work,
            patience: duration(&file.patience, "patience")?,
            steps: Vec::new(),
        };
        for (index, step) in file.steps.into_iter().enumerate() {
            let step = scenario.step(&format!("steps[{index}]"), step)?;
            scenario.steps.push(step);
        }
        Ok(scenario)
    }

    fn step(&self, at: &str, step: Spanned<FileStep>) -> Result<Step, ScenarioError> {
        let line = step.referenced.line();
        let FileStep { after, title, say, expect, crash, partition, heal, reboot, fail_accelerator } =
            step.value;
        let deeds = [
            (Deed::Fault(NodeFault::Crash), crash),
            (Deed::Fault(NodeFault::Partition), partition),
            (Deed::Fault(NodeFault::Heal), heal),
            (Deed::Fault(NodeFault::Reboot), reboot),
            (Deed::FailAccelerator, fail_accelerator),
        ];
        let mut strike = None;
        for (deed, target) in deeds {
            let Some(target) = target else { continue };
            if strike.is_some() {
                let problem =
                    "more than one of crash, partition, heal, reboot and failAccelerator: make a step of each"
                        .into();
                return Err(bad(line, at, problem));
            }
            strike = Some((deed, self.nodes(&format!("{at}.{}", deed.name()), deed, &target)?));
        }
        let expect_recovered = match &expect {
            None => false,
            Some(text) if text.value == "recovered" => true,
            Some(text) => {
                let problem =
                    format!("{:?} cannot be expected: write recovered, or leave it out", text.value);
                return Err(bad(text.referenced.line(), &format!("{at}.expect"), problem));
            }
        };
        Ok(Step { after: duration(&after, &format!("{at}.after"))?, title, say, expect_recovered, strike })
    }

    fn nodes(&self, at: &str, deed: Deed, target: &Spanned<Target>) -> Result<Vec<String>, ScenarioError> {
        let line = target.referenced.line();
        let (field, nodes) = match (&target.value.zone, &target.value.node) {
            (Some(zone), None) => {
                let zones: Vec<_> = self.zone_names().collect();
                let Some(zone) = zones.iter().find(|known| *known == zone) else {
                    let problem = format!("there is no zone {zone:?}; there are {}", zones.join(", "));
                    return Err(bad(line, &format!("{at}.zone"), problem));
                };
                let gpus = self.gpu_names().filter(|_| *zone == self.gpu_zone());
                (
                    format!("{at}.zone"),
                    (1..=self.nodes_per_zone).map(|n| node_name(zone, n)).chain(gpus).collect(),
                )
            }
            (None, Some(node)) => {
                let known: BTreeSet<_> = self.node_names().map(|(_, node)| node).collect();
                if !known.contains(node) && !self.gpu_names().any(|gpu| gpu == *node) {
                    let last = known.last().cloned().unwrap_or_default();
                    let gpus = match self.gpu_names().last() {
                        Some(last) => format!(", and {GPU_POOL}-1 to {last}"),
                        None => String::new(),
                    };
                    let problem = format!("there is no node {node:?}; there are node-a1 to {last}{gpus}");
                    return Err(bad(line, &format!("{at}.node"), problem));
                }
                (format!("{at}.node"), vec![node.clone()])
            }
            _ => return Err(bad(line, at, "write either {zone: NAME} or {node: NAME}".into())),
        };
        match deed {
            Deed::Fault(_) => Ok(nodes),
            Deed::FailAccelerator => {
                let gpus: Vec<String> = self.gpu_names().filter(|gpu| nodes.contains(gpu)).collect();
                if gpus.is_empty() {
                    let problem = match self.gpu_names().last() {
                        Some(last) => {
                            format!("no node of these has an accelerator; {GPU_POOL}-1 to {last} have")
                        }
                        None => "no node has an accelerator: write gpuNodes, such as gpuNodes: 2".into(),
                    };
                    return Err(bad(line, &field, problem));
                }
                Ok(gpus)
            }
        }
    }

    /// The nodes with an accelerator, as they are named in the beginning.
    fn gpu_names(&self) -> impl Iterator<Item = String> + use<> {
        (1..=self.gpu_nodes).map(|n| format!("{GPU_POOL}-{n}"))
    }

    /// The zone of the nodes with an accelerator.
    pub(super) fn gpu_zone(&self) -> String {
        self.zone_names().last().unwrap_or_default()
    }

    fn zone_names(&self) -> impl Iterator<Item = String> + use<> {
        ('a'..='z').take(self.zones as usize).map(String::from)
    }

    /// Every node with its zone.
    pub(super) fn node_names(&self) -> impl Iterator<Item = (String, String)> {
        let count = self.nodes_per_zone;
        self.zone_names().flat_map(move |zone| {
            let name = zone.clone();
            (1..=count).map(move |n| (zone.clone(), node_name(&name, n)))
        })
    }
}

fn node_name(zone: &str, number: u32) -> String {
    format!("node-{zone}{number}")
}

fn bad(line: u64, field: &str, problem: String) -> ScenarioError {
    ScenarioError::Value { line, field: field.to_owned(), problem }
}

fn within(value: &Spanned<u32>, field: &str, least: u32, most: u32) -> Result<u32, ScenarioError> {
    if (least..=most).contains(&value.value) {
        return Ok(value.value);
    }
    let problem = format!("{} cannot be used: write a whole number from {least} to {most}", value.value);
    Err(bad(value.referenced.line(), field, problem))
}

fn duration(text: &Spanned<String>, field: &str) -> Result<Duration, ScenarioError> {
    let line = text.referenced.line();
    let parsed: GoDuration = text.value.parse().map_err(|e| bad(line, field, format!("{e}")))?;
    let too_long = || bad(line, field, format!("{:?} cannot be used: write 0s to 24h", text.value));
    let parsed = Duration::try_from(SignedDuration::from(parsed)).map_err(|_| too_long())?;
    if parsed > Duration::from_secs(24 * 3600) { Err(too_long()) } else { Ok(parsed) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, rng_seed: RngSeed::Fixed(6757), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_a_story_or_is_refused(text in "\\PC{0,80}|([a-zA-Z]{0,9}: ?[\\[\\]{}a-z0-9&*-]{0,9}\n){0,6}") {
            if let Err(error) = Scenario::parse(&text) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        /// What is left of the default story after somebody's slip is a story within the limits, or says where it is not.
        #[test]
        fn a_damaged_story_is_read_or_refused(at in 0usize..6000, cut in 0usize..40, new in "\\PC{0,4}|[\n:{}\\[\\]*&!|>'\"#-]{1,3}|[0-9]{1,12}") {
            let start = DEFAULT.floor_char_boundary(at);
            let end = DEFAULT.floor_char_boundary((start + cut).min(DEFAULT.len()));
            let text = format!("{}{new}{}", &DEFAULT[..start], &DEFAULT[end.max(start)..]);
            match Scenario::parse(&text) {
                Ok(story) => {
                    prop_assert!(story.node_names().count() <= MOST_NODES as usize);
                    prop_assert!(story.steps.iter().all(|step| step.after <= Duration::from_secs(24 * 3600)));
                }
                Err(error) => prop_assert!(error.to_string().contains("line") || text.trim().is_empty(), "{}", error),
            }
        }
    }

    #[test]
    fn the_default_story_is_one() {
        let scenario = Scenario::parse(DEFAULT).unwrap();
        assert_eq!((scenario.node_names().count(), scenario.gpu_nodes), (12, 2));
        assert!(scenario.steps.iter().any(|s| s.expect_recovered));
    }

    #[test]
    fn everything_but_title_and_steps_has_a_default() {
        let scenario = Scenario::parse("title: t\nsteps: []\n").unwrap();
        assert_eq!(scenario.work, Work::default());
        assert_eq!((scenario.zones, scenario.nodes_per_zone), (3, 4));
        assert_eq!(scenario.patience, Duration::from_secs(600));
    }

    #[test]
    fn a_zone_stands_for_its_nodes() {
        let text =
            "title: t\nzones: 2\nnodesPerZone: 2\nsteps:\n- {after: 1m30s, title: x, crash: {zone: b}}\n";
        let scenario = Scenario::parse(text).unwrap();
        let step = &scenario.steps[0];
        assert_eq!(step.after, Duration::from_secs(90));
        let crash = Deed::Fault(NodeFault::Crash);
        assert_eq!(step.strike, Some((crash, vec!["node-b1".into(), "node-b2".into()])));
    }

    #[test]
    fn nodes_with_an_accelerator_are_in_the_last_zone() {
        let text = |deed: &str| {
            format!(
                "title: t\nzones: 2\nnodesPerZone: 1\ngpuNodes: 2\nsteps:\n- {{after: 1s, title: x, {deed}}}\n"
            )
        };
        let strike = |deed: &str| Scenario::parse(&text(deed)).unwrap().steps[0].strike.clone().unwrap();
        assert_eq!(strike("heal: {zone: a}").1, ["node-a1"]);
        assert_eq!(strike("crash: {zone: b}").1, ["node-b1", "gpu-1", "gpu-2"]);
        assert_eq!(strike("crash: {node: gpu-2}").1, ["gpu-2"]);
        let failed = strike("failAccelerator: {zone: b}");
        assert_eq!(failed, (Deed::FailAccelerator, vec!["gpu-1".to_owned(), "gpu-2".to_owned()]));
        let refused = Scenario::parse(&text("failAccelerator: {node: node-b1}")).unwrap_err().to_string();
        assert_eq!(
            refused,
            "line 6: steps[0].failAccelerator.node: no node of these has an accelerator; gpu-1 to gpu-2 have"
        );
    }

    #[test]
    fn errors_name_the_field_the_value_the_line_and_what_is_right() {
        let step = |rest: &str| format!("title: t\nsteps:\n- after: 1s\n  title: x\n  {rest}\n");
        let cases = [
            (
                "title: t\nzones: 27\nsteps: []\n".to_owned(),
                "line 2: zones: 27 cannot be used: write a whole number from 1 to 26",
            ),
            ("title: t\nnodesPerZone: 0\nsteps: []\n".to_owned(), "line 2: nodesPerZone: 0 cannot be used"),
            ("title: t\npatience: soon\nsteps: []\n".to_owned(), "line 2: patience: "),
            (
                "title: t\npatience: 25h\nsteps: []\n".to_owned(),
                "line 2: patience: \"25h\" cannot be used: write 0s to 24h",
            ),
            (
                "title: t\ngpuNodes: 101\nsteps: []\n".to_owned(),
                "line 2: gpuNodes: 101 cannot be used: write a whole number from 0 to 100",
            ),
            (
                "title: t\nwork: {tuning: 2}\nsteps: []\n".to_owned(),
                "line 2: work.tuning: 2 pods need an accelerator each, and gpuNodes is 0",
            ),
            (
                step("failAccelerator: {zone: a}"),
                "line 5: steps[0].failAccelerator.zone: no node has an accelerator: write gpuNodes",
            ),
            ("title: t\nwork: {batch: 10001}\nsteps: []\n".to_owned(), "line 2: work: "),
            (
                step("crash: {zone: z}"),
                "line 5: steps[0].crash.zone: there is no zone \"z\"; there are a, b, c",
            ),
            (
                step("heal: {node: x}"),
                "line 5: steps[0].heal.node: there is no node \"x\"; there are node-a1 to node-c4",
            ),
            (step("reboot: {}"), "line 5: steps[0].reboot: write either {zone: NAME} or {node: NAME}"),
            (step("expect: joy"), "line 5: steps[0].expect: \"joy\" cannot be expected: write recovered"),
            (step("crash: {zone: a}\n  heal: {zone: a}"), "line 3: steps[0]: more than one of crash"),
        ];
        for (text, expected) in cases {
            let error = Scenario::parse(&text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}\n{error}");
        }
    }

    #[test]
    fn what_is_not_in_the_format_is_refused_with_its_line() {
        for (text, field) in [
            ("title: t\nstep: []\n", "step"),
            ("title: t\nwork: {cats: 1}\nsteps: []\n", "cats"),
            ("steps: []\n", "title"),
        ] {
            let error = Scenario::parse(text).unwrap_err().to_string();
            assert!(error.contains(field) && error.contains("line"), "{error}");
        }
        assert!(Scenario::parse("title: [\n").is_err());
        assert!(Scenario::parse("").is_err());
    }
}
