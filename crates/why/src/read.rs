//! Reads from a cluster only what the rules need.

mod served;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, header::ACCEPT};
use http_body_util::BodyExt;
use jiff::{Timestamp, fmt::rfc2822};
use kube::{Client, client::Body};
use salvor_operator::story;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    all::{ROOTS, everything},
    answer::{Answer, NotSeen, Overview},
    diagnosis::why,
    kinds::{CONFIG_MAP, EVENT, Kind, LEASE, NAMESPACE, NODE, POD, Resource, SECRET, ServedKind, encode},
    near::{did_you_mean, near},
    presence::Judge,
    salvor::NODE_LEASES,
    slim::slim,
    world::{FAILED_MOUNT, Outcome, Query, World},
};

/// Limits how often the rules run. Each run may need objects that the previous reads led to.
const MOST_ROUNDS: usize = 16;
/// Objects per page of a list.
const PAGE: usize = 250;
/// At most this many ConfigMaps and Secrets are read one by one.
const MOST_SINGLE: usize = 200;
/// More nodes than this are read with one list.
const MOST_NODES: usize = 16;
/// A server that is silent for this long counts as not answering.
const SILENCE: Duration = Duration::from_secs(30);
/// Only the existence of Secrets and ConfigMaps matters.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    #[error("cannot make a client: {0}")]
    Client(String),
    #[error(
        "this cluster has no kind {word:?}: write it as kubectl does, such as job, pod, statefulset or pvc{}",
        did_you_mean(near)
    )]
    UnknownKind { word: String, near: Vec<String> },
    #[error("there is no {what}{}", did_you_mean(near))]
    NotFound {
        what: String,
        /// Similar names of the same kind.
        near: Vec<String>,
    },
    #[error("there is no namespace {name:?}{}", did_you_mean(near))]
    NoNamespace { name: String, near: Vec<String> },
    #[error("cannot read {what}: {why}")]
    NotReadable {
        /// The object or list, as shown to the user.
        what: String,
        why: String,
    },
}

/// The server's error response to a read.
struct Refusal {
    code: u16,
    message: String,
}

impl From<serde_json::Error> for Refusal {
    fn from(error: serde_json::Error) -> Self {
        Self { code: 0, message: format!("the answer cannot be read: {error}") }
    }
}

/// One page of a list. Items are parsed one by one, because a whole page of values takes much memory.
#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    /// The API server may send null for an empty list.
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

enum Page {
    /// The list starts again: objects received before do not count.
    Begin,
    Object(Value),
}

pub struct Reader {
    client: Client,
    now: Option<Timestamp>,
    /// `None` for kinds that the cluster does not serve.
    served: BTreeMap<Kind, Option<Resource>>,
    groups: BTreeMap<String, Vec<ServedKind>>,
}

fn unlocated(kind: &Kind, refusal: Refusal) -> NotSeen {
    NotSeen { what: format!("{} of group {}", kind.kind, kind.group), why: refusal.message }
}

impl Reader {
    pub fn new(mut config: kube::Config) -> Result<Self, WhyError> {
        // A shorter limit of the user counts.
        config.connect_timeout = config.read_timeout.or(Some(SILENCE));
        config.read_timeout = config.connect_timeout;
        Client::try_from(config).map(Self::of).map_err(|error| WhyError::Client(story(&error)))
    }

    /// Uses the client's own timeouts for a server that does not answer.
    pub fn of(client: Client) -> Self {
        Self { client, now: None, served: BTreeMap::new(), groups: BTreeMap::new() }
    }

    /// The API server's time, or this machine's before the first answer.
    pub fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(Timestamp::now)
    }

    /// Diagnoses an object. Also returns a line that names the configuration the answer is based on.
    ///
    /// # Errors
    /// If the object does not exist or cannot be read.
    pub async fn why(
        &mut self,
        judge: &Judge,
        word: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(Answer, String), WhyError> {
        let resource = self.resolve(word).await?;
        let namespace = if resource.namespaced { namespace } else { "" };
        let within = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
        let what = format!("{} {name:?}{within}", resource.kind.kind);
        let kind = resource.kind.clone();
        let query = Query::Get { kind: kind.clone(), namespace: namespace.to_owned(), name: name.to_owned() };
        self.served.insert(kind.clone(), Some(resource));
        let found = match self.read(&query).await {
            Outcome::Absent => return Err(self.not_found(what, &kind, namespace, name).await),
            Outcome::Unseen(NotSeen { why, .. }) => return Err(WhyError::NotReadable { what, why }),
            found @ Outcome::Found(_) => found,
        };
        let mut world = World::new(self.now());
        world.learn(query, found);
        for _ in 0..MOST_ROUNDS {
            // Both calls request objects. Only what the answer needs is reported as not readable.
            let told = judge.told(&world);
            world.missed();
            let answer = why(&world, judge, &kind, namespace, name);
            let wanted = world.wanted();
            if wanted.is_empty() {
                let Some(mut answer) = answer else {
                    return Err(WhyError::NotFound { what, near: Vec::new() });
                };
                answer.not_seen = world.missed();
                return Ok((answer, told));
            }
            let (nodes, others): (Vec<Query>, Vec<Query>) = wanted
                .into_iter()
                .partition(|query| matches!(query, Query::Get { kind, .. } if *kind == NODE));
            let singly = if nodes.len() > MOST_NODES {
                self.learn_by_list(&mut world, &NODE, "", &nodes).await;
                Vec::new()
            } else {
                nodes
            };
            for query in others.into_iter().chain(singly) {
                let outcome = self.read(&query).await;
                world.learn(query, outcome);
            }
        }
        Err(WhyError::NotReadable { what, why: "the chain from it has no end".to_owned() })
    }

    /// Checks that the API server answers, and accepts the user.
    ///
    /// # Errors
    /// If it does not.
    pub async fn reach(&mut self) -> Result<(), WhyError> {
        match self.fetch_bytes("/version", false).await {
            // A user who may not ask for the version may still read objects.
            Err(Refusal { code: 0 | 401, message }) => {
                Err(WhyError::NotReadable { what: "the API".to_owned(), why: message })
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The error for an object that does not exist. A namespace that does not exist is named instead.
    async fn not_found(&mut self, what: String, kind: &Kind, namespace: &str, name: &str) -> WhyError {
        if !namespace.is_empty()
            && let Err(error) = self.must_exist(namespace).await
        {
            return error;
        }
        let names = self.names(kind, namespace).await;
        WhyError::NotFound { what, near: near(name, names.iter().map(String::as_str)) }
    }

    /// A namespace that may not be read counts as existing.
    async fn must_exist(&mut self, namespace: &str) -> Result<(), WhyError> {
        let query =
            Query::Get { kind: NAMESPACE.clone(), namespace: String::new(), name: namespace.to_owned() };
        match self.read(&query).await {
            Outcome::Found(_) | Outcome::Unseen(_) => Ok(()),
            Outcome::Absent => {
                let names = self.names(&NAMESPACE, "").await;
                let near = near(namespace, names.iter().map(String::as_str));
                Err(WhyError::NoNamespace { name: namespace.to_owned(), near })
            }
        }
    }

    /// The names of all objects of a kind; empty if they cannot be read.
    pub(crate) async fn names(&mut self, kind: &Kind, namespace: &str) -> Vec<String> {
        let Ok(Some(resource)) = self.locate(kind).await else { return Vec::new() };
        let within = Some(namespace).filter(|namespace| !namespace.is_empty());
        let mut names = Vec::new();
        let read = self.pages(&resource, within, "", "", |page| match page {
            Page::Begin => names.clear(),
            Page::Object(object) => names.push(crate::json::name(&object).to_owned()),
        });
        if read.await.is_err() { Vec::new() } else { names }
    }

    /// Diagnoses all workloads of a namespace, or of all namespaces. Also returns a line that names the configuration
    /// used.
    ///
    /// # Errors
    /// If pods cannot be read, or the namespace does not exist.
    pub async fn everything(
        &mut self,
        judge: &Judge,
        namespace: Option<&str>,
    ) -> Result<(Overview, String), WhyError> {
        if let Some(namespace) = namespace {
            self.must_exist(namespace).await?;
        }
        let mut not_seen = BTreeSet::new();
        let mut world = World::new(self.now()).within(namespace);
        // Pods come last: their nodes decide which of them run.
        for kind in [&NODE].into_iter().chain(ROOTS) {
            if let Err(missed) = self.whole(&mut world, kind, namespace, &[""]).await {
                if *kind == POD {
                    return Err(WhyError::NotReadable { what: missed.what, why: missed.why });
                }
                not_seen.insert(missed);
            }
        }
        world.now = self.now();
        for _ in 0..MOST_ROUNDS {
            let told = judge.told(&world);
            world.missed();
            let mut overview = everything(&mut world, judge);
            let wanted = world.wanted();
            if wanted.is_empty() {
                not_seen.extend(world.missed());
                overview.not_seen = not_seen.into_iter().collect();
                return Ok((overview, told));
            }
            self.learn_whole(&mut world, wanted, namespace, &mut not_seen).await;
        }
        Err(WhyError::NotReadable {
            what: "all workloads".to_owned(),
            why: "their chains have no end".to_owned(),
        })
    }

    /// The events that a controller reports, of a namespace or of all namespaces.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    pub async fn events_by(
        &mut self,
        controller: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<Value>, NotSeen> {
        let query = Query::List {
            kind: EVENT.clone(),
            namespace: namespace.unwrap_or_default().to_owned(),
            labels: String::new(),
            fields: format!("reportingComponent={controller}"),
        };
        match self.read(&query).await {
            Outcome::Found(events) => Ok(events),
            Outcome::Absent => Ok(Vec::new()),
            Outcome::Unseen(missed) => Err(missed),
        }
    }

    /// Reads what many workloads need: lists a whole kind instead of reading single objects.
    async fn learn_whole(
        &mut self,
        world: &mut World,
        wanted: Vec<Query>,
        namespace: Option<&str>,
        not_seen: &mut BTreeSet<NotSeen>,
    ) {
        let mut single = 0;
        for query in wanted {
            let (kind, within) = match &query {
                Query::Get { kind, namespace, .. } | Query::List { kind, namespace, .. } => {
                    (kind.clone(), namespace.clone())
                }
            };
            if world.covers(&kind, &within) || world.knows(&query) {
                continue;
            }
            let elsewhere = world.was_tried(&kind);
            if kind == LEASE && within == NODE_LEASES {
                self.learn_by_list(world, &LEASE, NODE_LEASES, &[query]).await;
            } else if elsewhere || kind == LEASE || kind == CONFIG_MAP || kind == SECRET {
                single += 1;
                let outcome = if single <= MOST_SINGLE {
                    self.read(&query).await
                } else {
                    Outcome::Unseen(NotSeen {
                        what: "some ConfigMaps and Secrets".to_owned(),
                        why: format!("more than {MOST_SINGLE} are asked for"),
                    })
                };
                world.learn(query, outcome);
            } else {
                // Only two kinds of events matter: refusals and failed mounts.
                let mounts = format!("reason={FAILED_MOUNT}");
                let of_events = ["reason=FailedCreate", mounts.as_str()];
                let fields = if kind == EVENT { of_events.as_slice() } else { &[""] };
                not_seen.extend(self.whole(world, &kind, namespace, fields).await.err());
            }
        }
    }

    /// Answers reads of single objects from one list.
    async fn learn_by_list(&mut self, world: &mut World, kind: &Kind, namespace: &str, queries: &[Query]) {
        let all = Query::List {
            kind: kind.clone(),
            namespace: namespace.to_owned(),
            labels: String::new(),
            fields: String::new(),
        };
        let unless_listed = match self.read(&all).await {
            Outcome::Found(objects) => {
                let none = BTreeSet::new();
                for object in objects.into_iter().filter_map(|object| slim(kind, object, &none)) {
                    let name = crate::json::name(&object).to_owned();
                    let one = Query::Get { kind: kind.clone(), namespace: namespace.to_owned(), name };
                    world.learn(one, Outcome::Found(vec![object]));
                }
                Outcome::Absent
            }
            other => other,
        };
        for query in queries.iter().filter(|query| !world.knows(query)).cloned().collect::<Vec<_>>() {
            world.learn(query, unless_listed.clone());
        }
    }

    /// Lists the objects of a kind that match one of these field selectors, and keeps only the fields that the rules
    /// read. A kind that is not served has no objects.
    async fn whole(
        &mut self,
        world: &mut World,
        kind: &Kind,
        namespace: Option<&str>,
        fields: &[&str],
    ) -> Result<(), NotSeen> {
        world.begin(kind);
        let resource = match self.locate(kind).await {
            Ok(Some(resource)) => resource,
            Ok(None) => return Ok(()),
            Err(refusal) => {
                let missed = unlocated(kind, refusal);
                world.cannot_see(kind, missed.clone());
                return Err(missed);
            }
        };
        let lost = if *kind == POD { world.lost_nodes() } else { BTreeSet::new() };
        world.close();
        let mut read = Ok(());
        for (at, fields) in fields.iter().enumerate() {
            let one = self.pages(&resource, namespace, "", fields, |page| match page {
                // Objects of the other list stay. A duplicate event does no harm.
                Page::Begin if at > 0 => {}
                Page::Begin => world.begin(kind),
                Page::Object(object) => {
                    if let Some(object) = slim(kind, object, &lost) {
                        world.learn_one_of_all(kind, object);
                    }
                }
            });
            read = one.await;
            if read.is_err() {
                break;
            }
        }
        let Err(refusal) = read else { return Ok(()) };
        let within = namespace.filter(|_| resource.namespaced);
        let within = within.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
        let missed = NotSeen { what: format!("{}{within}", resource.plural), why: refusal.message };
        world.cannot_see(kind, missed.clone());
        Err(missed)
    }

    async fn read(&mut self, query: &Query) -> Outcome {
        let (Query::Get { kind, .. } | Query::List { kind, .. }) = query;
        let resource = match self.locate(kind).await {
            Ok(Some(resource)) => resource,
            // A kind that is not served has no objects.
            Ok(None) => return Outcome::Absent,
            Err(refusal) => return Outcome::Unseen(unlocated(kind, refusal)),
        };
        let (what, read) = match query {
            Query::Get { namespace, name, .. } => {
                let path = resource.path(Some(namespace.as_str()).filter(|one| !one.is_empty()), Some(name));
                let metadata_only = *kind == SECRET || *kind == CONFIG_MAP;
                let within = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
                (
                    format!("{} {within}", resource.kind.kind),
                    self.fetch(&path, metadata_only).await.map(|object| vec![object]),
                )
            }
            Query::List { namespace, labels, fields, .. } => {
                let within = Some(namespace.as_str()).filter(|one| !one.is_empty());
                let what = within.map_or(resource.plural.clone(), |within| {
                    format!("{} in namespace {within}", resource.plural)
                });
                let mut objects = Vec::new();
                let read = self.pages(&resource, within, labels, fields, |page| match page {
                    Page::Begin => objects.clear(),
                    Page::Object(object) => objects.push(object),
                });
                let read = read.await;
                (what, read.map(|()| objects))
            }
        };
        match read {
            Ok(objects) => Outcome::Found(objects),
            Err(Refusal { code: 404, .. }) => Outcome::Absent,
            Err(Refusal { message, .. }) => Outcome::Unseen(NotSeen { what, why: message }),
        }
    }

    /// Reads a list page by page and passes on one object at a time.
    async fn pages(
        &mut self,
        resource: &Resource,
        namespace: Option<&str>,
        labels: &str,
        fields: &str,
        mut take: impl FnMut(Page),
    ) -> Result<(), Refusal> {
        let mut next = String::new();
        let mut restarted = false;
        loop {
            let mut path = format!("{}?limit={PAGE}", resource.path(namespace, None));
            for (key, value) in [("labelSelector", labels), ("fieldSelector", fields), ("continue", &next)] {
                if !value.is_empty() {
                    path.push_str(&format!("&{key}={}", encode(value)));
                }
            }
            let body = match self.fetch_bytes(&path, false).await {
                // The continue token expired because the list took too long.
                Err(Refusal { code: 410, .. }) if !restarted => {
                    (restarted, next) = (true, String::new());
                    take(Page::Begin);
                    continue;
                }
                other => other?,
            };
            let page: List<'_> = serde_json::from_slice(&body)?;
            for item in page.items.into_iter().flatten() {
                take(Page::Object(serde_json::from_str(item.get())?));
            }
            next = page.metadata.next.unwrap_or_default();
            if next.is_empty() {
                return Ok(());
            }
        }
    }

    async fn fetch(&mut self, path: &str, metadata_only: bool) -> Result<Value, Refusal> {
        let body = self.fetch_bytes(path, metadata_only).await?;
        Ok(serde_json::from_slice(&body)?)
    }

    async fn fetch_bytes(&mut self, path: &str, metadata_only: bool) -> Result<Bytes, Refusal> {
        let broken = |message: String| Refusal { code: 0, message };
        let mut request = Request::get(path);
        if metadata_only {
            request = request.header(ACCEPT, METADATA_ONLY);
        }
        let request = request.body(Body::empty()).map_err(|error| broken(error.to_string()))?;
        let answer = self.client.send(request).await.map_err(|error| broken(story(&error)))?;
        let date = answer.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
        if let Some(now) = date.and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date).ok()) {
            self.now = Some(now);
        }
        let code = answer.status();
        let body = answer.into_body().collect().await.map_err(|error| broken(story(&error)))?.to_bytes();
        if code.is_success() {
            return Ok(body);
        }
        let status: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = match crate::json::text(&status, "/message") {
            "" => format!("the API server answered {code}"),
            message => message.to_owned(),
        };
        Err(Refusal { code: code.as_u16(), message })
    }
}
