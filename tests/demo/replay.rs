//! `salvor demo --replay`: the history of a seed, at any point in time.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use salvor_testkit::Program;
use salvor_testkit::browser::{Browser, Key, Looks};
use serde_json::Value;

use super::{Live, demo, file, page_of, texts};

/// One of four nodes is partitioned for a while. The seed decides which.
const LOST_NODE: &str = "\
title: One of four
pools: [{name: cpu, nodes: 4}]
workloads:
- {name: train, kind: IndexedJob, pods: 4, consent: terminate, podReplacementPolicy: Failed, toleratesUnreachable: 10s, gracePeriod: 5s}
failures: [{kind: partition, at: 1m, lasts: 6m, pick: 1}]
end: 10m
";

impl Live {
    async fn replaying(seed: &str) -> Self {
        Self::replaying_with(seed, &[]).await
    }

    async fn replaying_with(seed: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("scenario.yaml");
        fs::write(&scenario, LOST_NODE).unwrap();
        let arguments = [
            "demo".as_ref(),
            "--page=127.0.0.1:0".as_ref(),
            "--replay".as_ref(),
            scenario.as_os_str(),
            "--seed".as_ref(),
            seed.as_ref(),
        ];
        let arguments = arguments.into_iter().chain(more.iter().map(|it| (*it).as_ref()));
        let program = Program::start(Path::new(env!("CARGO_BIN_EXE_salvor")), arguments, &[]);
        let page = page_of(&program).await;
        Self { program, folder, page }
    }

    /// Sends a request to the page. Returns the status code and the body.
    fn ask(&self, path: &str) -> (u16, String) {
        let address = self.page.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        let (code, body) = self.ask(path);
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

#[test]
fn a_replay_needs_a_scenario_that_can_be_read() {
    let (_folder, path) = file(LOST_NODE);
    for (arguments, code, expected) in [
        (&["--seed", "7"][..], 2, "--seed 7: the demo plays a seed of a scenario only with --replay"),
        (&["--replay", "/nonexistent"], 1, "cannot read the scenario /nonexistent"),
        (&["--replay", &path, "--fail", "fire"], 2, "--fail \"fire\": \"fire\" is not known: write crash"),
        (&["--set", "a=b"], 2, "--replay"),
        (&["--replay", &path, "--set", "brake.x"], 2, "write KEY=VALUE"),
        (&["--replay", &path, "--set", "brake.x=1"], 2, "--set: brake.x: "),
        (&["--replay", &path, "--config", "/nonexistent"], 2, "cannot read /nonexistent"),
        (&["--replay", &path, "--against", "nobody"], 2, "write kubernetes, kueue, karpenter, appwrapper"),
        (&["--replay", &path, "--against", "kueue", "--without-salvor"], 2, "--without-salvor"),
        (&["--replay", &path, "--once"], 2, "--once"),
        (&["--replay", &path, "--scenario", &path], 2, "--scenario"),
        (&["--replay", &path, "--seed", "-1"], 2, "-1"),
    ] {
        let output = demo(arguments);
        let complained = texts(&output).1;
        assert_eq!(output.status.code(), Some(code), "{complained}");
        assert!(complained.contains(expected), "{complained}");
    }
    let (_folder, bad) = file(&LOST_NODE.replace("end: 10m", "end: soon"));
    assert!(texts(&demo(&["--replay", &bad])).1.contains("line 6: end: "));
}

#[tokio::test]
async fn a_replay_is_the_history_that_simulate_reports() {
    let (live, again) = (Live::replaying("3").await, Live::replaying("3").await);
    let scenario = live.folder.path().join("scenario.yaml");
    let simulated = |form: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_salvor"));
        let output =
            command.arg("simulate").arg(&scenario).args(["--seed", "3", "-o", form]).output().unwrap();
        texts(&output).0
    };
    let table = simulated("table");
    let report = table.split("\n  Watch it: ").next().unwrap();
    assert!(live.program.output().contains(report), "{report}\n{}", live.program.output());
    let report: Value = serde_json::from_str(&simulated("json")).unwrap();
    let (failure, phases) = (&report["reports"][0]["failures"][0], &report["reports"][0]["total"]["phases"]);

    let outline = live.json("replay");
    assert_eq!(outline["ends"], report["reports"][0]["played"], "{outline}");
    assert_eq!(
        (&outline["episodes"][0]["at"], &outline["episodes"][0]["until"]),
        (&failure["at"], &failure["until"])
    );
    let lost = failure["nodes"][0].as_str().unwrap();
    assert_eq!(outline["episodes"][0]["begins"], format!("{lost} is cut off"));
    let state_of = |page: &Value| {
        let nodes = page["nodes"].as_array().unwrap().iter();
        nodes.filter(|node| node["state"] != "ready").map(|node| node["name"].clone()).collect::<Vec<_>>()
    };
    // The node fails after one minute, and is marked at the time in the report.
    let detected = 60_000 + phases["detect"].as_i64().unwrap();
    for (time, expected) in [
        (0, vec![]),
        (detected - 1000, vec![]),
        (detected + 1000, vec![Value::from(lost)]),
        (400_000, vec![Value::from(lost)]),
        (600_000, vec![]),
        (1000, vec![]),
    ] {
        let page = live.json(&format!("at/{time}"));
        assert_eq!(state_of(&page), expected, "at {time}");
        let pods = page["pods"].as_array().unwrap().iter();
        assert!(pods.filter(|pod| pod["workload"]["name"] == "train").count() >= 4, "at {time}");
    }
    // Both are byte-identical, whatever was requested before.
    for path in ["replay", "at/420000", "at/60000", "at/599999", "at/123456", "at/600000/since/5"] {
        assert_eq!(live.ask(path), again.ask(path), "{path}");
    }
    let version = live.json("at/30000")["version"].clone();
    let more = live.json(&format!("at/{}/since/{version}", detected + 1000));
    assert!(more["reset"].is_null() && more["nodes"].as_array().unwrap().len() == 1, "{more}");
    for (path, expected) in [
        ("at/600001", "time \"600001\": write milliseconds since the beginning, from 0 to 600000"),
        ("at/-1", "time \"-1\""),
        ("at/x", "time \"x\""),
        ("at/5/since/x", "version \"x\": write the version of an earlier answer"),
    ] {
        let (code, said) = live.ask(path);
        assert!(code == 400 && said.starts_with(expected), "{said}");
    }
    assert_eq!(live.ask("nodes/cpu-a1/crash").0, 404, "the past cannot be changed");
    live.program.signal("INT");
    assert_eq!(live.program.exit_code().await, Some(0), "{}", live.program.output());
}

/// A reader of a comparison replays an interesting seed under any of its policies, with the arguments from the report.
#[tokio::test]
async fn a_replay_plays_any_policy_of_a_comparison() {
    let plain = Live::replaying_with("3", &["--set", "workloads.train.consent=none"]).await;
    let scenario = plain.folder.path().join("scenario.yaml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_salvor"));
    command.arg("simulate").arg(&scenario).args(["--seed", "3", "--sweep", "workloads.train.consent=none"]);
    let (table, _) = texts(&command.output().unwrap());
    let (report, watch) = table.split_once("\n  Watch it: ").unwrap();
    assert!(watch.trim_end().ends_with("--seed 3 --set workloads.train.consent=none"), "{watch}");
    assert!(plain.program.output().contains(report), "{report}\n{}", plain.program.output());
    for (more, named) in [
        (&["--against", "kueue"][..], "policy kueue, seed 3"),
        (&["--against", "karpenter"], "policy karpenter, seed 3"),
        (&["--set", "brake.maxUnreachablePercent=20"], "policy brake.maxUnreachablePercent=20, seed 3"),
    ] {
        let live = Live::replaying_with("3", more).await;
        assert!(live.program.output().contains(named), "{}", live.program.output());
    }
}

#[tokio::test]
async fn a_replay_is_paused_stepped_and_sought_with_keys_and_hands() {
    let live = Live::replaying("3").await;
    let browser = Browser::start().await;
    for dark in [false, true] {
        browser.look(Looks { dark, width: 1440, height: 1000 }).await;
        browser.open(&format!("{}#t={}", live.page, if dark { "420" } else { "0" })).await;
        browser.until("the nodes are shown", "document.querySelectorAll('.node').length === 4").await;
        let time = "document.querySelector('#replay .time').textContent";
        if dark {
            browser.until("the time of the link", &format!("{time} === '7:00.000 of 10:00'")).await;
            continue;
        }
        browser.until("the beginning", &format!("{time} === '0:00.000 of 10:00'")).await;
        let shift = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', shiftKey: true, bubbles: true}))";
        browser.value(shift).await;
        browser.until("the first event", &format!("{time} === '1:00.000 of 10:00'")).await;
        browser.until("it is told", "document.querySelectorAll('#happened .told').length === 1").await;
        browser.press(Key::Right).await;
        browser.until("one step on", "document.querySelector('.node.unreachable') !== null").await;
        browser.press(Key::Left).await;
        browser.until("one step back", &format!("{time} === '1:00.000 of 10:00'")).await;
        browser.until("as it was then", "document.querySelector('.node.unreachable') === null").await;
        assert_eq!(browser.value("document.querySelectorAll('#happened li').length").await, 1);
        // The last of the speeds, and the space bar.
        let fast = "(() => { const all = document.querySelector('#replay select'); all.value = '300'; \
                    all.dispatchEvent(new Event('change')); })()";
        browser.value(fast).await;
        browser.press(Key::Space).await;
        browser.until("it is played to its end", &format!("{time} === '10:00.000 of 10:00'")).await;
        browser
            .until("it is paused there", "document.querySelector('#replay .play').textContent === 'Play'")
            .await;
        browser.until("the work is back", "document.querySelector('#happened .workBack') !== null").await;
        let seek = "(() => { const slider = document.querySelector('#replay input'); slider.value = 300000; \
                    slider.dispatchEvent(new Event('input')); })()";
        browser.value(seek).await;
        browser.until("the slider leads there", &format!("{time} === '5:00.000 of 10:00'")).await;
        browser.until("the node is away then", "document.querySelector('.node.unreachable') !== null").await;
        assert_eq!(browser.value("document.querySelector('.wishes').offsetParent === null").await, true);
    }
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}
