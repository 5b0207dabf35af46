//! Properties of every history and every state, however absurd. The cluster itself checks the invariants of every
//! write.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::phases::in_phase;
use super::*;
use crate::fuzz::cases;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The controller acts until there is nothing to do.
    Act,
    /// The controller carries out this many steps, and its process ends.
    Crash(usize),
    /// Time passes, and the controller acts when a wait is over.
    Run(i64),
    /// Time passes without the controller.
    Sleep(i64),
    Suspend(bool),
    Delete,
    Pod(usize, PodPhase),
    PodGone(usize),
    PodTerminates(usize),
    PodMade(usize, PodPhase),
    PodNoRoom(usize),
    Says(usize, u8),
    Gone(usize, Option<End>),
    Late(usize),
    Unseen(usize),
    Double,
    StuckObjects(bool),
    StuckPods(bool),
    CreateError(Option<bool>),
    Node(bool, bool, bool),
    NodesGone,
    AtMostOne(bool),
    Limit(i8),
    Refused,
}

fn phase() -> impl Strategy<Value = PodPhase> {
    use PodPhase::{Failed, Pending, Running, Succeeded, Unknown};
    select(vec![Pending, Running, Running, Running, Succeeded, Succeeded, Failed, Unknown])
}

fn event() -> impl Strategy<Value = Event> {
    let flag = any::<bool>;
    prop_oneof![
        10 => Just(Event::Act),
        4 => (0usize..4).prop_map(Event::Crash),
        6 => select(vec![1i64, 5, 30, 61, 91, 301, 601, 4000]).prop_map(Event::Run),
        3 => select(vec![1i64, 31, 61, 4000]).prop_map(Event::Sleep),
        4 => flag().prop_map(Event::Suspend),
        1 => Just(Event::Delete),
        10 => (0usize..6, phase()).prop_map(|(pod, phase)| Event::Pod(pod, phase)),
        2 => (0usize..6).prop_map(Event::PodGone),
        2 => (0usize..6).prop_map(Event::PodTerminates),
        2 => (0usize..2, phase()).prop_map(|(of, phase)| Event::PodMade(of, phase)),
        1 => (0usize..6).prop_map(Event::PodNoRoom),
        5 => (0usize..2, 0u8..3).prop_map(|(of, state)| Event::Says(of, state)),
        2 => (0usize..2, select(vec![None, Some(End::Told), Some(End::Missed)]))
            .prop_map(|(of, end)| Event::Gone(of, end)),
        1 => (0usize..2).prop_map(Event::Late),
        1 => (0usize..2).prop_map(Event::Unseen),
        1 => Just(Event::Double),
        2 => flag().prop_map(Event::StuckObjects),
        2 => flag().prop_map(Event::StuckPods),
        2 => option::of(flag()).prop_map(Event::CreateError),
        2 => (flag(), flag(), flag()).prop_map(|(a, b, c)| Event::Node(a, b, c)),
        1 => Just(Event::NodesGone),
        2 => flag().prop_map(Event::AtMostOne),
        1 => (-1i8..4).prop_map(Event::Limit),
        1 => Just(Event::Refused),
    ]
}

fn happen(it: &mut Cluster, event: Event) {
    let pods = it.view.pods.len();
    let exists = |it: &Cluster, of: usize| it.view.own_component(of).is_some();
    match event {
        Event::Act => drop(it.settle()),
        Event::Crash(steps) => {
            let decision = it.judge();
            it.carry_out(&decision, steps);
            it.view.memory = Memory::default();
        }
        Event::Run(seconds) => drop(it.run_for(seconds)),
        Event::Sleep(seconds) => drop(it.after(seconds)),
        Event::Suspend(suspend) => it.view.suspend = suspend,
        Event::Delete => it.view.deleting = true,
        Event::Pod(pod, phase) if pods > 0 => it.set_pod(pod % pods, phase),
        Event::PodGone(pod) if pods > 0 => drop(it.view.pods.remove(pod % pods)),
        Event::PodTerminates(pod) if pods > 0 => {
            it.view.pods[pod % pods].deletion = Some(Deletion { timestamp: it.now, grace_seconds: Some(30) });
        }
        // A bare Pod creates no other pods.
        Event::PodMade(of, phase) if exists(it, of) && it.view.components[of].kind != bare_pod() => {
            it.add_pod(of, phase);
        }
        Event::PodNoRoom(pod) if pods > 0 => it.view.pods[pod % pods].unschedulable = true,
        Event::Says(of, state) if exists(it, of) => it.says(
            of,
            match state {
                0 => ComponentState::Active,
                1 => ComponentState::Succeeded,
                _ => ComponentState::Failed { message: "m".into() },
            },
        ),
        Event::Gone(of, Some(end)) if exists(it, of) => it.lose_with(of, end),
        Event::Gone(of, None) if exists(it, of) => {
            it.lose(of);
            it.view.components[of].seen = Seen::Absent { last: None };
        }
        Event::Late(of) if !exists(it, of) => {
            let name = it.view.name_of(of).unwrap_or_default().to_owned();
            let late = cluster::object("late", job(), &name, it.now, ComponentState::Active);
            it.view.components[of].seen = Seen::Found(Box::new(late));
        }
        Event::Unseen(of) if !exists(it, of) => {
            it.view.components[of].seen = Seen::Unknown("not watched".into());
        }
        Event::Double if it.view.strays.is_empty() => {
            it.view.strays.push(cluster::object("twice", job(), "twice", it.now, ComponentState::Active));
        }
        Event::StuckObjects(stuck) => it.stuck_objects = stuck,
        Event::StuckPods(stuck) => it.stuck_pods = stuck,
        Event::CreateError(error) => it.create_error = error,
        Event::Node(flagged, unreachable, force_evicted) => {
            let no_execute = flagged.then(|| "nvidia.com/gpu".to_string()).into_iter().collect();
            let lost = unreachable.then_some(it.now);
            let node = NodeView { no_execute, unreachable, force_evicted, lost, ..NodeView::default() };
            it.view.nodes.insert("n1".into(), NodeView { heartbeat: silent(), ..node });
        }
        Event::AtMostOne(at_most_one) => {
            let copies = if at_most_one { Copies::Forbidden("claim".into()) } else { Copies::Allowed };
            it.view.pods.iter_mut().for_each(|pod| pod.work.copies = copies.clone());
        }
        Event::NodesGone => it.view.nodes.clear(),
        Event::Limit(limit) => {
            // The limit may be lowered below the current count; then there are no more resets.
            let limit = i32::from(limit).max(it.view.status.resetting_count);
            it.policy.retry_limit = limit;
        }
        Event::Refused => it.view.refused = Some("no".into()),
        Event::Pod(..)
        | Event::PodGone(_)
        | Event::PodTerminates(_)
        | Event::PodMade(..)
        | Event::PodNoRoom(_)
        | Event::Says(..)
        | Event::Gone(..)
        | Event::Late(_)
        | Event::Unseen(_)
        | Event::Double => {}
    }
}

/// A wait ends exactly at its time.
fn waits_exactly(it: &Cluster) {
    let decision = it.judge();
    let Verdict::Wait { until, .. } = &decision.verdict else { return };
    let ask_at = |now| decide(&it.view, &it.policy, now).verdict;
    assert!(*until > it.now, "{decision:?}");
    let before = until.checked_sub(SignedDuration::from_nanos(1)).unwrap();
    assert_eq!(ask_at(before), decision.verdict, "asked just before");
    assert_ne!(ask_at(*until), decision.verdict, "asked at the time");
    let again = ask_at(*until);
    assert!(again.wake_at().is_none_or(|next| next > *until), "{again:?}");
}

/// Removes everything that blocks a deletion.
fn release(it: &mut Cluster) {
    it.stuck_objects = false;
    it.stuck_pods = false;
    it.view.pods.retain(|pod| pod.deletion.is_none());
    for component in &mut it.view.components {
        match &component.seen {
            Seen::Found(found) if found.is_deleting() => component.seen = Seen::Absent { last: None },
            Seen::Unknown(_) => component.seen = Seen::Absent { last: None },
            Seen::Found(_) | Seen::Absent { .. } | Seen::NoSuchKind => {}
        }
    }
}

fn played(components: &[(ComponentKind, i32)], history: Vec<Event>) -> Cluster {
    let mut it = Cluster::of(components);
    it.policy.unreachable_nodes = true;
    it.policy.force_evicted_nodes = true;
    it.view.suspend = false;
    for event in history {
        if it.gone {
            break;
        }
        happen(&mut it, event);
        waits_exactly(&it);
    }
    it
}

fn kinds() -> impl Strategy<Value = Vec<(ComponentKind, i32)>> {
    let one = (select(vec![job(), bare_pod(), deployment()]), 0i32..3);
    let one = one.prop_map(|(kind, pods)| if kind == bare_pod() { (kind, 1) } else { (kind, pods) });
    vec(one, 2)
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn any_history_can_be_suspended_and_leaves_nothing(kinds in kinds(), history in vec(event(), 0..40)) {
        let mut it = played(&kinds, history);
        it.view.suspend = true;
        for _ in 0..3 {
            release(&mut it);
            // Longer than the longest time that a deletion may take before it is forced.
            it.run_for(700);
            waits_exactly(&it);
        }
        if !it.gone {
            let code = it.code();
            let never_resumed = it.view.deleting && !it.view.has_finalizer;
            prop_assert!(
                never_resumed || [Phase::Suspended, Phase::Succeeded, Phase::Failed].contains(&it.phase()),
                "{} {code}", it.phase()
            );
            if !never_resumed {
                prop_assert!(!it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"), "{code}");
                prop_assert!(it.view.components.iter().all(|it| !matches!(it.seen, Seen::Found(_))));
            }
        }
    }

    #[test]
    fn any_history_can_be_deleted_and_leaves_nothing(kinds in kinds(), history in vec(event(), 0..40)) {
        let mut it = played(&kinds, history);
        it.view.deleting = true;
        for _ in 0..3 {
            release(&mut it);
            it.run_for(700);
        }
        prop_assert!(it.gone || !it.view.has_finalizer, "{}", it.code());
        if it.gone {
            prop_assert!(it.view.components.iter().all(|it| !matches!(it.seen, Seen::Found(_))));
        }
    }

    #[test]
    fn a_healthy_world_ends_in_running_or_at_an_end(kinds in kinds(), history in vec(event(), 0..40)) {
        let mut it = played(&kinds, history);
        if it.gone || it.view.deleting || it.view.refused.is_some() {
            return Ok(());
        }
        it.view.suspend = false;
        it.create_error = None;
        it.view.memory.creation.clear();
        it.view.nodes.insert("n1".into(), NodeView::default());
        for _ in 0..6 {
            release(&mut it);
            it.view.pods.retain(|pod| pod.phase != PodPhase::Failed && pod.deletion.is_none());
            it.set_pods(PodPhase::Running);
            it.run_for(800);
        }
        prop_assert!(
            [Phase::Running, Phase::Succeeded, Phase::Failed].contains(&it.phase()),
            "{} {}", it.phase(), it.code()
        );
    }

    #[test]
    fn any_status_is_judged_without_panic_and_waits_are_exact(
        phase in 0usize..9,
        conditions in vec(
            (
                select(vec![
                    "QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy", "DeletingResources", "AnnotationsValid",
                ]),
                select(vec!["True", "False", "Unknown", "garbage"]),
                select(vec!["DeletionPaused", "Succeeded", "FoundFailedPods", ""]),
                prop_oneof![
                    (-5000i64..5000).prop_map(at),
                    select(vec![Timestamp::MIN, Timestamp::MAX]),
                ],
            ),
            0..6,
        ),
        shown in 0usize..9,
        statuses in 0usize..4,
        flags in any::<(bool, bool, bool, bool)>(),
        now in -4000i64..4000,
        asked in select(vec!["10s", "0", "", "-5m", "9999999h", "x"]),
    ) {
        let mut it = in_phase(&Phase::ALL[shown]).annotate(&[
            ("failureGracePeriodDuration", asked),
            ("retryPausePeriodDuration", asked),
            ("deletionOnFailureGracePeriodDuration", asked),
        ]);
        it.view.status.phase = Phase::ALL[phase].clone();
        it.view.status.conditions = conditions
            .into_iter()
            .map(|(kind, status, reason, last_transition_time)| Condition {
                kind: kind.into(),
                status: status.into(),
                reason: reason.into(),
                message: String::new(),
                last_transition_time,
                observed_generation: None,
            })
            .collect();
        it.view.status.component_status.resize(statuses, status::ComponentStatus::default());
        (it.view.suspend, it.view.deleting, it.view.has_finalizer, it.stuck_objects) = flags;
        it.now = at(now);
        waits_exactly(&it);
    }
}
