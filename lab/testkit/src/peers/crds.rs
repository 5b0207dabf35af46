//! Installs CRDs from files into a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Request;
use http::header::CONTENT_TYPE;
use kube::Client;
use serde_json::Value;

use crate::access::Access;
use crate::watch::wait::Patience;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(60);

/// Creates the definitions of all files in a folder, each changed by `change` first, and waits until they are served.
///
/// # Errors
/// If a file is no definition, or the API server refuses one.
pub async fn install(access: &Access, folder: &Path, change: impl Fn(&mut Value)) -> Result<(), String> {
    let client = access.client("salvor-testkit-crds");
    let mut names = Vec::new();
    for path in files(folder)? {
        let mut crd = read(&path)?;
        change(&mut crd);
        names.push(crd["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        create(&client, CRDS, &crd).await?;
    }
    for name in names {
        until_established(&client, &name).await?;
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let problem = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(problem)?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(problem)?.path();
        // Kustomize's own files are no definitions.
        if path.extension().is_some_and(|end| end == "yaml") && !path.ends_with("kustomization.yaml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Value, String> {
    let problem = |error: String| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| problem(error.to_string()))
}

/// Creates one object; an existing one of that name is left as it is.
pub(crate) async fn create(client: &Client, path: &str, body: &Value) -> Result<(), String> {
    let request = Request::post(path).header(CONTENT_TYPE, "application/json").body(body.to_string());
    let request = request.map_err(|error| format!("{path}: {error}"))?;
    match client.request_text(request.map(String::into_bytes)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(format!("{path}: {}: {error}", body["metadata"]["name"])),
    }
}

async fn until_established(client: &Client, name: &str) -> Result<(), String> {
    let path = format!("{CRDS}/{name}");
    let asking = async {
        loop {
            let request = Request::get(&path).body(Vec::new()).map_err(|error| error.to_string())?;
            let answer = client.request_text(request).await.map_err(|error| format!("{path}: {error}"))?;
            let crd: Value = serde_json::from_str(&answer).map_err(|error| format!("{path}: {error}"))?;
            let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let in_time = Patience::of(ESTABLISHED_WITHIN).until(asking).await;
    in_time.unwrap_or_else(|| Err(format!("{name} is not served in time")))
}
