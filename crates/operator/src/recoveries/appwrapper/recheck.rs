//! The second look: an AppWrapper and everything around it, read live.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{
    StreamExt, TryStreamExt,
    future::{try_join, try_join_all},
    stream,
};
use jiff::Timestamp;
use kube::Client;
use salvor_api::names::appwrapper::{API_VERSION, MEMBER_LABEL, PLURAL};
use salvor_recovery::{
    Decision, Verdict,
    appwrapper::{
        AppWrapperPolicy, AppWrapperRef, AppWrapperView, AppWrapperWhy, Authorship, FoundComponent, Last,
        Memory, NodeView, Seen, Step, decide, works_to_read,
    },
    gate::{Copies, Work},
    ids::{NodeName, Uid},
};
use serde_json::Value;

use super::{
    snapshot::{Snapshot, view},
    webhooks::authors::{Reviews, Standing, standing},
    wire::{App, PodWire, Rules, SeenNode, SeenPod, found},
};
use crate::{
    client::{
        discovery::{GroupKind, Kind, Served},
        incoming::PageSize,
        live::{self, percent_encode},
        recent_reads::ReadAge,
        wire::{Whole, read},
    },
    engine::recovery::{Known, LiveRecheck},
    recoveries::work::read_copies_or_why_not,
    watch_set::{leases::Heartbeats, nodes::NodeWire},
};

/// Where a kind is served, or what is known of its objects without a read.
pub(super) type Places = BTreeMap<Kind, Result<Served, Seen>>;

/// Limit on concurrent reads.
const AT_ONCE: usize = 32;
/// The number of pods of an AppWrapper whose claims and Jobs are read at a time. The rest follow when these are known.
pub(super) const WORKS_AT_ONCE: usize = 50;
/// Up to this many components of a kind are read by name if the labelled list lacks them. For more, all objects of the
/// kind in the namespace are listed: a look at hundreds of components must finish within the second of its validity.
const READ_BY_NAME: usize = 8;

/// Components that a look found by name but the watches do not show, because their label was removed. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Unlabelled(Arc<Mutex<BTreeMap<(Kind, String), FoundComponent>>>);

impl Unlabelled {
    pub(super) fn get(&self, kind: &Kind, name: &str) -> Option<FoundComponent> {
        self.all().get(&(kind.clone(), name.to_owned())).cloned()
    }

    /// Records what the latest look has found.
    fn note(&self, app: &App, snapshot: &Snapshot) {
        let found = snapshot.components.iter().enumerate().filter_map(|(index, (_, seen))| match seen {
            Seen::Found(found) if !snapshot.owned.iter().any(|it| it.object.uid == found.object.uid) => {
                Some(((app.parts[index].kind.clone(), app.name_of(index).to_owned()), (**found).clone()))
            }
            Seen::Found(_) | Seen::Absent { .. } | Seen::NoSuchKind | Seen::Unknown(_) => None,
        });
        *self.all() = found.collect();
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<(Kind, String), FoundComponent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Recheck {
    pub(super) appwrapper: AppWrapperRef,
    pub(super) policy: Arc<AppWrapperPolicy>,
    pub(super) rules: Arc<Rules>,
    pub(super) memory: Memory,
    pub(super) last: BTreeMap<(GroupKind, String), Last>,
    pub(super) places: Places,
    /// Everything around it as last seen. For a creation only the AppWrapper is read live: an existing object has the
    /// name, and the server refuses another one.
    pub(super) snapshot: Snapshot,
    pub(super) only_creates: bool,
    /// The pods to force delete, and those that the garbage collector may remove with their component.
    pub(super) forced: BTreeSet<Uid>,
    pub(super) unlabelled: Unlabelled,
    pub(super) reviews: Reviews,
    pub(super) heartbeats: Heartbeats,
}

impl LiveRecheck for Recheck {
    type Why = AppWrapperWhy;
    type Step = Step;

    async fn ask(
        &self,
        client: &Client,
        known: Known<'_>,
        now: Timestamp,
        _: &mut ReadAge,
    ) -> kube::Result<Option<Decision<AppWrapperWhy, Step>>> {
        let text = match known {
            Known::Written(text) => Some(text.to_owned()),
            Known::Guarded | Known::Nothing => live::get(client, &path(&self.appwrapper)).await?,
        };
        let Some(text) = text else { return Ok(None) };
        let (app, object) = App::parse(&text, &self.rules).map_err(kube::Error::SerdeError)?;
        if app.appwrapper != self.appwrapper {
            return Ok(None);
        }
        let snapshot = if self.only_creates {
            self.snapshot.clone()
        } else {
            let nodes = &self.snapshot.nodes;
            let mut snapshot = read_snapshot(client, &app, &self.places, &self.last, &self.policy).await?;
            self.unlabelled.note(&app, &snapshot);
            snapshot.nodes = self.read_nodes(client, &snapshot.pods, nodes, now).await?;
            snapshot.nodes_known = self.snapshot.nodes_known;
            snapshot
        };
        let mut view = view(&app, snapshot, self.memory.clone(), Authorship::Fine);
        read_works(client, &mut view, &self.policy, &self.forced, now).await;
        let mut judge = |authorship| {
            view.authorship = authorship;
            decide(&view, &self.policy, now)
        };
        // The author's permissions are reviewed now; earlier results do not count.
        let decision = match standing(&app, &self.rules, &self.reviews) {
            Standing::Known(authorship) => {
                self.reviews.forget();
                judge(authorship)
            }
            Standing::Author { claim, author } => {
                let decision = judge(Authorship::Fine);
                if creates(&decision) {
                    match self.reviews.ask(client, claim, &author, &object, &self.rules, now).await {
                        Authorship::Fine => decision,
                        other @ (Authorship::Refused(_)
                        | Authorship::NoKeys
                        | Authorship::Unanswered { .. }) => judge(other),
                    }
                } else {
                    self.reviews.forget();
                    decision
                }
            }
        };
        Ok(Some(with_bodies(decision, &app, &object, &self.rules)))
    }
}

fn creates(decision: &Decision<AppWrapperWhy, Step>) -> bool {
    decision.verdict.actions().iter().any(|step| matches!(step, Step::CreateComponent { .. }))
}

/// Adds the objects to the creations: only now the current AppWrapper is known.
fn with_bodies(
    mut decision: Decision<AppWrapperWhy, Step>,
    app: &App,
    object: &Value,
    rules: &Rules,
) -> Decision<AppWrapperWhy, Step> {
    if let Verdict::Act { actions, .. } = &mut decision.verdict {
        for action in actions {
            if let Step::CreateComponent { index, body, .. } = action {
                *body = app.body(*index, object, rules).map(Into::into);
            }
        }
    }
    decision
}

fn path(AppWrapperRef { namespace, name, .. }: &AppWrapperRef) -> String {
    format!("/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}/{name}")
}

pub(super) async fn read_snapshot(
    client: &Client,
    app: &App,
    places: &Places,
    last: &BTreeMap<(GroupKind, String), Last>,
    policy: &AppWrapperPolicy,
) -> kube::Result<Snapshot> {
    let AppWrapperRef { namespace, name, uid } = &app.appwrapper;
    let labelled = format!("&labelSelector={}", percent_encode(&format!("{MEMBER_LABEL}={name}")));
    let mut kinds: BTreeMap<&Kind, BTreeSet<&str>> = BTreeMap::new();
    for (index, part) in app.parts.iter().enumerate() {
        kinds.entry(&part.kind).or_default().insert(app.name_of(index));
    }
    let served =
        kinds.iter().filter_map(|(kind, names)| Some((*kind, names, places.get(kind)?.as_ref().ok()?)));
    let lists = served.map(|(kind, names, place)| {
        let labelled = &labelled;
        async move {
            let is_whole = names.len() > READ_BY_NAME;
            let query = if is_whole { "" } else { labelled };
            let size = PageSize::expecting(names.len());
            let read =
                |whole: Whole| Listed::new(&place.of(kind), &place.resource, &whole.object, name, names);
            let all = live::list_from(client, &place.path(Some(namespace)), query, size, read).await?;
            let objects: Result<Vec<Listed>, _> = all.into_iter().collect();
            let objects = objects.map_err(kube::Error::SerdeError)?;
            Ok::<_, kube::Error>((kind, List { is_whole, objects }))
        }
    });
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let expected = PageSize::expecting(app.status.expected_pods());
    let pods =
        live::list_from(client, &pods, &labelled, expected, |wire: PodWire| SeenPod::new(wire, policy));
    let (lists, pods) = try_join(try_join_all(lists), pods).await?;
    let lists: Lists<'_> = lists.into_iter().collect();
    let parts = (0..app.parts.len()).map(|index| read_part(client, app, index, places, last, &lists));
    let components = stream::iter(parts.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await?;
    let labelled = lists.into_values().flat_map(|list| list.objects).filter(|it| it.is_labelled);
    let owned =
        labelled.map(|it| it.object).filter(|object| object.owner_uid.as_ref() == Some(uid)).collect();
    Ok(Snapshot { components, owned, pods, pods_known: true, ..Snapshot::default() })
}

type Lists<'k> = BTreeMap<&'k Kind, List>;

/// The objects of a kind that matter to an AppWrapper.
struct List {
    /// True if all objects of the kind were listed: one that is missing here does not exist.
    is_whole: bool,
    objects: Vec<Listed>,
}

/// An object that has the AppWrapper's label, or the name of a component.
struct Listed {
    object: FoundComponent,
    is_labelled: bool,
}

impl Listed {
    /// `None` for an object that does not matter. One with the name of a component must be decodable, because it is not
    /// absent.
    fn new(
        kind: &Kind,
        resource: &str,
        object: &Value,
        app: &str,
        names: &BTreeSet<&str>,
    ) -> Option<Result<Self, serde_json::Error>> {
        let metadata = &object["metadata"];
        let is_labelled = metadata["labels"][MEMBER_LABEL] == *app;
        let is_named = metadata["name"].as_str().is_some_and(|name| names.contains(name));
        if !is_labelled && !is_named {
            return None;
        }
        let listed = found(kind, resource, object).map(|object| Self { object, is_labelled });
        Some(listed).filter(|listed| is_named || listed.is_ok())
    }
}

/// The state of a component: from the lists of its kind, or read by name.
async fn read_part(
    client: &Client,
    app: &App,
    index: usize,
    places: &Places,
    last: &BTreeMap<(GroupKind, String), Last>,
    lists: &Lists<'_>,
) -> kube::Result<(String, Seen)> {
    let (part, name) = (&app.parts[index], app.name_of(index));
    let place = match places.get(&part.kind) {
        Some(Ok(place)) => place,
        Some(Err(seen)) => return Ok((String::new(), seen.clone())),
        None if part.is_unreadable() => return Ok((String::new(), Seen::NoSuchKind)),
        None => return Ok((String::new(), Seen::Unknown("its kind is not watched yet".into()))),
    };
    let is_it = |object: &&FoundComponent| {
        let of = &object.object;
        of.name == name && of.kind.kind == part.kind.kind && of.kind.group == part.kind.group
    };
    let resource = place.resource.clone();
    let listed = lists.values().flat_map(|list| &list.objects).map(|it| &it.object);
    if let Some(object) = listed.into_iter().find(is_it) {
        return Ok((resource, Seen::Found(Box::new(object.clone()))));
    }
    let absent = || Seen::Absent { last: last.get(&((&part.kind).into(), name.to_owned())).cloned() };
    if lists.get(&part.kind).is_some_and(|list| list.is_whole) {
        return Ok((resource, absent()));
    }
    let path = format!("{}/{}", place.path(Some(&app.appwrapper.namespace)), percent_encode(name));
    let seen = match live::get(client, &path).await? {
        Some(text) => {
            let object: Value = read(&text)?;
            let object = found(&place.of(&part.kind), &resource, &object).map_err(kube::Error::SerdeError)?;
            Seen::Found(Box::new(object))
        }
        None => absent(),
    };
    Ok((resource, seen))
}

impl Recheck {
    /// The nodes of pods as last seen. Those that may cause a reset, or have pods to force delete, are read live.
    async fn read_nodes(
        &self,
        client: &Client,
        pods: &[SeenPod],
        seen: &BTreeMap<NodeName, NodeView>,
        now: Timestamp,
    ) -> kube::Result<BTreeMap<NodeName, NodeView>> {
        let on: BTreeSet<&NodeName> = pods.iter().filter_map(|pod| pod.view.node_name.as_ref()).collect();
        let flagged = seen.iter().filter(|(name, node)| on.contains(name) && **node != NodeView::default());
        let forced = || pods.iter().filter(|pod| self.forced.contains(&pod.view.pod.uid));
        let of_forced = forced().filter_map(|pod| pod.view.node_name.as_ref());
        let names: BTreeSet<NodeName> = flagged.map(|(name, _)| name).chain(of_forced).cloned().collect();
        let judged = forced().filter(|pod| pod.view.hangs_on_its_kubelet());
        let heard: BTreeSet<&NodeName> = judged.filter_map(|pod| pod.view.node_name.as_ref()).collect();
        let reads = names.into_iter().map(async |name| {
            let node = read_node(client, &name, &self.policy).await?;
            let node = self.with_heartbeat(client, node, heard.contains(&name), now).await?;
            Ok::<_, kube::Error>((name, node))
        });
        let live: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        let mut nodes = seen.clone();
        for (name, node) in live {
            match node {
                Some(node) => nodes.insert(name, node),
                None => nodes.remove(&name),
            };
        }
        Ok(nodes)
    }

    /// Adds the heartbeat that the Lease shows now, if the node is unreachable or its kubelet's report decides about
    /// a pod.
    async fn with_heartbeat(
        &self,
        client: &Client,
        node: Option<SeenNode>,
        its_word_decides: bool,
        now: Timestamp,
    ) -> kube::Result<Option<NodeView>> {
        let Some(SeenNode { node, mut view, ready_heartbeat }) = node else { return Ok(None) };
        if view.unreachable || its_word_decides {
            let lease = live::node_lease(client, &node.name).await?;
            view.heartbeat = self.heartbeats.note(&node, lease.or(ready_heartbeat), now);
        }
        Ok(Some(view))
    }
}

/// Reads the claims and Jobs that decide whether pods are force deleted. Shared ones are read once. The pods of the
/// step that is checked come first, because a look reads a limited number.
pub(super) async fn read_works(
    client: &Client,
    view: &mut AppWrapperView,
    policy: &AppWrapperPolicy,
    forced: &BTreeSet<Uid>,
    now: Timestamp,
) {
    let mut wanted = works_to_read(view, policy, now);
    wanted.sort_by_key(|pod| !forced.contains(&pod.pod.uid));
    wanted.truncate(WORKS_AT_ONCE);
    let distinct: BTreeMap<_, Work> = wanted
        .iter()
        .map(|pod| ((pod.work.claims.clone(), pod.work.job.clone()), pod.work.clone()))
        .collect();
    let of: BTreeSet<Uid> = wanted.iter().map(|pod| pod.pod.uid.clone()).collect();
    let reads = distinct
        .into_iter()
        .map(async |(shared, work)| (shared, read_copies_or_why_not(client, &work).await));
    let known: BTreeMap<_, Copies> = stream::iter(reads).buffered(AT_ONCE).collect().await;
    for pod in view.pods.iter_mut().filter(|pod| of.contains(&pod.pod.uid)) {
        if let Some(copies) = known.get(&(pod.work.claims.clone(), pod.work.job.clone())) {
            pod.work.copies = copies.clone();
        }
    }
}

/// Reads a node, without its Lease.
pub(super) async fn read_node(
    client: &Client,
    name: &NodeName,
    policy: &AppWrapperPolicy,
) -> kube::Result<Option<SeenNode>> {
    let text = live::get(client, &format!("/api/v1/nodes/{}", percent_encode(name.as_str()))).await?;
    let node = text.map(|text| read::<NodeWire>(&text)).transpose()?;
    Ok(node.map(|wire| SeenNode::new(&wire, policy)))
}
