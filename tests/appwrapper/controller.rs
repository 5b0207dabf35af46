//! The controller under test: Salvor, or CodeFlare's controller that users have today.
//!
//! `SALVOR_APPWRAPPER=upstream` runs the cases that the CodeFlare controller 1.2.0 passes too. That shows that a case
//! requires only what users already have. `upstream-all` runs every case against it: those of Salvor alone must fail
//! then.

use salvor_testkit::{
    Access, Salvor, Site, free_port,
    peers::{self, AppWrapperController, Peer, RunningPeer},
};
use serde_json::{Value, json};

pub(crate) const SALVOR: &str = env!("CARGO_BIN_EXE_salvor");
const VARIABLE: &str = "SALVOR_APPWRAPPER";

/// Which controllers pass a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passes {
    /// Salvor and CodeFlare's controller 1.2.0.
    Both,
    /// Only Salvor: CodeFlare's controller has a defect or lacks the feature.
    Salvor,
}

/// The controller under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Upstream { all: bool },
}

pub(crate) fn whose() -> Whose {
    match std::env::var(VARIABLE).unwrap_or_default().as_str() {
        "" | "salvor" => Whose::Ours,
        "upstream" => Whose::Upstream { all: false },
        "upstream-all" => Whose::Upstream { all: true },
        other => panic!("{VARIABLE} is {other:?}; it must be salvor, upstream or upstream-all"),
    }
}

/// Whether a case runs here. CodeFlare's controller runs only on the real control plane.
pub(crate) fn plays(passes: Passes, site: Site) -> bool {
    match whose() {
        Whose::Ours => site.is_chosen(),
        Whose::Upstream { all } => site == Site::Real && (all || passes == Passes::Both),
    }
}

/// The settings of a controller.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The section `appwrapper` with upstream's keys. Durations are nanoseconds, which both controllers accept.
    pub(crate) appwrapper: Value,
    /// Whether Salvor has webhooks. CodeFlare's controller always has.
    pub(crate) webhooks: bool,
    pub(crate) environment: Vec<(String, String)>,
}

/// One second in nanoseconds, as in configurations.
pub(crate) const SECOND: u64 = 1_000_000_000;

impl Default for Settings {
    /// The shipped timers. The taints are those that the unit tests of CodeFlare's controller add to the shipped ones.
    fn default() -> Self {
        let taint =
            |key: &str, value: &str, effect: &str| json!({"key": key, "value": value, "effect": effect});
        let health = "autopilot.ibm.com/gpuhealth";
        Self {
            appwrapper: json!({
                "autopilot": {
                    "injectAntiAffinities": true,
                    "monitorNodes": true,
                    "preferNoScheduleWeight": 50,
                    "resourceTaints": {"nvidia.com/gpu": [
                        taint(health, "WARN", "PreferNoSchedule"),
                        taint(health, "TESTING", "NoSchedule"),
                        taint(health, "EVICT", "NoExecute"),
                        taint("extra", "test", "NoExecute"),
                        taint("extra2", "test2", "PreferNoSchedule"),
                    ]},
                },
                // Salvor's own, which CodeFlare's controller ignores: its shipped rights, and one more kind of the
                // samples.
                "wrappedKinds": [
                    "Pod", "Service", "Deployment.apps", "StatefulSet.apps", "Job.batch", "PyTorchJob.kubeflow.org",
                    "RayCluster.ray.io", "RayJob.ray.io", "JobSet.jobset.x-k8s.io",
                    "LeaderWorkerSet.leaderworkerset.x-k8s.io",
                ],
            }),
            webhooks: true,
            environment: Vec::new(),
        }
    }
}

impl Settings {
    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        self.appwrapper[key] = value;
        self
    }

    pub(crate) fn without_webhooks(mut self) -> Self {
        self.webhooks = false;
        self
    }

    pub(crate) fn environment(mut self, key: &str, value: &str) -> Self {
        self.environment.push((key.to_owned(), value.to_owned()));
        self
    }

    /// In an embedded cluster, Salvor runs the Jobs.
    fn for_salvor(&self, site: Site) -> String {
        let controllers = match site {
            Site::Real => "[appwrapper]",
            Site::Embedded => "[appwrapper, job]",
        };
        let port = free_port();
        let webhooks = if self.webhooks {
            json!({"enabled": true, "bind": format!("127.0.0.1:{port}"), "url": format!("https://127.0.0.1:{port}")})
        } else {
            json!({"enabled": false})
        };
        // The brake would engage, because all tests together look like a failure storm.
        format!(
            "controllers: {controllers}\nbrake: {{maxPodsPerMinute: 0, maxNodesPerMinute: 0, maxUnreachablePercent: 0}}\n\
             job: {{backoffBase: 100ms, batchPeriod: 100ms}}\nwebhooks: {webhooks}\nappwrapper: {}\n",
            self.appwrapper
        )
    }
}

/// A running controller. Dropping it kills it.
#[derive(Debug)]
pub(crate) enum Controller {
    Salvor(Box<Salvor>),
    Upstream(Box<RunningPeer>),
}

impl Controller {
    /// Starts it as the admin, installs its CRD, and waits until it is ready.
    pub(crate) async fn start(site: Site, access: &Access, settings: &Settings) -> Self {
        let started = Self::start_as(site, access, access, settings).await;
        started.ready().await
    }

    /// The same with another user or proxy for the controller. It may not be ready yet.
    pub(crate) async fn start_as(site: Site, cluster: &Access, who: &Access, settings: &Settings) -> Self {
        match whose() {
            Whose::Ours => {
                install_ours(cluster).await;
                let environment: Vec<(&str, &str)> =
                    settings.environment.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                let configuration = settings.for_salvor(site);
                let salvor =
                    Salvor::start(SALVOR, who, &configuration, &["--leader-elect=false"], &environment);
                Self::Salvor(Box::new(salvor))
            }
            Whose::Upstream { .. } => {
                let upstream = AppWrapperController::build().unwrap_or_else(|error| panic!("{error}"));
                upstream.install(cluster).await.unwrap();
                Self::Upstream(Box::new(upstream.start(who, &settings.appwrapper).await.unwrap()))
            }
        }
    }

    pub(crate) async fn ready(self) -> Self {
        match self {
            Self::Salvor(salvor) => {
                salvor.until_answer("/readyz", " 200 ").await;
                Self::Salvor(salvor)
            }
            Self::Upstream(peer) => {
                let peer = peer.ready().await.unwrap_or_else(|error| panic!("{error}"));
                Self::Upstream(Box::new(peer))
            }
        }
    }

    /// Kills it as `kill -9` does.
    pub(crate) async fn kill(&self) {
        match self {
            Self::Salvor(salvor) => salvor.program.kill().await,
            Self::Upstream(peer) => peer.program.kill().await,
        }
    }

    /// Salvor, for cases that only it supports.
    pub(crate) fn salvor(&self) -> &Salvor {
        match self {
            Self::Salvor(salvor) => salvor,
            Self::Upstream(_) => panic!("this is about Salvor"),
        }
    }
}

/// The CRD from Salvor's own manifests.
pub(crate) async fn install_ours(access: &Access) {
    let output =
        std::process::Command::new(SALVOR).args(["manifests", "--controllers", "appwrapper"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let definition = "CustomResourceDefinition";
    assert_eq!(documents[0]["kind"], definition, "definitions come first, so that one apply is enough");
    let folder = tempfile::tempdir().unwrap();
    for (number, crd) in documents.iter().filter(|d| d["kind"] == definition).enumerate() {
        std::fs::write(folder.path().join(format!("{number}.yaml")), crd.to_string()).unwrap();
    }
    peers::install(access, folder.path(), |_| ()).await.unwrap();
}

/// The CRDs of workloads with other controllers.
pub(crate) async fn install_workloads(access: &Access) {
    let folder = Peer::Workloads.folder().unwrap_or_else(|error| panic!("{error}"));
    peers::install(access, &folder.join("crds"), |_| ()).await.unwrap();
}

/// Defines tests of cases: on both sites, or only on the real control plane.
macro_rules! cases {
    ($passes:ident, on both sites: $($name:ident),* $(,)?) => {
        $(
            mod $name {
                use salvor_testkit::Site;
                use $crate::controller::{Passes, plays};

                #[tokio::test]
                async fn real() {
                    if plays(Passes::$passes, Site::Real) {
                        super::$name(Site::Real).await;
                    }
                }

                #[tokio::test]
                async fn embedded() {
                    if plays(Passes::$passes, Site::Embedded) {
                        super::$name(Site::Embedded).await;
                    }
                }
            }
        )*
    };
    ($passes:ident, on the real one: $($name:ident),* $(,)?) => {
        $(
            mod $name {
                use salvor_testkit::Site;
                use $crate::controller::{Passes, plays};

                #[tokio::test]
                async fn real() {
                    if plays(Passes::$passes, Site::Real) {
                        super::$name(Site::Real).await;
                    }
                }
            }
        )*
    };
}

pub(crate) use cases;
