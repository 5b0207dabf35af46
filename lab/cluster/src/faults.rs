//! Lets an external process make a node fail: one path of the API that is not part of Kubernetes.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::Client;
use salvor_apiserver::{Body, Cluster};
use salvor_nodes::{Fault, Fleet, FleetError};
use serde_json::json;

/// `POST {PATH}/NODE/FAULT`.
const PATH: &str = "/salvor.dev/nodes/";

/// What can be done to a node of a running cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeFault {
    /// The machine is off.
    Crash,
    /// No traffic gets through in either direction; its containers keep running.
    Partition,
    /// All its faults end.
    Heal,
    Reboot,
}

impl NodeFault {
    pub const ALL: [Self; 4] = [Self::Crash, Self::Partition, Self::Heal, Self::Reboot];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Partition => "partition",
            Self::Heal => "heal",
            Self::Reboot => "reboot",
        }
    }

    pub async fn strike(self, fleet: &Fleet, node: &str) -> Result<(), FleetError> {
        match self {
            Self::Crash => fleet.inject(node, Fault::Crash).await,
            Self::Partition => fleet.inject(node, Fault::Partition).await,
            Self::Heal => fleet.heal(node).await,
            Self::Reboot => fleet.reboot(node).await,
        }
    }
}

impl fmt::Display for NodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no fault {0:?}; there are {known}", known = NodeFault::ALL.map(NodeFault::name).join(", "))]
pub struct UnknownFault(String);

impl FromStr for NodeFault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let named = Self::ALL.into_iter().find(|known| known.name() == text);
        named.ok_or_else(|| UnknownFault(text.to_owned()))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error("{0}")]
    Refused(String),
    /// An ordinary cluster, without this path.
    #[error("the nodes of this cluster cannot be made to fail: it was not started by `salvor cluster`")]
    NotOurs,
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// Makes a node of the cluster behind a client fail, or heal.
///
/// # Errors
/// If there is no such node, or if the cluster was not started by `salvor cluster`.
pub async fn inject(client: &Client, node: &str, fault: NodeFault) -> Result<(), FaultError> {
    let request = Request::post(format!("{PATH}{node}/{fault}")).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.reason == NO_SUCH_NODE => {
            Err(FaultError::Refused(status.message))
        }
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 403 => Err(FaultError::NotOurs),
        Err(error) => Err(error.into()),
    }
}

/// Distinguishes our own refusal from that of an API server that does not know the path.
const NO_SUCH_NODE: &str = "NoSuchNode";

/// The API of a cluster, plus the path that makes its nodes fail.
#[derive(Debug, Clone)]
pub struct Service {
    api: Cluster,
    fleet: Arc<Fleet>,
}

impl Service {
    pub(crate) fn new(api: Cluster, fleet: Arc<Fleet>) -> Self {
        Self { api, fleet }
    }
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: fmt::Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let asked = request.uri().path().strip_prefix(PATH).map(str::to_owned);
        match asked {
            Some(asked) if request.method() == Method::POST => {
                let fleet = Arc::clone(&self.fleet);
                Box::pin(async move { Ok(answer(&fleet, &asked).await) })
            }
            _ => tower::Service::call(&mut self.api, request),
        }
    }
}

async fn answer(fleet: &Fleet, asked: &str) -> Response<Body> {
    let (node, fault) = asked.split_once('/').unwrap_or((asked, ""));
    let outcome = match fault.parse::<NodeFault>() {
        Ok(fault) => fault.strike(fleet, node).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match outcome {
        Ok(()) => status(StatusCode::OK, "Success", "", ""),
        Err(message) => status(StatusCode::NOT_FOUND, "Failure", NO_SUCH_NODE, &message),
    }
}

fn status(code: StatusCode, status: &str, reason: &str, message: &str) -> Response<Body> {
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {},
        "status": status, "reason": reason, "message": message, "code": code.as_u16(),
    });
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *response.status_mut() = code;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}
