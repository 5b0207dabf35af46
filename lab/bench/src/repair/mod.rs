//! Repair in a large cluster: how soon all nodes of a policy are evaluated after a change of it, and how much memory a
//! node takes.

mod world;

use std::{
    fmt::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kube::Client;
use salvor_testkit::{ControlPlane, wait::Patience};

use crate::{
    process::{Disturbance, Watchman, cores, cpu_seconds},
    requests::concurrently,
    running::{Running, get, rest, settled_memory, start_salvor},
    zombie::pids,
};

/// The page mentions it if other processes took more than this share of the machine.
const TOLERATED: f64 = 0.1;
/// The target: all nodes are evaluated within this time of a change.
const SECONDS: f64 = 1.0;
/// The target: a node takes at most this many bytes.
const BYTES: f64 = 2_000.0;
/// The brake is off: no node is repaired, and none is unreachable.
const CONFIGURATION: &str = "controllers: [repair]
brake: {maxPodsPerMinute: 0, maxNodesPerMinute: 0, maxUnreachablePercent: 0}
";
/// The number of nodes at the first memory reading: the code that the first nodes make a process load does not count
/// for a node.
const FEW: usize = 20;
/// The interval at which the metrics are read while a change is evaluated.
const LOOK: Duration = Duration::from_millis(10);
/// A change that is not evaluated by then never will be.
const JUDGED_BY: Duration = Duration::from_secs(300);
/// The number of Salvor's concurrent writes, and of the floor's.
const IN_FLIGHT: usize = 32;

/// How much of everything.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Sizes {
    /// Nodes, each with its NodeClaim
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    nodes: usize,
    /// Those of them that are sick for longer than the policy tolerates
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    sick: usize,
    /// Changes of the policy that are measured; medians are reported
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Measure this salvor instead of building one
    #[arg(long, value_name = "FILE")]
    salvor: Option<PathBuf>,
    /// Where the table is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/repair.md"), value_name = "FILE", hide_default_value = true)]
    output: PathBuf,
}

struct Round {
    /// Until every node was evaluated again.
    judged: f64,
    /// Until the last of them showed that in its condition.
    told: f64,
    /// The same writes by bare requests.
    floor: f64,
    /// CPU seconds of Salvor until everything was reported and it was idle.
    cpu: f64,
}

/// Measures, prints the page and writes it.
pub(crate) async fn run(sizes: &Sizes) -> Result<(), String> {
    let salvor = sizes.salvor.clone().map_or_else(crate::running::build_salvor, Ok)?;
    let plane = ControlPlane::builder().start().await.map_err(|e| e.to_string())?;
    let client = plane.admin().client("bench-world");
    world::install(&plane, &salvor).await?;
    world::begin(&client).await?;
    let few = FEW.min(sizes.nodes);
    world::fill(&client, 0..few, sizes.sick).await?;
    let (small, _) = start(&plane, &salvor).await?;
    world::until_told(&client, few.min(sizes.sick), world::Held::Paused).await?;
    rest(small.program.pid()).await.ok_or("salvor does not come to rest")?;
    let before = settled_memory(small.program.pid()).await.0;
    drop(small);

    eprintln!("repair: making {} nodes with their NodeClaims, {} of them sick", sizes.nodes, sizes.sick);
    let bytes = world::fill(&client, few..sizes.nodes, sizes.sick).await?;
    let watchman = Watchman::begin(&pids(&plane));
    let (running, address) = start(&plane, &salvor).await?;
    let pid = running.program.pid();
    world::until_told(&client, sizes.sick, world::Held::Paused).await?;
    rest(pid).await.ok_or("salvor does not come to rest")?;
    let (settled, peak) = settled_memory(pid).await;

    let mut rounds = Vec::new();
    for number in 0..sizes.rounds {
        let floor = bare_writes(&client, sizes.sick).await?;
        let round = change(&client, address, pid, sizes.sick, floor).await?;
        eprintln!(
            "repair: round {number}: judged after {:.3} s, told after {:.2} s, bare writes {:.2} s",
            round.judged, round.told, round.floor
        );
        rounds.push(round);
    }
    let disturbance = watchman.end(Some(pid));
    let page = page(sizes, &rounds, (before, settled, peak), bytes, disturbance);
    eprintln!("{page}");
    std::fs::write(&sizes.output, page)
        .map_err(|e| format!("the table cannot be written to {}: {e}", sizes.output.display()))
}

async fn start(plane: &ControlPlane, salvor: &Path) -> Result<(Running, SocketAddr), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (program, address) = start_salvor(salvor, plane, folder.path(), CONFIGURATION).await?;
    Ok((Running::when_at_rest("salvor", program, address, folder).await?, address))
}

/// Resumes the policy. Then its circuit breaker blocks every unhealthy node, for another reason than before.
async fn change(
    client: &Client,
    address: SocketAddr,
    pid: u32,
    sick: usize,
    floor: f64,
) -> Result<Round, String> {
    let before = Counts::read(address).await?;
    let cpu_before = cpu_seconds(pid);
    let start = Instant::now();
    world::pause(client, false).await?;
    let is_judged = |now: &Counts| now.verdicts >= before.verdicts + sick && now.policies > before.policies;
    let judged = counted(address, start, is_judged).await?;
    let told = counted(address, start, |now| now.reports >= before.reports + sick).await?;
    world::until_told(client, sick, world::Held::TooManyUnhealthy).await?;
    rest(pid).await.ok_or("salvor does not come to rest")?;
    let cpu = cpu_seconds(pid) - cpu_before;
    world::pause(client, true).await?;
    world::until_told(client, sick, world::Held::Paused).await?;
    rest(pid).await.ok_or("salvor does not come to rest")?;
    Ok(Round { judged: judged.as_secs_f64(), told: told.as_secs_f64(), floor, cpu })
}

/// Salvor's counters so far.
struct Counts {
    /// Decisions that the breaker blocks a node, which must be reported on the node.
    verdicts: usize,
    /// Decisions that change the status of the policy. It is evaluated after all its nodes.
    policies: usize,
    /// Writes of conditions to nodes.
    reports: usize,
}

impl Counts {
    async fn read(address: SocketAddr) -> Result<Self, String> {
        let text = get(address, "/metrics").await.map_err(|e| format!("the metrics cannot be read: {e}"))?;
        let value = |name: &str, labels: &[&str]| {
            let is_it =
                |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
            let value = text.lines().find(is_it).and_then(|line| line.rsplit(' ').next());
            value.and_then(|value| value.parse::<usize>().ok()).unwrap_or(0)
        };
        let judged = |reason: &str| {
            value("salvor_verdicts_total{", &["recovery=\"repair\"", "verdict=\"Act\"", reason])
        };
        Ok(Self {
            verdicts: judged("reason=\"TooManyUnhealthy\""),
            policies: judged("reason=\"Counts\""),
            reports: value("salvor_writes_total{", &["action=\"ReportRepair\"", "result=\"ok\""]),
        })
    }
}

/// Waits until the counters satisfy a condition. Returns the time since the start.
async fn counted(
    address: SocketAddr,
    start: Instant,
    is_so: impl Fn(&Counts) -> bool,
) -> Result<Duration, String> {
    let until = async {
        while !is_so(&Counts::read(address).await?) {
            tokio::time::sleep(LOOK).await;
        }
        Ok(start.elapsed())
    };
    Patience::of(JUDGED_BY)
        .until(until)
        .await
        .unwrap_or(Err("the metrics never say that it is done".to_owned()))
}

/// As many writes of a condition as Salvor has to do, by requests alone.
async fn bare_writes(client: &Client, sick: usize) -> Result<f64, String> {
    let client = client.clone();
    let start = Instant::now();
    concurrently(IN_FLIGHT, 0..sick, move |number| {
        let client = client.clone();
        async move { world::touch(&client, number).await }
    })
    .await?;
    Ok(start.elapsed().as_secs_f64())
}

fn page(
    sizes: &Sizes,
    rounds: &[Round],
    (before, settled, peak): (f64, f64, f64),
    bytes: (usize, usize),
    disturbance: Disturbance,
) -> String {
    let median = |of: &dyn Fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let met = |is_met: bool| if is_met { "yes" } else { "**no**" };
    let judged = median(&|round| round.judged);
    let weight = (settled - before) * 1e6 / sizes.nodes.saturating_sub(FEW).max(1) as f64;
    let mut page = format!(
        "# Benchmarks of repair\n\n\
         <!-- Written by `make bench-repair`; lab/bench/README.md says how it measures. -->\n\n\
         {} nodes with a NodeClaim each under one policy, {} of them sick for longer than it tolerates, on {} cores that also run etcd \
         and the API server. A Node has {} bytes as JSON, a NodeClaim {}. Medians of {} rounds.\n\n",
        sizes.nodes,
        sizes.sick,
        cores(),
        bytes.0,
        bytes.1,
        sizes.rounds,
    );
    if disturbance.share() > TOLERATED {
        let percent = disturbance.share() * 100.0;
        line(
            &mut page,
            format_args!("> **A disturbed run.** Other processes took {percent:.0} % of the machine.\n"),
        );
    }
    page.push_str("| figure | seen | target | met |\n|---|--:|--:|---|\n");
    let told = median(&|round| round.told);
    let floor = median(&|round| round.floor);
    line(
        &mut page,
        format_args!(
            "| from a change of the policy until all its nodes are judged again, and every sick one has its new verdict | {judged:.2} s | < {SECONDS:.0} s | {} |\n\
             | decisions per second meanwhile | {:.0} | – | – |\n\
             | until every one of them says so in its condition | {told:.2} s | – | – |\n\
             | as many bare writes, {IN_FLIGHT} in flight | {floor:.2} s | – | – |\n\
             | CPU of Salvor for all of it | {:.2} s | – | – |\n\
             | memory per node with its NodeClaim | {:.0} bytes | ≤ {BYTES:.0} bytes | {} |\n\
             | resident memory: with {FEW} nodes, with all, peak | {before:.1} MB, {settled:.1} MB, {peak:.1} MB | – | – |",
            met(judged < SECONDS),
            sizes.nodes as f64 / judged,
            median(&|round| round.cpu),
            weight,
            met(weight <= BYTES),
        ),
    );
    page
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}
