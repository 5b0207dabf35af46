//! The server without a socket: a request goes in, an answer comes out, and nothing else happens. This file only
//! dispatches each request to the rule that answers it.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::admission::hearing::Call;
use crate::environment::Environment;
use crate::handlers::{delete, discovery, patching, read, reviews, subresources, write};
use crate::kinds::table::Table;
use crate::kinds::validation;
use crate::object;
use crate::protocol::render;
use crate::protocol::request::{self, Query, Representation, Request, Target};
use crate::protocol::response::{Reply, Response};
use crate::protocol::status::{self, Refusal};
use crate::state::Core;
use crate::store::Store;
use crate::store::watch::Watch;

const PODS_ARE_LEFT: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// The error of a webhook when there is no network to call it.
const NOBODY_CALLS: &str = "this server has no network";

#[derive(Debug)]
pub(crate) enum Heard {
    Answered(Response),
    /// These webhooks must be called, and the request started again.
    Asks(Vec<Call>),
}

/// The address range of Services.
const SERVICE_ADDRESSES: &str = "10.0.0.0/16";

/// The namespaces that exist from the start.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

impl Core {
    /// A server with the built-in kinds and the namespaces that every cluster has.
    pub fn new(environment: &mut Environment<'_>) -> Self {
        let mut core = Self { table: Table::built_in(), store: Store::new(), service_addresses: 0 };
        for name in SYSTEM_NAMESPACES {
            core.install("v1", "Namespace", "", json!({ "metadata": { "name": name } }), environment);
        }
        for (name, value, description) in [
            (
                "system-cluster-critical",
                2_000_000_000,
                "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
            ),
            (
                "system-node-critical",
                2_000_001_000,
                "Used for system critical pods that must not be moved from their current node.",
            ),
        ] {
            let class = json!({ "metadata": { "name": name }, "value": value, "description": description });
            core.install("scheduling.k8s.io/v1", "PriorityClass", "", class, environment);
        }
        // A real controller manager waits for the other objects.
        let range = json!({ "metadata": { "name": "kubernetes" }, "spec": { "cidrs": [SERVICE_ADDRESSES] } });
        core.install("networking.k8s.io/v1", "ServiceCIDR", "", range, environment);
        let tracking = json!({
            "metadata": { "name": "kube-apiserver-legacy-service-account-token-tracking" },
            "data": { "since": environment.now.strftime("%Y-%m-%d").to_string() },
        });
        core.install("v1", "ConfigMap", "kube-system", tracking, environment);
        // A server that has just started has no history.
        core.compact();
        core
    }

    fn install(
        &mut self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        value: Value,
        environment: &mut Environment<'_>,
    ) {
        let resource = self.table.by_kind(api_version, kind).cloned();
        let resource = resource.expect("the table has the kind");
        write::create(self, &resource, namespace, value, &write::Options::default(), environment)
            .expect("what a cluster begins with is valid");
    }

    pub fn revision(&self) -> u64 {
        self.store.revision()
    }

    /// Answers a request. Webhooks are not called: each counts as failed, and its `failurePolicy` applies.
    pub fn handle(&mut self, request: &Request, environment: &mut Environment<'_>) -> Response {
        loop {
            match self.hear(request, environment) {
                Heard::Answered(response) => return response,
                Heard::Asks(calls) => {
                    for call in calls {
                        environment.hearing.learn(call, Err(NOBODY_CALLS.to_owned()));
                    }
                }
            }
        }
    }

    /// Answers a request, or returns the webhooks that must be called first. In that case nothing has changed.
    pub(crate) fn hear(&mut self, request: &Request, environment: &mut Environment<'_>) -> Heard {
        environment.hearing.begin();
        let (revision, addresses) = (self.store.revision(), self.service_addresses);
        let mut response = match self.answer(request, environment) {
            Ok(response) => response,
            Err(refusal) => Response::Whole(Reply::refusal(&refusal)),
        };
        if environment.hearing.is_waiting() {
            debug_assert_eq!(revision, self.store.revision(), "who waits for a webhook has changed nothing");
            self.service_addresses = addresses;
            return Heard::Asks(environment.hearing.take_open());
        }
        if let Response::Whole(reply) = &mut response {
            reply.warnings.extend(environment.hearing.take_warnings());
            if self.leaves_pods_behind(request) {
                reply.warnings.push(PODS_ARE_LEFT.to_owned());
            }
        }
        Heard::Answered(response)
    }

    /// True if the deletion of a Job does not set a propagation policy, so that its pods are orphaned.
    fn leaves_pods_behind(&self, request: &Request) -> bool {
        request.method == Method::DELETE
            && request::target(&self.table, &request.path)
                .is_ok_and(|target| target.resource.is("batch", "Job"))
            && delete::Options::read(request, &Query::parse(&request.query))
                .is_ok_and(|options| options.propagation.is_none())
    }

    /// Drops the history: watches and lists from older revisions are answered with `Expired`.
    pub fn compact(&mut self) {
        self.store.compact();
    }

    /// The events since the last call for this watch, as lines of JSON. The watch ends itself when its revision is
    /// compacted.
    pub fn news(&self, watch: &mut Watch, now: jiff::Timestamp) -> Vec<bytes::Bytes> {
        watch.news(&self.store, now)
    }

    /// Like [`news`](Self::news), followed by a bookmark at the newest revision for a watcher that wants them.
    pub fn news_and_bookmark(&self, watch: &mut Watch, now: jiff::Timestamp) -> Vec<bytes::Bytes> {
        watch.news_and_bookmark(&self.store, now)
    }

    fn answer(&mut self, request: &Request, environment: &mut Environment<'_>) -> Result<Response, Refusal> {
        let query = Query::parse(&request.query);
        if let Some(reply) = discovery::answer(self, request) {
            return Ok(Response::Whole(reply));
        }
        if let Some(reply) = reviews::answer(request) {
            return reply.map(Response::Whole);
        }
        if let Some(response) = subresources::bind_by_name(self, request, &query, environment) {
            return response;
        }
        let target = request::target(&self.table, &request.path)?;
        let deprecated = target.resource.built_in.and_then(|kind| kind.deprecated);
        let response = self.answer_about(&target, request, &query, environment);
        let Some(warning) = deprecated else { return response };
        let mut response = response.unwrap_or_else(|refusal| Response::Whole(Reply::refusal(&refusal)));
        if let Response::Whole(reply) = &mut response {
            reply.warnings.push(warning.to_owned());
        }
        Ok(response)
    }

    fn answer_about(
        &mut self,
        target: &Target,
        request: &Request,
        query: &Query,
        environment: &mut Environment<'_>,
    ) -> Result<Response, Refusal> {
        let form = Representation::choose(&request.accept, query)?;
        if !target.subresource.is_empty() {
            return subresources::answer(self, request, query, target, form, environment);
        }
        let resource = Arc::clone(&target.resource);
        let collection = target.name.is_empty();
        let (code, stored) = match (&request.method, collection) {
            (&Method::GET | &Method::HEAD, true) if query.flag("watch") => {
                return read::watch(self, target, query, form, request.behind, environment.now)
                    .map(|watch| Response::Watch(Box::new(watch)));
            }
            (&Method::GET | &Method::HEAD, true) => {
                Representation::check_count(&request.accept, &resource, true)?;
                return read::list(self, target, query, form, request.behind, environment.now)
                    .map(|body| Response::Whole(Reply::new(StatusCode::OK, body)));
            }
            (&Method::GET | &Method::HEAD, false) => {
                Representation::check_count(&request.accept, &resource, false)?;
                (StatusCode::OK, read::get(self, target, query, request.behind)?)
            }
            (&Method::POST, true) => {
                if resource.namespaced && target.namespace.is_empty() {
                    return Err(Refusal::method_not_allowed());
                }
                let options = write::Options::read(request, query)?;
                let value = self.decode(&resource, request)?;
                let mut warnings = Vec::new();
                let value = write::admit_fields(&resource, value, request, query, &mut warnings)?;
                let stored = write::create(self, &resource, &target.namespace, value, &options, environment)?;
                warnings.extend(validation::warnings(&resource, &stored.value()));
                let body = render::one(&resource, &stored, form, environment.now);
                let mut reply = Reply::new(StatusCode::CREATED, body);
                reply.warnings = warnings;
                return Ok(Response::Whole(reply));
            }
            (&Method::PUT, false) => {
                let options = write::Options::read(request, query)?;
                let value = self.decode(&resource, request)?;
                let mut warnings = Vec::new();
                let value = write::admit_fields(&resource, value, request, query, &mut warnings)?;
                let (code, stored) = write::replace(self, target, value, &options, environment)?;
                let mut reply = Reply::new(code, render::one(&resource, &stored, form, environment.now));
                reply.warnings = warnings;
                return Ok(Response::Whole(reply));
            }
            (&Method::PATCH, false) => {
                let mut warnings = Vec::new();
                let (code, stored) =
                    patching::patch(self, target, request, query, &mut warnings, environment)?;
                let body = render::one(&resource, &stored, form, environment.now);
                return Ok(Response::Whole(Reply { warnings, ..Reply::new(code, body) }));
            }
            (&Method::DELETE, false) => {
                let options = delete::Options::read(request, query)?;
                match delete::one(self, &resource, &target.namespace, &target.name, &options, environment)? {
                    // For this deprecated option the real server answers 202 Accepted.
                    delete::Outcome::Kept(stored) if options.orphan == Some(false) => {
                        (StatusCode::ACCEPTED, stored)
                    }
                    delete::Outcome::Kept(stored) => (StatusCode::OK, stored),
                    delete::Outcome::Gone(stored) if resource.returns_deleted => (StatusCode::OK, stored),
                    delete::Outcome::Gone(stored) => {
                        let status = status::success(&resource, &target.name, object::uid(&stored.value()));
                        return Ok(Response::Whole(Reply::new(StatusCode::OK, object::encode(&status))));
                    }
                }
            }
            (&Method::DELETE, true) if resource.verbs().contains(&"deletecollection") => {
                let options = delete::Options::read(request, query)?;
                return delete::collection(self, target, query, &options, form, environment)
                    .map(|body| Response::Whole(Reply::new(StatusCode::OK, body)));
            }
            _ => {
                return Err(Refusal::method_not_allowed());
            }
        };
        Ok(Response::Whole(Reply::new(code, render::one(&resource, &stored, form, environment.now))))
    }
}
