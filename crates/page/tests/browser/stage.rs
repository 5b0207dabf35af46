//! A page on loopback that shows an embedded cluster or canned lists, and accepts clicks.

use std::{convert::Infallible, time::Duration};

use axum::http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use salvor_apiserver::{Cluster, Settings};
use salvor_operator::Notice;
use salvor_page::{Page, ServeOptions, Wish};
use salvor_recovery::appwrapper::AppWrapperPolicy;
use salvor_testkit::wait;
use salvor_why::Judge;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const WRAPPERS: &str = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers";

pub(crate) struct Stage {
    pub(crate) page: Page,
    client: Client,
    port: u16,
    wishes: mpsc::Receiver<Wish>,
    notices: mpsc::UnboundedSender<Notice>,
}

impl Stage {
    /// A page of an empty embedded cluster.
    pub(crate) async fn open() -> Self {
        // The pods' owners do not exist, so this cluster must not garbage-collect.
        let settings = Settings { start: Timestamp::now(), ..Settings::default() };
        Self::of(Cluster::new(settings).client()).await
    }

    pub(crate) async fn of(client: Client) -> Self {
        let page = Page::new(Timestamp::now);
        let (wish, wishes) = mpsc::channel(1);
        let (notices, heard) = mpsc::unbounded_channel();
        let (followed, told) = (page.clone(), page.clone());
        let watched = client.clone();
        tokio::spawn(async move { followed.follow(watched, AppWrapperPolicy::default()).await });
        tokio::spawn(async move { told.listen(heard).await });
        let options = ServeOptions { wishes: Some(wish), ..ServeOptions::default() };
        let port = serve(page.clone(), options).await;
        Self { page, client, port, wishes, notices }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Starts diagnoses of the whole cluster, as in a cluster without Salvor.
    pub(crate) fn look_for_missing(&self) {
        let (page, client) = (self.page.clone(), self.client.clone());
        tokio::spawn(async move {
            page.look_for_missing(client, Judge::default(), Duration::from_millis(200)).await;
        });
    }

    pub(crate) async fn add_suspended_job(&self, name: &str) {
        let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "main", "image": "main" }] });
        let job = json!({ "metadata": { "name": name },
            "spec": { "suspend": true, "parallelism": 2, "completions": 2, "template": { "spec": pod } } });
        self.send(Request::post(JOBS), &job).await;
    }

    pub(crate) async fn delete_job(&self, name: &str) {
        let request = Request::delete(format!("{JOBS}/{name}?propagationPolicy=Background")).body(Vec::new());
        self.client.request_text(request.unwrap()).await.unwrap();
    }

    /// Sets the repair condition as Salvor does.
    pub(crate) async fn tell_repair(&self, node: &str, reason: &str, message: &str) {
        let condition = json!({ "type": "SalvorRepair", "status": "False", "reason": reason, "message": message,
            "lastHeartbeatTime": Timestamp::now().to_string(), "lastTransitionTime": Timestamp::now().to_string() });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The same page without a receiver of clicks.
    pub(crate) async fn serve_read_only(&self) -> String {
        format!("http://127.0.0.1:{}/", serve(self.page.clone(), ServeOptions::default()).await)
    }

    pub(crate) async fn wish(&mut self) -> Wish {
        wait::patience().until(self.wishes.recv()).await.flatten().unwrap()
    }

    pub(crate) fn notice(&self, notice: Notice) {
        self.notices.send(notice).unwrap();
    }

    pub(crate) async fn add_node(&self, name: &str, zone: &str) {
        let node = json!({ "metadata": { "name": name, "labels": { "topology.kubernetes.io/zone": zone } } });
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    }

    /// Taints the node as the control plane does when heartbeats stop.
    pub(crate) async fn lose_node(&self, name: &str) {
        let taint = json!({ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" });
        let patch = Patch::Merge(json!({ "spec": { "taints": [taint] } }));
        Api::<Node>::all(self.client.clone()).patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A running pod of a StatefulSet.
    pub(crate) async fn add_pod(&self, name: &str, node: &str) {
        let pod = json!({
            "metadata": { "name": name, "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "set", "controller": true }] },
            "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "main" }] },
        });
        let pods = self.pods();
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let runs = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        pods.patch_status(name, &PatchParams::default(), &runs).await.unwrap();
    }

    pub(crate) async fn delete_pod(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn remove_pod(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    /// Installs the CRD of AppWrappers.
    pub(crate) async fn define_wrappers(&self) {
        let definition: Value = serde_saphyr::from_str(salvor_api::crds::APPWRAPPER).unwrap();
        self.send(Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"), &definition)
            .await;
    }

    /// An AppWrapper without a controller.
    pub(crate) async fn add_wrapper(&self, name: &str) {
        let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name } });
        let wrapper = json!({
            "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper",
            "metadata": { "name": name, "annotations": { "workload.codeflare.dev.appwrapper/retryLimit": "5" } },
            "spec": { "components": [{ "template": job }] },
        });
        self.send(Request::post(WRAPPERS), &wrapper).await;
    }

    /// Writes the status as the controller does.
    pub(crate) async fn set_wrapper_status(&self, name: &str, status: &Value) {
        let request = Request::patch(format!("{WRAPPERS}/{name}/status"));
        let request = request.header("content-type", "application/merge-patch+json");
        let body = json!({ "status": status }).to_string().into_bytes();
        self.client.request_text(request.body(body).unwrap()).await.unwrap();
    }

    pub(crate) async fn delete_wrapper(&self, name: &str) {
        let request = Request::delete(format!("{WRAPPERS}/{name}")).body(Vec::new()).unwrap();
        self.client.request_text(request).await.unwrap();
    }

    async fn send(&self, request: axum::http::request::Builder, object: &Value) {
        let request = request.header("content-type", "application/json");
        self.client.request_text(request.body(object.to_string().into_bytes()).unwrap()).await.unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }
}

async fn serve(page: Page, options: ServeOptions) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(page.serve(listener, options, std::future::pending()));
    port
}

/// A cluster of one node, one pod and one AppWrapper, with names that no real API server accepts.
pub(crate) fn canned(node: &Value, pod: &Value, wrapper: &Value) -> Client {
    lists(json!([node]), json!([pod]), json!([wrapper]))
}

pub(crate) fn crowd(nodes: usize, pods_each: usize) -> Client {
    let name = |n: usize| format!("node-{n:04}");
    let node = |n: usize| {
        json!({
            "metadata": { "name": name(n), "uid": name(n), "resourceVersion": "1",
                "labels": { "topology.kubernetes.io/zone": (["a", "b", "c"][n % 3]) } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        })
    };
    let pod = |n: usize| {
        let kind = ["Job", "StatefulSet", "ReplicaSet"][n % 3];
        json!({
            "metadata": { "name": format!("pod-{n:05}"), "namespace": "default", "uid": format!("pod-{n}"),
                "resourceVersion": "1",
                "ownerReferences": [{ "kind": kind, "name": "work", "uid": "work", "controller": true }] },
            "spec": { "nodeName": name(n / pods_each) },
            "status": { "phase": "Running" },
        })
    };
    lists((0..nodes).map(node).collect(), (0..nodes * pods_each).map(pod).collect(), json!([]))
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers lists, and watches without events.
fn lists(nodes: Value, pods: Value, wrappers: Value) -> Client {
    let answer = move |request: Request<kube::client::Body>| {
        let is_watch = request.uri().query().is_some_and(|q| q.contains("watch=true"));
        let items = match request.uri().path() {
            "/api/v1/nodes" => &nodes,
            "/api/v1/pods" => &pods,
            _ => &wrappers,
        };
        let body: Body = if is_watch {
            let quiet = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
            StreamBody::new(quiet).boxed_unsync()
        } else {
            let list = json!({ "metadata": { "resourceVersion": "1" }, "items": items });
            Full::new(Bytes::from(list.to_string())).boxed_unsync()
        };
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    };
    Client::new(tower::service_fn(answer), "default")
}
