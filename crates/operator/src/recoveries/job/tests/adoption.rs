//! Pods that no Job controls: which are kept, which Job may adopt them, and how little that costs.

use salvor_recovery::Step as _;
use std::{collections::VecDeque, sync::atomic::Ordering};

use salvor_recovery::Reason;
use tokio::sync::mpsc;

use super::*;
use crate::recoveries::job::news::Wanted;

/// A Job with its own selector, or with the generated one.
fn selecting(uid: &str, revision: u64, selector: Option<Value>) -> Value {
    let mut job = job(revision);
    job["metadata"]["uid"] = uid.into();
    job["metadata"]["name"] = uid.into();
    job["spec"]["suspend"] = true.into();
    let generated = json!({"batch.kubernetes.io/controller-uid": uid});
    job["spec"]["selector"] = json!({"matchLabels": selector.unwrap_or(generated)});
    job
}

#[allow(clippy::needless_pass_by_value, reason = "its callers write the labels in place")]
fn bare(uid: &str, revision: u64, labels: Value) -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": uid, "uid": uid, "resourceVersion": revision.to_string(), "labels": labels,
        },
    })
}

/// The change that the watch of pods delivers for this pod.
fn read(jobs: &Jobs, pod: &Value) -> Change<SeenPod> {
    let kept = PodsOfJobs { stands_in: false, interest: jobs.interest.clone() };
    match kept.keep(serde_json::from_value(pod.clone()).unwrap()) {
        Some(seen) => Change::Applied(seen),
        None => Change::Gone(pod["metadata"]["uid"].as_str().unwrap().into()),
    }
}

/// Listed Jobs, and no pods.
#[allow(clippy::needless_pass_by_value, reason = "its callers write the list in place")]
fn listed(all: Vec<Value>) -> Jobs {
    let mut jobs = jobs();
    let all = all.iter().map(ours).collect();
    jobs.on_change(News::Job(Change::Reset { all, revision: "1".into(), asked: 0 }), now());
    jobs.on_change(News::Pod(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    jobs
}

fn adopts(jobs: &Jobs, uid: &str) -> Vec<String> {
    let reference = JobRef { namespace: "ns".into(), name: uid.into(), uid: uid.into() };
    let mut found: Vec<String> =
        jobs.strays.of(&reference.into()).iter().map(|s| s.pod.uid.to_string()).collect();
    found.sort();
    found
}

#[test]
fn pods_that_no_job_may_adopt_are_not_kept() {
    let mut jobs =
        listed(vec![selecting("mine", 1, None), selecting("manual", 1, Some(json!({"app": "x"})))]);
    let labels = [
        json!({}),
        json!({"app": "y"}),
        json!({"app": "x"}),
        json!({"controller-uid": "later"}),
        json!({"batch.kubernetes.io/controller-uid": "mine"}),
    ];
    for (number, labels) in labels.into_iter().enumerate() {
        let pod = bare(&format!("pod-{number}"), 10, labels);
        let news = read(&jobs, &pod);
        jobs.on_change(News::Pod(news), now());
    }
    assert_eq!(
        (adopts(&jobs, "manual"), adopts(&jobs, "mine")),
        (vec!["pod-2".into()], vec!["pod-4".into()])
    );
    let kept: Vec<&str> = jobs.strays.all().map(|stray| stray.pod.uid.as_str()).collect();
    assert_eq!(kept.len(), 3, "{kept:?}");
    // The Job that its label names.
    jobs.on_change(News::Job(Change::Applied(ours(&selecting("later", 11, None)))), now());
    assert!(adopts(&jobs, "later").is_empty(), "the other label is its selector's");
    let legacy = selecting("legacy", 12, Some(json!({"controller-uid": "legacy"})));
    let pod = bare("pod-5", 13, json!({"controller-uid": "legacy"}));
    let news = read(&jobs, &pod);
    jobs.on_change(News::Pod(news), now());
    jobs.on_change(News::Job(Change::Applied(ours(&legacy))), now());
    assert_eq!(adopts(&jobs, "legacy"), ["pod-5"]);
}

#[test]
fn what_one_job_does_not_adopt_another_may() {
    let selector = Some(json!({"app": "x"}));
    let mut jobs = listed(vec![selecting("a", 1, selector.clone()), selecting("b", 1, selector.clone())]);
    let news = read(&jobs, &bare("p", 5, json!({"app": "x"})));
    assert_eq!(jobs.on_change(News::Pod(news), now()).len(), 1, "one of them is asked");
    assert_eq!(adopts(&jobs, "a"), ["p"]);
    let mut finished = selecting("a", 6, selector.clone());
    finished["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    let woken = jobs.on_change(News::Job(Change::Applied(ours(&finished))), now());
    assert_eq!(woken.len(), 2, "{woken:?}");
    assert_eq!((adopts(&jobs, "a").len(), adopts(&jobs, "b")), (0, vec!["p".into()]));
    let mut going = selecting("b", 7, selector);
    going["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:00Z".into();
    jobs.on_change(News::Job(Change::Applied(ours(&going))), now());
    assert_eq!(jobs.strays.all().count(), 0);
}

/// However long the labels of a pod are, little of them is kept.
#[test]
fn long_labels_are_not_kept() {
    let mut long: serde_json::Map<String, Value> =
        (0..10_000).map(|n| (format!("key-{n}"), "x".repeat(60).into())).collect();
    long.insert("app".into(), "x".into());
    let mut jobs = listed(vec![selecting("manual", 1, Some(json!({"app": "x"})))]);
    let news = read(&jobs, &bare("p", 5, Value::Object(long.clone())));
    jobs.on_change(News::Pod(news), now());
    assert_eq!(adopts(&jobs, "manual"), ["p"]);
    assert_eq!(jobs.strays.get(&"p".into()).unwrap().labels.iter().count(), 1);
    let mut owned = pod("q", 6, "Running");
    owned["metadata"]["labels"] = Value::Object(long.clone());
    owned["metadata"]["ownerReferences"][0]["uid"] = "manual".into();
    let Change::Applied(SeenPod::OfJob { pod, .. }) = read(&jobs, &owned) else { panic!() };
    assert_eq!(pod.selected, salvor_recovery::job::Selected::Yes);
    owned["metadata"]["ownerReferences"][0]["uid"] = "unknown".into();
    let Change::Applied(SeenPod::OfJob { pod, .. }) = read(&jobs, &owned) else { panic!() };
    assert_eq!(pod.selected, salvor_recovery::job::Selected::Yes, "nobody is asked, nothing is kept");
}

/// A tenth of the numbers, which is enough to distinguish linear from quadratic.
#[test]
fn many_jobs_and_many_pods_of_one_namespace_do_not_ask_each_other() {
    let (jobs_there, pods_there) = (900, 4500);
    let mut jobs = jobs();
    let all = (0..jobs_there).map(|n| ours(&selecting(&format!("job-{n}"), 1, None))).collect();
    jobs.on_change(News::Job(Change::Reset { all, revision: "1".into(), asked: 0 }), now());
    let labels =
        json!({"app": "batch", "controller-uid": "nobody", "batch.kubernetes.io/controller-uid": "nobody"});
    let mut seen = Vec::new();
    for n in 0..pods_there {
        let Change::Applied(pod) = read(&jobs, &bare(&format!("pod-{n}"), 2, labels.clone())) else {
            panic!()
        };
        seen.push(pod);
    }
    jobs.on_change(News::Pod(Change::Reset { all: seen, revision: "2".into(), asked: 0 }), now());
    for subject in jobs.subjects() {
        let decision = jobs.judge(&subject, now()).unwrap();
        assert_ne!(decision.verdict.why().code(), "Claiming");
        jobs.recheck(&subject, now());
    }
    for n in 0..jobs_there {
        jobs.on_change(News::Job(Change::Gone(format!("job-{n}").into())), now());
    }
    let asked = jobs.interest.state().selectors.asked.load(Ordering::Relaxed);
    assert!(asked <= pods_there, "{asked} selectors were asked");
}

/// A small generator of reproducible numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// A server with pods and at most one Job, a watch of each that lags behind, and a lookup that lags too.
struct Cluster {
    revision: u64,
    pods: BTreeMap<String, Value>,
    job: Option<String>,
    /// The events of the watches, in order; `None` for a deletion.
    pod_events: VecDeque<(String, Option<Value>)>,
    job_events: VecDeque<(String, Option<Value>)>,
    /// Messages that were read but not delivered yet.
    pod_news: VecDeque<News>,
    found: VecDeque<News>,
    requests: mpsc::UnboundedReceiver<Wanted>,
    jobs: Jobs,
}

impl Cluster {
    fn new() -> Self {
        let jobs = listed(Vec::new());
        let requests = jobs.lookups.requests().unwrap();
        Self {
            revision: 1,
            pods: BTreeMap::new(),
            job: None,
            pod_events: VecDeque::new(),
            job_events: VecDeque::new(),
            pod_news: VecDeque::new(),
            found: VecDeque::new(),
            requests,
            jobs,
        }
    }

    fn put(&mut self, uid: &str, matches: bool) {
        self.revision += 1;
        let pod = bare(uid, self.revision, json!({"app": if matches { "x" } else { "y" }}));
        self.pods.insert(uid.to_owned(), pod.clone());
        self.pod_events.push_back((uid.to_owned(), Some(pod)));
    }

    fn happen(&mut self, dice: &mut Dice) {
        let uid = format!("pod-{}", dice.roll(4));
        match dice.roll(12) {
            0..=2 => {
                // The UID of a deleted pod never comes back.
                let uid =
                    if self.pods.contains_key(&uid) { uid } else { format!("pod-new-{}", self.revision) };
                self.put(&uid, dice.roll(2) == 0);
            }
            3 => {
                let known: Vec<String> = self.pods.keys().cloned().collect();
                if !known.is_empty() {
                    self.put(&known[dice.roll(known.len())].clone(), dice.roll(2) == 0);
                }
            }
            4 => {
                let known: Vec<String> = self.pods.keys().cloned().collect();
                if !known.is_empty() {
                    let uid = known[dice.roll(known.len())].clone();
                    self.revision += 1;
                    self.pods.remove(&uid);
                    self.pod_events.push_back((uid, None));
                }
            }
            5 => {
                self.revision += 1;
                match self.job.take() {
                    None => {
                        let uid = format!("manual-{}", self.revision);
                        let job = selecting(&uid, self.revision, Some(json!({"app": "x"})));
                        self.job_events.push_back((uid.clone(), Some(job)));
                        self.job = Some(uid);
                    }
                    Some(uid) => self.job_events.push_back((uid, None)),
                }
            }
            6 => drop(self.on_job()),
            7 => drop(self.read_pod()),
            8 => drop(self.on_pod()),
            9 => drop(self.look_up()),
            10 => drop(self.on_lookup()),
            11 if dice.roll(4) == 0 => self.list(),
            _ => {}
        }
    }

    fn on_job(&mut self) -> Option<()> {
        let (uid, job) = self.job_events.pop_front()?;
        let change = job.map_or_else(|| Change::Gone(uid.into()), |job| Change::Applied(ours(&job)));
        self.jobs.on_change(News::Job(change), now());
        Some(())
    }

    /// The watch reads an event, with the Jobs known by now.
    fn read_pod(&mut self) -> Option<()> {
        let (uid, pod) = self.pod_events.pop_front()?;
        let change = pod.map_or_else(|| Change::Gone(uid.into()), |pod| read(&self.jobs, &pod));
        self.pod_news.push_back(News::Pod(change));
        Some(())
    }

    fn on_pod(&mut self) -> Option<()> {
        let news = self.pod_news.pop_front()?;
        self.jobs.on_change(news, now());
        Some(())
    }

    fn look_up(&mut self) -> Option<()> {
        let wanted = self.requests.try_recv().ok()?;
        let matching = self.pods.values().filter(|pod| pod["metadata"]["labels"]["app"] == "x");
        let strays = matching.filter_map(|pod| match read_pod(&pod.to_string(), false).unwrap() {
            SeenPod::Stray(stray) => Some(*stray),
            _ => None,
        });
        self.found.push_back(News::Found { wanted, strays: strays.collect() });
        Some(())
    }

    fn on_lookup(&mut self) -> Option<()> {
        let news = self.found.pop_front()?;
        self.jobs.on_change(news, now());
        Some(())
    }

    /// The watch of pods restarts with a list.
    fn list(&mut self) {
        self.pod_events.clear();
        let all = self.pods.values().filter_map(|pod| match read(&self.jobs, pod) {
            Change::Applied(seen) => Some(seen),
            _ => None,
        });
        let all = all.collect();
        let revision = self.revision.to_string().as_str().into();
        self.pod_news.push_back(News::Pod(Change::Reset { all, revision, asked: 0 }));
    }

    fn settle(&mut self) {
        loop {
            let steps = [self.on_job(), self.read_pod(), self.on_pod(), self.look_up(), self.on_lookup()];
            if steps.iter().all(Option::is_none) {
                return;
            }
        }
    }
}

/// Pods created before or after their Job, changed or deleted meanwhile, relisted, read early and delivered late: in
/// the end exactly those are kept that the Job may adopt.
#[test]
fn in_every_order_of_events_a_job_finds_the_pods_that_it_may_adopt() {
    for seed in 0..5000 {
        let mut dice = Dice(seed);
        let mut cluster = Cluster::new();
        for _ in 0..40 {
            cluster.happen(&mut dice);
        }
        cluster.settle();
        let truth = cluster.pods.iter().filter(|(_, pod)| pod["metadata"]["labels"]["app"] == "x");
        let truth: Vec<String> =
            truth.filter(|_| cluster.job.is_some()).map(|(uid, _)| uid.clone()).collect();
        assert_eq!(cluster.jobs.strays.all().count(), truth.len(), "seed {seed}");
        let Some(job) = &cluster.job else { continue };
        assert_eq!(adopts(&cluster.jobs, job), truth, "seed {seed}");
        let reference = JobRef { namespace: "ns".into(), name: job.clone(), uid: job.as_str().into() };
        let decision = cluster.jobs.judge(&Subject::Job(reference.into()), now()).unwrap();
        assert_ne!(decision.verdict.why().code(), "FindingPods", "seed {seed}");
    }
}

/// A pod that is created before they are known must not repeat their work.
#[test]
fn nothing_is_done_for_a_job_before_the_pods_are_known_that_were_there_before_it() {
    let mut jobs = listed(Vec::new());
    let mut requests = jobs.lookups.requests().unwrap();
    let news = read(&jobs, &bare("p", 5, json!({"app": "x"})));
    assert!(matches!(news, Change::Applied(SeenPod::Bare { .. })));
    jobs.on_change(News::Pod(news), now());
    let mut manual = selecting("manual", 6, Some(json!({"app": "x"})));
    manual["spec"]["suspend"] = false.into();
    let subject = jobs.on_change(News::Job(Change::Applied(ours(&manual))), now()).remove(0);
    assert_eq!(jobs.judge(&subject, now()).unwrap().verdict.why().code(), "FindingPods");
    let wanted = requests.try_recv().unwrap();
    let Ok(SeenPod::Stray(stray)) = read_pod(&bare("p", 5, json!({"app": "x"})).to_string(), false) else {
        panic!()
    };
    let woken = jobs.on_change(News::Found { wanted, strays: vec![*stray] }, now());
    assert!(woken.contains(&subject));
    assert_eq!(asked(&jobs, &subject), ["AdoptPod"]);
    let generated =
        jobs.on_change(News::Job(Change::Applied(ours(&selecting("other", 7, None)))), now()).remove(0);
    assert_eq!(jobs.judge(&generated, now()).unwrap().verdict.why().code(), "StatusChanged");
    assert!(requests.try_recv().is_err());
}

#[test]
fn a_held_job_is_told_of_once_and_a_pod_that_cannot_be_deleted_each_time() {
    let (mut jobs, subject) = with_job();
    let mut broken = job(2);
    broken["spec"]["completionMode"] = "Indexed".into();
    broken["status"] = json!({"completedIndexes": "zero"});
    jobs.on_change(News::Job(Change::Applied(ours(&broken))), now());
    let told = create(&jobs, &subject);
    assert!(matches!(&told, Step::Mention(note) if note.reason == "UnreadableStatus"), "{told}");
    jobs.done(&subject, &told, &Written::Nothing, now());
    let verdict = jobs.judge(&subject, now()).unwrap().verdict;
    assert_eq!((verdict.name(), verdict.why().code()), ("Ignore", "UnreadableStatus"));

    let mut suspended = job(3);
    suspended["spec"]["suspend"] = true.into();
    let names = json!({"job.salvor.dev/used-pod-names": "{\"numbers\":\"0-9\"}"});
    suspended["metadata"]["annotations"] = names;
    jobs.on_change(News::Job(Change::Applied(ours(&suspended))), now());
    let mut running = pod("a", 5, "Running");
    running["metadata"]["finalizers"] = json!([]);
    jobs.on_change(applied(&running), now());
    let step = create(&jobs, &subject);
    assert_eq!(step.name(), "DeletePod");
    let Refused::Judged(Some(note)) =
        jobs.refused(&subject, &step, &Refusal::saying("denied by a webhook"), now())
    else {
        panic!()
    };
    assert_eq!(
        (&*note.reason, note.message.as_str()),
        ("FailedDelete", "Error deleting: denied by a webhook")
    );
    assert_eq!(asked(&jobs, &subject), ["PatchJobStatus"], "the rest goes on");
    assert!(jobs.jobs["job"].memory.deletion_paused_until > Some(now()));
}
