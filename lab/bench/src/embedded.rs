//! The embedded API server in this process: requests per second, a watch fanned out, and memory per stored pod.

use std::time::{Duration, Instant};

use clap::Args;
use http::Method;
use http_body_util::BodyExt as _;
use salvor_apiserver::{Cluster, Request, Settings};
use serde_json::{Value, json};

use crate::process::memory_mb;

/// How much of everything.
#[derive(Args)]
pub(crate) struct Sizes {
    /// Pods that are stored
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Single requests of each kind
    #[arg(long, default_value_t = 50_000)]
    requests: usize,
    /// Lists of all pods
    #[arg(long, default_value_t = 50)]
    lists: usize,
    /// Watchers of all pods
    #[arg(long, default_value_t = 50)]
    watchers: usize,
    /// Writes that all watchers are told of
    #[arg(long, default_value_t = 5_000)]
    writes: usize,
}

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A pod of ordinary size: two containers with a dozen variables each, and a status with its conditions.
fn pod(index: usize) -> Value {
    let variables: Vec<Value> =
        (0..12).map(|number| json!({ "name": format!("VARIABLE_{number}"), "value": "a value" })).collect();
    let container = |name: &str| {
        json!({
            "name": name, "image": "registry.example.com/team/image:1.2.3", "env": variables,
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
        })
    };
    json!({
        "metadata": { "name": format!("pod-{index:05}"), "labels": { "app": "bench", "index": index.to_string() } },
        "spec": { "nodeName": format!("node-{:03}", index % 1000), "containers": [container("main"), container("side")] },
    })
}

fn send(
    cluster: &Cluster,
    method: Method,
    path: &str,
    kind: &str,
    body: &Value,
) -> http::Response<salvor_apiserver::Body> {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let mut request = Request::new(method, path, bytes.into());
    kind.clone_into(&mut request.content_type);
    cluster.handle(&request)
}

fn expect(response: &http::Response<salvor_apiserver::Body>, what: &str) -> Result<(), String> {
    if response.status().is_success() {
        Ok(())
    } else {
        Err(format!("{what} was answered with {}", response.status()))
    }
}

fn row(what: &str, count: usize, took: Duration, unit: &str) {
    let seconds = took.as_secs_f64().max(f64::MIN_POSITIVE);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = count as f64 / seconds;
    eprintln!("| {what} | {count} | {seconds:.2} s | {rate:.0} {unit}/s |");
}

pub(crate) async fn run(sizes: &Sizes) -> Result<(), String> {
    let cluster = Cluster::new(Settings::default());
    let own = std::process::id();
    let json = "application/json";
    eprintln!("| what | how many | took | rate |");
    eprintln!("|---|---|---|---|");

    let (before, _) = memory_mb(own);
    let clock = Instant::now();
    for index in 0..sizes.pods {
        expect(&send(&cluster, Method::POST, PODS, json, &pod(index)), "a create")?;
    }
    row("create", sizes.pods, clock.elapsed(), "requests");
    let (after, _) = memory_mb(own);

    let name = |index: usize| format!("{PODS}/pod-{:05}", index % sizes.pods.max(1));
    let clock = Instant::now();
    for index in 0..sizes.requests {
        expect(&send(&cluster, Method::GET, &name(index * 7919), json, &Value::Null), "a get")?;
    }
    row("get", sizes.requests, clock.elapsed(), "requests");

    let merge = "application/merge-patch+json";
    let clock = Instant::now();
    for index in 0..sizes.requests {
        let body = json!({ "metadata": { "annotations": { "round": index.to_string() } } });
        expect(&send(&cluster, Method::PATCH, &name(index * 7919), merge, &body), "a patch")?;
    }
    row("merge patch", sizes.requests, clock.elapsed(), "requests");

    let clock = Instant::now();
    let mut bytes = 0;
    for _ in 0..sizes.lists {
        let response = send(&cluster, Method::GET, PODS, json, &Value::Null);
        expect(&response, "a list")?;
        let Ok(body) = response.into_body().collect().await;
        bytes += body.to_bytes().len();
    }
    row(&format!("list of {}", sizes.pods), sizes.lists, clock.elapsed(), "lists");

    fan_out(&cluster, sizes).await?;

    let each = bytes / sizes.lists.max(1) / sizes.pods.max(1);
    #[expect(clippy::cast_precision_loss, reason = "a size for people")]
    let per_pod = (after - before) * 1000.0 / sizes.pods.max(1) as f64;
    eprintln!("\nmemory per stored pod: {per_pod:.1} kB ({each} bytes as JSON)");
    Ok(())
}

/// Writes while every watcher reads everything.
async fn fan_out(cluster: &Cluster, sizes: &Sizes) -> Result<(), String> {
    let path = format!("{PODS}?watch=true&resourceVersion={}", cluster.revision());
    let readers: Vec<_> = (0..sizes.watchers)
        .map(|_| {
            let mut body = cluster.handle(&Request::get(&path)).into_body();
            let wanted = sizes.writes;
            tokio::spawn(async move {
                let mut lines = 0;
                while lines < wanted {
                    match body.frame().await {
                        Some(Ok(frame)) => lines += usize::from(frame.is_data()),
                        _ => break,
                    }
                }
                lines
            })
        })
        .collect();
    let merge = "application/merge-patch+json";
    let clock = Instant::now();
    for index in 0..sizes.writes {
        let path = format!("{PODS}/pod-{:05}", index % sizes.pods.max(1));
        let body = json!({ "metadata": { "annotations": { "watched": index.to_string() } } });
        expect(&send(cluster, Method::PATCH, &path, merge, &body), "a patch")?;
        if index % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut told = 0;
    for reader in readers {
        told += reader.await.map_err(|error| error.to_string())?;
    }
    if told != sizes.watchers * sizes.writes {
        return Err(format!("{} watchers were told {told} events of {}", sizes.watchers, sizes.writes));
    }
    row(&format!("events to {} watchers", sizes.watchers), told, clock.elapsed(), "events");
    Ok(())
}
