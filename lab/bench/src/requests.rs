//! Plain requests, many at a time: bodies are built beforehand, answers are read no further than needed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Request, header::CONTENT_TYPE};
use kube::Client;
use serde_json::Value;

pub(crate) const JSON: &str = "application/json";
/// A patch that merges lists by their keys.
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
/// A patch that replaces lists.
pub(crate) const MERGE: &str = "application/merge-patch+json";

/// Sends one request and returns the text of the answer.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    kind: &str,
    body: &Value,
) -> Result<String, String> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let what = format!("{method} {path}");
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, kind).body(body);
    let request = request.map_err(|e| format!("{what}: {e}"))?;
    client.request_text(request).await.map_err(|e| format!("{what}: {e}"))
}

/// Runs a task for every item, `at_once` of them at a time; the results are unordered.
pub(crate) async fn concurrently<I, T, F>(
    at_once: usize,
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> F + Clone + Send + 'static,
) -> Result<Vec<T>, String>
where
    I: Send + 'static,
    T: Send + 'static,
    F: Future<Output = Result<T, String>> + Send,
{
    let queue: Arc<Mutex<VecDeque<I>>> = Arc::new(Mutex::new(items.into_iter().collect()));
    let workers: Vec<_> = (0..at_once)
        .map(|_| {
            let (queue, work) = (queue.clone(), work.clone());
            tokio::spawn(async move {
                let mut results = Vec::new();
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(item) = next() {
                    results.push(work(item).await?);
                }
                Ok::<_, String>(results)
            })
        })
        .collect();
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.map_err(|e| e.to_string())??);
    }
    Ok(all)
}
