//! Builds a scenario from a live cluster. It only reads.

use std::fs;

use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use salvor_api::config::Configuration;
use salvor_operator::Published;
use salvor_simulate::scenario::{Captured, Names, Objects, Scenario, Source, capture};
use serde_json::Value;

use super::args::LiveArgs;
use super::error::SimulateError;
use crate::error::CliError;
use crate::output;

/// Objects per page of a list.
const PAGE: usize = 500;

/// Reads the cluster, prints to standard error what is not simulated, and writes the file if requested. Returns the
/// scenario and its text.
pub(super) fn scenario(args: &LiveArgs) -> Result<(Scenario, String), CliError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let objects = runtime.block_on(async {
        let cluster = args.cluster.load().await?;
        let from = format!("{} ({})", cluster.config.cluster_url, cluster.origin);
        let failed = |error: kube::Error| {
            CliError::from(SimulateError::Live {
                cluster: from.clone(),
                problem: salvor_operator::story(&error),
            })
        };
        let client = Client::try_from(cluster.config.clone()).map_err(failed)?;
        read(&client).await.map_err(failed)
    })?;
    let names = if args.hash_names { Names::hashed().map_err(CliError::Start)? } else { Names::Plain };
    let Captured { scenario, notes } = capture(&objects, names);
    let text = output::yaml(&scenario)?;
    for note in &notes {
        output::note(note);
    }
    if let Some(path) = &args.save {
        fs::write(path, &text).map_err(|source| CliError::WriteFile { path: path.clone(), source })?;
    }
    let scenario = Scenario::read(&text, &Source::default())
        .map_err(|error| SimulateError::Scenario { path: "the cluster".into(), error })?;
    Ok((scenario, text))
}

async fn read(client: &Client) -> kube::Result<Objects> {
    Ok(Objects {
        nodes: all(client, "/api/v1/nodes").await?,
        pods: all(client, "/api/v1/pods").await?,
        jobs: all(client, "/apis/batch/v1/jobs").await?,
        stateful_sets: all(client, "/apis/apps/v1/statefulsets").await?,
        deployments: all(client, "/apis/apps/v1/deployments").await?,
        replica_sets: all(client, "/apis/apps/v1/replicasets").await?,
        app_wrappers: if_served(all(client, "/apis/workload.codeflare.dev/v1beta2/appwrappers").await)?,
        node_claims: if_served(all(client, "/apis/karpenter.sh/v1/nodeclaims").await)?,
        repair_policies: if_served(all(client, "/apis/salvor.dev/v1alpha1/noderepairpolicies").await)?,
        budgets: if_served(all(client, "/apis/policy/v1/poddisruptionbudgets").await)?,
        configuration: configuration(client).await?,
    })
}

/// A kind that the cluster does not serve has no objects.
fn if_served(read: kube::Result<Vec<Value>>) -> kube::Result<Vec<Value>> {
    match read {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        read => read,
    }
}

async fn all(client: &Client, path: &str) -> kube::Result<Vec<Value>> {
    let mut found = Vec::new();
    let mut next = String::new();
    loop {
        let request = Request::get(format!("{path}?limit={PAGE}{next}")).body(Vec::new());
        let mut page: Value = client.request(request.map_err(kube::Error::HttpError)?).await?;
        found.extend(page["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
        match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            // A token consists of letters, digits, `-`, `_` and `=`. Only the last needs an escape.
            Some(token) => next = format!("&continue={}", token.replace('=', "%3D")),
            None => return Ok(found),
        }
    }
}

/// The leader's configuration, from its Lease.
async fn configuration(client: &Client) -> kube::Result<Option<Configuration>> {
    let election = Configuration::default().leader_election;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &election.lease_namespace);
    let lease = leases.get_opt(&election.lease_name).await?;
    Ok(lease.and_then(|lease| Published::read(&lease)).and_then(|published| published.configuration))
}
