//! When work is expected back, and of what that time consists: for plain Kubernetes, and for every recovery.

use std::fmt::{self, Write};

use jiff::{SignedDuration, Timestamp};
use serde::{Serialize, Serializer};

use crate::moments::after;

/// The toleration for a lost node that the API server gives to every pod without one.
pub const DEFAULT_TOLERATION: SignedDuration = SignedDuration::from_secs(300);
/// The grace period of a pod that sets none.
pub const DEFAULT_GRACE: SignedDuration = SignedDuration::from_secs(30);
/// The attach/detach controller waits this long before it takes a volume from a node that does not answer. No flag
/// changes it.
pub const FORCE_DETACH: SignedDuration = SignedDuration::from_mins(6);
/// The period of pod GC.
const POD_GC: SignedDuration = SignedDuration::from_secs(20);
/// Pod GC waits this long before it takes a pod for an orphan of a deleted Node.
const ORPHAN_QUARANTINE: SignedDuration = SignedDuration::from_secs(40);
/// More reasons than these make no line that can be read.
const MOST_REASONS: usize = 3;

/// The first minor version of Kubernetes in which a node is lost after 50 seconds of silence. Before, it was 40.
const FIFTY_SECONDS_SINCE: u32 = 32;

/// The default of kube-controller-manager's `--node-monitor-grace-period`. An unknown version counts as a current one.
pub fn default_monitor_grace(minor: Option<u32>) -> SignedDuration {
    let before = minor.is_some_and(|minor| minor < FIFTY_SECONDS_SINCE);
    SignedDuration::from_secs(if before { 40 } else { 50 })
}

/// How long it takes on average from a crash to the unreachable taint. The crash comes half a renewal interval after
/// the last renewal, and the controller notices half a period after the grace period. A kubelet renews its Lease four
/// times in the time that the Lease lasts.
pub fn detection(
    monitor_grace: SignedDuration,
    monitor_period: SignedDuration,
    lease_lasts: SignedDuration,
) -> SignedDuration {
    let exact = monitor_grace.saturating_sub(lease_lasts / 8).saturating_add(monitor_period / 2);
    SignedDuration::from_secs(exact.as_secs().max(0))
}

/// One part of the time until work is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PhaseName {
    /// The control plane notices that a node is lost.
    Detect,
    /// The pod's toleration of a lost node.
    Eviction,
    /// The pod's own grace period, or the rest of it.
    Grace,
    /// The brake holds Salvor back.
    Brake,
    /// Salvor's wait.
    Salvor,
    /// Pod GC removes the pods of a node that is out of service or deleted.
    PodGc,
    /// The attach/detach controller takes the volume from the lost node.
    VolumeReleased,
    /// The Job waits before it replaces a failed pod.
    Backoff,
    /// An AppWrapper waits whether its pods come back by themselves.
    FailureGrace,
    /// An AppWrapper waits for the deletion of what it has created, before it forces it.
    ForcefulDeletion,
    /// An AppWrapper rests before it starts again.
    RetryPause,
}

impl PhaseName {
    /// The name of what happens at the end of the phase.
    pub fn name(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::Eviction => "eviction",
            Self::Grace => "grace",
            Self::Brake => "brake",
            Self::Salvor => "Salvor",
            Self::PodGc => "pod GC",
            Self::VolumeReleased => "volume released",
            Self::Backoff => "backoff",
            Self::FailureGrace => "failure grace",
            Self::ForcefulDeletion => "forceful deletion",
            Self::RetryPause => "retry pause",
        }
    }

    /// The name of what takes the time of the phase.
    pub fn span(self) -> &'static str {
        match self {
            Self::Eviction => "toleration",
            Self::Salvor => "wait",
            Self::VolumeReleased => "volume",
            Self::Detect
            | Self::Grace
            | Self::Brake
            | Self::PodGc
            | Self::Backoff
            | Self::FailureGrace
            | Self::ForcefulDeletion
            | Self::RetryPause => self.name(),
        }
    }
}

impl Serialize for PhaseName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    pub name: PhaseName,
    pub until: Timestamp,
}

/// When work is expected back. The default value says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedBack {
    /// `None` if it depends on something that has no time. With both, it is the earliest time.
    pub at: Option<Timestamp>,
    /// The phases that are not over, one after the other.
    pub phases: Vec<Phase>,
    /// A person, a machine, quota or capacity.
    pub depends_on: Option<String>,
}

impl ExpectedBack {
    /// It depends on something that has no time.
    pub fn depends(on: impl Into<String>) -> Self {
        Self { depends_on: Some(on.into()), ..Self::default() }
    }

    /// One phase is left.
    pub fn after(name: PhaseName, until: Timestamp) -> Self {
        Self { at: Some(until), phases: vec![Phase { name, until }], depends_on: None }
    }

    pub fn says_nothing(&self) -> bool {
        self.at.is_none() && self.depends_on.is_none()
    }

    /// When both are back.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self.says_nothing() {
            return other;
        }
        if other.says_nothing() {
            return self;
        }
        let has_no_time = self.at.is_none() || other.at.is_none();
        let ends = |one: &Self| (one.at, one.phases.last().map(|phase| phase.until));
        let (at, phases) =
            if ends(&other) > ends(&self) { (other.at, other.phases) } else { (self.at, self.phases) };
        let depends_on = match (self.depends_on, other.depends_on) {
            (Some(one), Some(other)) => {
                let known = one.split("; ").count();
                let is_new = !one.split("; ").any(|reason| reason == other);
                Some(if is_new && known < MOST_REASONS { format!("{one}; {other}") } else { one })
            }
            (one, other) => one.or(other),
        };
        Self { at: at.filter(|_| !has_no_time), phases, depends_on }
    }

    /// The line for people. `None` if there is nothing to expect.
    pub fn told(&self, now: Timestamp) -> Option<String> {
        let mut phases = String::new();
        for Phase { name, until } in &self.phases {
            let comma = if phases.is_empty() { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(phases, "{comma}{} {}", name.name(), Clock(*until, now));
        }
        let on = self.depends_on.as_deref();
        match (self.at, on) {
            (None, None) => None,
            (None, Some(on)) if phases.is_empty() => Some(format!("Expected back: depends on {on}")),
            (None, Some(on)) => Some(format!("Expected back: depends on {on}; before that: {phases}")),
            (Some(at), on) => {
                let mut line = if at > now {
                    format!("Expected back {} (in {})", Clock(at, now), brief(at.duration_since(now)))
                } else {
                    "Expected back now".to_owned()
                };
                if !phases.is_empty() {
                    let _ = write!(line, ": {phases}");
                }
                if let Some(on) = on {
                    let _ = write!(line, "; then depends on {on}");
                }
                Some(line)
            }
        }
    }

    /// How long each phase takes for work that was lost at `from`.
    pub fn spans(&self, from: Timestamp) -> Vec<(PhaseName, SignedDuration)> {
        let mut start = from;
        let spans = self.phases.iter().map(|phase| {
            let took = phase.until.duration_since(start);
            start = phase.until;
            (phase.name, took)
        });
        spans.collect()
    }
}

/// The time of day, with the date if that is not today.
struct Clock(Timestamp, Timestamp);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(time, now) = self;
        let day = |time: &Timestamp| time.strftime("%Y-%m-%d").to_string();
        if day(time) != day(now) {
            write!(f, "{} ", day(time))?;
        }
        write!(f, "{}", time.strftime("%H:%M:%S"))
    }
}

/// A duration in the largest units, without those that are zero, rounded up to the second: `4m12s`, `5m`, `1h1s`.
pub fn brief(duration: SignedDuration) -> String {
    let more = i64::from(duration.subsec_nanos() > 0);
    let seconds = duration.as_secs().saturating_add(more).max(0);
    let units =
        [("d", seconds / 86_400), ("h", seconds / 3_600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let text: String =
        units.iter().filter(|(_, count)| *count > 0).map(|(unit, count)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A pod on a lost node, as far as it decides when its work runs again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPod {
    /// The pod's name, for sentences.
    pub pod: String,
    pub node: LostNode,
    /// When the node is marked unreachable, or was.
    pub detected: Timestamp,
    pub deletion: DeletionRequest,
    /// The pod's own grace period.
    pub grace: SignedDuration,
    pub replaced: Replaced,
    pub salvor: Salvor,
    /// True if it has a volume that only one node may have.
    pub holds_volume: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostNode {
    Silent,
    /// Its machine is known to be off: it has the out-of-service taint.
    OutOfService,
    /// There is no such Node any more.
    Deleted,
}

/// The request to delete a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionRequest {
    /// The taint eviction controller requests it then, or it was requested then.
    At(Timestamp),
    /// The pod tolerates a lost node forever.
    Never,
}

/// When the owner of a pod replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// As soon as its deletion is requested: ReplicaSets, and Jobs by default.
    WhenDeleted,
    /// As soon as it has ended or is gone.
    WhenEnded,
    /// With its node: a DaemonSet's pod.
    WithItsNode,
    /// Nothing owns it.
    Never,
}

/// What Salvor does with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Salvor {
    /// Ends it after its deletion was requested.
    Ends(Timestamp),
    /// Ends it, whether or not its deletion is requested.
    GivesUp(Timestamp),
    /// The brake holds it back until then.
    Held(Timestamp),
    DependsOn(String),
}

/// When the work of a pod on a lost node is back.
pub fn expected_back(lost: &LostPod, now: Timestamp) -> ExpectedBack {
    let mut course = Course { at: now, phases: Vec::new() };
    course.until(PhaseName::Detect, lost.detected);
    match lost.node {
        LostNode::OutOfService => {
            // Volumes are detached at once.
            course.last(PhaseName::PodGc, POD_GC);
            return course.end(lost);
        }
        LostNode::Deleted => course.last(PhaseName::PodGc, ORPHAN_QUARANTINE.saturating_add(POD_GC)),
        LostNode::Silent => {
            if lost.replaced == Replaced::WithItsNode {
                return course.depends("its node: a pod of a DaemonSet comes back with it");
            }
            if let Err(on) = course.ending(lost) {
                return course.depends(on);
            }
            if lost.replaced == Replaced::WhenDeleted && !lost.holds_volume {
                return course.end(lost);
            }
        }
    }
    if lost.holds_volume {
        course.last(PhaseName::VolumeReleased, FORCE_DETACH);
    }
    course.end(lost)
}

struct Course {
    at: Timestamp,
    phases: Vec<Phase>,
}

impl Course {
    /// A phase until a known time. One that is over takes no time.
    fn until(&mut self, name: PhaseName, until: Timestamp) {
        if until > self.at {
            self.at = until;
            self.phases.push(Phase { name, until });
        }
    }

    /// A phase of a known length.
    fn last(&mut self, name: PhaseName, lasts: SignedDuration) {
        self.until(name, after(self.at, lasts));
    }

    /// Until the pod may be replaced, or has ended. The error is what that depends on.
    fn ending(&mut self, lost: &LostPod) -> Result<(), String> {
        if let Salvor::GivesUp(at) = lost.salvor {
            self.until(PhaseName::Salvor, at);
            return Ok(());
        }
        let requested = match lost.deletion {
            DeletionRequest::At(requested) => requested,
            DeletionRequest::Never => {
                return Err(format!(
                    "a person: pod {} tolerates a lost node forever, and nothing requests its deletion",
                    lost.pod
                ));
            }
        };
        self.until(PhaseName::Eviction, requested);
        if lost.replaced == Replaced::WhenDeleted && !lost.holds_volume {
            return Ok(());
        }
        let grace_ends = after(requested, lost.grace);
        // Salvor need not wait for a grace period that no kubelet has heard of.
        if !matches!(lost.salvor, Salvor::Ends(at) if at < grace_ends) {
            self.until(PhaseName::Grace, grace_ends);
        }
        match &lost.salvor {
            Salvor::Ends(at) | Salvor::GivesUp(at) => self.until(PhaseName::Salvor, *at),
            Salvor::Held(at) => self.until(PhaseName::Brake, *at),
            Salvor::DependsOn(on) => return Err(on.clone()),
        }
        Ok(())
    }

    fn end(self, lost: &LostPod) -> ExpectedBack {
        let depends_on = (lost.replaced == Replaced::Never)
            .then(|| format!("a person: nothing owns pod {}, so nothing replaces it", lost.pod));
        ExpectedBack { at: Some(self.at), phases: self.phases, depends_on }
    }

    fn depends(self, on: impl Into<String>) -> ExpectedBack {
        ExpectedBack { at: None, phases: self.phases, depends_on: Some(on.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-11-16T{text}Z").parse().unwrap()
    }

    fn seconds(count: i64) -> SignedDuration {
        SignedDuration::from_secs(count)
    }

    /// A pod of a node that crashed at 23:07:36, by the defaults of everything. Its owner has consented.
    fn lost() -> LostPod {
        LostPod {
            pod: "train-1".to_owned(),
            node: LostNode::Silent,
            detected: at("23:08:23"),
            deletion: DeletionRequest::At(at("23:13:23")),
            grace: DEFAULT_GRACE,
            replaced: Replaced::WhenEnded,
            salvor: Salvor::Ends(at("23:14:53")),
            holds_volume: false,
        }
    }

    fn cost(lost: &LostPod) -> Option<String> {
        let crash = at("23:07:36");
        expected_back(lost, crash).at.map(|back| brief(back.duration_since(crash)))
    }

    #[test]
    fn a_lost_node_costs_what_was_measured() {
        let with = |change: &dyn Fn(&mut LostPod)| {
            let mut lost = lost();
            change(&mut lost);
            cost(&lost)
        };
        let told = |text: &str| Some(text.to_owned());
        assert_eq!(with(&|_| {}), told("7m17s"), "a Job with consent");
        assert_eq!(with(&|lost| lost.replaced = Replaced::WhenDeleted), told("5m47s"), "a Deployment");
        assert_eq!(with(&|lost| lost.holds_volume = true), told("13m17s"), "a StatefulSet with a volume");
        let evict_after = Salvor::GivesUp(at("23:08:53"));
        assert_eq!(with(&|lost| lost.salvor = evict_after.clone()), told("1m17s"), "evict-after 30s");
        // Salvor may act before the grace period is over.
        assert_eq!(with(&|lost| lost.salvor = Salvor::Ends(at("23:13:33"))), told("5m57s"));
        // A Deployment's pod that is given up earlier is replaced earlier.
        let both = with(&|lost| {
            lost.salvor = evict_after.clone();
            lost.replaced = Replaced::WhenDeleted;
        });
        assert_eq!(both, told("1m17s"));
        // A volume keeps the replacement of a Deployment's pod from starting, so the old pod has to end.
        let volume = with(&|lost| {
            lost.replaced = Replaced::WhenDeleted;
            lost.holds_volume = true;
        });
        assert_eq!(volume, told("13m17s"));
    }

    #[test]
    fn detection_takes_as_long_as_the_monitor_and_the_lease_say() {
        let detect =
            |minor, period, lease| detection(default_monitor_grace(minor), seconds(period), seconds(lease));
        assert_eq!(detect(Some(37), 5, 40), seconds(47));
        assert_eq!(detect(None, 5, 40), seconds(47));
        assert_eq!(detect(Some(31), 5, 40), seconds(37));
        assert_eq!(detection(seconds(4), seconds(1), seconds(80)), seconds(0));
    }

    #[test]
    fn the_line_tells_the_phases_that_are_left() {
        let mut pod = lost();
        pod.holds_volume = true;
        let line = |now: &str| expected_back(&pod, at(now)).told(at(now)).unwrap();
        assert_eq!(
            line("23:10:58"),
            "Expected back 23:20:53 (in 9m55s): eviction 23:13:23, grace 23:13:53, Salvor 23:14:53, volume released 23:20:53"
        );
        assert_eq!(
            line("23:14:00"),
            "Expected back 23:20:53 (in 6m53s): Salvor 23:14:53, volume released 23:20:53"
        );
        pod.holds_volume = false;
        assert_eq!(expected_back(&pod, at("23:30:00")).told(at("23:30:00")).unwrap(), "Expected back now");
        let tomorrow = ExpectedBack::after(PhaseName::Backoff, at("23:59:59") + seconds(2));
        assert_eq!(
            tomorrow.told(at("23:59:59")).unwrap(),
            "Expected back 2026-11-17 00:00:01 (in 2s): backoff 2026-11-17 00:00:01"
        );
        assert_eq!(ExpectedBack::default().told(at("23:30:00")), None);
    }

    #[test]
    fn what_has_no_time_is_named() {
        let now = at("23:10:00");
        let told = |change: &dyn Fn(&mut LostPod)| {
            let mut lost = lost();
            change(&mut lost);
            let expected = expected_back(&lost, now);
            (expected.at.is_some(), expected.told(now).unwrap())
        };
        let (has_time, line) = told(&|lost| lost.salvor = Salvor::DependsOn("its owner".to_owned()));
        assert_eq!(
            (has_time, line.as_str()),
            (false, "Expected back: depends on its owner; before that: eviction 23:13:23, grace 23:13:53")
        );
        let (has_time, line) = told(&|lost| lost.deletion = DeletionRequest::Never);
        assert!(!has_time && line.contains("tolerates a lost node forever"), "{line}");
        let (has_time, line) = told(&|lost| lost.replaced = Replaced::WithItsNode);
        assert!(!has_time && line.contains("comes back with it"), "{line}");
        // The pod ends at a known time, and does not come back by itself.
        let (has_time, line) = told(&|lost| lost.replaced = Replaced::Never);
        assert!(
            has_time
                && line.ends_with(
                    "; then depends on a person: nothing owns pod train-1, so nothing replaces it"
                ),
            "{line}"
        );
        let (has_time, line) = told(&|lost| lost.salvor = Salvor::Held(at("23:40:00")));
        assert!(has_time && line.ends_with("brake 23:40:00"), "{line}");
    }

    #[test]
    fn a_node_that_is_off_for_sure_keeps_no_volume() {
        let now = at("23:14:00");
        for (node, ends) in [(LostNode::OutOfService, "23:14:20"), (LostNode::Deleted, "23:21:00")] {
            let pod = LostPod { node, holds_volume: true, ..lost() };
            assert_eq!(expected_back(&pod, now).at, Some(at(ends)), "{node:?}");
        }
    }

    #[test]
    fn of_several_the_last_one_counts_and_one_without_a_time_leaves_none() {
        let early = ExpectedBack::after(PhaseName::Salvor, at("23:10:00"));
        let late = ExpectedBack::after(PhaseName::Backoff, at("23:20:00"));
        let open = ExpectedBack::depends("room in quota q");
        assert_eq!(early.clone().and(late.clone()), late);
        assert_eq!(late.clone().and(early.clone()), late);
        assert_eq!(ExpectedBack::default().and(early.clone()), early);
        assert_eq!(early.clone().and(ExpectedBack::default()), early);
        let both = early.clone().and(open.clone());
        assert_eq!((both.at, both.depends_on.as_deref()), (None, Some("room in quota q")));
        assert_eq!(both.phases, early.phases);
        let twice = both.clone().and(open).and(ExpectedBack::depends("b"));
        assert_eq!(twice.depends_on.as_deref(), Some("room in quota q; b"));
        let many = twice.and(ExpectedBack::depends("c")).and(ExpectedBack::depends("d"));
        assert_eq!(many.depends_on.as_deref(), Some("room in quota q; b; c"));
    }

    #[test]
    fn spans_add_up_and_durations_are_short() {
        let crash = at("23:07:36");
        let spans = expected_back(&lost(), crash).spans(crash);
        let told: Vec<String> =
            spans.iter().map(|(name, took)| format!("{} {}", name.span(), brief(*took))).collect();
        assert_eq!(told.join(", "), "detect 47s, toleration 5m, grace 30s, wait 1m");
        for (count, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (437, "7m17s"), (3601, "1h1s"), (-5, "0s")]
        {
            assert_eq!(brief(seconds(count)), text);
        }
        assert_eq!(brief(SignedDuration::from_millis(1500)), "2s");
    }
}
