//! From a file to a scenario: every value is checked, and what is wrong is told with its line.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::SignedDuration;
use salvor_api::{GoDuration, LabelSelector, names::taints};
use serde_saphyr::Spanned;

use super::{
    ACCELERATOR, API_VERSION, Condition, Consent, Deed, Fault, GPU_POOL, KIND, Machines, Node, Pool,
    Scenario, ScenarioError, Shape, Source, Step, Taint, Workload, accelerator_condition, failures,
    file::{self, File, Target, unplaced},
    salvor, workloads,
};

/// More zones have no letters, and the other limits keep a typing error from filling the memory.
const MOST_ZONES: u32 = 26;
const MOST_NODES_OF_ZONES: u32 = 1_000;
const MOST_NODES: u32 = 20_000;
const MOST_PODS: u32 = 200_000;
const MOST_PODS_OF_WORK: u32 = 10_000;
const MOST_GPU_NODES: u32 = 100;

/// The pool of the nodes of the short form, and the first part of their names.
const SHORT_POOL: &str = "demo";
const SHORT_NAME: &str = "node";

/// The duration of Kubernetes' own grace period.
const USUAL_GRACE: Duration = Duration::from_secs(30);
/// Many health checks and load balancers call a machine back that was away for no longer.
const BACK_SOON: Duration = Duration::from_secs(300);

pub(super) fn scenario(text: &str, source: &Source) -> Result<Scenario, ScenarioError> {
    let file: File = serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map_or(0, |at| at.line());
        let words = error.without_snippet().to_string();
        let words = words.lines().next().unwrap_or_default().trim_end().to_owned();
        ScenarioError::Yaml(if line == 0 { words } else { format!("line {line}: {words}") })
    })?;
    is_ours(file.api_version.as_ref(), "apiVersion", API_VERSION)?;
    is_ours(file.kind.as_ref(), "kind", KIND)?;
    let (pools, nodes) = match &file.pools {
        Some(pools) => {
            for (name, short) in [
                ("zones", &file.zones),
                ("nodesPerZone", &file.nodes_per_zone),
                ("gpuNodes", &file.gpu_nodes),
            ] {
                if let Some(short) = short {
                    let problem =
                        "there are pools as well: write either pools, or zones, nodesPerZone and gpuNodes"
                            .into();
                    return Err(bad(line(short), name, problem));
                }
            }
            long_pools(pools)?
        }
        None => short_pools(&file)?,
    };
    let workloads = workloads_of(&file, &pools)?;
    let is_short = file.pools.is_none();
    let salvor = salvor::settings(file.salvor.as_ref(), text, source, is_short, &pools)?;
    let mut scenario = Scenario {
        title: file.title,
        say: file.say,
        pools,
        nodes,
        workloads,
        steps: Vec::new(),
        failures: Vec::new(),
        salvor,
        patience: duration(&file.patience, "patience")?,
        end: file.end.as_ref().map(|end| duration(end, "end")).transpose()?,
        back_soon: file
            .back_soon
            .as_ref()
            .map(|it| duration(it, "backSoon"))
            .transpose()?
            .unwrap_or(BACK_SOON),
    };
    for (index, step) in file.steps.unwrap_or_default().into_iter().enumerate() {
        let step = scenario.step(&format!("steps[{index}]"), step)?;
        scenario.steps.push(step);
    }
    for (index, failure) in file.failures.iter().enumerate() {
        let more = failures::read(&scenario, &format!("failures[{index}]"), failure, source)?;
        scenario.failures.extend(more);
    }
    Ok(scenario)
}

fn is_ours(found: Option<&Spanned<String>>, field: &str, ours: &str) -> Result<(), ScenarioError> {
    match found {
        Some(found) if found.value != ours => Err(bad(
            line(found),
            field,
            format!("{:?} is not known: write {ours}, or leave it out", found.value),
        )),
        _ => Ok(()),
    }
}

fn short_pools(file: &File) -> Result<(Vec<Pool>, Vec<Node>), ScenarioError> {
    let or = |value: &Option<Spanned<u32>>, usual| match value {
        Some(it) => Spanned { value: it.value, referenced: it.referenced, defined: it.defined },
        None => unplaced(usual),
    };
    let zones = within(&or(&file.zones, 3), "zones", 1, MOST_ZONES)?;
    let each = within(&or(&file.nodes_per_zone, 4), "nodesPerZone", 1, MOST_NODES_OF_ZONES / zones)?;
    let gpus = within(&or(&file.gpu_nodes, 0), "gpuNodes", 0, MOST_GPU_NODES)?;
    let zones: Vec<String> = ('a'..='z').take(zones as usize).map(String::from).collect();
    let mut pools = vec![Pool {
        name: SHORT_POOL.to_owned(),
        labels: [("pool".to_owned(), SHORT_POOL.to_owned())].into(),
        taints: Vec::new(),
        capacity: [].into(),
        spot: false,
        machines: None,
    }];
    let mut nodes: Vec<Node> = Vec::new();
    for zone in &zones {
        nodes.extend((1..=each).map(|number| Node {
            name: format!("{SHORT_NAME}-{zone}{number}"),
            pool: SHORT_POOL.to_owned(),
            zone: zone.clone(),
            rack: None,
        }));
    }
    if gpus > 0 {
        pools.push(Pool {
            name: GPU_POOL.to_owned(),
            labels: [].into(),
            taints: vec![Taint {
                key: ACCELERATOR.to_owned(),
                value: None,
                effect: taints::NO_SCHEDULE.to_owned(),
            }],
            capacity: [(ACCELERATOR.to_owned(), "1".to_owned())].into(),
            spot: false,
            // Short, so that the story does not take long.
            machines: Some(Machines { shutdown: Duration::from_secs(10), boot: Duration::from_secs(25) }),
        });
        let zone = zones.last().cloned().unwrap_or_default();
        nodes.extend((1..=gpus).map(|number| Node {
            name: format!("{GPU_POOL}-{number}"),
            pool: GPU_POOL.to_owned(),
            zone: zone.clone(),
            rack: None,
        }));
    }
    Ok((pools, nodes))
}

fn long_pools(list: &Spanned<Vec<Spanned<file::Pool>>>) -> Result<(Vec<Pool>, Vec<Node>), ScenarioError> {
    if list.value.is_empty() {
        return Err(bad(line(list), "pools", "there must be at least one pool".into()));
    }
    let (mut pools, mut nodes): (Vec<Pool>, Vec<Node>) = (Vec::new(), Vec::new());
    for (index, spanned) in list.value.iter().enumerate() {
        let (at, pool) = (format!("pools[{index}]"), &spanned.value);
        let name = plain_name(&pool.name, &format!("{at}.name"))?;
        if pools.iter().any(|known| known.name == name) {
            return Err(bad(
                line(&pool.name),
                &format!("{at}.name"),
                format!("there are two pools {name:?}"),
            ));
        }
        let count = within(&pool.nodes, &format!("{at}.nodes"), 1, MOST_NODES)?;
        let zones = if pool.zones.is_empty() { vec!["a".to_owned()] } else { pool.zones.clone() };
        if let Some(zone) = zones.iter().find(|zone| !is_plain(zone)) {
            let problem =
                format!("{zone:?} cannot be the name of a zone: write lower case letters, digits and '-'");
            return Err(bad(line(spanned), &format!("{at}.zones"), problem));
        }
        if pool.machines.is_some() && zones.len() > 1 {
            let problem =
                "the nodes of a pool with machines are in one zone: make a pool for each zone".into();
            return Err(bad(line(spanned), &format!("{at}.zones"), problem));
        }
        let racks = match &pool.racks_per_zone {
            Some(racks) => within(racks, &format!("{at}.racksPerZone"), 1, count)?,
            None => 0,
        };
        if pool.machines.is_some() && racks > 0 {
            let problem = "the nodes of a pool with machines have no racks".into();
            return Err(bad(line(spanned), &format!("{at}.racksPerZone"), problem));
        }
        let rack_of =
            |zone: &str, number: u32| (racks > 0).then(|| format!("{zone}{}", (number - 1) % racks + 1));
        let zone_count = u32::try_from(zones.len()).unwrap_or(u32::MAX);
        for (position, zone) in (0u32..).zip(&zones) {
            let share = count / zone_count + u32::from(position < count % zone_count);
            nodes.extend((1..=share).map(|number| Node {
                name: match pool.machines {
                    Some(_) => format!("{name}-{number}"),
                    None => format!("{name}-{zone}{number}"),
                },
                pool: name.clone(),
                zone: zone.clone(),
                rack: rack_of(zone, number),
            }));
        }
        let own = line(spanned);
        labelled(own, &format!("{at}.labels"), &pool.labels)?;
        amounts(own, &format!("{at}.capacity"), &pool.capacity)?;
        let mut labels = pool.labels.clone();
        labels.insert("pool".to_owned(), name.clone());
        pools.push(Pool {
            labels,
            taints: pool
                .taints
                .iter()
                .enumerate()
                .map(|(n, it)| taint(&format!("{at}.taints[{n}]"), it))
                .collect::<Result<_, _>>()?,
            capacity: pool.capacity.clone(),
            spot: pool.spot,
            machines: match &pool.machines {
                Some(machines) => Some(Machines {
                    shutdown: duration(&machines.shutdown, &format!("{at}.machines.shutdown"))?,
                    boot: duration(&machines.boot, &format!("{at}.machines.boot"))?,
                }),
                None => None,
            },
            name,
        });
    }
    if nodes.len() > MOST_NODES as usize {
        return Err(bad(
            line(list),
            "pools",
            format!("{} nodes are too many: at most {MOST_NODES}", nodes.len()),
        ));
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = nodes.iter().find(|node| !names.insert(&node.name)) {
        return Err(bad(
            line(list),
            "pools",
            format!("two nodes would be named {}: rename a pool", twice.name),
        ));
    }
    Ok((pools, nodes))
}

fn taint(at: &str, spanned: &Spanned<file::Taint>) -> Result<Taint, ScenarioError> {
    let file::Taint { key, value, effect } = &spanned.value;
    if ![taints::NO_SCHEDULE, taints::NO_EXECUTE, "PreferNoSchedule"].contains(&effect.as_str()) {
        let problem = format!("{effect:?} is no effect: write NoSchedule, PreferNoSchedule or NoExecute");
        return Err(bad(line(spanned), &format!("{at}.effect"), problem));
    }
    let as_label = [(key.clone(), value.clone().unwrap_or_default())].into();
    labelled(line(spanned), at, &as_label)?;
    Ok(Taint { key: key.clone(), value: value.clone(), effect: effect.clone() })
}

fn workloads_of(file: &File, pools: &[Pool]) -> Result<Vec<Workload>, ScenarioError> {
    let mut all = Vec::new();
    if let Some(list) = &file.workloads {
        for (index, workload) in list.value.iter().enumerate() {
            let read = workload_of(&format!("workloads[{index}]"), workload, pools)?;
            if all.iter().any(|known: &Workload| known.name == read.name) {
                let problem = format!("there are two workloads {:?}", read.name);
                return Err(bad(line(&workload.value.name), &format!("workloads[{index}].name"), problem));
            }
            all.push(read);
        }
        let pods: u64 = all.iter().map(|it| u64::from(it.units())).sum();
        if pods > u64::from(MOST_PODS) {
            return Err(bad(
                line(list),
                "workloads",
                format!("{pods} pods are too many: at most {MOST_PODS}"),
            ));
        }
    }
    match &file.work {
        Some(work) => {
            let at = line(work);
            let file::Work { training, database, website, batch, simulation, tuning } = work.value;
            let pods = [training, database, website, batch, simulation, tuning]
                .iter()
                .map(|n| u64::from(*n))
                .sum::<u64>();
            if pods > u64::from(MOST_PODS_OF_WORK) {
                return Err(bad(
                    at,
                    "work",
                    format!("{pods} pods are too many: at most {MOST_PODS_OF_WORK}"),
                ));
            }
            let gpus = file.gpu_nodes.as_ref().map_or(0, |it| it.value);
            if tuning > gpus {
                let problem = format!(
                    "{tuning} pods need an accelerator each, and gpuNodes is {gpus}: write no more than that"
                );
                return Err(bad(at, "work.tuning", problem));
            }
            let short = workloads::of_short_form(&work.value);
            if let Some(twice) = short.iter().find(|it| all.iter().any(|known| known.name == it.name)) {
                return Err(bad(
                    at,
                    "work",
                    format!("{} is among the workloads as well: rename that", twice.name),
                ));
            }
            all.extend(short);
        }
        None if file.workloads.is_none() && file.pools.is_none() => {
            all = workloads::of_short_form(&file::Work::default());
        }
        None => {}
    }
    Ok(all)
}

fn workload_of(
    at: &str,
    spanned: &Spanned<file::Workload>,
    pools: &[Pool],
) -> Result<Workload, ScenarioError> {
    let it = &spanned.value;
    let name = plain_name(&it.name, &format!("{at}.name"))?;
    let pods = within(&it.pods, &format!("{at}.pods"), 1, MOST_PODS)?;
    let waits_for_the_end = it.pod_replacement_policy.as_ref().map_or(Ok(false), |policy| {
        Shape::waits(&policy.value)
            .map_err(|problem| bad(line(policy), &format!("{at}.podReplacementPolicy"), problem))
    })?;
    let parallelism = match &it.parallelism {
        Some(wanted) => within(wanted, &format!("{at}.parallelism"), 1, pods)?,
        None => pods,
    };
    let shape = match it.kind.value.as_str() {
        "Job" => Shape::Job { indexed: false, parallelism, waits_for_the_end },
        "IndexedJob" => Shape::Job { indexed: true, parallelism, waits_for_the_end },
        "JobSet" => {
            let jobs = match &it.jobs {
                Some(jobs) => within(jobs, &format!("{at}.jobs"), 1, MOST_PODS / pods)?,
                None => 1,
            };
            Shape::JobSet { jobs, waits_for_the_end }
        }
        "StatefulSet" => Shape::StatefulSet { volume: it.volume.as_ref().map(|volume| volume.value.clone()) },
        "Deployment" => Shape::Deployment,
        "AppWrapper" => Shape::AppWrapper,
        other => {
            let problem = format!(
                "{other:?} is not known: write Job, IndexedJob, JobSet, StatefulSet, Deployment or AppWrapper"
            );
            return Err(bad(line(&it.kind), &format!("{at}.kind"), problem));
        }
    };
    let kind = it.kind.value.as_str();
    let of_jobs = matches!(shape, Shape::Job { .. } | Shape::JobSet { .. });
    let misplaced = [
        ("jobs", it.jobs.as_ref().map(line), kind == "JobSet"),
        ("parallelism", it.parallelism.as_ref().map(line), matches!(shape, Shape::Job { .. })),
        ("podReplacementPolicy", it.pod_replacement_policy.as_ref().map(line), of_jobs),
        ("takes", it.takes.as_ref().map(line), of_jobs || kind == "AppWrapper"),
        ("checkpointEvery", it.checkpoint_every.as_ref().map(line), of_jobs || kind == "AppWrapper"),
        ("volume", it.volume.as_ref().map(line), kind == "StatefulSet"),
    ];
    for (field, written, fits) in misplaced {
        if let (Some(at_line), false) = (written, fits) {
            return Err(bad(at_line, &format!("{at}.{field}"), format!("a {kind} has none: leave it out")));
        }
    }
    let consent = it.consent.as_ref().map_or(Ok(Consent::None), |consent| {
        Consent::read(&consent.value).map_err(|problem| bad(line(consent), &format!("{at}.consent"), problem))
    })?;
    if let Some(pool) = &it.pool
        && !pools.iter().any(|known| known.name == pool.value)
    {
        let known: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let problem = format!("there is no pool {:?}; there are {}", pool.value, known.join(", "));
        return Err(bad(line(pool), &format!("{at}.pool"), problem));
    }
    let optional = |value: &Option<Spanned<String>>, field: &str| {
        value.as_ref().map(|it| duration(it, &format!("{at}.{field}"))).transpose()
    };
    let keys = it.annotations.keys().map(|key| (key.clone(), String::new())).collect();
    labelled(line(spanned), &format!("{at}.annotations"), &keys)?;
    amounts(line(spanned), &format!("{at}.requests"), &it.requests)?;
    if let Some(volume) = &it.volume {
        amounts(line(volume), at, &[("volume".to_owned(), volume.value.clone())].into())?;
    }
    let mut requests = it.requests.clone();
    requests.entry("cpu".to_owned()).or_insert_with(|| "1".to_owned());
    Ok(Workload {
        name,
        shape,
        pods,
        takes: optional(&it.takes, "takes")?,
        checkpoint_every: positive(
            optional(&it.checkpoint_every, "checkpointEvery")?,
            it.checkpoint_every.as_ref(),
            &format!("{at}.checkpointEvery"),
        )?,
        start_delay: optional(&it.start_delay, "startDelay")?,
        consent,
        grace: optional(&it.grace_period, "gracePeriod")?.unwrap_or(USUAL_GRACE),
        tolerates: optional(&it.tolerates_unreachable, "toleratesUnreachable")?,
        requests,
        pool: it.pool.as_ref().map(|pool| pool.value.clone()),
        annotations: it.annotations.clone(),
    })
}

fn positive(
    value: Option<Duration>,
    written: Option<&Spanned<String>>,
    field: &str,
) -> Result<Option<Duration>, ScenarioError> {
    match (value, written) {
        (Some(Duration::ZERO), Some(written)) => {
            Err(bad(line(written), field, "0s cannot be used: write a time, or leave it out".into()))
        }
        (value, _) => Ok(value),
    }
}

impl Scenario {
    fn step(&self, at: &str, spanned: Spanned<file::Step>) -> Result<Step, ScenarioError> {
        let at_line = line(&spanned);
        let file::Step { after, title, say, expect, crash, partition, heal, reboot, fail_accelerator } =
            spanned.value;
        let deeds = [
            (Deed::Fault(Fault::Crash), crash),
            (Deed::Fault(Fault::Partition), partition),
            (Deed::Heal, heal),
            (Deed::Fault(Fault::Reboot), reboot),
            (Deed::Fault(Fault::Sick(accelerator_condition())), fail_accelerator),
        ];
        let mut strike = None;
        for (deed, target) in deeds {
            let Some(target) = target else { continue };
            if strike.is_some() {
                let problem =
                    "more than one of crash, partition, heal, reboot and failAccelerator: make a step of each".into();
                return Err(bad(at_line, at, problem));
            }
            let nodes = self.struck(&format!("{at}.{}", deed.name()), &deed, &target)?;
            strike = Some((deed, nodes));
        }
        let expect_recovered = match &expect {
            None => false,
            Some(text) if text.value == "recovered" => true,
            Some(text) => {
                let problem =
                    format!("{:?} cannot be expected: write recovered, or leave it out", text.value);
                return Err(bad(line(text), &format!("{at}.expect"), problem));
            }
        };
        Ok(Step { after: duration(&after, &format!("{at}.after"))?, title, say, expect_recovered, strike })
    }

    fn struck(&self, at: &str, deed: &Deed, target: &Spanned<Target>) -> Result<Vec<String>, ScenarioError> {
        let nodes = self.nodes_of(at, target)?;
        match deed {
            Deed::Fault(Fault::Sick(_)) => {
                let gpus: Vec<String> = nodes.into_iter().filter(|node| self.has_accelerator(node)).collect();
                if gpus.is_empty() {
                    let field = if target.value.zone.is_some() { "zone" } else { "node" };
                    let all: Vec<&str> = self
                        .nodes
                        .iter()
                        .map(|node| node.name.as_str())
                        .filter(|node| self.has_accelerator(node))
                        .collect();
                    let problem = match (all.first(), all.last()) {
                        (Some(first), Some(last)) => {
                            format!("no node of these has an accelerator; {first} to {last} have")
                        }
                        _ => "no node has an accelerator: write gpuNodes, such as gpuNodes: 2".into(),
                    };
                    return Err(bad(line(target), &format!("{at}.{field}"), problem));
                }
                Ok(gpus)
            }
            Deed::Fault(_) | Deed::Heal => Ok(nodes),
        }
    }

    fn has_accelerator(&self, node: &str) -> bool {
        let pool = self.node(node).and_then(|node| self.pool(&node.pool));
        pool.is_some_and(|pool| pool.capacity.contains_key(ACCELERATOR))
    }

    /// The nodes that a target names, in order.
    pub(super) fn nodes_of(&self, at: &str, target: &Spanned<Target>) -> Result<Vec<String>, ScenarioError> {
        let at_line = line(target);
        let Target { zone, node, pool, rack, spot } = &target.value;
        let written = [zone.is_some(), node.is_some(), pool.is_some(), rack.is_some(), spot.is_some()];
        if !written.contains(&true) || (node.is_some() && written.iter().filter(|it| **it).count() > 1) {
            let problem =
                "write either {zone: NAME} or {node: NAME}, or {pool: NAME}, {rack: NAME} or {spot: true}";
            return Err(bad(at_line, at, problem.into()));
        }
        if let Some(node) = node {
            if self.node(node).is_some() {
                return Ok(vec![node.clone()]);
            }
            return Err(bad(
                at_line,
                &format!("{at}.node"),
                format!("there is no node {node:?}; there are {}", self.spans()),
            ));
        }
        let known =
            |of: fn(&Node) -> Option<&str>| -> BTreeSet<&str> { self.nodes.iter().filter_map(of).collect() };
        let checks: [(&str, &Option<String>, BTreeSet<&str>); 3] = [
            ("zone", zone, known(|node| Some(&node.zone))),
            ("pool", pool, known(|node| Some(&node.pool))),
            ("rack", rack, known(|node| node.rack.as_deref())),
        ];
        for (field, asked, known) in checks {
            if let Some(asked) = asked
                && !known.contains(asked.as_str())
            {
                let names: Vec<&str> = known.into_iter().collect();
                let there_are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let problem = format!("there is no {field} {asked:?}; there are {there_are}");
                return Err(bad(at_line, &format!("{at}.{field}"), problem));
            }
        }
        let is_asked = |asked: &Option<String>, has: Option<&str>| {
            asked.as_deref().is_none_or(|asked| has == Some(asked))
        };
        let fits = |it: &&Node| {
            is_asked(zone, Some(&it.zone))
                && is_asked(pool, Some(&it.pool))
                && is_asked(rack, it.rack.as_deref())
                && spot.is_none_or(|spot| self.pool(&it.pool).is_some_and(|pool| pool.spot == spot))
        };
        let nodes: Vec<String> = self.nodes.iter().filter(fits).map(|node| node.name.clone()).collect();
        if nodes.is_empty() {
            return Err(bad(at_line, at, "no node fits all of that".into()));
        }
        Ok(nodes)
    }

    /// The names of nodes, from the first to the last of each pool.
    fn spans(&self) -> String {
        let spans = self.pools.iter().map(|pool| {
            let mut names: Vec<&str> = self
                .nodes
                .iter()
                .filter(|node| node.pool == pool.name)
                .map(|node| node.name.as_str())
                .collect();
            names.sort_unstable();
            format!("{} to {}", names.first().unwrap_or(&""), names.last().unwrap_or(&""))
        });
        spans.collect::<Vec<_>>().join(", and ")
    }
}

/// The condition of a failure, with what it is without.
pub(super) fn condition(written: Option<&file::Condition>) -> Condition {
    match written {
        Some(it) => Condition { kind: it.kind.clone(), status: it.status.clone(), reason: it.reason.clone() },
        None => accelerator_condition(),
    }
}

pub(super) fn line<T>(spanned: &Spanned<T>) -> u64 {
    spanned.referenced.line()
}

pub(super) fn bad(line: u64, field: &str, problem: String) -> ScenarioError {
    ScenarioError::Value { line, field: field.to_owned(), problem }
}

fn within(value: &Spanned<u32>, field: &str, least: u32, most: u32) -> Result<u32, ScenarioError> {
    if (least..=most).contains(&value.value) {
        return Ok(value.value);
    }
    let problem = format!("{} cannot be used: write a whole number from {least} to {most}", value.value);
    Err(bad(line(value), field, problem))
}

/// Refuses labels that the API server would refuse: nodes with such labels would never register.
fn labelled(line: u64, field: &str, labels: &BTreeMap<String, String>) -> Result<(), ScenarioError> {
    let selector = LabelSelector { match_labels: labels.clone(), ..LabelSelector::default() };
    match selector.defects().into_iter().next() {
        Some(defect) => Err(bad(line, field, defect.message)),
        None => Ok(()),
    }
}

/// Refuses resources that the API server would refuse.
fn amounts(line: u64, field: &str, amounts: &BTreeMap<String, String>) -> Result<(), ScenarioError> {
    let keys = amounts.keys().map(|key| (key.clone(), String::new())).collect();
    labelled(line, field, &keys)?;
    match amounts.iter().find(|(_, amount)| !is_quantity(amount)) {
        Some((resource, amount)) => {
            let problem = format!(
                "{amount:?} is no amount: write a number with a unit if need be, such as 500m, 2 or 10Gi"
            );
            Err(bad(line, &format!("{field}.{resource}"), problem))
        }
        None => Ok(()),
    }
}

fn is_quantity(text: &str) -> bool {
    const UNITS: [&str; 15] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    number.parse::<f64>().is_ok_and(f64::is_finite) && number.len() <= 18 && UNITS.contains(&unit)
}

fn is_plain(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= 40
        && name.chars().all(fits)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// A name of which names of objects are made.
fn plain_name(name: &Spanned<String>, field: &str) -> Result<String, ScenarioError> {
    if is_plain(&name.value) {
        return Ok(name.value.clone());
    }
    let problem = format!(
        "{:?} cannot be a name: write lower case letters, digits and '-', at most 40, with a letter or digit at both ends",
        name.value
    );
    Err(bad(line(name), field, problem))
}

pub(super) fn duration(text: &Spanned<String>, field: &str) -> Result<Duration, ScenarioError> {
    long_duration(text, field, Duration::from_secs(24 * 3600), "24h")
}

/// A duration of at most `most`.
pub(super) fn long_duration(
    text: &Spanned<String>,
    field: &str,
    most: Duration,
    named: &str,
) -> Result<Duration, ScenarioError> {
    let at = line(text);
    let parsed: GoDuration = text.value.parse().map_err(|error| bad(at, field, format!("{error}")))?;
    let too_long = || bad(at, field, format!("{:?} cannot be used: write 0s to {named}", text.value));
    let parsed = Duration::try_from(SignedDuration::from(parsed)).map_err(|_| too_long())?;
    if parsed > most { Err(too_long()) } else { Ok(parsed) }
}
