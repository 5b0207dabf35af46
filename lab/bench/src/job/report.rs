//! The page with the results. Its layout is fixed; the numbers come from one run.

use super::{Sizes, contender::Contender, turn::Turn};
use crate::{
    comparison::{Line, Target, line, table},
    process::{Disturbance, cores},
};

/// The page mentions it if other processes took more than this share of the machine.
const TOLERATED: f64 = 0.1;
/// Leaves room for requests that are unrelated to Jobs, for example Lease renewals.
const NO_MORE: f64 = 1.01;

/// All results of a run.
#[derive(Debug)]
pub(crate) struct Report {
    sizes: Sizes,
    salvor: Vec<Turn>,
    built_in: Vec<Turn>,
}

const LINES: &[Line<Turn>] = &[
    line("Jobs active", " /s", 0, Target::AtLeast(1.0), |t| t.active),
    line("Jobs complete, from their pods' end", " /s", 0, Target::AtLeast(1.0), |t| t.complete),
    line("Jobs from creation to Complete", " /s", 0, Target::AtLeast(2.0), |t| t.live),
    line("pods made for the Indexed Job", " /s", 0, Target::AtLeast(1.0), |t| t.created),
    line("requests a Job until it is active", "", 2, Target::AtMost(NO_MORE), |t| t.calls_active),
    line("requests a Job from then to Complete", "", 2, Target::AtMost(NO_MORE), |t| t.calls_complete),
    line("requests a Job from creation to Complete", "", 2, Target::AtMost(NO_MORE), |t| t.calls_live),
    line("requests a pod of the Indexed Job", "", 2, Target::AtMost(NO_MORE), |t| t.calls_pod),
    line("events a pod", "", 2, Target::None, |t| t.events),
    line("CPU of the controller", " s", 2, Target::AtMost(1.0 / 3.0), |t| t.cpu),
    line("CPU of the API server", " s", 2, Target::None, |t| t.server_cpu),
    line("memory at the end", " MB", 1, Target::AtMost(0.2), |t| t.memory),
    line("memory at its peak", " MB", 1, Target::AtMost(0.2), |t| t.peak),
];

impl Report {
    pub(crate) fn new(sizes: Sizes) -> Self {
        Self { sizes, salvor: Vec::new(), built_in: Vec::new() }
    }

    pub(crate) fn take(&mut self, contender: &Contender, turn: Turn) {
        match contender {
            Contender::Salvor(_) => self.salvor.push(turn),
            Contender::BuiltIn => self.built_in.push(turn),
        }
    }

    pub(crate) fn page(&self) -> String {
        let Sizes { jobs, pods, rounds, .. } = &self.sizes;
        let turns = self.salvor.iter().chain(&self.built_in);
        let others =
            turns.map(|turn| turn.disturbance).fold(Disturbance::default(), Disturbance::and).share();
        format!(
            "# Benchmarks: Jobs\n\n\
             <!-- Written by `make bench-job`; lab/bench/README.md says how it measures. -->\n\n\
             What running Jobs costs, on {} cores that also run etcd, the API server and the benchmark. Made by \
             `make bench-job`. {}Other processes took {:.0} % of the machine meanwhile.\n\n\
             - {jobs} Jobs of one pod are created and become active; then all their pods end, and they become Complete.\n\
             - {jobs} more are created, with pods that end as soon as they are there.\n\
             - One Indexed Job of {pods} pods is created; then all of them end.\n\n\
             **kube-controller-manager** runs nothing but its Job controller, as it is shipped but for its client limits, \
             which are raised out of the way. Both work on the same API server, one after the other. Medians of {rounds} \
             rounds; the ratio is the median of the rounds' ratios. Events are no requests here: they have a line of \
             their own.\n\n{}",
            cores(),
            if others > TOLERATED { "**A disturbed run.** " } else { "" },
            others * 100.0,
            table(LINES, "kube-controller-manager", &self.salvor, &self.built_in),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::cells;

    fn turn(rate: f64, cost: f64) -> Turn {
        Turn {
            active: rate,
            complete: rate,
            live: rate,
            created: rate,
            calls_active: 2.0,
            calls_complete: 3.0,
            calls_live: 5.0,
            calls_pod: 2.3,
            events: 1.0,
            cpu: cost,
            server_cpu: cost,
            memory: cost,
            peak: cost,
            disturbance: Disturbance::default(),
        }
    }

    #[test]
    fn ratios_are_taken_round_by_round_and_a_missed_target_says_so() {
        let report = Report {
            sizes: Sizes::default(),
            salvor: vec![turn(100.0, 1.0), turn(30.0, 2.0), turn(80.0, 9.0)],
            built_in: vec![turn(50.0, 10.0), turn(10.0, 10.0), turn(100.0, 10.0)],
        };
        assert_eq!(
            cells(&report.page(), "creation to Complete |")[2..7],
            ["80 /s", "50 /s", "2.00×", "≥ 2.00×", "yes"]
        );
        assert_eq!(cells(&report.page(), "memory at its peak")[4..7], ["0.20×", "≤ 0.20×", "yes"]);
        let slow = Report { built_in: vec![turn(500.0, 1.0)], salvor: vec![turn(100.0, 1.0)], ..report };
        assert_eq!(cells(&slow.page(), "CPU of the controller")[4..7], ["1.00×", "≤ 0.33×", "**no**"]);
        assert_eq!(cells(&slow.page(), "Jobs active")[6], "**no**");
    }
}
