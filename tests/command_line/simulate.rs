//! `salvor simulate`: what it refuses, and what it reports.

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{complaint, folder_with, run, salvor, stdout};

/// One machine loses power. Nothing else happens.
const SMALL: &str = "\
apiVersion: salvor.dev/v1alpha1
kind: Scenario
title: Small
pools: [{name: cpu, nodes: 3}]
workloads:
- {name: train, kind: IndexedJob, pods: 3, consent: terminate, podReplacementPolicy: Failed, toleratesUnreachable: 10s, gracePeriod: 5s}
failures: [{kind: crash, at: 1m, pick: 1}]
end: 6m
";

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn the_same_seed_is_the_same_report_byte_by_byte() {
    let (_folder, path) = folder_with("s.yaml", SMALL);
    let first = stdout(&run(&["simulate", &path, "-o", "json", "--seed", "5"]));
    assert_eq!(first, stdout(&run(&["simulate", &path, "-o", "json", "--seed", "5"])));
    for form in ["table", "html", "svg"] {
        let output = || run(&["simulate", &path, "-o", form, "--seeds", "5..6"]);
        let (one, other) = (output(), output());
        assert!(!one.stdout.is_empty() && one.stdout == other.stdout && one.stderr == other.stderr, "{form}");
    }
    let report: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&report["kind"], &report["scenario"]), (&"SimulationReport".into(), &"Small".into()));
    let total = &report["reports"][0]["total"];
    assert!(total["lost"].as_u64() > Some(0) && total["notRecovered"] == 0, "{first}");
    let phases = total["phases"].as_object().unwrap();
    let sum: i64 = phases.values().filter_map(serde_json::Value::as_i64).sum();
    let median = total["timeToRecovery"]["p50"].as_i64().unwrap();
    assert!(phases.len() == 7 && (sum - median).abs() < 10_000, "{first}");
}

#[test]
fn the_table_says_what_happened() {
    let (_folder, path) = folder_with("s.yaml", SMALL);
    let told = stdout(&run(&["simulate", &path]));
    for part in [
        "policy salvor, seed 1, 6m played",
        "time to recovery",
        "p99",
        "goodput",
        "ran twice",
        "killed in vain",
        "API calls",
        "held back",
        "DETECT",
        "crash",
        "Nothing was stuck at the end.",
        &format!("  Watch it: salvor demo --replay {path} --seed 1\n"),
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
}

#[test]
fn many_seeds_are_summed_up_and_the_worst_is_named() {
    let (_folder, path) = folder_with("s.yaml", SMALL);
    let told = stdout(&run(&["simulate", &path, "--seeds", "1..3"]));
    assert!(told.contains("policy salvor, 3 seeds") && told.contains("The worst seed is "), "{told}");
    assert!(told.contains("  salvor demo --replay SCENARIO --seed "), "{told}");
    let report = json(&["simulate", &path, "--seeds", "1..3", "-o", "json"]);
    let each = report["policies"][0]["each"].as_array().unwrap();
    assert_eq!(each.iter().map(|it| it["seed"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn policies_are_played_on_the_same_failures_and_one_is_recommended() {
    let (folder, path) = folder_with("s.yaml", SMALL);
    let wait = "failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod=10s,2m";
    let report = json(&["simulate", &path, "--sweep", wait, "--against", "kubernetes", "-o", "json"]);
    let policies = report["policies"].as_array().unwrap();
    let names: Vec<_> =
        policies.iter().map(|it| it["policy"].as_str().unwrap().rsplit('.').next().unwrap()).collect();
    assert_eq!(
        names,
        ["forcefulTerminationGracePeriod=10s", "forcefulTerminationGracePeriod=2m", "kubernetes"]
    );
    let p50 = |index: usize| policies[index]["timeToRecovery"]["p50"].as_i64();
    assert!(p50(0) < p50(1) && p50(2).is_none(), "{report}");
    let best = report["recommendation"]["policy"].as_str().unwrap();
    assert!(
        best.ends_with("=10s") && report["recommendation"]["reason"].as_str().unwrap().contains("within"),
        "{report}"
    );
    let told = stdout(&run(&["simulate", &path, "--against", "kueue"]));
    assert!(
        told.contains("* is recommended")
            && told.contains("kueue: Kueue's rules, carried out by Salvor's operator"),
        "{told}"
    );

    let header = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    let (one, two) = (folder.path().join("one.yaml"), folder.path().join("two.yaml"));
    fs::write(&one, format!("{header}featureGates: {{FailureRecoveryPolicy: true}}\n")).unwrap();
    fs::write(&two, header).unwrap();
    let report =
        json(&["simulate", &path, "--compare", one.to_str().unwrap(), two.to_str().unwrap(), "-o", "json"]);
    let open: Vec<_> =
        report["policies"].as_array().unwrap().iter().map(|it| it["notRecovered"] == 0).collect();
    assert_eq!(open, [true, false], "{report}");
    // A seed of any policy can be replayed.
    let replays: Vec<_> =
        report["policies"].as_array().unwrap().iter().map(|it| it["replay"].as_str().unwrap()).collect();
    assert_eq!(replays, [format!("--config {}", one.display()), format!("--config {}", two.display())]);
    let told = stdout(&run(&["simulate", &path, "--sweep", "brake.maxUnreachablePercent=20,100"]));
    assert!(
        told.contains("salvor demo --replay SCENARIO --seed 1 --set brake.maxUnreachablePercent="),
        "{told}"
    );
    // A configuration compared with itself gives the same result twice.
    let twice =
        json(&["simulate", &path, "--compare", one.to_str().unwrap(), one.to_str().unwrap(), "-o", "json"]);
    let [first, second] = &twice["policies"].as_array().unwrap()[..] else { panic!("{twice}") };
    assert_eq!(first["each"], second["each"]);
    assert_eq!(second["policy"], format!("{} (2)", one.display()));
}

/// The Job includes all files it needs: lists, a configuration file, and the files of a comparison.
#[test]
fn the_files_of_a_scenario_go_with_its_job() {
    let text = SMALL.replace("failures: [{kind: crash, at: 1m, pick: 1}]", "failures: [{csv: lists/a.csv}]");
    let (folder, path) = folder_with("s.yaml", &text);
    fs::create_dir(folder.path().join("lists")).unwrap();
    fs::write(folder.path().join("lists/a.csv"), "at,kind,target,lasts\n1m,crash,zone=a,\n").unwrap();
    let header = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    let (one, two) = (folder.path().join("one.yaml"), folder.path().join("two.yaml"));
    fs::write(&one, header).unwrap();
    fs::write(&two, format!("{header}featureGates: {{FailureRecoveryPolicy: true}}\n")).unwrap();
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    let yaml = stdout(&run(&["simulate", &path, "--seeds", "1..4", "--compare", one, two, "--as-job", "2"]));
    let documents: Vec<serde_json::Value> =
        yaml.split("---\n").skip(1).map(|it| serde_saphyr::from_str(it).unwrap()).collect();
    let [map, job] = &documents[..] else { panic!("{yaml}") };
    let pod = &job["spec"]["template"]["spec"];
    let items = pod["volumes"][0]["configMap"]["items"].as_array().unwrap();
    let mut mounted: Vec<_> = items.iter().map(|it| it["path"].as_str().unwrap()).collect();
    mounted.sort_unstable();
    assert_eq!(mounted, ["lists/a.csv", "one.yaml", "scenario.yaml", "two.yaml"]);
    assert!(items.iter().all(|it| map["data"][it["key"].as_str().unwrap()].is_string()), "{yaml}");
    let container = &pod["containers"][0];
    assert_eq!(container["workingDir"], "/scenario");
    let arguments = container["args"].to_string();
    assert!(arguments.contains(r#""--compare","one.yaml","two.yaml""#), "{arguments}");

    let inner = folder.path().join("lists/s.yaml");
    fs::write(&inner, text.replace("lists/a.csv", "../lists/a.csv")).unwrap();
    let refused = complaint(&run(&["simulate", inner.to_str().unwrap(), "--seeds", "1..4", "--as-job"]), 2);
    assert!(refused.contains("--as-job cannot take \"../lists/a.csv\" along"), "{refused}");
}

#[test]
fn a_page_and_a_plot_are_one_file_each() {
    let (_folder, path) = folder_with("s.yaml", SMALL);
    let page = stdout(&run(&["simulate", &path, "--seeds", "1..2", "-o", "html"]));
    assert!(
        page.starts_with("<!doctype html>")
            && page.contains("id=\"worst\"")
            && page.contains("href=\"#worst\""),
        "{page}"
    );
    assert!(page.contains(&format!("<code>salvor demo --replay {path} --seed ")), "{page}");
    assert!(
        !page.contains("<script") && !page.contains("src=") && page.contains("prefers-color-scheme:dark"),
        "{page}"
    );
    let plot = stdout(&run(&["simulate", &path, "-o", "svg"]));
    assert!(plot.starts_with("<svg ") && plot.trim_end().ends_with("</svg>"), "{plot}");
}

#[test]
fn a_scenario_is_checked_without_playing_it() {
    let (folder, path) = folder_with("s.yaml", SMALL);
    let told = stdout(&run(&["simulate", "--check", &path]));
    assert_eq!(told, format!("{path}: good: 3 nodes, 1 workload with 3 pods, 1 failure with seed 1\n"));
    for (text, expected) in [
        (SMALL.replace("end: 6m", "end: soon"), "s.yaml: line 8: end: "),
        (
            SMALL.replace("kind: crash", "kind: fire"),
            "s.yaml: line 7: failures[0].kind: \"fire\" is not known: write crash",
        ),
        (
            SMALL.replace("consent", "consentt"),
            "s.yaml: line 6: workloads[0].consentt: unknown field `consentt`",
        ),
        (SMALL.replace("pods: 3", "pods: many"), "s.yaml: line 6: workloads[0].pods: "),
        (SMALL.replace("pods: 3", "pods: -3"), "s.yaml: line 6: workloads[0].pods: "),
        (SMALL.replace("kind: IndexedJob, ", ""), "s.yaml: line 6: workloads[0].kind: missing field `kind`"),
        (
            SMALL.replace("pods: 3", "pods: 3, pods: 4"),
            "s.yaml: line 6: workloads[0].pods: duplicate mapping key",
        ),
        (format!("{SMALL}---\n{SMALL}"), "s.yaml: "),
        (String::new(), "s.yaml: it is empty: write at least title"),
    ] {
        fs::write(&path, text).unwrap();
        for arguments in [&["simulate", "--check", &path][..], &["simulate", &path]] {
            let text = complaint(&run(arguments), 2);
            assert!(text.contains(expected), "{text}");
        }
    }
    let missing = folder.path().join("none.yaml");
    assert!(complaint(&run(&["simulate", missing.to_str().unwrap()]), 2).contains("cannot read"));
}

#[test]
fn wrong_settings_are_refused_before_anything_is_played() {
    let (_folder, path) = folder_with("s.yaml", SMALL);
    for (arguments, expected) in [
        (&["--sweep", "brake.maxUnreachablePercent=101"][..], "--sweep: brake.maxUnreachablePercent: "),
        (&["--sweep", "brake.colour=red"], "brake.colour"),
        (&["--compare", "/nowhere/a.yaml", "/nowhere/b.yaml"], "cannot read /nowhere/a.yaml"),
    ] {
        let all: Vec<&str> = ["simulate", &path].into_iter().chain(arguments.iter().copied()).collect();
        let text = complaint(&run(&all), 2);
        assert!(text.contains(expected), "{text}");
    }
    for arguments in [
        &["--against", "openshift"][..],
        &["--seeds", "9..1"],
        &["--sweep", "x"],
        &["--seed", "1", "--seeds", "1..2"],
    ] {
        let all: Vec<&str> = ["simulate", &path].into_iter().chain(arguments.iter().copied()).collect();
        assert_eq!(run(&all).status.code(), Some(2), "{arguments:?}");
    }
}

/// The arguments are those of the Job's pods.
#[test]
fn parts_that_are_played_elsewhere_are_joined_to_the_same_report() {
    let (folder, path) = folder_with("s.yaml", SMALL);
    let by_default = stdout(&run(&["simulate", &path, "--seeds", "1..300", "--as-job"]));
    assert!(by_default.contains("completions: 10"), "{by_default}");
    let yaml = stdout(&run(&["simulate", &path, "--seeds", "1..3", "--as-job", "2"]));
    let documents: Vec<&str> = yaml.split("---\n").collect();
    let [_, map, job] = documents[..] else { panic!("{yaml}") };
    let map: serde_json::Value = serde_saphyr::from_str(map).unwrap();
    let job: serde_json::Value = serde_saphyr::from_str(job).unwrap();
    assert_eq!((&job["spec"]["completionMode"], &job["spec"]["completions"]), (&"Indexed".into(), &2.into()));
    fs::write(&path, map["data"]["scenario.yaml"].as_str().unwrap()).unwrap();
    let results = folder.path().join("results");
    fs::create_dir(&results).unwrap();
    for index in ["0", "1"] {
        let arguments = job["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap().iter();
        let arguments = arguments.map(|it| it.as_str().unwrap().replace("$(JOB_COMPLETION_INDEX)", index));
        let arguments: Vec<String> =
            arguments.map(|it| it.replace("/scenario/scenario.yaml", &path)).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        fs::write(results.join(format!("{index}.json")), stdout(&run(&arguments))).unwrap();
    }
    let results = results.to_str().unwrap();
    let whole = stdout(&run(&["simulate", &path, "--seeds", "1..3"]));
    assert_eq!(stdout(&run(&["simulate", "merge", results])), whole);
    assert!(whole.contains("policy salvor, 3 seeds"), "{whole}");

    let whole = stdout(&run(&["simulate", &path, "--seeds", "1..3", "-o", "json"]));
    assert_eq!(stdout(&run(&["simulate", "merge", results, "-o", "json"])), whole, "also each play in full");
    let page = stdout(&run(&["simulate", "merge", results, "-o", "html"]));
    assert!(page.starts_with("<!doctype html>") && page.contains("id=\"worst\""), "{page}");

    let of_part = |name: &str| folder.path().join("results").join(name);
    let (first, second) = (fs::read(of_part("0.json")).unwrap(), fs::read(of_part("1.json")).unwrap());
    fs::remove_file(of_part("0.json")).unwrap();
    let output = run(&["simulate", "merge", results]);
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(said.contains("1 seed is missing, and the report is without: 1"), "{said}");
    // The log of a failed pod and of its replacement, and the other part twice.
    let log = [b"salvor: killed\n".as_slice(), &first].concat();
    fs::write(of_part("0.json"), log).unwrap();
    fs::write(of_part("again.json"), &second).unwrap();
    assert_eq!(stdout(&run(&["simulate", "merge", results, "-o", "json"])), whole);
    // Another scenario with the same title, and a truncated report.
    fs::write(&path, SMALL.replace("gracePeriod: 5s", "gracePeriod: 6s")).unwrap();
    fs::write(of_part("again.json"), stdout(&run(&["simulate", &path, "--seeds", "1..3", "-o", "json"])))
        .unwrap();
    let refused = complaint(&run(&["simulate", "merge", results]), 2);
    assert!(refused.contains("again.json is of another simulation than "), "{refused}");
    fs::write(of_part("again.json"), &second[..second.len() / 2]).unwrap();
    let refused = complaint(&run(&["simulate", "merge", results]), 2);
    assert!(refused.contains("again.json is no report of salvor simulate"), "{refused}");
    fs::remove_file(of_part("again.json")).unwrap();
    fs::write(folder.path().join("results/x.json"), "{}").unwrap();
    assert!(
        complaint(&run(&["simulate", "merge", results]), 2)
            .contains("x.json is no report of salvor simulate")
    );
    let nothing = tempfile::tempdir().unwrap();
    let nothing = nothing.path().to_str().unwrap();
    assert!(complaint(&run(&["simulate", "merge", nothing]), 2).contains("has no file that ends with .json"));
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_live_cluster_is_read_and_its_scenario_is_saved_and_played() {
    let folder = tempfile::tempdir().unwrap();
    let (kubeconfig, saved) = (folder.path().join("kubeconfig"), folder.path().join("saved.yaml"));
    let (kubeconfig, saved) = (kubeconfig.to_str().unwrap(), saved.to_str().unwrap());
    let mut cluster = salvor(&["cluster", "--nodes", "4", "--zones", "2", "--kubeconfig-out", kubeconfig]);
    let _cluster = Running(cluster.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let from = ["simulate", "--from-cluster", "--kubeconfig", kubeconfig];
    let with = |more: &[&'static str]| [&from[..], more].concat();
    let deadline = Instant::now() + Duration::from_secs(60);
    // The file exists before the nodes do.
    while !fs::read_to_string(saved).unwrap_or_default().contains("nodes: 4") {
        assert!(Instant::now() < deadline, "the cluster does not come up");
        thread::sleep(Duration::from_millis(100));
        run(&[&from[..], &["--save", saved]].concat());
    }
    let told = stdout(&run(&["simulate", "--check", saved]));
    assert!(told.contains("good: 4 nodes, 0 workloads with 0 pods, 0 failures"), "{told}");
    let played = stdout(&run(&with(&["--fail", "partition zone=zone-2 5m"])));
    assert!(played.contains("policy kubernetes, seed 1") && played.contains("zone zone-2"), "{played}");
    let hashed = run(&with(&["--hash-names", "--fail", "partition zone=zone-2 5m"]));
    let error = String::from_utf8(hashed.stderr).unwrap();
    assert!(
        hashed.status.code() == Some(2) && error.contains("there is no zone \"zone-2\"; there are h"),
        "{error}"
    );
    let nothing = run(&from);
    let error = String::from_utf8(nothing.stderr).unwrap();
    assert!(nothing.status.code() == Some(2) && error.contains("nothing fails: write --fail"), "{error}");
}

#[test]
fn the_schema_is_json_and_knows_the_format() {
    let schema = json(&["simulate", "--schema"]);
    assert_eq!(schema["properties"]["apiVersion"]["const"], "salvor.dev/v1alpha1");
    assert!(schema["$defs"]["failure"]["properties"]["mtbf"].is_object());
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_scenarios_of_the_docs_are_good() {
    for folder in ["", "truth", "choosing"] {
        for file in fs::read_dir(format!("{ROOT}/docs/scenarios/{folder}")).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|it| it == "yaml") {
                let told = run(&["simulate", path.to_str().unwrap(), "--check"]);
                assert_eq!(told.status.code(), Some(0), "{}", String::from_utf8_lossy(&told.stderr));
            }
        }
    }
}

/// The page has a table below each command. `make choosing` writes them.
#[test]
fn the_commands_of_the_page_about_choosing_can_be_run() {
    let page = fs::read_to_string(format!("{ROOT}/docs/guides/choosing.md")).unwrap();
    let commands: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("salvor ")).collect();
    assert!(commands.len() >= 4, "{commands:?}");
    for command in commands {
        let path = |word: &str| word.replace("docs/", &format!("{ROOT}/docs/"));
        // Quotes keep words together.
        let parts = command.split('\'').enumerate();
        let words = parts.flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(path).collect(),
            _ => vec![part.to_owned()],
        });
        let words: Vec<String> = words.chain(["--check".to_owned()]).collect();
        let told = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let error = String::from_utf8_lossy(&told.stderr);
        assert_eq!(told.status.code(), Some(0), "{command}: {error}");
    }
    assert_eq!(
        page.matches("policies on the same failures").count(),
        4,
        "a table is missing: run make choosing"
    );
}

#[test]
fn a_sweep_may_set_what_the_owner_of_a_workload_chooses() {
    let (_folder, path) = folder_with("s.yaml", SMALL);
    let report =
        json(&["simulate", &path, "--sweep", "workloads.train.consent=none,terminate", "-o", "json"]);
    let policies = report["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|it| it["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["workloads.train.consent=none", "workloads.train.consent=terminate"]);
    // Without consent nothing ends a pod on a machine that is off.
    assert_eq!(policies[0]["notRecovered"], policies[0]["lost"]);
    assert_eq!(policies[1]["notRecovered"], 0);
    let wrong = complaint(&run(&["simulate", &path, "--sweep", "workloads.web.consent=none"]), 2);
    assert!(wrong.contains("there is no workload \"web\": there are train"), "{wrong}");
}
