use super::*;

/// The arguments, without the name of the program and the command.
fn args(words: &[&str]) -> OptInArgs {
    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: OptInArgs,
    }
    let words = ["opt-in", "-f", "m.yaml"].iter().chain(words);
    <Alone as clap::Parser>::parse_from(words).args
}

fn run(text: &str, words: &[&str]) -> Result<Answer, String> {
    let documents = read(text).map_err(|error| format!("line {}: {}", error.line, error.problem))?;
    answer(&args(words), "m.yaml", &documents).map_err(|error| error.to_string())
}

fn opted_in(text: &str) -> Answer {
    run(text, &[]).unwrap()
}

/// Changes in place, once, and back.
fn there_and_back(before: &str, after: &str) {
    let answer = opted_in(before);
    assert_eq!(answer.text, after, "{}", answer.told);
    assert!(answer.changes && !answer.told.contains("without its comments"), "{}", answer.told);
    let again = opted_in(after);
    assert_eq!((again.text.as_str(), again.changes), (after, false));
    let back = run(after, &["--uninject"]).unwrap();
    assert_eq!(back.text, before, "{}", back.told);
}

#[test]
fn golden_files() {
    for (before, after) in [
        (include_str!("golden/job.yaml"), include_str!("golden/job.opted-in.yaml")),
        (include_str!("golden/several.yaml"), include_str!("golden/several.opted-in.yaml")),
        (include_str!("golden/list.json"), include_str!("golden/list.opted-in.json")),
        (include_str!("golden/flow.yaml"), include_str!("golden/flow.opted-in.yaml")),
    ] {
        there_and_back(before, after);
        let windows = |text: &str| text.replace('\n', "\r\n");
        there_and_back(&windows(before), &windows(after));
        there_and_back(before.trim_end(), after.trim_end());
    }
}

#[test]
fn what_cannot_be_changed_in_place_is_printed_again() {
    let anchors = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: t} # a comment\nspec:\n  pytorchReplicaSpecs:\n    \
                   Master: &role\n      template: {spec: {restartPolicy: Never}}\n    Worker: *role\n";
    let answer = opted_in(anchors);
    assert!(answer.told.contains("line 1: this document is printed without its comments"), "{}", answer.told);
    let value: Value = serde_saphyr::from_str(&answer.text).unwrap();
    for role in ["Master", "Worker"] {
        let annotations = &value["spec"]["pytorchReplicaSpecs"][role]["template"]["metadata"]["annotations"];
        assert_eq!(annotations["salvor.dev/evict-after"], "30s", "{}", answer.text);
    }
    assert!(!opted_in(&answer.text).changes);
}

#[test]
fn what_needs_no_change_is_printed_to_the_letter() {
    let text = "# nothing\n---\n\n---\napiVersion: v1\nkind:   Service\nmetadata: {name: s}   # odd\n--- # third\nfoo: [1,\n  2]\n";
    let answer = opted_in(text);
    assert_eq!(answer.text, text);
    assert!(answer.told.contains("Service s: unchanged"), "{}", answer.told);
    assert!(answer.told.contains("an object without a kind: unchanged"), "{}", answer.told);
    assert_eq!(opted_in("").text, "");
}

#[test]
fn broken_files_are_refused_with_the_line_of_the_file() {
    let text = "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: [\n";
    let told = run(text, &[]).err().unwrap();
    assert!(told.starts_with("line 5: ") || told.starts_with("line 6: "), "{told}");
    let told = run("a: 1\na: 2\n", &[]).err().unwrap();
    assert!(told.starts_with("line 2: "), "{told}");
}

#[test]
fn refusals_name_the_object_and_the_way_out() {
    let text = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db, namespace: prod}\nspec:\n  template:\n    spec: {}\n";
    let told = run(text, &[]).err().unwrap();
    assert!(
        told.starts_with("m.yaml: StatefulSet prod/db: spec.template: two copies of it must not run"),
        "{told}"
    );
    assert!(told.contains("--consent delete"), "{told}");
    assert!(run(text, &["--check"]).is_err());
    let answer = run(text, &["--consent", "delete"]).unwrap();
    assert!(answer.text.contains("kueue.x-k8s.io/safe-to-forcefully-delete: \"true\""), "{}", answer.text);
}

#[test]
fn a_check_prints_what_is_missing_and_no_manifest() {
    let before = include_str!("golden/job.yaml");
    let answer = run(before, &["--check"]).unwrap();
    assert!(answer.changes);
    assert!(
        answer.text.starts_with("Job team-a/train: this is missing\n  spec.template.metadata.annotations"),
        "{}",
        answer.text
    );
    assert!(answer.text.contains("\n  spec.podReplacementPolicy: Failed\n"), "{}", answer.text);
    let answer = run(include_str!("golden/job.opted-in.yaml"), &["--check"]).unwrap();
    assert_eq!((answer.text.as_str(), answer.changes), ("", false));
}

#[test]
fn it_says_what_changed_and_what_it_means_in_seconds() {
    let told = opted_in(include_str!("golden/job.yaml")).told;
    for line in [
        "Job team-a/train: opted in",
        "  spec.podReplacementPolicy: Failed",
        "  spec.backoffLimitPerIndex: 3",
        "  a lost node costs 1m17s: detect 47s, evict-after 30s; without evict-after it costs 7m17s: detect 47s, toleration 5m, grace 30s, wait 1m",
    ] {
        assert!(told.lines().any(|told| told == line), "{line}: {told}");
    }
}
