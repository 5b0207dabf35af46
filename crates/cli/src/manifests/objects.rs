//! The objects of an installation, in creation order.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, HTTPGetAction,
    Namespace, PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    ResourceRequirements, SeccompProfile, Secret, SecretVolumeSource, SecurityContext, Service,
    ServiceAccount, ServicePort, ServiceSpec, Volume, VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use salvor_operator::webhooks::{SERVICE, SERVICE_PORT, Target, WebhookKind, configuration};
use salvor_operator::{Scope, recoveries};
use serde::Serialize;
use serde_json::Value;

use super::installation::Installation;
use super::memory;
use super::rbac::Rights;
use crate::config;
use crate::error::CliError;
use crate::output;

/// The name of every object, and the value of the app label.
const NAME: &str = "salvor";
const CONFIG_FOLDER: &str = "/etc/salvor";
const CONFIG_FILE: &str = "config.yaml";
/// Probes refer to the port by this name.
const PORT: &str = "http";
const WEBHOOK_PORT: &str = "webhooks";
/// The Secret with the administrator's certificates, in the format of cert-manager, if `webhooks.certDir` is set.
const WEBHOOK_CERTIFICATES: &str = "salvor-webhooks-tls";
/// A user and group without any files, as in distroless images.
const NOBODY: i64 = 65532;
const REPLICAS: i32 = 2;

pub(super) fn all(installation: &Installation) -> Result<Vec<Value>, CliError> {
    let config = config_file(installation)?;
    let mut objects = definitions(installation)?;
    objects.extend([json(&namespace(installation))?, json(&service_account(installation))?]);
    for (scope, rules) in Rights::of(&installation.configuration, &installation.webhooks).rules() {
        match scope {
            Scope::Cluster => {
                objects.push(json(&cluster_role(rules))?);
                objects.push(json(&cluster_role_binding(installation))?);
            }
            Scope::Namespace(namespace) => {
                objects.push(json(&role(&namespace, rules))?);
                objects.push(json(&role_binding(&namespace, installation))?);
            }
        }
    }
    if !installation.webhooks.is_empty() {
        objects.push(json(&webhook_secret(installation))?);
        objects.push(json(&webhook_service(installation))?);
    }
    objects.extend([
        json(&config_map(installation, &config))?,
        json(&network_policy(installation))?,
        json(&deployment(installation, &config))?,
        json(&disruption_budget(installation))?,
    ]);
    // Last, because the API server calls the webhooks from here on.
    let target = Target::Service { namespace: installation.namespace.clone() };
    let configurations = WebhookKind::ALL.map(|kind| configuration(kind, &installation.webhooks, &target));
    objects.extend(configurations.into_iter().flatten());
    Ok(objects)
}

/// The CRDs of the enabled recoveries. They come first, because later objects may be of these kinds.
fn definitions(installation: &Installation) -> Result<Vec<Value>, CliError> {
    let enabled = recoveries().filter(|entry| entry.off(&installation.configuration).is_none());
    let texts = enabled.flat_map(|entry| entry.definitions);
    let read = texts.map(|text| serde_saphyr::from_str(text));
    read.collect::<Result<_, _>>().map_err(|error| CliError::Output(std::io::Error::other(error)))
}

fn json(object: &impl Serialize) -> Result<Value, CliError> {
    serde_json::to_value(object).map_err(|error| CliError::Output(error.into()))
}

/// The settings that differ from the defaults, in the file format of `salvor run`. The file always names its
/// recoveries, even the default ones, so that it can be installed again unchanged.
fn config_file(installation: &Installation) -> Result<String, CliError> {
    let configuration = &installation.configuration;
    let mut file = config::changes(configuration);
    file.insert("controllers".into(), json(&configuration.controllers)?);
    file.insert("apiVersion".into(), configuration.api_version.clone().into());
    file.insert("kind".into(), configuration.kind.clone().into());
    output::yaml(&Value::Object(file))
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app.kubernetes.io/name".into(), NAME.into())])
}

fn metadata(namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(NAME.into()),
        namespace: namespace.map(Into::into),
        labels: Some(labels()),
        ..ObjectMeta::default()
    }
}

fn namespace(installation: &Installation) -> Namespace {
    let mut labels = labels();
    labels.insert("pod-security.kubernetes.io/enforce".into(), "restricted".into());
    Namespace {
        metadata: ObjectMeta {
            name: Some(installation.namespace.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

fn service_account(installation: &Installation) -> ServiceAccount {
    ServiceAccount { metadata: metadata(Some(&installation.namespace)), ..ServiceAccount::default() }
}

fn cluster_role(rules: Vec<PolicyRule>) -> ClusterRole {
    ClusterRole { metadata: metadata(None), rules: Some(rules), ..ClusterRole::default() }
}

fn cluster_role_binding(installation: &Installation) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: metadata(None),
        role_ref: role_ref("ClusterRole"),
        subjects: Some(vec![subject(installation)]),
    }
}

fn role(namespace: &str, rules: Vec<PolicyRule>) -> Role {
    Role { metadata: metadata(Some(namespace)), rules: Some(rules) }
}

fn role_binding(namespace: &str, installation: &Installation) -> RoleBinding {
    RoleBinding {
        metadata: metadata(Some(namespace)),
        role_ref: role_ref("Role"),
        subjects: Some(vec![subject(installation)]),
    }
}

fn role_ref(kind: &str) -> RoleRef {
    RoleRef { api_group: "rbac.authorization.k8s.io".into(), kind: kind.into(), name: NAME.into() }
}

fn subject(installation: &Installation) -> Subject {
    Subject {
        kind: "ServiceAccount".into(),
        name: NAME.into(),
        namespace: Some(installation.namespace.clone()),
        ..Subject::default()
    }
}

/// The Secret in which replicas share the webhooks' certificate authority, the token of their path and the signing
/// keys. It is created empty, so that the replicas need no right to create it. Applying it again keeps its content.
fn webhook_secret(installation: &Installation) -> Secret {
    Secret {
        metadata: ObjectMeta { name: Some(SERVICE.into()), ..metadata(Some(&installation.namespace)) },
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

fn webhook_service(installation: &Installation) -> Service {
    Service {
        metadata: ObjectMeta { name: Some(SERVICE.into()), ..metadata(Some(&installation.namespace)) },
        spec: Some(ServiceSpec {
            selector: Some(labels()),
            ports: Some(vec![ServicePort {
                name: Some(WEBHOOK_PORT.into()),
                port: SERVICE_PORT.into(),
                target_port: Some(IntOrString::String(WEBHOOK_PORT.into())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn config_map(installation: &Installation, config: &str) -> ConfigMap {
    ConfigMap {
        metadata: metadata(Some(&installation.namespace)),
        data: Some(BTreeMap::from([(CONFIG_FILE.into(), config.into())])),
        ..ConfigMap::default()
    }
}

fn selector() -> LabelSelector {
    LabelSelector { match_labels: Some(labels()), ..LabelSelector::default() }
}

fn deployment(installation: &Installation, config: &str) -> Deployment {
    // The file is only read at startup, so a changed file must replace the pods.
    let digest = ("salvor.dev/config-digest".into(), digest(config));
    Deployment {
        metadata: metadata(Some(&installation.namespace)),
        spec: Some(DeploymentSpec {
            replicas: Some(REPLICAS),
            selector: selector(),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels()),
                    annotations: Some(BTreeMap::from([digest])),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(installation)),
            },
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn pod(installation: &Installation) -> PodSpec {
    PodSpec {
        service_account_name: Some(NAME.into()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(NOBODY),
            run_as_group: Some(NOBODY),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        affinity: Some(apart_from_each_other()),
        containers: vec![container(installation)],
        volumes: Some(volumes(installation)),
        ..PodSpec::default()
    }
}

/// The folder with the administrator's certificates, if webhooks use them.
fn certificates(installation: &Installation) -> Option<&String> {
    installation.configuration.webhooks.cert_dir.as_ref().filter(|_| !installation.webhooks.is_empty())
}

fn volumes(installation: &Installation) -> Vec<Volume> {
    let config = Volume {
        name: "config".into(),
        config_map: Some(ConfigMapVolumeSource { name: NAME.into(), ..ConfigMapVolumeSource::default() }),
        ..Volume::default()
    };
    let certificates = certificates(installation).map(|_| Volume {
        name: "webhook-certificates".into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(WEBHOOK_CERTIFICATES.into()),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    });
    [config].into_iter().chain(certificates).collect()
}

fn volume_mounts(installation: &Installation) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let certificates = certificates(installation).map(|folder| mount("webhook-certificates", folder));
    [mount("config", CONFIG_FOLDER)].into_iter().chain(certificates).collect()
}

fn ports(installation: &Installation) -> Vec<ContainerPort> {
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.into()),
        container_port: port.into(),
        ..ContainerPort::default()
    };
    let webhooks = webhook_port(installation).map(|number| port(WEBHOOK_PORT, number));
    [port(PORT, installation.configuration.bind.port())].into_iter().chain(webhooks).collect()
}

fn webhook_port(installation: &Installation) -> Option<u16> {
    (!installation.webhooks.is_empty()).then(|| installation.configuration.webhooks.bind.port())
}

/// A lost node should not take both replicas. On a single-node cluster both still run.
fn apart_from_each_other() -> Affinity {
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: PodAffinityTerm {
                    label_selector: Some(selector()),
                    topology_key: "kubernetes.io/hostname".into(),
                    ..PodAffinityTerm::default()
                },
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn container(installation: &Installation) -> Container {
    Container {
        name: NAME.into(),
        image: Some(installation.image.clone()),
        args: Some(vec!["run".into(), format!("--config={CONFIG_FOLDER}/{CONFIG_FILE}")]),
        ports: Some(ports(installation)),
        liveness_probe: Some(probe("/healthz")),
        readiness_probe: Some(probe("/readyz")),
        resources: Some(resources(installation)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(volume_mounts(installation)),
        ..Container::default()
    }
}

fn probe(path: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::String(PORT.into()),
            ..HTTPGetAction::default()
        }),
        ..Probe::default()
    }
}

/// No CPU limit: Salvor is idle until nodes fail, and then nothing should throttle it.
fn resources(installation: &Installation) -> ResourceRequirements {
    let quantity = |name: &str, amount: String| (name.to_owned(), Quantity(amount));
    let limit = memory::limit(&installation.configuration);
    let memory = |mebibytes: u32| quantity("memory", format!("{mebibytes}Mi"));
    ResourceRequirements {
        requests: Some(BTreeMap::from([quantity("cpu", "10m".into()), memory(limit / 2)])),
        limits: Some(BTreeMap::from([memory(limit)])),
        ..ResourceRequirements::default()
    }
}

/// Only the served ports are reachable. The allowed sources are unknown: Prometheus may run in any namespace, and
/// networks differ in the source address of probes. Egress is open, because the API server may be anywhere.
fn network_policy(installation: &Installation) -> NetworkPolicy {
    let page = &installation.configuration.page;
    let page = (page.enabled && !page.bind.ip().is_loopback()).then(|| page.bind.port());
    let ports = [Some(installation.configuration.bind.port()), page, webhook_port(installation)];
    let port = |port: u16| NetworkPolicyPort {
        port: Some(IntOrString::Int(port.into())),
        protocol: Some("TCP".into()),
        ..NetworkPolicyPort::default()
    };
    NetworkPolicy {
        metadata: metadata(Some(&installation.namespace)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector()),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                ports: Some(ports.into_iter().flatten().map(port).collect()),
                ..NetworkPolicyIngressRule::default()
            }]),
            ..NetworkPolicySpec::default()
        }),
    }
}

fn disruption_budget(installation: &Installation) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: metadata(Some(&installation.namespace)),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(1)),
            selector: Some(selector()),
            // Replicas that do not work must not block a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }
}

/// FNV-1a: gives the same result in every release. It only has to change when the text does.
fn digest(text: &str) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash = text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{hash:016x}")
}
