//! Checks preconditions at the moment a request is sent. Between building a request and its first byte on the wire
//! there may be a queue, authentication and a new connection, each of which may take seconds.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tower::BoxError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotSent {
    /// The live read behind it is too old.
    #[error("not sent: what it rests on was looked at too long ago")]
    LookTooOld,
    /// The term in which it was decided is over.
    #[error("not sent: this replica does not lead (any more)")]
    NotLeading,
}

impl NotSent {
    /// The reason, if a request failed because of it.
    pub(crate) fn is_why(error: &kube::Error) -> Option<Self> {
        let mut cause: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(why) = error.downcast_ref::<Self>() {
                return Some(*why);
            }
            cause = error.source();
        }
        None
    }
}

/// The conditions that must hold when a request is sent. They travel with the request as an extension.
#[derive(Clone)]
pub(crate) struct SendGuard(Arc<dyn Fn() -> Result<(), NotSent> + Send + Sync>);

impl SendGuard {
    pub(crate) fn new(holds: impl Fn() -> Result<(), NotSent> + Send + Sync + 'static) -> Self {
        Self(Arc::new(holds))
    }

    pub(crate) fn check(&self) -> Result<(), NotSent> {
        (self.0)()
    }
}

impl fmt::Debug for SendGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendGuard")
    }
}

/// A body that is polled only once the connection is open, and then checks whether the request may still be sent. The
/// server does not process a request without its body.
pub(crate) struct GuardedBody {
    body: Body,
    condition: Option<SendGuard>,
}

impl GuardedBody {
    /// A request that is sent only if its condition then holds.
    pub(crate) fn request(request: Request<Body>) -> Request<Self> {
        let condition = request.extensions().get::<SendGuard>().cloned();
        request.map(|body| Self { body, condition })
    }
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // Only once: a request whose sending has begun cannot be stopped.
        if let Some(condition) = self.condition.take()
            && let Err(why) = condition.check()
        {
            return Poll::Ready(Some(Err(why.into())));
        }
        http_body::Body::poll_frame(Pin::new(&mut self.body), cx).map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http::Method;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::{client::connect, time::Time};

    /// Sends one DELETE over a real connection. Returns what the server read, and the result of the request.
    async fn delete(condition: SendGuard) -> (String, kube::Result<u16>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut heard, mut buffer) = (String::new(), [0; 4096]);
            loop {
                let read = stream.read(&mut buffer).await.unwrap_or(0);
                heard.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
                if heard.ends_with("{}") {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                }
                if read == 0 {
                    return heard;
                }
            }
        });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client = connect(config, &Time::system()).unwrap();
        let mut request =
            Request::builder().method(Method::DELETE).uri("/pods/a").body(Body::from(b"{}".to_vec()));
        request.as_mut().unwrap().extensions_mut().insert(condition);
        let answer = client.send(request.unwrap()).await;
        drop(client);
        (server.await.unwrap(), answer.map(|answer| answer.status().as_u16()))
    }

    #[tokio::test]
    async fn a_request_whose_condition_does_not_hold_any_more_is_not_carried_out() {
        let (heard, answer) = delete(SendGuard::new(|| Ok(()))).await;
        assert_eq!(answer.unwrap(), 200);
        assert!(heard.starts_with("DELETE /pods/a ") && heard.ends_with("{}"), "{heard}");
        for why in [NotSent::LookTooOld, NotSent::NotLeading] {
            let (heard, answer) = delete(SendGuard::new(move || Err(why))).await;
            assert_eq!(NotSent::is_why(&answer.unwrap_err()), Some(why));
            assert!(!heard.contains("{}"), "a whole request arrived: {heard}");
        }
    }

    #[tokio::test]
    async fn it_is_asked_when_the_request_leaves_and_not_when_it_is_made() {
        let asked = Arc::new(AtomicBool::new(false));
        let tell = asked.clone();
        let condition = SendGuard::new(move || {
            tell.store(true, Ordering::SeqCst);
            Ok(())
        });
        // A port without a listener: there is no connection, so nothing is sent.
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client = connect(config, &Time::system()).unwrap();
        let mut request = Request::delete("/pods/a").body(Body::from(b"{}".to_vec())).unwrap();
        request.extensions_mut().insert(condition);
        assert!(client.send(request).await.is_err());
        assert!(!asked.load(Ordering::SeqCst));
    }
}
