//! `salvor demo`, as a person or a script starts it.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "demo/replay.rs"]
mod replay;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use salvor_testkit::browser::{Browser, Looks};
use salvor_testkit::{Kubectl, Program};
use tempfile::TempDir;

/// Long enough for a person, short enough for a test.
const SHORT: &str = "\
title: One node
zones: 2
nodesPerZone: 2
work: {training: 3, database: 2, website: 2, batch: 3}
patience: 20m
steps:
- {after: 20s, title: Off, crash: {zone: b}}
- {after: 5m, title: Back, expect: recovered, heal: {zone: b}}
";

fn demo(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_salvor"));
    command.arg("demo").args(arguments).env_clear().output().unwrap()
}

fn file(text: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_built_in_story_recovers_and_without_salvor_it_does_not() {
    let output = demo(&["--once"]);
    let (told, complained) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{told}{complained}");
    assert_eq!(complained, "");
    for part in [
        "Zone b is cut off",
        "stuck Terminating",
        "Salvor marked Failed",
        "Running again",
        "AppWrapper simulation is unhealthy: Workload contains pods on unreachable Nodes: node-b",
        "Salvor reset: default/simulation",
        "AppWrapper simulation is Running again",
        "The accelerator of gpu-1 fails",
        "Node gpu-1 is sick: AcceleratedHardwareReady=False (NvidiaXID79Error) since ",
        "Salvor began to replace: gpu-1",
        "Node gpu-1 is gone",
        "Node gpu-3 replaces node gpu-1, ",
        "after the repair of its node began",
        "Everything recovered.",
        "1 node was replaced, and 1 pod ran again, the slowest ",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    assert!(!told.contains('\x1b'), "no colours without a terminal");

    let output = demo(&["--once", "--without-salvor"]);
    let (told, _) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("Not everything recovered:") && told.contains("training runs"), "{told}");
    assert!(!told.contains("Salvor marked Failed") && !told.contains("AppWrapper simulation"), "{told}");
    assert!(told.contains("before \"The network works again\": simulation"), "{told}");
    assert!(told.contains("at the end: tuning runs 1 of 2 pods"), "{told}");
    assert!(!told.contains("gpu-3"), "{told}");
    // Only the last line names Salvor: it says how to compare.
    let chapters = told.split("Not everything recovered:").next().unwrap();
    assert!(!chapters.contains("Salvor"), "{chapters}");
    assert!(told.contains("Kubernetes' default"), "{told}");
}

/// The times of the story must be in the expected order.
#[test]
fn a_node_is_replaced_only_after_its_toleration_and_only_if_it_stays_sick() {
    let story = |heal: &str| {
        format!(
            "title: GPU\nzones: 1\nnodesPerZone: 1\ngpuNodes: 2\npatience: 5m\n\
             work: {{training: 0, database: 0, website: 0, batch: 0, simulation: 0, tuning: 2}}\n\
             steps:\n- {{after: 10s, title: Sick, failAccelerator: {{node: gpu-2}}}}\n{heal}\
             - {{after: 2m, title: End, expect: recovered}}\n"
        )
    };
    let at = |told: &str, part: &str| {
        let line =
            told.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("no {part:?} in {told}"));
        let (minutes, seconds) = line.trim().split(' ').next().unwrap().split_once(':').unwrap();
        minutes.parse::<u32>().unwrap() * 60 + seconds.parse::<u32>().unwrap()
    };
    let (_folder, path) = file(&story(""));
    let (told, complained) = texts(&demo(&["--once", "--scenario", &path]));
    let (fails, replaced) =
        (at(&told, "The accelerator of gpu-2 fails"), at(&told, "Salvor began to replace: gpu-2"));
    assert!((60..70).contains(&(replaced - fails)), "{told}{complained}");
    assert!(at(&told, "Node gpu-3 replaces node gpu-2") > replaced, "{told}");
    assert!(told.contains("Everything recovered."), "{told}");
    assert_eq!(told, texts(&demo(&["--once", "--scenario", &path])).0, "one story, one report");

    let (_folder, path) = file(&story("- {after: 40s, title: Well, heal: {node: gpu-2}}\n"));
    let (told, _) = texts(&demo(&["--once", "--scenario", &path]));
    assert!(told.contains("Node gpu-2 is healthy again by itself"), "{told}");
    assert!(!told.contains("began to replace") && told.contains("Everything recovered."), "{told}");
}

#[test]
fn a_node_that_is_healed_says_so_of_every_condition_that_made_it_sick() {
    let story = "\
title: Disk
pools: [{name: cpu, nodes: 2}, {name: gpu, nodes: 2, machines: {shutdown: 10s, boot: 20s}}]
workloads: [{name: tuning, kind: IndexedJob, pods: 2, pool: gpu}]
salvor:
  repairPolicies:
    gpu:
      nodeSelector: {matchLabels: {karpenter.sh/nodepool: gpu}}
      policies: [{conditionType: DiskReady, conditionStatus: 'False', toleration: 3m}]
      unhealthyLimit: 100%
failures: [{kind: sick, at: 20s, lasts: 1m, target: {node: gpu-1}, condition: {type: DiskReady}}]
steps: [{after: 6m, title: End}]
";
    let (_folder, path) = file(story);
    let (told, complained) = texts(&demo(&["--once", "--scenario", &path]));
    assert!(told.contains("gpu-1 is sick: DiskReady is False"), "{told}{complained}");
    assert!(told.contains("Node gpu-1 is healthy again by itself"), "{told}");
    assert!(!told.contains("began to replace") && told.contains("Everything recovered."), "{told}");
}

#[test]
fn the_same_story_is_told_in_the_same_words_twice() {
    let (_folder, path) = file(SHORT);
    let arguments = ["--once", "--scenario", &path];
    let (first, _) = texts(&demo(&arguments));
    assert!(first.contains("Everything recovered.") && first.contains("No work ran twice."), "{first}");
    assert_eq!(first, texts(&demo(&arguments)).0);
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let (_folder, path) = file(SHORT);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_salvor"));
    let output = command.args(["demo", "--once", "--scenario", &path]).stdout(full).output().unwrap();
    let complained = texts(&output).1;
    assert_eq!(output.status.code(), Some(1), "{complained}");
    assert!(complained.contains("cannot write to standard output: No space left"), "{complained}");
}

#[test]
fn virtual_time_takes_a_speed_and_a_title_cannot_steer_a_terminal() {
    let (_folder, path) = file(&SHORT.replace("One node", "\"One \\x1b[2J\\anode\""));
    let output = demo(&["--once", "--speed", "60", "--scenario", &path]);
    let (told, complained) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{told}{complained}");
    assert!(told.contains("One \u{fffd}[2J\u{fffd}node"), "{told}");
    assert!(!told.contains(['\x1b', '\x07']), "{told}");
}

#[test]
fn it_ends_when_its_reader_has_seen_enough() {
    let (_folder, path) = file(SHORT);
    let mut command = Command::new(env!("CARGO_BIN_EXE_salvor"));
    command.args(["demo", "--page=127.0.0.1:0", "--speed=60", "--scenario", &path]);
    let mut program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(program.stdout.take().unwrap());
    let mut first = String::new();
    told.read_line(&mut first).unwrap();
    assert!(first.contains("A whole cluster runs in this process"), "{first}");
    drop(told);
    let output = program.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", texts(&output).1);
}

#[test]
fn a_bad_scenario_is_told_with_line_field_and_remedy() {
    let (_folder, path) = file("title: t\nsteps:\n- {after: soon, title: x}\n");
    let output = demo(&["--once", "--scenario", &path]);
    let (told, complained) = texts(&output);
    assert_eq!((output.status.code(), told.as_str()), (Some(1), ""));
    assert!(complained.contains(&path) && complained.contains("line 3: steps[0].after: "), "{complained}");
    let (_, complained) = texts(&demo(&["--scenario", "/nonexistent"]));
    assert!(complained.contains("cannot read the scenario /nonexistent"), "{complained}");
    let output = demo(&["--speed", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(texts(&output).1.contains("write a number from 0.1 to 60"));
}

#[test]
fn a_port_that_was_asked_for_and_is_taken_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = demo(&["--page", &address]);
    let (_, complained) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(complained.contains(&format!("cannot show the page on {address} (--page)")), "{complained}");
}

/// Waits until the program prints the address of its page.
async fn page_of(program: &Program) -> String {
    loop {
        let said = program.output();
        let url = said.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned);
        if let Some(url) = url.filter(|_| said.contains("Ctrl-C")) {
            return url;
        }
        assert!(!program.has_ended(), "{said}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct Live {
    program: Program,
    folder: TempDir,
    page: String,
}

impl Live {
    /// A demo in which nothing happens by itself.
    async fn start() -> Self {
        Self::playing("title: Quiet\nzones: 2\nnodesPerZone: 2\nwork: {training: 4, batch: 0}\nsteps: []\npatience: 0s\n")
            .await
    }

    async fn playing(story: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("scenario.yaml");
        fs::write(&scenario, story).unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let arguments = [
            "demo".as_ref(),
            "--speed=10".as_ref(),
            "--page=127.0.0.1:0".as_ref(),
            "--scenario".as_ref(),
            scenario.as_os_str(),
            "--kubeconfig-out".as_ref(),
            kubeconfig.as_os_str(),
        ];
        let program = Program::start(Path::new(env!("CARGO_BIN_EXE_salvor")), arguments, &[]);
        let page = page_of(&program).await;
        Self { program, folder, page }
    }
}

#[tokio::test]
async fn a_click_kills_a_node_and_its_work_is_seen_to_come_back() {
    let live = Live::start().await;
    let browser = Browser::start().await;
    browser.look(Looks { dark: false, width: 1440, height: 1000 }).await;
    browser.open(&live.page).await;
    let busy = ".node:has(.pod.running.Job)";
    browser.until("training runs", &format!("document.querySelectorAll('{busy}').length > 1")).await;
    browser.click(busy).await;
    browser.click("[data-fault='crash']").await;
    browser.until("the node is silent", "document.querySelector('.node.unreachable') !== null").await;
    // These two states are temporary: on a busy machine, their result may already be there.
    browser
        .until("its pod is stuck", "document.querySelector('.pod.stuck, #happened .stuck') !== null")
        .await;
    browser
        .until("Salvor says why it waits", "document.querySelector('.cases .Wait, #happened .did') !== null")
        .await;
    // The front page shows the same as `salvor why --all`: which workload waits, and for which node.
    let front = "[...document.querySelectorAll('#missing li')].some(li => \
        li.innerText.includes('Job default/training misses') && /Node node-\\w+/.test(li.innerText)) \
        || document.querySelector('#happened .workBack') !== null";
    browser.until("the front says what is missing", front).await;
    browser.until("Salvor acts", "document.querySelector('#happened .did') !== null").await;
    browser.until("the work is back", "document.querySelector('#happened .workBack') !== null").await;
    browser.until("nothing is stuck", "document.querySelectorAll('.cases li').length === 0").await;
    browser.click("[data-fault='heal']").await;
    browser.until("the node is back", "document.querySelector('.node.unreachable') === null").await;
    let whole = "document.querySelectorAll('#missing li').length === 0 && \
        document.querySelector('#missing .empty').offsetParent !== null";
    browser.until("nothing is missing any more", whole).await;
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn an_app_wrapper_that_loses_a_node_is_seen_to_be_reset_as_a_whole() {
    let live = Live::start().await;
    let browser = Browser::start().await;
    browser.look(Looks { dark: true, width: 1440, height: 1000 }).await;
    browser.open(&live.page).await;
    let phase = |phase: &str| format!("document.querySelector('#wrappers .{phase}') !== null");
    browser.until("it runs", &phase("Running:not(.unwell)")).await;
    let busy = ".node:has(.pod.running[title^='default/simulation'])";
    browser.until("its pods run", &format!("document.querySelector(\"{busy}\") !== null")).await;
    browser.click(busy).await;
    browser.click("[data-fault='crash']").await;
    browser.until("it is unhealthy", "document.querySelector('#happened .unhealthy') !== null").await;
    // The phases are temporary: on a busy machine, the last of them may already be reached.
    let over = "document.querySelector('#happened .resetOver') !== null";
    browser.until("it is reset", &format!("{} || {over}", phase("Resetting"))).await;
    // The page must not claim that a pod is ignored only because no other recovery ends it.
    let alone =
        "[...document.querySelectorAll('.cases .None b')].some(b => b.textContent.includes('simulation'))";
    let said = browser.value(&format!("!({alone}) || !({})", phase("Resetting"))).await;
    assert_eq!(said, true, "{}", browser.value("document.body.innerText").await);
    browser.until("it is Running again", over).await;
    let said = "document.querySelector('#wrappers li').innerText.includes('1 reset, 0 of 3 retries used')";
    browser.until("the reset is on record, and is not its own fault", said).await;
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn a_node_whose_accelerator_fails_is_seen_to_wait_and_to_be_replaced() {
    let live = Live::playing(
        "title: GPU\nzones: 1\nnodesPerZone: 1\ngpuNodes: 2\n\
         work: {training: 0, database: 0, website: 0, batch: 0, simulation: 0, tuning: 2}\n\
         steps:\n- {after: 60s, title: Sick, failAccelerator: {node: gpu-1}}\n- {after: 3m, title: End}\n",
    )
    .await;
    let browser = Browser::start().await;
    browser.look(Looks { dark: false, width: 1440, height: 1000 }).await;
    browser.open(&live.page).await;
    browser.until("the nodes are shown", "document.querySelector('[title=\"gpu-2\"]') !== null").await;
    // States are temporary: on a busy machine, their result may already be there.
    let over = "document.querySelector('#happened .replaced') !== null";
    let counts = "/^sick, repair in \\d+ s$/.test(document.querySelector('[title=\"gpu-1\"].sick .note')?.textContent) \
        && /Tolerated: \\d+ s left, until /.test(document.querySelector('#repairs .Waiting')?.innerText)";
    browser.until("its wait is counted down", &format!("({counts}) || {over}")).await;
    let replaced = "document.querySelector('[title=\"gpu-1\"].repairing') !== null \
        && document.querySelector('#repairs .Repairing') !== null";
    browser.until("it is being replaced", &format!("({replaced}) || {over}")).await;
    browser.until("another node is there", over).await;
    browser.until("its work is back", "document.querySelector('#happened .workMoved') !== null").await;
    let told = "document.querySelector('#repairs .Repaired')?.innerText.includes('Node gpu-3 replaces it, ')";
    browser.until("the repair is told as over", told).await;
    let tiles = "document.querySelector('[title=\"gpu-1\"]') === null \
        && document.querySelector('[title=\"gpu-3\"] .pod.running.Job') !== null";
    browser.until("the map shows the new node", tiles).await;
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn kubectl_works_on_it_and_a_signal_ends_it_cleanly() {
    let live = Live::start().await;
    let cache = live.folder.path().join("cache");
    let kubectl = Kubectl::with(&live.folder.path().join("kubeconfig"), &cache).unwrap();
    let nodes = kubectl.run(&["get", "nodes", "--no-headers"]).await.unwrap();
    assert_eq!(nodes.lines().count(), 4, "{nodes}");
    assert!(nodes.lines().all(|line| line.contains(" Ready ")), "{nodes}");
    live.program.signal("INT");
    assert_eq!(live.program.exit_code().await, Some(0), "{}", live.program.output());
}
