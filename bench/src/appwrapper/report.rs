//! The page that shows the figures. Its layout stays; the figures are one run's.

use super::{Sizes, turn::Turn};
use crate::process::{Disturbance, cores};

/// A run in which others took more than this share of the machine says so.
const TOLERATED: f64 = 0.1;

/// What Salvor's figure must be.
#[derive(Clone, Copy)]
enum Target {
    /// At least so many times the other's.
    AtLeast(f64),
    /// At most so many times the other's.
    AtMost(f64),
    /// Below so much, whatever the other's is.
    Below(f64),
    None,
}

/// One line of the table.
struct Line {
    what: &'static str,
    unit: &'static str,
    decimals: usize,
    target: Target,
    of: fn(&Turn) -> f64,
}

const fn line(
    what: &'static str,
    unit: &'static str,
    decimals: usize,
    target: Target,
    of: fn(&Turn) -> f64,
) -> Line {
    Line { what, unit, decimals, target, of }
}

const LINES: &[Line] = &[
    line("AppWrappers Running", " /s", 1, Target::AtLeast(10.0), |t| t.running),
    line("AppWrappers with all pods ready", " /s", 1, Target::AtLeast(10.0), |t| t.ready),
    line("AppWrappers Succeeded, from their pods' end", " /s", 1, Target::AtLeast(10.0), |t| t.succeeded),
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

impl Line {
    fn print(&self, salvor: &[Turn], upstream: &[Turn]) -> String {
        let (decimals, unit) = (self.decimals, self.unit);
        let (ours, theirs) = (median(salvor, self.of), median(upstream, self.of));
        let cell = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.decimals$}{unit}"));
        // Each turn beside the one of the same round: the machine may have been slower in one of them.
        let mut ratios: Vec<f64> =
            salvor.iter().zip(upstream).map(|(a, b)| (self.of)(a) / (self.of)(b)).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios.get(ratios.len() / 2).copied();
        let target = match self.target {
            Target::AtLeast(least) => format!("≥ {least:.1}×"),
            Target::AtMost(most) => format!("≤ {most:.1}×"),
            Target::Below(most) => format!("< {most:.0}{unit}"),
            Target::None => "–".to_owned(),
        };
        let met = match (self.target, ratio, ours) {
            (Target::AtLeast(least), Some(ratio), _) => Some(ratio >= least),
            (Target::AtMost(most), Some(ratio), _) => Some(ratio <= most),
            (Target::Below(most), _, Some(ours)) => Some(ours < most),
            (Target::AtLeast(_) | Target::AtMost(_), None, _) | (Target::Below(_), _, None) => None,
            (Target::None, _, _) => None,
        };
        let met = met.map_or("–", |met| if met { "yes" } else { "**no**" });
        let ratio = ratio.map_or("–".to_owned(), |r| format!("{r:.2}×"));
        format!("| {} | {} | {} | {ratio} | {target} | {met} |\n", self.what, cell(ours), cell(theirs))
    }
}

fn median(turns: &[Turn], of: fn(&Turn) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = turns.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The page, in Markdown.
pub(crate) fn page(sizes: &Sizes, salvor: &[Turn], upstream: &[Turn]) -> String {
    let Sizes { appwrappers, failures, rounds, .. } = sizes;
    let turns = salvor.iter().chain(upstream);
    let others = turns.map(|turn| turn.disturbance).fold(Disturbance::default(), Disturbance::and).share();
    let mut page = format!(
        "# Benchmarks: AppWrappers\n\n\
         <!-- Written by `make bench-appwrapper`; bench/README.md says how it measures. -->\n\n\
         What running AppWrappers costs, on {} cores that also run etcd, the API server, the Job controller and the \
         benchmark. {}Other processes took {:.0} % of the machine meanwhile.\n\n\
         - {appwrappers} AppWrappers of one Job of one pod are created and get to Running; their pods run as soon as they \
         are there. Then all pods succeed.\n\
         - The pods of {failures} more, of one pod each, fail when all of them are ready and the controller is at rest.\n\n\
         **AppWrapper 1.2.0** is CodeFlare's controller with shipped settings. Each works on a control plane of its own, one \
         after the other, with webhooks. Medians of {rounds} rounds; the ratio is the median of the rounds' ratios.\n\n\
         | figure | Salvor | AppWrapper 1.2.0 | ratio | target | met |\n|---|--:|--:|--:|--:|---|\n",
        cores(),
        if others > TOLERATED { "**A disturbed run.** " } else { "" },
        others * 100.0,
    );
    for line in LINES {
        page.push_str(&line.print(salvor, upstream));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(rate: f64, writes: f64, detection: f64) -> Turn {
        Turn {
            running: rate,
            ready: rate,
            succeeded: rate,
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

    fn cells(page: &str, what: &str) -> Vec<String> {
        let line =
            page.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what} in {page}"));
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    }

    #[test]
    fn targets_are_ratios_or_bounds_and_a_missed_one_says_so() {
        let page = page(&Sizes::default(), &[turn(40.0, 4.0, 1.5)], &[turn(3.0, 9.0, 56.0)]);
        assert_eq!(
            cells(&page, "AppWrappers Running |")[2..7],
            ["40.0 /s", "3.0 /s", "13.33×", "≥ 10.0×", "yes"]
        );
        assert_eq!(cells(&page, "until the pods are ready")[4..7], ["0.44×", "≤ 0.5×", "yes"]);
        assert_eq!(cells(&page, "the grace, median")[5..7], ["< 1 s", "**no**"]);
    }

    #[test]
    fn one_of_them_alone_has_no_ratio() {
        let page = page(&Sizes::default(), &[], &[turn(3.0, 9.0, 56.0)]);
        assert_eq!(cells(&page, "AppWrappers Running |")[2..7], ["–", "3.0 /s", "–", "≥ 10.0×", "–"]);
    }
}
