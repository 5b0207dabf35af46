//! An API server behind faults: those of the embedded cluster, also in front of a real one.

use std::net::{Ipv4Addr, SocketAddr};

use http::header::{AUTHORIZATION, HOST};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use kube::Client;
use kube::client::Body;
use salvor_apiserver::{Faults, Server};

use crate::access::Access;
use crate::plane::embedded;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Passes requests on to an API server unless a fault applies to them. It runs on the async runtime that started it,
/// until it is dropped.
#[derive(Debug)]
pub struct FaultyServer {
    _server: Server,
    access: Access,
    faults: Faults,
}

impl FaultyServer {
    /// Starts between an API server, reached with this access, and the clients that use [its own](Self::admin).
    ///
    /// # Panics
    /// If no port can be opened.
    pub async fn before(behind: &Access) -> Self {
        let client = behind.client("faulty-server");
        let passing_on = tower::service_fn(move |request| pass_on(client.clone(), request));
        let faults = Faults::default();
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::start(faults.before(passing_on), anywhere).await;
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let access = embedded::access(server.kubeconfig()).unwrap_or_else(|error| panic!("{error}"));
        Self { access: access.in_namespace(&behind.namespace), _server: server, faults }
    }

    /// The access through the faults, with the rights of the access behind it.
    pub fn admin(&self) -> &Access {
        &self.access
    }

    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

async fn pass_on(client: Client, request: http::Request<Incoming>) -> Result<http::Response<Body>, BoxError> {
    let (mut head, body) = request.into_parts();
    // This token is for our server; the client behind has its own.
    head.headers.remove(AUTHORIZATION);
    head.headers.remove(HOST);
    let body = body.collect().await?.to_bytes();
    Ok(client.send(http::Request::from_parts(head, Body::from(body))).await?)
}
