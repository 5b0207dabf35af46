//! The arguments of `salvor simulate` and of its subcommand.

use std::path::PathBuf;

use salvor_simulate::Seeds;
use salvor_simulate::play::Peer;

use crate::cluster::ClusterArgs;

const IMAGE: &str = concat!("salvor:", env!("CARGO_PKG_VERSION"));

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    pub(super) command: Option<SimulateCommand>,
    /// The scenario, as a YAML file: cluster, work, failures, and Salvor's configuration
    #[arg(value_name = "SCENARIO", required_unless_present_any = ["schema", "from_cluster"])]
    pub(super) scenario: Option<PathBuf>,
    /// The seed of everything random: one seed, one history
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "seeds")]
    pub(super) seed: u64,
    /// Play many seeds on all cores, such as 1..1000; Ctrl-C reports those that are done
    #[arg(long, value_name = "A..B")]
    pub(super) seeds: Option<Seeds>,
    /// The form of the report
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub(super) output: Form,
    /// Play two configuration files of Salvor on the same failures
    #[arg(long, value_names = ["FILE", "FILE"], num_args = 2)]
    pub(super) compare: Vec<PathBuf>,
    /// Play a field of Salvor's configuration, or of a workload (workloads.NAME.FIELD), with each of these values; repeat it for a grid
    #[arg(long, value_name = "KEY=VALUE,VALUE", value_parser = sweep)]
    pub(super) sweep: Vec<Sweep>,
    /// Play the rules of a peer as well: kubernetes, kueue, karpenter or appwrapper; repeatable
    #[arg(long, value_name = "PEER")]
    pub(super) against: Vec<Peer>,
    /// Let something else fail as well, such as "partition zone=b 15m" or "crash node=n1 at=2m"; repeatable
    #[arg(long, value_name = "FAILURE")]
    pub(super) fail: Vec<String>,
    #[command(flatten)]
    pub(super) live: LiveArgs,
    /// Play only a part of the seeds: the I-th of N parts, from 0
    #[arg(long, value_name = "I/N", value_parser = part, requires = "seeds")]
    pub(super) shard: Option<Part>,
    /// Print a ConfigMap and an Indexed Job that play the seeds in N parts, 10 if it is not said, on a Kubernetes cluster
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "10",
        requires = "seeds",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub(super) as_job: Option<u32>,
    /// With --as-job: the image of Salvor
    #[arg(long, value_name = "IMAGE", requires = "as_job", default_value = IMAGE)]
    pub(super) image: String,
    /// Only check the scenario: exits with 2 if it is wrong, and says in which line
    #[arg(long)]
    pub(super) check: bool,
    /// Print the JSON schema of scenarios
    #[arg(long, exclusive = true)]
    pub(super) schema: bool,
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct LiveArgs {
    /// Take nodes, workloads and Salvor's configuration from a live cluster, in place of a scenario; it only reads
    #[arg(long, conflicts_with = "scenario")]
    pub(super) from_cluster: bool,
    /// With --from-cluster: write the scenario to a file
    #[arg(long, value_name = "FILE", requires = "from_cluster")]
    pub(super) save: Option<PathBuf>,
    /// With --from-cluster: hash all names, so that the scenario can be shown to others
    #[arg(long, requires = "from_cluster")]
    pub(super) hash_names: bool,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum SimulateCommand {
    /// Join the reports of parts that were played elsewhere
    ///
    /// Reads all files of a folder that end with .json, as -o json has written them.
    Merge(MergeArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct MergeArgs {
    /// The folder of the reports
    #[arg(value_name = "DIR")]
    pub(super) folder: PathBuf,
    /// The form of the report
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub(super) output: Form,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    /// For a terminal
    Table,
    /// For machines
    Json,
    /// One page, in one file
    Html,
    /// The plot
    Svg,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sweep {
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

impl std::fmt::Display for Sweep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.key, self.values.join(","))
    }
}

fn sweep(text: &str) -> Result<Sweep, String> {
    let usage = || "write KEY=VALUE,VALUE, such as brake.maxUnreachablePercent=20,50".to_owned();
    let (key, values) = text.split_once('=').ok_or_else(usage)?;
    // A comma inside brackets belongs to a value.
    let mut deep = 0usize;
    let parts = values.split(|c: char| {
        match c {
            '[' | '{' => deep += 1,
            ']' | '}' => deep = deep.saturating_sub(1),
            _ => {}
        }
        c == ',' && deep == 0
    });
    let values: Vec<String> = parts.map(|part| part.trim().to_owned()).collect();
    if key.trim().is_empty() || values.iter().any(String::is_empty) {
        return Err(usage());
    }
    Ok(Sweep { key: key.trim().to_owned(), values })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) index: u64,
    pub(super) count: u64,
}

fn part(text: &str) -> Result<Part, String> {
    let usage = || "write I/N, such as 0/4 for the first of four parts".to_owned();
    let (index, count) = text.split_once('/').ok_or_else(usage)?;
    let part =
        Part { index: index.parse().map_err(|_| usage())?, count: count.parse().map_err(|_| usage())? };
    if part.index < part.count { Ok(part) } else { Err(usage()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_a_field_and_its_values() {
        let parsed = sweep("brake.maxUnreachablePercent=20, 50,100").unwrap();
        assert_eq!(
            (parsed.key.as_str(), parsed.values.join(" ").as_str()),
            ("brake.maxUnreachablePercent", "20 50 100")
        );
        assert_eq!(sweep("controllers=[zombie, job],[job]").unwrap().values, ["[zombie, job]", "[job]"]);
        for bad in ["", "a", "=1", "a=", "a=1,,2"] {
            assert!(sweep(bad).unwrap_err().contains("write KEY=VALUE"), "{bad}");
        }
    }

    #[test]
    fn a_part_is_one_of_several() {
        assert_eq!(part("0/4"), Ok(Part { index: 0, count: 4 }));
        for bad in ["", "4/4", "1", "a/b", "-1/4", "0/0"] {
            assert!(part(bad).unwrap_err().contains("write I/N"), "{bad}");
        }
    }
}
