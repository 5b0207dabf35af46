//! Access to the API: as an admin, or as a ServiceAccount with exactly the rights that its rules grant.

use std::path::Path;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Config};
use serde_json::json;

/// The address of an API server, the certificate authority to verify it by, and a bearer token.
#[derive(Clone)]
pub struct Access {
    pub(crate) server: http::Uri,
    pub(crate) ca_pem: String,
    pub(crate) ca_der: Vec<u8>,
    pub(crate) token: String,
    pub(crate) namespace: String,
}

impl Access {
    /// A client with this user agent that never retries by itself, so that a test sees every answer. Its connections
    /// live on the async runtime of the caller.
    ///
    /// # Panics
    /// If the user agent is not valid in an HTTP header.
    pub fn client(&self, user_agent: &str) -> Client {
        Client::try_from(self.config(user_agent))
            .expect("a generated CA and token make a valid client configuration")
    }

    /// Like `client`, as a configuration for callers that change it before they create a client.
    ///
    /// # Panics
    /// If the user agent is not valid in an HTTP header.
    pub fn config(&self, user_agent: &str) -> Config {
        let agent = HeaderValue::from_str(user_agent)
            .unwrap_or_else(|error| panic!("the user agent {user_agent:?} is not a header value: {error}"));
        let mut config = Config::new(self.server.clone());
        config.default_namespace.clone_from(&self.namespace);
        config.root_cert = Some(vec![self.ca_der.clone()]);
        config.auth_info.token = Some(self.token.clone().into());
        config.headers = vec![(USER_AGENT, agent)];
        config.default_retry = false;
        config
    }

    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    /// The URL of the API server.
    pub fn server(&self) -> String {
        self.server.to_string()
    }

    /// A self-contained kubeconfig for other processes. (JSON is YAML.)
    pub fn kubeconfig(&self) -> String {
        let name = "salvor-testkit";
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": name, "cluster": {
                "server": self.server(),
                "certificate-authority-data": ByteString(self.ca_pem.clone().into_bytes()),
            }}],
            "users": [{ "name": name, "user": { "token": self.token } }],
            "contexts": [{ "name": name, "context": { "cluster": name, "user": name, "namespace": self.namespace } }],
            "current-context": name,
        })
        .to_string()
    }

    /// Writes [`kubeconfig`](Self::kubeconfig) to a file.
    pub fn write_kubeconfig(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.kubeconfig())
    }

    /// Creates a ServiceAccount with these rules in the whole cluster, and waits until the API server knows of it. Its
    /// token is valid for an hour.
    ///
    /// # Errors
    /// If `self` may not create these objects, or if one of that name exists.
    ///
    /// # Panics
    /// If the API server does not honour the new rules in time.
    pub async fn service_account(
        &self,
        namespace: &str,
        name: &str,
        mut rules: Vec<PolicyRule>,
    ) -> Result<Self, kube::Error> {
        let client = self.client("salvor-testkit-access");
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        // Cluster-scoped objects with the same name for all namespaces would collide.
        let cluster_metadata =
            ObjectMeta { name: Some(format!("{namespace}:{name}")), ..ObjectMeta::default() };
        // A path that does not exist and that only this role allows: once it is allowed, so is everything else in the
        // role.
        let probe = format!("/salvor-testkit/{namespace}/{name}");
        rules.push(PolicyRule {
            non_resource_urls: Some(vec![probe.clone()]),
            verbs: vec!["get".to_owned()],
            ..PolicyRule::default()
        });

        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        accounts.create(&PostParams::default(), &account).await?;
        let role =
            ClusterRole { metadata: cluster_metadata.clone(), rules: Some(rules), ..ClusterRole::default() };
        Api::all(client.clone()).create(&PostParams::default(), &role).await?;
        let binding = ClusterRoleBinding {
            metadata: cluster_metadata.clone(),
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".to_owned(),
                kind: "ClusterRole".to_owned(),
                name: cluster_metadata.name.unwrap_or_default(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: name.to_owned(),
                namespace: Some(namespace.to_owned()),
                ..Subject::default()
            }]),
        };
        Api::all(client).create(&PostParams::default(), &binding).await?;

        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let issued = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        let access = Self {
            token: issued.status.map(|status| status.token).unwrap_or_default(),
            ..self.in_namespace(namespace)
        };
        access.wait_until_allowed(&probe).await;
        Ok(access)
    }

    /// RBAC reads its rules from caches that follow by watch, and their progress cannot be watched: so this polls until
    /// access is granted.
    async fn wait_until_allowed(&self, path: &str) {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client("salvor-testkit-access"));
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some("get".to_owned()),
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let mut last = String::new();
        let asked = crate::watch::wait::patience().until(async {
            loop {
                match reviews.create(&PostParams::default(), &review).await {
                    Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {
                        break;
                    }
                    Ok(answer) => last = format!("{:?}", answer.status),
                    Err(error) => last = error.to_string(),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        if asked.await.is_none() {
            panic!("the API server does not honour the rules bound for {path}; its last answer: {last}");
        }
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("server", &self.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
