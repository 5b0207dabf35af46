//! AppWrappers with Salvor, on both clusters.

use std::process::Command;

use salvor_testkit::{Site, peers};
use serde_json::{Value, json};

use crate::stage::{SALVOR, Stage};

/// Installs the CRD from the manifests.
async fn install(access: &salvor_testkit::Access) {
    let output = Command::new(SALVOR).args(["manifests", "--controllers", "appwrapper"]).output().unwrap();
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (number, crd) in documents.iter().filter(|one| one["kind"] == "CustomResourceDefinition").enumerate()
    {
        std::fs::write(folder.path().join(format!("{number}.yaml")), crd.to_string()).unwrap();
    }
    peers::install(access, folder.path(), |_| ()).await.unwrap();
}

/// An AppWrapper of one pod, which fails on request.
fn wrapper(name: &str, annotations: &Value, fails: bool, suspend: bool) -> Value {
    let script = if fails {
        json!({"sim.salvor.dev/run-for": "10ms", "sim.salvor.dev/exit-code": "3"})
    } else {
        json!({})
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": script},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "work"}]},
    });
    json!({
        "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"suspend": suspend, "components": [
            {"podSets": [{"replicas": 1, "path": "template"}], "template": pod},
        ]},
    })
}

fn timers(retries: u32) -> Value {
    json!({
        "workload.codeflare.dev.appwrapper/failureGracePeriodDuration": "1s",
        "workload.codeflare.dev.appwrapper/retryPausePeriodDuration": "1h",
        "workload.codeflare.dev.appwrapper/retryLimit": retries.to_string(),
    })
}

async fn an_appwrapper_tells_why_it_does_not_run(site: Site) {
    let arena = site.arena("why-wrappers").await;
    let stage = Stage::new(&arena.admin(), arena.kubectl(), arena.namespace());
    install(&arena.admin()).await;
    let _fleet = arena.fleet(1).await;
    // Its Lease has another name, so that it does not count as the operator of this cluster.
    let configuration = "webhooks: {enabled: false}\nappwrapper: {wrappedKindsWithoutWebhooks: [Pod]}\nleaderElection: {leaseName: why-wrappers}\n";
    let salvor = stage.salvor(configuration, &["--controllers=appwrapper"]);
    salvor.says("\"leading\"").await;

    let create = async |object: Value| {
        let api = stage.api("workload.codeflare.dev", "v1beta2", "AppWrapper");
        let object = serde_json::from_value(object).unwrap();
        api.create(&kube::api::PostParams::default(), &object).await.unwrap();
    };
    create(wrapper("suspended", &json!({}), false, true)).await;
    create(wrapper("fails", &timers(0), true, false)).await;
    create(wrapper("resets", &timers(3), true, false)).await;

    let answer = stage.until_in("appwrapper/suspended", "Suspended", "AppWrapper", "suspended").await;
    assert_eq!(answer["missing"], "1 of 1 pods", "{answer:#}");
    stage.carry_out(&answer).await;
    stage.until_well("aw/suspended").await;
    let answer = stage.until_in("aw/fails", "WorkloadFailed", "AppWrapper", "fails").await;
    assert_eq!(answer["missing"], "1 of 1 pods", "{answer:#}");
    stage.until_in("appwrappers/resets", "WorkloadResetting", "AppWrapper", "resets").await;
    let all = stage.all().await;
    assert_eq!(all["groups"][0]["rootCause"]["code"], "WorkloadFailed", "{all:#}");
    assert_eq!(all["groups"][0]["workloads"][0]["kind"], "AppWrapper", "{all:#}");
}

salvor_testkit::on_both!(an_appwrapper_tells_why_it_does_not_run);
