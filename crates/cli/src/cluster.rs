//! Chooses the cluster and the user, as kubectl does.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use jiff::SignedDuration;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use salvor_api::GoDuration;
use salvor_operator::story;

use crate::error::CliError;

/// The flags that choose a cluster and a user, as in kubectl.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig file [env: KUBECONFIG] [default: ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Act as this user, if you may impersonate them
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    /// Act as a member of this group, together with --as; may be repeated
    #[arg(long = "as-group", value_name = "GROUP", requires = "user")]
    groups: Vec<String>,
    /// Give up after this time without a connection or an answer [default: 30s]
    ///
    /// explain, evict, pause and resume limit only the time to connect.
    #[arg(long, value_name = "DURATION")]
    request_timeout: Option<GoDuration>,
}

impl ClusterArgs {
    /// Loads the configuration. Sends no request yet.
    pub(crate) async fn load(&self) -> Result<Cluster, ClusterError> {
        let source = Source::find(self.kubeconfig.as_deref());
        let timeout = match self.request_timeout {
            None => None,
            Some(given) => match Duration::try_from(SignedDuration::from(given)) {
                Ok(timeout) if !timeout.is_zero() => Some(timeout),
                _ => return Err(ClusterError::Timeout(given)),
            },
        };
        let mut cluster = Cluster::load_as(&source, self.context.as_deref(), self.user.as_deref()).await?;
        if !self.groups.is_empty() {
            cluster.config.auth_info.impersonate_groups = Some(self.groups.clone());
        }
        if timeout.is_some() {
            (cluster.config.connect_timeout, cluster.config.read_timeout) = (timeout, timeout);
        }
        Ok(cluster)
    }
}

/// Where the client configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// These files, merged as kubectl does.
    Kubeconfig(Vec<PathBuf>),
    /// The service account of this pod.
    InCluster,
}

impl Source {
    /// The flag, else `KUBECONFIG`, else the file in the home directory if it exists, else the pod's service account.
    pub(crate) fn find(flag: Option<&Path>) -> Self {
        let default = env::home_dir().map(|home| home.join(".kube").join("config"));
        Self::choose(flag, env::var_os("KUBECONFIG").as_deref(), default.filter(|path| path.exists()))
    }

    fn choose(flag: Option<&Path>, variable: Option<&OsStr>, default: Option<PathBuf>) -> Self {
        if let Some(path) = flag {
            return Self::Kubeconfig(vec![path.into()]);
        }
        let listed: Vec<_> = variable
            .into_iter()
            .flat_map(env::split_paths)
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        if !listed.is_empty() {
            return Self::Kubeconfig(listed);
        }
        default.map_or(Self::InCluster, |path| Self::Kubeconfig(vec![path]))
    }
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) config: kube::Config,
    pub(crate) origin: Origin,
}

/// The origin of a configuration, as shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Kubeconfig { files: String, context: Option<String> },
    InCluster,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig { files, context } => {
                write!(f, "kubeconfig {files}, ")?;
                match context {
                    Some(context) => write!(f, "context {context:?}"),
                    None => f.write_str("no current context"),
                }
            }
            Self::InCluster => f.write_str("service account of this pod"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("--request-timeout {0} must be longer than 0s, such as 10s")]
    Timeout(GoDuration),
    #[error("cannot read kubeconfig {}: {problem}", path.display())]
    Read { path: PathBuf, problem: String },
    #[error("cannot use {origin}: {problem}")]
    Kubeconfig { origin: Origin, problem: String },
    #[error(
        "no cluster to talk to: neither --kubeconfig nor KUBECONFIG is set, there is no .kube/config in the home \
         directory, and this is not a pod: {0}"
    )]
    NotInCluster(kube::config::InClusterError),
    #[error("cannot make a client from {origin}: {source}")]
    Client { origin: Origin, source: Box<kube::Error> },
    #[error("cannot reach the API server {server} ({origin}): {problem}")]
    Unreachable { server: String, origin: Origin, problem: String },
    #[error("the API server {server} does not accept what {origin} says: {problem}")]
    Refused { server: String, origin: Origin, problem: String },
}

impl From<ClusterError> for CliError {
    fn from(error: ClusterError) -> Self {
        match error {
            ClusterError::Timeout(_) => Self::Usage(error.into()),
            other => Self::Command(other.into()),
        }
    }
}

impl Cluster {
    /// Loads the configuration. Sends no request yet.
    pub(crate) async fn load(source: &Source) -> Result<Self, ClusterError> {
        Self::load_as(source, None, None).await
    }

    /// The same with another context, and impersonating another user.
    pub(crate) async fn load_as(
        source: &Source,
        context: Option<&str>,
        user: Option<&str>,
    ) -> Result<Self, ClusterError> {
        let (mut config, origin) = match source {
            Source::Kubeconfig(paths) => from_files(paths, context).await?,
            Source::InCluster => {
                (kube::Config::incluster().map_err(ClusterError::NotInCluster)?, Origin::InCluster)
            }
        };
        if let Some(user) = user {
            config.auth_info.impersonate = Some(user.to_owned());
        }
        // A refused write must fail at once: the executor counts and spaces the retries.
        config.default_retry = false;
        // A quiet watch is not a dead one. Its own staleness limit distinguishes them.
        config.read_timeout = None;
        config
            .headers
            .push((USER_AGENT, HeaderValue::from_static(concat!("salvor/", env!("CARGO_PKG_VERSION")))));
        Ok(Self { config, origin })
    }

    pub(crate) fn client(&self) -> Result<kube::Client, ClusterError> {
        kube::Client::try_from(self.config.clone())
            .map_err(|source| ClusterError::Client { origin: self.origin.clone(), source: Box::new(source) })
    }

    /// The error for a server that refuses the request.
    pub(crate) fn refused(&self, status: &kube::core::Status) -> ClusterError {
        ClusterError::Refused {
            server: self.config.cluster_url.to_string(),
            origin: self.origin.clone(),
            problem: format!("{} ({})", status.message, status.code),
        }
    }

    pub(crate) fn unreachable(&self, problem: String) -> ClusterError {
        ClusterError::Unreachable {
            server: self.config.cluster_url.to_string(),
            origin: self.origin.clone(),
            problem,
        }
    }
}

async fn from_files(
    paths: &[PathBuf],
    context: Option<&str>,
) -> Result<(kube::Config, Origin), ClusterError> {
    let named: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let files = named.join(", ");
    let kubeconfig = read(paths).map_err(|(path, error)| ClusterError::Read {
        path: path.into(),
        problem: match error {
            KubeconfigError::ReadConfig(error, _) => error.to_string(),
            other => without_excerpt(&other),
        },
    })?;
    let context = context.map(str::to_owned);
    let origin =
        Origin::Kubeconfig { files, context: context.clone().or(kubeconfig.current_context.clone()) };
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    match kube::Config::from_custom_kubeconfig(kubeconfig, &options).await {
        Ok(config) => Ok((config, origin)),
        Err(error) => Err(ClusterError::Kubeconfig { origin, problem: without_excerpt(&error) }),
    }
}

/// Like kubectl, skips files of a list that do not exist, unless none exists.
fn read(paths: &[PathBuf]) -> Result<Kubeconfig, (&Path, KubeconfigError)> {
    let any = paths.iter().any(|path| path.exists());
    let present = paths.iter().filter(|path| !any || path.exists());
    present.map(PathBuf::as_path).try_fold(Kubeconfig::default(), |merged, path| {
        Kubeconfig::read_from(path).and_then(|next| merged.merge(next)).map_err(|error| (path, error))
    })
}

/// Only the first line: the following lines of a YAML error quote the file, which contains credentials.
fn without_excerpt(error: &KubeconfigError) -> String {
    story(error).lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_beats_the_variable_beats_the_default_beats_the_pod() {
        let files = |names: &[&str]| Source::Kubeconfig(names.iter().map(PathBuf::from).collect());
        let cases = [
            (Some("flag"), Some("variable"), Some("home"), files(&["flag"])),
            (None, Some("variable"), Some("home"), files(&["variable"])),
            (None, Some("a::b"), None, files(&["a", "b"])),
            (None, Some(""), Some("home"), files(&["home"])),
            (None, None, Some("home"), files(&["home"])),
            (None, None, None, Source::InCluster),
        ];
        for (flag, variable, default, expected) in cases {
            let chosen =
                Source::choose(flag.map(Path::new), variable.map(OsStr::new), default.map(PathBuf::from));
            assert_eq!(chosen, expected);
        }
    }

    fn kubeconfig(server: &str) -> String {
        format!(
            "current-context: here\n\
             contexts: [{{name: here, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
             users: [{{name: u, user: {{token: very-secret}}}}]\n"
        )
    }

    async fn load(text: &str) -> (PathBuf, Result<Cluster, ClusterError>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, text).unwrap();
        (path.clone(), Cluster::load(&Source::Kubeconfig(vec![path])).await)
    }

    #[tokio::test]
    async fn a_client_neither_retries_by_itself_nor_ends_quiet_watches() {
        let (path, cluster) = load(&kubeconfig("http://127.0.0.1:1")).await;
        let Cluster { config, origin } = cluster.unwrap();
        assert!(!config.default_retry);
        assert_eq!(config.read_timeout, None);
        let agent = format!("salvor/{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(config.headers, [(USER_AGENT, agent.parse().unwrap())]);
        assert_eq!(origin.to_string(), format!("kubeconfig {}, context \"here\"", path.display()));
    }

    #[tokio::test]
    async fn flags_choose_groups_and_a_timeout() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, kubeconfig("http://127.0.0.1:1")).unwrap();
        let args = |timeout: &str| ClusterArgs {
            kubeconfig: Some(path.clone()),
            user: Some("jane".into()),
            groups: vec!["a".into(), "b".into()],
            request_timeout: Some(timeout.parse().unwrap()),
            ..ClusterArgs::default()
        };
        let config = args("7s").load().await.unwrap().config;
        assert_eq!(config.auth_info.impersonate.as_deref(), Some("jane"));
        assert_eq!(config.auth_info.impersonate_groups, Some(vec!["a".into(), "b".into()]));
        assert_eq!(config.read_timeout, Some(Duration::from_secs(7)));
        assert_eq!(config.connect_timeout, Some(Duration::from_secs(7)));
        for bad in ["0s", "-1s"] {
            let error = args(bad).load().await.unwrap_err().to_string();
            assert!(error.starts_with(&format!("--request-timeout {bad} must be longer")), "{error}");
        }
    }

    #[tokio::test]
    async fn errors_name_the_file_and_keep_its_secrets() {
        let cases = [
            ("current-context: nowhere\n".to_owned(), "failed to load"),
            (kubeconfig("http://[").replace("here", "\"there\""), "failed to parse cluster url"),
            (
                "users: [{name: u, user: {token: [very-secret]}}]\n".to_owned(),
                "failed to parse kubeconfig YAML",
            ),
        ];
        for (text, problem) in cases {
            let (path, cluster) = load(&text).await;
            let error = cluster.unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(!error.contains("very-secret"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[tokio::test]
    async fn a_missing_file_is_an_error_but_not_beside_one_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let (missing, present) = (directory.path().join("no"), directory.path().join("yes"));
        std::fs::write(&present, kubeconfig("http://127.0.0.1:1")).unwrap();
        let both = Source::Kubeconfig(vec![missing.clone(), present]);
        assert!(Cluster::load(&both).await.is_ok());
        let error = Cluster::load(&Source::Kubeconfig(vec![missing.clone()])).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&missing.display().to_string()), "{error}");
    }
}
