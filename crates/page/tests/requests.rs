//! Which requests the page accepts, and from which origins.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::{Ipv4Addr, SocketAddr};

use jiff::Timestamp;
use salvor_page::{Fault, Page, ServeOptions, Wish};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

struct Served {
    port: u16,
    wishes: mpsc::Receiver<Wish>,
}

async fn served(options: impl FnOnce(mpsc::Sender<Wish>) -> ServeOptions) -> Served {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, wishes) = mpsc::channel(1);
    tokio::spawn(Page::new(Timestamp::now).serve(listener, options(sender), std::future::pending()));
    Served { port, wishes }
}

async fn with_wishes() -> Served {
    served(|wishes| ServeOptions { wishes: Some(wishes), ..ServeOptions::default() }).await
}

/// Returns the head of the answer.
async fn ask(port: u16, line: &str, headers: &[&str]) -> String {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\n{}\r\nContent-Length: 0\r\n\r\n", headers.join("\r\n"));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

fn code(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

#[tokio::test]
async fn every_answer_carries_the_policy() {
    let served = with_wishes().await;
    let host = format!("Host: 127.0.0.1:{}", served.port);
    for path in [
        "/",
        "/page.js",
        "/page.css",
        "/map.js",
        "/panels.js",
        "/missing.js",
        "/repairs.js",
        "/replay.js",
        "/wrappers.js",
        "/world.js",
        "/icon.svg",
        "/nothing",
        "/changes",
    ] {
        let head = ask(served.port, &format!("GET {path}"), &[&host]).await;
        assert_eq!(code(&head), if path == "/nothing" { "404" } else { "200" }, "{path}: {head}");
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{head}");
        assert!(!head.contains("unsafe"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
    }
}

#[tokio::test]
async fn on_loopback_only_this_machine_is_answered() {
    let served = with_wishes().await;
    for host in ["127.0.0.1:1", "localhost:1", "LOCALHOST", "[::1]:1"] {
        let head = ask(served.port, "GET /", &[&format!("Host: {host}")]).await;
        assert_eq!(code(&head), "200", "{host}");
    }
    for host in ["rebound.example.com", "10.0.0.1", "localhost.example.com", "127.0.0.1.example.com"] {
        let head = ask(served.port, "GET /changes", &[&format!("Host: {host}")]).await;
        assert_eq!(code(&head), "421", "{host}");
    }
}

#[tokio::test]
async fn only_the_page_itself_may_wish() {
    let mut served = with_wishes().await;
    let host = format!("Host: 127.0.0.1:{}", served.port);
    let own = format!("Origin: http://127.0.0.1:{}", served.port);
    let refused: [&[&str]; 3] =
        [&[&host], &[&host, &own], &[&host, "Origin: https://evil.example.com", "X-Salvor-Page: 1"]];
    for headers in refused {
        let head = ask(served.port, "POST /nodes/a/crash", headers).await;
        assert_eq!(code(&head), "403", "{headers:?}");
    }
    let head = ask(served.port, "GET /nodes/a/crash", &[&host, "X-Salvor-Page: 1"]).await;
    assert_eq!(code(&head), "405");
    let head = ask(served.port, "POST /nodes/a/explode", &[&host, "X-Salvor-Page: 1"]).await;
    assert_eq!(code(&head), "404");
    assert!(served.wishes.try_recv().is_err(), "nothing was passed on");

    let port = served.port;
    let asked = tokio::spawn(async move {
        ask(port, "POST /nodes/a%3Cb/partition", &[&host, &own, "X-Salvor-Page: 1"]).await
    });
    let wish = served.wishes.recv().await.unwrap();
    assert_eq!((wish.node.as_str(), wish.fault), ("a<b", Fault::Partition));
    wish.done.send(Err("no such node".into())).unwrap();
    assert_eq!(code(&asked.await.unwrap()), "409");
}

#[tokio::test]
async fn a_page_that_only_shows_cannot_be_asked_to_do_anything() {
    let served = served(|_| ServeOptions::default()).await;
    let host = format!("Host: 127.0.0.1:{}", served.port);
    let head = ask(served.port, "POST /nodes/a/crash", &[&host, "X-Salvor-Page: 1"]).await;
    assert_eq!(code(&head), "404");
}
