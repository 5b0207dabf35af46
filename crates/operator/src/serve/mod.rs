//! Serves HTTP to untrusted clients. A client that sends half a request, or does not read its answer, is disconnected:
//! a kubelet's probe must be answered however many of those there are.

pub(crate) mod endpoints;

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent connections. A kubelet and a Prometheus need one each, a browser a few; each takes some tens of
    /// kilobytes.
    pub connections: usize,
    /// Time for the head of the next request, from the opening of the connection or its last answer.
    pub request_within: Duration,
    /// A connection without traffic for this long is closed. Streams of the web page send something more often.
    pub still_for: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 64, request_within: Duration::from_secs(10), still_for: Duration::from_secs(30) }
    }
}

/// Limit on the head of a request, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;
/// Delay after the system failed to accept a connection, as when it is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Timeout of a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone)]
enum Transport {
    Plain,
    Tls(TlsAcceptor),
}

/// Serves until `stop` completes, then finishes the answers in progress. Dropping the future ends everything at once.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: impl Future<Output = ()>) {
    serve_in(Transport::Plain, listener, router, limits, stop).await;
}

pub(crate) async fn serve_tls(
    acceptor: TlsAcceptor,
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    serve_in(Transport::Tls(acceptor), listener, router, limits, stop).await;
}

async fn serve_in(
    transport: Transport,
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let open_connections = OpenConnections::default();
    let stopping = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let open_connection = open_connections.admit(peer.ip(), limits.connections);
                let router = router.clone();
                let transport = transport.clone();
                connections.spawn(handle_stream(
                    transport,
                    stream,
                    open_connection,
                    router,
                    limits,
                    stopping.clone(),
                ));
            }
            // The client is already gone.
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "connection accept failed");
                sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    stopping.cancel();
    while connections.join_next().await.is_some() {}
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers the requests of one connection until it ends or is evicted.
async fn handle_stream(
    transport: Transport,
    stream: TcpStream,
    open_connection: OpenConnection,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let moved = Moved::now();
    // Otherwise the end of a handshake may wait for an acknowledgement. A failure to set it only costs speed.
    let _ = stream.set_nodelay(true);
    let stream = Watched { stream, moved: moved.clone() };
    match transport {
        Transport::Plain => serve_stream(stream, &moved, open_connection, router, limits, stop).await,
        Transport::Tls(acceptor) => {
            let handshake = timeout(limits.request_within.min(HANDSHAKE_WITHIN), acceptor.accept(stream));
            let shaken = tokio::select! {
                biased;
                () = open_connection.must_go.cancelled() => return,
                () = stop.cancelled() => return,
                shaken = handshake => shaken,
            };
            // Too slow, no TLS, or a client that does not trust us.
            let Ok(Ok(stream)) = shaken else { return };
            serve_stream(stream, &moved, open_connection, router, limits, stop).await;
        }
    }
}

async fn serve_stream<S>(
    stream: S,
    moved: &Moved,
    open_connection: OpenConnection,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answering = open_connection.answering.clone();
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
        let (router, busy) = (router.clone(), Busy::begin(&answering));
        async move { Ok::<_, std::convert::Infallible>(answer(router, request, busy).await) }
    });
    let service = TowerToHyperService::new(service);
    let stream = TokioIo::new(stream);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.request_within).max_buf_size(LONGEST_HEAD);
    let mut connection = std::pin::pin!(http.serve_connection(stream, service));
    let mut is_stopping = false;
    loop {
        tokio::select! {
            biased;
            () = open_connection.must_go.cancelled() => return,
            // An error means that the client went away or was too slow.
            _ = connection.as_mut() => return,
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = sleep_until(moved.last() + limits.still_for) => {
                if moved.last().elapsed() >= limits.still_for {
                    return;
                }
            }
        }
    }
}

async fn answer(router: Router, request: Request<hyper::body::Incoming>, busy: Busy) -> Response {
    let answer = router.oneshot(request.map(Body::new)).await;
    let answer = answer.unwrap_or_else(|never| match never {});
    // The connection is busy as long as there is something left to send.
    answer.map(|body| Body::new(Accompanied { body, _busy: busy }))
}

// ---- connections ---------------------------------------------------------------------------------------------

/// All open connections. Clones share it.
#[derive(Clone, Debug, Default)]
struct OpenConnections(Arc<Mutex<Here>>);

#[derive(Debug, Default)]
struct Here {
    /// In the order of their arrival.
    all: BTreeMap<u64, Connection>,
    came: u64,
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    answering: Arc<AtomicBool>,
    must_go: CancellationToken,
}

/// One open connection; removed on drop.
#[derive(Debug)]
struct OpenConnection {
    number: u64,
    answering: Arc<AtomicBool>,
    must_go: CancellationToken,
    open_connections: OpenConnections,
}

impl OpenConnections {
    /// Admits a connection. At the limit, another one is closed for it.
    fn admit(&self, address: IpAddr, most: usize) -> OpenConnection {
        let (answering, must_go) = (Arc::<AtomicBool>::default(), CancellationToken::new());
        let mut here = self.here();
        while here.all.len() >= most.max(1) {
            let Some(goes) = here.connection_to_close().and_then(|number| here.all.remove(&number)) else {
                break;
            };
            goes.must_go.cancel();
        }
        here.came += 1;
        let known = Connection { address, answering: answering.clone(), must_go: must_go.clone() };
        let number = here.came;
        here.all.insert(number, known);
        OpenConnection { number, answering, must_go, open_connections: self.clone() }
    }

    fn here(&self) -> MutexGuard<'_, Here> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Here {
    /// The connection to close: of the address with the most connections, the oldest idle one, or else the oldest one.
    /// So a client that opens many loses its own before those of others.
    fn connection_to_close(&self) -> Option<u64> {
        let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for known in self.all.values() {
            *of_address.entry(known.address).or_default() += 1;
        }
        let most = of_address.values().max().copied()?;
        let of_those = self.all.iter().filter(|(_, known)| of_address.get(&known.address) == Some(&most));
        of_those
            .min_by_key(|(number, known)| (known.answering.load(Ordering::SeqCst), **number))
            .map(|(number, _)| *number)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open_connections.here().all.remove(&self.number);
    }
}

/// Marks a connection as busy while it exists.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn begin(answering: &Arc<AtomicBool>) -> Self {
        answering.store(true, Ordering::SeqCst);
        Self(answering.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A body that keeps its connection marked as busy.
struct Accompanied {
    body: Body,
    _busy: Busy,
}

impl http_body::Body for Accompanied {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

// ---- traffic -------------------------------------------------------------------------------------------------

/// When a connection last had traffic. Clones share it.
#[derive(Clone, Debug)]
struct Moved {
    opened: Instant,
    after: Arc<AtomicU64>,
}

impl Moved {
    fn now() -> Self {
        Self { opened: Instant::now(), after: Arc::default() }
    }

    fn note(&self) {
        let after = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.after.store(after, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.opened + Duration::from_millis(self.after.load(Ordering::Relaxed))
    }
}

/// A stream that records its traffic.
struct Watched {
    stream: TcpStream,
    moved: Moved,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.moved.note();
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.moved.note();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
