//! The AppWrapper recovery: the AppWrappers that we manage, the objects that they own, of whatever kind, and the pods
//! with their label. A change of any of these requeues its AppWrapper.
//!
//! The view applies the server's answer to each of our writes, so an AppWrapper goes from one phase to the next without
//! waiting for the watch.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use salvor_api::names::appwrapper::{MEMBER_LABEL, conditions::RESOURCES_DEPLOYED};
use salvor_recovery::{
    Decision, Step as _, Verdict,
    appwrapper::{
        AppWrapperPolicy, AppWrapperRef, AppWrapperWhy, FoundComponent, Last, Memory, NodeView, Phase,
        PodView, Seen, Stakes, Step, decide, works_to_read,
    },
    gate::Copies,
    ids::{NodeName, Uid},
};

use self::{
    kinds::{COMPONENTS, Kinds, Turn},
    metrics::AppWrapperMetrics,
    news::{News, WorkKey},
    pods::Pods,
    recheck::{Places, Recheck, Unlabelled, WORKS_AT_ONCE},
    snapshot::{Snapshot, view},
    webhooks::authors::{Reviews, authorship},
    wire::{App, LabelledPods, OurAppWrappers, Rules, SeenNode, SeenPod},
};
use crate::{
    client::{discovery::GroupKind, revision::Told},
    engine::recovery::{After, Ended, Recovery},
    execute::Lane,
    recoveries::work::WorkReads,
    watch_set::{
        feeds::{Feed, OfKind},
        leases::{self, Heartbeats, Wanted},
        watch::{Change, Moment, Target, WatchHealth},
    },
};

mod answers;
mod entry;
mod explain;
mod kinds;
mod metrics;
mod news;
mod nodes;
mod pods;
mod recheck;
mod snapshot;
mod webhooks;
mod wire;

pub(super) use entry::ENTRY;

const APPWRAPPERS: Target = Target::all("appwrappers", "/apis/workload.codeflare.dev/v1beta2/appwrappers");

fn labelled_pods() -> Target {
    Target { label_selector: Some(MEMBER_LABEL.into()), ..Target::all("appwrapper pods", "/api/v1/pods") }
}

#[derive(Debug)]
struct Known {
    app: App,
    memory: Memory,
    /// The last phase that was counted. The watch may show our own write before its answer arrives.
    counted: Phase,
    /// The last state of components that are gone, by kind and name.
    last: BTreeMap<(GroupKind, String), Last>,
    /// UIDs of objects of an earlier attempt. The watch may report their deletion when the next attempt has begun.
    of_the_past: BTreeSet<Uid>,
    unlabelled: Unlabelled,
    reviews: Reviews,
}

#[derive(Debug)]
pub(crate) struct AppWrappers {
    policy: Arc<AppWrapperPolicy>,
    rules: Arc<Rules>,
    metrics: AppWrapperMetrics,
    apps: BTreeMap<Uid, Box<Known>>,
    /// UIDs by namespace and name.
    names: BTreeMap<(String, String), Uid>,
    kinds: Kinds,
    pods: Pods,
    nodes: BTreeMap<NodeName, SeenNode>,
    /// The heartbeats of unreachable nodes' kubelets, and the nodes whose Leases are read for that.
    heartbeats: Heartbeats,
    leases: Wanted,
    /// The pods whose claims and Jobs are read, and the results.
    works: WorkReads<WorkKey>,
    copies: BTreeMap<WorkKey, Copies>,
    /// The epochs of the histories in which they were listed; `None` before the first list.
    apps_listed: Option<u64>,
    pods_listed: Option<u64>,
    nodes_listed: bool,
    app_watch: Arc<WatchHealth>,
    pod_watch: Arc<WatchHealth>,
    declared: bool,
}

impl AppWrappers {
    fn new(policy: Arc<AppWrapperPolicy>, rules: Arc<Rules>, metrics: AppWrapperMetrics) -> Self {
        Self {
            policy,
            rules,
            metrics,
            apps: BTreeMap::new(),
            names: BTreeMap::new(),
            kinds: Kinds::default(),
            pods: Pods::default(),
            nodes: BTreeMap::new(),
            heartbeats: Heartbeats::default(),
            leases: Wanted::default(),
            works: WorkReads::default(),
            copies: BTreeMap::new(),
            apps_listed: None,
            pods_listed: None,
            nodes_listed: false,
            app_watch: WatchHealth::new(APPWRAPPERS.resource),
            pod_watch: WatchHealth::new(labelled_pods().resource),
            declared: false,
        }
    }

    // ---- AppWrappers --------------------------------------------------------------------------------

    /// The kinds of its components that we may read.
    fn kinds_of(&self, app: &App) -> BTreeSet<GroupKind> {
        app.parts
            .iter()
            .map(|part| &part.kind)
            .filter(|kind| self.rules.wraps(kind))
            .map(Into::into)
            .collect()
    }

    /// Applies an AppWrapper unless a later state is known.
    fn take(&mut self, app: App, told: Told) -> Option<AppWrapperRef> {
        let subject = app.appwrapper.clone();
        let kinds = self.kinds_of(&app);
        let mut new_attempt = false;
        let before = match self.apps.get_mut(&subject.uid) {
            Some(known) if !told.replaces(app.revision(), known.app.revision()) => return None,
            Some(known) => {
                // What failed once may succeed in the next phase.
                if known.app.status.phase != app.status.phase {
                    known.memory.creation.clear();
                    // A new attempt begins when nothing of the previous one is left. Two attempts may fall into the
                    // same second, the precision of API times, so times alone do not distinguish their components.
                    // Another client may also have written the phase while everything exists: then the attempt goes on.
                    new_attempt =
                        app.status.phase == Phase::Resuming && !known.app.status.holds(RESOURCES_DEPLOYED);
                }
                Some(std::mem::replace(&mut known.app, app))
            }
            None => {
                let known = Known {
                    counted: app.status.phase.clone(),
                    app,
                    memory: Memory::default(),
                    last: BTreeMap::new(),
                    of_the_past: BTreeSet::new(),
                    unlabelled: Unlabelled::default(),
                    reviews: Reviews::default(),
                };
                self.apps.insert(subject.uid.clone(), Box::new(known));
                None
            }
        };
        if new_attempt && let Some(known) = self.apps.get_mut(&subject.uid) {
            known.last.clear();
            // The watch may report the deletion of the last attempt's objects when the next one has begun.
            let left = self.kinds.owned_by(&subject.uid).map(|object| object.object.uid.clone());
            known.of_the_past = left.collect();
        }
        self.names.insert((subject.namespace.clone(), subject.name.clone()), subject.uid.clone());
        let before = before.map(|before| self.kinds_of(&before)).unwrap_or_default();
        self.kinds.use_all(&kinds.difference(&before).cloned().collect());
        self.kinds.release_all(&before.difference(&kinds).cloned().collect());
        Some(subject)
    }

    fn drop_app(&mut self, uid: &Uid) -> Option<AppWrapperRef> {
        let known = self.apps.remove(uid)?;
        let kinds = self.kinds_of(&known.app);
        self.kinds.release_all(&kinds);
        self.read_works(uid, Vec::new());
        self.copies.retain(|(app, _), _| app != uid);
        let subject = known.app.appwrapper;
        let place = (subject.namespace.clone(), subject.name.clone());
        if self.names.get(&place).is_some_and(|named| named == uid) {
            self.names.remove(&place);
        }
        Some(subject)
    }

    fn list_apps(&mut self, all: Vec<App>, moment: &Moment) -> Vec<AppWrapperRef> {
        let mut woken: BTreeSet<AppWrapperRef> = self.subjects().into_iter().collect();
        let listed: BTreeSet<Uid> = all.iter().map(|app| app.appwrapper.uid.clone()).collect();
        let gone = self.apps.iter().filter(|(uid, known)| {
            moment.new_history || (!listed.contains(*uid) && !known.app.revision().is_after(moment.revision))
        });
        let gone: Vec<Uid> = gone.map(|(uid, _)| uid.clone()).collect();
        for uid in gone {
            self.drop_app(&uid);
        }
        for app in all {
            self.take(app, Told::ByListAt(moment.revision));
        }
        self.apps_listed = Some(moment.epoch);
        woken.extend(self.subjects());
        woken.into_iter().collect()
    }

    // ---- surrounding objects ------------------------------------------------------------------------

    fn app_named(&self, namespace: &str, name: &str) -> Option<AppWrapperRef> {
        let uid = self.names.get(&(namespace.to_owned(), name.to_owned()))?;
        Some(self.apps.get(uid)?.app.appwrapper.clone())
    }

    fn app_of(&self, pod: &SeenPod) -> Option<AppWrapperRef> {
        self.app_named(&pod.view.pod.namespace, &pod.app)
    }

    fn on_kind(
        &mut self,
        kind: &GroupKind,
        news: OfKind<FoundComponent>,
        now: Timestamp,
    ) -> Vec<AppWrapperRef> {
        let Turn { owners, gone, all } = self.kinds.on_change(kind, news, now);
        for last in gone {
            let object = &last.object;
            let owner = object.owner_uid.as_ref().and_then(|uid| self.apps.get_mut(uid));
            if let Some(known) = owner {
                let name = object.object.name.clone();
                if known.of_the_past.remove(&object.object.uid) {
                    continue;
                }
                // Only the last state of a component is useful. This check also bounds the map.
                if (0..known.app.parts.len()).any(|index| known.app.name_of(index) == name) {
                    known.last.insert((kind.clone(), name), last);
                }
            }
        }
        if all {
            let uses =
                |known: &&Known| known.app.parts.iter().any(|part| GroupKind::from(&part.kind) == *kind);
            let known = self.apps.values().map(Box::as_ref);
            return known.filter(uses).map(|known| known.app.appwrapper.clone()).collect();
        }
        let known = owners.iter().filter_map(|uid| self.apps.get(uid));
        known.map(|known| known.app.appwrapper.clone()).collect()
    }

    /// The objects around an AppWrapper, as the watches show them.
    fn snapshot(&self, known: &Known) -> Snapshot {
        let app = &known.app;
        let AppWrapperRef { uid, namespace, name } = &app.appwrapper;
        let epoch = self.apps_listed.unwrap_or_default();
        let component = |index: usize| {
            let (part, name) = (&app.parts[index], app.name_of(index));
            let Some(store) = self.kinds.get(&part.kind) else {
                return (String::new(), self.unwatched(part));
            };
            let last = known.last.get(&((&part.kind).into(), name.to_owned()));
            let seen = match store.seen(namespace, name, last, epoch) {
                Seen::Absent { last } => {
                    let unlabelled = known.unlabelled.get(&part.kind, name);
                    unlabelled.map_or(Seen::Absent { last }, |found| Seen::Found(Box::new(found)))
                }
                seen @ (Seen::Found(_) | Seen::NoSuchKind | Seen::Unknown(_)) => seen,
            };
            (store.resource().to_owned(), seen)
        };
        let components: Vec<(String, Seen)> = (0..app.parts.len()).map(component).collect();
        let mut pods: Vec<SeenPod> = self.pods.of(namespace, name).cloned().collect();
        for pod in &mut pods {
            if let Some(copies) = self.copies.get(&(uid.clone(), pod.view.pod.uid.clone())) {
                pod.view.work.copies = copies.clone();
            }
        }
        let owned: Vec<FoundComponent> = self.kinds.owned_by(uid).cloned().collect();
        let of_pods = pods.iter().filter_map(|pod| pod.view.node_name.as_ref());
        let gone = known.last.values().map(|last| &*last.object);
        let of_objects = owned.iter().chain(gone).filter_map(|it| it.node_name.as_ref());
        let nodes: BTreeMap<NodeName, NodeView> = of_pods
            .chain(of_objects)
            .filter_map(|name| {
                let seen = self.nodes.get(name)?;
                // For a node that is not unreachable only the live read of a second look counts, not a Lease that was
                // read earlier.
                let heartbeat =
                    if seen.view.unreachable { self.heartbeats.of(&seen.node) } else { seen.view.heartbeat };
                Some((name.clone(), NodeView { heartbeat, ..seen.view.clone() }))
            })
            .collect();
        Snapshot { components, owned, pods, pods_known: true, nodes, nodes_known: self.nodes_listed }
    }

    /// The stored memory of an AppWrapper, completed with what is known of its components' kinds.
    fn memory(&self, known: &Known) -> Memory {
        let since = |part: &wire::Part| self.kinds.get(&part.kind)?.unserved_since();
        let parts = known.app.parts.iter().enumerate();
        let unserved = parts.filter_map(|(index, part)| Some((index, since(part)?))).collect();
        Memory { unserved, ..known.memory.clone() }
    }

    /// Requests that the claims and Jobs of exactly these pods of an AppWrapper are read.
    fn read_works(&self, app: &Uid, pods: Vec<&PodView>) {
        let mut wanted = self.works.now();
        wanted.retain(|(of, _), _| of != app);
        let keyed = |pod: &PodView| ((app.clone(), pod.pod.uid.clone()), pod.work.clone());
        wanted.extend(pods.into_iter().map(keyed));
        self.works.set(wanted);
    }

    fn on_work(&mut self, pod: WorkKey, copies: Copies) -> Vec<AppWrapperRef> {
        let Some(known) = self.apps.get(&pod.0) else { return Vec::new() };
        let subject = known.app.appwrapper.clone();
        let before = self.copies.insert(pod, copies.clone());
        if before == Some(copies) { Vec::new() } else { vec![subject] }
    }

    fn unwatched(&self, part: &wire::Part) -> Seen {
        if part.is_unreadable() {
            return Seen::NoSuchKind;
        }
        Seen::Unknown(if self.rules.wraps(&part.kind) {
            "its kind is not watched yet".into()
        } else {
            format!("{} is not among appwrapper.wrappedKinds", part.kind)
        })
    }

    /// Where the kinds of its components are served, for the second look.
    fn places(&self, app: &App) -> Places {
        let epoch = self.apps_listed.unwrap_or_default();
        let place = |part: &wire::Part| match self.kinds.get(&part.kind) {
            None => Err(self.unwatched(part)),
            Some(store) => match store.served().filter(|served| served.namespaced) {
                Some(served) => Ok(served.clone()),
                None => Err(store.seen("", "", None, epoch)),
            },
        };
        app.parts.iter().map(|part| (part.kind.clone(), place(part))).collect()
    }
}

impl Recovery for AppWrappers {
    const NAME: &'static str = "appwrapper";
    const LANE: Lane = Lane::LargeObjects;
    type Subject = AppWrapperRef;
    type Why = AppWrapperWhy;
    type Step = Step;
    type News = News;
    type Recheck = Recheck;

    fn watches(&mut self) -> Option<Vec<Feed<News>>> {
        let changed = self.kinds.take_changed();
        if self.declared && !changed {
            return None;
        }
        self.declared = true;
        let (policy, leases, works) = (self.policy.clone(), self.leases.clone(), self.works.clone());
        let mut feeds = vec![
            Feed::watch(APPWRAPPERS, OurAppWrappers(self.rules.clone()), &self.app_watch, News::App)
                .listed_to_lead(),
            Feed::watch(labelled_pods(), LabelledPods(self.policy.clone()), &self.pod_watch, News::Pod)
                .listed_to_lead(),
            Feed::nodes(None, move |node| SeenNode::new(&node.wire, &policy), News::Node),
            Feed::group(COMPONENTS),
            Feed::reads("appwrapper leases", |client, news| {
                let tell = |node, lease| News::Lease { node, lease };
                leases::read(Self::NAME, client, leases, news, tell)
            }),
            Feed::reads("appwrapper works", |client, news| {
                works.run(client, news, |pod, copies| News::Work { pod, copies })
            }),
        ];
        feeds.extend(self.kinds.feeds());
        Some(feeds)
    }

    fn on_change(&mut self, news: News, now: Timestamp) -> Vec<AppWrapperRef> {
        match news {
            News::App(Change::Applied(app)) => self.take(app, Told::Alone).into_iter().collect(),
            News::App(Change::Gone(uid)) => self.drop_app(&uid).into_iter().collect(),
            News::App(Change::Reset { all, revision, .. }) => self.list_apps(all, &revision),
            News::Pod(Change::Applied(pod)) => {
                let woken = self.app_of(&pod);
                // A pod whose label changed now belongs to another AppWrapper.
                let node = pod.view.node_name.clone();
                let before = self.pods.take(pod).and_then(|before| self.app_of(&before));
                node.iter().for_each(|node| self.track_lease(node, now));
                before.into_iter().chain(woken).collect()
            }
            News::Pod(Change::Gone(uid)) => {
                let gone = self.pods.drop(&uid);
                self.copies.retain(|(_, pod), _| *pod != uid);
                let node = gone.as_ref().and_then(|pod| pod.view.node_name.clone());
                node.iter().for_each(|node| self.track_lease(node, now));
                gone.and_then(|pod| self.app_of(&pod)).into_iter().collect()
            }
            News::Pod(Change::Reset { all, revision, .. }) => {
                self.pods.list(all);
                self.copies.retain(|(_, pod), _| self.pods.has(pod));
                self.pods_listed = Some(revision.epoch);
                self.track_leases(now);
                self.subjects()
            }
            News::Node(Change::Applied(node)) => self.see_node(node, now),
            News::Node(Change::Gone(uid)) => self.drop_node(&uid),
            News::Node(Change::Reset { all, .. }) => self.list_nodes(all, now),
            News::Component(kind, news) => self.on_kind(&kind, news, now),
            News::Lease { node, lease } => self.on_lease(&node, lease, now),
            News::Work { pod, copies } => self.on_work(pod, copies),
        }
    }

    fn judge(&self, subject: &AppWrapperRef, now: Timestamp) -> Option<Decision<AppWrapperWhy, Step>> {
        if self.apps_listed.is_none() || self.apps_listed != self.pods_listed || !self.nodes_listed {
            return None;
        }
        let known = self.apps.get(&subject.uid)?;
        let authorship = authorship(&known.app, &self.rules, &known.reviews);
        let view = view(&known.app, self.snapshot(known), self.memory(known), authorship);
        let decision = decide(&view, &self.policy, now);
        let mut works = works_to_read(&view, &self.policy, now);
        works.truncate(WORKS_AT_ONCE);
        self.read_works(&subject.uid, works);
        // Only the log can report this: a status that we do not understand is left as it is.
        if let Verdict::Ignore(why @ AppWrapperWhy::UnknownPhase { .. }) = &decision.verdict {
            tracing::warn!(%subject, %why, "object skipped: unreadable");
        }
        Some(decision)
    }

    fn subjects(&self) -> Vec<AppWrapperRef> {
        self.apps.values().map(|known| known.app.appwrapper.clone()).collect()
    }

    fn recheck(&self, subject: &AppWrapperRef, judged: Timestamp) -> Recheck {
        let decision = self.judge(subject, judged);
        let steps = decision.iter().flat_map(|decision| decision.verdict.actions());
        let only_creates = steps.clone().all(|step| match step {
            Step::CreateComponent { .. } | Step::RecordEvent(_) | Step::AddFinalizer { .. } => true,
            Step::PatchStatus { stakes, .. } => match stakes {
                Stakes::Bookkeeping => true,
                Stakes::Final | Stakes::TakesDown { .. } => false,
            },
            Step::RemoveFinalizer { .. }
            | Step::DeleteComponent { .. }
            | Step::DeletePod { .. }
            | Step::FailPod { .. }
            | Step::AtOnce { .. } => false,
        });
        let known = self.apps.get(&subject.uid);
        let snapshot = known.map(|known| self.snapshot(known)).unwrap_or_default();
        let deletes = steps.clone().flat_map(Step::steps).any(|step| match step {
            Step::DeleteComponent { .. } => true,
            Step::PatchStatus { .. }
            | Step::AddFinalizer { .. }
            | Step::RemoveFinalizer { .. }
            | Step::CreateComponent { .. }
            | Step::DeletePod { .. }
            | Step::FailPod { .. }
            | Step::AtOnce { .. }
            | Step::RecordEvent(_) => false,
        });
        let freed = snapshot.pods.iter().filter(|pod| deletes && pod.view.goes_at_once());
        let freed = freed.map(|pod| pod.view.pod.uid.clone());
        let forced = steps.flat_map(Step::steps).filter_map(|step| match step {
            Step::DeletePod { pod, .. } | Step::FailPod { pod, .. } => Some(pod.uid.clone()),
            Step::PatchStatus { .. }
            | Step::AddFinalizer { .. }
            | Step::RemoveFinalizer { .. }
            | Step::CreateComponent { .. }
            | Step::DeleteComponent { .. }
            | Step::AtOnce { .. }
            | Step::RecordEvent(_) => None,
        });
        let forced = forced.chain(freed).collect();
        // The outcome of an unanswered creation is read before it is sent again.
        let unanswered =
            known.is_some_and(|known| known.memory.creation.values().any(|failure| failure.unanswered));
        let only_creates = only_creates && !unanswered;
        Recheck {
            appwrapper: subject.clone(),
            policy: self.policy.clone(),
            rules: self.rules.clone(),
            memory: known.map(|known| self.memory(known)).unwrap_or_default(),
            last: known.map(|known| known.last.clone()).unwrap_or_default(),
            places: known.map(|known| self.places(&known.app)).unwrap_or_default(),
            snapshot,
            only_creates,
            forced,
            unlabelled: known.map(|known| known.unlabelled.clone()).unwrap_or_default(),
            reviews: known.map(|known| known.reviews.clone()).unwrap_or_default(),
            heartbeats: self.heartbeats.clone(),
        }
    }

    fn ended(&mut self, subject: &AppWrapperRef, end: Ended<'_, Step>, now: Timestamp) -> After {
        let after = After::with(end.view(|step, answer| self.done(subject, step, answer, now)));
        match (end.refused, end.failed) {
            (Some((step, refusal)), _) => after.and(self.refused(subject, step, refusal, now)),
            (None, Some((step, failure))) => after.and(self.failed(subject, step, failure, now)),
            (None, None) => after,
        }
    }
}

#[cfg(test)]
mod tests;
