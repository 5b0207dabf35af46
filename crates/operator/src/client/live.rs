//! Reads single objects and lists from the API server, undecoded: each caller decodes what it needs.

use std::error::Error;

use http::{HeaderMap, Request, header::RETRY_AFTER};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Client,
    client::Body,
    core::{Status, response::StatusDetails},
};
use salvor_recovery::ids::NodeName;
pub(crate) use salvor_recovery::liveness::NodeLease;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::client::incoming::{Incoming, PageSize, ReadError};

/// The object at a path; `None` if there is none.
pub(crate) async fn get(client: &Client, path: &str) -> kube::Result<Option<String>> {
    match ask(client, path).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map(Some),
    }
}

/// The object at a path; `None` if the API server itself reports that there is none. A 404 from a proxy in between is
/// an error.
pub(crate) async fn get_if_there(client: &Client, path: &str) -> kube::Result<Option<String>> {
    match ask(client, path).await {
        Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
        other => other.map(Some),
    }
}

async fn ask(client: &Client, path: &str) -> kube::Result<String> {
    let request = Request::get(path).body(Body::empty()).map_err(kube::Error::HttpError)?;
    let body = open(client, request).await?.whole().await?;
    String::from_utf8(body).map_err(kube::Error::FromUtf8)
}

/// The kept form of every object of a list, which is read object by object and in pages. `query` selects the objects;
/// each of its parts starts with `&`.
pub(crate) async fn list<W: DeserializeOwned, T>(
    client: &Client,
    path: &str,
    query: &str,
    keep: impl Fn(W) -> Option<T>,
) -> kube::Result<Vec<T>> {
    list_from(client, path, query, PageSize::default(), keep).await
}

/// As `list`, starting with a page of this size.
pub(crate) async fn list_from<W: DeserializeOwned, T>(
    client: &Client,
    path: &str,
    query: &str,
    mut size: PageSize,
    keep: impl Fn(W) -> Option<T>,
) -> kube::Result<Vec<T>> {
    loop {
        match list_in_pages(client, path, query, size, &keep).await {
            // It took so long that its pages expired.
            Err(kube::Error::Api(status)) if status.code == 410 => size = size.after_expired(),
            other => return other,
        }
    }
}

async fn list_in_pages<W: DeserializeOwned, T>(
    client: &Client,
    path: &str,
    query: &str,
    mut size: PageSize,
    keep: &impl Fn(W) -> Option<T>,
) -> kube::Result<Vec<T>> {
    let mut kept = Vec::new();
    let mut unreadable = None;
    let mut next = String::new();
    loop {
        let limit = size.limit();
        let mut uri = format!("{path}?limit={limit}{query}");
        if !next.is_empty() {
            uri.push_str(&format!("&continue={}", percent_encode(&next)));
        }
        let request = Request::get(uri).body(Body::empty()).map_err(kube::Error::HttpError)?;
        let read = |object: Option<&[u8]>| match object.map(serde_json::from_slice::<W>) {
            Some(Ok(wire)) => kept.extend(keep(wire)),
            Some(Err(error)) => unreadable = Some(ReadError::from(error)),
            None => unreadable = Some(ReadError::TooLong),
        };
        let page = open(client, request).await?.page(read).await?;
        if let Some(error) = unreadable {
            return Err(error.into());
        }
        size.learn(&page);
        next = page.next;
        if next.is_empty() {
            return Ok(kept);
        }
    }
}

/// Sends a request and returns the body of its answer, unless that is a refusal.
pub(crate) async fn open(client: &Client, request: Request<Body>) -> kube::Result<Incoming> {
    let answer = client.send(request).await?;
    let code = answer.status();
    if code.is_success() {
        return Ok(Incoming::of(answer));
    }
    let retry_after = retry_after(answer.headers());
    let text = Incoming::of(answer).whole().await?;
    let status = refused(code.as_u16(), &String::from_utf8_lossy(&text), retry_after);
    Err(kube::Error::Api(status.boxed()))
}

pub(crate) fn percent_encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The seconds for which the server asks us to wait.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<u32> {
    headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// The server's refusal. Not all of its answers are a Status, and the requested pause is only in a header.
pub(crate) fn refused(code: u16, text: &str, retry_after: Option<u32>) -> Status {
    let mut status: Status = serde_json::from_str(text).unwrap_or_else(|_| Status::failure(text.trim(), ""));
    status.code = code;
    if let Some(seconds) = retry_after {
        let none = || StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        status.details.get_or_insert_with(none).retry_after_seconds = seconds;
    }
    status
}

/// The default of kubelets, in seconds.
const LEASE_LASTS: i64 = 40;
/// Upper limit in seconds. A kubelet renews its Lease four times within its duration. With a longer one the node would
/// be marked unreachable between two renewals. Without a limit, a typo in the kubelet's settings would keep its pods
/// for ever when it dies.
const LEASE_LASTS_AT_MOST: i64 = 600;

/// A node's Lease; `None` if it has none, or one that was never renewed.
pub(crate) async fn node_lease(client: &Client, node: &NodeName) -> kube::Result<Option<NodeLease>> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    let Some(text) = get_if_there(client, &path).await? else { return Ok(None) };
    read_node_lease(&text).map_err(kube::Error::SerdeError)
}

/// `None` if it was never renewed.
pub(crate) fn read_node_lease(text: &str) -> Result<Option<NodeLease>, serde_json::Error> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Lease {
        metadata: Metadata,
        spec: Spec,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        // Only a hint: a Lease is read whatever is in here.
        managed_fields: Value,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        renew_time: Option<Timestamp>,
        lease_duration_seconds: Option<i64>,
    }
    let Lease { metadata, spec } = serde_json::from_str(text)?;
    let writers = metadata.managed_fields.as_array().into_iter().flatten();
    let renews = writers.filter(|writer| writer.pointer("/fieldsV1/f:spec/f:renewTime").is_some());
    let stored = renews.filter_map(|writer| writer["time"].as_str()?.parse().ok()).max();
    let lasts = spec.lease_duration_seconds.unwrap_or(LEASE_LASTS).clamp(1, LEASE_LASTS_AT_MOST);
    let lasts = SignedDuration::from_secs(lasts);
    Ok(spec.renew_time.map(|renewed| NodeLease { stored, ..NodeLease::new(renewed, lasts) }))
}

/// An API error in one line: kube's own form repeats the whole Status.
pub(crate) fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    }
}

/// As `brief`, with the causes; for an API error only the server's message.
pub(crate) fn in_full(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(_) => brief(error),
        other => story(other),
    }
}

/// An error and its causes on one line, without a cause that the preceding text already contains.
pub fn story(error: &dyn Error) -> String {
    let mut story = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !story.contains(&text) {
            story.push_str(": ");
            story.push_str(&text);
        }
        cause = error.source();
    }
    story
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Link>>,
    }

    fn chain(texts: &[&'static str]) -> Option<Box<Link>> {
        let (text, rest) = texts.split_first()?;
        Some(Box::new(Link { text, source: chain(rest) }))
    }

    #[test]
    fn the_time_of_the_last_renewal_by_the_servers_clock_is_read_with_a_lease() {
        let lease = |fields: Value| {
            let lease = json!({
                "metadata": {"managedFields": fields},
                "spec": {"renewTime": "2026-11-16T09:49:00.000000Z", "leaseDurationSeconds": 40},
            });
            read_node_lease(&lease.to_string()).unwrap().unwrap().stored
        };
        let by = |field: &str, time: &str| json!({"time": time, "fieldsV1": {"f:spec": {field: {}}}});
        let at = |time: &str| Some(time.parse().unwrap());
        let renewed = by("f:renewTime", "2026-11-16T09:49:01Z");
        let other = by("f:holderIdentity", "2026-11-16T09:49:02Z");
        assert_eq!(lease(json!([other, renewed])), at("2026-11-16T09:49:01Z"));
        for odd in [json!([other]), json!([]), json!(null), json!("x"), json!([{"time": 1}])] {
            assert_eq!(lease(odd.clone()), None, "{odd}");
        }
    }

    #[test]
    fn a_story_names_each_cause_once() {
        let cases: &[(&[&str], &str)] = &[
            (&["a"], "a"),
            (&["cannot x", "refused"], "cannot x: refused"),
            (&["cannot x: refused", "refused", "errno 1"], "cannot x: refused: errno 1"),
        ];
        for (texts, expected) in cases {
            assert_eq!(story(&chain(texts).unwrap()), *expected);
        }
    }
}
