//! Reads and writes with preconditions, for any object. Nothing is retried here.

use std::time::Duration;

use http::Request;
use http::header::{CONTENT_TYPE, DATE};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::CliError;

/// Objects per page of a list, so that memory does not grow with the cluster.
const PAGE: usize = 250;
/// A server that is silent for this long counts as not answering.
const SILENCE: Duration = Duration::from_secs(30);
/// The field manager in managedFields.
const FIELD_MANAGER: &str = "salvor-uninstall";

pub(super) struct Api(Client);

pub(super) struct Page {
    pub(super) items: Vec<Value>,
    /// The continue token. Empty after the last page.
    pub(super) next: String,
    /// The number of objects after this page, if the server reports it.
    pub(super) more: u64,
}

impl Api {
    pub(super) fn open(cluster: &Cluster) -> Result<Self, CliError> {
        let mut config = cluster.config.clone();
        // A limit of the user counts.
        config.connect_timeout = config.read_timeout.or(Some(SILENCE));
        config.read_timeout = config.connect_timeout;
        Ok(Self(Cluster { config, origin: cluster.origin.clone() }.client()?))
    }

    /// For tests: uses a client of a cluster in this process.
    #[cfg(test)]
    pub(super) fn of(client: Client) -> Self {
        Self(client)
    }

    async fn ask(&self, request: http::request::Builder, body: Vec<u8>) -> kube::Result<Value> {
        self.0.request(request.body(body).map_err(kube::Error::HttpError)?).await
    }

    /// The object at a path. `None` if it does not exist or its kind is not served.
    pub(super) async fn get(&self, path: &str) -> kube::Result<Option<Value>> {
        absent(self.ask(Request::get(path), Vec::new()).await)
    }

    /// A page of a list. `None` if the kind is not served.
    pub(super) async fn page(
        &self,
        path: &str,
        next: &str,
        limit: Option<usize>,
    ) -> kube::Result<Option<Page>> {
        let mut uri = format!("{path}?limit={}", limit.unwrap_or(PAGE));
        if !next.is_empty() {
            uri.push_str(&format!("&continue={}", encode(next)));
        }
        let Some(mut list) = self.get(&uri).await? else { return Ok(None) };
        let items = match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        let next = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        let more = list["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
        Ok(Some(Page { items, next, more }))
    }

    /// Patches an object only if it is unchanged since it was read.
    pub(super) async fn patch(&self, path: &str, read: &Value, mut patch: Value) -> kube::Result<Value> {
        for field in ["uid", "resourceVersion"] {
            patch["metadata"][field] = read["metadata"][field].clone();
        }
        let uri = format!("{path}?fieldManager={FIELD_MANAGER}");
        let request = Request::patch(uri).header(CONTENT_TYPE, "application/merge-patch+json");
        self.ask(request, patch.to_string().into_bytes()).await
    }

    /// Deletes an object only if it is unchanged since it was read.
    pub(super) async fn delete(&self, path: &str, read: &Value) -> kube::Result<()> {
        let guard =
            json!({ "uid": read["metadata"]["uid"], "resourceVersion": read["metadata"]["resourceVersion"] });
        let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": guard });
        let request = Request::delete(path).header(CONTENT_TYPE, "application/json");
        absent(self.ask(request, options.to_string().into_bytes()).await).map(drop)
    }

    /// The server's time, which decides about Leases: the clock of this machine may be wrong.
    pub(super) async fn now(&self) -> kube::Result<Timestamp> {
        let request = Request::get("/version").body(Body::empty()).map_err(kube::Error::HttpError)?;
        let answer = self.0.send(request).await?;
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        let read = date.and_then(|date| rfc2822::parse(date).ok());
        Ok(read.map_or_else(Timestamp::now, |time| time.timestamp()))
    }
}

fn absent(answer: kube::Result<Value>) -> kube::Result<Option<Value>> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map(Some),
    }
}

/// Whether the same write may succeed after a new read or a short wait.
pub(super) fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 409 | 429 | 500..),
        _ => true,
    }
}

/// Whether the continue token of a list has expired.
pub(super) fn is_expired(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

/// The server's message. For a missing right it names the verb, resource and user.
pub(super) fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => salvor_operator::story(other),
    }
}

fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
