//! The failures of a scenario, as written in a file and as drawn by a seed.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use serde_saphyr::Spanned;

use super::{
    Deed, Fault, Node, Scenario, ScenarioError, Source, Step, csv,
    file::{self, Target, unplaced},
    read::{any_duration, bad, condition, line, long_duration},
};

/// Ten years.
const LONGEST_MTBF: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// A rate that gives more failures in one play is a typing error.
const MOST_EXPECTED: u128 = 10_000;
/// The drawn number varies, but never by this much: this only bounds the memory.
const MOST_DRAWN: usize = 100_000;

/// A failure as it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub fault: Fault,
    pub nodes: Vec<String>,
    /// The target as it was written.
    pub named: String,
    pub timing: Timing,
    pub lasting: Lasting,
    /// Nodes fail one after another at this interval, as in a rollout.
    pub one_every: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// At a time; all nodes, or a number of them drawn by the seed.
    At {
        at: Duration,
        /// The number of nodes that fail; all if `None`.
        pick: Option<u32>,
    },
    /// Repeatedly, each unit of nodes by itself, with this mean time between failures.
    Rate {
        /// The mean time between two failures of one unit.
        mtbf: Duration,
        unit: Unit,
    },
}

/// Nodes that fail together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Node,
    Rack,
    Zone,
    Pool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Until the end.
    ForGood,
    Fixed(Duration),
    /// The mean; the actual length is drawn by the seed.
    Mean(Duration),
}

/// One failure that happens: all its nodes fail in the same way at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Time after the beginning.
    pub at: Duration,
    /// When it is over.
    pub until: Option<Duration>,
    pub fault: Fault,
    pub nodes: Vec<String>,
    /// What failed, for display: `zone b`, or `node-a1`.
    pub named: String,
}

pub(super) fn read(
    scenario: &Scenario,
    at: &str,
    spanned: &Spanned<file::Failure>,
    source: &Source,
) -> Result<Vec<Failure>, ScenarioError> {
    let (at_line, it) = (line(spanned), &spanned.value);
    if let Some(path) = &it.csv {
        let file::Failure {
            kind,
            target,
            at: time,
            mtbf,
            per,
            pick,
            lasts,
            lasts_mean,
            one_every,
            delay,
            down,
            up,
            condition,
            csv: _,
        } = it;
        let words = [kind, time, mtbf, per, lasts, lasts_mean, one_every, delay, down, up];
        let others = words.iter().any(|word| word.is_some());
        if others || target.is_some() || pick.is_some() || condition.is_some() {
            return Err(bad(
                at_line,
                at,
                "a list in a file has its own times, kinds and targets: write only csv".into(),
            ));
        }
        return csv::read(scenario, at, path, source);
    }
    let Some(kind) = &it.kind else {
        return Err(bad(at_line, &format!("{at}.kind"), format!("is missing: write {KINDS}, or csv")));
    };
    let time = |value: &Option<Spanned<String>>, field: &str| {
        value.as_ref().map(|it| any_duration(it, &format!("{at}.{field}"))).transpose()
    };
    let fault = fault_of(
        &kind.value,
        time(&it.delay, "delay")?,
        time(&it.down, "down")?,
        time(&it.up, "up")?,
        it.condition.as_ref(),
    )
    .ok_or_else(|| {
        bad(line(kind), &format!("{at}.kind"), format!("{:?} is not known: write {KINDS}", kind.value))
    })?;
    let own = [
        ("delay", it.delay.as_ref().map(line), "slow"),
        ("down", it.down.as_ref().map(line), "flapping"),
        ("up", it.up.as_ref().map(line), "flapping"),
        ("condition", it.condition.as_ref().map(|_| at_line), "sick"),
    ];
    for (field, written, of) in own {
        if let Some(written) = written.filter(|_| kind.value != of) {
            return Err(bad(written, &format!("{at}.{field}"), format!("belongs to {of}: leave it out")));
        }
    }
    if fault == Fault::Reboot
        && let Some(lasts) = it.lasts.as_ref().or(it.lasts_mean.as_ref())
    {
        let field = if it.lasts.is_some() { "lasts" } else { "lastsMean" };
        return Err(bad(
            line(lasts),
            &format!("{at}.{field}"),
            "a reboot is over at once: leave it out, or write crash".into(),
        ));
    }
    if let Fault::Flapping { down, up } = &fault
        && (down.is_zero() || up.is_zero())
    {
        let (field, written) = if down.is_zero() { ("down", &it.down) } else { ("up", &it.up) };
        let at_line = written.as_ref().map_or(at_line, line);
        return Err(bad(at_line, &format!("{at}.{field}"), "0s cannot be used: write a time".into()));
    }
    let everything = unplaced(Target::default());
    let target = it.target.as_ref().unwrap_or(&everything);
    let nodes = match &it.target {
        Some(target) => scenario.nodes_of(&format!("{at}.target"), target)?,
        None => scenario.nodes.iter().map(|node| node.name.clone()).collect(),
    };
    let unit = match it.per.as_ref().map(|per| (per, per.value.as_str())) {
        None | Some((_, "node")) => Unit::Node,
        Some((_, "rack")) => Unit::Rack,
        Some((_, "zone")) => Unit::Zone,
        Some((_, "pool")) => Unit::Pool,
        Some((per, other)) => {
            let problem = format!("{other:?} is not known: write node, rack, zone or pool");
            return Err(bad(line(per), &format!("{at}.per"), problem));
        }
    };
    let timing = match (&it.at, &it.mtbf) {
        (Some(time), None) => {
            if let Some(per) = &it.per {
                return Err(bad(line(per), &format!("{at}.per"), "belongs to mtbf: leave it out".into()));
            }
            if let Some(pick) =
                it.pick.as_ref().filter(|pick| pick.value == 0 || pick.value as usize > nodes.len())
            {
                let problem =
                    format!("{} cannot be used: write a whole number from 1 to {}", pick.value, nodes.len());
                return Err(bad(line(pick), &format!("{at}.pick"), problem));
            }
            Timing::At {
                at: any_duration(time, &format!("{at}.at"))?,
                pick: it.pick.as_ref().map(|it| it.value),
            }
        }
        (None, Some(mtbf)) => {
            let field = format!("{at}.mtbf");
            if let Some(pick) = &it.pick {
                return Err(bad(line(pick), &format!("{at}.pick"), "belongs to at: leave it out".into()));
            }
            if scenario.end.is_none() {
                return Err(bad(
                    line(mtbf),
                    &field,
                    "failures at a rate need an end: write end, such as end: 1h".into(),
                ));
            }
            let mean = long_duration(mtbf, &field, LONGEST_MTBF, "87600h")?;
            if mean < Duration::from_secs(1) {
                return Err(bad(
                    line(mtbf),
                    &field,
                    format!("{:?} cannot be used: write 1s or more", mtbf.value),
                ));
            }
            Timing::Rate { mtbf: mean, unit }
        }
        _ => return Err(bad(at_line, at, "write either at or mtbf".into())),
    };
    let lasting = match (time(&it.lasts, "lasts")?, time(&it.lasts_mean, "lastsMean")?) {
        (None, None) => Lasting::ForGood,
        (Some(fixed), None) => Lasting::Fixed(fixed),
        (None, Some(mean)) => Lasting::Mean(mean),
        (Some(_), Some(_)) => return Err(bad(at_line, at, "write either lasts or lastsMean".into())),
    };
    let one_every = time(&it.one_every, "oneEvery")?;
    let failure = Failure { fault, named: named(&target.value), nodes, timing, lasting, one_every };
    let expected = scenario.expected(&failure);
    if expected > MOST_EXPECTED {
        let problem = format!(
            "it would happen about {expected} times in a play: at most {MOST_EXPECTED}. Write a longer time, fewer nodes or an earlier end"
        );
        return Err(bad(it.mtbf.as_ref().map_or(at_line, line), &format!("{at}.mtbf"), problem));
    }
    Ok(vec![failure])
}

/// All kinds, as error messages list them.
pub(super) const KINDS: &str = "crash, partition, kubeletStop, slow, flapping, sick or reboot";

/// The fault with this name.
pub(super) fn fault_of(
    kind: &str,
    delay: Option<Duration>,
    down: Option<Duration>,
    up: Option<Duration>,
    sick: Option<&file::Condition>,
) -> Option<Fault> {
    Some(match kind {
        "crash" => Fault::Crash,
        "partition" => Fault::Partition,
        "kubeletStop" => Fault::KubeletStop,
        "slow" => Fault::Slow(delay.unwrap_or(Duration::from_secs(5))),
        "flapping" => Fault::Flapping {
            down: down.unwrap_or(Duration::from_secs(60)),
            up: up.unwrap_or(Duration::from_secs(60)),
        },
        "sick" => Fault::Sick(condition(sick)),
        "reboot" => Fault::Reboot,
        _ => return None,
    })
}

/// A target for display.
pub(super) fn named(target: &Target) -> String {
    let Target { zone, node, pool, rack, spot } = target;
    let mut parts = Vec::new();
    parts.extend(node.clone());
    parts.extend(rack.as_ref().map(|it| format!("rack {it}")));
    parts.extend(zone.as_ref().map(|it| format!("zone {it}")));
    parts.extend(pool.as_ref().map(|it| format!("pool {it}")));
    parts.extend(
        spot.map(|spot| if spot { "spot nodes" } else { "nodes that are not spot nodes" }.to_owned()),
    );
    if parts.is_empty() { "all nodes".to_owned() } else { parts.join(", ") }
}

impl Scenario {
    /// All failures of this seed, ordered by time.
    pub fn incidents(&self, seed: u64) -> Vec<Incident> {
        let mut all = self.of_steps();
        for (index, failure) in (0u64..).zip(&self.failures) {
            self.draw(failure, mixed(seed, index), &mut all);
        }
        all.sort_by(|a, b| (a.at, &a.nodes).cmp(&(b.at, &b.nodes)));
        all
    }

    /// The chapters of the file, plus one for the beginning and one for the end of each failure that this seed draws.
    pub fn chapters(&self, seed: u64) -> Vec<Step> {
        let mut now = Duration::ZERO;
        let mut timed: Vec<(Duration, Step)> = Vec::new();
        for step in &self.steps {
            now += step.after;
            timed.push((now, step.clone()));
        }
        let mut drawn = Vec::new();
        for (index, failure) in (0u64..).zip(&self.failures) {
            self.draw(failure, mixed(seed, index), &mut drawn);
        }
        for Incident { at, until, fault, nodes, named } in drawn {
            let chapter = |title: String, deed: Deed, nodes: Vec<String>| Step {
                after: Duration::ZERO,
                title,
                say: String::new(),
                expect_recovered: false,
                strike: Some((deed, nodes)),
            };
            if let Some(until) = until.filter(|until| *until > at) {
                timed.push((
                    until,
                    chapter(format!("The end of: {fault}, {named}"), Deed::Heal, nodes.clone()),
                ));
            }
            timed.push((at, chapter(format!("{fault}, {named}"), Deed::Fault(fault), nodes)));
        }
        timed.sort_by_key(|(at, _)| *at);
        let mut last = Duration::ZERO;
        let since = |(at, step): (Duration, Step)| {
            let after = at.saturating_sub(last);
            last = at;
            Step { after, ..step }
        };
        timed.into_iter().map(since).collect()
    }

    pub fn ends(&self, incidents: &[Incident]) -> Duration {
        self.end.unwrap_or_else(|| {
            let steps: Duration = self.steps.iter().map(|step| step.after).sum();
            let last = incidents.iter().map(|it| it.until.unwrap_or(it.at).max(it.at)).max();
            last.unwrap_or_default().max(steps) + self.patience
        })
    }

    /// The failures of chapters. A later chapter heals them.
    fn of_steps(&self) -> Vec<Incident> {
        let mut now = Duration::ZERO;
        let mut open: BTreeMap<String, (Duration, Fault, usize)> = BTreeMap::new();
        let mut closed: BTreeMap<(usize, Option<Duration>), Incident> = BTreeMap::new();
        let mut close =
            |node: String, (at, fault, step): (Duration, Fault, usize), until: Option<Duration>| {
                let named = self.steps[step].title.clone();
                let incident = closed.entry((step, until)).or_insert_with(|| Incident {
                    at,
                    until,
                    fault,
                    nodes: Vec::new(),
                    named,
                });
                incident.nodes.push(node);
            };
        for (index, step) in self.steps.iter().enumerate() {
            now += step.after;
            let Some((deed, nodes)) = &step.strike else { continue };
            for node in nodes {
                if let Some(before) = open.remove(node) {
                    close(node.clone(), before, Some(now));
                }
                match deed {
                    Deed::Heal => {}
                    Deed::Fault(Fault::Reboot) => close(node.clone(), (now, Fault::Reboot, index), Some(now)),
                    Deed::Fault(fault) => {
                        open.insert(node.clone(), (now, fault.clone(), index));
                    }
                }
            }
        }
        for (node, before) in open {
            close(node, before, None);
        }
        closed.into_values().collect()
    }

    fn draw(&self, failure: &Failure, seed: u64, all: &mut Vec<Incident>) {
        match &failure.timing {
            Timing::At { at, pick } => {
                let mut rng = Rng::with_seed(seed);
                let mut nodes = failure.nodes.clone();
                let named = match pick {
                    Some(count) => {
                        rng.shuffle(&mut nodes);
                        nodes.truncate(*count as usize);
                        nodes.sort_unstable();
                        nodes.join(", ")
                    }
                    None => failure.named.clone(),
                };
                strike(failure, &mut rng, *at, &nodes, &named, all);
            }
            Timing::Rate { mtbf, unit } => {
                let end = self.end.unwrap_or_default();
                for (position, (named, nodes)) in (0u64..).zip(self.units(failure, *unit)) {
                    // Each entry has its own random stream: one more node does not change what happens to the others.
                    let mut rng = Rng::with_seed(mixed(seed, position));
                    let mut now = exponential(&mut rng, *mtbf);
                    while now < end && all.len() < MOST_DRAWN {
                        let over = strike(failure, &mut rng, now, &nodes, &named, all);
                        let Some(over) = over else { break };
                        now = over + exponential(&mut rng, *mtbf);
                    }
                }
            }
        }
    }

    /// How often a failure happens in a play, on average.
    fn expected(&self, failure: &Failure) -> u128 {
        let Timing::Rate { mtbf, unit } = failure.timing else { return 1 };
        let lasts = match (&failure.fault, failure.lasting) {
            // It happens once and never ends.
            (fault, Lasting::ForGood) if *fault != Fault::Reboot => {
                return self.units(failure, unit).len() as u128;
            }
            (Fault::Reboot, _) | (_, Lasting::ForGood) => Duration::ZERO,
            (_, Lasting::Fixed(lasts) | Lasting::Mean(lasts)) => lasts,
        };
        let each = self.end.unwrap_or_default().as_millis() / (mtbf + lasts).as_millis().max(1);
        let nodes = if failure.one_every.is_some() { failure.nodes.len() } else { 1 };
        let units = if failure.one_every.is_some() { 1 } else { self.units(failure, unit).len() };
        each * (units * nodes) as u128
    }

    fn units(&self, failure: &Failure, unit: Unit) -> Vec<(String, Vec<String>)> {
        if unit == Unit::Node {
            return failure.nodes.iter().map(|name| (name.clone(), vec![name.clone()])).collect();
        }
        let mut units: Vec<(String, Vec<String>)> = Vec::new();
        for name in &failure.nodes {
            let Some(node) = self.node(name) else { continue };
            let of = unit_of(node, unit);
            match units.iter_mut().find(|(known, _)| *known == of) {
                Some((_, nodes)) => nodes.push(name.clone()),
                None => units.push((of, vec![name.clone()])),
            }
        }
        units
    }
}

fn unit_of(node: &Node, unit: Unit) -> String {
    match unit {
        Unit::Node => node.name.clone(),
        Unit::Rack => node.rack.as_ref().map_or_else(|| node.name.clone(), |rack| format!("rack {rack}")),
        Unit::Zone => format!("zone {}", node.zone),
        Unit::Pool => format!("pool {}", node.pool),
    }
}

/// Makes nodes fail, together or one after another. Returns when the last failure is over, if ever.
fn strike(
    failure: &Failure,
    rng: &mut Rng,
    at: Duration,
    nodes: &[String],
    named: &str,
    all: &mut Vec<Incident>,
) -> Option<Duration> {
    let mut once = |rng: &mut Rng, at: Duration, nodes: Vec<String>, named: String| {
        let lasts = match (&failure.fault, failure.lasting) {
            (Fault::Reboot, _) => Some(Duration::ZERO),
            (_, Lasting::ForGood) => None,
            (_, Lasting::Fixed(lasts)) => Some(lasts),
            (_, Lasting::Mean(mean)) => Some(exponential(rng, mean)),
        };
        let until = lasts.map(|lasts| at + lasts);
        all.push(Incident { at, until, fault: failure.fault.clone(), nodes, named });
        until
    };
    let Some(apart) = failure.one_every else {
        return once(rng, at, nodes.to_vec(), named.to_owned());
    };
    let mut over = Some(at);
    for (position, node) in (0u32..).zip(nodes) {
        let until = once(rng, at + apart * position, vec![node.clone()], node.clone());
        over = over.zip(until).map(|(over, until)| over.max(until));
    }
    over
}

/// A random time with this mean, in whole milliseconds: floating point must not show in a report.
fn exponential(rng: &mut Rng, mean: Duration) -> Duration {
    let drawn = -(1.0 - rng.f64()).ln() * mean.as_secs_f64() * 1000.0;
    // At most a century: a mean of ten years gives no more in practice, and a cast of a float saturates.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is never negative"
    )]
    let millis = drawn.round() as u64;
    Duration::from_millis(millis.min(100 * 365 * 24 * 3600 * 1000))
}

/// A separate seed for each part, so that one more part does not change the others.
fn mixed(seed: u64, part: u64) -> u64 {
    let mut rng = Rng::with_seed(seed ^ part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    rng.u64(..)
}
