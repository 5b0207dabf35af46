//! Real sockets on loopback.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use super::*;
use crate::webhooks::{authority::Authorities, endpoint::LARGEST_BODY};

const NAME: &str = "salvor-webhooks.salvor-system.svc";

struct Served {
    address: SocketAddr,
    trust: Arc<ClientConfig>,
    metrics: Metrics,
    token: String,
    serving: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Served {
    async fn start(limits: Limits) -> Self {
        let time = Time::system();
        let metrics = Metrics::new(&time);
        let authorities = Authorities::first(time.local()).unwrap();
        let shown = Shown::default();
        shown.show(authorities.current.issue(&[NAME.to_owned()], time.local()).unwrap());
        let quick =
            Webhook { timeout_seconds: 1, ..webhook(WebhookKind::Mutating, "slow.salvor.dev", "/slow") };
        let patching = webhook(WebhookKind::Validating, "defect.salvor.dev", "/defect");
        let registrations = vec![
            Registration::new(webhook(WebhookKind::Mutating, "label.salvor.dev", "/label"), label),
            Registration::new(quick, async |_| std::future::pending().await),
            Registration::new(patching, label),
        ];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(shown.tls().unwrap()));
        let keyring = Keyring::random();
        let token = keyring.token();
        let router = router(registrations, keyring, metrics.clone());
        let serving = tokio::spawn(serve_tls(acceptor, listener, router, limits, std::future::pending()));
        Self { address, trust: trust(&authorities.bundle()), metrics, token, serving }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(self.trust.clone()).connect(name, stream).await.unwrap()
    }

    /// Sends a text, and reads until the server closes the connection.
    async fn exchange(&self, text: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The server need not read all of it.
        let _ = stream.write_all(text).await;
        read(&mut stream).await
    }

    /// The path with the token, as the API server knows it.
    fn path(&self, path: &str) -> String {
        let (path, query) =
            path.split_once('?').map_or((path, String::new()), |(path, rest)| (path, format!("?{rest}")));
        format!("{path}/{}{query}", self.token)
    }

    async fn post(&self, path: &str, body: &str) -> String {
        self.exchange(request(&self.path(path), "application/json", body.len(), body).as_bytes()).await
    }

    async fn label(&self) -> String {
        self.post("/label", &super::review("good").to_string()).await
    }

    fn counted(&self, line: &str) -> bool {
        self.metrics.render().lines().any(|found| found == line)
    }
}

fn request(path: &str, form: &str, length: usize, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {form}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

async fn read(stream: &mut TlsStream<TcpStream>) -> String {
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer));
    // An error is an end, too: something was left unread.
    let _ = reading.await.expect("the connection is still open");
    String::from_utf8_lossy(&answer).into_owned()
}

fn trust(bundle: &str) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

#[tokio::test]
async fn a_handler_is_asked_and_counted() {
    let served = Served::start(LIMITS).await;
    let answer = served.label().await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("\"warnings\":[\"it was labelled\"]") && answer.contains("\"uid\":\"u1\""),
        "{answer}"
    );
    let answer = served.post("/label?timeout=10s", &super::review("bad").to_string()).await;
    assert!(
        answer.contains("the name is bad: use another one") && answer.contains("\"code\":403"),
        "{answer}"
    );
    for outcome in ["patched", "denied"] {
        let line = format!(
            "salvor_admission_requests_total{{webhook=\"label.salvor.dev\",outcome=\"{outcome}\"}} 1"
        );
        assert!(served.counted(&line), "{line}");
    }
}

#[tokio::test]
async fn what_is_no_review_gets_an_answer_that_says_so() {
    let served = Served::start(LIMITS).await;
    let body = super::review("good").to_string();
    let json = "application/json";
    let request = |path: &str, form: &str, length: usize, body: &str| {
        self::request(&served.path(path), form, length, body)
    };
    let cases: Vec<(String, &str, &str)> = vec![
        (request("/label", json, 0, ""), "400", "the body is not an AdmissionReview: EOF"),
        (request("/label", json, 3, "{]}"), "400", "the body is not an AdmissionReview"),
        (request("/label", json, 2, "{}"), "400", "missing field `apiVersion`"),
        (
            request("/label", "text/plain", body.len(), &body),
            "415",
            "the content type is \"text/plain\": send application/json",
        ),
        (request("/elsewhere", json, body.len(), &body), "404", "there is no webhook at this path"),
        (request("//label", json, body.len(), &body), "404", "there is no webhook at this path"),
        (
            format!("GET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", served.path("/label")),
            "405",
            "GET is not allowed: send an AdmissionReview with POST",
        ),
        (
            request("/label", json, LARGEST_BODY + 1, &"x".repeat(LARGEST_BODY + 1)),
            "413",
            "the body has more than",
        ),
        (request("/defect", json, body.len(), &body), "500", "a validating webhook cannot change an object"),
        (request("/slow", json, body.len(), &body), "504", "no answer was found within 1 s"),
    ];
    for (text, status, says) in cases {
        let answer = served.exchange(text.as_bytes()).await;
        let head = &text[..text.len().min(60)];
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
        assert!(answer.contains(says), "{head}: {answer}");
    }
    assert!(
        served
            .counted("salvor_admission_requests_total{webhook=\"slow.salvor.dev\",outcome=\"timed_out\"} 1")
    );
    assert!(served.label().await.contains("200 OK"));
}

/// A client that is not the API server finds out nothing: no handler is called, and all paths look alike.
#[tokio::test]
async fn who_does_not_know_the_token_gets_no_answer() {
    let served = Served::start(LIMITS).await;
    let body = super::review("good").to_string();
    let answer = async |path: &str| {
        let answer = served.exchange(request(path, "application/json", body.len(), &body).as_bytes()).await;
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), text.to_owned())
    };
    let nowhere = answer("/nowhere").await;
    assert_eq!(nowhere.0, "HTTP/1.1 404 Not Found");
    let token = &served.token;
    for path in [
        "/label".to_owned(),
        "/label/".to_owned(),
        format!("/label/{}", "0".repeat(token.len())),
        format!("/label/{}", &token[1..]),
        format!("/label/{token}/"),
        format!("/label/{token}0"),
        format!("/label?token={token}"),
        format!("/{token}"),
        format!("/{token}/label"),
    ] {
        assert_eq!(answer(&path).await, nowhere, "{path}");
    }
    let get = "GET /label HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert!(served.exchange(get.as_bytes()).await.starts_with("HTTP/1.1 404 "));
    assert!(!served.metrics.render().contains("webhook=\"label.salvor.dev\""), "nothing is counted");
    assert!(served.label().await.contains("200 OK"));
}

#[tokio::test]
async fn garbage_of_every_kind_harms_nobody() {
    let served = Served::start(LIMITS).await;
    for garbage in
        [&b"\x00\xff\x00\xff\r\n\r\n"[..], b"POST", b"\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let mut stream = served.connect().await;
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = read(&mut stream).await;
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    // No TLS at all.
    let mut plain = TcpStream::connect(served.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let _ = plain.read_to_end(&mut Vec::new()).await;
    // Cut off in the middle of the body.
    let mut stream = served.connect().await;
    stream
        .write_all(request(&served.path("/label"), "application/json", 1000, "{\"api").as_bytes())
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    assert!(!read(&mut stream).await.contains("200 OK"));
    // Invalid numbers, depths and names.
    for body in ["1e999999", "\"\\ud800\"", "[[[[", "{\"request\":{\"uid\":null}}", "\u{0}"] {
        assert!(served.post("/label", body).await.starts_with("HTTP/1.1 400 "), "{body}");
    }
    assert!(served.label().await.contains("200 OK"));
}

#[tokio::test]
async fn a_review_is_answered_however_many_hold_connections_open() {
    let served = Served::start(Limits { connections: 8, ..LIMITS }).await;
    let (mut silent, mut half) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        // One that does not even begin the handshake, and one that sends half a head.
        silent.push(TcpStream::connect(served.address).await.unwrap());
        let mut stream = served.connect().await;
        stream.write_all(b"POST /label HTTP/1.1\r\nHost: ").await.unwrap();
        half.push(stream);
        assert!(served.label().await.contains("200 OK"));
    }
    for mut stream in silent.drain(..30) {
        // The server closed it.
        let _ =
            tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut Vec::new())).await.unwrap();
    }
}

#[tokio::test]
async fn bodies_that_are_sent_at_once_are_bounded_together() {
    let served = Served::start(LIMITS).await;
    // All but the last byte of bodies of the largest size: two of them fit, a third does not.
    let body = "x".repeat(LARGEST_BODY - 1);
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = served.connect().await;
        stream
            .write_all(request(&served.path("/label"), "application/json", LARGEST_BODY, &body).as_bytes())
            .await
            .unwrap();
        held.push(stream);
    }
    let refused = served.post("/label", &"x".repeat(LARGEST_BODY)).await;
    // If the first two have not been read completely by now, the third fits, and is rejected as no review.
    assert!(refused.contains(" 503 ") || refused.contains(" 400 "), "{refused}");
    // Ordinary requests always get through, and the budget comes back.
    assert!(served.label().await.contains("200 OK"));
    for mut stream in held {
        assert!(read(&mut stream).await.starts_with("HTTP/1.1 408 "), "given up in time");
    }
    assert!(served.post("/label", &"x".repeat(LARGEST_BODY)).await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn who_trusts_another_authority_does_not_connect_and_a_new_certificate_is_shown_to_the_next() {
    let time = Time::system();
    let (old, new) = (Authorities::first(time.local()).unwrap(), Authorities::first(time.local()).unwrap());
    let shown = Shown::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(shown.tls().unwrap()));
    let router = router(Vec::new(), Keyring::default(), Metrics::new(&time));
    let serving = tokio::spawn(serve_tls(acceptor, listener, router, LIMITS, std::future::pending()));
    let connects = async |bundle: &str, name: &'static str| {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(name).unwrap();
        TlsConnector::from(trust(bundle)).connect(name, stream).await.is_ok()
    };
    let both = format!("{}{}", old.bundle(), new.bundle());
    assert!(!connects(&both, NAME).await, "there is none yet");
    let names = [NAME.to_owned(), "127.0.0.1".to_owned()];
    shown.show(old.current.issue(&names, time.local()).unwrap());
    assert!(connects(&old.bundle(), NAME).await);
    assert!(connects(&old.bundle(), "127.0.0.1").await);
    assert!(!connects(&old.bundle(), "elsewhere.svc").await);
    assert!(!connects(&new.bundle(), NAME).await);
    shown.show(new.current.issue(&names, time.local()).unwrap());
    assert!(!connects(&old.bundle(), NAME).await);
    // Both authorities have the same name, and the right one is found.
    assert!(connects(&new.bundle(), NAME).await && connects(&both, NAME).await);
    serving.abort();
}
