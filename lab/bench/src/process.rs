//! The resource usage of processes, from `/proc`.

use std::{fs, time::Instant};

/// Kernel clock ticks per second; fixed at 100 on Linux for what `/proc` shows.
const TICKS: f64 = 100.0;

/// CPU seconds (user and system) that a process has used.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command's name may contain spaces; the fields after its closing parenthesis do not.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS
}

/// Resident memory of a process in MB: now and at its peak.
pub(crate) fn memory_mb(pid: u32) -> (f64, f64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    let mb = |name| field(name).unwrap_or(0.0) / 1000.0;
    (mb("VmRSS:"), mb("VmHWM:"))
}

/// The number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A period in which other processes should leave the machine idle.
#[derive(Debug)]
pub(crate) struct Watchman {
    ours: Vec<u32>,
    began: Instant,
    busy: f64,
    used_by_ours: f64,
}

impl Watchman {
    /// Starts the measurement; these processes, and this one, are ours and live until the end.
    pub(crate) fn begin(ours: &[u32]) -> Self {
        let ours: Vec<u32> = ours.iter().copied().chain([std::process::id()]).collect();
        Self { began: Instant::now(), busy: busy_seconds(), used_by_ours: used_by(&ours), ours }
    }

    /// What others used since the beginning; `newcomer` is ours too, and started after it.
    pub(crate) fn end(&self, newcomer: Option<u32>) -> Disturbance {
        let ours = used_by(&self.ours) - self.used_by_ours + newcomer.map_or(0.0, cpu_seconds);
        let others = busy_seconds() - self.busy - ours;
        let capacity = self.began.elapsed().as_secs_f64() * cores() as f64;
        Disturbance { others: others.max(0.0), capacity }
    }
}

/// What others used of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Disturbance {
    others: f64,
    capacity: f64,
}

impl Disturbance {
    /// Both periods together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { others: self.others + other.others, capacity: self.capacity + other.capacity }
    }

    /// Like `share`, if processes that came and went meanwhile are ours too, and used this many CPU seconds.
    pub(crate) fn share_without(self, ours: f64) -> f64 {
        Self { others: (self.others - ours).max(0.0), ..self }.share()
    }

    /// The share of the machine that others used, from 0 to 1.
    pub(crate) fn share(self) -> f64 {
        if self.capacity > 0.0 { self.others / self.capacity } else { 0.0 }
    }
}

fn used_by(pids: &[u32]) -> f64 {
    pids.iter().map(|pid| cpu_seconds(*pid)).sum()
}

/// CPU seconds that all processes of the machine have used, plus stolen time. Interrupts are excluded: those of our own
/// loopback traffic are not attributed to any process.
fn busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or("")
        .split_whitespace()
        .skip(1)
        .map(|f| f.parse().unwrap_or(0.0))
        .collect();
    let [user, nice, system, _idle, _iowait, _irq, _softirq, steal, ..] = fields[..] else { return 0.0 };
    (user + nice + system + steal) / TICKS
}
