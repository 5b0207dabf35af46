//! A proxy that disturbs the network, without effect on other clients of the control plane.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use salvor_testkit::proxy::Mode;
use salvor_testkit::{Arena, arena};

use crate::support::config_map;

fn config_maps(arena: &Arena<'_>, client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, arena.namespace())
}

/// Some direct requests to the API server: a clock that does not run faster than the server on a slow machine.
async fn meanwhile(direct: &Api<ConfigMap>) {
    for _ in 0..20 {
        direct.list(&ListParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_proxy_can_be_slow() {
    let arena = arena("proxy").await;
    let proxy = arena.plane().proxy().await.unwrap();
    let slow = config_maps(&arena, proxy.client("slow"));
    let direct = config_maps(&arena, arena.client());
    slow.list(&ListParams::default()).await.unwrap();

    // Latency as a lower bound: a request and its answer take at least twice as long.
    let latency = Duration::from_millis(300);
    proxy.set(Mode::Latency(latency)).await;
    let begin = tokio::time::Instant::now();
    slow.list(&ListParams::default()).await.unwrap();
    assert!(begin.elapsed() >= 2 * latency, "{:?}", begin.elapsed());

    // The latency ends at once when the network is good again, however long it was set to.
    proxy.set(Mode::Latency(Duration::from_secs(3600))).await;
    let all = ListParams::default();
    let mut stuck = std::pin::pin!(slow.list(&all));
    tokio::select! {
        _ = &mut stuck => panic!("a request was answered an hour too soon"),
        () = meanwhile(&direct) => {}
    }
    proxy.set(Mode::Pass).await;
    stuck.await.unwrap();
}

#[tokio::test]
async fn a_proxy_can_cut_connections() {
    let arena = arena("proxy").await;
    let proxy = arena.plane().proxy().await.unwrap();
    let through = config_maps(&arena, proxy.client("through"));
    let direct = config_maps(&arena, arena.client());
    through.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();

    // A request in flight ends with an error, and so does every new one.
    proxy.set(Mode::Latency(Duration::from_secs(3600))).await;
    let all = ListParams::default();
    let mut under_way = std::pin::pin!(through.list(&all));
    tokio::select! {
        _ = &mut under_way => panic!("a request was answered an hour too soon"),
        () = meanwhile(&direct) => {}
    }
    proxy.set(Mode::Cut).await;
    under_way.await.expect_err("a connection that was cut has brought an answer");
    through.get("a").await.expect_err("a connection was made that should have been refused");
    direct.get("a").await.unwrap();

    proxy.set(Mode::Pass).await;
    through.delete("a", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_proxy_can_swallow_everything_and_keep_connections_open() {
    let arena = arena("proxy").await;
    let proxy = arena.plane().proxy().await.unwrap();
    let through = config_maps(&arena, proxy.client("through"));
    let direct = config_maps(&arena, arena.client());
    through.list(&ListParams::default()).await.unwrap();

    proxy.set(Mode::Blackhole).await;
    let (parameters, map) = (PostParams::default(), config_map("a", "1"));
    let mut lost = std::pin::pin!(through.create(&parameters, &map));
    let newcomer = config_maps(&arena, proxy.client("newcomer"));
    let all = ListParams::default();
    let mut newcomer = std::pin::pin!(newcomer.list(&all));
    tokio::select! {
        _ = &mut lost => panic!("something came through a black hole"),
        _ = &mut newcomer => panic!("something came through a black hole"),
        () = meanwhile(&direct) => {}
    }
    assert!(direct.get_opt("a").await.unwrap().is_none());

    proxy.set(Mode::Pass).await;
    lost.await.unwrap();
    newcomer.await.unwrap();
    assert!(direct.get_opt("a").await.unwrap().is_some());
}
