//! Reads of single objects, as text: each reader decodes what it needs.

use http::Request;
use jiff::Timestamp;
use kube::Client;
use serde::Deserialize;

/// The object at a path; `None` when there is none.
pub(crate) async fn get(client: &Client, path: &str) -> kube::Result<Option<String>> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request_text(request).await {
        Ok(text) => Ok(Some(text)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// When a node's kubelet last renewed its Lease; `None` when it has no Lease.
pub(crate) async fn lease_renewed(client: &Client, node: &str) -> kube::Result<Option<Timestamp>> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Lease {
        spec: Spec,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        renew_time: Option<Timestamp>,
    }
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    let Some(text) = get(client, &path).await? else { return Ok(None) };
    let lease: Lease = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
    Ok(lease.spec.renew_time)
}

/// An API error in one line: kube's own form repeats the whole Status.
pub(crate) fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    }
}
