//! What holds everything back, seen from outside: the brake and its memory, the clock, and the pause switch.

use salvor_testkit::{Site, wait};
use serde_json::json;

use crate::stage::{AT_ONCE, Stage, phase};

fn labelled(value: &str) -> serde_json::Value {
    json!({"metadata": {"labels": {"salvor": value}}})
}

/// A partition that heals: with the first node back, fewer than too many are lost, and the others follow one by one.
async fn while_nodes_come_back_none_of_their_pods_is_declared_dead(site: Site) {
    let stage = Stage::new(site).await;
    for number in 0..4 {
        stage.lost_node(&format!("lost-{number}")).await;
    }
    stage.node("fine-0").await;
    stage.node("fine-1").await;
    let salvor = stage.salvor(&format!("{AT_ONCE}\nbrake: {{settlePeriod: 20s}}\n")).await;
    for number in 0..4 {
        stage.terminating(&format!("zombie-{number}"), &format!("lost-{number}"), labelled("delete")).await;
    }
    salvor.shows("salvor_held_total{recovery=\"zombie\",by=\"MaxUnreachablePercent\"} 4").await;
    for number in 0..4 {
        stage.set_taints(&format!("lost-{number}"), json!([])).await;
        if number == 0 {
            salvor.shows("salvor_held_total{recovery=\"zombie\",by=\"Settling\"} 3").await;
        }
    }
    // Whatever is still due is done by then.
    salvor.until_answer("/metrics", "salvor_brake_engaged 0").await;
    stage.lost_node("lost-later").await;
    stage.until_all_is_judged("lost-later").await;
    for number in 0..4 {
        let pod = stage.pods().get(&format!("zombie-{number}")).await.unwrap();
        assert_eq!(phase(&pod), "Running", "zombie-{number}");
    }
}

salvor_testkit::on_both!(while_nodes_come_back_none_of_their_pods_is_declared_dead,);
