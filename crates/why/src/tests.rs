//! Tests of the rules on hand-made worlds: each root cause, and which one comes first.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    Answer, Code, Judge, Kind, World,
    kinds::{
        APP_WRAPPER, ATTACHMENT, BUDGET, CLAIM, CONFIG_MAP, CRON_JOB, DAEMON_SET, DEPLOYMENT, EVENT, JOB,
        JOB_SET, LEASE, MUTATING, NODE, POD, QUOTA, REPLICA_SET, SECRET, STATEFUL_SET, STORAGE_CLASS,
        VALIDATING, VOLUME, WORKLOAD,
    },
    why,
};

mod corners;
mod expected;

const NOW: &str = "2026-11-16T10:00:00Z";

/// All objects of a cluster. An object that is not listed does not exist.
struct Cluster(Vec<(&'static Kind, Value)>, Judge);

fn cluster() -> Cluster {
    Cluster(Vec::new(), Judge::default())
}

impl Cluster {
    fn with(mut self, kind: &'static Kind, object: Value) -> Self {
        self.0.push((kind, object));
        self
    }

    fn judged_by(mut self, text: &str) -> Self {
        let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
        self.1.file = Some(salvor_api::config::parse(&format!("{head}{text}")).unwrap());
        self
    }

    fn world(&self) -> World {
        let mut world = World::new(NOW.parse().unwrap());
        for kind in [
            &APP_WRAPPER,
            &ATTACHMENT,
            &BUDGET,
            &CLAIM,
            &CONFIG_MAP,
            &CRON_JOB,
            &DAEMON_SET,
            &DEPLOYMENT,
            &EVENT,
            &JOB,
            &JOB_SET,
            &LEASE,
            &MUTATING,
            &NODE,
            &POD,
            &QUOTA,
            &REPLICA_SET,
            &SECRET,
            &STATEFUL_SET,
            &STORAGE_CLASS,
            &VALIDATING,
            &VOLUME,
            &WORKLOAD,
        ] {
            let objects = self.0.iter().filter(|(one, _)| *one == kind).map(|(_, object)| object.clone());
            world.learn_all(kind, objects.collect());
        }
        world
    }

    #[track_caller]
    fn why(&self, kind: &Kind, name: &str) -> Answer {
        let world = self.world();
        let namespace = if *kind == NODE { "" } else { "ns" };
        let answer = why(&world, &self.1, kind, namespace, name).expect("it is there");
        if let (Some(cause), Some(last)) = (answer.root_causes.first(), answer.chain.last()) {
            assert_eq!(cause.object, last.object, "the chain ends in the cause: {answer:#?}");
            assert_eq!(
                answer.chain[0].object, answer.about,
                "the chain begins at what was asked about: {answer:#?}"
            );
        }
        if let Some(first) = answer.remedies.first() {
            assert!(!first.text.contains("twice"), "{answer:#?}");
        }
        for remedy in &answer.remedies {
            assert!(!remedy.text.contains('\n') && !remedy.text.contains('<'), "{remedy:?}");
        }
        assert_eq!(answer.missing.is_none(), answer.root_causes.is_empty(), "{answer:#?}");
        answer
    }
}

#[track_caller]
fn first(answer: &Answer, code: Code, object: (&str, &str), missing: &str) {
    let cause = answer.root_causes.first().unwrap_or_else(|| panic!("no cause: {answer:#?}"));
    let seen =
        (cause.code, cause.object.kind.as_str(), cause.object.name.as_str(), answer.missing.as_deref());
    assert_eq!(seen, (code, object.0, object.1, Some(missing)), "{answer:#?}");
}

fn at(text: &str) -> Option<Timestamp> {
    Some(text.parse().unwrap())
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn job(more: Value) -> Value {
    let mut job = json!({
        "metadata": {"name": "train", "namespace": "ns", "uid": "job", "creationTimestamp": "2026-11-16T09:00:00Z"},
        "spec": {"parallelism": 2, "completions": 2, "selector": {"matchLabels": {"app": "train"}}, "template": {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}},
        "status": {"startTime": "2026-11-16T09:00:00Z"},
    });
    merge(&mut job, more);
    job
}

fn pod(name: &str, owner: &str, more: Value) -> Value {
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "creationTimestamp": "2026-11-16T09:00:00Z",
            "labels": {"app": "train"}, "ownerReferences": [{"uid": owner, "kind": "Job", "name": "train", "controller": true}],
        },
        "spec": {"nodeName": "node-a", "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    });
    merge(&mut pod, more);
    pod
}

fn ready(name: &str, owner: &str) -> Value {
    pod(name, owner, json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
}

fn terminating(name: &str, owner: &str, more: Value) -> Value {
    let mut pod = pod(
        name,
        owner,
        json!({"metadata": {"deletionTimestamp": "2026-11-16T09:50:30Z", "deletionGracePeriodSeconds": 30}}),
    );
    merge(&mut pod, more);
    pod
}

fn node(name: &str, ready: &str) -> Value {
    let mut node = json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-16T09:49:00Z", "reason": "R", "message": "m"}]},
    });
    if ready == "Unknown" {
        node["spec"] = json!({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-16T09:49:00Z"}]});
    }
    node
}

fn node_lease(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"renewTime": "2026-11-16T09:48:00.000000Z", "leaseDurationSeconds": 40}})
}

/// The Lease of a leader, with the version and configuration that it publishes.
fn election(renewed: &str, configuration: &str) -> Value {
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    let configuration = salvor_api::config::parse(&format!("{head}{configuration}")).unwrap();
    let told = json!({"version": "1", "configuration": configuration}).to_string();
    json!({
        "metadata": {"name": "salvor", "namespace": "salvor-system", "annotations": {"salvor.dev/status": told, "salvor.dev/brake": r#"{"admitted":{}}"#}},
        "spec": {"holderIdentity": "one", "renewTime": renewed, "leaseDurationSeconds": 15},
    })
}

const ALIVE: &str = "2026-11-16T09:59:55.000000Z";
const DEAD: &str = "2026-11-16T09:30:00.000000Z";
const GATE: &str = "featureGates: {FailureRecoveryPolicy: true}\n";

fn consenting(seconds: u32) -> Value {
    json!({"metadata": {"annotations": {"kueue.x-k8s.io/safe-to-forcefully-delete": "true", "salvor.dev/termination-grace-after": format!("{seconds}s")}}})
}

/// A Job of two pods, one of them stuck on a lost node.
fn stuck(more: Value) -> Cluster {
    cluster()
        .with(&JOB, job(json!({"spec": {"podReplacementPolicy": "Failed"}})))
        .with(&POD, ready("train-0", "job"))
        .with(
            &POD,
            terminating("train-1", "job", {
                let mut all = json!({"spec": {"nodeName": "lost"}});
                merge(&mut all, more);
                all
            }),
        )
        .with(&NODE, node("node-a", "True"))
        .with(&NODE, node("lost", "Unknown"))
        .with(&LEASE, node_lease("lost"))
}

#[test]
fn a_pod_on_a_lost_node_waits_for_whoever_may_act() {
    let off = "featureGates: {FailureRecoveryPolicy: false}\n";
    let later = consenting(3600);
    type Case = (&'static str, Value, Option<Value>, Code);
    let cases: Vec<Case> = vec![
        ("no Salvor", json!({}), None, Code::NodeLost),
        ("no consent", json!({}), Some(election(ALIVE, GATE)), Code::NotOptedIn),
        ("consent before who leads", json!({}), Some(election(DEAD, off)), Code::NotOptedIn),
        ("who leads before what is on", later.clone(), Some(election(DEAD, off)), Code::NobodyLeads),
        ("what is on before the wait", later.clone(), Some(election(ALIVE, off)), Code::RecoveryOff),
        (
            "its controller is left out",
            later.clone(),
            Some(election(ALIVE, "featureGates: {FailureRecoveryPolicy: true}\ncontrollers: [job]\n")),
            Code::RecoveryOff,
        ),
        ("the wait", later, Some(election(ALIVE, GATE)), Code::GraceRunning),
    ];
    for (case, more, election, code) in cases {
        let mut cluster = stuck(more);
        if let Some(election) = election {
            cluster = cluster.with(&LEASE, election);
        }
        let answer = cluster.why(&JOB, "train");
        let cause = &answer.root_causes[0];
        assert_eq!((cause.code, cause.object.name.as_str()), (code, "lost"), "{case}: {answer:#?}");
        assert_eq!(answer.missing.as_deref(), Some("1 of 2 pods"), "{case}");
        assert_eq!(cause.since, at("2026-11-16T09:48:00Z"), "{case}: the last renewal of the node's Lease");
        assert_eq!(cause.until.is_some(), code == Code::GraceRunning, "{case}");
    }
}

#[test]
fn a_pod_with_evict_after_is_promised_before_anything_deletes_it() {
    let pod = |after: &str| {
        let mut pod = ready("train-1", "job");
        let evict_after = json!({
            "metadata": {"annotations": {"kueue.x-k8s.io/safe-to-forcefully-terminate": "true", "salvor.dev/evict-after": after}},
            "spec": {"nodeName": "lost"},
            "status": {"conditions": [{"type": "Ready", "status": "False"}]},
        });
        merge(&mut pod, evict_after);
        pod
    };
    let why = |after: &str| {
        let cluster =
            cluster().with(&JOB, job(json!({}))).with(&POD, ready("train-0", "job")).with(&POD, pod(after));
        let cluster = cluster.with(&NODE, node("node-a", "True")).with(&NODE, node("lost", "Unknown"));
        cluster.with(&LEASE, node_lease("lost")).with(&LEASE, election(ALIVE, GATE)).why(&POD, "train-1")
    };
    let promised = why("24h");
    assert_eq!(promised.root_causes[0].code, Code::GraceRunning, "{promised:#?}");
    assert!(promised.root_causes[0].until.is_some(), "{promised:#?}");
    let unreadable = why("soon");
    assert_eq!(unreadable.root_causes[0].code, Code::NodeLost, "{unreadable:#?}");
}

#[test]
fn the_brake_and_a_pause_hold_a_recovery_back() {
    let mut paused = election(ALIVE, GATE);
    paused["metadata"]["annotations"]["salvor.dev/paused"] =
        r#"{"since":"2026-11-16T09:00:00Z","by":"me","reason":"test"}"#.into();
    let answer = stuck(consenting(60)).with(&LEASE, paused).why(&POD, "train-1");
    assert_eq!(answer.root_causes[0].code, Code::BrakeHolds, "{answer:#?}");
    assert_eq!(answer.remedies[0].command.as_deref(), Some("salvor resume"));
    let mut lost = election(ALIVE, GATE);
    lost["metadata"]["annotations"]["salvor.dev/brake"] = "nonsense".into();
    let answer = stuck(consenting(60)).with(&LEASE, lost).why(&POD, "train-1");
    assert_eq!(answer.root_causes[0].code, Code::BrakeHolds, "{answer:#?}");
    assert!(answer.root_causes[0].until.is_some(), "{answer:#?}");
}

#[test]
fn a_pod_that_its_job_would_not_survive_is_not_promised() {
    let cluster = || stuck(consenting(60)).with(&LEASE, election(ALIVE, GATE));
    let promised = cluster().why(&POD, "train-1");
    assert_eq!(promised.root_causes[0].code, Code::GraceRunning, "{promised:#?}");
    let message = "index 1 would fail for good";
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "job-would-fail", "namespace": "ns"},
        "involvedObject": {"kind": "Pod", "name": "train-1", "uid": "train-1"},
        "reason": "JobWouldFail", "message": message, "lastTimestamp": "2026-11-16T09:59:00Z",
    });
    let answer = cluster().with(&EVENT, event).why(&POD, "train-1");
    let cause = &answer.root_causes[0];
    assert_eq!((cause.code, cause.until), (Code::NodeLost, None), "{answer:#?}");
    assert!(cause.message.contains(message), "{answer:#?}");
}

#[test]
fn a_file_answers_what_if() {
    let cluster = stuck(json!({})).judged_by("featureGates: {FailureRecoveryPolicy: true}\n");
    assert_eq!(cluster.why(&JOB, "train").root_causes[0].code, Code::NotOptedIn);
    let cluster = stuck(consenting(60)).judged_by("{}\n".trim_start_matches("{}"));
    assert_eq!(cluster.why(&JOB, "train").root_causes[0].code, Code::RecoveryOff);
}

#[test]
fn consent_is_asked_for_last_and_names_every_pod() {
    let cluster = stuck(json!({})).with(&LEASE, election(ALIVE, GATE));
    let answer = cluster.why(&JOB, "train");
    let command = answer.remedies.iter().find_map(|remedy| remedy.command.clone()).unwrap();
    assert_eq!(
        command,
        "kubectl annotate pod train-1 -n ns --overwrite kueue.x-k8s.io/safe-to-forcefully-terminate=true"
    );
    let asked = cluster.why(&NODE, "lost");
    assert_eq!(asked.root_causes[0].code, Code::NotOptedIn, "{asked:#?}");
}

/// A Job that is not being deleted replaces a Failed pod. An owner that needs the pod's name, or waits for its
/// deletion, does not.
#[test]
fn no_more_is_asked_of_an_owner_than_is_needed() {
    let by = |kind: &str| json!({"metadata": {"ownerReferences": [{"uid": "o", "kind": kind, "name": "train", "controller": true}]}});
    let of_a_job_set = json!({"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": "set"}}});
    let done = json!({"metadata": {"annotations": {"kueue.x-k8s.io/safe-to-forcefully-terminate": "true"}}, "status": {"phase": "Failed"}});
    let stays = json!({});
    let ends = json!({"metadata": {"deletionTimestamp": NOW}});
    let owned = json!({"metadata": {"ownerReferences": [{"uid": "w", "kind": "Other", "name": "w", "controller": true}]}});
    for (case, more, job_is, suffix) in [
        ("its Job stays", json!({}), &stays, "terminate"),
        ("its Job is deleted", json!({}), &ends, "delete"),
        ("its Job is part of something", json!({}), &owned, "delete"),
        ("its Job is part of a JobSet", of_a_job_set, &stays, "delete"),
        ("a StatefulSet needs its name", by("StatefulSet"), &stays, "delete"),
        ("it is Failed already", done, &stays, "delete"),
    ] {
        let pod = terminating("p", "x", {
            let mut all = json!({"spec": {"nodeName": "lost"}});
            merge(&mut all, more);
            all
        });
        let cluster = cluster()
            .with(&JOB, job(job_is.clone()))
            .with(&POD, pod.clone())
            .with(&NODE, node("lost", "Unknown"))
            .with(&LEASE, node_lease("lost"))
            .with(&LEASE, election(ALIVE, GATE));
        let expected = format!(
            "kubectl annotate pod p -n ns --overwrite kueue.x-k8s.io/safe-to-forcefully-{suffix}=true"
        );
        let answer = cluster.why(&POD, "p");
        let commands: Vec<&str> = answer.remedies.iter().filter_map(|one| one.command.as_deref()).collect();
        assert_eq!(commands, [expected.as_str()], "{case}: {answer:#?}");
        // The same for a pod that was reduced.
        let mut slim = crate::slim::slim(&POD, pod, &std::collections::BTreeSet::new()).unwrap();
        slim["metadata"]["uid"] = "p".into();
        let mut many = cluster;
        many.0.retain(|(kind, _)| *kind != &POD);
        let answer = many.with(&POD, slim).why(&POD, "p");
        assert!(
            answer.remedies.iter().any(|one| one.command.as_ref() == Some(&expected)),
            "{case}: {answer:#?}"
        );
    }
}

/// The owner's consent is not enough where no recovery would act on it.
#[test]
fn consent_is_not_promised_to_help_where_nothing_acts_on_it() {
    let off = "featureGates: {FailureRecoveryPolicy: false}\n";
    for (case, election, first, told) in [
        ("on", election(ALIVE, GATE), None, ""),
        ("off", election(ALIVE, off), Some("salvor manifests"), "zombie recovery is off"),
        ("nobody leads", election(DEAD, GATE), Some("salvor manifests"), "no replica of Salvor leads"),
    ] {
        let answer = stuck(json!({})).with(&LEASE, election).why(&JOB, "train");
        let cause = &answer.root_causes[0];
        assert_eq!(cause.code, Code::NotOptedIn, "{case}");
        assert!(cause.message.contains(told), "{case}: {cause:?}");
        let commands: Vec<&str> = answer.remedies.iter().filter_map(|one| one.command.as_deref()).collect();
        let consent = commands.iter().position(|one| one.contains("annotate pod")).unwrap();
        assert_eq!(consent, usize::from(first.is_some()), "{case}: {commands:#?}");
        assert!(first.is_none_or(|first| commands[0].contains(first)), "{case}: {commands:#?}");
        let text = &answer.remedies.iter().find(|one| one.text.starts_with("Consent")).unwrap().text;
        assert_eq!(text.contains("only with the above"), first.is_some(), "{case}: {text}");
    }
}

#[test]
fn a_pod_that_is_not_marked_for_deletion_is_on_a_lost_node() {
    let cluster = cluster()
        .with(&JOB, job(json!({})))
        .with(&POD, ready("train-0", "job"))
        .with(&POD, pod("train-1", "job", json!({"spec": {"nodeName": "lost"}})))
        .with(&NODE, node("node-a", "True"))
        .with(&NODE, node("lost", "Unknown"))
        .with(&LEASE, election(ALIVE, GATE));
    first(&cluster.why(&JOB, "train"), Code::NodeLost, ("Node", "lost"), "1 of 2 pods");
    let said =
        self::cluster().with(&NODE, node("node-a", "Unknown")).with(&POD, ready("p", "x")).why(&POD, "p");
    assert_eq!(said.root_causes[0].code, Code::NodeLost, "its last word was that it is ready: {said:#?}");
    let gone = self::cluster().with(&POD, pod("p", "x", json!({"spec": {"nodeName": "gone"}})));
    assert_eq!(gone.why(&POD, "p").root_causes[0].code, Code::NodeLost);
}

#[test]
fn a_pod_that_was_replaced_is_nobodys_cause() {
    let unscheduled = pod(
        "train-2",
        "job",
        json!({"spec": {"nodeName": ""}, "status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient cpu."}]}}),
    );
    let cluster = cluster()
        .with(&JOB, job(json!({"spec": {"podReplacementPolicy": "TerminatingOrFailed"}})))
        .with(&POD, ready("train-0", "job"))
        .with(&POD, terminating("train-1", "job", json!({"spec": {"nodeName": "lost"}})))
        .with(&POD, unscheduled)
        .with(&NODE, node("lost", "Unknown"));
    let answer = cluster.why(&JOB, "train");
    first(&answer, Code::Unschedulable, ("Pod", "train-2"), "1 of 2 pods");
    assert_eq!(answer.root_causes.len(), 1, "{answer:#?}");
}

#[test]
fn a_sick_node_says_so_itself() {
    let cluster = cluster().with(&POD, pod("p", "x", json!({}))).with(&NODE, node("node-a", "False"));
    assert_eq!(cluster.why(&POD, "p").root_causes[0].code, Code::NodeSick);
    let answer = cluster.why(&NODE, "node-a");
    assert_eq!(
        (answer.root_causes[0].code, answer.root_causes[0].since),
        (Code::NodeSick, at("2026-11-16T09:49:00Z"))
    );
}

#[test]
fn a_repair_says_on_the_node_how_it_stands() {
    let repair = |reason: &str| {
        let mut node = node("node-a", "True");
        let condition = json!({"type": "SalvorRepair", "status": "True", "reason": reason, "message": "m"});
        node["status"]["conditions"].as_array_mut().unwrap().push(condition);
        node["metadata"]["annotations"] = json!({"salvor.dev/do-not-repair": ""});
        cluster().with(&POD, pending(json!({}))).with(&NODE, node)
    };
    for (reason, code) in [
        ("Waiting", Code::NodeSick),
        ("Repairing", Code::NodeSick),
        ("Blocked", Code::RepairBlocked),
        ("Vetoed", Code::RepairBlocked),
        ("AnnotationUnreadable", Code::RepairBlocked),
        ("Repaired", Code::Starting),
        ("Recovered", Code::Starting),
    ] {
        let answer = repair(reason).why(&POD, "p");
        assert_eq!(answer.root_causes[0].code, code, "{reason}: {answer:#?}");
    }
    let answer = repair("Vetoed").why(&NODE, "node-a");
    let command = answer.remedies[0].command.as_deref();
    assert_eq!(command, Some("kubectl annotate node node-a salvor.dev/do-not-repair-"));
}

#[test]
fn a_node_that_was_deleted_is_nobodys_to_taint() {
    let answer = cluster().with(&POD, pending(json!({"spec": {"nodeName": "gone"}}))).why(&POD, "p");
    first(&answer, Code::NodeLost, ("Node", "gone"), "it does not run ready");
    assert!(answer.remedies.iter().all(|remedy| remedy.command.is_none()), "{answer:#?}");
}

#[test]
fn remedies_of_an_installation_keep_what_is_installed() {
    let named =
        |spec: Value| json!({"metadata": {"name": "salvor", "namespace": "salvor-system"}, "spec": spec});
    let installed = |replicas: u32| {
        let image = "example.com/salvor:1";
        named(
            json!({"replicas": replicas, "template": {"spec": {"containers": [{"name": "salvor", "image": image}]}}}),
        )
    };
    let command = |cluster: &Cluster| {
        let answer = cluster.why(&JOB, "train");
        let command = answer.remedies.iter().find_map(|remedy| remedy.command.clone());
        (answer.root_causes[0].code, command.unwrap_or_default())
    };
    let off = "controllers: [job]\ndryRun: true\n";
    let bare = stuck(consenting(3600)).with(&LEASE, election(ALIVE, off));
    assert_eq!(
        command(&bare),
        (
            Code::RecoveryOff,
            r#"printf %s '{"apiVersion":"config.salvor.dev/v1alpha1","controllers":["job"],"dryRun":true,"kind":"Configuration"}' | salvor manifests --config=/dev/stdin --namespace=salvor-system --controllers=job,zombie --feature-gates=FailureRecoveryPolicy=true --dry-run=false | kubectl apply -f -"#
                .to_owned()
        )
    );
    // All settings are kept, except those that only make sense outside of a cluster.
    let settings = "controllers: [job, eviction]\nbind: 127.0.0.1:0\nbrake: {maxPodsPerMinute: 7}\nfailureRecoveryPolicy: {rules: [{terminatePod: {podLabelSelector: {matchLabels: {a: b}}, forcefulTerminationGracePeriod: 5m, action: Fail}}]}\nappwrapper: {autopilot: {resourceTaints: {nvidia.com/gpu: [{key: autopilot.ibm.com/gpuhealth, value: WARN, effect: PreferNoSchedule}, {key: autopilot.ibm.com/gpuhealth, value: TESTING, effect: NoSchedule}, {key: autopilot.ibm.com/gpuhealth, value: EVICT, effect: NoExecute}], amd.com/gpu: []}}}\n";
    let (_, kept) = command(&stuck(consenting(3600)).with(&LEASE, election(ALIVE, settings)));
    let file = kept.strip_prefix("printf %s '").and_then(|rest| rest.split_once("' | salvor")).unwrap().0;
    let file = salvor_api::config::parse(&file.replace(r"'\''", "'")).unwrap();
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    let mut expected = salvor_api::config::parse(&format!("{head}{settings}")).unwrap();
    expected.bind = salvor_api::config::Configuration::default().bind;
    assert_eq!(file, expected, "{kept}");
    assert!(kept.contains("--controllers=job,eviction,zombie"), "{kept}");
    let whole = stuck(consenting(3600))
        .with(&LEASE, election(ALIVE, "controllers: [zombie]\n"))
        .with(&DEPLOYMENT, installed(2))
        .with(&CONFIG_MAP, named(json!({})));
    assert_eq!(
        command(&whole).1,
        r"kubectl get configmap salvor -n salvor-system -o jsonpath='{.data.config\.yaml}' | salvor manifests --config=/dev/stdin --namespace=salvor-system --image=example.com/salvor:1 --feature-gates=FailureRecoveryPolicy=true | kubectl apply -f -"
    );
    // A reader without rights on ConfigMaps gets the same command, for an administrator.
    let mut world = whole.world();
    world.cannot_see(&CONFIG_MAP, crate::NotSeen { what: "configmaps".into(), why: "forbidden".into() });
    let answer = why(&world, &Judge::default(), &JOB, "ns", "train").unwrap();
    let told = answer.remedies.iter().find_map(|remedy| remedy.command.as_deref()).unwrap();
    assert!(told.starts_with("kubectl get configmap salvor"), "{told}");
    // An installation by Helm is changed by Helm and keeps its values.
    let by_helm = |dry_run: bool| {
        let mut deployment = installed(2);
        deployment["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "Helm"});
        deployment["metadata"]["annotations"] =
            json!({"meta.helm.sh/release-name": "mine", "meta.helm.sh/release-namespace": "salvor-system"});
        // The slim form, which is kept when many objects are read.
        let slim = crate::slim::slim(&DEPLOYMENT, deployment, &std::collections::BTreeSet::new()).unwrap();
        let settings = format!("controllers: [job]\ndryRun: {dry_run}\n");
        let cluster =
            stuck(consenting(3600)).with(&LEASE, election(ALIVE, &settings)).with(&DEPLOYMENT, slim);
        command(&cluster.with(&CONFIG_MAP, named(json!({}))))
    };
    let upgrade = "helm upgrade mine charts/salvor -n salvor-system --reuse-values --set recoveries.zombie.enabled=true";
    assert_eq!(by_helm(false), (Code::RecoveryOff, upgrade.to_owned()));
    assert_eq!(by_helm(true).1, format!("{upgrade} --set dryRun=false --set config.dryRun=false"));
    // No replica has led yet, or the leader is gone.
    for (replicas, lease, expected) in [
        (0, None, "kubectl scale deployment/salvor -n salvor-system --replicas=2"),
        (2, Some(DEAD), "salvor why deployment/salvor -n salvor-system"),
    ] {
        let mut cluster = stuck(consenting(3600)).with(&DEPLOYMENT, installed(replicas));
        if let Some(renewed) = lease {
            cluster = cluster.with(&LEASE, election(renewed, GATE));
        }
        assert_eq!(command(&cluster), (Code::NobodyLeads, expected.to_owned()));
    }
}

#[test]
fn a_pod_that_ends_is_waited_for_and_one_that_has_ended_is_held() {
    let well = || cluster().with(&NODE, node("node-a", "True"));
    let answer = well().with(&POD, terminating("p", "x", json!({}))).why(&POD, "p");
    let cause = &answer.root_causes[0];
    assert_eq!(
        (cause.code, cause.since),
        (Code::AwaitingTermination, at("2026-11-16T09:50:00Z")),
        "{answer:#?}"
    );
    let held = json!({"metadata": {"finalizers": ["example.com/hold", "batch.kubernetes.io/job-tracking"]}, "status": {"phase": "Failed"}});
    let answer = well().with(&POD, terminating("p", "x", held)).why(&POD, "p");
    assert_eq!(answer.root_causes[0].code, Code::FinalizerHolds);
    let command = answer.remedies.iter().find_map(|remedy| remedy.command.as_deref()).unwrap();
    assert_eq!(
        command,
        r#"kubectl patch pod p -n ns --type=merge -p '{"metadata":{"finalizers":["batch.kubernetes.io/job-tracking"]}}'"#
    );
    let forced = json!({"metadata": {"finalizers": ["example.com/hold"], "deletionGracePeriodSeconds": 0}, "spec": {"nodeName": "lost"}});
    let answer = cluster()
        .with(&NODE, node("lost", "Unknown"))
        .with(&POD, terminating("p", "x", forced))
        .why(&POD, "p");
    assert_eq!(answer.root_causes[0].code, Code::FinalizerHolds);
    assert!(answer.remedies.last().unwrap().text.contains("twice"), "nobody saw it end: {answer:#?}");
}

#[test]
fn a_job_tells_of_itself() {
    let failed = |reason: &str| json!({"status": {"failed": 3, "conditions": [{"type": "Failed", "status": "True", "reason": reason, "lastTransitionTime": NOW}]}});
    let managed = |by: &str| json!({"spec": {"managedBy": by}, "status": null});
    let young = json!({"metadata": {"creationTimestamp": "2026-11-16T09:59:45Z"}, "spec": {"managedBy": "example.com/x"}, "status": null});
    for (more, code) in [
        (json!({"spec": {"suspend": true}}), Code::Suspended),
        (failed("BackoffLimitExceeded"), Code::BackoffLimitExceeded),
        (failed("DeadlineExceeded"), Code::DeadlineExceeded),
        (failed("PodFailurePolicy"), Code::JobFailed),
        (managed("example.com/controller"), Code::ControllerAbsent),
        (managed("salvor.dev/job-controller"), Code::ControllerAbsent),
        (managed("kubernetes.io/job-controller"), Code::ControllerAbsent),
        (young, Code::Unknown),
    ] {
        let answer = cluster().with(&JOB, job(more.clone())).why(&JOB, "train");
        first(&answer, code, ("Job", "train"), "2 of 2 pods");
    }
    let ours =
        cluster().with(&JOB, job(managed("salvor.dev/job-controller"))).with(&LEASE, election(DEAD, GATE));
    first(&ours.why(&JOB, "train"), Code::NobodyLeads, ("Job", "train"), "2 of 2 pods");
    let complete =
        json!({"status": {"succeeded": 2, "conditions": [{"type": "Complete", "status": "True"}]}});
    assert_eq!(cluster().with(&JOB, job(complete)).why(&JOB, "train").missing, None);
    let left = cluster().with(&JOB, job(json!({"spec": {"suspend": true}, "status": {"succeeded": 1}})));
    assert_eq!(
        left.why(&JOB, "train").missing.as_deref(),
        Some("1 of 1 pods"),
        "what is left of completions"
    );
    let command = left.why(&JOB, "train").remedies[0].command.clone().unwrap();
    assert_eq!(command, r#"kubectl patch jobs train -n ns --type=merge -p '{"spec":{"suspend":false}}'"#);
}

#[test]
fn a_job_waits_before_it_replaces_a_failed_pod() {
    let failed = |name: &str, at: &str| {
        pod(
            name,
            "job",
            json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 1, "finishedAt": at}}}]}}),
        )
    };
    let cluster = cluster()
        .with(&JOB, job(json!({"spec": {"parallelism": 1, "completions": 1}})))
        .with(&POD, failed("a", "2026-11-16T09:59:00Z"))
        .with(&POD, failed("b", "2026-11-16T09:59:50Z"));
    let answer = cluster.why(&JOB, "train");
    first(&answer, Code::BackoffRunning, ("Job", "train"), "1 of 1 pods");
    assert_eq!(answer.root_causes[0].until, at("2026-11-16T10:00:10Z"));
}

#[test]
fn a_job_whose_pods_were_all_disrupted_was_ended_by_lost_nodes() {
    let failed = |name: &str, conditions: Value| {
        pod(name, "job", json!({"status": {"phase": "Failed", "conditions": conditions}}))
    };
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let spec = json!({"parallelism": 2, "completions": 2});
    let end = json!([{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": NOW}]);
    let dead = job(json!({"spec": spec, "status": {"conditions": end}}));
    let says = |third: Option<Value>| {
        let pods = ["a", "b"].map(|name| failed(name, disrupted.clone()));
        let pods = pods.into_iter().chain(third);
        let all = pods.fold(cluster().with(&JOB, dead.clone()), |cluster, pod| cluster.with(&POD, pod));
        let answer = all.why(&JOB, "train");
        format!("{} {}", answer.root_causes[0].message, answer.remedies[0].text)
    };
    let lost = says(None);
    assert!(lost.contains("2 pods ended by lost nodes") && !lost.contains("Put right"), "{lost}");
    // Pods that were deleted because the Job failed do not count. Pods that failed by themselves do.
    let mut deleted = failed("c", json!([]));
    merge(&mut deleted, json!({"metadata": {"deletionTimestamp": NOW}}));
    assert_eq!(says(Some(deleted)), lost);
    let mixed = says(Some(failed("d", json!([]))));
    assert!(mixed.contains("Put right what failed") && !mixed.contains("lost nodes"), "{mixed}");
}

#[test]
fn eight_failures_at_once_make_a_job_wait_for_ten_minutes() {
    let failed = |number: usize| {
        let ended =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-16T09:59:00Z"}]);
        pod(&format!("p{number}"), "job", json!({"status": {"phase": "Failed", "conditions": ended}}))
    };
    let one = job(json!({"spec": {"parallelism": 8, "completions": 8, "backoffLimit": 14}}));
    let all = (0..8).fold(cluster().with(&JOB, one), |cluster, number| cluster.with(&POD, failed(number)));
    let answer = all.why(&JOB, "train");
    first(&answer, Code::BackoffRunning, ("Job", "train"), "8 of 8 pods");
    assert_eq!(answer.root_causes[0].until, at("2026-11-16T10:09:00Z"));
    let says = &answer.root_causes[0].message;
    assert!(says.contains("8 of its pods failed") && says.contains("10m"), "{says}");
}

fn pending(more: Value) -> Value {
    let mut pod = pod("p", "x", json!({"status": {"phase": "Pending"}}));
    merge(&mut pod, more);
    pod
}

#[test]
fn a_pod_that_does_not_start_says_why() {
    let waiting = |reason: &str| json!({"status": {"containerStatuses": [{"name": "main", "image": "i", "restartCount": 2, "state": {"waiting": {"reason": reason, "message": "m"}}}]}});
    let needs = json!({"spec": {"containers": [{"name": "main", "envFrom": [{"configMapRef": {"name": "settings"}}]}]}});
    let optional = json!({"spec": {"containers": [{"name": "main", "envFrom": [{"configMapRef": {"name": "settings", "optional": true}}]}]}});
    let secret = json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "token"}}]}});
    for (more, code, object) in [
        (waiting("ImagePullBackOff"), Code::ImagePullFailed, ("Pod", "p")),
        (waiting("ErrImagePull"), Code::ImagePullFailed, ("Pod", "p")),
        (waiting("CrashLoopBackOff"), Code::CrashLooping, ("Pod", "p")),
        (needs, Code::ConfigMissing, ("ConfigMap", "settings")),
        (optional, Code::Starting, ("Pod", "p")),
        (secret, Code::ConfigMissing, ("Secret", "token")),
        (json!({"status": {"phase": "Failed", "reason": "Evicted"}}), Code::PodFailed, ("Pod", "p")),
    ] {
        let answer = cluster().with(&NODE, node("node-a", "True")).with(&POD, pending(more)).why(&POD, "p");
        let cause = &answer.root_causes[0];
        assert_eq!(
            (cause.code, cause.object.kind.as_str(), cause.object.name.as_str()),
            (code, object.0, object.1),
            "{answer:#?}"
        );
    }
}

#[test]
fn a_claim_without_a_volume_comes_before_what_the_scheduler_says() {
    let unscheduled = |says: &str| {
        pending(
            json!({"spec": {"nodeName": "", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}]}}),
        )
    };
    let claim = |class: &str| json!({"metadata": {"name": "data", "namespace": "ns"}, "spec": {"storageClassName": class}, "status": {"phase": "Pending"}});
    let waits = json!({"metadata": {"name": "wait"}, "volumeBindingMode": "WaitForFirstConsumer"});
    let unbound = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    let cluster = || cluster().with(&STORAGE_CLASS, waits.clone());
    for (says, class, code) in [
        (unbound, "none", Code::VolumeUnbound),
        ("0/1 nodes are available: 1 Insufficient cpu.", "wait", Code::Unschedulable),
        (
            "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.",
            "wait",
            Code::VolumeUnbound,
        ),
    ] {
        let answer = cluster().with(&POD, unscheduled(says)).with(&CLAIM, claim(class)).why(&POD, "p");
        assert_eq!(answer.root_causes[0].code, code, "{answer:#?}");
    }
    assert_eq!(
        cluster().with(&POD, unscheduled(unbound)).why(&POD, "p").root_causes[0].code,
        Code::VolumeUnbound,
        "no claim at all"
    );
    assert_eq!(
        cluster().with(&CLAIM, claim("none")).why(&CLAIM, "data").root_causes[0].code,
        Code::VolumeUnbound
    );
}

#[test]
fn a_volume_that_another_node_has_is_told_by_its_attachment() {
    let pod = pending(
        json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}}),
    );
    let claim = json!({"metadata": {"name": "data", "namespace": "ns"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}});
    let volume = |mode: &str| json!({"metadata": {"name": "pv"}, "spec": {"accessModes": [mode]}});
    let attachment = json!({"metadata": {"name": "csi-1"}, "spec": {"nodeName": "lost", "source": {"persistentVolumeName": "pv"}}});
    let on = |mode: &str| {
        cluster()
            .with(&NODE, node("node-a", "True"))
            .with(&NODE, node("lost", "Unknown"))
            .with(&POD, pod.clone())
            .with(&CLAIM, claim.clone())
            .with(&VOLUME, volume(mode))
            .with(&ATTACHMENT, attachment.clone())
    };
    let answer = on("ReadWriteOnce").why(&POD, "p");
    assert_eq!(
        (answer.root_causes[0].code, answer.root_causes[0].object.name.as_str()),
        (Code::VolumeAttachedElsewhere, "csi-1"),
        "{answer:#?}"
    );
    assert_eq!(on("ReadWriteMany").why(&POD, "p").root_causes[0].code, Code::Starting);
    assert_eq!(on("ReadWriteOnce").why(&CLAIM, "data").root_causes[0].code, Code::VolumeAttachedElsewhere);
}

fn refused(message: &str) -> Value {
    json!({"metadata": {"name": "e", "namespace": "ns"}, "involvedObject": {"uid": "job"}, "reason": "FailedCreate", "message": message, "lastTimestamp": NOW})
}

#[test]
fn the_quota_that_has_no_room_is_named_by_its_numbers() {
    let quota = |name: &str, hard: Value, used: Value| json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}});
    let roomy = quota("a-roomy", json!({"pods": "10"}), json!({"pods": "1"}));
    let full = quota("full", json!({"requests.cpu": "2"}), json!({"requests.cpu": "1500m"}));
    let cluster = cluster().with(&JOB, job(json!({}))).with(&QUOTA, roomy).with(&QUOTA, full);
    let answer = cluster.why(&JOB, "train");
    first(&answer, Code::QuotaExceeded, ("ResourceQuota", "full"), "2 of 2 pods");
    let command = answer.remedies[0].command.clone().unwrap();
    assert_eq!(
        command,
        r#"kubectl patch resourcequota full -n ns --type=merge -p '{"spec":{"hard":{"requests.cpu":"3500m"}}}'"#
    );
}

#[test]
fn a_refusal_is_whoevers_refused() {
    let webhooks = json!({"metadata": {"name": "guard"}, "webhooks": [{"name": "pods.example.com"}]});
    for (message, kind, name) in [
        (
            r#"Error creating: admission webhook "pods.example.com" denied the request: no"#,
            "ValidatingWebhookConfiguration",
            "guard",
        ),
        (
            r#"Error creating: Internal error occurred: failed calling webhook "pods.example.com": no endpoints"#,
            "ValidatingWebhookConfiguration",
            "guard",
        ),
        (r#"Error creating: admission webhook "other.example.com" denied the request: no"#, "Job", "train"),
        (
            r#"Error creating: pods "x" is forbidden: ValidatingAdmissionPolicy 'no-root' with binding 'b' denied request: no"#,
            "ValidatingAdmissionPolicy",
            "no-root",
        ),
        (
            r#"Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest""#,
            "Job",
            "train",
        ),
    ] {
        let cluster = cluster()
            .with(&JOB, job(json!({})))
            .with(&VALIDATING, webhooks.clone())
            .with(&EVENT, refused(message));
        first(&cluster.why(&JOB, "train"), Code::AdmissionRefused, (kind, name), "2 of 2 pods");
    }
    let expired = cluster().with(&JOB, job(json!({}))).why(&JOB, "train");
    first(&expired, Code::Unknown, ("Job", "train"), "2 of 2 pods");
    assert!(expired.root_causes[0].message.contains("events expire"), "{expired:#?}");
}

#[test]
fn kueue_comes_before_the_suspension_that_it_makes() {
    let queued =
        json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}, "spec": {"suspend": true}});
    let workload = |conditions: Value| {
        json!({
            "metadata": {"name": "w", "namespace": "ns", "uid": "w", "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": true}]},
            "spec": {"queueName": "q", "podSets": [{"count": 2}]}, "status": {"conditions": conditions},
        })
    };
    let inadmissible = json!([{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "insufficient quota"}]);
    let preempted = json!([{"type": "QuotaReserved", "status": "False"}, {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "by another"}]);
    for (conditions, code) in [(inadmissible, Code::KueueNotAdmitted), (preempted, Code::KueuePreempted)] {
        let cluster = cluster().with(&JOB, job(queued.clone())).with(&WORKLOAD, workload(conditions));
        first(&cluster.why(&JOB, "train"), code, ("Workload", "w"), "2 of 2 pods");
        first(&cluster.why(&WORKLOAD, "w"), code, ("Workload", "w"), "2 of 2 pods");
    }
    let without = cluster().with(&JOB, job(queued));
    first(&without.why(&JOB, "train"), Code::Suspended, ("Job", "train"), "2 of 2 pods");
}

#[test]
fn a_budget_keeps_a_pod_on_a_cordoned_node() {
    let mut cordoned = node("node-a", "True");
    cordoned["spec"] = json!({"unschedulable": true});
    let budget = |allowed: i64| json!({"metadata": {"name": "keep", "namespace": "ns"}, "spec": {"selector": {"matchLabels": {"app": "train"}}}, "status": {"disruptionsAllowed": allowed}});
    let on = |allowed| {
        cluster().with(&NODE, cordoned.clone()).with(&POD, ready("p", "x")).with(&BUDGET, budget(allowed))
    };
    let answer = on(0).why(&NODE, "node-a");
    assert_eq!(
        (answer.root_causes[0].code, answer.root_causes[0].object.name.as_str()),
        (Code::DisruptionBudget, "keep"),
        "{answer:#?}"
    );
    assert_eq!(on(1).why(&NODE, "node-a").missing, None);
}

#[test]
fn an_app_wrapper_says_in_which_phase_it_is() {
    let component = json!({"template": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"parallelism": 2, "completions": 2}}});
    let wrapper = |phase: &str, suspend: bool| json!({"metadata": {"name": "a", "namespace": "ns", "uid": "a"}, "spec": {"suspend": suspend, "components": [component]}, "status": {"phase": phase}});
    for (phase, suspend, code) in [
        ("Failed", false, Code::WorkloadFailed),
        ("Resetting", false, Code::WorkloadResetting),
        ("Suspended", true, Code::Suspended),
    ] {
        let answer = cluster().with(&APP_WRAPPER, wrapper(phase, suspend)).why(&APP_WRAPPER, "a");
        first(&answer, code, ("AppWrapper", "a"), "2 of 2 pods");
    }
    let mut changed = wrapper("Resetting", false);
    let message = "spec.components[0].template: Forbidden";
    changed["status"]["conditions"] =
        json!([{"type": "ComponentsValid", "status": "False", "reason": "Refused", "message": message}]);
    let answer = cluster().with(&APP_WRAPPER, changed).why(&APP_WRAPPER, "a");
    first(&answer, Code::WorkloadResetting, ("AppWrapper", "a"), "2 of 2 pods");
    assert!(answer.root_causes[0].message.contains(message), "{answer:#?}");
    let answer = stuck(json!({})).with(&APP_WRAPPER, wrapper("Running", false)).why(&APP_WRAPPER, "a");
    first(&answer, Code::NodeLost, ("Node", "lost"), "1 of 2 pods");
}

#[test]
fn sets_and_whatever_owns_pods_are_walked_down() {
    let set = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "set"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}}});
    let cluster = cluster()
        .with(&STATEFUL_SET, set)
        .with(&POD, ready("web-0", "set"))
        .with(&POD, terminating("web-1", "set", json!({"spec": {"nodeName": "lost"}})))
        .with(&NODE, node("lost", "Unknown"));
    first(&cluster.why(&STATEFUL_SET, "web"), Code::NodeLost, ("Node", "lost"), "1 of 2 pods");
    let deployment =
        json!({"metadata": {"name": "api", "namespace": "ns", "uid": "deploy"}, "spec": {"replicas": 1}});
    let replica_set = json!({"metadata": {"name": "api-1", "namespace": "ns", "uid": "rs", "ownerReferences": [{"uid": "deploy", "controller": true}]}, "spec": {"replicas": 1},
        "status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "pods \"x\" is forbidden: violates PodSecurity"}]}});
    let cluster = self::cluster().with(&DEPLOYMENT, deployment).with(&REPLICA_SET, replica_set);
    let answer = cluster.why(&DEPLOYMENT, "api");
    first(&answer, Code::AdmissionRefused, ("ReplicaSet", "api-1"), "1 of 1 pods");
    let cron =
        json!({"metadata": {"name": "nightly", "namespace": "ns", "uid": "cron"}, "spec": {"suspend": true}});
    let answer = self::cluster().with(&CRON_JOB, cron).why(&CRON_JOB, "nightly");
    first(&answer, Code::Suspended, ("CronJob", "nightly"), "its next run");
}

#[test]
fn everything_is_grouped_by_root_cause_and_object() {
    let other = json!({"metadata": {"name": "other", "uid": "other"}, "spec": {"parallelism": 1, "completions": 1, "podReplacementPolicy": "Failed"}});
    let cluster = stuck(json!({}))
        .with(&JOB, job(other))
        .with(&POD, terminating("other-0", "other", json!({"spec": {"nodeName": "lost"}})))
        .with(&LEASE, election(ALIVE, GATE));
    let mut world = cluster.world();
    let overview = crate::everything(&mut world, &cluster.1);
    assert_eq!(overview.groups.len(), 1, "{overview:#?}");
    let group = &overview.groups[0];
    assert_eq!((group.root_cause.code, group.workloads.len()), (Code::NotOptedIn, 2), "{overview:#?}");
    assert_eq!(group.pods, 2, "{overview:#?}");
    let message = &group.root_cause.message;
    assert!(message.starts_with("2 pods of 2 workloads wait: node lost is silent"), "{message}");
    let command = group.remedies.iter().find_map(|remedy| remedy.command.as_deref()).unwrap();
    assert!(command.contains("train-1 other-0"), "{command}");
}

#[test]
fn one_pod_of_one_workload_is_told_as_one() {
    let cluster = stuck(json!({})).with(&LEASE, election(ALIVE, GATE));
    let overview = crate::everything(&mut cluster.world(), &cluster.1);
    let message = &overview.groups[0].root_cause.message;
    assert!(message.starts_with("1 pod of 1 workload waits: node lost is silent"), "{message}");
}

#[test]
fn a_person_evicts_where_a_leader_does_it_and_taints_elsewhere() {
    let stays = json!({"metadata": {"name": "stays", "namespace": "ns", "uid": "stays"}, "spec": {"nodeName": "lost"}, "status": {"phase": "Running"}});
    let lost = |cluster: Cluster| {
        cluster
            .with(&NODE, node("lost", "Unknown"))
            .with(&LEASE, node_lease("lost"))
            .with(&POD, stays.clone())
    };
    for (cluster, word) in [
        (lost(cluster()), "out-of-service"),
        (lost(cluster()).with(&LEASE, election(ALIVE, GATE)), "salvor evict lost"),
        (lost(cluster()).with(&LEASE, election(DEAD, GATE)), "out-of-service"),
        (lost(cluster()).with(&LEASE, election(ALIVE, "controllers: [zombie]\n")), "out-of-service"),
    ] {
        let answer = cluster.why(&POD, "stays");
        let commands: Vec<&str> =
            answer.remedies.iter().filter_map(|remedy| remedy.command.as_deref()).collect();
        assert_eq!(answer.root_causes[0].code, Code::NodeLost, "{answer:#?}");
        assert!(commands.len() == 1 && commands[0].contains(word), "{word}: {commands:?}");
    }
}

#[test]
fn what_holds_everything_is_told_with_the_configuration() {
    let engaged = json!({"since": "2026-11-16T09:59:00Z", "nodes": {"unreachable": 6, "total": 10}});
    let mut lease = election(ALIVE, GATE);
    lease["metadata"]["annotations"]["salvor.dev/brake"] =
        json!({"admitted": {}, "engaged": engaged}).to_string().into();
    lease["metadata"]["annotations"]["salvor.dev/paused"] =
        json!({"since": NOW, "by": "jane"}).to_string().into();
    let cluster = cluster().with(&LEASE, lease);
    let told = cluster.1.told(&cluster.world());
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("Judged by"), "{told}");
    assert!(lines[1].starts_with("Salvor is paused by jane"), "{told}");
    assert!(lines[2].starts_with("The brake holds: 6 of 10 nodes"), "{told}");
}

#[test]
fn a_paused_deployment_and_a_job_that_nothing_runs_are_told() {
    let deployment = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "web"},
        "spec": {"replicas": 2, "paused": true, "selector": {"matchLabels": {"app": "web"}}},
    });
    let answer = cluster().with(&DEPLOYMENT, deployment).why(&DEPLOYMENT, "web");
    first(&answer, Code::Suspended, ("Deployment", "web"), "2 of 2 pods");
    let command = answer.remedies[0].command.as_deref();
    assert_eq!(command, Some("kubectl rollout resume deployment/web -n ns"));
    let mut untouched = job(json!({}));
    untouched["status"] = json!({});
    let answer = cluster().with(&JOB, untouched.clone()).why(&JOB, "train");
    first(&answer, Code::ControllerAbsent, ("Job", "train"), "2 of 2 pods");
    untouched["metadata"]["creationTimestamp"] = NOW.into();
    let answer = cluster().with(&JOB, untouched).why(&JOB, "train");
    first(&answer, Code::Unknown, ("Job", "train"), "2 of 2 pods");
}

#[test]
fn a_cron_job_whose_job_is_refused_says_so_until_one_is_made() {
    let cron = json!({
        "metadata": {"name": "nightly", "namespace": "ns", "uid": "job"},
        "spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": []}}}}},
    });
    let message = "Error creating job: admission webhook \"jobs.example.com\" denied the request: no";
    let cluster = || self::cluster().with(&CRON_JOB, cron.clone()).with(&EVENT, refused(message));
    let answer = cluster().why(&CRON_JOB, "nightly");
    first(&answer, Code::AdmissionRefused, ("CronJob", "nightly"), "its last run");
    let since = json!({
        "metadata": {"name": "nightly-1", "uid": "nightly-1", "creationTimestamp": NOW,
            "ownerReferences": [{"kind": "CronJob", "name": "nightly", "uid": "job", "controller": true}]},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    });
    let answer = cluster().with(&JOB, job(since)).why(&CRON_JOB, "nightly");
    assert_eq!(answer.missing, None, "{answer:#?}");
}

#[test]
fn a_node_counts_its_pods_by_state() {
    let on = |name: &str, more: Value| {
        let mut pod =
            json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"nodeName": "n"}});
        merge(&mut pod, more);
        pod
    };
    let ready =
        json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let running = json!({"status": {"phase": "Running"}});
    let ends = json!({"metadata": {"deletionTimestamp": NOW}, "status": {"phase": "Running"}});
    let cluster = cluster()
        .with(&NODE, ready)
        .with(&POD, on("a", running.clone()))
        .with(&POD, on("b", running))
        .with(&POD, on("c", ends));
    let answer = cluster.why(&NODE, "n");
    assert_eq!((answer.missing, answer.root_causes.len()), (None, 0));
    assert_eq!(answer.chain[0].says, "pods on it: 2 Running, 1 Terminating");
    let lost = stuck(json!({})).why(&NODE, "lost");
    let missing = lost.missing.unwrap_or_default();
    assert!(missing.contains("1 pod is on it (pods: 1 Terminating)"), "{missing}");
}

#[test]
fn only_what_is_needed_is_wanted() {
    let mut world = World::new(NOW.parse().unwrap());
    let query = crate::Query::Get { kind: JOB.clone(), namespace: "ns".into(), name: "train".into() };
    world.learn(query, crate::Outcome::Found(vec![job(json!({"spec": {"suspend": true}}))]));
    let answer = why(&world, &Judge::default(), &JOB, "ns", "train");
    assert!(answer.is_some());
    let wanted = world.wanted();
    assert_eq!(wanted.len(), 2, "its pods, the Workloads of Kueue, and nothing else: {wanted:?}");
}

#[test]
fn each_root_cause_has_its_section_in_the_docs() {
    let docs = include_str!("../../../docs/guides/why.md");
    for code in Code::ALL {
        assert!(
            docs.contains(&format!("\n### {}\n", code.name())),
            "docs/guides/why.md has no section {code:?}"
        );
    }
    assert!(Code::ALL.is_sorted(), "worst first");
}

#[test]
fn what_others_wrote_is_one_line_that_no_terminal_obeys() {
    let message = format!("Error creating: \u{1b}[2J\nsecond {}", "x".repeat(5000));
    let cluster = cluster().with(&JOB, job(json!({}))).with(&EVENT, refused(&message));
    let answer = cluster.why(&JOB, "train");
    let told = &answer.root_causes[0].message;
    assert!(!told.contains(char::is_control) && told.chars().count() < 1000, "{told}");
}
