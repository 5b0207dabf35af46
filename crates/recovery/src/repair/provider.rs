//! The conditions that providers of nodes repair, and how long each is tolerated by default.

use std::fmt;

use jiff::SignedDuration;
use salvor_api::config::RepairProvider;

use super::views::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    Aws,
    Azure,
    Gcp,
    Alibaba,
    Oci,
    Kwok,
    /// No provider with known conditions.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    pub kind: &'static str,
    /// The status that makes a node sick.
    pub status: Status,
    pub toleration: SignedDuration,
}

const fn repairs(kind: &'static str, status: Status, minutes: i64) -> Statement {
    Statement { kind, status, toleration: SignedDuration::from_secs(minutes * 60) }
}

const READY_10: [Statement; 2] = [repairs("Ready", Status::False, 10), repairs("Ready", Status::Unknown, 10)];
const READY_30: [Statement; 2] = [repairs("Ready", Status::False, 30), repairs("Ready", Status::Unknown, 30)];

const AWS: &[Statement] = &[
    READY_30[0],
    READY_30[1],
    repairs("AcceleratedHardwareReady", Status::False, 10),
    repairs("StorageReady", Status::False, 30),
    repairs("NetworkingReady", Status::False, 30),
    repairs("KernelReady", Status::False, 30),
    repairs("ContainerRuntimeReady", Status::False, 30),
];
const AZURE: &[Statement] = &[
    READY_10[0],
    READY_10[1],
    repairs("kubernetes.azure.com/NodeHealthy", Status::False, 0),
    repairs("PreemptionScheduled", Status::True, 0),
];
const GCP: &[Statement] = &[
    READY_10[0],
    READY_10[1],
    repairs("KernelDeadlock", Status::True, 5),
    repairs("ReadonlyFilesystem", Status::True, 5),
    repairs("FrequentKubeletRestart", Status::True, 30),
    repairs("FrequentContainerdRestart", Status::True, 30),
];

/// Conditions of Kubernetes itself, with the status that makes a node sick. No provider repairs the pressure conditions
/// by default, but a NodePool may name them.
const KUBERNETES: &[(&str, Status)] = &[
    ("Ready", Status::False),
    ("Ready", Status::Unknown),
    ("MemoryPressure", Status::True),
    ("DiskPressure", Status::True),
    ("PIDPressure", Status::True),
    ("NetworkUnavailable", Status::True),
];

/// All conditions whose sick status is known.
fn known() -> impl Iterator<Item = (&'static str, Status)> {
    let of_providers = [AWS, AZURE, GCP].into_iter().flatten().map(|it| (it.kind, it.status));
    KUBERNETES.iter().copied().chain(of_providers)
}

/// True if Kubernetes or any provider considers this type and status sick.
pub(super) fn is_sick(kind: &str, status: Status) -> bool {
    known().any(|it| it == (kind, status))
}

/// True if the sick status of this condition type is known.
pub(super) fn is_known(kind: &str) -> bool {
    known().any(|(known, _)| known == kind)
}

impl Provider {
    /// The provider as configured, or else derived from the node's providerID.
    pub fn of(setting: RepairProvider, provider_id: &str) -> Self {
        match setting {
            RepairProvider::Auto => Self::by_id(provider_id),
            RepairProvider::Aws => Self::Aws,
            RepairProvider::Azure => Self::Azure,
            RepairProvider::Gcp => Self::Gcp,
            RepairProvider::Alibaba => Self::Alibaba,
            RepairProvider::Oci => Self::Oci,
            RepairProvider::Kwok => Self::Kwok,
            RepairProvider::None => Self::Unknown,
        }
    }

    fn by_id(id: &str) -> Self {
        match id.split_once("://").map_or("", |(scheme, _)| scheme) {
            "aws" => Self::Aws,
            "azure" => Self::Azure,
            "gce" => Self::Gcp,
            "alicloud" => Self::Alibaba,
            "oci" => Self::Oci,
            "kwok" => Self::Kwok,
            // Alibaba Cloud writes region.instance, Oracle the OCID of the instance.
            "" if id.starts_with("ocid1.") => Self::Oci,
            "" if id.split_once('.').is_some_and(|(_, instance)| instance.starts_with("i-")) => Self::Alibaba,
            _ => Self::Unknown,
        }
    }

    pub fn statements(self) -> &'static [Statement] {
        match self {
            Self::Aws => AWS,
            Self::Azure => AZURE,
            Self::Gcp => GCP,
            Self::Alibaba => &READY_30,
            Self::Kwok => &READY_10,
            Self::Oci | Self::Unknown => &[],
        }
    }

    /// The default toleration of a condition; none if the provider does not name it.
    pub fn toleration(self, kind: &str, status: Status) -> Option<SignedDuration> {
        let named = self.statements().iter().find(|it| it.kind == kind && it.status == status);
        named.map(|statement| statement.toleration)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aws => "AWS",
            Self::Azure => "Azure",
            Self::Gcp => "GCP",
            Self::Alibaba => "Alibaba",
            Self::Oci => "OCI",
            Self::Kwok => "Kwok",
            Self::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_told_by_its_ids_unless_it_is_set() {
        let cases = [
            ("aws:///us-west-2a/i-0123", Provider::Aws),
            ("azure:///subscriptions/x", Provider::Azure),
            ("gce://project/zone/name", Provider::Gcp),
            ("cn-hangzhou.i-bp1", Provider::Alibaba),
            ("cn-hangzhou.e-bp1", Provider::Unknown),
            ("alicloud://x", Provider::Alibaba),
            ("ocid1.instance.oc1.phx.x", Provider::Oci),
            ("oci://x", Provider::Oci),
            ("kwok://node-1", Provider::Kwok),
            ("docker://x", Provider::Unknown),
            ("", Provider::Unknown),
        ];
        for (id, provider) in cases {
            assert_eq!(Provider::of(RepairProvider::Auto, id), provider, "{id}");
            assert_eq!(Provider::of(RepairProvider::Gcp, id), Provider::Gcp);
            assert_eq!(Provider::of(RepairProvider::None, id), Provider::Unknown);
        }
    }

    #[test]
    fn providers_name_conditions_by_type_and_status() {
        let minutes =
            |provider: Provider, kind: &str, status| provider.toleration(kind, status).map(|it| it.as_mins());
        assert_eq!(minutes(Provider::Aws, "Ready", Status::False), Some(30));
        assert_eq!(minutes(Provider::Aws, "AcceleratedHardwareReady", Status::False), Some(10));
        assert_eq!(minutes(Provider::Aws, "AcceleratedHardwareReady", Status::True), None);
        assert_eq!(minutes(Provider::Aws, "DiskPressure", Status::True), None);
        assert_eq!(minutes(Provider::Azure, "PreemptionScheduled", Status::True), Some(0));
        assert_eq!(minutes(Provider::Gcp, "KernelDeadlock", Status::True), Some(5));
        assert_eq!(minutes(Provider::Kwok, "Ready", Status::Unknown), Some(10));
        assert_eq!(minutes(Provider::Unknown, "Ready", Status::False), None);
    }
}
