//! Counts the requests to the API server: by verb, resource, user agent and answer.
//!
//! The source is the server's audit log, since its metrics do not distinguish user agents. A request is counted when it
//! has been answered, so a watch is counted at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::access::Access;
use crate::random;
use crate::watch::wait;

const USER_AGENT: &str = "salvor-testkit-accounting";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    Get,
    List,
    Watch,
    /// Creates an object, or posts to a subresource.
    Create,
    /// Replaces an object.
    Update,
    /// Changes a part of an object, server-side apply included.
    Patch,
    Delete,
    DeleteCollection,
    /// Anything else, for example a connection to a subresource.
    Other,
}

impl Verb {
    pub fn is_write(self) -> bool {
        match self {
            Self::Create | Self::Update | Self::Patch | Self::Delete | Self::DeleteCollection => true,
            Self::Get | Self::List | Self::Watch | Self::Other => false,
        }
    }

    /// Parses the verbs of the audit log, and those of the metrics, which are HTTP methods where possible.
    fn parse(text: &str) -> Self {
        match text.to_ascii_lowercase().as_str() {
            "get" => Self::Get,
            "list" => Self::List,
            "watch" | "watchlist" => Self::Watch,
            "create" | "post" => Self::Create,
            "update" | "put" => Self::Update,
            "patch" | "apply" => Self::Patch,
            "delete" => Self::Delete,
            "deletecollection" => Self::DeleteCollection,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Other => "other",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub verb: Verb,
    /// The plural, with the subresource behind a slash, for example `pods/status`; or a path, for example `/version`.
    pub resource: String,
    pub user_agent: String,
    /// The HTTP status of the answer.
    pub code: u16,
}

/// The number of requests of each kind. Printed as a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table(BTreeMap<Request, u64>);

impl Table {
    pub fn count(&self, mut condition: impl FnMut(&Request) -> bool) -> u64 {
        self.0.iter().filter(|(request, _)| condition(request)).map(|(_, count)| count).sum()
    }

    pub fn by(&self, user_agent: &str) -> u64 {
        self.count(|request| request.user_agent == user_agent)
    }

    /// The number of write requests of a user agent, refused ones included.
    pub fn writes_by(&self, user_agent: &str) -> u64 {
        self.count(|request| request.user_agent == user_agent && request.verb.is_write())
    }

    pub fn rows(&self) -> impl Iterator<Item = (&Request, u64)> {
        self.0.iter().map(|(request, &count)| (request, count))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>7}  {:<16} {:<36} {:>4}  user agent", "count", "verb", "resource", "code")?;
        for (request, count) in &self.0 {
            let Request { verb, resource, user_agent, code } = request;
            writeln!(f, "{count:>7}  {verb:<16} {resource:<36} {code:>4}  {user_agent}")?;
        }
        Ok(())
    }
}

/// A moment from which to count.
#[derive(Debug, Clone)]
pub struct Mark(u64);

/// Reads the API server's audit log.
#[derive(Debug, Clone)]
pub struct Accounting {
    admin: Access,
    log: PathBuf,
}

impl Accounting {
    pub(crate) fn new(admin: Access, log: PathBuf) -> Self {
        Self { admin, log }
    }

    /// Now: requests answered before this are not counted from it.
    ///
    /// # Panics
    /// If the API server does not answer, or its log cannot be read.
    pub async fn mark(&self) -> Mark {
        Mark(self.read_up_to_now(0).await.1)
    }

    /// The requests that were answered between the mark and now.
    ///
    /// # Panics
    /// If the API server does not answer, or its log cannot be read.
    pub async fn since(&self, mark: &Mark) -> Table {
        let mut table = Table::default();
        for line in self.read_up_to_now(mark.0).await.0 {
            if line.user_agent != USER_AGENT {
                *table.0.entry(line.into()).or_default() += 1;
            }
        }
        table
    }

    /// The server's own counter `apiserver_request_total` for a verb and a resource, over all users, since it started.
    ///
    /// # Panics
    /// If the API server does not answer.
    pub async fn server_total(&self, verb: Verb, resource: &str) -> u64 {
        let client = self.admin.client(USER_AGENT);
        let request = http::Request::get("/metrics").body(Vec::new()).expect("a path makes a request");
        match client.request_text(request).await {
            Ok(metrics) => total_in(&metrics, verb, resource),
            Err(error) => panic!("the API server does not give its metrics: {error}"),
        }
    }

    /// The lines from a position up to a request that is made for this purpose, and the position behind it. The server
    /// writes a line before the client has the whole answer, so all requests answered before are in the log.
    async fn read_up_to_now(&self, from: u64) -> (Vec<Line>, u64) {
        let sentinel = format!("/version?salvor-mark={}", random::suffix(13));
        let request = http::Request::get(&sentinel).body(Vec::new()).expect("a path makes a request");
        if let Err(error) = self.admin.client(USER_AGENT).request_text(request).await {
            panic!("no accounting without the API server: {error}");
        }
        let reading = async {
            let mut position = from;
            let mut lines = Vec::new();
            loop {
                for (text, end) in self.complete_lines(position) {
                    position = end;
                    let line: Line = serde_json::from_str(&text).unwrap_or_else(|error| {
                        panic!("a line of the audit log is not understood: {error}: {text}")
                    });
                    if line.request_uri == sentinel {
                        return (lines, position);
                    }
                    lines.push(line);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match wait::patience().until(reading).await {
            Some(read) => read,
            None => panic!("the request {sentinel} does not appear in the audit log {}", self.log.display()),
        }
    }

    /// The complete lines, each with the position behind it.
    fn complete_lines(&self, from: u64) -> Vec<(String, u64)> {
        let mut bytes = Vec::new();
        let read = File::open(&self.log).and_then(|mut file| {
            file.seek(SeekFrom::Start(from))?;
            file.read_to_end(&mut bytes)
        });
        if let Err(error) = read {
            panic!("the audit log {} cannot be read: {error}", self.log.display());
        }
        let mut position = from;
        let complete = bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
        complete
            .map(|line| {
                position += line.len() as u64;
                (String::from_utf8_lossy(line).into_owned(), position)
            })
            .collect()
    }
}

/// The fields of an audit event that are read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
}

#[derive(Debug, Deserialize)]
struct ObjectRef {
    resource: Option<String>,
    subresource: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

impl From<Line> for Request {
    fn from(line: Line) -> Self {
        let object = line.object_ref.and_then(|object| Some((object.resource?, object.subresource)));
        Self {
            verb: Verb::parse(&line.verb),
            resource: match object {
                Some((resource, Some(subresource))) => format!("{resource}/{subresource}"),
                Some((resource, None)) => resource,
                None => line.request_uri.split('?').next().unwrap_or_default().to_owned(),
            },
            user_agent: line.user_agent,
            code: line.response_status.map(|status| status.code).unwrap_or_default(),
        }
    }
}

/// The sum of `apiserver_request_total` for a verb and a resource in a page of metrics.
fn total_in(metrics: &str, verb: Verb, resource: &str) -> u64 {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    metrics
        .lines()
        .filter_map(|line| line.strip_prefix("apiserver_request_total{")?.split_once("} "))
        .filter(|(labels, _)| {
            let label = |name: &str| {
                // No value of the labels that are read contains a comma or a quote.
                labels
                    .split(',')
                    .find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
            };
            label("verb").map(Verb::parse) == Some(verb)
                && label("resource") == Some(resource)
                && label("subresource") == Some(subresource)
        })
        .filter_map(|(_, value)| value.trim().parse::<f64>().ok())
        .map(|value| value as u64)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_counter_is_summed_over_codes_and_told_apart_by_subresource() {
        let metrics = r#"
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 4
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1
apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="eviction",verb="POST",version="v1"} 2
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="APPLY",version="v1"} 1e+06
apiserver_request_terminations_total{code="201",resource="pods",subresource="",verb="POST"} 9
"#;
        assert_eq!(total_in(metrics, Verb::Create, "pods"), 5);
        assert_eq!(total_in(metrics, Verb::Create, "pods/eviction"), 2);
        assert_eq!(total_in(metrics, Verb::Patch, "pods"), 1_000_000);
        assert_eq!(total_in(metrics, Verb::Delete, "pods"), 0);
    }

    #[test]
    fn a_table_prints_its_rows() {
        let request = Request {
            verb: Verb::Patch,
            resource: "pods/status".to_owned(),
            user_agent: "me".to_owned(),
            code: 200,
        };
        let table = Table(BTreeMap::from([(request, 3)]));
        assert_eq!(table.writes_by("me"), 3);
        let text = table.to_string();
        assert!(
            text.lines().any(|line| line.split_whitespace().eq(["3", "patch", "pods/status", "200", "me"])),
            "{text}"
        );
    }
}
