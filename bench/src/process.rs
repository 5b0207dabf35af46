//! What a process has cost so far, from the kernel's own books.

use std::fs;

/// Kernel clock ticks per second; fixed at 100 on Linux for what `/proc` shows.
const TICKS: f64 = 100.0;

/// CPU seconds (user and system) that a process has used.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command's name may hold spaces; the fields after its closing parenthesis do not.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |i: usize| {
        fields
            .get(i)
            .and_then(|f| f.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
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
