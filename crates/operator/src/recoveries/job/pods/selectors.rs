//! Finds the Job that may adopt a pod without a controller, without checking every Job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use salvor_api::{LabelSelector, Labels, Operator, Requirement};
use salvor_recovery::{ids::Uid, objects::JobRef};

/// The labels of generated selectors. Their value is the Job's UID, so no pod has them before the Job exists.
const CONTROLLER_UID: [&str; 2] = ["batch.kubernetes.io/controller-uid", "controller-uid"];
/// Limit on the Jobs that are checked for one pod. A selector is indexed by its rarest label, so only a user who
/// provokes it reaches this limit.
const MOST_ASKED: usize = 256;
/// A requirement with more values is indexed by its key alone.
const MOST_VALUES: usize = 16;

/// The UID of the Job that a pod was created for, if its labels name it.
pub(crate) fn made_for(labels: &Labels) -> Option<&str> {
    CONTROLLER_UID.into_iter().find_map(|key| labels.get(key))
}

/// True if no pod can have matched a selector before its Job existed.
pub(crate) fn is_generated(job: &JobRef, selector: &LabelSelector) -> bool {
    CONTROLLER_UID
        .into_iter()
        .any(|key| selector.match_labels.get(key).is_some_and(|uid| job.uid == uid.as_str()))
}

/// Where a selector is indexed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Label(String, String),
    Key(String),
    /// The selector requires no label.
    Anywhere,
}

#[derive(Debug)]
struct Entry {
    job: Arc<JobRef>,
    selector: LabelSelector,
    places: Vec<Place>,
}

/// The selectors of one namespace, indexed by what they require. All sets contain UIDs.
#[derive(Debug, Default)]
struct Space {
    by_label: BTreeMap<String, BTreeMap<String, BTreeSet<Uid>>>,
    by_key: BTreeMap<String, BTreeSet<Uid>>,
    anywhere: BTreeSet<Uid>,
}

impl Space {
    fn with_label(&self, key: &str, value: &str) -> Option<&BTreeSet<Uid>> {
        self.by_label.get(key)?.get(value)
    }

    fn at(&mut self, place: &Place) -> &mut BTreeSet<Uid> {
        match place {
            Place::Label(key, value) => {
                self.by_label.entry(key.clone()).or_default().entry(value.clone()).or_default()
            }
            Place::Key(key) => self.by_key.entry(key.clone()).or_default(),
            Place::Anywhere => &mut self.anywhere,
        }
    }

    fn forget(&mut self, place: &Place, uid: &Uid) {
        self.at(place).remove(uid);
        match place {
            Place::Label(key, value) => {
                if let Some(values) = self.by_label.get_mut(key) {
                    values.retain(|known, jobs| known != value || !jobs.is_empty());
                    if values.is_empty() {
                        self.by_label.remove(key);
                    }
                }
            }
            Place::Key(key) => {
                if self.by_key.get(key).is_some_and(BTreeSet::is_empty) {
                    self.by_key.remove(key);
                }
            }
            Place::Anywhere => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.by_label.is_empty() && self.by_key.is_empty() && self.anywhere.is_empty()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Selectors {
    jobs: BTreeMap<Uid, Entry>,
    spaces: BTreeMap<String, Space>,
    /// The number of selectors checked.
    #[cfg(test)]
    pub(crate) asked: std::sync::atomic::AtomicU64,
}

impl Selectors {
    /// Returns whether the Job is new.
    pub(crate) fn insert(&mut self, job: &Arc<JobRef>, selector: &LabelSelector) -> bool {
        if self.jobs.contains_key(&job.uid) {
            return false;
        }
        let space = self.spaces.entry(job.namespace.clone()).or_default();
        let places = places(space, job, selector);
        for place in &places {
            space.at(place).insert(job.uid.clone());
        }
        let entry = Entry { job: job.clone(), selector: selector.clone(), places };
        self.jobs.insert(job.uid.clone(), entry);
        true
    }

    /// Returns whether the Job was there.
    pub(crate) fn remove(&mut self, uid: &Uid) -> bool {
        let Some(Entry { job, places, .. }) = self.jobs.remove(uid) else { return false };
        if let Some(space) = self.spaces.get_mut(&job.namespace) {
            for place in &places {
                space.forget(place, uid);
            }
            if space.is_empty() {
                self.spaces.remove(&job.namespace);
            }
        }
        true
    }

    pub(crate) fn get(&self, uid: &Uid) -> Option<&LabelSelector> {
        self.jobs.get(uid).map(|entry| &entry.selector)
    }

    /// A Job whose selector matches these labels.
    pub(crate) fn claimant(&self, namespace: &str, labels: &Labels) -> Option<Arc<JobRef>> {
        let space = self.spaces.get(namespace)?;
        let by_label = labels.iter().filter_map(|(key, value)| space.with_label(key, value));
        let by_key = labels.iter().filter_map(|(key, _)| space.by_key.get(key));
        let candidates = by_label.chain(by_key).chain([&space.anywhere]).flatten().take(MOST_ASKED);
        let mut entries = candidates.filter_map(|uid| self.jobs.get(uid));
        entries.find(|entry| self.matches(&entry.selector, labels)).map(|entry| entry.job.clone())
    }

    fn matches(&self, selector: &LabelSelector, labels: &Labels) -> bool {
        #[cfg(test)]
        self.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        selector.matches(labels)
    }
}

/// Where to index a selector: under its label that the fewest others require.
fn places(space: &Space, job: &JobRef, selector: &LabelSelector) -> Vec<Place> {
    let label = |key: &str, value: &str| Place::Label(key.to_owned(), value.to_owned());
    if let Some(key) = CONTROLLER_UID.into_iter().find(|key| selector.match_labels.contains_key(*key))
        && is_generated(job, selector)
    {
        return vec![label(key, job.uid.as_str())];
    }
    let crowd = |(key, value): &(&String, &String)| space.with_label(key, value).map_or(0, BTreeSet::len);
    if let Some((key, value)) = selector.match_labels.iter().min_by_key(crowd) {
        return vec![label(key, value)];
    }
    let demands =
        |requirement: &&Requirement| matches!(requirement.operator, Operator::In | Operator::Exists);
    match selector.match_expressions.iter().find(demands) {
        Some(Requirement { key, operator: Operator::In, values }) if values.len() <= MOST_VALUES => {
            values.iter().map(|value| label(key, value)).collect()
        }
        Some(requirement) => vec![Place::Key(requirement.key.clone())],
        None => vec![Place::Anywhere],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use serde_json::{Value, json};

    use super::*;

    fn selector(text: &Value) -> LabelSelector {
        serde_json::from_value(text.clone()).unwrap()
    }

    fn job(namespace: &str, uid: &str) -> Arc<JobRef> {
        Arc::new(JobRef { namespace: namespace.into(), name: uid.into(), uid: uid.into() })
    }

    fn labels(text: &Value) -> Labels {
        serde_json::from_str(&text.to_string()).unwrap()
    }

    #[test]
    fn every_kind_of_selector_is_found_and_forgotten() {
        let many: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let cases = [
            json!({"matchLabels": {"a": "1", "b": "2"}}),
            json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "j"}}),
            json!({"matchLabels": {"controller-uid": "j"}}),
            json!({"matchLabels": {"controller-uid": "another"}}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["0", "1"]}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": many}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
            json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["1"]}]}),
            json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}, {"key": "b", "operator": "Exists"}]}),
        ];
        let matching = labels(&json!({
            "a": "1", "b": "2", "batch.kubernetes.io/controller-uid": "j", "controller-uid": "j",
        }));
        let another = labels(&json!({"x": "1"}));
        for case in cases {
            let mut selectors = Selectors::default();
            let (job, selector) = (job("ns", "j"), selector(&case));
            assert!(selectors.insert(&job, &selector) && !selectors.insert(&job, &selector));
            let found = |selectors: &Selectors, labels: &Labels| selectors.claimant("ns", labels).is_some();
            assert_eq!(found(&selectors, &matching), selector.matches(&matching), "{case}");
            assert_eq!(found(&selectors, &another), selector.matches(&another), "{case}");
            assert!(selectors.claimant("elsewhere", &matching).is_none());
            assert!(selectors.remove(&job.uid) && !selectors.remove(&job.uid));
            assert!(selectors.claimant("ns", &matching).is_none() && selectors.spaces.is_empty(), "{case}");
        }
    }

    #[test]
    fn a_pod_asks_only_jobs_that_demand_one_of_its_labels() {
        let mut selectors = Selectors::default();
        for n in 0..1000 {
            let uid = format!("job-{n}");
            let generated = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
            selectors.insert(&job("ns", &uid), &selector(&generated));
            let run = json!({"matchLabels": {"app": "batch", "run": n.to_string()}});
            selectors.insert(&job("ns", &format!("manual-{n}")), &selector(&run));
        }
        for n in 0..1000 {
            let text = json!({"app": "batch", "run": n.to_string(), "more": "x"});
            assert_eq!(selectors.claimant("ns", &labels(&text)).unwrap().uid, format!("manual-{n}"));
            assert!(selectors.claimant("ns", &labels(&json!({"app": "other"}))).is_none());
        }
        let asked = selectors.asked.load(Ordering::Relaxed);
        assert!(asked <= 2 * 1000, "{asked}");
    }

    /// Nine thousand Jobs with the same label, none of which matches.
    #[test]
    fn who_wants_all_to_be_asked_does_not_get_it() {
        let mut selectors = Selectors::default();
        for n in 0..9000 {
            let odd = json!({
                "matchLabels": {"app": "x"},
                "matchExpressions": [{"key": "n", "operator": "NotIn", "values": ["1", n.to_string()]}],
            });
            selectors.insert(&job("ns", &format!("{n}")), &selector(&odd));
        }
        assert!(selectors.claimant("ns", &labels(&json!({"app": "x", "n": "1"}))).is_none());
        let asked = selectors.asked.load(Ordering::Relaxed);
        assert_eq!(asked, MOST_ASKED as u64);
    }
}
