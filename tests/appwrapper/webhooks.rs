//! What admission refuses, what it fills in, and whose rights it checks.

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use salvor_testkit::{Plane, Site};
use serde_json::{Value, json};

use crate::{
    controller::{Settings, cases},
    objects::AppWrapper,
    stage::{Run, Stage, Wrap, service},
};

const QUEUE: &str = "kueue.x-k8s.io/queue-name";
const USER: &str = "workload.codeflare.dev/user";
const USER_ID: &str = "workload.codeflare.dev/userid";

async fn gate(site: Site, plane: &Plane) -> Stage<'_> {
    crate::controller::install_workloads(&plane.admin()).await;
    let settings = Settings::default().with("defaultQueueName", "system-default-queue".into());
    Stage::alone(site, plane, 0, &settings).await
}

/// Whether admission accepts it, as a dry run.
async fn takes(wrappers: &Api<AppWrapper>, wrap: Wrap) -> Result<AppWrapper, String> {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    wrappers.create(&dry, &wrap.object()).await.map_err(|error| error.to_string())
}

fn declared(template: &Value, path: &str) -> Wrap {
    Wrap::new("w").component(json!({"template": template, "podSets": [{"path": path, "replicas": 1}]}))
}

/// The create rules of CodeFlare's webhook tests.
async fn creation_is_checked(site: Site) {
    let plane = site.control_plane().await;
    let stage = gate(site, &plane).await;
    let run = Run::on();
    let nine = (0..9).fold(Wrap::new("w"), |wrap, number| wrap.of(run.pod(&format!("p{number}"))));
    let mut elsewhere = run.pod("p");
    elsewhere["metadata"]["namespace"] = "test".into();
    let nested = Wrap::new("inner").of(run.pod("p")).object();
    let mut refusals = vec![
        ("no component", Wrap::new("w")),
        ("only a Service", Wrap::new("w").of(service("s"))),
        ("nine pods", nine),
        ("a path to nothing", declared(&run.deployment("d", 1), "template.spec.missing")),
        ("an empty path", declared(&run.deployment("d", 1), "")),
        ("a path to no pod", declared(&run.deployment("d", 1), "template.spec.template.metadata")),
        ("another namespace", Wrap::new("w").of(elsewhere)),
        ("an AppWrapper in another", Wrap::new("w").of(serde_json::to_value(&nested).unwrap())),
        ("another number of replicas", declared(&run.deployment("d", 2), "template.spec.template")),
    ];
    for path in [
        "template.spec.replicatedJobs.template.spec.template",
        "template.spec.replicatedJobs",
        "template.spec.replicatedJobs[0].template[0].spec.template",
        "template.spec.replicatedJobs[10].template.spec.template",
        "template.spec.replicatedJobs[-1].template.spec.template",
        "template.spec.replicatedJobs[a10].template.spec.template",
        "template.spec.replicatedJobs[0",
        "template.spec.replicatedJobs[0]].template.spec.template",
    ] {
        refusals.push((path, declared(&run.job_set("s", 1, 1), path)));
    }
    for (what, wrap) in refusals {
        let refused = takes(&stage.wrappers, wrap).await;
        assert!(refused.is_err(), "{what} is taken");
    }
    let refusal =
        takes(&stage.wrappers, Wrap::new("w").of(serde_json::to_value(&nested).unwrap())).await.unwrap_err();
    assert!(refusal.contains("Nested AppWrappers are forbidden"), "{refusal}");

    let mut here = run.pod("here");
    here["metadata"]["namespace"] = stage.arena.namespace().into();
    let declared = Wrap::new("declared")
        .component(json!({"template": run.pod("p"), "podSets": [{"path": "template"}]}))
        .component(
            json!({"template": run.deployment("d", 1), "podSets": [{"path": "template.spec.template"}]}),
        )
        .of(here)
        .of(run.ray_cluster("r", 1))
        .component(json!({"template": run.job_set("s", 1, 1), "podSets": [
            {"path": "template.spec.replicatedJobs[0].template.spec.template", "replicas": 1},
        ]}));
    let inferred = Wrap::new("inferred")
        .of(run.pod("p"))
        .of(run.deployment("d", 1))
        .of(stage.job("j1", json!({"parallelism": 2, "completions": 4}), &run))
        .of(stage.job("j2", json!({"parallelism": 8, "completions": 4}), &run));
    let operators = Wrap::new("operators")
        .of(run.py_torch_job("t", true, 4))
        .of(run.ray_cluster("r", 7))
        .of(run.ray_job("rj", 7));
    for wrap in [declared, inferred, operators] {
        takes(&stage.wrappers, wrap).await.unwrap();
    }
}

/// The mutating rules, and the labels that users cannot forge.
async fn users_and_queues_are_filled_in(site: Site) {
    let plane = site.control_plane().await;
    let stage = gate(site, &plane).await;
    let wrap = || Wrap::new("w").suspended().of(Run::on().pod("p"));
    let made = takes(&stage.wrappers, wrap()).await.unwrap();
    assert_eq!(made.labels()[QUEUE], "system-default-queue");
    let kept = takes(&stage.wrappers, wrap().label(QUEUE, "mine")).await.unwrap();
    assert_eq!(kept.labels()[QUEUE], "mine");
    let forged = takes(&stage.wrappers, wrap().label(USER, "bad").label(USER_ID, "bad")).await.unwrap();
    assert_eq!(forged.labels()[USER], "admin");
    assert_ne!(forged.labels()[USER_ID], "bad");
}

/// The update rules of CodeFlare's webhook tests.
async fn what_was_admitted_stays_as_it_was(site: Site) {
    let plane = site.control_plane().await;
    let stage = gate(site, &plane).await;
    let template = Run::on().deployment("d", 2);
    let set = json!({"path": "template.spec.template", "replicas": 2});
    let component = json!({"template": template, "podSets": [set]});
    stage.create(Wrap::new("w").suspended().component(component.clone())).await;
    stage.phase("w", "Suspended").await;
    let changed = |part: &str, value: Value| {
        let mut component = component.clone();
        component[part] = value;
        json!({"spec": {"components": [component]}})
    };
    let other = |path: &str, replicas: i32| json!([{"path": path, "replicas": replicas}]);
    for (what, patch) in [
        ("another template", changed("template", Run::on().deployment("other", 2))),
        ("one more component", json!({"spec": {"components": [component, component]}})),
        ("one more pod set", changed("podSets", json!([set, set]))),
        ("another path", changed("podSets", other("template.spec.template.spec", 2))),
        ("another number", changed("podSets", other("template.spec.template", 3))),
        ("another user", json!({"metadata": {"labels": {USER: "somebody"}}})),
        ("another user's id", json!({"metadata": {"labels": {USER_ID: "somebody"}}})),
        ("another manager", json!({"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}})),
    ] {
        let refused = stage.wrappers.patch("w", &PatchParams::default(), &Patch::Merge(patch)).await;
        assert!(refused.is_err(), "{what} is taken");
    }
    let infos = json!([{"labels": {"a": "b"}, "nodeSelector": {"c": "d"}}]);
    for (what, patch) in [
        ("podSetInfos", changed("podSetInfos", infos)),
        ("suspend", json!({"spec": {"suspend": true}})),
        (
            "an annotation",
            json!({"metadata": {"annotations": {"workload.codeflare.dev.appwrapper/retryLimit": "5"}}}),
        ),
        ("the queue", json!({"metadata": {"labels": {QUEUE: "other"}}})),
    ] {
        let taken = stage.wrappers.patch("w", &PatchParams::default(), &Patch::Merge(patch)).await;
        taken.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(texts(&[group])),
        resources: Some(texts(resources)),
        verbs: texts(verbs),
        ..PolicyRule::default()
    }
}

/// An AppWrapper must not bypass the rights of its creator.
async fn a_user_wraps_only_what_the_user_may_create(site: Site) {
    let plane = site.control_plane().await;
    let stage = gate(site, &plane).await;
    let rules = vec![
        rule("workload.codeflare.dev", &["appwrappers"], &["*"]),
        rule("", &["pods"], &["*"]),
        rule("apps", &["deployments"], &["get"]),
    ];
    let limited = plane.admin().service_account(stage.arena.namespace(), "limited", rules).await.unwrap();
    let theirs: Api<AppWrapper> = Api::default_namespaced(limited.client("limited-user"));
    let made = takes(&theirs, Wrap::new("w").of(Run::on().pod("p"))).await.unwrap();
    assert_ne!(made.labels()[USER], "admin");
    assert!(made.labels()[USER].ends_with("limited"), "{:?}", made.labels());
    let refusal = takes(&theirs, Wrap::new("w").of(Run::on().deployment("d", 1))).await.unwrap_err();
    assert!(refusal.contains("is not authorized to create deployments in"), "{refusal}");
    // A change by another user keeps the creator's name.
    stage.create(Wrap::new("kept").suspended().of(Run::on().pod("p"))).await;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
    let touched = theirs.patch("kept", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(touched.labels()[USER], "admin");
}

async fn names_that_fit_no_label_are_refused(site: Site) {
    let plane = site.control_plane().await;
    let stage = gate(site, &plane).await;
    takes(&stage.wrappers, Wrap::new(&"a".repeat(63)).of(Run::on().pod("p"))).await.unwrap();
    let refusal =
        takes(&stage.wrappers, Wrap::new(&"a".repeat(64)).of(Run::on().pod("p"))).await.unwrap_err();
    assert!(refusal.contains("63"), "{refusal}");
}

/// A kind outside the list is refused immediately, with a hint how to allow it (#112, #150).
async fn a_kind_outside_the_list_is_refused(site: Site) {
    let plane = site.control_plane().await;
    let stage = gate(site, &plane).await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "power"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    });
    let refusal =
        takes(&stage.wrappers, Wrap::new("w").of(Run::on().pod("p")).of(binding)).await.unwrap_err();
    assert!(refusal.contains("RoleBinding") && refusal.contains("rbac.authorization.k8s.io"), "{refusal}");
}

cases!(
    Both, on both sites:
    creation_is_checked,
    users_and_queues_are_filled_in,
    what_was_admitted_stays_as_it_was,
);
// Every user may do everything in the embedded cluster.
cases!(Both, on the real one: a_user_wraps_only_what_the_user_may_create);
cases!(
    Salvor, on both sites:
    names_that_fit_no_label_are_refused,
    a_kind_outside_the_list_is_refused,
);
