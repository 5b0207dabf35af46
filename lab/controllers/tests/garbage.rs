//! The garbage collector and the deletion of namespaces, as loops on the embedded API, in virtual time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, PropagationPolicy,
};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt};
use salvor_apiserver::{ChangeKind, Cluster, Effect, Fault, Faults, Settings};
use salvor_controllers::{ControlLoops, Loop, LoopOptions};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// A cluster with some loops, and faults between the loops and the API.
struct Stage {
    cluster: Cluster,
    faults: Faults,
    loops: ControlLoops,
}

impl Stage {
    fn with(loops: &[Loop]) -> Self {
        Self::of(1, loops)
    }

    fn of(seed: u64, loops: &[Loop]) -> Self {
        let cluster = Cluster::new(Settings { seed, ..Settings::default() });
        let faults = Faults::default();
        let loops = Self::start(&cluster, &faults, loops);
        Self { cluster, faults, loops }
    }

    fn start(cluster: &Cluster, faults: &Faults, loops: &[Loop]) -> ControlLoops {
        let client = Client::new(faults.before(cluster.clone()), "default");
        let options = LoopOptions { loops: loops.iter().copied().collect(), ..LoopOptions::default() };
        let clock = cluster.clone();
        ControlLoops::start(&client, move || clock.now(), &options)
    }

    fn configs(&self) -> Api<ConfigMap> {
        Api::default_namespaced(self.cluster.client())
    }

    async fn names(&self) -> Vec<String> {
        self.configs().list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect()
    }

    /// A ConfigMap with these owners, whose deletion it blocks.
    async fn config(&self, name: &str, owners: &[&ConfigMap]) -> ConfigMap {
        let owners: Vec<Value> = owners.iter().map(|owner| reference(owner)).collect();
        let object = from(json!({ "metadata": { "name": name, "ownerReferences": owners } }));
        self.configs().create(&PostParams::default(), &object).await.unwrap()
    }

    async fn delete(&self, name: &str, policy: PropagationPolicy) {
        let how = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        self.configs().delete(name, &how).await.unwrap();
    }
}

fn reference(owner: &ConfigMap) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid().unwrap(),
        "blockOwnerDeletion": true,
    })
}

fn from<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Waits in virtual time, which costs nothing. Returns how long it took.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) -> Duration {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(3600), "an hour later still not so: {what}");
        sleep(Duration::from_millis(100)).await;
    }
    began.elapsed()
}

const BOTH: [Loop; 2] = [Loop::GarbageCollector, Loop::Namespace];

#[tokio::test(start_paused = true)]
async fn an_api_server_alone_collects_nothing_and_empties_nothing() {
    let stage = Stage::with(&[]);
    let owner = stage.config("owner", &[]).await;
    let waits = stage.config("waits", &[]).await;
    stage.config("dependent", &[&owner]).await;
    stage.config("blocks", &[&waits]).await;
    stage.delete("owner", PropagationPolicy::Background).await;
    stage.delete("waits", PropagationPolicy::Foreground).await;
    let namespaces: Api<Namespace> = Api::all(stage.cluster.client());
    let doomed = from(json!({ "metadata": { "name": "doomed" } }));
    namespaces.create(&PostParams::default(), &doomed).await.unwrap();
    namespaces.delete("doomed", &DeleteParams::default()).await.unwrap();
    let revision = stage.cluster.revision();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(stage.cluster.revision(), revision, "nobody has written anything");
    assert_eq!(stage.names().await, ["blocks", "dependent", "waits"]);
    let doomed = namespaces.get("doomed").await.unwrap();
    assert_eq!(doomed.status.unwrap().phase.as_deref(), Some("Terminating"));
    assert_eq!(doomed.spec.unwrap().finalizers.unwrap(), ["kubernetes"]);
}

#[tokio::test(start_paused = true)]
async fn dependents_go_at_once_and_down_to_the_last() {
    let stage = Stage::with(&BOTH);
    let root = stage.config("root", &[]).await;
    let middle = stage.config("middle", &[&root]).await;
    stage.config("leaf", &[&middle]).await;
    stage.config("alone", &[]).await;
    stage.delete("root", PropagationPolicy::Background).await;
    let took = until("all below it are gone", || async { stage.names().await == ["alone"] }).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    stage.loops.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_before_the_collector_came_is_collected() {
    let mut stage = Stage::with(&[]);
    let owner = stage.config("owner", &[]).await;
    stage.config("dependent", &[&owner]).await;
    let waits = stage.config("waits", &[]).await;
    stage.config("blocks", &[&waits]).await;
    stage.delete("owner", PropagationPolicy::Background).await;
    stage.delete("waits", PropagationPolicy::Foreground).await;
    stage.loops = Stage::start(&stage.cluster, &stage.faults, &BOTH);
    until("nothing is left", || async { stage.names().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn custom_resources_own_and_are_owned_as_soon_as_they_are_defined() {
    let stage = Stage::with(&BOTH);
    sleep(Duration::from_secs(100)).await;
    let client = stage.cluster.client();
    let definition = json!({
        "metadata": { "name": "gadgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "gadgets", "singular": "gadget", "kind": "Gadget" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
        },
    });
    let crds = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
    ));
    let definition = DynamicObject {
        types: None,
        metadata: from(definition["metadata"].clone()),
        data: json!({ "spec": definition["spec"] }),
    };
    Api::<DynamicObject>::all_with(client.clone(), &crds)
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Gadget"));
    let gadgets: Api<DynamicObject> = Api::default_namespaced_with(client, &kind);
    let make = async |name: &str, owners: Value| -> DynamicObject {
        let mut gadget = DynamicObject::new(name, &kind);
        gadget.metadata.owner_references = from(owners);
        gadgets.create(&PostParams::default(), &gadget).await.unwrap()
    };
    let root = stage.config("root", &[]).await;
    let owned = make("owned", json!([reference(&root)])).await;
    let other = make("other", json!([])).await;
    let below = |owner: &DynamicObject| json!({ "apiVersion": "example.com/v1", "kind": "Gadget", "name": owner.name_any(), "uid": owner.uid().unwrap() });
    let object =
        json!({ "metadata": { "name": "of-two", "ownerReferences": [below(&owned), below(&other)] } });
    stage.configs().create(&PostParams::default(), &from(object)).await.unwrap();
    stage.delete("root", PropagationPolicy::Foreground).await;
    until("the root and its gadget are gone", || async {
        stage.names().await == ["of-two"] && gadgets.get_opt("owned").await.unwrap().is_none()
    })
    .await;
    until("one owner is forgotten", || async {
        let owners = stage.configs().get("of-two").await.unwrap().metadata.owner_references.unwrap();
        owners.iter().map(|owner| owner.name.as_str()).eq(["other"])
    })
    .await;
    // The deletion of the definition removes its instances, and that removes their dependents.
    let definitions: Api<DynamicObject> = Api::all_with(stage.cluster.client(), &crds);
    definitions.delete("gadgets.example.com", &DeleteParams::default()).await.unwrap();
    until("nothing is left", || async { stage.names().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_does_not_see_a_kind_lets_nobody_go() {
    let stage = Stage::with(&[]);
    // Secrets cannot be listed, so the dependents of the owner are unknown.
    stage.faults.add(Fault::new(Effect::Unavailable).path("/secrets"));
    let loops = Stage::start(&stage.cluster, &stage.faults, &BOTH);
    stage.config("owner", &[]).await;
    stage.delete("owner", PropagationPolicy::Orphan).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(stage.names().await, ["owner"]);
    stage.faults.clear();
    until("it goes", || async { stage.names().await.is_empty() }).await;
    drop(loops);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_the_collector_sees_late_keeps_its_own() {
    let stage = Stage::with(&[]);
    stage.faults.add(Fault::new(Effect::Lag(Duration::from_secs(30))).path("/configmaps"));
    let loops = Stage::start(&stage.cluster, &stage.faults, &BOTH);
    sleep(Duration::from_secs(5)).await;
    let owner = stage.config("owner", &[]).await;
    // Services are seen at once, their owner in half a minute.
    let service = json!({ "metadata": { "name": "s", "ownerReferences": [reference(&owner)] }, "spec": { "ports": [{ "port": 80 }] } });
    let services: Api<k8s_openapi::api::core::v1::Service> = Api::default_namespaced(stage.cluster.client());
    services.create(&PostParams::default(), &from(service)).await.unwrap();
    sleep(Duration::from_secs(600)).await;
    assert!(services.get_opt("s").await.unwrap().is_some());
    stage.delete("owner", PropagationPolicy::Background).await;
    let took =
        until("it goes with its owner", || async { services.get_opt("s").await.unwrap().is_none() }).await;
    assert!(took >= Duration::from_secs(29), "half a minute late: {took:?}");
    drop(loops);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_emptied_pods_first_and_says_what_holds_it() {
    let stage = Stage::with(&BOTH);
    let client = stage.cluster.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &from(json!({ "metadata": { "name": "n" } }))).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "n");
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), "n");
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "somewhere", "containers": [{ "name": "c", "image": "x" }] } });
    pods.create(&PostParams::default(), &from(pod)).await.unwrap();
    for (name, finalizers) in [("free", json!([])), ("held", json!(["example.com/hold"]))] {
        let object = json!({ "metadata": { "name": name, "finalizers": finalizers } });
        configs.create(&PostParams::default(), &from(object)).await.unwrap();
    }
    namespaces.delete("n", &DeleteParams::default()).await.unwrap();
    let conditions = || async {
        let status = namespaces.get("n").await.unwrap().status.unwrap();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        conditions.map(|c| (c.type_, (c.status, c.message.unwrap()))).collect::<BTreeMap<_, _>>()
    };
    let took = until("the pod is marked", || async {
        pods.get("p").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!((5..=6).contains(&took.as_secs()), "{took:?}");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(configs.list(&ListParams::default()).await.unwrap().items.len(), 2, "pods may need the rest");
    assert!(conditions().await.values().all(|(status, _)| status == "False"));
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    until("the rest is deleted", || async { configs.get_opt("free").await.unwrap().is_none() }).await;
    until("it says what is left", || async {
        let conditions = conditions().await;
        let (_, message) = &conditions["NamespaceFinalizersRemaining"];
        message == "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
    })
    .await;
    let (status, message) = &conditions().await["NamespaceContentRemaining"];
    assert_eq!(
        (status.as_str(), message.as_str()),
        ("True", "Some resources are remaining: configmaps. has 1 resource instances")
    );
    configs
        .patch("held", &PatchParams::default(), &Patch::Merge(json!({ "metadata": { "finalizers": null } })))
        .await
        .unwrap();
    let took = until("it is gone", || async { namespaces.get_opt("n").await.unwrap().is_none() }).await;
    assert!(took <= Duration::from_secs(9), "{took:?}");
    stage.loops.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_although_the_server_is_having_a_bad_day() {
    let stage = Stage::with(&BOTH);
    let client = stage.cluster.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for round in 0..40_u32 {
        let name = format!("n{round}");
        namespaces
            .create(&PostParams::default(), &from(json!({ "metadata": { "name": name } })))
            .await
            .unwrap();
        let configs: Api<ConfigMap> = Api::namespaced(client.clone(), &name);
        configs.create(&PostParams::default(), &from(json!({ "metadata": { "name": "c" } }))).await.unwrap();
        let effects = [
            Effect::Unavailable,
            Effect::Conflict,
            Effect::AnswerLost,
            Effect::RequestLost,
            Effect::InternalError,
        ];
        let effect = effects[usize::try_from(round).unwrap() % effects.len()];
        let (method, path) = [
            (Method::DELETE, "/configmaps"),
            (Method::PUT, "/finalize"),
            (Method::PATCH, "/status"),
            (Method::GET, "/apis"),
            (Method::GET, "/configmaps"),
        ][usize::try_from(round / 8).unwrap() % 5]
            .clone();
        stage.faults.add(Fault::new(effect).method(method).path(path).times(2));
        namespaces.delete(&name, &DeleteParams::default()).await.unwrap();
        let took = until("it is gone", || async { namespaces.get_opt(&name).await.unwrap().is_none() }).await;
        assert!(took < Duration::from_secs(30), "{effect:?} on {path}: {took:?}");
        stage.faults.clear();
    }
}

/// The objects in the API: UID to owners, and whether it waits for its dependents.
#[derive(Default)]
struct Truth {
    there: BTreeMap<String, (Vec<String>, bool)>,
    /// The objects that the test itself has deleted.
    ours: BTreeSet<String>,
    /// The objects that are deleted after their dependents were orphaned.
    orphaning: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Truth {
    fn take(&mut self, kind: ChangeKind, object: &Value) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
        let uid = text("/metadata/uid");
        let list =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
        let owners: Vec<String> = list("/metadata/ownerReferences")
            .iter()
            .map(|owner| owner["uid"].as_str().unwrap().to_owned())
            .collect();
        let is_going = kind == ChangeKind::Removed || object.pointer("/metadata/deletionTimestamp").is_some();
        if is_going && !self.ours.contains(&uid) {
            let solid = |owner: &&String| self.there.get(*owner).is_some_and(|(_, waits)| !waits);
            if owners.is_empty() || owners.iter().any(|owner| solid(&owner)) {
                self.wrong.push(format!("{} went though it had an owner: {object}", text("/metadata/name")));
            }
        }
        if is_going && list("/metadata/finalizers").contains(&json!("orphan")) {
            self.orphaning.insert(uid.clone());
        }
        let waits = is_going && list("/metadata/finalizers").contains(&json!("foregroundDeletion"));
        if kind == ChangeKind::Removed {
            self.there.remove(&uid);
            let is_named = self.there.values().any(|(owners, _)| owners.contains(&uid));
            if self.orphaning.remove(&uid) && is_named {
                self.wrong.push(format!("{} went before all had forgotten it", text("/metadata/name")));
            }
        } else {
            self.there.insert(uid, (owners, waits));
        }
    }
}

/// Random families, deleted in random ways while requests fail and watches lag: no object with an owner is deleted, and
/// after all faults no object is left that has lost all its owners.
async fn a_random_family(seed: u64) -> (String, Truth) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut stage = Stage::of(seed, &BOTH);
    let truth = Arc::new(Mutex::new(Truth::default()));
    let observer = Arc::clone(&truth);
    stage.cluster.observe(move |change| {
        if change.resource == "configmaps" {
            observer.lock().unwrap().take(change.kind, &serde_json::from_slice(change.object).unwrap());
        }
    });
    let mut known: Vec<ConfigMap> = Vec::new();
    for step in 0..60 {
        match rng.u8(..12) {
            0..=5 => {
                let mut owners: Vec<&ConfigMap> = Vec::new();
                for _ in 0..rng.usize(..3) {
                    // Now and then an owner that is gone already.
                    if let Some(owner) = rng.choice(&known) {
                        owners.push(owner);
                    }
                }
                let new = stage.config(&format!("c{step}"), &owners).await;
                known.push(new);
            }
            6..=8 => {
                let Some(doomed) = rng.choice(&known) else { continue };
                let policy =
                    [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan]
                        [rng.usize(..3)]
                    .clone();
                // The collector orphans only dependents that it has seen.
                if matches!(policy, PropagationPolicy::Orphan) {
                    stage.faults.clear();
                    sleep(Duration::from_secs(60)).await;
                }
                truth.lock().unwrap().ours.insert(doomed.uid().unwrap());
                let how = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
                // The object may be gone already.
                let _ = stage.configs().delete(&doomed.name_any(), &how).await;
                sleep(Duration::from_secs(1)).await;
            }
            9 => {
                let effect = [
                    Effect::Conflict,
                    Effect::Unavailable,
                    Effect::AnswerLost,
                    Effect::RequestLost,
                    Effect::Unanswered { carried_out: true },
                    Effect::Lag(Duration::from_secs(3)),
                    Effect::CutAfter(1),
                    Effect::Expired,
                ][rng.usize(..8)];
                stage.faults.add(Fault::new(effect).path("configmaps").times(rng.u32(1..8)));
            }
            10 => {
                // The loop dies, and is started again.
                stage.loops = Stage::start(&stage.cluster, &stage.faults, &BOTH);
            }
            _ => sleep(Duration::from_millis(rng.u64(..4000))).await,
        }
    }
    stage.faults.clear();
    stage.cluster.compact();
    sleep(Duration::from_secs(120)).await;
    let mut left = String::new();
    let names = stage.configs().list(&ListParams::default()).await.unwrap();
    for object in &names {
        left.push_str(&format!("{} {:?} {:?}\n", object.name_any(), object.uid(), object.resource_version()));
        let owners = object.metadata.owner_references.clone().unwrap_or_default();
        let truth = truth.lock().unwrap();
        let dangling = owners.iter().filter(|owner| !truth.there.contains_key(&owner.uid)).count();
        assert_eq!(dangling, 0, "seed {seed}: {} names owners that are gone", object.name_any());
        assert!(object.metadata.deletion_timestamp.is_none(), "seed {seed}: {} is stuck", object.name_any());
    }
    stage.loops.stop().await;
    let truth = std::mem::take(&mut *truth.lock().unwrap());
    (left, truth)
}

/// `FAMILIES=count` plays that many.
#[test]
fn no_family_loses_anybody_it_keeps_and_keeps_nobody_it_lost() {
    let play = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(a_random_family(seed))
    };
    let seeds = std::env::var("FAMILIES").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    for seed in 0..seeds {
        let (left, truth) = play(seed);
        assert!(truth.wrong.is_empty(), "seed {seed}:\n{}", truth.wrong.join("\n"));
        if seed % 20 == 0 {
            assert_eq!(play(seed).0, left, "seed {seed} has two histories");
        }
    }
}
