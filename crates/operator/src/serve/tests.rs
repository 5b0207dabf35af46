//! Real sockets on loopback, and hostile clients.

use std::net::SocketAddr;

use axum::routing::get;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
};

use super::*;

/// Longer than any test takes: a connection that ends earlier was ended for another reason.
const NEVER: Duration = Duration::from_secs(3600);

struct Served {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Served {
    async fn start(limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let endless = || {
            let parts = futures::stream::repeat_with(|| Ok::<_, io::Error>("x".repeat(64 * 1024)));
            Body::from_stream(parts)
        };
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/endless", get(async move || Response::new(endless())));
        let serving = tokio::spawn(serve(listener, router, limits, async move {
            let _ = stopped.await;
        }));
        Self { address, stop: Some(stop), serving }
    }

    async fn connect(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn probe(&self) -> String {
        let mut stream = self.connect("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

fn limits(connections: usize) -> Limits {
    Limits { connections, request_within: NEVER, still_for: NEVER }
}

/// Waits until the server has closed a connection, whatever it sends before.
async fn ended(mut stream: TcpStream) {
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer));
    // An error is an end, too: half a request was left unread.
    let _ = reading.await.expect("the connection is still open");
}

const HALF: &str = "GET /healthz HTTP/1.1\r\nHost: ";

#[tokio::test]
async fn a_probe_is_answered_however_many_send_half_a_request() {
    let served = Served::start(limits(8)).await;
    let mut slow = Vec::new();
    for _ in 0..100 {
        slow.push(served.connect(HALF).await);
        if slow.len() % 10 == 0 {
            assert!(served.probe().await.ends_with("\r\n\r\nok\n"));
        }
    }
    // All but the last few were closed, the oldest first.
    for stream in slow.drain(..92) {
        ended(stream).await;
    }
    assert!(served.probe().await.ends_with("ok\n"));
}

#[tokio::test]
async fn a_probe_is_answered_however_many_do_not_read_their_answer() {
    let served = Served::start(limits(4)).await;
    let mut greedy = Vec::new();
    for _ in 0..20 {
        let mut stream = served.connect("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await;
        // Make sure that it is being answered.
        stream.read_u8().await.unwrap();
        greedy.push(stream);
    }
    assert!(served.probe().await.ends_with("ok\n"));
}

#[tokio::test]
async fn half_a_request_and_an_answer_that_nobody_reads_are_given_up_in_time() {
    let quick = Duration::from_millis(50);
    let served = Served::start(Limits { request_within: quick, ..limits(8) }).await;
    ended(served.connect(HALF).await).await;
    ended(served.connect("").await).await;
    // One that was answered, and sends no further request.
    ended(served.connect("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await).await;
    let served = Served::start(Limits { still_for: quick, ..limits(8) }).await;
    ended(served.connect(HALF).await).await;
    let mut greedy = served.connect("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await;
    greedy.read_u8().await.unwrap();
    // It is not read until the server has given it up: then no client is connected any more.
    for _ in 0..3 {
        ended(served.connect("").await).await;
    }
    let mut rest = vec![0; 1024 * 1024];
    while matches!(greedy.read(&mut rest).await, Ok(1..)) {}
}

#[tokio::test]
async fn a_long_head_is_refused() {
    let served = Served::start(limits(8)).await;
    let long = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nLong: {}\r\n\r\n", "x".repeat(2 * LONGEST_HEAD));
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    // The server need not read all of it.
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    assert!(served.probe().await.ends_with("ok\n"));
}

#[tokio::test]
async fn told_to_stop_it_answers_nobody_new_and_lets_go_of_who_asks_nothing() {
    let mut served = Served::start(limits(8)).await;
    let idle = served.connect("").await;
    assert!(served.probe().await.ends_with("ok\n"));
    served.stop.take().unwrap().send(()).unwrap();
    served.serving.await.unwrap();
    ended(idle).await;
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[test]
fn who_opens_many_loses_its_own_first_and_who_is_being_answered_last() {
    let address = |last: u8| IpAddr::from([10, 0, 0, last]);
    let open_connections = OpenConnections::default();
    let kubelet = open_connections.admit(address(1), 4);
    let many: Vec<OpenConnection> = (0..3).map(|_| open_connections.admit(address(2), 4)).collect();
    let busy = Busy::begin(&many[0].answering);
    let gone = || -> Vec<bool> {
        many.iter().map(|open_connection| open_connection.must_go.is_cancelled()).collect()
    };
    let next = open_connections.admit(address(3), 4);
    assert_eq!(gone(), [false, true, false], "the first of those that are not being answered");
    let another = open_connections.admit(address(3), 4);
    assert_eq!(gone(), [false, true, true]);
    assert!(!kubelet.must_go.is_cancelled() && !next.must_go.is_cancelled());
    drop((busy, another));
    // All have one connection: the oldest goes.
    let _fourth = open_connections.admit(address(4), 3);
    assert!(kubelet.must_go.is_cancelled());
    assert_eq!(open_connections.here().all.len(), 3);
    drop((next, many));
    assert_eq!(open_connections.here().all.len(), 1);
}
