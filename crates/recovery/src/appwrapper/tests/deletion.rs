//! Deletion with grace periods, then by force, and what blocks it.

use super::*;

fn stuck_pods() -> Cluster {
    let mut it = Cluster::job().running();
    it.stuck_pods = true;
    it.view.suspend = true;
    it.settle();
    it
}

#[test]
fn quota_is_kept_until_the_last_pod_is_gone() {
    let mut it = stuck_pods();
    assert_eq!(it.phase(), Phase::Suspending);
    assert!(matches!(it.view.components[0].seen, Seen::Absent { .. }), "the Job is gone, its pods are not");
    it.view.pods.pop();
    it.run_for(300);
    assert!(it.holds("QuotaReserved") && it.holds("ResourcesDeployed"));
    it.view.pods.clear();
    it.settle();
    assert!(!it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"));
    assert_eq!(it.condition("DeletingResources"), ("False", "DeletionComplete", ""));
    let component = &it.view.status.component_status[0].conditions[0];
    assert_eq!((component.status.as_str(), component.reason.as_str()), ("False", "CompononetDeleted"));
}

#[test]
fn force_comes_after_its_grace_and_not_before() {
    let mut it = stuck_pods();
    let begun = it.view.status.condition("DeletingResources").unwrap().last_transition_time;
    assert_eq!(it.judge().verdict.wake_at(), Some(crate::moments::after(begun, secs(600))));
    it.run_for(599);
    assert_eq!(it.view.pods.len(), 2);
    it.run_for(1);
    assert_eq!(it.phase(), Phase::Suspended);
    assert_eq!(it.deeds.iter().filter(|it| it.starts_with("force delete pod")).count(), 2);
}

#[test]
fn the_clock_of_force_goes_on_when_a_reset_is_suspended() {
    let mut it = Cluster::job().running();
    it.stuck_pods = true;
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(300);
    assert_eq!(it.phase(), Phase::Resetting);
    it.view.suspend = true;
    it.run_for(299);
    assert_eq!((it.phase(), it.view.pods.len()), (Phase::Suspending, 2));
    it.run_for(1);
    assert_eq!(it.phase(), Phase::Suspended);
}

#[test]
fn a_later_deletion_has_a_clock_of_its_own() {
    let mut it = Cluster::job().running();
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(92);
    it.set_pods(PodPhase::Running);
    it.run_for(5000);
    it.stuck_pods = true;
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(599);
    assert_eq!(it.view.pods.len(), 2);
    it.run_for(1);
    assert!(it.view.pods.is_empty());
}

#[test]
fn finalizers_hold_it_and_are_named() {
    let mut it = Cluster::job().running();
    it.stuck_objects = true;
    it.found(0).finalizers = vec!["example.com/keep".into()];
    it.view.suspend = true;
    it.run_for(3600);
    assert!(it.holds("QuotaReserved"), "nobody removes finalizers, and what exists is not called gone");
    let decision = it.judge();
    assert!(matches!(decision.verdict, Verdict::Ignore(AppWrapperWhy::Deleting { forced: true, .. })));
    let text = decision.verdict.why().to_string();
    assert!(text.contains("Job c0") && text.contains("example.com/keep"), "{text}");
    let deletes = it.deeds.iter().filter(|it| it.contains("delete")).count();
    assert_eq!(deletes, 1, "with a grace of 0 another delete changes nothing: {:?}", it.deeds);
}

#[test]
fn a_pod_that_holds_it_is_named_with_its_node() {
    let mut it = stuck_pods();
    it.view.pods[0].finalizers = vec!["batch.kubernetes.io/job-tracking".into()];
    let text = it.judge().verdict.why().to_string();
    assert!(text.contains("on node n1") && text.contains("job-tracking"), "{text}");
    it.settle();
}

#[test]
fn what_is_not_ours_is_neither_deleted_nor_waited_for() {
    let mut it = Cluster::job().running();
    // Another owner's object under the component's name, and a pod of a previous AppWrapper with the same name.
    it.found(0).owner_uid = Some("other".into());
    it.view.pods = vec![cluster::pod("old", 9, PodPhase::Running, at(-100))];
    it.view.suspend = true;
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
    assert!(it.deeds.iter().all(|it| !it.contains("delete")), "{:?}", it.deeds);
}

#[test]
fn a_kind_that_is_not_served_any_more_does_not_hold_the_deletion() {
    let mut it = Cluster::job().running();
    it.view.deleting = true;
    it.view.components[0].seen = Seen::NoSuchKind;
    it.view.pods.clear();
    it.settle();
    assert!(it.gone);
}

#[test]
fn a_kind_that_cannot_be_read_holds_the_deletion() {
    let mut it = Cluster::job().running();
    it.view.deleting = true;
    it.view.components[0].seen = Seen::Unknown("forbidden".into());
    it.view.pods.clear();
    it.run_for(3600);
    assert!(!it.gone && it.holds("ResourcesDeployed"));
    assert!(it.judge().verdict.why().to_string().contains("forbidden"));
}

#[test]
fn deletion_of_a_running_one_goes_through_terminating() {
    let mut it = Cluster::job().running();
    it.view.deleting = true;
    it.settle();
    assert!(it.gone);
    assert_eq!(it.phases.last(), Some(&Phase::Terminating));
    assert_eq!(it.condition("ResourcesDeployed"), ("False", "Terminating", "Resources successfully deleted"));
    assert_eq!(it.condition("QuotaReserved"), ("False", "Terminating", "No resources deployed"));
}

#[test]
fn deletion_waits_for_no_delay() {
    for phase in [Phase::Failed, Phase::Succeeded, Phase::Resetting] {
        let mut it = phases::in_phase(&phase);
        it.view.deleting = true;
        it.settle();
        assert!(it.gone, "{phase}");
    }
}

/// One decision requests all deletions, and none waits for another.
#[test]
fn twenty_components_are_deleted_in_one_go() {
    let mut it = Cluster::of(&vec![(job(), 1); 20]).running();
    it.view.suspend = true;
    let suspends = it.judge();
    it.carry_out(&suspends, usize::MAX);
    let deletes = it.judge();
    let [one] = deletes.verdict.actions() else { panic!("{:?}", deletes.verdict) };
    assert_eq!(one.steps().len(), 20);
    assert!(!one.changes_what_was_judged(), "one look serves all");
}

#[test]
fn a_thousand_pods_are_forced_in_portions() {
    let mut it = Cluster::of(&[(job(), 1000)]).running();
    it.stuck_pods = true;
    it.view.deleting = true;
    it.settle();
    it.after(600);
    assert_eq!(it.judge().verdict.actions()[0].steps().len(), 50);
    it.settle();
    assert!(it.gone);
}

/// Work that must not run twice.
fn stateful() -> Work {
    let set = Owner { kind: "StatefulSet".into(), group: "apps".into(), controls: true };
    Work { owners: vec![set], ..cluster::work() }
}

/// The control plane lost the node at that time, and its kubelet is silent.
fn lost(since: Timestamp) -> NodeView {
    NodeView { unreachable: true, heartbeat: silent(), lost: Some(since), ..NodeView::default() }
}

/// A workload whose pods do not end, on a node that was just lost.
fn on_a_lost_node(work: &Work) -> Cluster {
    let mut it = Cluster::job().running();
    it.view.pods.iter_mut().for_each(|pod| pod.work = work.clone());
    it.stuck_pods = true;
    it.view.nodes.insert("n1".into(), lost(it.now));
    it
}

fn off() -> Machine {
    Machine::Off(Proof::Taint("node.kubernetes.io/out-of-service=nodeshutdown:NoExecute".into()))
}

type Happens = fn(&mut Cluster);

fn fails(it: &mut Cluster) {
    it.says(0, ComponentState::Failed { message: String::new() });
}

#[test]
fn a_pod_that_must_not_run_twice_waits_for_its_machine_whatever_deletes_it() {
    let ways: [(&str, Happens); 5] = [
        ("reset", fails),
        ("lost node", |_| ()),
        ("suspended", |it| it.view.suspend = true),
        ("deleted", |it| it.view.deleting = true),
        ("failed", |it| {
            it.view.annotations = annotated(&[("retryLimit", "0")]);
            fails(it);
        }),
    ];
    for (way, happens) in ways {
        let mut it = on_a_lost_node(&stateful());
        let since = it.now;
        happens(&mut it);
        it.run_for(86_400);
        assert_eq!((it.view.pods.len(), it.gone), (2, false), "{way}");
        assert!(it.holds("QuotaReserved") && it.holds("ResourcesDeployed"), "{way}");
        let (status, reason, message) = it.condition("DeletingResources");
        assert_eq!((status, reason), ("True", "MachineMayRun"), "{way}");
        for words in [
            "pod ns/pod-",
            "node n1",
            &format!("since {since}"),
            "StatefulSet.apps",
            "salvor evict n1",
            "kubectl taint nodes n1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            "kueue.x-k8s.io/safe-to-forcefully-terminate=true",
            "The same holds for 1 more.",
        ] {
            assert!(message.contains(words), "{way}: {words} is not in {message}");
        }
        assert_eq!(it.events.iter().filter(|it| it.starts_with("MachineMayRun: ")).count(), 1, "{way}");
        assert_eq!(it.code(), "MachineMayRun", "{way}");
        assert!(it.judge().verdict.why().what_would_change_it().contains("salvor evict n1"));
    }
}

#[test]
fn a_machine_that_is_off_and_consent_and_the_end_of_a_pod_end_the_wait() {
    let ways: [(&str, Happens, &[&str]); 4] = [
        ("proof", |it| it.view.nodes.get_mut("n1").unwrap().machine = off(), &["fail", "force"]),
        (
            "consent",
            |it| {
                let source = ConsentSource::Annotation("a");
                it.view.pods.iter_mut().for_each(|pod| pod.work.consent = Some(source));
            },
            &["fail", "force"],
        ),
        ("its end", |it| it.set_pods(PodPhase::Succeeded), &["force"]),
        (
            "the node's return",
            |it| {
                it.view.nodes.insert("n1".into(), NodeView::default());
                it.view.pods.clear();
            },
            &[],
        ),
    ];
    for (way, happens, deeds) in ways {
        let mut it = on_a_lost_node(&stateful());
        it.view.suspend = true;
        it.run_for(3_600);
        assert_eq!(it.condition("DeletingResources").1, "MachineMayRun", "{way}");
        let before = it.deeds.len();
        happens(&mut it);
        it.settle();
        assert_eq!((it.phase(), it.holds("QuotaReserved")), (Phase::Suspended, false), "{way}");
        assert_eq!(it.condition("DeletingResources"), ("False", "DeletionComplete", ""), "{way}");
        let done: Vec<&str> = it.deeds[before..].iter().filter_map(|it| it.split(' ').next()).collect();
        let expected: Vec<&str> = deeds.iter().flat_map(|deed| [*deed; 2]).collect();
        assert_eq!(done, expected, "{way}: the status comes first");
    }
}

/// The condition shows the current state, even when the reason to wait is over and something else is left.
#[test]
fn a_deletion_that_waits_for_no_machine_any_more_says_so() {
    let mut it = on_a_lost_node(&stateful());
    it.view.suspend = true;
    it.run_for(3_600);
    let begun = it.view.status.condition("DeletingResources").unwrap().last_transition_time;
    it.view.nodes.insert("n1".into(), NodeView::default());
    it.settle();
    assert_eq!(it.condition("DeletingResources"), ("True", "DeletionInitiated", ""));
    assert_eq!(it.view.status.condition("DeletingResources").unwrap().last_transition_time, begun);
    assert_eq!((it.code(), it.view.pods.len()), ("Deleting", 2), "its kubelet lives, and ends them");
}

#[test]
fn a_pod_on_a_lost_node_that_may_run_twice_is_marked_failed_before_it_is_deleted() {
    let mut it = on_a_lost_node(&cluster::work());
    it.view.suspend = true;
    it.settle();
    it.after(600);
    let decision = it.judge();
    let steps = decision.verdict.actions()[0].steps();
    let Step::FailPod { conditions, .. } = &steps[0] else { panic!("{steps:?}") };
    assert_eq!(
        (conditions[0].kind, conditions[0].reason),
        ("DisruptionTarget", "AppWrapperDeletionBySalvor")
    );
    assert!(conditions[0].message.contains("node n1"), "{conditions:?}");
    // An existing disruption reason is left as it is.
    it.view.pods[0].disruption = Some("DeletionByTaintManager".into());
    let decision = it.judge();
    let of_others = |step: &Step| matches!(step, Step::FailPod { conditions, .. } if conditions.is_empty());
    assert_eq!(decision.verdict.actions()[0].steps().iter().filter(|it| of_others(it)).count(), 1);
    // A crash after the first write does not change the outcome.
    it.carry_out(&decision, usize::MAX);
    assert!(it.view.pods.iter().all(|pod| pod.phase == PodPhase::Failed));
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
}

/// The ten minutes count from the loss of the node, not from the reset. But a pod is deleted with its grace period
/// first.
#[test]
fn on_a_lost_node_force_counts_from_the_loss() {
    for (lost_before, expected) in [(400, 200), (3_600, 0), (-100, 600)] {
        let mut it = on_a_lost_node(&cluster::work());
        it.view.suspend = true;
        it.settle();
        let begun = it.view.status.condition("DeletingResources").unwrap().last_transition_time;
        it.view.nodes.insert("n1".into(), lost(crate::moments::after(begun, secs(-lost_before))));
        if expected > 0 {
            assert_eq!(it.judge().verdict.wake_at(), Some(crate::moments::after(begun, secs(expected))));
        }
        it.run_for(expected);
        it.settle();
        assert_eq!(it.phase(), Phase::Suspended, "lost {lost_before} s before");

        let mut it = on_a_lost_node(&cluster::work());
        it.view.nodes.insert("n1".into(), lost(at(-3_600)));
        it.view.suspend = true;
        it.settle();
        assert_eq!(it.phase(), Phase::Suspended, "the Job is gone, and with it nobody waits");
    }
    // It was not deleted yet.
    let mut it = on_a_lost_node(&cluster::work());
    it.view.nodes.insert("n1".into(), lost(at(-3_600)));
    it.view.suspend = true;
    let suspends = it.judge();
    it.carry_out(&suspends, usize::MAX);
    let asks = it.judge();
    assert!(
        matches!(asks.verdict.actions(), [Step::DeleteComponent { manner: Manner::Graceful, .. }]),
        "{asks:?}"
    );
}

/// The kubelet sent a heartbeat after the control plane had lost its node.
#[test]
fn a_node_is_lost_when_its_kubelet_was_last_heard_of() {
    let lease = Some(NodeLease::new(at(50), secs(40)));
    let node = NodeView { heartbeat: Heartbeat::UNREAD.then(lease, at(60)), ..lost(at(10)) };
    assert_eq!((node.silent_since(), lost(at(10)).silent_since()), (Some(at(50)), Some(at(10))));
    assert_eq!(NodeView::default().silent_since(), None);
}

/// The kubelet carries out the deletion, and has the pod's own grace period for that. Only after that are pods forced,
/// and only those that may run twice.
#[test]
fn on_a_living_node_nothing_is_forced_before_the_pods_own_grace_is_over() {
    let renewed = Heartbeat::UNREAD.then(Some(NodeLease::new(at(100_000), secs(100_000))), at(0));
    for node in
        [NodeView::default(), NodeView { unreachable: true, heartbeat: renewed, ..NodeView::default() }]
    {
        for (work, terminated, is_forced) in [
            (cluster::work(), false, true),
            (stateful(), false, false),
            (stateful(), true, true),
            (Work { copies: Copies::Forbidden("claim".into()), ..cluster::work() }, false, false),
        ] {
            let mut it = on_a_lost_node(&work);
            it.view.nodes.insert("n1".into(), node.clone());
            it.view.suspend = true;
            it.settle();
            let over = crate::moments::after(it.now, secs(3_600));
            for pod in &mut it.view.pods {
                pod.deletion = Some(Deletion { timestamp: over, grace_seconds: Some(3_600) });
            }
            it.run_for(3_599);
            assert_eq!(it.view.pods.len(), 2, "{work:?}");
            it.view.pods.iter_mut().for_each(|pod| pod.terminated = terminated);
            it.run_for(3_600);
            assert_eq!(it.view.pods.is_empty(), is_forced, "{work:?}");
            assert!(!it.deeds.iter().any(|it| it.starts_with("fail")), "a living kubelet tells the status");
            assert_ne!(it.condition("DeletingResources").1, "MachineMayRun");
        }
    }
}

/// These pods were never deleted: their owner is gone without a trace.
#[test]
fn pods_that_nobody_asked_to_end_are_asked_first() {
    let mut it = on_a_lost_node(&cluster::work());
    it.view.nodes.insert("n1".into(), NodeView::default());
    it.view.suspend = true;
    it.settle();
    it.view.pods.iter_mut().for_each(|pod| pod.deletion = None);
    it.run_for(600);
    assert_eq!(it.deeds.iter().filter(|it| it.starts_with("delete pod")).count(), 2, "{:?}", it.deeds);
    assert_eq!(it.view.pods.len(), 2);
    it.run_for(31);
    assert_eq!(it.phase(), Phase::Suspended);
}

/// A bare Pod is a pod: its deletion as a component does not bypass the gate.
#[test]
fn a_bare_pod_is_forced_as_a_pod() {
    for (work, is_forced) in [(cluster::work(), true), (stateful(), false)] {
        let mut it = Cluster::two_pods().running();
        it.view.pods.iter_mut().for_each(|pod| pod.work = work.clone());
        it.stuck_pods = true;
        it.view.nodes.insert("n1".into(), lost(it.now));
        it.view.suspend = true;
        it.settle();
        it.run_for(601);
        it.settle();
        assert_eq!(it.phase() == Phase::Suspended, is_forced, "{:?}", it.deeds);
        assert!(!it.deeds.iter().any(|it| it.starts_with("Forceful")), "{:?}", it.deeds);
        assert_eq!(
            it.deeds.iter().filter(|it| it.starts_with("fail pod")).count(),
            if is_forced { 2 } else { 0 }
        );
    }
}

/// The API takes a pod whose spec asks for no grace away at once: on a silent node its deletion is force, whichever controller sends it.
#[test]
fn a_bare_pod_without_grace_is_given_a_second_where_two_of_it_must_not_run() {
    let unread = Work { copies: Copies::Unread, ..cluster::work() };
    let annotation = ConsentSource::Annotation("a");
    for (case, work, machine, manner) in [
        ("at most one", stateful(), Machine::MayRun, Manner::Briefly),
        ("unread", unread, Machine::MayRun, Manner::Briefly),
        ("off", stateful(), off(), Manner::Graceful),
        ("consent", Work { consent: Some(annotation), ..stateful() }, Machine::MayRun, Manner::Graceful),
        ("may run twice", cluster::work(), Machine::MayRun, Manner::Graceful),
    ] {
        let mut it = Cluster::of(&[(bare_pod(), 1)]).running();
        (it.view.pods[0].work, it.view.pods[0].without_grace) = (work, true);
        it.found(0).without_grace = true;
        it.stuck_pods = true;
        it.view.nodes.insert("n1".into(), NodeView { machine, ..lost(it.now) });
        it.view.suspend = true;
        let suspends = it.judge();
        it.carry_out(&suspends, usize::MAX);
        let asked = |it: &Cluster| {
            let decision = it.judge();
            let [Step::DeleteComponent { manner, .. }] = decision.verdict.actions() else {
                panic!("{case}: {decision:?}")
            };
            *manner
        };
        assert_eq!(asked(&it), manner, "{case}");
        let mut unlabelled = it.clone();
        unlabelled.view.pods.clear();
        assert_eq!(
            asked(&unlabelled),
            Manner::Briefly,
            "{case}: nothing is known of a pod without its label"
        );
        it.run_for(86_400);
        let is_held = manner == Manner::Briefly && case != "unread";
        assert_eq!(it.condition("DeletingResources").1 == "MachineMayRun", is_held, "{case}");
    }
}

/// Anyone may set the label. A pod counts if it belongs to a component, or is being deleted.
#[test]
fn pods_that_are_left_over_keep_a_workload_from_starting_and_others_do_not() {
    let deleted = Some(Deletion { timestamp: at(100), grace_seconds: Some(30) });
    for (component, deletion, starts) in
        [(None, None, true), (None, deleted, false), (Some(0), None, false), (Some(0), deleted, false)]
    {
        let mut it = Cluster::job();
        it.settle();
        let pod = cluster::pod("left", 0, PodPhase::Running, it.now);
        it.view.pods = vec![PodView { component, deletion, ..pod }];
        it.view.suspend = false;
        it.settle();
        assert_eq!(it.phase() != Phase::Suspended, starts, "{component:?} {deletion:?}");
    }
}

#[test]
fn the_kubelet_is_read_where_its_report_decides() {
    let mark = Some(Deletion { timestamp: at(0), grace_seconds: Some(30) });
    let running = PodPhase::Running;
    for (deletion, terminated, phase, without_grace, is_read) in [
        (mark, true, running, false, true),
        (None, true, running, false, false),
        (mark, false, running, false, false),
        (mark, true, PodPhase::Succeeded, false, false),
        (None, false, running, true, true),
        (mark, false, running, true, false),
        (None, false, PodPhase::Failed, true, false),
    ] {
        let pod = PodView { deletion, terminated, without_grace, ..cluster::pod("p", 0, phase, at(0)) };
        assert_eq!(pod.hangs_on_its_kubelet(), is_read, "{pod:?}");
    }
}

#[test]
fn only_an_invalid_object_can_never_be_created() {
    for (code, is_fatal) in
        [(422, true), (400, false), (403, false), (404, false), (409, false), (500, false)]
    {
        assert_eq!(CreateFailure::is_fatal_answer(code), is_fatal, "{code}");
    }
}

#[test]
fn a_bare_pod_with_a_grace_of_its_own_keeps_it() {
    for is_labelled in [true, false] {
        let mut it = Cluster::of(&[(bare_pod(), 1)]).running();
        it.view.pods[0].work = stateful();
        it.view.nodes.insert("n1".into(), lost(it.now));
        it.view.suspend = true;
        let suspends = it.judge();
        it.carry_out(&suspends, usize::MAX);
        if !is_labelled {
            it.view.pods.clear();
        }
        let decision = it.judge();
        let [Step::DeleteComponent { manner, .. }] = decision.verdict.actions() else {
            panic!("{decision:?}")
        };
        assert_eq!(*manner, Manner::Graceful, "labelled: {is_labelled}");
    }
}

/// Its own grace is for a pod that runs. Quota does not wait for the rest of it.
#[test]
fn a_pod_whose_containers_have_ended_is_not_kept_for_the_rest_of_its_grace() {
    let mut it = on_a_lost_node(&stateful());
    it.view.nodes.insert("n1".into(), NodeView::default());
    it.view.suspend = true;
    it.settle();
    let over = crate::moments::after(it.now, secs(3_600));
    for pod in &mut it.view.pods {
        pod.deletion = Some(Deletion { timestamp: over, grace_seconds: Some(3_600) });
        pod.terminated = true;
    }
    it.run_for(600);
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
}

/// Containers end and start again as long as no one has deleted their pod.
#[test]
fn a_pod_that_was_not_deleted_has_not_ended_with_its_containers() {
    let mut it = on_a_lost_node(&stateful());
    it.view.nodes.insert("n1".into(), NodeView::default());
    it.view.suspend = true;
    it.settle();
    for pod in &mut it.view.pods {
        (pod.deletion, pod.terminated) = (None, true);
    }
    it.after(600);
    let decision = it.judge();
    let manners: Vec<Manner> = decision.verdict.actions()[0]
        .steps()
        .iter()
        .map(|step| match step {
            Step::DeletePod { manner, .. } => *manner,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(manners, [Manner::Graceful; 2]);
}

/// Its deletion as a component was sent, and the watch has not shown that on the pod yet.
#[test]
fn a_bare_pod_is_asked_to_end_once() {
    let mut it = Cluster::of(&[(bare_pod(), 1)]).running();
    it.stuck_pods = true;
    it.view.suspend = true;
    it.settle();
    it.view.pods[0].deletion = None;
    it.found(0).deletion = Some(Deletion { timestamp: at(9_000), grace_seconds: Some(9_000) });
    it.after(601).settle();
    assert_eq!(it.deeds.iter().filter(|it| it.contains("delete")).count(), 1, "{:?}", it.deeds);
}

/// An object of another controller may have a grace period too. Only a Pod of the core group is a pod.
#[test]
fn an_object_is_forced_after_the_grace_of_the_deletion_and_not_before() {
    for kind in [job(), kind("", "v1", "Service"), kind("example.com", "v1", "Pod")] {
        let mut it = Cluster::of(&[(kind.clone(), 2)]).running();
        it.stuck_objects = true;
        it.view.suspend = true;
        it.settle();
        let now = it.now;
        it.found(0).deletion = Some(Deletion { timestamp: now, grace_seconds: Some(9_000) });
        let deeds = |it: &Cluster| -> Vec<String> {
            let deletes = it.deeds.iter().filter_map(|it| it.split_once(" delete "));
            deletes.map(|(manner, _)| manner.into()).collect()
        };
        it.run_for(599);
        assert_eq!(deeds(&it), ["Graceful"], "{kind:?}");
        it.run_for(1);
        it.settle();
        assert_eq!(deeds(&it), ["Graceful", "Forceful"], "{kind:?}");
    }
}

/// The control plane has lost the node, and no one has read whether its kubelet still renews its Lease.
#[test]
fn nothing_is_forced_on_an_unreachable_node_whose_lease_is_not_read_yet() {
    for work in [cluster::work(), stateful()] {
        let mut it = on_a_lost_node(&work);
        let unread = NodeView { heartbeat: Heartbeat::UNREAD, ..lost(it.now) };
        it.view.nodes.insert("n1".into(), unread);
        it.view.suspend = true;
        it.run_for(3_600);
        assert_eq!((it.view.pods.len(), it.code()), (2, "Deleting"), "{:?}", it.deeds);
        assert!(
            !it.deeds.iter().any(|it| it.starts_with("force") || it.starts_with("fail")),
            "{:?}",
            it.deeds
        );
    }
}

/// The garbage collector deletes the pods of an object with the grace of their specs.
#[test]
fn an_object_whose_pods_have_no_grace_waits_for_their_machine() {
    let without_grace = |work: &Work| {
        let mut it = on_a_lost_node(work);
        it.view.pods.iter_mut().for_each(|pod| pod.without_grace = true);
        it.view.suspend = true;
        it
    };
    let deletes = |it: &Cluster| it.deeds.iter().filter(|it| it.starts_with("Graceful delete")).count();
    let mut it = without_grace(&stateful());
    it.run_for(86_400);
    assert_eq!((deletes(&it), it.view.pods.len(), it.code()), (0, 2, "MachineMayRun"));
    let (_, reason, message) = it.condition("DeletingResources");
    assert_eq!(reason, "MachineMayRun");
    assert!(message.contains("node n1") && message.contains("The same holds for 1 more."), "{message}");
    // What ends the wait.
    let ways: [(&str, Happens); 4] = [
        ("proof", |it| it.view.nodes.get_mut("n1").unwrap().machine = off()),
        ("consent", |it| {
            let source = ConsentSource::Annotation("a");
            it.view.pods.iter_mut().for_each(|pod| pod.work.consent = Some(source));
        }),
        ("its end", |it| it.set_pods(PodPhase::Succeeded)),
        ("the node's return", |it| {
            it.view.nodes.insert("n1".into(), NodeView::default());
        }),
    ];
    for (way, happens) in ways {
        let mut it = it.clone();
        happens(&mut it);
        it.settle();
        assert_eq!((deletes(&it), it.phase()), (1, Phase::Suspended), "{way}");
    }
    // One that is marked keeps the grace that it was given, and is held as a pod.
    let mut marked = without_grace(&stateful());
    let mark = Deletion { timestamp: at(100), grace_seconds: Some(1) };
    marked.view.pods.iter_mut().for_each(|pod| pod.deletion = Some(mark));
    marked.settle();
    assert_eq!((deletes(&marked), marked.view.pods.len()), (1, 2));
    // Two of these may run.
    let mut twice = without_grace(&cluster::work());
    twice.settle();
    assert_eq!((deletes(&twice), twice.phase()), (1, Phase::Suspended));
    // Claims decide, and are read before anything is said or done.
    let mut unread = without_grace(&Work { copies: Copies::Unread, ..cluster::work() });
    unread.settle();
    assert_eq!((deletes(&unread), unread.code()), (0, "Deleting"));
    assert_eq!(works_to_read(&unread.view, &unread.policy, unread.now).len(), 2);
    // A Lease that is not renewed: its kubelet was cut off a moment ago.
    let mut cut = without_grace(&stateful());
    cut.view.nodes.insert("n1".into(), cut_off(cut.now));
    cut.settle();
    assert_eq!(deletes(&cut), 0);
    cut.view.nodes.insert("n1".into(), NodeView { heartbeat: renewed(cut.now), ..NodeView::default() });
    cut.settle();
    assert_eq!(deletes(&cut), 1);
}

/// What was created too late, and what the spec has no more, is deleted in the same way.
#[test]
fn what_is_left_over_and_strays_wait_for_their_machine_too() {
    let mut it = Cluster::job().running();
    it.view.suspend = true;
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
    let made = cluster::object("late", job(), "c0", it.now, ComponentState::Active);
    it.view.components[0].seen = Seen::Found(Box::new(made));
    let pod = cluster::pod("late-0", 0, PodPhase::Running, it.now);
    it.view.pods = vec![PodView { work: stateful(), without_grace: true, ..pod }];
    it.view.nodes.insert("n1".into(), lost(it.now));
    assert_eq!((it.settle().verdict.actions().len(), it.code()), (0, "MachineMayRun"));
    it.view.nodes.get_mut("n1").unwrap().machine = off();
    it.settle();
    assert!(it.view.pods.is_empty());

    let mut it = Cluster::job().running();
    it.policy.unreachable_nodes = false;
    it.view.strays = vec![cluster::object("stray", job(), "other", it.now, ComponentState::Active)];
    let pod = cluster::pod("stray-0", 0, PodPhase::Running, it.now);
    it.view.pods.push(PodView { work: stateful(), without_grace: true, component: None, ..pod });
    it.view.nodes.insert("n1".into(), lost(it.now));
    it.settle();
    assert_eq!(it.view.strays.len(), 1, "{:?}", it.deeds);
    it.view.nodes.get_mut("n1").unwrap().machine = off();
    it.settle();
    assert!(it.view.strays.is_empty(), "{:?}", it.deeds);
}

/// The containers were reported as terminated before the kubelet was cut off, and it may have started them again.
#[test]
fn the_word_of_a_kubelet_counts_while_its_lease_is_renewed() {
    for (case, heartbeat, is_freed) in [
        ("it is read right before the write", Heartbeat::UNREAD, true),
        ("renewed", renewed(at(700)), true),
        ("old", cut_off(at(700)).heartbeat, false),
        ("none", silent(), false),
    ] {
        let mut it = on_a_lost_node(&stateful());
        it.view.nodes.insert("n1".into(), NodeView::default());
        it.view.suspend = true;
        it.settle();
        it.view.pods.iter_mut().for_each(|pod| pod.terminated = true);
        it.now = at(700);
        it.view.nodes.insert("n1".into(), NodeView { heartbeat, ..NodeView::default() });
        it.settle();
        assert_eq!(it.view.pods.is_empty(), is_freed, "{case}");
    }
}

/// The heartbeat of a kubelet that has renewed its Lease just now.
fn renewed(now: Timestamp) -> Heartbeat {
    Heartbeat::UNREAD.then(Some(NodeLease::new(now, secs(40))), now)
}

/// A node that the control plane has not lost yet, and whose Lease is not renewed any more.
fn cut_off(now: Timestamp) -> NodeView {
    let lease = NodeLease::new(crate::moments::after(now, secs(-41)), secs(40));
    NodeView { heartbeat: Heartbeat::UNREAD.then(Some(lease), now), ..NodeView::default() }
}

/// Claims and Jobs are read when they decide, and nothing is said before that.
#[test]
fn what_decides_is_read_before_anything_is_said_or_done() {
    let unread = Work { copies: Copies::Unread, ..cluster::work() };
    let mut it = on_a_lost_node(&unread);
    it.view.pods[1].work = stateful();
    it.view.pods[1].phase = PodPhase::Failed;
    let asked = |it: &Cluster| works_to_read(&it.view, &it.policy, it.now).len();
    it.view.suspend = true;
    it.settle();
    assert_eq!(asked(&it), 0, "force is not due yet");
    it.run_for(600);
    it.settle();
    assert_eq!(
        (asked(&it), it.code(), it.condition("DeletingResources").1),
        (1, "Deleting", "DeletionInitiated")
    );
    it.view.pods[0].work.copies = Copies::Unreadable("403".into());
    it.settle();
    assert_eq!((asked(&it), it.code()), (1, "MachineMayRun"), "it is read again");
    it.view.pods[0].work.copies = Copies::Allowed;
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
}

/// Sixty claims, of which fifty cannot be read: these are read again and again, and the others have their turn all the same.
#[test]
fn what_cannot_be_read_keeps_no_other_claim_from_being_read() {
    let mut it = Cluster::of(&[(job(), 60)]).running();
    let unread = Work { copies: Copies::Unread, ..cluster::work() };
    it.view.pods.iter_mut().for_each(|pod| pod.work = unread.clone());
    it.stuck_pods = true;
    it.view.nodes.insert("n1".into(), lost(it.now));
    it.view.suspend = true;
    it.run_for(600);
    let wanted = |it: &Cluster| -> Vec<PodRef> {
        works_to_read(&it.view, &it.policy, it.now).into_iter().map(|pod| pod.pod.clone()).collect()
    };
    let first: Vec<PodRef> = wanted(&it).into_iter().take(50).collect();
    for pod in it.view.pods.iter_mut().filter(|it| first.contains(&it.pod)) {
        pod.work.copies = Copies::Unreadable("403".into());
    }
    it.settle();
    let next = wanted(&it);
    assert_eq!(next.len(), 60);
    assert!(next[..10].iter().all(|pod| !first.contains(pod)), "{next:?}");
    let (_, reason, message) = it.condition("DeletingResources");
    assert_eq!(reason, "MachineMayRun");
    for words in ["The same holds for 49 more.", "Of 10 more the claims and Jobs are still to be read."] {
        assert!(message.contains(words), "{words} is not in {message}");
        assert!(it.judge().verdict.why().to_string().contains(words), "{words}");
    }
}

#[test]
fn a_pod_without_a_node_runs_nowhere_and_one_without_a_node_object_may_run() {
    for (bound, work, is_forced) in
        [(false, stateful(), true), (true, stateful(), false), (true, cluster::work(), true)]
    {
        let mut it = on_a_lost_node(&work);
        it.view.nodes.clear();
        if !bound {
            it.view.pods.iter_mut().for_each(|pod| pod.node_name = None);
        }
        it.view.suspend = true;
        it.run_for(601);
        it.settle();
        assert_eq!(it.phase() == Phase::Suspended, is_forced, "bound: {bound}, {work:?}");
        // An incomplete list of nodes proves nothing.
        let mut it = on_a_lost_node(&work);
        it.view.nodes.clear();
        it.view.nodes_known = false;
        it.view.suspend = true;
        it.run_for(601);
        assert_eq!((it.view.pods.len(), it.code()), (2, "Deleting"));
    }
}

/// Pods of a component that is done, on a machine that may run: they are not freed, and quota is kept.
#[test]
fn pods_that_outlive_success_wait_for_their_machine_too() {
    let mut it = on_a_lost_node(&stateful());
    it.policy.unreachable_nodes = false;
    it.says(0, ComponentState::Succeeded);
    it.run_for(86_400);
    assert_eq!((it.phase(), it.condition("DeletingResources").1), (Phase::Running, "MachineMayRun"));
    assert!(it.holds("QuotaReserved"));
    it.view.nodes.get_mut("n1").unwrap().machine = off();
    it.settle();
    assert_eq!((it.phase(), it.holds("QuotaReserved")), (Phase::Succeeded, false));
}
