//! Tests of the page in a real browser.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod stage;

use salvor_operator::Notice;
use salvor_page::{Caption, Fault};
use salvor_recovery::{Finding, Report};
use salvor_testkit::browser::{Browser, Key, Looks};
use serde_json::{Value, json};

use crate::stage::Stage;

const WIDE: Looks = Looks { dark: false, width: 1440, height: 1000 };

fn waits(subject: &str) -> Notice {
    waits_since(subject, "the grace period of the pod's owner is still running")
}

fn waits_since(subject: &str, message: &str) -> Notice {
    let report = Report {
        verdict: "Wait",
        reason: "GraceRunning",
        message: message.into(),
        what_would_change_it: "Time passes.".into(),
        until: "2100-01-01T00:00:00Z".parse().ok(),
        blocked_by: None,
        findings: vec![Finding {
            question: "Is its node unreachable?",
            observed: "<i>since 12:00</i>".into(),
            holds: true,
        }],
        actions: Vec::new(),
    };
    Notice::Judged { recovery: "zombie", subject: subject.into(), report }
}

async fn text_of(browser: &Browser, selector: &str) -> String {
    let text = browser.value(&format!("document.querySelector({selector:?})?.innerText ?? ''")).await;
    text.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_click_makes_a_node_suffer_and_what_follows_is_shown() {
    let mut stage = Stage::open().await;
    stage.add_node("a-1", "a").await;
    stage.add_node("b-1", "b").await;
    stage.add_pod("train-0", "b-1").await;
    let browser = Browser::start().await;
    browser.look(WIDE).await;
    browser.open(&stage.url()).await;
    browser.until("the nodes are shown", "document.querySelectorAll('.node.ready').length === 2").await;
    browser.until("the pod runs", "document.querySelector('[title=\"b-1\"] .pod.running') !== null").await;
    assert_eq!(text_of(&browser, "#headline").await, "2 nodes, none unreachable. No pod is stuck.");
    let says = |node: &str, label: &str| {
        format!("document.querySelector('[title=\"{node}\"]').getAttribute('aria-label') === '{label}'")
    };
    browser.until("the pod is told of", &says("b-1", "Node b-1, Ready, 1 pod")).await;
    assert_eq!(browser.value(&says("a-1", "Node a-1, Ready, 0 pods")).await, true);

    browser.click("[title='b-1']").await;
    browser.click("[data-fault='crash']").await;
    let wish = stage.wish().await;
    assert_eq!((wish.node.as_str(), wish.fault), ("b-1", Fault::Crash));
    wish.done.send(Ok(())).unwrap();
    browser.until("it says so at once", "document.querySelector('[title=\"b-1\"].wished') !== null").await;

    stage.lose_node("b-1").await;
    browser
        .until("the node is unreachable", "document.querySelector('[title=\"b-1\"].unreachable') !== null")
        .await;
    let grown = "(() => { const tile = document.querySelector('[title=\"b-1\"]'); \
                 const silence = tile.querySelector('.note').textContent; \
                 return silence !== 'unreachable for 0 s' && tile.getAttribute('aria-label').includes(silence); })()";
    browser.until("the time is told as it grows", grown).await;
    stage.delete_pod("train-0").await;
    browser.until("the pod is stuck", "document.querySelector('[title=\"b-1\"] .pod.stuck') !== null").await;
    stage.notice(waits("pod default/train-0"));
    browser.until("it is said why", "document.querySelector('.cases .Wait') !== null").await;
    let case = text_of(&browser, ".cases li").await;
    assert!(case.contains("default/train-0") && case.contains("grace period"), "{case}");
    assert!(case.contains("s left"), "{case}");

    stage.remove_pod("train-0").await;
    stage.add_pod("train-0", "a-1").await;
    browser.until("its work is back", "document.querySelector('#happened .workBack') !== null").await;
    browser.until("nothing is stuck", "document.querySelectorAll('.cases li').length === 0").await;
    browser.until("the pod is told of there", &says("a-1", "Node a-1, Ready, 1 pod")).await;
    assert_eq!(text_of(&browser, "[data-count='recovered'] b").await, "1");
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn a_wish_that_fails_says_why_and_a_page_without_control_has_no_buttons() {
    let mut stage = Stage::open().await;
    stage.add_node("a-1", "a").await;
    let browser = Browser::start().await;
    browser.open(&stage.url()).await;
    browser.until("the node is shown", "document.querySelector('.node') !== null").await;
    browser.click(".node").await;
    browser.click("[data-fault='heal']").await;
    stage.wish().await.done.send(Err("there is no such node".into())).unwrap();
    browser
        .until("the reason", "document.querySelector('.answer').textContent === 'there is no such node'")
        .await;

    let only_shows = stage.serve_read_only().await;
    browser.open(&only_shows).await;
    browser.until("the node is shown", "document.querySelector('.node') !== null").await;
    browser.click(".node").await;
    browser.until("the panel is open", "!document.querySelector('#node').hidden").await;
    assert_eq!(browser.value("document.querySelector('.wishes').offsetParent === null").await, true);
    browser.close().await;
}

#[tokio::test]
async fn a_pause_is_said_until_it_is_over() {
    let stage = Stage::open().await;
    stage.add_node("a-1", "a").await;
    let browser = Browser::start().await;
    browser.open(&stage.url()).await;
    browser.until("the node is shown", "document.querySelector('.node') !== null").await;
    assert_eq!(browser.value("document.querySelector('#paused').hidden").await, true);
    stage.notice(Notice::Paused(Some("paused by <i>jane</i> since 2026-11-16T03:00:00Z: work".into())));
    browser.until("the pause is said", "!document.querySelector('#paused').hidden").await;
    let said = text_of(&browser, "#paused").await;
    assert!(said.contains("paused by <i>jane</i> since") && said.contains("salvor resume"), "{said}");
    stage.notice(Notice::Paused(None));
    browser.until("it is over", "document.querySelector('#paused').hidden").await;
    browser.close().await;
}

#[tokio::test]
async fn the_keyboard_reaches_everything() {
    let stage = Stage::open().await;
    for name in ["a-1", "a-2", "a-3"] {
        stage.add_node(name, "a").await;
    }
    let browser = Browser::start().await;
    browser.look(WIDE).await;
    browser.open(&stage.url()).await;
    browser.until("the nodes are shown", "document.querySelectorAll('.node').length === 3").await;
    let focus = async || {
        let value = browser.value("document.activeElement.title || document.activeElement.textContent").await;
        value.as_str().unwrap_or_default().to_owned()
    };
    browser.press(Key::Tab).await;
    assert_eq!(focus().await, "Skip to the nodes");
    browser.press(Key::Tab).await;
    assert_eq!(focus().await, "a-1");
    browser.press(Key::Right).await;
    browser.press(Key::Right).await;
    assert_eq!(focus().await, "a-3");
    // The map is a single tab stop: Tab leaves it from any node.
    browser.press(Key::Enter).await;
    browser.until("the node is shown", "!document.querySelector('#node').hidden").await;
    assert_eq!(focus().await, "a-3");
    browser.press(Key::Tab).await;
    browser.press(Key::Tab).await;
    assert_eq!(focus().await, "Crash");
    browser.press(Key::Escape).await;
    browser.until("the node is closed", "document.querySelector('#node').hidden").await;
    assert_eq!(focus().await, "a-3");
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn the_keyboard_stays_where_it_is_while_cases_change() {
    let stage = Stage::open().await;
    let browser = Browser::start().await;
    browser.look(WIDE).await;
    browser.open(&stage.url()).await;
    stage.notice(waits("node b"));
    browser.until("a case is shown", "document.querySelector('.cases summary') !== null").await;
    browser.value("document.querySelector('.cases summary').focus()").await;
    let focus = "document.activeElement.closest('.cases > li')?.querySelector('b').textContent";
    assert_eq!(browser.value(focus).await, "node b");
    for (other, count) in [("node c", 2), ("node a", 3)] {
        stage.notice(waits(other));
        let shown = format!("document.querySelectorAll('.cases > li').length === {count}");
        browser.until("another case is shown", &shown).await;
        assert_eq!(browser.value(focus).await, "node b", "when {other} comes");
    }
    stage.notice(waits_since("node b", "something else"));
    let told = "document.querySelector('.cases').textContent.includes('something else')";
    browser.until("the case is drawn anew", told).await;
    assert_eq!(browser.value(focus).await, "node b", "when it changes itself");
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn names_are_text_whatever_they_look_like() {
    const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";
    let meta = |name: &str| {
        json!({ "name": name, "namespace": HOSTILE, "uid": name, "resourceVersion": "1",
        "labels": { "topology.kubernetes.io/zone": HOSTILE, "app": HOSTILE } })
    };
    let repair =
        json!({ "type": "SalvorRepair", "status": "False", "reason": "Blocked", "message": HOSTILE });
    let node = json!({ "metadata": meta(HOSTILE), "spec": { "taints": [{ "key": "node.kubernetes.io/unreachable" }] },
        "status": { "conditions": [repair] } });
    let mut pod = json!({ "metadata": meta(HOSTILE), "spec": { "nodeName": HOSTILE }, "status": { "phase": "Running" } });
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let wrapper = json!({ "metadata": meta(HOSTILE), "status": { "phase": HOSTILE, "resets": [{ "message": HOSTILE }],
        "conditions": [{ "type": "Unhealthy", "status": "True", "message": HOSTILE }] } });
    let stage = Stage::of(stage::canned(&node, &pod, &wrapper)).await;
    let browser = Browser::start().await;
    browser.look(WIDE).await;
    browser.open(&stage.url()).await;
    stage.page.tell(HOSTILE);
    stage.page.turn_page(Caption { title: HOSTILE.into(), text: HOSTILE.into(), chapter: 1, chapters: 1 });
    stage.notice(waits(&format!("pod {HOSTILE}/{HOSTILE}")));
    browser.until("all of it is shown", "document.querySelector('.cases .Wait') !== null").await;
    browser.until("the story too", "!document.querySelector('#story').hidden").await;
    browser.click(".node").await;
    for place in [
        ".node .name",
        ".zone h2",
        ".cases .who",
        "#story h2",
        "#happened .told",
        "#work b",
        "#repairs b",
        "#repairs p",
        "#wrappers b",
        "#wrappers em",
        "#wrappers .past",
        "#node-name",
        "#node .list",
    ] {
        let text = text_of(&browser, place).await;
        assert!(text.contains(HOSTILE), "{place} shows {text:?}");
    }
    assert_eq!(browser.value("document.querySelectorAll('img').length").await, 1, "the logo and no other");
    assert_eq!(browser.value("document.title").await, "Salvor");
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn app_wrappers_are_shown_with_phase_resets_and_what_is_waited_for() {
    let stage = Stage::open().await;
    stage.add_node("a-1", "a").await;
    let browser = Browser::start().await;
    browser.look(WIDE).await;
    browser.open(&stage.url()).await;
    browser.until("the node is shown", "document.querySelector('.node') !== null").await;
    // The cluster does not serve AppWrappers, and the page does not mention them.
    assert_eq!(browser.value("document.querySelector('#wrappers').hidden").await, true);

    stage.define_wrappers().await;
    stage.add_wrapper("simulation").await;
    // The page polls for the CRD.
    browser
        .until("it is shown", "document.querySelector('#wrappers .Other em')?.textContent === 'New'")
        .await;
    stage.set_wrapper_status("simulation", &json!({ "phase": "Running" })).await;
    browser.until("it runs", "document.querySelector('#wrappers .Running') !== null").await;
    let shown = text_of(&browser, "#wrappers li").await;
    assert!(shown.contains("simulation") && shown.contains("0 of 5 retries used"), "{shown}");

    let lost = "Workload contains pods on unreachable Nodes: a-1";
    let unhealthy = json!([{ "type": "Unhealthy", "status": "True", "reason": "NodeLost", "message": lost,
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    stage.set_wrapper_status("simulation", &json!({ "conditions": unhealthy })).await;
    browser.until("it is unhealthy", "document.querySelector('#wrappers .Running.unwell') !== null").await;
    let Notice::Judged { report, .. } =
        waits_since("", "The workload is unhealthy, and has time to recover.")
    else {
        panic!("a notice of another kind");
    };
    let subject = "default/simulation".to_owned();
    stage.notice(Notice::Judged { recovery: "appwrapper", subject, report });
    browser.until("it says for how long", "document.querySelector('#wrappers [data-until]') !== null").await;
    let shown = text_of(&browser, "#wrappers li").await;
    assert!(shown.contains("Running, unhealthy") && shown.contains("has time to recover"), "{shown}");
    assert!(shown.contains("Waiting: ") && shown.contains(", until "), "{shown}");

    let reset = json!([{ "phase": "Resetting", "cause": "NodeLost", "message": format!("NodeLost: {lost}"),
        "counted": true }]);
    let status = json!({ "phase": "Resetting", "resettingCount": 1, "resets": reset });
    stage.set_wrapper_status("simulation", &status).await;
    browser.until("it is reset", "document.querySelector('#wrappers .Resetting') !== null").await;
    let shown = text_of(&browser, "#wrappers li").await;
    assert!(shown.contains("1 reset, 1 of 5 retries used"), "{shown}");
    assert!(shown.contains(&format!("Last reset: NodeLost: {lost}")), "{shown}");

    stage.set_wrapper_status("simulation", &json!({ "phase": "Running", "conditions": [] })).await;
    browser.until("it runs again", "document.querySelector('#happened .resetOver') !== null").await;
    assert_eq!(
        text_of(&browser, "#happened .unhealthy p").await,
        format!("AppWrapper simulation is unhealthy: {lost}")
    );
    stage.delete_wrapper("simulation").await;
    browser.until("it is gone", "document.querySelector('#wrappers').hidden").await;
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn the_repair_of_a_node_is_shown_with_its_wait_and_with_what_blocks_it() {
    let stage = Stage::open().await;
    stage.add_node("gpu-1", "a").await;
    let browser = Browser::start().await;
    browser.look(WIDE).await;
    browser.open(&stage.url()).await;
    browser.until("the node is shown", "document.querySelector('.node') !== null").await;
    assert_eq!(browser.value("document.querySelector('#repairs').hidden").await, true);
    let note = |words: &str| format!("document.querySelector('.node .note').textContent === '{words}'");

    let sick = "policy gpu: <i>Broken</i>=True, until later";
    stage.tell_repair("gpu-1", "Waiting", sick).await;
    browser.until("it is sick", &note("sick, repair waits")).await;
    let Notice::Judged { report, .. } = waits("") else { panic!("a notice of another kind") };
    stage.notice(Notice::Judged { recovery: "repair", subject: "node gpu-1".into(), report });
    let counts = "document.querySelector('.node.sick .note').textContent.startsWith('sick, repair in ')";
    browser.until("its wait is counted down", counts).await;
    let shown = text_of(&browser, "#repairs .Waiting").await;
    assert!(shown.contains("gpu-1") && shown.contains(sick), "{shown}");
    assert!(shown.contains("Tolerated: ") && shown.contains(" s left, until "), "{shown}");
    let label = browser.value("document.querySelector('.node').getAttribute('aria-label')").await;
    assert!(label.as_str().unwrap().starts_with("Node gpu-1, Ready, sick, repair in "), "{label}");

    stage.tell_repair("gpu-1", "Blocked", "policy gpu: TooManyUnhealthy: 2 of 3 nodes").await;
    browser.until("it is blocked", &note("sick, repair blocked")).await;
    let shown = text_of(&browser, "#repairs .Blocked").await;
    assert!(shown.contains("TooManyUnhealthy") && !shown.contains("Tolerated"), "{shown}");
    stage.tell_repair("gpu-1", "Repairing", "policy gpu: its repair is under way").await;
    browser.until("it is being replaced", &note("being replaced")).await;
    assert_eq!(browser.value("document.querySelector('.node.repairing') !== null").await, true);
    stage.tell_repair("gpu-1", "Repaired", "policy gpu: the node is healthy").await;
    browser.until("it is repaired", "document.querySelector('#repairs .Repaired') !== null").await;
    assert_eq!(browser.value(&note("")).await, true);
    browser.until("the timeline says so", "document.querySelector('#happened .healthy') !== null").await;
    stage.tell_repair("gpu-1", "Recovered", "policy gpu: the node is healthy").await;
    browser.until("nothing is left of it", "document.querySelector('#repairs').hidden").await;
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn the_front_says_what_does_not_come_back_and_what_can_be_done() {
    let stage = Stage::open().await;
    stage.add_node("a-1", "a").await;
    stage.add_suspended_job("train").await;
    let browser = Browser::start().await;
    browser.look(WIDE).await;
    browser.open(&stage.url()).await;
    browser.until("the node is shown", "document.querySelector('.node') !== null").await;
    assert_eq!(browser.value("document.querySelector('#missing').hidden").await, true, "nobody has looked");
    stage.look_for_missing();
    let cause = "document.querySelector('#missing [data-code=\"Suspended\"]') !== null";
    browser.until("the Job is missed", cause).await;
    let shown = text_of(&browser, "#missing").await;
    assert!(shown.contains("Job default/train misses 2 of 2 pods"), "{shown}");
    assert!(shown.contains("To do: "), "{shown}");
    assert!(text_of(&browser, "#missing code").await.contains("kubectl"), "{shown}");
    assert_eq!(browser.value("document.querySelector('#missing .empty').hidden").await, true);

    stage.delete_job("train").await;
    let nothing = "!document.querySelector('#missing .empty').hidden";
    browser.until("nothing is missing", nothing).await;
    assert_eq!(browser.value("document.querySelectorAll('#missing li').length").await, 0);
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn the_policy_is_in_force() {
    let stage = Stage::open().await;
    let browser = Browser::start().await;
    browser.open(&stage.url()).await;
    browser
        .value(
            "(() => { const s = document.createElement('script'); s.textContent = \"document.title = 'owned'\"; \
             document.body.append(s); })()",
        )
        .await;
    assert_eq!(browser.value("document.title").await, "Salvor");
    let refusals = browser.console().await;
    assert!(refusals.iter().any(|line| line.contains("Content Security Policy")), "{refusals:?}");
    browser.close().await;
}

#[tokio::test]
async fn a_thousand_nodes_and_ten_thousand_pods_are_shown_and_keep_changing() {
    let stage = Stage::of(stage::crowd(1_000, 10)).await;
    let browser = Browser::start().await;
    browser.look(WIDE).await;
    browser.open(&stage.url()).await;
    let shown = "document.querySelectorAll('.node').length === 1000 && \
                 document.querySelectorAll('.node .pod.running').length === 10000";
    browser.until("all are shown", shown).await;
    assert_eq!(text_of(&browser, "[data-count='running'] b").await, "10,000");
    // A change reaches the page despite its size.
    stage.page.tell("still here");
    browser.until("a change is shown", "document.querySelector('#happened .told') !== null").await;
    let frame: Value = browser
        .value("new Promise(done => { const t = performance.now(); requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - t))); })")
        .await;
    println!("two frames with 1,000 nodes took {frame} ms");
    assert_eq!(browser.console().await, Vec::<String>::new());
    browser.close().await;
}
