//! `salvor opt-in`: manifests go in, and come out with what recovery needs.

use super::*;

const JOB: &str = "# Trains.
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  template:
    spec:
      restartPolicy: Never # as podFailurePolicy needs it
      containers:
      - name: main
        image: example.com/train:1
";

const DATABASE: &str =
    "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db}\nspec:\n  template:\n    spec: {}\n";

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn piped(arguments: &[&str], text: &str) -> Output {
    let mut command = salvor(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_file_and_standard_input_give_the_same_and_a_second_time_nothing() {
    let (_folder, path) = folder_with("job.yaml", JOB);
    let from_file = run(&["opt-in", "-f", &path]);
    assert!(from_file.status.success(), "{}", stderr(&from_file));
    let printed = stdout(&from_file);
    let piped_in = piped(&["opt-in", "-f", "-"], JOB);
    assert_eq!(stdout(&piped_in), printed);
    for line in [
        "# Trains.",
        "  podReplacementPolicy: Failed",
        "        kueue.x-k8s.io/safe-to-forcefully-terminate: \"true\"",
        "        salvor.dev/evict-after: 30s",
        "      restartPolicy: Never # as podFailurePolicy needs it",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}:\n{printed}");
    }
    assert!(stderr(&from_file).contains("a lost node costs 1m17s"), "{}", stderr(&from_file));

    assert_eq!(stdout(&piped(&["opt-in", "-f", "-"], &printed)), printed);
    assert_eq!(stdout(&piped(&["opt-in", "-f", "-", "--uninject"], &printed)), JOB);
    let waits = stdout(&piped(&["opt-in", "-f", "-", "--evict-after", "2m"], JOB));
    assert!(waits.contains("salvor.dev/evict-after: 2m\n"), "{waits}");
}

#[test]
fn a_check_fails_until_nothing_is_missing() {
    let missing = piped(&["opt-in", "-f", "-", "--check"], JOB);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stdout(&missing).starts_with("Job train: this is missing\n"), "{}", stdout(&missing));
    let printed = stdout(&piped(&["opt-in", "-f", "-"], JOB));
    let complete = piped(&["opt-in", "-f", "-", "--check"], &printed);
    assert_eq!((complete.status.code(), stdout(&complete)), (Some(0), String::new()));
}

#[test]
fn work_that_may_run_only_once_needs_consent_in_words() {
    let refused = complaint(&piped(&["opt-in", "-f", "-"], DATABASE), 1);
    for part in ["standard input: StatefulSet db: ", "it belongs to a StatefulSet.apps", "--consent delete"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    // All or nothing: the Job is not printed either.
    complaint(&piped(&["opt-in", "-f", "-"], &format!("{JOB}---\n{DATABASE}")), 1);
    let consented = piped(&["opt-in", "-f", "-", "--consent", "delete"], DATABASE);
    assert!(stdout(&consented).contains("safe-to-forcefully-delete"), "{}", stderr(&consented));
}

#[test]
fn bad_input_is_refused_with_its_place() {
    let broken = complaint(&piped(&["opt-in", "-f", "-"], "kind: Service\n---\nkind: Pod\nkind: Job\n"), 1);
    assert!(broken.contains("standard input: line 4: not YAML: "), "{broken}");
    let missing = complaint(&run(&["opt-in", "-f", "/nonexistent/job.yaml"]), 1);
    assert!(missing.contains("cannot read /nonexistent/job.yaml (-f)"), "{missing}");
    let negative = complaint(&run(&["opt-in", "-f", "-", "--evict-after=-3s"]), 2);
    assert!(negative.contains("--evict-after -3s must not be negative"), "{negative}");
}
