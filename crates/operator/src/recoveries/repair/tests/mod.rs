//! The view of the repair recovery, without an API.

use salvor_api::config::parse;
use salvor_api::names::repair::CONDITION;
use salvor_recovery::{
    repair::{PodView, Progress, diagnose},
    step::Disrupts,
};
use serde_json::{Value, json};

use super::{store::owners::SeenOwner, subjects::PodSubject, *};
use crate::{
    execute::Written,
    metrics::Metrics,
    time::Time,
    watch_set::{
        feeds::{KindLost, OfKind},
        watch::Moment,
    },
};

mod second_look;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn configuration(rest: &str) -> Arc<Configuration> {
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\ncontrollers: [repair]\n";
    Arc::new(parse(&format!("{head}{rest}")).unwrap())
}

fn node(name: &str, revision: u64, bad: bool) -> Value {
    let since = |time: Timestamp| json!(time);
    json!({
        "metadata": {
            "name": name, "uid": format!("uid-{name}"), "resourceVersion": revision.to_string(),
            "creationTimestamp": at(-100_000), "labels": {"karpenter.sh/nodepool": "gpu"},
        },
        "spec": {"providerID": format!("fake://{name}")},
        "status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": since(at(-99_000)), "lastHeartbeatTime": since(at(revision as i64))},
            {"type": "BadNode", "status": if bad { "False" } else { "True" }, "lastTransitionTime": since(at(0))},
        ]},
    })
}

fn claim(name: &str, provider: &str) -> SeenOwner {
    claim_with(name, provider, &json!({}))
}

/// As `claim`, with more metadata.
fn claim_with(name: &str, provider: &str, metadata: &Value) -> SeenOwner {
    Reader::default().claim(serde_json::from_value(claim_object(name, provider, metadata)).unwrap())
}

fn claim_object(name: &str, provider: &str, metadata: &Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": name, "uid": format!("claim-{name}"), "resourceVersion": "5", "labels": {"karpenter.sh/nodepool": "gpu"}},
        "status": {"providerID": provider, "conditions": [{"type": "Registered", "status": "True"}, {"type": "Initialized", "status": "True"}]},
    });
    for (key, value) in metadata.as_object().unwrap() {
        claim["metadata"][key] = value.clone();
    }
    claim
}

fn policy(name: &str, created: i64, revision: u64, rest: Value, status: Value) -> Policy {
    wire::policy(&policy_object(name, created, revision, rest, status)).unwrap()
}

#[allow(clippy::needless_pass_by_value, reason = "calls read better")]
fn policy_object(name: &str, created: i64, revision: u64, rest: Value, status: Value) -> Value {
    let mut spec = json!({
        "nodeSelector": {"matchLabels": {"karpenter.sh/nodepool": "gpu"}},
        "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "5m"}],
        "unhealthyLimit": "100%", "budgets": [{"nodes": 1}],
    });
    for (key, value) in rest.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "metadata": {
            "name": name, "uid": format!("policy-{name}"), "resourceVersion": revision.to_string(), "generation": 1,
            "creationTimestamp": at(created),
        },
        "spec": spec, "status": status,
    })
}

fn reset<T>(all: Vec<T>) -> Change<T> {
    Change::Reset { all, revision: Moment::from("1"), asked: 0 }
}

struct Bench {
    repairs: Repairs,
}

impl Bench {
    /// Nodes with a NodeClaim each, the first `bad` of them sick from the start, and these policies.
    fn new(nodes: usize, bad: usize, policies: Vec<Policy>) -> Self {
        let mut bench = Self { repairs: Repairs::new(&configuration(""), RepairMetrics::unread()) };
        let name = |number: usize| format!("n{number:04}");
        let views = (0..nodes).map(|number| bench.view(&node(&name(number), 10, number < bad))).collect();
        bench.on_change(News::Node(reset(views)));
        bench.on_change(News::Policy(OfKind::Change(reset(policies))));
        bench.on_change(News::Pool(OfKind::Lost(KindLost::NotServed)));
        let claims = (0..nodes).map(|number| claim(&name(number), &format!("fake://{}", name(number))));
        bench.on_change(News::Claim(OfKind::Change(reset(claims.collect()))));
        for version in 0..2 {
            bench.on_change(News::Machine(version, OfKind::Lost(KindLost::NotServed)));
        }
        bench
    }

    fn view(&self, node: &Value) -> Box<NodeView> {
        Box::new(self.repairs.reader.node(&serde_json::from_value(node.clone()).unwrap()))
    }

    fn on_change(&mut self, news: News) -> Vec<Subject> {
        self.repairs.on_change(news, at(400))
    }

    fn judged(&self, subject: &Subject, now: i64) -> Decision<Why, Step> {
        self.repairs.judge(subject, at(now)).unwrap()
    }

    /// A step was carried out, and nothing else happened.
    fn done(&mut self, subject: &Subject, step: Step, now: i64) {
        let done = [(step, Written::Object("{}".to_owned()))];
        let end = Ended {
            done: &done,
            is_current: true,
            refused: None,
            failed: None,
            worked: true,
            took: std::time::Duration::ZERO,
        };
        self.repairs.ended(subject, end, at(now));
    }

    fn reason(&self, name: &str, now: i64) -> &'static str {
        self.repairs.judge_node(&name.into(), at(now)).unwrap().report().reason
    }
}

fn gpu() -> Subject {
    Subject::Policy(Key::Policy("gpu".into()))
}

#[test]
fn a_turn_is_written_down_before_anything_is_done() {
    let mut bench = Bench::new(4, 1, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    assert_eq!(bench.reason("n0000", 299), "TolerationRunning");
    assert_eq!(bench.reason("n0000", 300), "NotReserved");
    let decision = bench.judged(&gpu(), 300);
    let Some(Step::WritePolicy { status, begins: true, .. }) = decision.verdict.actions().first() else {
        panic!("{:?}", decision.verdict)
    };
    let written = policy("gpu", -10, 8, json!({}), serde_json::to_value(status).unwrap());
    let woken = bench.on_change(News::Policy(OfKind::Change(Change::Applied(written))));
    assert!(woken.contains(&Subject::Node("n0000".into())), "{woken:?}");
    let decision = bench.judged(&Subject::Node("n0000".into()), 300);
    let step = &decision.verdict.actions()[0];
    assert!(matches!(step, Step::TightenTermination { .. }), "{step}");
    assert_eq!(step.effect().disrupts, Disrupts::WhatWasBegun);
}

#[test]
fn heartbeats_wake_nobody_and_changes_wake_node_and_policy() {
    let mut bench = Bench::new(4, 0, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    let beat = bench.view(&node("n0001", 11, false));
    assert_eq!(bench.on_change(News::Node(Change::Applied(beat))), []);
    let sick = bench.view(&node("n0001", 12, true));
    let woken = bench.on_change(News::Node(Change::Applied(sick)));
    assert_eq!(woken, [Subject::Node("n0001".into()), gpu()]);
    let old = bench.view(&node("n0001", 11, false));
    assert_eq!(bench.on_change(News::Node(Change::Applied(old))), [], "what is older than what is known");
}

/// A thousand nodes get a report at once: that must not decide the policy a thousand times.
#[test]
fn our_own_words_on_a_node_wake_nobody_else() {
    let mut bench = Bench::new(4, 2, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    let key = Key::Policy("gpu".into());
    let survey = |bench: &Bench| bench.repairs.survey(&key, bench.repairs.policy(&key).unwrap(), at(400));
    let first = survey(&bench);
    let sick = bench.view(&node("n0001", 11, true));
    let policy = bench.repairs.policy(&key).unwrap();
    let memory = diagnose(&sick, None, policy, &bench.repairs.settings, at(400)).memory;
    assert!(!memory.is_empty());
    let mut told = sick.clone();
    told.progress = Some(Box::new(Progress { told: "Blocked Paused".into(), ..memory }));
    let mut ours = told.conditions[0].clone();
    ours.kind = CONDITION.into();
    told.conditions.push(ours);
    let woken = bench.on_change(News::Node(Change::Applied(told.clone())));
    assert_eq!(woken, [Subject::Node("n0001".into())]);
    assert!(Arc::ptr_eq(&first, &survey(&bench)), "all was surveyed anew");
    assert_eq!(bench.repairs.nodes[&NodeName::from("n0001")], told);

    // A progress record with a different meaning requeues all.
    let mut other = told.clone();
    other.resource_version = "12".into();
    let clocks = &mut other.progress.as_mut().unwrap().sick;
    clocks.values_mut().for_each(|clock| clock.since = at(-500));
    let woken = bench.on_change(News::Node(Change::Applied(other)));
    assert!(woken.contains(&gpu()), "{woken:?}");
    assert!(!Arc::ptr_eq(&first, &survey(&bench)));
}

#[test]
fn of_two_policies_the_older_counts_also_if_it_cannot_be_read() {
    let (older, younger) = (json!({"paused": true}), json!({}));
    let mut bench = Bench::new(
        4,
        1,
        vec![policy("gpu", -10, 7, older, json!({})), policy("young", -5, 8, younger.clone(), json!({}))],
    );
    assert_eq!(bench.reason("n0000", 400), "Paused");
    let decision = bench.judged(&Subject::Policy(Key::Policy("young".into())), 400);
    let Some(Step::WritePolicy { status, .. }) = decision.verdict.actions().first() else { panic!() };
    assert_eq!((status.nodes, status.conditions[2].reason.as_str()), (0, "OlderPolicyCounts"));
    let broken = policy("gpu", -10, 9, json!({"unhealthyLimit": "some"}), json!({}));
    let broken = Policy { generation: 2, ..broken };
    bench.on_change(News::Policy(OfKind::Change(Change::Applied(broken))));
    assert_eq!(bench.reason("n0000", 400), "InvalidPolicy");
    bench.on_change(News::Policy(OfKind::Change(Change::Gone("policy-gpu".into()))));
    assert_eq!(bench.reason("n0000", 400), "NotReserved", "the other one takes over");
    bench.on_change(News::Policy(OfKind::Change(Change::Gone("policy-young".into()))));
    assert_eq!(bench.reason("n0000", 400), "NotSelected");
}

#[test]
fn exactly_one_nodeclaim_stands_for_a_node() {
    let mut bench = Bench::new(2, 1, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    assert_eq!(bench.reason("n0000", 400), "NotReserved");
    bench.on_change(News::Claim(OfKind::Change(Change::Applied(claim("twin", "fake://n0000")))));
    assert_eq!(bench.reason("n0000", 400), "NoBackend");
    bench.on_change(News::Claim(OfKind::Change(Change::Gone("claim-twin".into()))));
    assert_eq!(bench.reason("n0000", 400), "NotReserved");
    bench.on_change(News::Claim(OfKind::Change(Change::Gone("claim-n0000".into()))));
    assert_eq!(bench.reason("n0000", 400), "NoBackend", "it is Karpenter's, and no NodeClaim stands for it");
    bench.on_change(News::Claim(OfKind::Lost(KindLost::Failed("forbidden".into()))));
    assert_eq!(bench.reason("n0001", 400), "Healthy");
    assert_eq!(bench.reason("n0000", 400), "NoBackend");
}

#[test]
fn nothing_is_judged_before_everything_is_known() {
    let mut repairs = Repairs::new(&configuration(""), RepairMetrics::unread());
    let view = repairs.reader.node(&serde_json::from_value(node("n0000", 1, true)).unwrap());
    repairs.on_change(News::Node(reset(vec![Box::new(view)])), at(400));
    let reason = |repairs: &Repairs| repairs.judge_node(&"n0000".into(), at(400)).unwrap().report().reason;
    assert_eq!(reason(&repairs), "NotListed");
    let policies = vec![policy("gpu", -10, 7, json!({}), json!({}))];
    repairs.on_change(News::Policy(OfKind::Change(reset(policies))), at(400));
    repairs.on_change(News::Pool(OfKind::Lost(KindLost::NotServed)), at(400));
    assert_eq!(reason(&repairs), "NotListed", "NodeClaims are not");
    repairs.on_change(News::Claim(OfKind::Lost(KindLost::NotServed)), at(400));
    repairs.on_change(News::Machine(0, OfKind::Lost(KindLost::NotServed)), at(400));
    assert_eq!(reason(&repairs), "NotListed", "Machines of the old version are not");
    repairs.on_change(News::Machine(1, OfKind::Lost(KindLost::NotServed)), at(400));
    assert_eq!(reason(&repairs), "NotReserved", "nothing owns the node");
}

#[test]
fn the_old_version_of_machines_is_watched_where_there_is_no_new_one() {
    let mut repairs = Repairs::new(&configuration(""), RepairMetrics::unread());
    assert_eq!(repairs.watches().unwrap().len(), 9);
    assert!(repairs.watches().is_none());
    repairs.on_change(News::Machine(0, OfKind::Lost(KindLost::NotServed)), at(0));
    assert_eq!(repairs.watches().unwrap().len(), 10);
}

#[test]
fn a_machine_that_does_not_come_up_holds_its_pool() {
    let mut bench = Bench::new(4, 1, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    let mut late = claim("late", "");
    (late.is_up, late.created) = (false, Some(at(0)));
    bench.on_change(News::Claim(OfKind::Change(Change::Applied(late.clone()))));
    assert_eq!(bench.reason("n0000", 599), "NotReserved");
    assert_eq!(bench.reason("n0000", 600), "LaunchFailures");
    // It registers.
    (late.is_up, late.resource_version) = (true, "9".into());
    bench.on_change(News::Claim(OfKind::Change(Change::Applied(late))));
    assert_eq!(bench.reason("n0000", 601), "NotReserved");
}

#[test]
fn a_dry_run_tells_what_would_be_done() {
    let mut bench = Bench::new(4, 1, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    bench.repairs.plans = true;
    let decision = bench.judged(&Subject::Node("n0000".into()), 400);
    assert!(
        matches!(decision.verdict.actions()[0], Step::TightenTermination { .. }),
        "{:?}",
        decision.verdict
    );
}

/// Ten thousand nodes, a thousand of them sick: all are decided from one survey.
#[test]
fn a_large_cluster_is_surveyed_once_and_not_for_each_node() {
    let bench = Bench::new(10_000, 1_000, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    let key = Key::Policy("gpu".into());
    let policy = bench.repairs.policy(&key).unwrap();
    let first = bench.repairs.survey(&key, policy, at(400));
    for number in 0..1_000 {
        bench.judged(&Subject::Node(format!("n{number:04}").into()), 400);
    }
    assert!(Arc::ptr_eq(&first, &bench.repairs.survey(&key, policy, at(400))));
    assert_eq!((first.unhealthy, first.base, first.due.len()), (1_000, 10_000, 1_000));
}

fn pod_on(node: &str) -> (Subject, PodView) {
    let wire = json!({
        "metadata": {"name": "work", "namespace": "default", "uid": "uid-work", "resourceVersion": "20"},
        "status": {"phase": "Running"},
    });
    let view = Reader::default().pod(serde_json::from_value(wire).unwrap());
    (Subject::Pod(Box::new(PodSubject { node: node.into(), pod: view.pod.clone() })), view)
}

/// The repair of n0000, whose Node and NodeClaim are gone, is recorded as over.
fn over(frees: bool) -> Bench {
    let repair = json!({"node": "n0000", "uid": "uid-n0000", "owner": "claim-n0000", "since": at(300)});
    let status = json!({"repairs": [repair]});
    let mut bench = Bench::new(4, 1, vec![policy("gpu", -10, 7, json!({}), status)]);
    bench.repairs.frees = frees;
    bench.on_change(News::Node(Change::Gone("uid-n0000".into())));
    bench.on_change(News::Claim(OfKind::Change(Change::Gone("claim-n0000".into()))));
    let decision = bench.judged(&gpu(), 400);
    let step = decision.verdict.actions()[0].clone();
    let Step::WritePolicy { over, .. } = &step else { panic!("{step}") };
    assert_eq!(over.len(), 1);
    bench.repairs.watches();
    bench.done(&gpu(), step, 401);
    bench
}

#[test]
fn the_pods_of_a_machine_that_is_gone_are_watched_and_freed_until_a_node_has_its_name() {
    let mut bench = over(true);
    assert!(bench.repairs.watches().is_some(), "one watch more");
    assert!(bench.repairs.watches().is_none());
    let (subject, view) = pod_on("n0000");
    let woken =
        bench.on_change(News::Pod { node: "n0000".into(), number: 1, change: reset(vec![view.clone()]) });
    assert_eq!(woken, std::slice::from_ref(&subject));
    let decision = bench.judged(&subject, 402);
    assert_eq!(decision.report().reason, "Orphaned");
    assert_eq!(decision.verdict.actions().last().unwrap().name(), "DeleteOrphanedPod");
    let old = News::Pod { node: "n0000".into(), number: 0, change: Change::Gone("uid-work".into()) };
    assert_eq!(bench.on_change(old), [], "another watch");
    // NodeClaims that cannot be read may exist.
    bench.on_change(News::Claim(OfKind::Lost(KindLost::NotServed)));
    assert_eq!(bench.judged(&subject, 402).report().reason, "MachineMayRun");
    let again = bench.view(&node("n0000", 30, false));
    bench.on_change(News::Node(Change::Applied(again)));
    assert_eq!(bench.judged(&subject, 403).report().reason, "NotDrained");
    assert!(bench.repairs.watches().is_some(), "nobody looks at them any more");
    assert!(bench.repairs.judge(&subject, at(404)).is_none());
}

#[test]
fn the_pods_of_a_machine_that_is_gone_are_left_to_pod_gc_after_a_while() {
    let mut bench = over(true);
    bench.repairs.watches();
    let (subject, view) = pod_on("n0000");
    bench.on_change(News::Pod { node: "n0000".into(), number: 1, change: reset(vec![view]) });
    bench.repairs.on_change(News::Node(Change::Gone("nobody".into())), at(401 + 120));
    bench.repairs.watches();
    assert!(bench.repairs.judge(&subject, at(522)).is_none());
    let mut bench = over(false);
    assert!(bench.repairs.watches().is_none(), "without the eviction recovery nothing is freed");
}

#[test]
fn a_repair_is_counted_also_if_the_node_is_gone_before_the_answer_comes() {
    let metrics = Metrics::new(&Time::system());
    let repair = json!({"node": "n0000", "uid": "uid-n0000", "condition": "BadNode=False", "since": at(300)});
    let turn = |repairs: Value| policy("gpu", -10, 7, json!({}), json!({"repairs": repairs}));
    let mut bench = Bench::new(4, 1, vec![turn(json!([repair]))]);
    bench.repairs.metrics = metrics.own(RepairMetrics::register);
    let hastened = json!({
        "metadata": {"name": "n0000", "uid": "claim-n0000", "resourceVersion": "6", "labels": {"karpenter.sh/nodepool": "gpu"},
            "annotations": {"karpenter.sh/nodeclaim-termination-timestamp": at(300)}},
        "status": {"providerID": "fake://n0000", "conditions": [{"type": "Registered", "status": "True"}, {"type": "Initialized", "status": "True"}]},
    });
    let claim = Reader::default().claim(serde_json::from_value(hastened).unwrap());
    bench.on_change(News::Claim(OfKind::Change(Change::Applied(claim))));
    let subject = Subject::Node("n0000".into());
    let step = bench.judged(&subject, 300).verdict.actions()[0].clone();
    assert_eq!(step.name(), "DeleteNodeOwner", "{step}");

    bench.on_change(News::Node(Change::Gone("uid-n0000".into())));
    bench.on_change(News::Claim(OfKind::Change(Change::Gone("claim-n0000".into()))));
    bench.on_change(News::Policy(OfKind::Change(Change::Applied(turn(json!([]))))));
    bench.done(&subject, step, 301);
    let line = "salvor_repair_started_total{policy=\"gpu\",action=\"Replace\",condition=\"BadNode=False\"} 1";
    assert!(metrics.render().lines().any(|shown| shown == line), "{}", metrics.render());
}

#[test]
fn a_refused_eviction_is_asked_for_less_and_less_often() {
    let mut bench = over(true);
    let uid = Uid::from("uid-work");
    let waits: Vec<i64> = (0..6)
        .map(|_| {
            bench.repairs.pods_on_nodes.refuse(&uid, "a budget".to_owned(), at(0));
            bench.repairs.pods_on_nodes.refusal(&uid).unwrap().until.duration_since(at(0)).as_secs()
        })
        .collect();
    assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
}

#[test]
fn the_brakes_word_is_told_unless_the_node_tells_it_already() {
    let mut bench = Bench::new(4, 1, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    let subject = Subject::Node("n0000".into());
    let held = Held::MaxNodesPerMinute { max_nodes_per_minute: 1, until: at(460) };
    assert!(bench.repairs.held(&subject, &held, at(400)));
    let mut told = node("n0000", 11, true);
    told["metadata"]["annotations"] =
        json!({"repair.salvor.dev/progress": r#"{"told":"Blocked MaxNodesPerMinute"}"#});
    let told = bench.view(&told);
    bench.on_change(News::Node(Change::Applied(told)));
    assert!(!bench.repairs.held(&subject, &held, at(400)));
    let pause = Held::Paused { pause: Box::new(salvor_recovery::pause::Pause::Unread) };
    assert!(!bench.repairs.held(&subject, &pause, at(400)), "nothing can be written");
}

#[test]
fn a_node_with_something_of_ours_is_a_subject_without_a_policy() {
    let mut bench = Bench::new(2, 0, vec![]);
    assert_eq!(bench.repairs.subjects(), []);
    let mut marked = node("n0001", 11, false);
    marked["metadata"]["annotations"] = json!({"repair.salvor.dev/progress": "{}"});
    let marked = bench.view(&marked);
    bench.on_change(News::Node(Change::Applied(marked)));
    assert_eq!(bench.repairs.subjects(), [Subject::Node("n0001".into())]);
    let decision = bench.judged(&Subject::Node("n0001".into()), 400);
    assert!(matches!(decision.verdict.actions(), [Step::Forget { .. }]), "{:?}", decision.verdict);
}

#[test]
fn a_thousand_changes_at_once_wake_each_node_once_and_are_surveyed_once() {
    let mut bench = Bench::new(2_000, 1_000, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    bench.judged(&gpu(), 400);
    assert_eq!(bench.repairs.cache().made, 1);
    let mut woken: Vec<Subject> = Vec::new();
    for number in 1_000..2_000 {
        let sick = bench.view(&node(&format!("n{number:04}"), 11, true));
        woken.extend(bench.on_change(News::Node(Change::Applied(sick))));
    }
    let nodes = |woken: &[Subject]| woken.iter().filter(|it| matches!(it, Subject::Node(_))).count();
    assert_eq!(nodes(&woken), 2_000, "those that were due, and those that changed");
    let each: BTreeSet<Subject> = woken.into_iter().collect();
    assert_eq!(each.len(), 2_001, "and the policy");
    for subject in &each {
        bench.judged(subject, 400);
    }
    assert_eq!(bench.repairs.cache().made, 2, "once for all that changed");
    // From then on they may have to be requeued again.
    let healthy = bench.view(&node("n0000", 12, false));
    assert_eq!(nodes(&bench.on_change(News::Node(Change::Applied(healthy)))), 2_000);
}

/// Karpenter updates every NodeClaim when a pod comes or goes.
#[test]
fn a_nodeclaim_that_says_nothing_new_concerns_nobody_and_its_revision_is_known() {
    let mut bench = Bench::new(4, 1, vec![policy("gpu", -10, 7, json!({}), json!({}))]);
    bench.judged(&gpu(), 400);
    let mut beat = claim("n0000", "fake://n0000");
    beat.resource_version = "6".into();
    assert_eq!(bench.on_change(News::Claim(OfKind::Change(Change::Applied(beat)))), []);
    bench.judged(&gpu(), 400);
    assert_eq!(bench.repairs.cache().made, 1);
    let backend = bench.repairs.backend(bench.repairs.node(&"n0000".into()).unwrap());
    assert_eq!(backend.owner().unwrap().resource_version, "6");
    // A real difference requeues the node and its policy.
    let metadata = json!({"deletionTimestamp": at(400), "resourceVersion": "7"});
    let going = claim_with("n0000", "fake://n0000", &metadata);
    let woken = bench.on_change(News::Claim(OfKind::Change(Change::Applied(going))));
    assert_eq!(woken, [Subject::Node("n0000".into()), gpu()]);
}

/// The bound of the benchmark is 2 kB for a node with its NodeClaim.
#[test]
fn little_is_kept_of_a_node_and_what_nodes_have_in_common_is_kept_once() {
    let sizes = [
        (size_of::<NodeView>(), 208),
        (size_of::<salvor_recovery::repair::ConditionView>(), 32),
        (size_of::<SeenOwner>(), 160),
        (size_of::<Subject>(), 24),
    ];
    for (size, bound) in sizes {
        assert!(size <= bound, "{size} bytes, and {bound} are allowed: {sizes:?}");
    }
    let mut bench = Bench::new(3, 0, vec![]);
    let label = |node: &NodeView| node.labels.get("karpenter.sh/nodepool").unwrap().as_ptr();
    let share = |bench: &Bench, one: &str, other: &str| {
        let (one, other) = (&bench.repairs.nodes[one], &bench.repairs.nodes[other]);
        label(one) == label(other)
            && Arc::ptr_eq(&one.zone, &other.zone)
            && std::ptr::eq(&*one.conditions[0], &*other.conditions[0])
    };
    assert!(share(&bench, "n0000", "n0001"));
    // Its name is the key of several maps.
    let text = |bench: &Bench| bench.repairs.nodes["n0002"].node.name.as_str().as_ptr();
    let before = text(&bench);
    let changed = bench.view(&node("n0002", 12, true));
    bench.on_change(News::Node(Change::Applied(changed)));
    assert_eq!(text(&bench), before);
    assert!(share(&bench, "n0000", "n0002"));
}
