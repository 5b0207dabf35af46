//! Reads the pools of a file, and their nodes.

use std::{collections::BTreeSet, time::Duration};

use salvor_api::names::taints;
use serde_saphyr::Spanned;

use super::values::{amounts, bad, duration, is_plain, labelled, line, plain_name, within};
use crate::scenario::{
    ACCELERATOR, GPU_POOL, Machines, Node, Pool, ScenarioError, Taint,
    file::{self, File, unplaced},
};

/// More zones have no letters. The other limits keep a typing error from filling the memory.
const MOST_ZONES: u32 = 26;
const MOST_NODES_OF_ZONES: u32 = 1_000;
const MOST_NODES: u32 = 20_000;
const MOST_GPU_NODES: u32 = 100;

/// The pool of the nodes of the short form, and the prefix of their names.
const SHORT_POOL: &str = "demo";
const SHORT_NAME: &str = "node";

pub(super) fn short_pools(file: &File) -> Result<(Vec<Pool>, Vec<Node>), ScenarioError> {
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

/// The pools that are written one by one.
pub(super) fn long_pools(
    list: &Spanned<Vec<Spanned<file::Pool>>>,
) -> Result<(Vec<Pool>, Vec<Node>), ScenarioError> {
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
