//! Decides whether a pod may be ended without a report from its kubelet. Every recovery asks this before it marks a pod
//! Failed, deletes it without grace, deletes its Node, takes the node out of service or releases its volumes.
//!
//! A node that does not answer may be off, or may only have lost its network. Then its containers still run, and a
//! replacement runs beside them. So the answer is yes only by consent, by the kubelet's own report, by proof that the
//! machine is off, or because two copies of the pod may run.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use salvor_api::Labels;
use salvor_api::config::Configuration;
use salvor_api::names::annotations::SAFE_TO_FORCEFULLY_TERMINATE;
use salvor_api::names::taints;

use crate::ids::NodeName;
pub use crate::objects::Claim;
use crate::objects::{JobRef, PodPhase, PodRef};
use crate::proof::{Machine, Proof};
use crate::zombie::{ConsentAnnotations, ConsentSource, ZombiePolicy};

/// The reason of every verdict, condition and event that says that a machine may still run.
pub const MACHINE_MAY_RUN: &str = "MachineMayRun";
/// Pods of a LeaderWorkerSet have this label.
pub const LEADER_WORKER_SET: &str = "leaderworkerset.sigs.k8s.io/name";
const STATEFUL_SET: &str = "StatefulSet.apps";

/// The facts about a pod that decide whether two copies of it may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub owners: Vec<Owner>,
    /// True if it belongs to a LeaderWorkerSet. The set restarts a group as a whole, so a StatefulSet owner does not
    /// matter.
    pub in_leader_worker_set: bool,
    /// The claims that it uses and that outlive it.
    pub claims: Vec<Claim>,
    /// The Job that controls it. Its `podReplacementPolicy` is read with the claims.
    pub job: Option<JobRef>,
    /// What its volumes and its Job say about a second copy.
    pub copies: Copies,
    /// The owner's annotation, or the administrator's rule, that consents to a double run.
    pub consent: Option<ConsentSource>,
}

/// An owner of a pod. `Display` gives the form of `atMostOne.owners`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub kind: String,
    /// Empty for the core group.
    pub group: String,
    /// True if it is the pod's controller.
    pub controls: bool,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, group, .. } = self;
        if group.is_empty() { f.write_str(kind) } else { write!(f, "{kind}.{group}") }
    }
}

/// What a pod's volumes and its Job say about a second copy of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Two copies may run: no claim is for one node, and no Job waits for the end of its pods.
    Allowed,
    /// Two copies must not run, for this reason.
    Forbidden(String),
    /// Its claims and its Job were not read yet. Counts as forbidden.
    Unread,
    /// A claim or its Job cannot be read, for this reason. Counts as forbidden.
    Unreadable(String),
}

impl Copies {
    /// True if reading claims and Job could change the answer.
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Unread | Self::Unreadable(_) => true,
            Self::Allowed | Self::Forbidden(_) => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// It renews its Lease: it carries out a deletion itself.
    Alive,
    /// It is silent, or its state is unknown.
    Silent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Yes(By),
    /// It may not: its machine may run, and two copies must not. With the reason why two must not.
    No(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Its owner or the administrator consents to a double run.
    Consent(ConsentSource),
    /// It has ended, as its kubelet reports, or never started.
    NothingRuns,
    /// Its kubelet is alive and carries out the deletion itself.
    Kubelet,
    Proof(Proof),
    /// Two copies of it may run.
    MayRunTwice,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Consent(source) => write!(f, "{source} consents"),
            Self::NothingRuns => f.write_str("nothing of it runs"),
            Self::Kubelet => f.write_str("its kubelet is alive and ends it"),
            Self::Proof(proof) => proof.fmt(f),
            Self::MayRunTwice => f.write_str("two of it may run"),
        }
    }
}

/// The settings that decide about a second copy.
#[derive(Clone, Debug)]
pub struct GatePolicy {
    /// Kinds of owners whose pods must never run twice, in the form of their `Display`.
    at_most_one_owners: BTreeSet<String>,
    zombie: ZombiePolicy,
}

impl GatePolicy {
    pub fn new(configuration: &Configuration) -> Self {
        Self {
            at_most_one_owners: configuration.at_most_one_owners().iter().cloned().collect(),
            zombie: ZombiePolicy::new(configuration),
        }
    }

    /// The consent to a double run of a pod with these annotations and labels. The annotation comes from the owner and
    /// always counts; a rule belongs to zombie recovery, and counts while that is on.
    pub fn consent(&self, annotations: &ConsentAnnotations, labels: &Labels) -> Option<ConsentSource> {
        let source = self.zombie.consent(annotations, labels)?.source;
        match source {
            ConsentSource::Annotation(_) => Some(source),
            ConsentSource::Rule(_) => self.zombie.disabled.is_none().then_some(source),
        }
    }

    /// Why two copies of a pod must never run at once; none if they may.
    pub fn at_most_one(&self, work: &Work) -> Option<String> {
        if let Some(owner) = self.at_most_one_owner(work) {
            return Some(format!("it belongs to a {owner}"));
        }
        match &work.copies {
            Copies::Allowed => None,
            Copies::Forbidden(why) | Copies::Unreadable(why) => Some(why.clone()),
            Copies::Unread => Some("its claims and its Job have not been read yet".into()),
        }
    }

    /// True if the decision about a pod depends on its claims and its Job, and those are not known for sure.
    pub fn must_read(&self, work: &Work) -> bool {
        work.copies.is_unknown() && work.consent.is_none() && self.at_most_one_owner(work).is_none()
    }

    fn at_most_one_owner<'a>(&self, work: &'a Work) -> Option<&'a Owner> {
        let is_listed = |owner: &&Owner| {
            let kind = owner.to_string();
            let is_a_groups = work.in_leader_worker_set && kind == STATEFUL_SET;
            !is_a_groups && self.at_most_one_owners.contains(&kind)
        };
        work.owners.iter().find(is_listed)
    }
}

/// Decides whether a pod may be ended without a report from its kubelet. Asked when the recovery's own contract
/// requires force, for example when an AppWrapper's ForcefulDeletionGracePeriod is over.
pub fn may_be_forced(
    work: &Work,
    phase: PodPhase,
    kubelet: Kubelet,
    machine: &Machine,
    policy: &GatePolicy,
) -> Gate {
    if let Some(source) = work.consent {
        return Gate::Yes(By::Consent(source));
    }
    if phase.is_terminal() {
        return Gate::Yes(By::NothingRuns);
    }
    if let Machine::Off(proof) = machine {
        return Gate::Yes(By::Proof(proof.clone()));
    }
    if kubelet == Kubelet::Alive {
        return Gate::Yes(By::Kubelet);
    }
    policy.at_most_one(work).map_or(Gate::Yes(By::MayRunTwice), Gate::No)
}

/// A pod that waits because its machine may run. `Display` gives a sentence with the ways out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineMayRun {
    pub pod: PodRef,
    pub node: NodeName,
    /// None if it is not known.
    pub since: Option<Timestamp>,
    /// Why two copies of the pod must not run.
    pub because: String,
}

impl MachineMayRun {
    /// The commands that end the wait.
    pub fn ways_out(&self) -> [String; 3] {
        let Self { pod: PodRef { namespace, name, .. }, node, .. } = self;
        [
            format!("switch the machine off, then: salvor evict {node}"),
            format!(
                "switch the machine off, then: kubectl taint nodes {node} {}={}:{}",
                taints::OUT_OF_SERVICE,
                taints::OUT_OF_SERVICE_VALUE,
                taints::NO_EXECUTE
            ),
            format!(
                "consent to a double run: kubectl annotate pod -n {namespace} {name} {SAFE_TO_FORCEFULLY_TERMINATE}=true"
            ),
        ]
    }
}

impl fmt::Display for MachineMayRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, node, since, because } = self;
        write!(f, "pod {pod} may still run on node {node}, which does not answer")?;
        if let Some(since) = since {
            write!(f, " since {since}")?;
        }
        write!(f, ", and two of it must not run: {because}. Bring the node back; or ")?;
        f.write_str(&self.ways_out().join("; or "))
    }
}

#[cfg(test)]
mod tests {
    use salvor_api::config::{Configuration, parse};

    use super::*;

    fn policy(settings: &str) -> GatePolicy {
        let text = format!("apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n{settings}");
        GatePolicy::new(&parse(&text).unwrap())
    }

    fn work() -> Work {
        Work {
            owners: vec![owner("ReplicaSet", "apps")],
            in_leader_worker_set: false,
            claims: Vec::new(),
            job: None,
            copies: Copies::Allowed,
            consent: None,
        }
    }

    fn owner(kind: &str, group: &str) -> Owner {
        Owner { kind: kind.into(), group: group.into(), controls: true }
    }

    fn stateful() -> Work {
        Work { owners: vec![owner("StatefulSet", "apps")], ..work() }
    }

    fn with(copies: Copies) -> Work {
        Work { copies, ..work() }
    }

    fn asked(work: &Work, kubelet: Kubelet, machine: &Machine) -> Gate {
        let policy = GatePolicy::new(&Configuration::default());
        may_be_forced(work, PodPhase::Running, kubelet, machine, &policy)
    }

    #[test]
    fn work_of_which_two_must_not_run_needs_consent_proof_or_its_kubelet() {
        let annotation = ConsentSource::Annotation(SAFE_TO_FORCEFULLY_TERMINATE);
        let off = Machine::Off(Proof::Taint("node.kubernetes.io/out-of-service:NoExecute".into()));
        let belongs = "it belongs to a StatefulSet.apps";
        let awaits = "its Job ns/work waits for the end of its pods (podReplacementPolicy: Failed)";
        let no = |because: &str| Gate::No(because.into());
        let cases = [
            ("two may run", work(), Gate::Yes(By::MayRunTwice)),
            ("a StatefulSet", stateful(), no(belongs)),
            (
                "a StatefulSet that consents",
                Work { consent: Some(annotation), ..stateful() },
                Gate::Yes(By::Consent(annotation)),
            ),
            ("a group", Work { in_leader_worker_set: true, ..stateful() }, Gate::Yes(By::MayRunTwice)),
            (
                "a group with a claim for one node",
                Work { in_leader_worker_set: true, copies: Copies::Forbidden("claim".into()), ..stateful() },
                no("claim"),
            ),
            (
                "a group of another at-most-one owner",
                Work {
                    in_leader_worker_set: true,
                    owners: vec![owner("Cluster", "postgresql.cnpg.io")],
                    ..work()
                },
                no("it belongs to a Cluster.postgresql.cnpg.io"),
            ),
            ("a claim for one node", with(Copies::Forbidden("claim".into())), no("claim")),
            ("a Job that waits", with(Copies::Forbidden(awaits.into())), no(awaits)),
            ("unread", with(Copies::Unread), no("its claims and its Job have not been read yet")),
            ("unreadable", with(Copies::Unreadable("403".into())), no("403")),
        ];
        for (case, work, expected) in cases {
            assert_eq!(asked(&work, Kubelet::Silent, &Machine::MayRun), expected, "{case}");
            let consent = work.consent;
            let otherwise = |by| Gate::Yes(consent.map_or(by, By::Consent));
            let Machine::Off(proof) = &off else { unreachable!() };
            assert_eq!(
                asked(&work, Kubelet::Silent, &off),
                otherwise(By::Proof(proof.clone())),
                "{case}, off"
            );
            assert_eq!(
                asked(&work, Kubelet::Alive, &Machine::MayRun),
                otherwise(By::Kubelet),
                "{case}, alive"
            );
        }
    }

    #[test]
    fn a_pod_that_has_ended_may_go() {
        let policy = GatePolicy::new(&Configuration::default());
        let ask = |phase| may_be_forced(&stateful(), phase, Kubelet::Silent, &Machine::MayRun, &policy);
        for phase in [PodPhase::Failed, PodPhase::Succeeded] {
            assert_eq!(ask(phase), Gate::Yes(By::NothingRuns));
        }
        for phase in [PodPhase::Pending, PodPhase::Running, PodPhase::Unknown] {
            assert!(matches!(ask(phase), Gate::No(_)), "{phase}");
        }
    }

    #[test]
    fn claims_and_job_are_read_where_they_decide_until_they_are_known() {
        let policy = GatePolicy::new(&Configuration::default());
        let consent = Some(ConsentSource::Annotation(SAFE_TO_FORCEFULLY_TERMINATE));
        for (case, work, is_read) in [
            ("unread", with(Copies::Unread), true),
            ("not readable a moment ago", with(Copies::Unreadable("403".into())), true),
            ("known", with(Copies::Allowed), false),
            ("known to forbid", with(Copies::Forbidden("claim".into())), false),
            ("consent decides", Work { consent, ..with(Copies::Unread) }, false),
            ("its owner decides", Work { copies: Copies::Unread, ..stateful() }, false),
        ] {
            assert_eq!(policy.must_read(&work), is_read, "{case}");
        }
    }

    #[test]
    fn the_list_of_owners_has_a_section_of_its_own_and_the_old_key_is_read() {
        let shard = Work { owners: vec![owner("Shard", "example.com")], ..work() };
        for settings in
            ["atMostOne: {owners: [Shard.example.com]}", "eviction: {atMostOneOwners: [Shard.example.com]}"]
        {
            let policy = policy(settings);
            assert!(policy.at_most_one(&shard).is_some(), "{settings}");
            assert_eq!(policy.at_most_one(&stateful()), None, "{settings} replaces the default");
        }
    }

    #[test]
    fn a_rule_consents_while_zombie_recovery_is_on_and_an_annotation_always() {
        let rules = "featureGates: {FailureRecoveryPolicy: true}\nfailureRecoveryPolicy: {rules: [{terminatePod: {podLabelSelector: {matchLabels: {app: batch}}, forcefulTerminationGracePeriod: 1m}}]}\n";
        let labels: Labels = [("app", "batch")].into_iter().collect();
        let none = ConsentAnnotations::default();
        let yes = ConsentAnnotations { terminate: Some("true".into()), ..none.clone() };
        let (on, off) = (policy(rules), policy(&format!("{rules}controllers: [job]\n")));
        assert_eq!(on.consent(&none, &labels), Some(ConsentSource::Rule(0)));
        assert_eq!(off.consent(&none, &labels), None);
        assert!(off.consent(&yes, &labels).is_some());
        assert_eq!(on.consent(&none, &Labels::default()), None);
    }

    #[test]
    fn the_wait_names_pod_node_reason_and_commands() {
        let wait = MachineMayRun {
            pod: PodRef { namespace: "ns".into(), name: "db-0".into(), uid: "u".into() },
            node: "node-1".into(),
            since: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            because: "it belongs to a StatefulSet.apps".into(),
        };
        let said = wait.to_string();
        for part in [
            "pod ns/db-0",
            "node node-1",
            "since 2026-01-01T00:00:00Z",
            "StatefulSet.apps",
            "salvor evict node-1",
            "kubectl taint nodes node-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            "kubectl annotate pod -n ns db-0 kueue.x-k8s.io/safe-to-forcefully-terminate=true",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
