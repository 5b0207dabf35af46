//! The section `atMostOne`: workloads that must never run twice, whichever recovery acts.

use serde::{Deserialize, Serialize};

use super::found::Found;
use super::problem::Path;
use super::section::Kind::{Object, TextList};
use super::section::Presence::{Default as Unless, Parent};
use super::section::{Field, field};
use crate::label_selector::is_dns_subdomain;

/// Workloads that must never run twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AtMostOne {
    /// Kinds of owners, as `Kind.group`, whose pods must never run twice.
    pub owners: Vec<String>,
}

/// Kinds that create their pods themselves and give each an identity. Two pods with the same identity break them.
const OWNERS: [&str; 6] = [
    "StatefulSet.apps",
    "StatefulSet.apps.kruise.io",
    "StrimziPodSet.core.strimzi.io",
    "Cluster.postgresql.cnpg.io",
    "InstanceSet.workloads.kubeblocks.io",
    "VirtualMachineInstance.kubevirt.io",
];

impl Default for AtMostOne {
    fn default() -> Self {
        Self { owners: OWNERS.map(str::to_owned).to_vec() }
    }
}

pub(super) const FIELDS: &[Field] = &[
    field(
        "atMostOne",
        Object,
        Parent,
        "Work of which two copies must never run. No recovery ends such a pod by force while its machine may run: that needs \
         proof that the machine is off, or the owner's consent. The verdict, condition or event then says MachineMayRun.",
    ),
    field(
        "atMostOne.owners",
        TextList,
        Unless(
            "[StatefulSet.apps, StatefulSet.apps.kruise.io, StrimziPodSet.core.strimzi.io, Cluster.postgresql.cnpg.io, \
             InstanceSet.workloads.kubeblocks.io, VirtualMachineInstance.kubevirt.io]",
        ),
        "Kinds of owners whose pods must never run twice at once, each as Kind.group (Kind alone for the core group). This \
         list replaces the default, so name StatefulSet.apps again. Pods of a LeaderWorkerSet do not count, although a \
         StatefulSet owns them. Pods with a ReadWriteOnce or ReadWriteOncePod claim, and pods of a Job with \
         podReplacementPolicy Failed, must not run twice whatever is listed here.",
    ),
];

/// `former` is the list in its former place, `eviction.atMostOneOwners`.
pub(super) fn check(at_most_one: &AtMostOne, former: Option<&[String]>, found: &mut Found) {
    owners("atMostOne.owners", &at_most_one.owners, found);
    if let Some(former) = former {
        owners("eviction.atMostOneOwners", former, found);
        if *at_most_one != AtMostOne::default() {
            let message =
                "it is the former name of atMostOne.owners, which is set too: keep only atMostOne.owners";
            found.note(Path::of("eviction.atMostOneOwners"), message);
        }
    }
}

fn owners(path: &str, owners: &[String], found: &mut Found) {
    for (index, owner) in owners.iter().enumerate() {
        let (kind, group) =
            owner.split_once('.').map_or((owner.as_str(), None), |(kind, group)| (kind, Some(group)));
        let is_kind = kind.starts_with(|first: char| first.is_ascii_uppercase())
            && kind.chars().all(|character| character.is_ascii_alphanumeric());
        if !is_kind || !group.is_none_or(is_dns_subdomain) {
            let message = format!(
                "{owner:?} is not a kind: write Kind.group without a version, for example StatefulSet.apps"
            );
            found.note(Path::of(path).index(index), message);
        }
    }
}
