//! Properties that hold for every node, pod and time.

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::Step;
use super::*;
use crate::step::Step as _;

fn any_taints() -> impl Strategy<Value = Vec<Taint>> {
    let all = vec![
        taint(KEY, "INC-1", "NoSchedule"),
        taint(KEY, "INC-1", "NoExecute"),
        taint(SHUTDOWN, "", "NoSchedule"),
        taint("example.com/lost", "", "NoExecute"),
        taint("node.kubernetes.io/unreachable", "", "NoExecute"),
    ];
    proptest::sample::subsequence(all, 0..=5)
}

fn any_lease() -> impl Strategy<Value = Lease> {
    let renewed = (-100i64..100, 1i64..60, any::<bool>()).prop_map(|(heard, lasts, moves)| Lease::Renewed {
        written: at(heard),
        heard: at(heard),
        lasts: SignedDuration::from_secs(lasts),
        moves,
    });
    prop_oneof![1 => Just(Lease::Unread), 1 => Just(Lease::None), 6 => renewed]
}

fn any_damage() -> impl Strategy<Value = Option<Damage>> {
    let damage = Damage { annotation: "eviction.salvor.dev/progress", problem: "no".into(), until: None };
    option::weighted(0.1, Just(damage))
}

fn any_refusals() -> impl Strategy<Value = Vec<Refusal>> {
    let steps = ["StartEviction", "ReportEviction", "ReleaseVolumes", "EndEviction"];
    let refusal = |step, until| Refusal { step, what: "x".into(), words: "no".into(), until: at(until) };
    steps
        .map(|step| option::weighted(0.15, (-100i64..200).prop_map(move |until| refusal(step, until))))
        .prop_map(|refused| refused.into_iter().flatten().collect())
}

fn any_progress() -> impl Strategy<Value = Progress> {
    let requests = [
        "salvor.dev/force-eviction=INC-1:NoSchedule",
        "salvor.dev/force-eviction:NoExecute",
        "example.com/lost:NoExecute",
    ];
    let released = option::of(any::<bool>());
    (
        select(requests.to_vec()),
        released,
        option::weighted(0.3, -50i64..50),
        option::weighted(0.2, -50i64..50),
        option::weighted(0.1, -50i64..50),
    )
        .prop_map(|(request, released, returned, finished, stopped)| Progress {
            request: request.into(),
            returned: returned.map(at),
            released: released.map(|keeps| {
                let kept = if keeps { vec![claim("kept")] } else { vec![] };
                let volumes = kept.iter().map(|claim| claim.name.clone()).collect();
                Released { volumes, ..Released::keeping(&kept, at(0)) }
            }),
            finished: finished.map(at),
            stopped: stopped.map(at),
            ..started()
        })
}

fn any_node() -> impl Strategy<Value = NodeView> {
    (
        any_taints(),
        select(vec![Ready::True, Ready::False, Ready::Unknown]),
        (any_lease(), any_lease()),
        option::weighted(0.8, any_progress()),
        (any_damage(), any_refusals()),
        select(vec![
            None,
            Some("EvictingPods"),
            Some("Finished"),
            Some("NodeReturned"),
            Some("Stopped"),
            Some("AnnotationUnreadable"),
            Some("WriteRefused"),
        ]),
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(
                taints,
                ready,
                (lease, ready_heartbeat),
                progress,
                (damage, refused),
                condition,
                [told, in_use],
            )| {
                NodeView {
                    taints,
                    ready,
                    lease,
                    ready_heartbeat: if ready_heartbeat == Lease::Unread {
                        Lease::None
                    } else {
                        ready_heartbeat
                    },
                    progress: progress.filter(|_| damage.is_none()),
                    damage,
                    refused,
                    condition: condition.map(Into::into),
                    told: if told { begun("").told } else { BTreeSet::new() },
                    volumes_in_use: if in_use { vec!["v".into()] } else { vec![] },
                    ..node()
                }
            },
        )
}

fn any_pod() -> impl Strategy<Value = PodView> {
    use PodPhase::{Failed, Pending, Running, Succeeded, Unknown};
    let deletion = option::of(select(vec![None, Some(0), Some(30)]));
    let tolerations = option::of(option::of(-10i64..100));
    let owners = select(vec![
        vec![],
        vec![owner("StatefulSet", "apps")],
        vec![owner("Job", "batch"), owner("Pod", "")],
    ]);
    let access = select(vec![
        Copies::Allowed,
        Copies::Allowed,
        Copies::Unread,
        Copies::Forbidden("a claim".into()),
        Copies::Unreadable("no".into()),
    ]);
    (
        select(vec![Pending, Running, Running, Succeeded, Failed, Unknown]),
        deletion,
        tolerations,
        owners,
        access,
        option::weighted(0.9, -100i64..100),
        any::<[bool; 4]>(),
    )
        .prop_map(
            |(phase, deletion, seconds, owners, copies, created, [is_mirror, announced, claims, own])| {
                PodView {
                    phase,
                    deletion: deletion.map(|grace_seconds| Deletion { timestamp: at(0), grace_seconds }),
                    tolerations: seconds.map(toleration).into_iter().collect(),
                    created: created.map(at),
                    work: Work {
                        owners,
                        copies,
                        ..claiming(if claims { vec![claim("kept")] } else { vec![] })
                    },
                    is_mirror,
                    announced,
                    own_claims: if own { vec![claim("own")] } else { vec![] },
                    ..pod()
                }
            },
        )
}

/// Ready, or a Lease that still counts: a kubelet that may have containers.
fn may_live(node: &NodeView, now: i64) -> bool {
    node.ready == Ready::True || node.heartbeat().is_fresh(at(now)) || node.lease == Lease::Unread
}

/// The engine's writes after the second look and the brake have allowed them.
fn touches_pods(action: &Step) -> bool {
    matches!(action, Step::PatchPodStatus { .. } | Step::ForceDeletePod { .. } | Step::EvictPod { .. })
}

proptest! {
    #![proptest_config(crate::fuzz::cases(1024))]

    #[test]
    fn nothing_is_forced_on_a_node_that_may_live(node in any_node(), pod in any_pod(), now in -100i64..200) {
        let judged = decide_pod(&pod, Some(&node), &policy(TRIGGERS), at(now));
        let forced = |action: &Step| matches!(action, Step::PatchPodStatus { .. } | Step::ForceDeletePod { .. });
        if may_live(&node, now) {
            prop_assert!(!judged.verdict.actions().iter().any(forced), "{judged:?}");
        }
        let judged = judge_node(&node, &[pod], &[], now);
        let begins = |action: &Step| matches!(action, Step::StartEviction { .. } | Step::ReleaseVolumes { .. });
        if may_live(&node, now) {
            prop_assert!(!judged.verdict.actions().iter().any(begins), "{judged:?}");
        }
    }

    #[test]
    fn a_pod_fails_before_it_is_deleted_and_never_ends_otherwise(node in any_node(), pod in any_pod(), now in -100i64..200) {
        let judged = decide_pod(&pod, Some(&node), &policy(TRIGGERS), at(now));
        let actions = judged.verdict.actions();
        let position = |name: &str| actions.iter().position(|action| action.name() == name);
        if let Some(delete) = position("ForceDeletePod") {
            prop_assert!(pod.phase.is_terminal() || position("PatchPodStatus").is_some_and(|patch| patch < delete));
        }
        prop_assert!(!(pod.phase.is_terminal() && position("PatchPodStatus").is_some()), "a phase that ended is kept");
        prop_assert!(!pod.is_mirror || actions.is_empty(), "static pods are never touched");
    }

    #[test]
    fn no_volume_is_let_go_that_a_pod_on_the_node_may_use(node in any_node(), pods in proptest::collection::vec(any_pod(), 0..4), now in -100i64..200) {
        let judged = judge_node(&node, &pods, &[], now);
        for action in judged.verdict.actions() {
            if let Step::ReleaseVolumes { keep, .. } = action {
                for pod in pods.iter().filter(|pod| !pod.phase.is_terminal()) {
                    prop_assert!(pod.all_claims().all(|claim| keep.contains(claim)), "{judged:?}");
                }
            }
        }
    }

    #[test]
    fn our_taint_stays_until_it_is_safe_to_take_it_off(node in any_node(), pods in proptest::collection::vec(any_pod(), 0..4), now in -100i64..200) {
        let judged = judge_node(&node, &pods, &[], now);
        let ends = judged.verdict.actions().iter().any(|action| matches!(action, Step::EndEviction { .. }));
        let by_hand = matches!(judged.verdict.why(), NodeWhy::Stopped | NodeWhy::Forgotten);
        if ends && !by_hand {
            prop_assert_eq!(node.ready, Ready::True);
        }
    }

    #[test]
    fn nothing_is_done_while_our_annotations_cannot_be_believed(node in any_node(), pod in any_pod(), now in -100i64..200) {
        let absurd = node.progress.as_ref().is_some_and(|progress| at(now + 60) < progress.started);
        if node.damage.is_none() && !absurd {
            return Ok(());
        }
        let judged = judge_node(&node, std::slice::from_ref(&pod), &[], now);
        let only_said = |action: &Step| matches!(action, Step::ReportEviction { progress: None, .. } | Step::EmitEvent(_));
        prop_assert!(judged.verdict.actions().iter().all(only_said), "{judged:?}");
        prop_assert_eq!(judged.verdict.why().code(), "AnnotationUnreadable");
        let judged = decide_pod(&pod, Some(&node), &policy(TRIGGERS), at(now));
        prop_assert_eq!(judged.verdict.actions(), &[]);
    }

    #[test]
    fn what_must_not_run_twice_is_forced_only_with_a_word_that_stands(node in any_node(), pod in any_pod(), now in -100i64..200) {
        let judged = decide_pod(&pod, Some(&node), &policy(TRIGGERS), at(now));
        let forced = |action: &Step| touches_pods(action) && !matches!(action, Step::EvictPod { .. });
        let twice = pod.work.copies != Copies::Allowed || pod.work.owners.contains(&owner("StatefulSet", "apps"));
        if twice && !pod.phase.is_terminal() && judged.verdict.actions().iter().any(forced) {
            let word = |t: &Taint| t.key == KEY || t.key == SHUTDOWN;
            prop_assert!(node.taints.iter().any(word), "{judged:?}");
            prop_assert!(node.progress.as_ref().is_some_and(|p| p.returned.is_none()), "{judged:?}");
        }
    }

    #[test]
    fn a_pod_that_may_have_come_after_the_node_was_back_is_never_touched(node in any_node(), pod in any_pod(), now in -100i64..200) {
        let Some(progress) = &node.progress else { return Ok(()) };
        let back = node.ready == Ready::True || progress.returned.is_some();
        let late = pod.created.is_none_or(|created| created >= progress.started);
        if back && late {
            let judged = decide_pod(&pod, Some(&node), &policy(TRIGGERS), at(now));
            prop_assert!(!judged.verdict.actions().iter().any(touches_pods), "{judged:?}");
        }
    }

    #[test]
    fn every_deletion_is_looked_at_twice_and_braked(node in any_node(), pod in any_pod(), now in -100i64..200) {
        let judged = decide_pod(&pod, Some(&node), &policy(TRIGGERS), at(now));
        for action in judged.verdict.actions().iter().filter(|action| touches_pods(action)) {
            prop_assert!(action.needs_a_second_look() && action.is_disruptive(), "{action}");
        }
    }

    #[test]
    fn what_the_server_refused_is_not_tried_again_at_once(node in any_node(), pod in any_pod(), now in -100i64..200) {
        let judged = judge_node(&node, &[pod], &[], now);
        for refusal in node.refused.iter().filter(|refusal| at(now) < refusal.until) {
            prop_assert!(judged.verdict.actions().iter().all(|action| action.name() != refusal.step), "{judged:?}");
        }
    }

    #[test]
    fn what_is_said_fits_and_an_alarm_is_ahead(node in any_node(), pod in any_pod(), now in -100i64..200) {
        let of_node = judge_node(&node, std::slice::from_ref(&pod), &[attachment("a")], now).report();
        let of_pod = decide_pod(&pod, Some(&node), &policy(TRIGGERS), at(now)).report();
        for report in [of_node, of_pod] {
            prop_assert!(!report.message.is_empty() && report.message.len() < 1024);
            prop_assert!(!report.what_would_change_it.is_empty());
            prop_assert_eq!(report.verdict == "Act", !report.actions.is_empty());
            prop_assert!(report.until.is_none_or(|until| until > at(now)), "{:?}", report);
        }
    }
}
