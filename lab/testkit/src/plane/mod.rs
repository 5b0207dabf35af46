//! A control plane: which programs run, with which flags, and whether they are ready.

pub mod accounting;
pub(crate) mod arena;
pub(crate) mod assets;
mod audit;
mod credentials;
pub(crate) mod embedded;
mod logs;
pub(crate) mod part;
pub(crate) mod site;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use self::accounting::Accounting;
use self::arena::Arena;
use self::assets::AssetsError;
use self::credentials::{Credentials, User};
use self::part::{Part, command_line};
use crate::access::Access;
use crate::network::ports;
use crate::network::proxy::Proxy;
use crate::programs::kubectl::Kubectl;
use crate::programs::supervised::Supervised;
use crate::random;
use crate::watch::wait;

/// Free ports are chosen before they are used, so another process may take one first. That does not happen this often
/// in a row.
const ATTEMPTS: usize = 8;

/// The polling interval of a starting server's readiness. It cannot be watched before it is ready.
const READINESS: Duration = Duration::from_millis(20);

/// Namespaces that the API server creates soon after it is ready, and that nodes and controllers rely on.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    #[error(transparent)]
    Assets(#[from] AssetsError),
    #[error("no certificates for the control plane: {0}")]
    Certificates(#[from] rcgen::Error),
    #[error("{part} cannot be started in {}: {source}", folder.display())]
    Start {
        part: Part,
        /// The control plane's folder.
        folder: PathBuf,
        source: std::io::Error,
    },
    /// The part to start runs already.
    #[error("{0} is running already; crash or restart it instead")]
    Running(Part),
    /// The part to kill does not run.
    #[error("{0} is not running; choose it with Builder::with, or start it")]
    NotRunning(Part),
    /// A part ended instead of becoming ready.
    #[error("{part} ended with status {status:?} instead of becoming ready; the end of its log:\n{log}")]
    Ended {
        part: Part,
        /// Its exit status, as a shell counts it.
        status: Option<i32>,
        /// The last lines of its log.
        log: String,
    },
    /// A part did not become ready in time.
    #[error("{part} is not ready in time; its last answer: {answer}; the end of its log:\n{log}")]
    NotReady {
        part: Part,
        /// Its last answer to the readiness check.
        answer: String,
        /// The last lines of its log.
        log: String,
    },
}

/// The parts of a private control plane. etcd and the API server always run.
#[derive(Debug, Clone)]
pub struct Builder {
    parts: BTreeSet<Part>,
    flags: BTreeMap<Part, Vec<String>>,
}

impl Builder {
    /// Also runs this part.
    #[must_use]
    pub fn with(mut self, part: Part) -> Self {
        self.parts.insert(part);
        self
    }

    /// Adds a flag to a part, for example `--node-monitor-grace-period=20s`. It replaces an earlier flag of that name,
    /// the testkit's own included.
    #[must_use]
    pub fn flag(mut self, part: Part, flag: &str) -> Self {
        self.flags.entry(part).or_default().push(flag.to_owned());
        self
    }

    /// Starts it, and waits until every part is ready.
    ///
    /// # Errors
    /// If a program is missing, ends, or does not become ready; with the end of its log.
    pub async fn start(self) -> Result<ControlPlane, PlaneError> {
        self.start_on(Ports::choose).await
    }

    async fn start_on(self, mut choose: impl FnMut() -> Ports) -> Result<ControlPlane, PlaneError> {
        let assets = assets::folder()?;
        let mut attempt = 1;
        loop {
            match ControlPlane::launch(assets, &self, choose()).await {
                // Another process took the port; or a part gave up on one that was slow to start, as some do after ten
                // seconds.
                Err(PlaneError::Ended { .. }) if attempt < ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }
}

/// A running control plane. Dropping it, or any end of this process, kills its processes and removes its folder.
#[derive(Debug)]
pub struct ControlPlane {
    assets: &'static Path,
    folder: PathBuf,
    ports: Ports,
    credentials: Credentials,
    flags: BTreeMap<Part, Vec<String>>,
    running: Mutex<BTreeMap<Part, Arc<Supervised>>>,
    logs_were_shown: AtomicBool,
}

#[derive(Debug)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    api_server: u16,
    controller_manager: u16,
    scheduler: u16,
}

impl Ports {
    fn choose() -> Self {
        Self {
            etcd: ports::free(),
            etcd_peer: ports::free(),
            api_server: ports::free(),
            controller_manager: ports::free(),
            scheduler: ports::free(),
        }
    }
}

impl ControlPlane {
    /// A control plane for one test: etcd and kube-apiserver, and the chosen parts.
    pub fn builder() -> Builder {
        Builder { parts: [Part::Etcd, Part::ApiServer].into(), flags: BTreeMap::new() }
    }

    async fn launch(assets: &'static Path, wanted: &Builder, ports: Ports) -> Result<Self, PlaneError> {
        let name = format!("salvor-testkit-{}-{}", std::process::id(), random::suffix(10));
        let plane = Self {
            assets,
            folder: std::env::temp_dir().join(name),
            ports,
            credentials: Credentials::generate()?,
            flags: wanted.flags.clone(),
            running: Mutex::default(),
            logs_were_shown: AtomicBool::new(false),
        };
        // etcd's supervisor creates the folder, so that there is a process that removes it from its first moment on.
        plane.spawn(Part::Etcd)?;
        plane.write_files().map_err(|source| plane.start_error(Part::ApiServer, source))?;
        plane.spawn(Part::ApiServer)?;
        plane.ready(Part::Etcd).await?;
        plane.ready(Part::ApiServer).await?;
        // Started together, since each takes its time to fill its caches.
        let others = wanted.parts.iter().filter(|part| !matches!(part, Part::Etcd | Part::ApiServer));
        for &part in others.clone() {
            plane.spawn(part)?;
        }
        for &part in others {
            plane.ready(part).await?;
        }
        Ok(plane)
    }

    /// Starts a part that was not chosen at first, or that was crashed, and waits until it is ready.
    ///
    /// # Errors
    /// If it runs already, or does not become ready.
    pub async fn start(&self, part: Part) -> Result<(), PlaneError> {
        if self.part(part).is_some_and(|part| !part.has_ended()) {
            return Err(PlaneError::Running(part));
        }
        self.spawn(part)?;
        self.ready(part).await
    }

    /// Kills a part with SIGKILL and waits until it is dead. Its data, certificates and port stay.
    ///
    /// # Errors
    /// If it does not run.
    pub async fn crash(&self, part: Part) -> Result<(), PlaneError> {
        let running = self.part(part).filter(|part| !part.has_ended());
        running.ok_or(PlaneError::NotRunning(part))?.kill().await;
        Ok(())
    }

    /// Crashes a part if it runs, starts it again with the same data, certificates and port, and waits until it is
    /// ready.
    pub async fn restart(&self, part: Part) -> Result<(), PlaneError> {
        match self.crash(part).await {
            Ok(()) | Err(PlaneError::NotRunning(_)) => self.start(part).await,
            Err(error) => Err(error),
        }
    }

    /// Backs up the data of etcd, for [`restore`](Self::restore). etcd is stopped for that moment.
    ///
    /// # Errors
    /// If etcd does not end or start, or its folder cannot be copied.
    pub async fn back_up(&self) -> Result<(), PlaneError> {
        self.crash(Part::Etcd).await?;
        self.copy_etcd(ETCD, ETCD_BACKUP)?;
        self.start(Part::Etcd).await?;
        self.ready(Part::ApiServer).await
    }

    /// Goes back to the last [`back_up`](Self::back_up) of etcd, its revision included: etcd is restored while the API
    /// server is down, as etcd's documentation requires.
    ///
    /// # Errors
    /// If there is no backup, or a part does not end or start.
    pub async fn restore(&self) -> Result<(), PlaneError> {
        self.crash(Part::ApiServer).await?;
        self.crash(Part::Etcd).await?;
        self.copy_etcd(ETCD_BACKUP, ETCD)?;
        self.start(Part::Etcd).await?;
        self.start(Part::ApiServer).await
    }

    fn copy_etcd(&self, from: &str, to: &str) -> Result<(), PlaneError> {
        let (from, to) = (self.folder.join(from), self.folder.join(to));
        let copied = match std::fs::remove_dir_all(&to) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => copy_folder(&from, &to),
        };
        copied.map_err(|source| self.start_error(Part::Etcd, source))
    }

    /// The process id of a part that runs.
    pub fn pid(&self, part: Part) -> Option<u32> {
        self.part(part).filter(|part| !part.has_ended()).map(|part| part.pid())
    }

    /// Access as a member of `system:masters`.
    pub fn admin(&self) -> Access {
        self.access(User::Admin)
    }

    /// The kubeconfig file of the admin.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// Where the parts keep their data and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The real kubectl, as the admin.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.assets.join("kubectl"), self.kubeconfig(), self.folder.join("kubectl-cache"))
    }

    /// Counts the requests that the API server answers.
    pub fn accounting(&self) -> Accounting {
        Accounting::new(self.admin(), self.folder.join(AUDIT_LOG))
    }

    /// A proxy in front of the API server that can simulate network faults.
    pub async fn proxy(&self) -> std::io::Result<Proxy> {
        Proxy::start((Ipv4Addr::LOCALHOST, self.ports.api_server).into(), self.admin()).await
    }

    /// An arena for one test; see [`crate::arena`].
    ///
    /// # Panics
    /// If its namespace cannot be created.
    pub async fn arena(&self, name: &str) -> Arena<'_> {
        Arena::open(self, name).await
    }

    /// Prints the logs of the parts since then, for a test that failed.
    pub(crate) fn show_logs(&self, since: &logs::Lengths) {
        self.logs_were_shown.store(true, Ordering::Relaxed);
        eprintln!("{}", logs::since(&self.folder, since));
    }

    fn access(&self, user: User) -> Access {
        Access {
            server: self.url(self.ports.api_server),
            ca_pem: self.credentials.ca_pem.clone(),
            ca_der: self.credentials.ca_der.clone(),
            token: self.credentials.token(user).to_owned(),
            namespace: "default".to_owned(),
        }
    }

    fn url(&self, port: u16) -> http::Uri {
        let url = format!("https://{}:{port}", Ipv4Addr::LOCALHOST);
        url.parse().expect("an address and a port make a URL")
    }

    fn write_files(&self) -> std::io::Result<()> {
        self.credentials.write(&self.folder)?;
        for (user, name) in [
            (User::Admin, "admin.kubeconfig"),
            (User::ControllerManager, "kube-controller-manager.kubeconfig"),
            (User::Scheduler, "kube-scheduler.kubeconfig"),
        ] {
            self.access(user).write_kubeconfig(&self.folder.join(name))?;
        }
        std::fs::write(self.folder.join(AUDIT_POLICY), audit_policy())
    }

    fn part(&self, part: Part) -> Option<Arc<Supervised>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.get(&part).cloned()
    }

    fn spawn(&self, part: Part) -> Result<(), PlaneError> {
        let chosen = self.flags.get(&part).map_or(&[][..], Vec::as_slice);
        let line = command_line(self.default_flags(part), chosen);
        let log = logs::path(&self.folder, part);
        let started = Supervised::start(&self.folder, &log, &self.assets.join(part.program()), &line)
            .map_err(|source| self.start_error(part, source))?;
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(former) = running.insert(part, Arc::new(started)) {
            former.leave();
        }
        Ok(())
    }

    fn start_error(&self, part: Part, source: std::io::Error) -> PlaneError {
        PlaneError::Start { part, folder: self.folder.clone(), source }
    }

    async fn ready(&self, part: Part) -> Result<(), PlaneError> {
        let supervised = self.part(part).ok_or(PlaneError::NotRunning(part))?;
        let mut answer = "none".to_owned();
        let asking = wait::patience().until(async {
            while let Err(refusal) = self.ask(part).await {
                answer = refusal;
                tokio::time::sleep(READINESS).await;
            }
        });
        let in_time = tokio::select! {
            () = supervised.end() => None,
            in_time = asking => Some(in_time.is_some()),
        };
        // Another process on the port could have answered instead of a part that found it taken.
        match in_time {
            Some(true) if !supervised.has_ended() => Ok(()),
            Some(false) => Err(PlaneError::NotReady { part, answer, log: logs::tail(&self.folder, part) }),
            None | Some(true) => Err(PlaneError::Ended {
                part,
                status: supervised.kill().await,
                log: logs::tail(&self.folder, part),
            }),
        }
    }

    /// Checks whether a part is ready; otherwise returns its message.
    async fn ask(&self, part: Part) -> Result<(), String> {
        let port = match part {
            Part::Etcd => return etcd_is_healthy(self.ports.etcd).await,
            Part::ApiServer => self.ports.api_server,
            Part::ControllerManager => self.ports.controller_manager,
            Part::Scheduler => self.ports.scheduler,
        };
        let access = Access { server: self.url(port), ..self.admin() };
        let client = access.client("salvor-testkit-readiness");
        let path = if part == Part::ApiServer { "/readyz" } else { "/healthz" };
        let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        client.request_text(request).await.map_err(|error| error.to_string())?;
        if part == Part::ApiServer {
            let namespaces: Api<Namespace> = Api::all(client);
            let present = namespaces.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            if let Some(missing) = SYSTEM_NAMESPACES
                .iter()
                .find(|&&name| present.iter().all(|present| present.name_any() != name))
            {
                return Err(format!("the namespace {missing} is not there yet"));
            }
        }
        Ok(())
    }

    fn default_flags(&self, part: Part) -> Vec<String> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let Ports { etcd, etcd_peer, api_server, controller_manager, scheduler } = self.ports;
        let serving = |port: u16| {
            vec![
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--tls-cert-file={}", file(credentials::SERVING_CERTIFICATE)),
                format!("--tls-private-key-file={}", file(credentials::SERVING_KEY)),
            ]
        };
        let client = || {
            vec![
                format!("--kubeconfig={}", file(&format!("{part}.kubeconfig"))),
                "--leader-elect=false".to_owned(),
                "--kube-api-qps=500".to_owned(),
                "--kube-api-burst=500".to_owned(),
            ]
        };
        match part {
            Part::Etcd => vec![
                format!("--data-dir={}", file(ETCD)),
                format!("--listen-client-urls=http://127.0.0.1:{etcd}"),
                format!("--advertise-client-urls=http://127.0.0.1:{etcd}"),
                format!("--listen-peer-urls=http://127.0.0.1:{etcd_peer}"),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{etcd_peer}"),
                format!("--initial-cluster=default=http://127.0.0.1:{etcd_peer}"),
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
            Part::ApiServer => [
                serving(api_server),
                vec![
                    "--advertise-address=127.0.0.1".to_owned(),
                    // No Endpoints of the "kubernetes" Service: they must not be loopback addresses.
                    "--endpoint-reconciler-type=none".to_owned(),
                    format!("--cert-dir={}", self.folder.display()),
                    format!("--etcd-servers=http://127.0.0.1:{etcd}"),
                    "--authorization-mode=RBAC".to_owned(),
                    format!("--token-auth-file={}", file(credentials::TOKENS)),
                    "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                    format!("--service-account-key-file={}", file(credentials::SERVICE_ACCOUNT_PUBLIC_KEY)),
                    format!("--service-account-signing-key-file={}", file(credentials::SERVICE_ACCOUNT_KEY)),
                    "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
                    // Pods need not wait for the ServiceAccount of a namespace that was just created.
                    "--disable-admission-plugins=ServiceAccount".to_owned(),
                    // It keeps the pods of one arena off the nodes of another.
                    "--enable-admission-plugins=PodNodeSelector".to_owned(),
                    // The code under test must survive storms; the server should not throttle them.
                    "--max-requests-inflight=3000".to_owned(),
                    "--max-mutating-requests-inflight=1000".to_owned(),
                    format!("--audit-policy-file={}", file(AUDIT_POLICY)),
                    format!("--audit-log-path={}", file(AUDIT_LOG)),
                    // In megabytes; requests in a rotated log could not be counted.
                    "--audit-log-maxsize=1000000".to_owned(),
                ],
            ]
            .concat(),
            Part::ControllerManager => [
                serving(controller_manager),
                client(),
                vec![
                    format!("--root-ca-file={}", file(credentials::CA)),
                    format!("--service-account-private-key-file={}", file(credentials::SERVICE_ACCOUNT_KEY)),
                    // Nodes die in seconds, and their pods are evicted at once even when most of a zone is dead.
                    "--node-monitor-period=1s".to_owned(),
                    "--node-monitor-grace-period=8s".to_owned(),
                    "--node-startup-grace-period=8s".to_owned(),
                    "--node-eviction-rate=1000".to_owned(),
                    "--secondary-node-eviction-rate=1000".to_owned(),
                    "--large-cluster-size-threshold=0".to_owned(),
                    // Finished pods are evidence.
                    "--terminated-pod-gc-threshold=0".to_owned(),
                ],
            ]
            .concat(),
            Part::Scheduler => [serving(scheduler), client()].concat(),
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.logs_were_shown.load(Ordering::Relaxed) {
            self.show_logs(&logs::Lengths::default());
        }
        let running = std::mem::take(self.running.get_mut().unwrap_or_else(PoisonError::into_inner));
        // First signal all, then wait for each: they die at the same time.
        for part in running.values() {
            part.let_go();
        }
    }
}

/// Where etcd keeps its data, and where its backup is.
const ETCD: &str = "etcd";
const ETCD_BACKUP: &str = "etcd-backup";

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    // etcd refuses a folder that others may read.
    std::fs::DirBuilder::new().mode(0o700).create(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY: &str = "audit-policy.json";

/// One line per request, when it is answered. Readiness probes are not counted.
fn audit_policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
        "rules": [
            { "level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*", "/metrics"] },
            { "level": "Metadata" },
        ],
    })
    .to_string()
}

/// etcd's health endpoint is plain HTTP on loopback; one request needs no HTTP library.
async fn etcd_is_healthy(port: u16) -> Result<(), String> {
    let exchange = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange.await.map_err(|error| error.to_string())?;
    if answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200") {
        Ok(())
    } else {
        Err(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_is_taken_is_replaced_by_another() {
        let stranger = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, ports::free())).unwrap();
        let taken = stranger.local_addr().unwrap().port();
        let mut attempts = 0;
        let choose = || {
            attempts += 1;
            let mut ports = Ports::choose();
            match attempts {
                1 => ports.etcd = taken,
                2 => ports.api_server = taken,
                3 => ports.scheduler = taken,
                _ => {}
            }
            ports
        };
        let plane = ControlPlane::builder().with(Part::Scheduler).start_on(choose).await.unwrap();
        assert!(plane.pid(Part::Scheduler).is_some());
        drop(plane);
        // Another process may take a port for a moment.
        assert!(attempts >= 4, "{attempts} attempts");
    }
}
