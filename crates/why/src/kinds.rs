//! Kinds of objects, and the names that people use for them.

use std::borrow::Cow;

/// A kind of object, independent of the version it is served in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// Empty for the core group.
    pub group: Cow<'static, str>,
    pub kind: Cow<'static, str>,
}

impl Kind {
    /// The kind as kubectl accepts it. Kinds that are not built in carry their group, because another group may use the
    /// same name.
    pub(crate) fn word(&self) -> String {
        let kind = self.kind.to_lowercase();
        match built_in(self) {
            Some(_) => kind,
            None if self.group.is_empty() => kind,
            None => format!("{kind}.{}", self.group),
        }
    }
}

const fn known(group: &'static str, kind: &'static str) -> Kind {
    Kind { group: Cow::Borrowed(group), kind: Cow::Borrowed(kind) }
}

pub(crate) static POD: Kind = known("", "Pod");
pub(crate) static NODE: Kind = known("", "Node");
pub(crate) static NAMESPACE: Kind = known("", "Namespace");
pub(crate) static CLAIM: Kind = known("", "PersistentVolumeClaim");
pub(crate) static VOLUME: Kind = known("", "PersistentVolume");
pub(crate) static CONFIG_MAP: Kind = known("", "ConfigMap");
pub(crate) static SECRET: Kind = known("", "Secret");
pub(crate) static QUOTA: Kind = known("", "ResourceQuota");
pub(crate) static EVENT: Kind = known("", "Event");
pub(crate) static REPLICATION_CONTROLLER: Kind = known("", "ReplicationController");
pub(crate) static JOB: Kind = known("batch", "Job");
pub(crate) static CRON_JOB: Kind = known("batch", "CronJob");
pub(crate) static DEPLOYMENT: Kind = known("apps", "Deployment");
pub(crate) static REPLICA_SET: Kind = known("apps", "ReplicaSet");
pub(crate) static STATEFUL_SET: Kind = known("apps", "StatefulSet");
pub(crate) static DAEMON_SET: Kind = known("apps", "DaemonSet");
pub(crate) static LEASE: Kind = known("coordination.k8s.io", "Lease");
pub(crate) static BUDGET: Kind = known("policy", "PodDisruptionBudget");
pub(crate) static ATTACHMENT: Kind = known("storage.k8s.io", "VolumeAttachment");
pub(crate) static STORAGE_CLASS: Kind = known("storage.k8s.io", "StorageClass");
pub(crate) static VALIDATING: Kind = known("admissionregistration.k8s.io", "ValidatingWebhookConfiguration");
pub(crate) static MUTATING: Kind = known("admissionregistration.k8s.io", "MutatingWebhookConfiguration");
pub(crate) static WORKLOAD: Kind = known("kueue.x-k8s.io", "Workload");
pub(crate) static JOB_SET: Kind = known("jobset.x-k8s.io", "JobSet");
pub(crate) static APP_WRAPPER: Kind = known("workload.codeflare.dev", "AppWrapper");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: Kind,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespaced: bool,
}

/// A kind that the cluster serves, and the words by which people call it, in lower case.
#[derive(Clone)]
pub(crate) struct ServedKind {
    pub(crate) resource: Resource,
    pub(crate) names: Vec<String>,
}

impl Resource {
    /// The path of one object, or of the collection without a name.
    pub(crate) fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let root = if self.kind.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.kind.group, self.version)
        };
        let within = match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("/namespaces/{}", encode(namespace)),
            None => String::new(),
        };
        let name = name.map(|name| format!("/{}", encode(name))).unwrap_or_default();
        format!("{root}{within}/{}{name}", self.plural)
    }
}

/// Percent-encodes a value for a path or query.
pub(crate) fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// A kind that every cluster serves: version, plural, short name, and whether it is namespaced.
type BuiltIn = (&'static Kind, &'static str, &'static str, &'static str, bool);

/// These need no discovery request.
static BUILT_IN: [BuiltIn; 22] = [
    (&POD, "v1", "pods", "po", true),
    (&NODE, "v1", "nodes", "no", false),
    (&NAMESPACE, "v1", "namespaces", "ns", false),
    (&CLAIM, "v1", "persistentvolumeclaims", "pvc", true),
    (&VOLUME, "v1", "persistentvolumes", "pv", false),
    (&CONFIG_MAP, "v1", "configmaps", "cm", true),
    (&SECRET, "v1", "secrets", "secret", true),
    (&QUOTA, "v1", "resourcequotas", "quota", true),
    (&EVENT, "v1", "events", "ev", true),
    (&REPLICATION_CONTROLLER, "v1", "replicationcontrollers", "rc", true),
    (&JOB, "v1", "jobs", "job", true),
    (&CRON_JOB, "v1", "cronjobs", "cj", true),
    (&DEPLOYMENT, "v1", "deployments", "deploy", true),
    (&REPLICA_SET, "v1", "replicasets", "rs", true),
    (&STATEFUL_SET, "v1", "statefulsets", "sts", true),
    (&DAEMON_SET, "v1", "daemonsets", "ds", true),
    (&LEASE, "v1", "leases", "lease", true),
    (&BUDGET, "v1", "poddisruptionbudgets", "pdb", true),
    (&ATTACHMENT, "v1", "volumeattachments", "volumeattachment", false),
    (&STORAGE_CLASS, "v1", "storageclasses", "sc", false),
    (&VALIDATING, "v1", "validatingwebhookconfigurations", "validatingwebhookconfiguration", false),
    (&MUTATING, "v1", "mutatingwebhookconfigurations", "mutatingwebhookconfiguration", false),
];

/// API groups of kinds that people often ask for. They are searched before all others.
pub(crate) const USUAL_GROUPS: [(&str, &str); 5] = [
    ("jobset", "jobset.x-k8s.io"),
    ("workload", "kueue.x-k8s.io"),
    ("wl", "kueue.x-k8s.io"),
    ("appwrapper", "workload.codeflare.dev"),
    ("aw", "workload.codeflare.dev"),
];

/// The words for built-in kinds, for a person who mistyped one.
pub(crate) fn words() -> impl Iterator<Item = String> {
    BUILT_IN.iter().flat_map(|(kind, _, plural, short, _)| {
        [kind.kind.to_lowercase(), (*plural).to_owned(), (*short).to_owned()]
    })
}

/// Whether a word means the kind Namespace.
pub fn is_namespace(word: &str) -> bool {
    by_name(word).is_some_and(|resource| resource.kind == NAMESPACE)
}

pub(crate) fn built_in(wanted: &Kind) -> Option<Resource> {
    BUILT_IN.iter().find(|(kind, ..)| *kind == wanted).map(resource)
}

fn resource((kind, version, plural, _, namespaced): &BuiltIn) -> Resource {
    Resource {
        kind: (*kind).clone(),
        version: (*version).to_owned(),
        plural: (*plural).to_owned(),
        namespaced: *namespaced,
    }
}

/// A built-in kind by any of its names, with or without its group after a dot.
pub(crate) fn by_name(word: &str) -> Option<Resource> {
    let word = word.to_lowercase();
    let (word, group) = match word.split_once('.') {
        Some((word, group)) => (word.to_owned(), Some(group.to_owned())),
        None => (word, None),
    };
    let called = |(kind, version, plural, short, _): &&BuiltIn| {
        (word == *plural || word == *short || word == kind.kind.to_lowercase())
            && group
                .as_ref()
                .is_none_or(|group| *group == kind.group || *group == format!("{version}.{}", kind.group))
    };
    BUILT_IN.iter().find(called).map(resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_names_that_kubectl_knows() {
        for (word, kind) in [
            ("job", "Job"),
            ("jobs", "Job"),
            ("Job", "Job"),
            ("jobs.batch", "Job"),
            ("job.v1.batch", "Job"),
            ("cj", "CronJob"),
            ("po", "Pod"),
            ("sts", "StatefulSet"),
            ("deploy", "Deployment"),
            ("rs", "ReplicaSet"),
            ("no", "Node"),
            ("pvc", "PersistentVolumeClaim"),
            ("ds", "DaemonSet"),
        ] {
            assert_eq!(by_name(word).unwrap().kind.kind, kind, "{word}");
        }
        for word in ["jobset", "nonsense", "jobs.example.com", ""] {
            assert_eq!(by_name(word), None, "{word}");
        }
        let job = built_in(&JOB).unwrap();
        assert_eq!(job.path(Some("ns"), Some("j")), "/apis/batch/v1/namespaces/ns/jobs/j");
        assert_eq!(built_in(&NODE).unwrap().path(None, None), "/api/v1/nodes");
    }
}
