//! Nodes that die for one test, and `salvor run` beside them.

use std::{ops::Deref, path::Path, time::Duration};

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    events::v1::Event,
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use salvor_testkit::{Access, Arena, Program, Site, wait};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub(crate) const KEY: &str = "salvor.dev/force-eviction";
/// A trigger of others that proves nothing.
pub(crate) const UNPROVEN: &str = "test.example.com/lost";
pub(crate) const PROGRESS: &str = "eviction.salvor.dev/progress";

/// A running `salvor run`, with the files that it was started with.
pub(crate) struct Salvor {
    pub(crate) program: Program,
    folder: tempfile::TempDir,
}

/// Starts `salvor run` with this configuration beside its identity; it elects if that says how.
pub(crate) fn salvor(access: &Access, configuration: &str, environment: &[(&str, &str)]) -> Salvor {
    let folder = tempfile::tempdir().unwrap();
    let (kubeconfig, config) = (folder.path().join("kubeconfig"), folder.path().join("config.yaml"));
    access.write_kubeconfig(&kubeconfig).unwrap();
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\ncontrollers: [eviction]\n";
    std::fs::write(&config, format!("{head}{configuration}")).unwrap();
    let elects = configuration.contains("leaderElection");
    let arguments = [
        "run".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--config={}", config.display()),
        format!("--leader-elect={elects}"),
        "--bind=127.0.0.1:0".to_owned(),
        "--log-format=json".to_owned(),
    ];
    let program = Program::start(Path::new(env!("CARGO_BIN_EXE_salvor")), arguments, environment);
    Salvor { program, folder }
}

/// The Salvor of a test: its own, or one that all tests on the shared control plane have.
pub(crate) enum Ours {
    Shared(&'static Salvor),
    Own(Salvor),
}

impl Deref for Ours {
    type Target = Salvor;

    fn deref(&self) -> &Salvor {
        match self {
            Self::Shared(salvor) => salvor,
            Self::Own(salvor) => salvor,
        }
    }
}

/// A corner of a cluster with all controllers, and a Salvor that looks after it: each test has nodes of its own.
pub(crate) async fn arena_with_salvor(site: Site, name: &str) -> (Arena<'static>, Ours) {
    static SALVOR: OnceCell<Salvor> = OnceCell::const_new();
    // Tests that run side by side lose more nodes than a brake would like.
    let configuration = format!(
        "brake: {{maxUnreachablePercent: 0}}\neviction: {{detachWarningAfter: 5s, triggers: [{{key: {UNPROVEN}}}]}}\n"
    );
    let arena = site.arena(name).await;
    let start = || salvor(&arena.admin(), &configuration, &[]);
    let ours = match site {
        Site::Real => Ours::Shared(SALVOR.get_or_init(|| async { start() }).await),
        Site::Embedded => Ours::Own(start()),
    };
    (arena, ours)
}

impl Salvor {
    /// Waits until its log holds this text; polled, because a log is no watch.
    pub(crate) async fn says(&self, text: &str) {
        let until = wait::patience().until(async {
            while !self.program.output().contains(text) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(until.await.is_some(), "salvor never said {text:?}:\n{}", self.program.output());
    }

    /// Waits until its metrics hold this line; polled, because a page is no watch.
    pub(crate) async fn shows(&self, line: &str) {
        self.says("salvor is running").await;
        let output = self.program.output();
        let started = output.lines().find(|l| l.contains("salvor is running")).unwrap();
        let address = started.split("\"address\":\"").nth(1).unwrap().split('"').next().unwrap();
        let mut page = String::new();
        let until = wait::patience().until(async {
            while !page.contains(&format!("\n{line}\n")) {
                page = http_get(address, "/metrics").await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert!(until.await.is_some(), "its metrics never held {line:?}");
    }

    /// Lines of its log that hold all of these texts.
    pub(crate) fn count(&self, texts: &[&str]) -> usize {
        let output = self.program.output();
        output.lines().filter(|line| texts.iter().all(|text| line.contains(text))).count()
    }

    /// Runs another command of the same binary against the same cluster; what it said when it ended with this code.
    pub(crate) async fn command(&self, arguments: &[&str], code: i32) -> String {
        let mut all: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        if arguments[0] == "explain" {
            all.push(format!("--config={}", self.folder.path().join("config.yaml").display()));
        }
        let program = self.spawn(&all);
        assert_eq!(program.exit_code().await, Some(code), "{arguments:?}: {}", program.output());
        program.output()
    }

    /// Starts another command of the same binary against the same cluster.
    pub(crate) fn spawn(&self, arguments: &[String]) -> Program {
        let kubeconfig = format!("--kubeconfig={}", self.folder.path().join("kubeconfig").display());
        let arguments = arguments.iter().cloned().chain([kubeconfig]);
        Program::start(Path::new(env!("CARGO_BIN_EXE_salvor")), arguments, &[])
    }
}

async fn http_get(address: &str, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: salvor\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

pub(crate) async fn taint(client: &Client, node: &str, value: &str, effects: &[&str]) {
    taint_with(client, node, KEY, value, effects).await;
}

pub(crate) async fn taint_with(client: &Client, node: &str, key: &str, value: &str, effects: &[&str]) {
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let mut found = nodes.get(node).await.unwrap();
        let taints = found.spec.get_or_insert_default().taints.get_or_insert_default();
        for effect in effects {
            let taint = json!({"key": key, "value": value, "effect": effect});
            taints.push(serde_json::from_value(taint).unwrap());
        }
        // Node lifecycle writes taints too: whoever comes second tries again.
        match nodes.replace(node, &Default::default(), &found).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => return drop(other.unwrap()),
        }
    }
}

/// Takes every taint with our key off, as a person would.
pub(crate) async fn untaint(client: &Client, node: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let mut found = nodes.get(node).await.unwrap();
        found.spec.get_or_insert_default().taints.get_or_insert_default().retain(|t| t.key != KEY);
        match nodes.replace(node, &Default::default(), &found).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => return drop(other.unwrap()),
        }
    }
}

pub(crate) async fn annotate(nodes: &Api<Node>, node: &str, annotations: Value) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}

/// The effects of our taints on a node.
pub(crate) fn effects(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    taints.into_iter().filter(|t| t.key == KEY).map(|t| t.effect).collect()
}

/// A condition of a node as (status, reason).
pub(crate) fn condition(node: &Node, kind: &str) -> Option<(String, String)> {
    let all = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let found = all.into_iter().flatten().find(|c| c.type_ == kind)?;
    Some((found.status.clone(), found.reason.clone().unwrap_or_default()))
}

pub(crate) fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|(status, _)| status == "True")
}

/// How far our eviction of a node has come, as its annotation says.
pub(crate) fn progress(node: &Node) -> Value {
    node.annotations().get(PROGRESS).map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default()
}

pub(crate) fn is_finished(node: &Node) -> bool {
    progress(node)["finished"].is_string()
}

pub(crate) fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("")
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub(crate) fn is_running(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

pub(crate) async fn attachments_to(client: &Client, node: &str) -> Vec<VolumeAttachment> {
    let all: Api<VolumeAttachment> = Api::all(client.clone());
    let all = all.list(&ListParams::default()).await.unwrap();
    all.into_iter().filter(|a| a.spec.node_name == node).collect()
}

/// The reasons of all events about a node, in order of their times.
pub(crate) async fn events_about(client: &Client, name: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let mut all = events.list(&ListParams::default()).await.unwrap().items;
    all.retain(|e| e.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(name));
    all.retain(|e| e.reporting_controller.as_deref() == Some("salvor-eviction"));
    all.sort_by_key(|e| e.event_time.clone());
    all.into_iter().filter_map(|e| e.reason).collect()
}
