//! The page of `salvor run`: served only if requested, only to this machine, and read-only.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, TcpListener};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use salvor_testkit::{Plane, Salvor, Site, wait};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

const SETTINGS: &str = "controllers: [eviction]\n";

fn salvor(plane: &Plane, arguments: &[&str]) -> Salvor {
    let arguments = [&["--leader-elect=false"], arguments].concat();
    Salvor::start(env!("CARGO_BIN_EXE_salvor"), &plane.admin(), SETTINGS, &arguments, &[])
}

async fn node(nodes: &Api<Node>, name: &str) {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(ready)).await.unwrap();
}

/// The status code of the response.
async fn code(address: SocketAddr, line: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

/// The messages that a browser gets.
struct Changes(BufReader<TcpStream>);

impl Changes {
    async fn of(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /changes HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        Self(BufReader::new(stream))
    }

    async fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).await.unwrap(), 0, "the stream ended");
            if let Some(data) = line.strip_prefix("data:") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }

    /// Waits until a node is shown in this state.
    async fn shows(&mut self, name: &str, state: &str) {
        let told = wait::patience().until(async {
            loop {
                let message = self.next().await;
                let nodes = message["nodes"].as_array().cloned().unwrap_or_default();
                if nodes.iter().any(|node| node["name"] == name && node["state"] == state) {
                    return;
                }
            }
        });
        assert!(told.await.is_some(), "the page never showed {name} as {state}");
    }
}

async fn the_page_shows_nodes_live_and_can_be_asked_for_nothing(site: Site) {
    let plane = site.api_server().await;
    let nodes: Api<Node> = Api::all(plane.admin().client("page-test"));
    node(&nodes, "first").await;
    let salvor = salvor(&plane, &["--page=127.0.0.1:0"]);
    let url = salvor.field("page").await;
    let address: SocketAddr = url.strip_prefix("http://").unwrap().trim_end_matches('/').parse().unwrap();
    assert!(address.ip().is_loopback());

    let local = format!("Host: {address}\r\n");
    assert_eq!(code(address, "GET /", &local).await, "200");
    assert_eq!(
        code(address, "GET /", "Host: salvor.example.com\r\n").await,
        "421",
        "no other name leads here"
    );

    let mut changes = Changes::of(address).await;
    assert_eq!(changes.next().await["canWish"], false, "it offers no faults");
    changes.shows("first", "ready").await;
    node(&nodes, "second").await;
    changes.shows("second", "ready").await;
    let lost = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    let lost = Patch::Merge(json!({"spec": {"taints": lost}}));
    let before = nodes.patch("first", &PatchParams::default(), &lost).await.unwrap();
    changes.shows("first", "unreachable").await;

    // As the page of the demo would, from its own origin.
    let own = format!("{local}Origin: http://{address}\r\nX-Salvor-Page: 1\r\n");
    for fault in ["crash", "partition", "heal"] {
        let answer = code(address, &format!("POST /nodes/second/{fault}"), &own).await;
        assert_eq!(answer, "404", "{fault}");
    }
    for path in ["/", "/changes"] {
        assert_eq!(code(address, &format!("POST {path}"), &own).await, "405", "{path}");
    }
    assert_eq!(nodes.get("first").await.unwrap().metadata.resource_version, before.metadata.resource_version);
}

salvor_testkit::on_both!(the_page_shows_nodes_live_and_can_be_asked_for_nothing);

#[tokio::test]
async fn there_is_no_page_unless_it_is_asked_for() {
    let plane = Site::Embedded.api_server().await;
    let salvor = salvor(&plane, &[]);
    salvor.until_answer("/readyz", " 200 OK").await;
    for path in ["/", "/changes", "/page.js"] {
        assert!(salvor.get(path).await.contains(" 404 Not Found"), "{path}");
    }
    assert_eq!(salvor.count(&["page served"]), 0);
}

#[tokio::test]
async fn a_page_that_cannot_be_shown_is_an_error() {
    let plane = Site::Embedded.api_server().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let salvor = salvor(&plane, &[&format!("--page={address}")]);
    assert_eq!(salvor.program.exit_code().await, Some(1), "{}", salvor.program.output());
    assert_eq!(salvor.count(&[&format!("cannot show the page on {address}")]), 1);
}
