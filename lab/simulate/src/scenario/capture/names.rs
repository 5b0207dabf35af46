//! Writes names as they are, or as hashes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use salvor_api::{
    Controller, GoDuration,
    config::{Configuration, FIELDS, Kind},
    names::repair::labels::NODE_POOL,
};
use serde_json::{Map, Value, json};

use super::{list, text};

/// Keys of labels, taints and resources that are the same everywhere, so that they reveal nothing about a cluster, with
/// those of their values that reveal nothing either. All others are hashed: anyone may invent a key under a well-known
/// domain.
const KNOWN: [(&str, &[&str]); 34] = [
    ("kubernetes.io/arch", &["amd64", "arm64", "ppc64le", "s390x", "riscv64"]),
    ("kubernetes.io/os", &["linux", "windows"]),
    ("beta.kubernetes.io/arch", &["amd64", "arm64", "ppc64le", "s390x", "riscv64"]),
    ("beta.kubernetes.io/os", &["linux", "windows"]),
    ("beta.kubernetes.io/instance-type", &[]),
    ("node.kubernetes.io/instance-type", &[]),
    ("node.kubernetes.io/exclude-disruption", &[]),
    ("node.kubernetes.io/exclude-from-external-load-balancers", &[]),
    ("node-role.kubernetes.io/control-plane", &[]),
    ("node-role.kubernetes.io/master", &[]),
    ("node-role.kubernetes.io/worker", &["worker"]),
    ("topology.kubernetes.io/zone", &[]),
    ("topology.kubernetes.io/region", &[]),
    ("failure-domain.beta.kubernetes.io/zone", &[]),
    ("failure-domain.beta.kubernetes.io/region", &[]),
    ("karpenter.sh/capacity-type", &["spot", "on-demand", "reserved"]),
    ("karpenter.sh/initialized", &[]),
    ("karpenter.sh/registered", &[]),
    (NODE_POOL, &[]),
    ("nvidia.com/gpu", &[]),
    ("nvidia.com/gpu.present", &[]),
    ("nvidia.com/gpu.product", &[]),
    ("amd.com/gpu", &[]),
    ("gpu.intel.com/i915", &[]),
    ("gpu.intel.com/xe", &[]),
    ("habana.ai/gaudi", &[]),
    ("aws.amazon.com/neuron", &[]),
    ("aws.amazon.com/neuroncore", &[]),
    ("aws.amazon.com/neurondevice", &[]),
    ("vpc.amazonaws.com/efa", &[]),
    ("google.com/tpu", &[]),
    ("cloud.google.com/gke-spot", &[]),
    ("eks.amazonaws.com/capacityType", &["ON_DEMAND", "SPOT"]),
    ("kubernetes.azure.com/scalesetpriority", &["regular", "spot"]),
];
/// Values that reveal nothing under any known key.
const PLAIN_VALUES: [&str; 6] = ["", "true", "false", "present", "NoSchedule", "NoExecute"];
/// Words of a NodeRepairPolicy, and the types of conditions that kubelets and well-known agents report.
const WORDS: [&str; 41] = [
    "True",
    "False",
    "Unknown",
    "In",
    "NotIn",
    "Exists",
    "DoesNotExist",
    "Forceful",
    "Graceful",
    "Drain",
    "DeleteNode",
    "Replace",
    "Reboot",
    "Annotation",
    "Taint",
    "UTC",
    "Ready",
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "CorruptDockerOverlay2",
    "FrequentKubeletRestart",
    "FrequentDockerRestart",
    "FrequentContainerdRestart",
    "FrequentUnregisterNetDevice",
    "KubeletUnhealthy",
    "ContainerRuntimeUnhealthy",
    "ContainerRuntimeProblem",
    "KubeletProblem",
    "NTPProblem",
    "KernelReady",
    "ContainerRuntimeReady",
    "NetworkingReady",
    "StorageReady",
    "AcceleratedHardwareReady",
    "GpuUnhealthy",
    "XidError",
    "GPUHealth",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    Plain,
    /// As hashes, so that the file can be shared.
    Hashed(Salt),
}

/// Makes the hashes of one file different from those of every other. Without it, a reader with a list of candidate
/// names could find which of them are in the file. It is never written to a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Salt([u8; 32]);

impl Salt {
    /// The number of bytes of a hash that are kept: enough to make collisions infeasible.
    const KEPT: usize = 16;

    /// A unique name for each text that reveals nothing about it.
    fn name(&self, text: &str) -> String {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), text.as_bytes());
        let digits = tag.as_ref().iter().take(Self::KEPT).map(|byte| format!("{byte:02x}"));
        ["h".to_owned()].into_iter().chain(digits).collect()
    }
}

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salt")
    }
}

impl Names {
    /// Hashes with a new salt.
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub fn hashed() -> std::io::Result<Self> {
        let mut salt = [0; 32];
        let filled = SystemRandom::new().fill(&mut salt);
        filled.map_err(|_| std::io::Error::other("the system gives no random numbers"))?;
        Ok(Self::Hashed(Salt(salt)))
    }

    /// The name of an object, with at most `most` characters.
    pub(super) fn of(self, name: &str, most: usize) -> String {
        match self {
            Self::Plain => plain(name, most),
            Self::Hashed(salt) => salt.name(name),
        }
    }

    /// The key of a label, a taint or a resource. A key with a domain keeps a domain, because that identifies extended
    /// resources.
    pub(super) fn key(self, key: &str) -> String {
        match (self, key.split_once('/')) {
            (Self::Plain, _) => key.to_owned(),
            (Self::Hashed(_), _) if known_values(key).is_some() => key.to_owned(),
            (Self::Hashed(salt), Some(_)) => format!("example.com/{}", salt.name(key)),
            (Self::Hashed(salt), None) => salt.name(key),
        }
    }

    pub(super) fn value(self, key: &str, value: &str) -> String {
        let is_known = |known: &[&str]| known.contains(&value) || PLAIN_VALUES.contains(&value);
        match self {
            Self::Hashed(salt) if !value.is_empty() && !known_values(key).is_some_and(is_known) => {
                salt.name(value)
            }
            Self::Plain | Self::Hashed(_) => value.to_owned(),
        }
    }

    pub(super) fn resources(self, amounts: BTreeMap<String, String>) -> BTreeMap<String, String> {
        // Resources without a domain that the scheduler counts are the same everywhere.
        let name = |name: String| if name.contains('/') { self.key(&name) } else { name };
        amounts.into_iter().map(|(key, amount)| (name(key), amount)).collect()
    }

    /// Hashes Salvor's configuration: texts that are neither numbers nor known words of a field are dropped in favour
    /// of the defaults. Selectors are not changed.
    pub(super) fn in_configuration(self, configuration: &mut Value) {
        let Self::Hashed(salt) = self else { return };
        let mut known: BTreeSet<String> = Controller::ALL.iter().map(ToString::to_string).collect();
        known.extend(known.clone().iter().map(|name| format!("-{name}")));
        collect(&serde_json::to_value(Configuration::default()).unwrap_or_default(), &mut known);
        hash_settings(configuration, "", &known, salt);
    }

    /// Hashes the spec of a NodeRepairPolicy. Selectors are not changed.
    pub(super) fn in_policy(self, spec: &mut Value) {
        let Self::Hashed(salt) = self else { return };
        match spec {
            Value::String(word) if !is_number(word) && !WORDS.contains(&word.as_str()) => {
                *word = salt.name(word);
            }
            Value::Object(fields) if !is_selector(fields) => {
                fields.values_mut().for_each(|field| self.in_policy(field));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.in_policy(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {}
        }
    }

    /// Rewrites the names in all label selectors of a document to those in the scenario, where one NodePool may become
    /// several pools.
    pub(super) fn in_selectors(self, document: &mut Value, pools: &BTreeMap<String, BTreeSet<String>>) {
        match document {
            Value::Object(fields) => {
                if is_selector(fields) {
                    self.in_selector(fields, pools);
                    return;
                }
                fields.values_mut().for_each(|field| self.in_selectors(field, pools));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.in_selectors(item, pools)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn in_selector(self, selector: &mut Map<String, Value>, pools: &BTreeMap<String, BTreeSet<String>>) {
        let values = |key: &str, value: &str| match pools.get(value).filter(|_| key == NODE_POOL) {
            Some(pools) => pools.iter().cloned().collect(),
            None => vec![self.value(key, value)],
        };
        let (mut labels, mut expressions) = (Map::new(), Vec::new());
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            match values(key, &text(value)).as_slice() {
                [one] => {
                    labels.insert(self.key(key), one.as_str().into());
                }
                several => expressions.push(json!({ "key": key, "operator": "In", "values": several })),
            }
        }
        for requirement in selector.get("matchExpressions").into_iter().flat_map(list) {
            let key = text(&requirement["key"]);
            let mut new = requirement.clone();
            new["key"] = self.key(&key).into();
            if !requirement["values"].is_null() {
                new["values"] =
                    list(&requirement["values"]).flat_map(|value| values(&key, &text(value))).collect();
            }
            expressions.push(new);
        }
        for (field, empty, new) in [
            ("matchLabels", labels.is_empty(), Value::from(labels)),
            ("matchExpressions", expressions.is_empty(), Value::from(expressions)),
        ] {
            if empty {
                selector.remove(field);
            } else {
                selector.insert(field.to_owned(), new);
            }
        }
    }
}

fn known_values(key: &str) -> Option<&'static [&'static str]> {
    KNOWN.iter().find(|(known, _)| *known == key).map(|(_, values)| *values)
}

fn is_selector(fields: &Map<String, Value>) -> bool {
    fields.contains_key("matchLabels") || fields.contains_key("matchExpressions")
}

/// A duration, a number, a percentage, an amount, or a schedule.
fn is_number(word: &str) -> bool {
    let of_digits = |it: char| it.is_ascii_digit() || "*/,.% -".contains(it);
    word.parse::<GoDuration>().is_ok() || word.chars().all(of_digits)
}

fn collect(value: &Value, texts: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            texts.insert(text.clone());
        }
        Value::Object(fields) => fields.values().for_each(|field| collect(field, texts)),
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Hashes the texts below a path of the configuration, and leaves out unknown entries of lists and maps.
fn hash_settings(value: &mut Value, path: &str, known: &BTreeSet<String>, salt: Salt) {
    let is_known = |text: &str| known.contains(text);
    let kind = FIELDS.iter().find(|field| field.path == path).map(|field| field.kind);
    match (kind, value) {
        (
            Some(
                Kind::Bool
                | Kind::Integer(..)
                | Kind::Duration
                | Kind::DurationOrNanoseconds
                | Kind::Choice(_)
                | Kind::Gates
                | Kind::Selector,
            ),
            _,
        ) => {}
        (Some(Kind::TextMap | Kind::TaintMap), Value::Object(entries)) => {
            entries.retain(|key, _| is_known(key));
        }
        (_, Value::String(text)) => {
            if !is_known(text) && !is_number(text) {
                let domain = if text.contains('/') { "example.com/" } else { "" };
                *text = format!("{domain}{}", salt.name(text));
            }
        }
        (_, Value::Array(items)) => {
            items.retain(|item| item.as_str().is_none_or(is_known));
            let path = format!("{path}[]");
            items.iter_mut().for_each(|item| hash_settings(item, &path, known, salt));
        }
        (_, Value::Object(fields)) if !is_selector(fields) => {
            // Only an address can be in this field.
            let is_address = |text: &str| text.contains("://") || text.parse::<SocketAddr>().is_ok();
            fields.retain(|_, field| field.as_str().is_none_or(|text| is_known(text) || !is_address(text)));
            for (name, field) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                hash_settings(field, &path, known, salt);
            }
        }
        (_, Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {}
    }
}

/// Turns a name into one that a scenario may have.
pub(super) fn plain(name: &str, most: usize) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let safe: String = name.to_lowercase().chars().map(|c| if fits(c) { c } else { '-' }).collect();
    let safe = safe.trim_matches('-');
    if safe.is_empty() {
        return "none".to_owned();
    }
    if safe.len() <= most {
        return safe.to_owned();
    }
    format!("{}-{}", safe[..most - 9].trim_end_matches('-'), &hash(name)[8..])
}

/// FNV-1a: the same in every build.
pub(in crate::scenario) fn hash(name: &str) -> String {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
