//! Webhooks of a peer that runs as a process on this machine, with the configurations that it ships.
//!
//! Their `clientConfig` names a Service. A Service of type ExternalName leads the API server to loopback, and the
//! certificate is still checked for the Service's name, which is the one in the peers' certificates.

use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Api, DeleteParams, ListParams, PartialObjectMeta};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::crds::create;
use crate::access::Access;

pub(crate) struct Webhooks<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) service: &'a str,
    pub(crate) port: u16,
    /// The prefix that its installation adds to the names of the configurations.
    pub(crate) prefix: &'a str,
}

impl Webhooks<'_> {
    /// Creates the Service and the configurations of a file. The peer fills in their certificate authority.
    pub(crate) async fn install(&self, access: &Access, file: &Path) -> Result<(), String> {
        let problem = |error: String| format!("{}: {error}", file.display());
        let client = access.client("salvor-testkit-webhooks");
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": self.service},
            "spec": {"type": "ExternalName", "externalName": "127.0.0.1"},
        });
        create(&client, &format!("/api/v1/namespaces/{}/services", self.namespace), &service).await?;
        let text = std::fs::read_to_string(file).map_err(|error| problem(error.to_string()))?;
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).map_err(|error| problem(error.to_string()))?;
        for mut configuration in documents {
            let plural = match configuration["kind"].as_str() {
                Some("MutatingWebhookConfiguration") => "mutatingwebhookconfigurations",
                Some("ValidatingWebhookConfiguration") => "validatingwebhookconfigurations",
                other => return Err(problem(format!("{other:?} is no webhook configuration"))),
            };
            let name = configuration["metadata"]["name"].as_str().unwrap_or_default();
            configuration["metadata"]["name"] = format!("{}{name}", self.prefix).into();
            for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
                webhook["clientConfig"]["service"] =
                    self.reference(&webhook["clientConfig"]["service"]["path"]);
            }
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
            create(&client, &path, &configuration).await?;
        }
        Ok(())
    }

    pub(crate) fn reference(&self, path: &Value) -> Value {
        json!({"namespace": self.namespace, "name": self.service, "port": self.port, "path": path})
    }
}

/// Deletes the configurations whose names have this prefix.
pub(crate) async fn remove(access: &Access, prefix: &str) -> Result<(), String> {
    let client: Client = access.client("salvor-testkit-webhooks");
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let (all, now) = (ListParams::default(), DeleteParams::default());
    let text = |error: kube::Error| error.to_string();
    for name in names(&mutating.list_metadata(&all).await.map_err(text)?.items, prefix) {
        mutating.delete(&name, &now).await.map_err(text)?;
    }
    for name in names(&validating.list_metadata(&all).await.map_err(text)?.items, prefix) {
        validating.delete(&name, &now).await.map_err(text)?;
    }
    Ok(())
}

fn names<K>(items: &[PartialObjectMeta<K>], prefix: &str) -> Vec<String>
where
    PartialObjectMeta<K>: ResourceExt,
{
    items.iter().map(ResourceExt::name_any).filter(|name| name.starts_with(prefix)).collect()
}
