//! The arguments of the demo, and what they name: the story and the address of the page.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use salvor_simulate::play::Peer;
use salvor_simulate::scenario::{self, Scenario, Source};

use super::error::DemoError;
use crate::settings::page_address;

pub(super) const PAGE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8090);

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Speed of the cluster's time: N of its seconds pass in one real second, 0.1 to 60; no effect with --once; with --replay,
    /// the speed at first
    #[arg(long, value_name = "N", default_value_t = 8.0, value_parser = speed)]
    pub(super) speed: f64,
    /// The story, as a YAML file [default: a zone is cut off]
    #[arg(long, value_name = "FILE")]
    pub(super) scenario: Option<PathBuf>,
    /// Play a seed of a scenario as `salvor simulate` does, and show its history on the page: pause, step, speed, any time
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["scenario", "once", "kubeconfig_out"])]
    pub(super) replay: Option<PathBuf>,
    /// With --replay: the seed of everything random [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// With --replay: let something else fail as well, such as "partition zone=b 15m"; repeatable
    #[arg(long, value_name = "FAILURE", requires = "replay")]
    pub(super) fail: Vec<String>,
    /// With --replay: play Salvor with this configuration file in place of the scenario's configuration
    #[arg(long, value_name = "FILE", requires = "replay", conflicts_with = "without_salvor")]
    pub(super) config: Option<PathBuf>,
    /// With --replay: set a field of Salvor's configuration, or of a workload (workloads.NAME.FIELD); repeatable
    #[arg(long, value_name = "KEY=VALUE", requires = "replay", conflicts_with = "without_salvor", value_parser = setting)]
    pub(super) set: Vec<(String, String)>,
    /// With --replay: play the rules of a peer in place of Salvor: kubernetes, kueue, karpenter or appwrapper
    #[arg(long, value_name = "PEER", requires = "replay", conflicts_with_all = ["without_salvor", "config", "set"])]
    pub(super) against: Option<Peer>,
    /// Play in virtual time, print the report, and exit: with code 0 only if everything recovered
    #[arg(long)]
    pub(super) once: bool,
    /// The same story without Salvor's recoveries
    #[arg(long)]
    pub(super) without_salvor: bool,
    /// Where to serve the page [default: 127.0.0.1:8090, or any free port if that is taken]
    #[arg(long, value_name = "ADDR", conflicts_with = "once", value_parser = page_address)]
    pub(super) page: Option<SocketAddr>,
    /// Serve the cluster's API on loopback, and write a kubeconfig for kubectl to FILE
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    pub(super) kubeconfig_out: Option<PathBuf>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .filter(|(key, _)| !key.trim().is_empty())
        .ok_or_else(|| "write KEY=VALUE, such as brake.maxUnreachablePercent=20".to_owned())?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok().filter(|speed| (0.1..=60.0).contains(speed));
    speed.ok_or_else(|| "write a number from 0.1 to 60".into())
}

pub(super) fn load(path: Option<&Path>) -> Result<Scenario, DemoError> {
    let Some(path) = path else {
        let path = PathBuf::from("the built-in story");
        return Scenario::read(scenario::DEMO, &Source::default())
            .map_err(|error| DemoError::Scenario { path, error });
    };
    let text = fs::read_to_string(path)
        .map_err(|source| DemoError::ReadScenario { path: path.to_owned(), source })?;
    let source = Source { folder: path.parent().map(Path::to_owned).unwrap_or_default() };
    Scenario::read(&text, &source).map_err(|error| DemoError::Scenario { path: path.to_owned(), error })
}

/// Uses any free port if the default one is taken. A port given by --page is never replaced.
pub(super) fn bind_page(asked: Option<SocketAddr>, usual: SocketAddr) -> Result<TcpListener, DemoError> {
    let address = asked.unwrap_or(usual);
    TcpListener::bind(address)
        .or_else(|error| match (asked, error.kind()) {
            (None, io::ErrorKind::AddrInUse) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)),
            _ => Err(error),
        })
        .map_err(|source| DemoError::Page { address, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_evaded_unless_it_was_asked_for() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = taken.local_addr().unwrap();
        let other = bind_page(None, address).unwrap().local_addr().unwrap();
        assert!(other.ip().is_loopback() && other.port() != address.port());
        let error = bind_page(Some(address), PAGE).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
    }
}
