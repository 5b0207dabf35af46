//! The Job that `salvor simulate --as-job` prints, run by Salvor's own Job controller. The test plays the kubelet: it
//! runs each pod's arguments as a process.

use std::{collections::BTreeMap, fs, path::Path, process::Output};

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod};
use kube::{Api, ResourceExt};
use salvor_testkit::Site;
use serde_json::Value;

use crate::stage::Stage;

const SCENARIO: &str = "\
title: Small
pools: [{name: cpu, nodes: 3}]
workloads:
- {name: train, kind: IndexedJob, pods: 3, consent: terminate, podReplacementPolicy: Failed, toleratesUnreachable: 10s, gracePeriod: 5s}
failures: [{kind: crash, at: 1m, pick: 1}]
end: 6m
";
const SEEDS: &str = "--seeds=11..15";
const PARTS: usize = 3;

async fn run(arguments: Vec<String>) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_salvor"));
    command.args(arguments).env_clear();
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn told(arguments: &[&str]) -> String {
    let output = run(arguments.iter().map(|it| (*it).to_owned()).collect()).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The environment of a container, with the annotations and labels of its pod that it refers to.
fn environment(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let of_field = |path: &str| {
        let (fields, key) = path.split_once("['")?;
        let key = key.strip_suffix("']")?;
        match fields {
            "metadata.annotations" => pod.annotations().get(key).cloned(),
            "metadata.labels" => pod.labels().get(key).cloned(),
            _ => None,
        }
    };
    let variables = container.env.iter().flatten().map(|it| {
        let field = it.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let value = it.value.clone().or_else(|| of_field(&field?.field_path));
        (it.name.clone(), value.unwrap_or_else(|| panic!("{it:?} of {}", pod.name_any())))
    });
    variables.collect()
}

/// Acts as a kubelet: mounts the ConfigMap, sets the variables, and runs the arguments.
async fn run_pod(stage: &Stage<'_>, pod: &Pod, folder: &Path) -> Output {
    let spec = pod.spec.as_ref().unwrap();
    let container = &spec.containers[0];
    let volume = &spec.volumes.as_ref().unwrap()[0];
    let mount = &container.volume_mounts.as_ref().unwrap()[0];
    assert_eq!(mount.name, volume.name);
    let maps: Api<ConfigMap> = Api::default_namespaced(stage.arena.client());
    let map = maps.get(&volume.config_map.as_ref().unwrap().name).await.unwrap();
    let mounted = folder.join(pod.name_any());
    fs::create_dir_all(&mounted).unwrap();
    for (name, text) in map.data.unwrap() {
        fs::write(mounted.join(name), text).unwrap();
    }
    let variables = environment(pod, container);
    let arguments = container.args.clone().unwrap().into_iter().map(|argument| {
        let argument = match argument.strip_prefix(&mount.mount_path) {
            Some(rest) => format!("{}{rest}", mounted.display()),
            None => argument,
        };
        let put_in =
            |text: String, (name, value): (&String, &String)| text.replace(&format!("$({name})"), value);
        variables.iter().fold(argument, put_in)
    });
    run(arguments.collect()).await
}

async fn shards_of_a_simulation_run_as_a_job_and_are_joined_to_one_report(site: Site) {
    let stage = Stage::new(site, "shards").await;
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("scenario.yaml");
    fs::write(&scenario, SCENARIO).unwrap();
    let scenario = scenario.to_str().unwrap();
    let printed = told(&["simulate", scenario, SEEDS, &format!("--as-job={PARTS}")]).await;
    let documents: Vec<Value> =
        printed.split("---\n").skip(1).map(|text| serde_saphyr::from_str(text).unwrap()).collect();
    let [map, job] = &documents[..] else { panic!("{printed}") };
    let maps: Api<ConfigMap> = Api::default_namespaced(stage.arena.client());
    maps.create(&Default::default(), &serde_json::from_value(map.clone()).unwrap()).await.unwrap();
    let name = job["metadata"]["name"].as_str().unwrap();
    let mut spec = job["spec"].clone();
    // The test plays the kubelet of all its pods, so no scheduler may place them.
    spec["template"]["spec"]["schedulerName"] = "nobody".into();
    stage.job(name, spec).await;
    stage.counts(name, &format!("A{PARTS} R0 S0 F0 T0")).await;

    let results = folder.path().join("results");
    fs::create_dir(&results).unwrap();
    // The first pod dies before it reports. Another pod with the same index replaces it.
    let pods = stage.alive(name).await;
    let of_pod = |pod: &Pod| crate::stage::index(pod).unwrap();
    let died = of_pod(&pods[0]);
    stage.end(&pods[0], 1).await;
    for pod in &pods[1..] {
        let output = run_pod(&stage, pod, folder.path()).await;
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(results.join(format!("{}.json", of_pod(pod))), output.stdout).unwrap();
        stage.end(pod, 0).await;
    }
    stage.counts(name, &format!("A1 R0 S{} F1 T0", PARTS - 1)).await;
    let again = stage.alive(name).await;
    assert_eq!(again.iter().map(of_pod).collect::<Vec<_>>(), [died]);
    let output = run_pod(&stage, &again[0], folder.path()).await;
    fs::write(results.join("again.json"), output.stdout).unwrap();
    stage.end(&again[0], 0).await;
    stage.until(name, "Complete").await;

    let results = results.to_str().unwrap();
    for form in ["json", "table", "svg"] {
        let whole = told(&["simulate", scenario, SEEDS, "-o", form]).await;
        let joined = told(&["simulate", "merge", results, "-o", form]).await;
        assert_eq!(joined, whole, "{form}");
    }
}

salvor_testkit::on_both!(shards_of_a_simulation_run_as_a_job_and_are_joined_to_one_report);
