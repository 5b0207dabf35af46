//! `salvor doctor`: checks before and after installing whether a cluster and Salvor fit each other. It only reads.

mod actors;
mod at_start;
mod clocks;
mod consents;
mod costs;
mod finding;
mod look;
mod nodes;
mod rules;
mod running;
mod selectors;
mod timings;
mod versions;

use std::process::ExitCode;

use jiff::Timestamp;
use salvor_api::config::{Configuration, LogFormat};
use salvor_operator::InCluster;
use tokio::runtime;
use tracing::level_filters::LevelFilter;

pub(crate) use self::at_start::check_in_background;
use self::costs::Cost;
use self::finding::{Check, Checked, Checkup, Finding, Severity};
use self::look::Looker;
use self::rules::Ground;
use self::timings::Timings;
use crate::cluster::{Cluster, ClusterArgs};
use crate::error::CliError;
use crate::output::{self, Form};
use crate::settings::JudgingArgs;
use crate::{logging, manifests};

/// The exit code if warnings are the worst finding. 1 means errors or a failed check, 2 means wrong usage.
const WARNINGS: u8 = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The form of the answer
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    judging: JudgingArgs,
}

pub(crate) fn execute(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let mut configuration = args.judging.load()?;
    logging::start(LogFormat::Text, LevelFilter::WARN)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let (checkup, judged_by) = runtime.block_on(async {
        let cluster = args.cluster.load().await?;
        let mut running = None;
        let mut judged_by =
            "Checked for the given configuration, and not for that of a running operator".to_owned();
        if !args.judging.is_given() {
            let read = InCluster::read(cluster.config.clone(), &configuration.leader_election).await;
            judged_by.clone_from(&read.told);
            if let Some(runs) = read.published.as_ref().and_then(|published| published.configuration.clone())
            {
                configuration = runs;
            }
            running = Some(read);
        }
        let mut checkup = examine(&cluster, &configuration, Depth::Everything).await?;
        // Before an installation nothing runs, and nothing is wrong about that.
        if let Some(running) = running.filter(|running| running.was_led || running.pause.is_some()) {
            checkup.add(&[Check::Running], running::check(&running));
        }
        Ok::<_, CliError>((checkup, judged_by))
    })?;
    let text = match args.output {
        Form::Json => {
            let json = serde_json::to_string_pretty(&checkup);
            json.map_err(|error| CliError::Output(error.into()))? + "\n"
        }
        Form::Text => render(&checkup, &judged_by),
    };
    output::print(&text)?;
    Ok(match checkup.findings.first().map(|finding| finding.severity) {
        Some(Severity::Error) => ExitCode::FAILURE,
        Some(Severity::Warning) => ExitCode::from(WARNINGS),
        Some(Severity::Info) | None => ExitCode::SUCCESS,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// Everything, including all pods.
    Everything,
    /// Only checks that can find errors: a few requests in addition to those for rights.
    Errors,
}

/// Examines a cluster from the view of an installation with this configuration.
async fn examine(
    cluster: &Cluster,
    configuration: &Configuration,
    depth: Depth,
) -> Result<Checkup, CliError> {
    let mut looker = Looker::new(cluster)?;
    let version = looker.version().await?;
    let mut findings = versions::check(&version, configuration);
    findings.extend(looker.rights(&manifests::rights(configuration)).await);
    let actors = looker.actors(configuration).await;
    findings.extend(actors::check(&actors, configuration));
    let manager = looker.controller_manager().await;
    let mut ground = Ground { policies: looker.repair_policies(configuration).await, ..Ground::default() };
    let (mut nodes, mut leases, mut now) = (None, Vec::new(), None);
    if depth == Depth::Everything {
        nodes = looker.nodes().await;
        let time = looker.server_time().await;
        now = time.map(|time| time.now);
        if let Some(nodes) = &nodes {
            findings.extend(nodes::check(nodes, configuration, now.unwrap_or_else(Timestamp::now)));
            leases = looker.kubelet_leases(nodes).await;
        }
        findings.extend(time.iter().flat_map(|time| clocks::check(time, &leases)));
        let (seen, all_pods) = looker.consents(configuration, &actors.workloads).await;
        findings.extend(consents::check(&seen, nodes.as_deref(), configuration));
        ground.pods_of_rule = all_pods.then_some(seen.pods_of_rule);
    }
    ground.nodes = nodes.as_deref();
    findings.extend(rules::check(&ground, configuration));
    let (manager, policies) = (manager.as_ref(), &*ground.policies);
    let timings = Timings { manager, minor: version.minor, leases: &leases, policies, now };
    findings.extend(timings::check(&timings, configuration));
    let lost_node = costs::of_lost_node(timings::detection(&timings), configuration);
    let not_seen = looker.not_seen();
    let mut checkup = Checkup { findings: Vec::new(), checked: Vec::new(), lost_node, not_seen };
    let checks: &[Check] = if depth == Depth::Everything { &Check::OF_CLUSTER } else { &[] };
    checkup.add(checks, findings);
    Ok(checkup)
}

fn render(checkup: &Checkup, judged_by: &str) -> String {
    let mut lines = Vec::new();
    if checkup.findings.is_empty() {
        lines.extend(["Nothing was found".to_owned(), String::new()]);
    }
    for Finding { severity, what, why, fix, .. } in &checkup.findings {
        lines.push(format!("{}: {what}", severity.word()));
        lines.push(format!("  Why it matters: {why}"));
        lines.extend([format!("  To do: {fix}"), String::new()]);
    }
    for Checked { check, what, passed } in &checkup.checked {
        lines.push(format!("{} {}: {what}", if *passed { "ok      " } else { "not ok  " }, check.name()));
    }
    lines.extend((!checkup.checked.is_empty()).then(String::new));
    lines.extend(checkup.lost_node.iter().map(Cost::told));
    lines.push(String::new());
    for missed in &checkup.not_seen {
        lines.push(format!("Not seen: {}: {}", missed.what, missed.why));
    }
    lines.push(judged_by.to_owned());
    lines.join("\n") + "\n"
}
