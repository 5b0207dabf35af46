//! The benchmark's own watches: every change from now on, parsed no further than needed.

use std::pin::Pin;

use futures::{AsyncBufRead, AsyncBufReadExt};
use http::Request;
use kube::Client;
use serde::{Deserialize, de::DeserializeOwned};

/// An object with a resourceVersion.
pub(crate) trait Versioned {
    fn version(&self) -> &str;
}

/// One event of a watch.
#[derive(Debug, Deserialize)]
pub(crate) struct Seen<T> {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) object: T,
}

#[derive(Deserialize)]
struct List {
    metadata: Revision,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Revision {
    resource_version: String,
}

/// Opens a watch from now on, and passes every event to `each` until that returns false. A watch that cannot continue
/// ends with an error.
pub(crate) async fn watch<T: DeserializeOwned + Versioned + Send + 'static>(
    client: &Client,
    path: String,
    mut each: impl FnMut(Result<Seen<T>, String>) -> bool + Send + 'static,
) -> Result<(), String> {
    let list = get(&path, "limit=1")?;
    let list = client.request_text(list).await.map_err(|e| format!("{path}: {e}"))?;
    let List { metadata } = serde_json::from_str(&list).map_err(|e| format!("{path}: {e}"))?;
    let mut revision = metadata.resource_version;
    let mut lines = open(client, &path, &revision).await?;
    let client = client.clone();
    tokio::spawn(async move {
        let mut line = Vec::new();
        loop {
            line.clear();
            let goes_on = match lines.read_until(b'\n', &mut line).await {
                Ok(bytes) if bytes > 0 && line.ends_with(b"\n") => {
                    let seen =
                        serde_json::from_slice::<Seen<T>>(&line).ok().filter(|seen| seen.kind != "ERROR");
                    match seen {
                        Some(seen) => {
                            seen.object.version().clone_into(&mut revision);
                            each(Ok(seen))
                        }
                        None => {
                            each(Err(String::from_utf8_lossy(&line).into_owned()));
                            false
                        }
                    }
                }
                // The server drops a watch that does not keep up; continuing from the last event loses nothing.
                _ => match open(&client, &path, &revision).await {
                    Ok(again) => {
                        lines = again;
                        true
                    }
                    Err(problem) => {
                        each(Err(problem));
                        false
                    }
                },
            };
            if !goes_on {
                return;
            }
        }
    });
    Ok(())
}

async fn open(
    client: &Client,
    path: &str,
    revision: &str,
) -> Result<Pin<Box<dyn AsyncBufRead + Send>>, String> {
    let request = get(path, &format!("watch=true&timeoutSeconds=900&resourceVersion={revision}"))?;
    Ok(Box::pin(client.request_stream(request).await.map_err(|e| format!("{path}: {e}"))?))
}

fn get(path: &str, query: &str) -> Result<Request<Vec<u8>>, String> {
    Request::get(format!("{path}?{query}")).body(Vec::new()).map_err(|e| e.to_string())
}
