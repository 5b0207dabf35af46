//! `salvor doctor` on a real control plane that other tests use as well.

use k8s_openapi::api::rbac::v1::PolicyRule;
use salvor_testkit::{
    Site,
    workloads::{PodShape, deployment},
};
use serde_json::{Value, json};

use crate::stage::Stage;

fn found<'a>(checkup: &'a Value, check: &str) -> Vec<&'a Value> {
    checkup["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check).collect()
}

async fn doctor(stage: &Stage, arguments: &[&str]) -> (i32, Value) {
    let all = [&["doctor", "-o", "json"], arguments].concat();
    let (code, said) = stage.run(&all).await;
    let checkup: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    for finding in checkup["findings"].as_array().unwrap() {
        for key in ["severity", "check", "what", "why", "fix"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{checkup:#}");
        }
    }
    (code, checkup)
}

#[tokio::test]
async fn a_doctor_finds_missing_rights_and_others_on_the_same_ground() {
    if !Site::Real.is_chosen() {
        return;
    }
    let arena = Site::Real.arena("doctor").await;
    let stage = Stage::new(&arena.admin(), arena.kubectl(), arena.namespace());

    // A user with all rights, and recoveries that no other test uses here. Nodes of other tests may be lost.
    let (code, checkup) = doctor(&stage, &["--controllers=job,eviction"]).await;
    for check in ["versions", "rights"] {
        assert_eq!(found(&checkup, check), Vec::<&Value>::new(), "{checkup:#}");
    }
    // What a lost node costs. How long its detection takes depends on nodes of other tests.
    let cost = &checkup["lostNode"][0];
    assert_eq!(cost["workload"], "Deployment", "{checkup:#}");
    assert_eq!(cost["phases"][1], json!({"name": "toleration", "seconds": 300}), "{checkup:#}");
    assert!([0, 3].contains(&code), "{code}: {checkup:#}");

    // Rights are checked verb by verb.
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let rule = PolicyRule {
        api_groups: Some(owned(&["batch"])),
        resources: Some(owned(&["jobs"])),
        verbs: owned(&["get", "list"]),
        ..PolicyRule::default()
    };
    arena.admin().service_account(&stage.namespace, "few", vec![rule]).await.unwrap();
    let user = format!("--as=system:serviceaccount:{}:few", stage.namespace);
    let (code, checkup) = doctor(&stage, &["--controllers=job", &user]).await;
    assert_eq!(code, 1, "{checkup:#}");
    let jobs =
        |finding: &&&Value| finding["what"].as_str().unwrap().ends_with("jobs.batch in all namespaces");
    let missing = found(&checkup, "rights");
    let of_jobs = missing.iter().find(jobs).unwrap_or_else(|| panic!("{checkup:#}"));
    assert_eq!(of_jobs["severity"], "error", "{checkup:#}");
    let what = of_jobs["what"].as_str().unwrap();
    assert!(what.contains("may not watch") && !what.contains("list"), "{what}");
    assert!(!checkup["notSeen"].as_array().unwrap().is_empty(), "{checkup:#}");

    // Other controllers on the same objects.
    let named = |name: &str, label: &str, argument: &str| {
        let container = json!([{"name": "main", "image": "work", "args": [argument]}]);
        let mut other = deployment(name, 0, &PodShape::new().spec("containers", container));
        other.metadata.labels = Some([("app.kubernetes.io/name".to_owned(), label.to_owned())].into());
        other
    };
    stage
        .make(&named("kueue-controller-manager", "kueue", "--feature-gates=FailureRecoveryPolicy=true"))
        .await;
    stage.make(&named("appwrapper-controller-manager", "appwrapper", "")).await;
    stage.make(&named("salvor", "salvor", "run")).await;
    stage.make(&named("descheduler", "descheduler", "")).await;
    let all = ["--controllers=zombie,appwrapper", "--feature-gates=FailureRecoveryPolicy=true"];
    let (code, checkup) = doctor(&stage, &all).await;
    assert_eq!(code, 1, "{checkup:#}");
    let told = |text: &str| {
        let place = format!("{}/", stage.namespace);
        let all = found(&checkup, "actors");
        let has = |finding: &&&Value| {
            let what = finding["what"].as_str().unwrap();
            what.contains(text) && what.contains(&place)
        };
        let one = all.iter().find(has).unwrap_or_else(|| panic!("{text}: {checkup:#}"));
        one["severity"].as_str().unwrap().to_owned()
    };
    assert_eq!(told("FailureRecoveryPolicy"), "error");
    assert_eq!(told("AppWrapper controller"), "error");
    assert_eq!(told("another Salvor"), "error");
    assert_eq!(told("descheduler"), "info");
    assert_eq!(checkup["findings"][0]["severity"], "error", "worst first: {checkup:#}");

    // Every check is listed, with and without findings.
    let passed = |name: &str| {
        let all = checkup["checked"].as_array().unwrap();
        let one =
            all.iter().find(|one| one["check"] == name).unwrap_or_else(|| panic!("{name}: {checkup:#}"));
        one["passed"].clone()
    };
    assert_eq!(["versions", "actors"].map(passed), [json!(true), json!(false)], "{checkup:#}");

    // As text, and with wrong usage.
    let (code, said) = stage.run(&["doctor", "--controllers=job"]).await;
    assert!(said.contains("ok       versions: "), "{said}");
    assert!(code == 1 && said.contains("Why it matters: ") && said.contains("To do: "), "{said}");
    assert_eq!(stage.run(&["doctor", "--no-such-flag"]).await.0, 2);
}
