//! Probes and the Lease, while clients are slow and the recoveries are stuck.

use std::time::Duration;

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::Api;
use salvor_testkit::{Hold, Site, on_both, wait};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::stage::{AT_ONCE, Stage};

/// The working thread is stuck, as in a long computation. Probes are answered, and the Lease is renewed.
async fn work_that_stands_still_costs_neither_a_probe_nor_the_lease(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let hold = Hold::before_write(1);
    let config =
        format!("leaderElection: {{leaseDuration: 4s, renewDeadline: 3s, retryPeriod: 500ms}}\n{AT_ONCE}");
    let admin = stage.plane.admin();
    let salvor = stage.salvor_as(&admin, &config, &[], &[hold.variable()]).await;
    salvor.says("\"leading\"").await;
    let labelled = json!({"metadata": {"labels": {"salvor": "delete"}}});
    stage.terminating("late", "node", labelled).await;
    let reached = wait::patience().until(hold.reached()).await;
    assert!(reached.is_some(), "the write never came: {}", salvor.program.output());

    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "salvor-system");
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|s| s.renew_time.as_ref()).map(|time| time.0);
    let holder = |lease: &Lease| lease.spec.as_ref().and_then(|s| s.holder_identity.clone());
    let before = leases.get("salvor").await.unwrap();
    let other = stage.salvor_as(&admin, &config, &[], &[]).await;
    other.says("holds it").await;
    // Three times the Lease duration later.
    let much_later: Option<Timestamp> = renewed(&before).map(|time| time + Duration::from_secs(12));
    let after =
        wait::for_object(&leases, "salvor", "it is renewed", |lease| renewed(lease) > much_later).await;
    assert_eq!(holder(&after), holder(&before));
    assert_eq!(other.count(&["\"leading\""]), 0, "{}", other.program.output());
    assert!(salvor.get("/healthz").await.contains("200 OK"));
    assert!(salvor.get("/metrics").await.contains("\nsalvor_leader 1\n"));
    hold.let_go();
    wait::for_absence(&stage.pods(), "late").await;
}

/// An incomplete request occupies a connection, and their number is limited: the oldest one is closed, and a probe is
/// answered.
async fn a_probe_is_answered_while_hundreds_send_half_a_request(site: Site) {
    let stage = Stage::new(site).await;
    let salvor = stage.salvor(&format!("page: {{enabled: true, bind: '127.0.0.1:0'}}\n{AT_ONCE}")).await;
    let page = salvor.field("page").await;
    let page = page.trim_start_matches("http://").trim_end_matches('/').to_owned();
    for (address, path) in [(salvor.field("address").await, "/healthz"), (page, "/page.js")] {
        let mut slow = Vec::new();
        for _ in 0..300 {
            let mut stream = TcpStream::connect(&address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").await.unwrap();
            slow.push(stream);
        }
        let mut probe = TcpStream::connect(&address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        probe.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        probe.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));
        for mut stream in slow.drain(..200) {
            let mut rest = Vec::new();
            // An end or an error, but not nothing.
            let ended = wait::patience().until(stream.read_to_end(&mut rest)).await;
            assert!(ended.is_some(), "{address} keeps the connection");
        }
    }
}

on_both!(
    work_that_stands_still_costs_neither_a_probe_nor_the_lease,
    a_probe_is_answered_while_hundreds_send_half_a_request,
);
