//! `salvor status`: who leads, what waits, and what was done.

use std::time::Duration;

use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::lost::{ELECTION, GATE, SETTINGS, consenting, lost_node};
use crate::stage::{Stage, running};

async fn status(stage: &Stage) -> Value {
    let (code, said) = stage.run(&["status", "-o", "json"]).await;
    assert_eq!(code, 0, "{said}");
    serde_json::from_str(&said).unwrap()
}

async fn until(stage: &Stage, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let found = wait::patience().until(async {
        loop {
            last = status(stage).await;
            if holds(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    assert!(found.await.is_some(), "never {what}: {last:#}");
    last
}

async fn a_status_tells_who_leads_what_waits_and_what_was_done(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
    lost_node(&stage, "lost").await;
    for (name, extra) in [("stuck", json!({})), ("later", consenting("1h")), ("soon", consenting("1s"))] {
        stage.pod(name, "lost", extra, running()).await;
        stage.delete_pod(name).await;
    }

    let alone = status(&stage).await;
    assert_eq!((&alone["leader"], &alone["recoveries"]), (&Value::Null, &Value::Null), "{alone:#}");
    assert_eq!((&alone["blocked"], &alone["waiting"]), (&json!(3), &json!(0)), "{alone:#}");
    assert!(alone["told"].as_str().unwrap().contains("No operator"), "{alone:#}");

    assert_eq!(stage.run_with(&["config", "show"], &stage.kubeconfig()).await.0, 1);

    let settings = format!("{ELECTION}{SETTINGS}");
    let salvor = stage.salvor(&settings, &["--controllers=zombie,eviction", GATE]);
    salvor.says("\"leading\"").await;
    let done = until(&stage, "a recovery", |status| status["recoveredLastHour"]["pods"] == 1).await;
    assert_eq!(done["lastActions"][0]["name"], "soon", "{done:#}");
    assert_eq!(done["lastActions"][0]["recovery"], "zombie", "{done:#}");
    let counted = until(&stage, "one each", |status| status["waiting"] == 1 && status["blocked"] == 1).await;
    assert!(counted["leader"].is_string() && counted["version"].is_string(), "{counted:#}");
    assert_eq!(counted["brake"]["holds"], false, "{counted:#}");
    assert_eq!(counted["paused"], Value::Null, "{counted:#}");
    let on = |name: &str| {
        let recoveries = counted["recoveries"].as_array().unwrap();
        recoveries.iter().find(|recovery| recovery["name"] == name).unwrap()["on"].clone()
    };
    assert_eq!(["zombie", "eviction", "repair"].map(on), [json!(true), json!(true), json!(false)]);
    assert!(counted["provenBy"][0].as_str().unwrap().contains("salvor evict"), "{counted:#}");

    let (code, file) = stage.run(&["config", "show"]).await;
    assert!(code == 0 && file.contains("forcefulTerminationGracePeriod: 2s"), "{file}");
    let kept = stage.write("shown.yaml", &file);
    assert_eq!(stage.run(&["config", "check", kept.to_str().unwrap()]).await.0, 0, "{file}");

    let (code, said) = stage.run(&["pause", "--reason", "a test"]).await;
    assert_eq!(code, 0, "{said}");
    let paused = status(&stage).await;
    assert_eq!(paused["paused"]["reason"], "a test", "{paused:#}");
    assert_eq!(paused["paused"]["confirmedBy"], counted["leader"], "{paused:#}");
    let (code, said) = stage.run(&["doctor"]).await;
    assert!(code == 1 && said.contains("ERROR: Salvor is paused by "), "{code}: {said}");
    let mut view = stage.view(&["status", "--watch"]);
    view.until("Paused: paused by ").await;
    assert_eq!(stage.run(&["resume"]).await.0, 0);
    view.until("Paused: no").await;
}

salvor_testkit::on_both!(a_status_tells_who_leads_what_waits_and_what_was_done);
