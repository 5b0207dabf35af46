//! The page with the results. Its layout is fixed; the numbers come from one run.

use super::{
    Sizes,
    memory::Memory,
    storm::{Round, Storm},
    world::Consent,
};
use crate::process::{Disturbance, cores};

/// The page mentions it if other processes took more than this share of the machine.
const TOLERATED: f64 = 0.1;

/// The results of one contender.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) memory: Option<Memory>,
    pub(crate) storms: Vec<Storm>,
}

impl Figures {
    fn storm(&self, consent: Consent) -> Option<&Storm> {
        self.storms.iter().find(|storm| storm.consent == consent)
    }

    fn disturbance(&self) -> Disturbance {
        let storms = self.storms.iter().flat_map(|storm| &storm.rounds).map(|round| round.disturbance);
        storms
            .chain(self.memory.map(|memory| memory.disturbance))
            .fold(Disturbance::default(), Disturbance::and)
    }
}

/// All results of a run.
#[derive(Debug)]
pub(crate) struct Report {
    sizes: Sizes,
    pub(crate) salvor: Figures,
    pub(crate) kueue: Figures,
    pub(crate) kueue_is_missing_because: Option<String>,
}

#[derive(Clone, Copy)]
enum Target {
    AtMost(f64),
    Exactly(f64),
    None,
}

impl Target {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::Exactly(wanted) => (value - wanted).abs() < 1e-9,
            Self::None => true,
        }
    }
}

struct Line {
    what: &'static str,
    unit: &'static str,
    decimals: usize,
    target: Target,
    salvor: Option<f64>,
    floor: Option<f64>,
    kueue: Option<f64>,
    kueue_floor: Option<f64>,
}

impl Line {
    fn print(&self) -> String {
        let decimals = self.decimals;
        let cell =
            |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.decimals$}{}", self.unit));
        let target = match self.target {
            Target::AtMost(limit) => format!("≤ {limit}{}", self.unit),
            Target::Exactly(wanted) => format!("= {wanted}{}", self.unit),
            Target::None => "–".to_owned(),
        };
        let met = match (self.target, self.salvor) {
            (Target::None, _) | (_, None) => "–",
            (target, Some(value)) if target.is_met_by(value) => "yes",
            _ => "**no**",
        };
        let ahead = match (self.salvor, self.kueue) {
            (Some(ours), Some(theirs)) if ours < theirs => "yes",
            // If the task itself requires this number of requests, neither can do better.
            (Some(ours), Some(theirs)) if (ours - theirs).abs() < 1e-9 => "equal",
            (Some(_), Some(_)) => "**no**",
            _ => "–",
        };
        format!(
            "| {} | {} | {} | {} | {} | {target} | {met} | {ahead} |\n",
            self.what,
            cell(self.salvor),
            cell(self.floor),
            cell(self.kueue),
            cell(self.kueue_floor),
        )
    }
}

impl Report {
    pub(crate) fn new(sizes: Sizes) -> Self {
        Self { sizes, salvor: Figures::default(), kueue: Figures::default(), kueue_is_missing_because: None }
    }

    pub(crate) fn page(&self) -> String {
        let Sizes { pods, nodes, opted_in, zombies, rounds, .. } = &self.sizes;
        let mut page = format!(
            "# Benchmarks\n\n\
             <!-- Written by `make bench-zombie`; lab/bench/README.md says how it measures. -->\n\n\
             What zombie recovery costs, on {} cores that also run etcd and the API server. Made by `make bench-zombie`.\n\n",
            cores(),
        );
        let disturbance = self.salvor.disturbance().and(self.kueue.disturbance()).share();
        if disturbance > TOLERATED {
            page.push_str(&format!(
                "> **A disturbed run.** Other processes took {:.0} % of the machine while it was measured; times and \
                 CPU seconds are worse than they need be.\n\n",
                disturbance * 100.0,
            ));
        } else {
            page.push_str(&format!(
                "Other processes took {:.0} % of the machine meanwhile.\n\n",
                disturbance * 100.0
            ));
        }
        let pod_bytes = self
            .salvor
            .memory
            .map_or("about 10 kB".to_owned(), |m| format!("{:.1} kB", m.pod_bytes as f64 / 1000.0));
        page.push_str(&format!(
            "- **At rest**: {pods} pods of {pod_bytes} each as JSON on {nodes} nodes, {opted_in} of them opted in; resident memory.\n\
             - **Storm**: {zombies} such pods due in one instant, because their nodes are lost after the pods' time was up. \
             The **floor** is what bare clients need for the same requests on equal pods, 32 in flight, on the same \
             control plane. Medians of {rounds} storms, each beside a floor of its own.\n\
             - **Kueue** 0.19.0 as shipped, its client limits raised. It knows no `-terminate`.\n\n",
        ));
        if let Some(problem) = &self.kueue_is_missing_because {
            page.push_str(&format!("> Kueue was not measured: {problem}.\n\n"));
        }
        page.push_str(
            "| figure | Salvor | floor | Kueue | floor beside it | target | met | ahead of Kueue |\n",
        );
        page.push_str("|---|--:|--:|--:|--:|--:|---|---|\n");
        for line in self.lines() {
            page.push_str(&line.print());
        }
        page
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = vec![
            self.memory_line("memory at rest: settled", Target::AtMost(30.0), |m| m.settled),
            self.memory_line("memory at rest: peak", Target::AtMost(60.0), |m| m.peak),
        ];
        lines.extend(self.storm_lines(Consent::Terminate, &TERMINATE_STORM, 2.0));
        lines.extend(self.storm_lines(Consent::Delete, &DELETE_STORM, 3.0));
        lines
    }

    fn memory_line(&self, what: &'static str, target: Target, of: fn(Memory) -> f64) -> Line {
        Line {
            what,
            unit: " MB",
            decimals: 1,
            target,
            salvor: self.salvor.memory.map(of),
            floor: None,
            kueue: self.kueue.memory.map(of),
            kueue_floor: None,
        }
    }

    fn storm_lines(&self, consent: Consent, names: &[&'static str; 8], writes: f64) -> Vec<Line> {
        let [time, ratio, p50, p99, writes_per_pod, cpu, server, untold] = *names;
        let line =
            |what, unit, decimals, target, of: fn(&Round) -> f64, of_floor: Option<fn(&Round) -> f64>| {
                let (salvor, kueue) = (self.salvor.storm(consent), self.kueue.storm(consent));
                let median_of =
                    |storm: Option<&Storm>, of: fn(&Round) -> f64| storm.and_then(|s| median(&s.rounds, of));
                Line {
                    what,
                    unit,
                    decimals,
                    target,
                    salvor: median_of(salvor, of),
                    floor: of_floor.and_then(|of| median_of(salvor, of)),
                    kueue: median_of(kueue, of),
                    kueue_floor: of_floor.and_then(|of| median_of(kueue, of)),
                }
            };
        let percentile = |what, of: fn(&Round) -> f64, of_floor: fn(&Round) -> f64| {
            line(what, " s", 2, Target::None, of, Some(of_floor))
        };
        vec![
            line(
                time,
                " s",
                2,
                Target::None,
                |r| r.contender.observed.seconds,
                Some(|r| r.floor.observed.seconds),
            ),
            line(
                ratio,
                "×",
                2,
                Target::AtMost(1.1),
                |r| r.contender.observed.seconds / r.floor.observed.seconds,
                None,
            ),
            percentile(p50, |r| r.contender.observed.percentile(0.5), |r| r.floor.observed.percentile(0.5)),
            percentile(p99, |r| r.contender.observed.percentile(0.99), |r| r.floor.observed.percentile(0.99)),
            line(writes_per_pod, "", 3, Target::Exactly(writes), |r| r.writes, None),
            line(cpu, " s", 2, Target::AtMost(2.0), |r| r.cpu, None),
            line(server, " s", 2, Target::None, |r| r.contender.server_cpu, Some(|r| r.floor.server_cpu)),
            line(untold, "", 0, Target::Exactly(0.0), |r| r.contender.observed.untold as f64, None),
        ]
    }
}

const TERMINATE_STORM: [&str; 8] = [
    "`-terminate` storm: until all are done",
    "`-terminate` storm: that, in floors",
    "`-terminate` storm: due to done, p50",
    "`-terminate` storm: due to done, p99",
    "`-terminate` storm: API writes per pod",
    "`-terminate` storm: CPU",
    "`-terminate` storm: CPU of the API server",
    "`-terminate` storm: pods without an event",
];

const DELETE_STORM: [&str; 8] = [
    "`-delete` storm: until all are done",
    "`-delete` storm: that, in floors",
    "`-delete` storm: due to done, p50",
    "`-delete` storm: due to done, p99",
    "`-delete` storm: API writes per pod",
    "`-delete` storm: CPU",
    "`-delete` storm: CPU of the API server",
    "`-delete` storm: pods without an event",
];

fn median(rounds: &[Round], of: fn(&Round) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{observer::Observed, storm::Run},
        *,
    };

    fn round(seconds: f64, floor: f64) -> Round {
        let run = |seconds| Run {
            observed: Observed { seconds, latencies: vec![seconds], untold: 0 },
            server_cpu: 1.0,
        };
        Round {
            contender: run(seconds),
            floor: run(floor),
            writes: 2.0,
            cpu: 2.5,
            disturbance: Disturbance::default(),
        }
    }

    fn row(what: &str, salvor: Vec<Round>) -> Vec<String> {
        let storm = Storm { consent: Consent::Terminate, rounds: salvor };
        let report = Report {
            sizes: Sizes::default(),
            salvor: Figures { memory: None, storms: vec![storm] },
            kueue: Figures::default(),
            kueue_is_missing_because: Some("it was not asked for".to_owned()),
        };
        let page = report.page();
        assert!(page.contains("> Kueue was not measured: it was not asked for."), "{page}");
        let line = page
            .lines()
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("no line {what:?} in {page}"));
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians() {
        let rounds = vec![round(1.0, 1.0), round(4.0, 2.0), round(3.0, 6.0)];
        let cells = row("in floors", rounds);
        assert_eq!((cells[2].as_str(), cells[7].as_str()), ("1.00×", "yes"));
    }

    #[test]
    fn a_missed_target_says_so_and_what_was_not_measured_is_a_dash() {
        let cells = row("`-terminate` storm: CPU ", vec![round(1.0, 1.0)]);
        assert_eq!(cells[2..9], ["2.50 s", "–", "–", "–", "≤ 2 s", "**no**", "–"]);
    }

    #[test]
    fn a_percentile_is_the_latency_that_this_share_did_not_exceed() {
        let observed = Observed { seconds: 0.0, latencies: (1..=200).map(f64::from).collect(), untold: 0 };
        assert_eq!(
            (observed.percentile(0.5), observed.percentile(0.99), observed.percentile(1.0)),
            (100.0, 198.0, 200.0)
        );
    }
}
