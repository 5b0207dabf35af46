//! Looks up pods that existed before the Job whose selector matches them. They were skipped when they were seen, so
//! they are listed when such a Job appears. Jobs with a generated selector need no lookup: their pods are created after
//! them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::Client;
use salvor_api::{LabelSelector, Operator, Requirement};
use salvor_recovery::{ids::Uid, job::Stray, objects::JobRef};
use tokio::sync::mpsc;

use crate::{
    client::{
        live::{self, percent_encode},
        revision::Revision,
    },
    recoveries::job::{
        news::{News, Wanted},
        wire::{PodWire, SeenPod},
    },
    watch_set::feeds::Outbox,
};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
const LIST_TIMEOUT: Duration = Duration::from_secs(300);

impl Wanted {
    fn new(namespace: &str, selector: &LabelSelector) -> Self {
        Self { namespace: namespace.to_owned(), selector: query(selector) }
    }
}

/// A change of a pod since a lookup was requested.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// The pod is gone, or owned by another controller.
    Gone,
    /// The pod was in this state, and no Job claimed it.
    Passed(Revision),
}

#[derive(Debug)]
pub(crate) struct Lookups {
    ask: mpsc::UnboundedSender<Wanted>,
    asked: Mutex<Option<mpsc::UnboundedReceiver<Wanted>>>,
    /// Requested lists, and whether they must be repeated.
    under_way: BTreeMap<Wanted, bool>,
    /// The list that each Job waits for, by the Job's UID.
    waiting: BTreeMap<Uid, (Arc<JobRef>, Wanted)>,
    /// Pods that changed since the first list was requested, by UID.
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
    /// Requests the pods that a Job's selector matches. Jobs with the same selector share one list, because any of them
    /// may adopt a pod.
    pub(crate) fn ask(&mut self, job: &Arc<JobRef>, selector: &LabelSelector) {
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
                // There is no receiver before the watches run, and then none is needed.
                let _ = self.ask.send(wanted);
            }
        }
    }

    pub(crate) fn is_awaited_by(&self, job: &Uid) -> bool {
        self.waiting.contains_key(job)
    }

    pub(crate) fn give_up(&mut self, job: &Uid) {
        self.waiting.remove(job);
    }

    /// Records that a pod was skipped in this state.
    pub(crate) fn passed_over(&mut self, uid: &Uid, revision: Revision) {
        if !self.under_way.is_empty() {
            self.since.insert(uid.clone(), Since::Passed(revision));
        }
    }

    pub(crate) fn gone(&mut self, uid: &Uid) {
        if !self.under_way.is_empty() {
            self.since.insert(uid.clone(), Since::Gone);
        }
    }

    /// The watch has listed all pods.
    pub(crate) fn listed(&mut self) {
        // For a pod that is in only one of the two lists, it is unknown which list is later.
        self.under_way.values_mut().for_each(|again| *again = true);
    }

    /// The found pods that have not changed since, and the Jobs that waited for them.
    pub(crate) fn found(&mut self, wanted: Wanted, strays: Vec<Stray>) -> (Vec<Stray>, Vec<Arc<JobRef>>) {
        match self.under_way.remove(&wanted) {
            Some(true) => {
                self.request(wanted);
                (Vec::new(), Vec::new())
            }
            Some(false) => {
                let is_true = |stray: &Stray| match self.since.get(&stray.pod.uid) {
                    None => true,
                    Some(Since::Gone) => false,
                    // A pod that was skipped before the Job was known is in the list in the same or a later state.
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

    /// The receiver of the requested lists. Available only once.
    pub(crate) fn requests(&self) -> Option<mpsc::UnboundedReceiver<Wanted>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Runs the requested lists, one at a time, until the receiver is gone.
pub(crate) async fn look_up(
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
        tracing::warn!(namespace = wanted.namespace, error, "pod list failed, retrying");
        // Let other requests go first.
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

/// A selector as a query parameter.
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
