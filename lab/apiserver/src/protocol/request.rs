//! Requests, and how a path is resolved to a resource.

use std::num::{IntErrorKind, ParseIntError};
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use jiff::SignedDuration;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::status::{Cause, Refusal};
use super::wire;
use crate::kinds::table::{Resource, Table};

/// An HTTP request whose body has arrived.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The query, without the question mark.
    pub query: String,
    pub accept: String,
    pub content_type: String,
    /// The `User-Agent` header, which names the manager of written fields.
    pub user_agent: String,
    pub body: Bytes,
    /// The answer may be this many revisions old, if the client accepts a stale one (`resourceVersion=0`).
    pub behind: u64,
}

/// An extension of an HTTP request: how many revisions old the answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Behind(pub(crate) u64);

impl Request {
    /// A request without a body.
    pub fn get(path_and_query: &str) -> Self {
        Self::new(Method::GET, path_and_query, Bytes::new())
    }

    /// A request with a JSON body.
    pub fn new(method: Method, path_and_query: &str, body: Bytes) -> Self {
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        Self {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            accept: "application/json".to_owned(),
            content_type: "application/json".to_owned(),
            user_agent: "unknown".to_owned(),
            body,
            behind: 0,
        }
    }

    /// The body as JSON, YAML or protobuf, according to the content type.
    pub(crate) fn value(&self) -> Result<Value, Refusal> {
        let kind = media_type(&self.content_type);
        if kind.ends_with("yaml") {
            let text =
                std::str::from_utf8(&self.body).map_err(|error| Refusal::bad_request(error.to_string()))?;
            return serde_saphyr::from_str(text)
                .map_err(|error| Refusal::bad_request(format!("error decoding YAML: {error}")));
        }
        if kind == wire::MEDIA_TYPE {
            return wire::decode(&self.body).map_err(|error| Refusal::bad_request(error.to_string()));
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            Refusal::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
        })
    }
}

pub(crate) fn media_type(header: &str) -> &str {
    header.split(';').next().unwrap_or("").trim()
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        Self(
            text.split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (unquote(key), unquote(value))
                })
                .collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or("")
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.flag_if_set(key).unwrap_or(false)
    }

    /// Parses booleans in a query like Go: everything but `0` and `false` is true, even an empty value.
    pub(crate) fn flag_if_set(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// A number, or the error of Go's parser.
    pub(crate) fn number(&self, key: &str) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.get(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|error: ParseIntError| {
            let why = match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            Refusal::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
        })
    }

    /// The dry-run option: nothing may be stored.
    pub(crate) fn dry_run(&self, options: &str) -> Result<bool, Refusal> {
        check_dry_run(self.all("dryRun"), options)
    }

    pub(crate) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

pub(crate) fn check_dry_run<'v>(
    values: impl Iterator<Item = &'v str>,
    options: &str,
) -> Result<bool, Refusal> {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|value| *value != "All") {
        let mut cause = Cause::unsupported("dryRun", "", &["All"]);
        cause.message = cause.message.replacen("\"\"", &serde_json::json!(values).to_string(), 1);
        return Err(Refusal::invalid("meta.k8s.io", options, "", &[cause]));
    }
    Ok(!values.is_empty())
}

/// Seconds as Go represents them: in nanoseconds, which overflow after 292 years.
pub(crate) fn go_seconds(seconds: i64) -> SignedDuration {
    const NANOSECONDS: i64 = 1_000_000_000;
    SignedDuration::from_nanos(seconds.wrapping_mul(NANOSECONDS))
}

fn unquote(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// The resource in a path.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    /// Empty for all namespaces, or for a cluster-scoped resource.
    pub(crate) namespace: String,
    /// Empty for a collection.
    pub(crate) name: String,
    pub(crate) subresource: String,
}

/// Reads `/api/v1/...` and `/apis/GROUP/VERSION/...` below the version.
pub(crate) fn target(table: &Table, path: &str) -> Result<Target, Refusal> {
    let parts: Vec<String> = path
        .split('/')
        .filter(|part| !part.is_empty())
        .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return Err(Refusal::no_such_path()),
    };
    let (namespace, rest) = match rest {
        // A namespace is a resource itself, with its own subresources.
        ["namespaces", _, "status" | "finalize"] => ("", rest),
        ["namespaces", namespace, below @ ..] if !below.is_empty() => (*namespace, below),
        _ => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return Err(Refusal::no_such_path()),
    };
    let resource = table.get(group, version, plural).ok_or_else(Refusal::no_such_path)?;
    let is_scoped_wrongly =
        if resource.namespaced { namespace.is_empty() && !name.is_empty() } else { !namespace.is_empty() };
    if is_scoped_wrongly {
        return Err(Refusal::no_such_path());
    }
    Ok(Target {
        resource: Arc::clone(resource),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Representation {
    Full,
    /// `PartialObjectMetadata`, or a list of them.
    Metadata,
    Table(Include),
}

/// The object that a table row carries beside its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

impl Representation {
    /// The first media type in an `Accept` header that is supported.
    pub(crate) fn choose(accept: &str, query: &Query) -> Result<Self, Refusal> {
        let mut is_only_the_form_unknown = false;
        let accept = if accept.trim().is_empty() { "application/json" } else { accept };
        for wanted in accept.split(',') {
            let mut parts = wanted.split(';').map(str::trim);
            let kind = parts.next().unwrap_or("");
            if !matches!(kind, "application/json" | "*/*" | "application/yaml") {
                continue;
            }
            let parameters: Vec<&str> = parts.collect();
            let parameter = |key: &str| parameters.iter().find_map(|part| part.strip_prefix(key));
            let is_ours = parameter("g=").is_none_or(|group| group == "meta.k8s.io")
                && parameter("v=").is_none_or(|version| ["v1", "v1beta1"].contains(&version));
            match parameter("as=") {
                None => return Ok(Self::Full),
                Some(_) if !is_ours => is_only_the_form_unknown = true,
                Some("Table") => {
                    return Ok(Self::Table(match query.text("includeObject") {
                        "None" => Include::None,
                        "Object" => Include::Object,
                        _ => Include::Metadata,
                    }));
                }
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    return Ok(Self::Metadata);
                }
                Some(_) => {}
            }
        }
        if is_only_the_form_unknown {
            return Err(not_acceptable(
                "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
            ));
        }
        Err(not_acceptable(
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
        .without_details())
    }

    /// Refuses the metadata form of a list for one object, and vice versa.
    pub(crate) fn check_count(accept: &str, resource: &Resource, is_list: bool) -> Result<(), Refusal> {
        let group = match &resource.custom {
            Some(_) => "unstructured",
            None if resource.group.is_empty() => "core",
            None => resource.group.split('.').next().unwrap_or(""),
        };
        let (asked, found) = match (is_list, &resource.custom) {
            (true, None) => ("PartialObjectMetadata", resource.list_kind.as_str()),
            (true, Some(_)) => ("PartialObjectMetadata", "UnstructuredList"),
            (false, None) => ("PartialObjectMetadataList", resource.kind.as_str()),
            (false, Some(_)) => ("PartialObjectMetadataList", "Unstructured"),
        };
        let first = accept.split(',').next().unwrap_or("");
        if !first.split(';').any(|part| part.trim().strip_prefix("as=") == Some(asked)) {
            return Ok(());
        }
        let a_list = if is_list { "a list" } else { "not a list" };
        Err(not_acceptable(format!(
            "you requested {asked}, but the requested object is {a_list} (*{group}.{found})"
        )))
    }
}

fn not_acceptable(message: impl Into<String>) -> Refusal {
    Refusal::new(406, "NotAcceptable", message)
}
