//! Plays swarm seeds on all cores: `make swarm SEEDS=1..10000`. Ctrl-C ends it with a report of what was played.
//!
//! `make swarm SEEDS=4711 HISTORY=FILE` writes every change of every object in a seed to a file, one line of JSON each;
//! with `-` it only shows the plan.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Instant,
};

use salvor_simulate::{
    History,
    swarm::{Plan, Progress, Report, Seeds, Swarm, play_and_tell},
};

/// Each seed allocates and frees millions of small values.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Only this many findings are shrunk to their shortest schedule: one bug usually breaks many seeds.
const SHORTENED: usize = 3;

fn main() -> ExitCode {
    let text = std::env::args().nth(1).unwrap_or_else(|| "1..200".to_owned());
    let seeds: Seeds = match text.parse() {
        Ok(seeds) => seeds,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(file) = std::env::args().nth(2) {
        return tell_one(*seeds.0.start(), &file);
    }
    let swarm = Arc::new(Swarm::new(seeds));
    stop_on_ctrl_c(&swarm);
    // Progress output uses wall-clock time.
    #[allow(clippy::disallowed_methods, reason = "no simulation depends on it")]
    let began = Instant::now();
    let report = swarm.run(|progress| tell(progress, began));
    match print(&report, began) {
        Ok(()) if report.findings.is_empty() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn tell_one(seed: u64, file: &str) -> ExitCode {
    let (plan, history) = (Plan::of(seed), History::default());
    if file == "-" {
        eprint!("{plan}");
        return ExitCode::SUCCESS;
    }
    let outcome = play_and_tell(&plan, Some(&history));
    eprint!("{plan}");
    outcome.violations.iter().for_each(|violation| eprintln!("breaks {violation}"));
    match std::fs::write(file, history.bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{file}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// After the first Ctrl-C no seed is begun; the second ends the process.
fn stop_on_ctrl_c(swarm: &Arc<Swarm>) {
    let swarm = Arc::clone(swarm);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                eprintln!("\nstopping: seeds that are under way are played to their end");
                swarm.stop();
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(130);
            }
        });
    });
}

fn tell(Progress { played, seeds, broken }: Progress, began: Instant) {
    let left = began.elapsed().as_secs_f64() / played as f64 * (seeds - played) as f64;
    let line = format!("{played} of {seeds} seeds, {broken} broken, {left:.0} s left");
    if io::stderr().is_terminal() {
        eprint!("\r{line}   ");
    } else if played.is_multiple_of(seeds.div_ceil(20)) {
        eprintln!("{line}");
    }
}

fn print(report: &Report, began: Instant) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out)?;
    for (number, finding) in report.findings.iter().enumerate() {
        writeln!(out, "{finding}")?;
        if number < SHORTENED {
            writeln!(out, "  the shortest schedule that still breaks it:\n{}", finding.shortest())?;
        }
    }
    let (seconds, broken) = (began.elapsed().as_secs_f64(), report.findings.len());
    let each = seconds / report.played.max(1) as f64;
    writeln!(out, "{} seeds in {seconds:.0} s, {each:.2} s each; {broken} broke a promise", report.played)?;
    writeln!(out, "{:?}", report.deeds)
}
