//! The command line: answers on standard output, errors on standard error, and exit codes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "command_line/import_appwrapper.rs"]
mod import_appwrapper;
#[path = "command_line/opt_in.rs"]
mod opt_in;
#[path = "command_line/plugin.rs"]
mod plugin;
#[path = "command_line/simulate.rs"]
mod simulate;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread;

use tempfile::TempDir;

/// The command in an environment without a cluster and without settings.
fn salvor(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_salvor"));
    command.args(arguments).env_clear().env("HOME", "/nonexistent");
    command
}

fn run(arguments: &[&str]) -> Output {
    salvor(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line that a failed command prints to standard error.
fn complaint(output: &Output, code: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(stdout(output), "");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn folder_with(file: &str, text: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

const HEADER: &str = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";

fn kubeconfig(server: &str) -> String {
    format!(
        "current-context: training\n\
         contexts: [{{name: training, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: u, user: {{token: very-secret}}}}]\n"
    )
}

#[test]
fn the_version_is_the_crates() {
    let expected = format!("salvor {}\n", env!("CARGO_PKG_VERSION"));
    for argument in ["version", "--version"] {
        assert_eq!(stdout(&run(&[argument])), expected);
    }
}

/// No environment variable may end or block a release build.
#[test]
fn the_hook_that_ends_the_process_is_in_debug_builds_only() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_salvor")).unwrap();
    let variable = b"SALVOR_TEST_CRASH";
    let has_the_hook = program.windows(variable.len()).any(|bytes| bytes == variable);
    assert_eq!(has_the_hook, cfg!(debug_assertions));
}

#[test]
fn a_good_file_is_told_with_what_it_changes() {
    let (_folder, path) = folder_with("c.yaml", &format!("{HEADER}dryRun: true\n"));
    let output = run(&["config", "check", &path]);
    assert!(output.status.success());
    assert_eq!(stdout(&output), format!("{path}: ok\n# settings other than the defaults:\ndryRun: true\n"));
}

#[test]
fn a_good_file_whose_gate_is_off_is_told_that_nothing_will_happen() {
    let rules = "failureRecoveryPolicy: {rules: [{taintNodeOutOfService: {nodeSelector: {matchLabels: {a: b}}, unreachableNodeTimeout: 5m}}]}";
    let (_folder, path) = folder_with("c.yaml", &format!("{HEADER}{rules}\n"));
    let output = run(&["config", "check", &path]);
    assert!(output.status.success());
    let warning = format!(
        "{path}: ok\n# warning: failureRecoveryPolicy.rules has 1 rule, but nothing will happen: the feature gate \
         FailureRecoveryPolicy is off. Switch it on with featureGates: {{FailureRecoveryPolicy: true}}, or start Salvor with \
         --feature-gates=FailureRecoveryPolicy=true.\n# settings other than the defaults:\n"
    );
    assert!(stdout(&output).starts_with(&warning), "{}", stdout(&output));
}

#[test]
fn a_bad_file_is_told_with_every_line() {
    let (_folder, path) = folder_with("c.yaml", &format!("{HEADER}dryRun: maybe\nbrakes: 1\n"));
    for arguments in [["config", "check", &path], ["run", "--config", &path]] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(&format!("{path}: line 3: dryRun: \"maybe\" cannot be used")), "{text}");
        assert!(text.contains(&format!("{path}: line 4: brakes: is not a known field")), "{text}");
    }
}

#[test]
fn the_defaults_are_a_file_that_checks() {
    let defaults = run(&["config", "defaults"]);
    let (_folder, path) = folder_with("c.yaml", &stdout(&defaults));
    let checked = run(&["config", "check", &path]);
    assert_eq!(stdout(&checked), format!("{path}: ok\n# all settings have their defaults\n"));
}

#[test]
fn a_file_that_is_not_there_is_told_with_who_named_it() {
    let output = run(&["run", "--config", "/nonexistent/c.yaml"]);
    let text = complaint(&output, 1);
    assert!(
        text.starts_with("salvor: cannot read the configuration /nonexistent/c.yaml (from --config): "),
        "{text}"
    );
    let output = salvor(&["manifests"]).env("SALVOR_CONFIG", "/nonexistent/c.yaml").output().unwrap();
    let text = complaint(&output, 1);
    assert!(text.contains("(from SALVOR_CONFIG)"), "{text}");
}

#[test]
fn wrong_usage_ends_with_two() {
    for arguments in [
        &["run", "--bind", "nowhere"][..],
        &["run", "--no-such-flag"],
        &["status", "--as-group", "a"],
        &["status", "--request-timeout", "0s"],
        &["explain", "pod", "without-namespace"],
        &[],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = salvor(&["run"]).env("SALVOR_BIND", "nowhere").output();
    let text = complaint(&output.unwrap(), 2);
    assert!(text.starts_with("salvor: SALVOR_BIND=\"nowhere\" cannot be used: "), "{text}");
}

#[test]
fn the_environment_reaches_the_manifests() {
    let of_zombies = ["manifests", "--controllers=zombie", "--namespace", "recovery"];
    let output =
        salvor(&of_zombies).env("SALVOR_FEATURE_GATES", "FailureRecoveryPolicy=true").output().unwrap();
    let yaml = stdout(&output);
    assert!(yaml.contains("- pods/status"), "{yaml}");
    assert!(yaml.contains("leaseNamespace: recovery"), "{yaml}");
    assert!(!stdout(&run(&of_zombies)).contains("- pods/status"));
}

#[test]
fn an_installation_names_its_recoveries() {
    let gate = "--feature-gates=FailureRecoveryPolicy=true";
    let (_folder, silent) = folder_with("c.yaml", HEADER);
    let (_none, empty) = folder_with("c.yaml", &format!("{HEADER}controllers: []\n"));
    let refused = [
        &["manifests"][..],
        &["manifests", gate],
        &["manifests", "--dry-run", "--image", "salvor:1"],
        &["manifests", "--controllers="],
        &["manifests", "--controllers", "-zombie"],
        &["manifests", "--controllers", "*,-zombie,-job,-eviction"],
        &["manifests", "--config", &silent],
        &["manifests", "--config", &empty],
    ];
    for arguments in refused {
        let text = complaint(&run(arguments), 2);
        let wanted = "salvor: no recovery is named, and nothing is installed that is not: add --controllers with one or more \
                      of zombie, job, eviction, appwrapper, repair, such as --controllers zombie,job, or --controllers '*' \
                      for zombie, job, eviction";
        assert!(text.starts_with(wanted), "{arguments:?}: {text}");
    }
    let (_named, named) = folder_with("c.yaml", &format!("{HEADER}controllers: [job]\n"));
    let granted = |output: Output| {
        let yaml = stdout(&output);
        assert!(output.status.success(), "{output:?}");
        ["jobs/status", "volumeattachments", "noderepairpolicies"]
            .map(|right| yaml.contains(&format!("- {right}\n")))
    };
    assert_eq!(granted(run(&["manifests", "--config", &named])), [true, false, false]);
    assert_eq!(
        granted(run(&["manifests", "--config", &silent, "--controllers=eviction"])),
        [false, true, false]
    );
    assert_eq!(granted(run(&["manifests", "--controllers", "*"])), [true, true, false]);
    assert_eq!(granted(run(&["manifests", "--controllers", "repair"])), [false, false, true]);
    assert_eq!(
        granted(salvor(&["manifests"]).env("SALVOR_CONTROLLERS", "job").output().unwrap()),
        [true, false, false]
    );
}

#[test]
fn an_installation_says_which_named_recovery_will_not_run() {
    let output = run(&["manifests", "--controllers", "zombie,job"]);
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "salvor: the recovery zombie is named and will not run: feature gate FailureRecoveryPolicy is off; \
         --feature-gates=FailureRecoveryPolicy=true switches it on\n"
    );
    let gate = "--feature-gates=FailureRecoveryPolicy=true";
    assert!(run(&["manifests", "--controllers", "zombie,job", gate]).stderr.is_empty());
}

#[test]
fn a_kind_without_verdicts_is_told_with_the_command_that_knows_it() {
    for arguments in [&["explain", "deployment/web"][..], &["explain", "deployment", "web"]] {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("salvor why deployment/"), "{text}");
    }
    assert_eq!(run(&["explain", "pod/a", "b"]).status.code(), Some(2));
}

#[test]
fn without_a_cluster_all_places_are_named() {
    let text = complaint(&run(&["explain", "node", "n"]), 1);
    for place in ["--kubeconfig", "KUBECONFIG", ".kube/config", "not a pod"] {
        assert!(text.contains(place), "{text}");
    }
}

#[test]
fn a_server_that_is_not_there_is_told_with_file_and_context() {
    // Port 1 is never assigned by the kernel, so no server answers there.
    let server = "https://127.0.0.1:1/";
    let (_folder, path) = folder_with("kubeconfig", &kubeconfig(server));
    for arguments in [
        &["run", "--kubeconfig", &path][..],
        &["explain", "pod", "a/b", "--kubeconfig", &path],
        &["status", "--kubeconfig", &path],
        &["why", "--kubeconfig", &path],
    ] {
        let text = complaint(&run(arguments), 1);
        let origin = format!("{server} (kubeconfig {path}, context \"training\"): ");
        assert!(text.contains(&origin), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
    }
    let json = run(&["run", "--kubeconfig", &path, "--log-format=json"]);
    let line: serde_json::Value = serde_json::from_str(&complaint(&json, 1)).unwrap();
    assert_eq!(line["level"], "ERROR");
}

#[test]
fn what_cannot_name_a_node_or_an_incident_is_refused_before_anybody_is_asked() {
    for node in ["", "a/status", "Node", "a b"] {
        let text = complaint(&run(&["evict", node]), 2);
        assert!(text.contains(&format!("{node:?} cannot be the name of a node")), "{text}");
    }
    let text = complaint(&run(&["evict", "node", "--incident", "foo bar"]), 2);
    assert!(text.contains("--incident") && text.contains("\"foo bar\" is not a label value"), "{text}");
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_named() {
    for (text, problem) in
        [("users: [{name: u, user: very-secret}]\n", "expected mapping"), ("current-context: gone\n", "gone")]
    {
        let (_folder, path) = folder_with("kubeconfig", text);
        let told = complaint(&run(&["run", "--kubeconfig", &path]), 1);
        assert!(told.contains(&path) && told.contains(problem), "{told}");
        assert!(!told.contains("very-secret"), "{told}");
    }
    let told = complaint(&run(&["run", "--kubeconfig", "/nonexistent/k"]), 1);
    assert!(told.contains("cannot read kubeconfig /nonexistent/k: No such file"), "{told}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child =
        salvor(&["config", "defaults"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty());
}

#[test]
fn every_shell_gets_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&run(&["completions", shell]));
        assert!(script.contains("feature-gates"), "{shell}");
    }
}

/// Answers the first request of a client, its version, and fails all others.
fn broken_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = lines.next().and_then(Result::ok).unwrap_or_default();
                let headers = lines.map_while(Result::ok);
                headers.take_while(|line| !line.is_empty()).for_each(drop);
                let (status, body) = if request.starts_with("GET /version ") {
                    let version = r#"{"major":"1","minor":"33","gitVersion":"","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;
                    ("200 OK", version)
                } else {
                    ("503 Service Unavailable", "{}")
                };
                let length = body.len();
                // The client may already be gone.
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
            });
        }
    });
    format!("http://{address}")
}

#[test]
fn sigterm_and_sigint_end_a_run_cleanly() {
    let server = broken_server();
    for signal in ["-TERM", "-INT"] {
        let (_folder, path) = folder_with("kubeconfig", &kubeconfig(&server));
        let mut child = salvor(&[
            "run",
            "--kubeconfig",
            &path,
            "--bind=127.0.0.1:0",
            "--leader-elect=false",
            "--feature-gates=FailureRecoveryPolicy=true",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        while !seen.contains("starting") {
            assert_ne!(log.read_line(&mut seen).unwrap(), 0, "ended early: {seen}");
        }
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(killed.unwrap().success());
        log.read_to_string(&mut seen).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{seen}");
        assert!(seen.contains("stopped"), "{seen}");
        assert!(!seen.contains("very-secret"), "{seen}");
    }
}

#[test]
fn pausing_with_a_bad_flag_is_told_at_once_and_without_a_cluster_too() {
    let (_folder, path) = folder_with("kubeconfig", &kubeconfig("http://127.0.0.1:1"));
    let long = "x".repeat(501);
    let cases: [(&[&str], i32, &str); 5] = [
        (&["pause", "--for=0s"], 2, "--for 0s must be longer than 0s"),
        (&["pause", "--reason", &long], 2, "--reason is 501 bytes long: write at most 500"),
        (&["pause", "--wait=-1s"], 2, "--wait -1s must not be negative"),
        (&["pause", "--kubeconfig", &path], 1, "cannot read Lease salvor-system/salvor"),
        (&["resume", "--kubeconfig", &path], 1, "cannot read Lease salvor-system/salvor"),
    ];
    for (arguments, code, says) in cases {
        let said = complaint(&run(arguments), code);
        assert!(said.contains(says), "{said}");
    }
    assert_eq!(run(&["pause", "--wait", "soon"]).status.code(), Some(2));
}
