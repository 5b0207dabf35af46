//! Compares predicted and measured phases of the same work.

use salvor_simulate::{
    play::Millis,
    report::{Phases, Recovery, Report},
};

/// The rows by which a scenario is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// One for each workload.
    Workloads,
    /// One for each failure.
    Failures,
}

impl Rows {
    fn of(self, report: &Report) -> Vec<(String, Recovery)> {
        match self {
            Self::Workloads => {
                report.workloads.iter().map(|it| (it.name.clone(), it.recovery.clone())).collect()
            }
            Self::Failures => {
                report.failures.iter().map(|it| (it.named.clone(), it.recovery.clone())).collect()
            }
        }
    }
}

/// A play on the real control plane.
pub(super) struct Measured {
    pub(super) report: Report,
    /// How often kube-controller-manager skipped the turn of a node, because its cache was stale.
    pub(super) stale: usize,
}

pub(super) struct Comparison {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) lines: Vec<Line>,
    /// How often kube-controller-manager skipped the turn of a node, in all rounds.
    pub(super) stale: usize,
}

/// The same work in virtual time and on the real control plane.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) predicted: Side,
    pub(super) measured: Side,
}

/// Means of all plays of one side.
#[derive(Default)]
pub(super) struct Side {
    /// Pods that were lost, in all plays.
    pub(super) lost: u64,
    /// Those that another pod has replaced.
    pub(super) replaced: u64,
    /// Each phase, and their total.
    pub(super) spans: [Span; 8],
}

/// Seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Span {
    /// The mean of all pods.
    pub(super) mean: f64,
    /// The smallest and the largest mean of one play.
    pub(super) range: (f64, f64),
}

/// How far a measured phase is from the predicted one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distance {
    /// At most a tenth, as a share.
    Near(f64),
    /// Less than a second, in seconds.
    Short(f64),
    /// Within the range of the seeds, in seconds.
    Spread(f64),
    /// More than that, in seconds.
    Far(f64),
}

/// A difference of at most this share needs no explanation.
const NEAR: f64 = 0.1;
/// Requests and the scheduler take part of a second, which virtual time does not have.
const SHORT: f64 = 1.0;

impl Comparison {
    pub(super) fn of(
        name: &str,
        title: &str,
        rows: Rows,
        predicted: &[Report],
        measured: &[&Measured],
    ) -> Self {
        let names: Vec<String> = predicted
            .first()
            .map(|it| rows.of(it).into_iter().map(|(name, _)| name).collect())
            .unwrap_or_default();
        let row = |report: &Report, index: usize| rows.of(report).into_iter().nth(index).map(|(_, it)| it);
        let stale = measured.iter().map(|it| it.stale).sum();
        let lines = names.into_iter().enumerate().map(|(index, name)| Line {
            name,
            predicted: Side::of(predicted.iter().filter_map(|it| row(it, index))),
            measured: Side::of(measured.iter().filter_map(|it| row(&it.report, index))),
        });
        Self { name: name.to_owned(), title: title.to_owned(), lines: lines.collect(), stale }
    }
}

impl Side {
    fn of(plays: impl Iterator<Item = Recovery>) -> Self {
        let mut side = Self::default();
        for play in plays {
            side.lost += play.lost;
            if play.replaced == 0 {
                continue;
            }
            let weight = play.replaced as f64;
            let seen = side.replaced as f64;
            for (span, seconds) in side.spans.iter_mut().zip(seconds(&play.phases)) {
                let (least, most) = if seen == 0.0 { (seconds, seconds) } else { span.range };
                span.mean = (span.mean * seen + seconds * weight) / (seen + weight);
                span.range = (least.min(seconds), most.max(seconds));
            }
            side.replaced += play.replaced;
        }
        side
    }
}

fn seconds(phases: &Phases) -> [f64; 8] {
    let all = phases.all();
    let total: Millis = all.iter().sum();
    let [detect, evict, wait, decide, replace, schedule, start] = all;
    [detect, evict, wait, decide, replace, schedule, start, total].map(|millis| millis as f64 / 1000.0)
}

impl Line {
    /// For each phase, and for the total.
    pub(super) fn distances(&self) -> impl Iterator<Item = Distance> {
        self.predicted.spans.iter().zip(&self.measured.spans).map(|(predicted, measured)| {
            let by = measured.mean - predicted.mean;
            let (least, most) = predicted.range;
            if by.abs() <= NEAR * predicted.mean {
                Distance::Near(if predicted.mean > 0.0 { by / predicted.mean } else { 0.0 })
            } else if by.abs() < SHORT {
                Distance::Short(by)
            } else if (least..=most).contains(&measured.mean) {
                Distance::Spread(by)
            } else {
                Distance::Far(by)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(means: [f64; 8], spread: f64) -> Side {
        let spans = means.map(|mean| Span { mean, range: (mean - spread, mean + spread) });
        Side { lost: 1, replaced: 1, spans }
    }

    #[test]
    fn a_difference_is_near_short_within_the_seeds_or_far() {
        let line = Line {
            name: "train".to_owned(),
            predicted: side([50.0, 10.0, 0.0, 10.0, 0.0, 0.0, 0.0, 70.0], 5.0),
            measured: side([54.9, 10.9, 0.4, 14.0, 6.0, 0.0, 0.0, 70.0], 0.0),
        };
        let [detect, evict, wait, decide, replace, schedule, ..] = line.distances().collect::<Vec<_>>()[..]
        else {
            panic!("eight columns")
        };
        assert!(matches!(detect, Distance::Near(by) if (by - 0.098).abs() < 1e-6), "{detect:?}");
        assert!(matches!(evict, Distance::Near(_)), "{evict:?}");
        assert!(matches!(wait, Distance::Short(_)), "{wait:?}");
        assert!(matches!(decide, Distance::Spread(by) if by == 4.0), "{decide:?}");
        assert!(matches!(replace, Distance::Far(by) if by == 6.0), "{replace:?}");
        assert_eq!(schedule, Distance::Near(0.0));
    }

    #[test]
    fn plays_weigh_as_much_as_pods_were_replaced_in_them() {
        let play = |replaced, detect| Recovery {
            lost: replaced,
            replaced,
            phases: Phases { detect, ..Phases::default() },
            ..Recovery::default()
        };
        let side = Side::of([play(1, 10_000), play(0, 0), play(3, 30_000)].into_iter());
        assert_eq!((side.lost, side.replaced), (4, 4));
        assert_eq!(side.spans[0], Span { mean: 25.0, range: (10.0, 30.0) });
        assert_eq!(side.spans[7].mean, 25.0);
    }
}
