//! Pods that were there before the Job whose selector matches them. They were passed over when they were seen, so they are
//! listed when such a Job appears. Jobs whose selector Kubernetes made need no such list: their pods come after them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::Client;
use salvor_api::{LabelSelector, Operator, Requirement};
use salvor_recovery::{ids::Uid, job::Stray, objects::JobRef};
use tokio::sync::mpsc;

use super::{
    News,
    wire::{PodWire, SeenPod},
};
use crate::{
    feeds::Outbox,
    live::{self, percent_encode},
    revision::Revision,
};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
const LIST_TIMEOUT: Duration = Duration::from_secs(300);

/// Which pods are looked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    namespace: String,
    /// As it stands in a query.
    selector: String,
}

impl Wanted {
    fn new(namespace: &str, selector: &LabelSelector) -> Self {
        Self { namespace: namespace.to_owned(), selector: query(selector) }
    }
}

/// A change of a pod since a list of pods was requested.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// The pod is gone, or somebody else's.
    Gone,
    /// The pod was in this state, and no Job claimed it.
    Passed(Revision),
}

/// A search for pods.
#[derive(Debug)]
pub(super) struct Lookups {
    ask: mpsc::UnboundedSender<Wanted>,
    asked: Mutex<Option<mpsc::UnboundedReceiver<Wanted>>>,
    /// Lists that were asked for, and whether they must be asked for again.
    under_way: BTreeMap<Wanted, bool>,
    /// Which list a Job waits for, by its UID.
    waiting: BTreeMap<Uid, (Arc<JobRef>, Wanted)>,
    /// Pods of which something was heard since the first of them was asked for, by UID.
    since: BTreeMap<Uid, Since>,
}

impl Default for Lookups {
    fn default() -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        Self {
            ask,
            asked: Mutex::new(Some(asked)),
            under_way: BTreeMap::new(),
            waiting: BTreeMap::new(),
            since: BTreeMap::new(),
        }
    }
}

impl Lookups {
    /// Asks for the pods that a Job's selector matches. One list is for all Jobs with the same selector: what it finds goes to
    /// one of them anyway.
    pub(super) fn ask(&mut self, job: &Arc<JobRef>, selector: &LabelSelector) {
        let wanted = Wanted::new(&job.namespace, selector);
        self.waiting.insert(job.uid.clone(), (job.clone(), wanted.clone()));
        self.request(wanted);
    }

    fn request(&mut self, wanted: Wanted) {
        match self.under_way.get_mut(&wanted) {
            // It may have been read before this Job was known.
            Some(again) => *again = true,
            None => {
                self.under_way.insert(wanted.clone(), false);
                // Nobody listens before the watches run, and then nobody needs to.
                let _ = self.ask.send(wanted);
            }
        }
    }

    /// True if a Job waits for the pods that it may adopt.
    pub(super) fn is_awaited_by(&self, job: &Uid) -> bool {
        self.waiting.contains_key(job)
    }

    /// A Job needs no pods any more.
    pub(super) fn give_up(&mut self, job: &Uid) {
        self.waiting.remove(job);
    }

    /// A pod was passed over in this state.
    pub(super) fn passed_over(&mut self, uid: &Uid, revision: Revision) {
        if !self.under_way.is_empty() {
            self.since.insert(uid.clone(), Since::Passed(revision));
        }
    }

    /// A pod is gone.
    pub(super) fn gone(&mut self, uid: &Uid) {
        if !self.under_way.is_empty() {
            self.since.insert(uid.clone(), Since::Gone);
        }
    }

    /// The watch has listed all pods.
    pub(super) fn listed(&mut self) {
        // Which of the two lists is later nobody can tell of a pod that is not in both.
        self.under_way.values_mut().for_each(|again| *again = true);
    }

    /// The found pods that are still as they were, and the Jobs that have waited for them.
    pub(super) fn found(&mut self, wanted: Wanted, strays: Vec<Stray>) -> (Vec<Stray>, Vec<Arc<JobRef>>) {
        match self.under_way.remove(&wanted) {
            Some(true) => {
                self.request(wanted);
                (Vec::new(), Vec::new())
            }
            Some(false) => {
                let is_true = |stray: &Stray| match self.since.get(&stray.pod.uid) {
                    None => true,
                    Some(Since::Gone) => false,
                    // A pod that was skipped before the Job was known is in the list in the same state or a later one.
                    Some(Since::Passed(revision)) => !revision.is_after(stray.resource_version.revision()),
                };
                let strays = strays.into_iter().filter(is_true).collect();
                if self.under_way.is_empty() {
                    self.since.clear();
                }
                let served = self.waiting.extract_if(.., |_, (_, awaited)| *awaited == wanted);
                (strays, served.map(|(_, (job, _))| job).collect())
            }
            None => (Vec::new(), Vec::new()),
        }
    }

    /// Where the lists that are asked for come in. Only once.
    pub(super) fn requests(&self) -> Option<mpsc::UnboundedReceiver<Wanted>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Lists what is asked for, one list at a time, until nobody listens any more.
pub(super) async fn look_up(
    client: Client,
    mut requests: mpsc::UnboundedReceiver<Wanted>,
    stands_in: bool,
    news: Outbox<News>,
) {
    let mut waiting = VecDeque::new();
    let mut pause = FIRST_RETRY;
    loop {
        let wanted = match waiting.pop_front() {
            Some(wanted) => wanted,
            None => match requests.recv().await {
                Some(wanted) => wanted,
                None => return,
            },
        };
        let listed = tokio::time::timeout(LIST_TIMEOUT, list(&client, &wanted, stands_in)).await;
        let error = match listed {
            Ok(Ok(strays)) => {
                pause = FIRST_RETRY;
                if news.send(News::Found { wanted, strays }).await.is_err() {
                    return;
                }
                continue;
            }
            Ok(Err(error)) => live::brief(&error),
            Err(_) => "it took too long".to_owned(),
        };
        tracing::warn!(
            namespace = wanted.namespace,
            error,
            "pods that a Job may adopt could not be listed; tried again"
        );
        // Others have their turn first.
        while let Ok(next) = requests.try_recv() {
            waiting.push_back(next);
        }
        waiting.push_back(wanted);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_RETRY);
    }
}

async fn list(client: &Client, wanted: &Wanted, stands_in: bool) -> kube::Result<Vec<Stray>> {
    let path = format!("/api/v1/namespaces/{}/pods", wanted.namespace);
    let query = format!("&labelSelector={}", percent_encode(&wanted.selector));
    let strays = live::list(client, &path, &query, |wire: PodWire| match SeenPod::new(wire, stands_in) {
        SeenPod::Stray(stray) => Some(*stray),
        SeenPod::OfJob { .. } | SeenPod::Bare { .. } => None,
    });
    strays.await
}

/// A selector as it stands in a query.
fn query(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let requirements = selector.match_expressions.iter().map(|Requirement { key, operator, values }| {
        let values = values.join(",");
        match operator {
            Operator::In => format!("{key} in ({values})"),
            Operator::NotIn => format!("{key} notin ({values})"),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        }
    });
    labels.chain(requirements).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_is_asked_for_as_the_api_reads_it() {
        let selector = serde_json::from_value(json!({
            "matchLabels": {"a": "1", "b.c/d": ""},
            "matchExpressions": [
                {"key": "e", "operator": "In", "values": ["1", "2"]},
                {"key": "f", "operator": "NotIn", "values": ["3"]},
                {"key": "g", "operator": "Exists"},
                {"key": "h", "operator": "DoesNotExist"},
            ],
        }));
        assert_eq!(query(&selector.unwrap()), "a=1,b.c/d=,e in (1,2),f notin (3),g,!h");
    }
}
