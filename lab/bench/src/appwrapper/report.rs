//! The page with the results. Its layout is fixed; the numbers come from one run.

use super::{Sizes, turn::Turn};
use crate::{
    comparison::{Line, Target, line, table},
    process::{Disturbance, cores},
};

/// The page mentions it if other processes took more than this share of the machine.
const TOLERATED: f64 = 0.1;

const LINES: &[Line<Turn>] = &[
    line("AppWrappers Running", " /s", 1, Target::AtLeast(10.0), |t| t.running),
    line("AppWrappers with all pods ready", " /s", 1, Target::AtLeast(10.0), |t| t.ready),
    line("AppWrappers Succeeded, from their pods' end", " /s", 1, Target::None, |t| t.succeeded),
    line("their Jobs Complete, by kube-controller-manager", " /s", 1, Target::None, |t| t.jobs),
    line("both together: AppWrappers through the whole of it", " /s", 1, Target::AtLeast(10.0), |t| t.whole),
    line("writes each, until the pods are ready", "", 2, Target::AtMost(0.5), |t| t.writes_ready),
    line("writes each, until it has succeeded", "", 2, Target::AtMost(0.5), |t| t.writes_succeeded),
    line("events each", "", 2, Target::None, |t| t.events),
    line("pod failure to Resetting beyond the grace, median", " s", 2, Target::Below(1.0), |t| t.detection),
    line("pod failure to Resetting beyond the grace, longest", " s", 2, Target::Below(1.0), |t| {
        t.detection_longest
    }),
    line("CPU of the controller", " s", 2, Target::None, |t| t.cpu),
    line("CPU of the API server", " s", 2, Target::None, |t| t.server_cpu),
    line("memory at rest", " MB", 1, Target::None, |t| t.memory_idle),
    line("memory at its peak", " MB", 1, Target::None, |t| t.memory_peak),
];

pub(crate) fn page(sizes: &Sizes, salvor: &[Turn], upstream: &[Turn]) -> String {
    let Sizes { appwrappers, failures, rounds, .. } = sizes;
    let turns = salvor.iter().chain(upstream);
    let others = turns.map(|turn| turn.disturbance).fold(Disturbance::default(), Disturbance::and).share();
    format!(
        "# Benchmarks: AppWrappers\n\n\
         <!-- Written by `make bench-appwrapper`; lab/bench/README.md says how it measures. -->\n\n\
         What running AppWrappers costs, on {} cores that also run etcd, the API server, the Job controller and the \
         benchmark. {}Other processes took {:.0} % of the machine meanwhile.\n\n\
         - {appwrappers} AppWrappers of one Job of one pod are created and get to Running; their pods run as soon as they \
         are there. Then all pods succeed. \
         An AppWrapper succeeds when its Job is Complete, so the Job controller's speed is the most that is possible.\n\
         - The pods of {failures} more, of one pod each, fail when all of them are ready and the controller is at rest.\n\n\
         **AppWrapper 1.2.0** is CodeFlare's controller with shipped settings. Each works on a control plane of its own, one \
         after the other, with webhooks. Medians of {rounds} rounds; the ratio is the median of the rounds' ratios.\n\n{}",
        cores(),
        if others > TOLERATED { "**A disturbed run.** " } else { "" },
        others * 100.0,
        table(LINES, "AppWrapper 1.2.0", salvor, upstream),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::cells;

    fn turn(rate: f64, writes: f64, detection: f64) -> Turn {
        Turn {
            running: rate,
            ready: rate,
            succeeded: rate,
            jobs: rate,
            whole: rate,
            writes_ready: writes,
            writes_succeeded: writes,
            events: 1.0,
            detection,
            detection_longest: detection,
            cpu: 1.0,
            server_cpu: 1.0,
            memory_idle: 10.0,
            memory_peak: 20.0,
            disturbance: Disturbance::default(),
        }
    }

    #[test]
    fn targets_are_ratios_or_bounds_and_a_missed_one_says_so() {
        let page = page(&Sizes::default(), &[turn(40.0, 4.0, 1.5)], &[turn(3.0, 9.0, 56.0)]);
        assert_eq!(
            cells(&page, "AppWrappers Running |")[2..7],
            ["40.0 /s", "3.0 /s", "13.33×", "≥ 10.00×", "yes"]
        );
        assert_eq!(cells(&page, "until the pods are ready")[4..7], ["0.44×", "≤ 0.50×", "yes"]);
        assert_eq!(cells(&page, "the grace, median")[5..7], ["< 1 s", "**no**"]);
    }

    #[test]
    fn one_of_them_alone_has_no_ratio() {
        let page = page(&Sizes::default(), &[], &[turn(3.0, 9.0, 56.0)]);
        assert_eq!(cells(&page, "AppWrappers Running |")[2..7], ["–", "3.0 /s", "–", "≥ 10.00×", "–"]);
    }
}
