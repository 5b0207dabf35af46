//! What a new pod of a Job is like: its template, and what makes it this Job's and this index's.

use std::collections::BTreeSet;

use salvor_api::names::job::{
    COMPLETION_INDEX, COMPLETION_INDEX_ENV, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT,
    TRACKING_FINALIZER,
};
use serde_json::{Map, Value, json};

use super::views::{IndexFailures, JobView};

/// Kubernetes cuts the part before a generated name's random end to this.
const LONGEST_PREFIX: usize = 58;
/// Letters and digits that spell no words, as in every generated Kubernetes name.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;

/// Chooses names for new pods.
///
/// A name follows from the Job, the index and a number, and the number is the lowest whose name no known pod has. So a
/// pod that was made but not seen yet is asked for by the same name again, and the API server refuses it: however old
/// the view, however often a request is repeated, the same place is never filled twice.
pub(super) struct Names<'a> {
    job: &'a JobView,
    taken: BTreeSet<&'a str>,
    others: &'a BTreeSet<String>,
    chosen: BTreeSet<String>,
}

impl<'a> Names<'a> {
    pub(super) fn new(job: &'a JobView, taken: BTreeSet<&'a str>, others: &'a BTreeSet<String>) -> Self {
        Self { job, taken, others, chosen: BTreeSet::new() }
    }

    pub(super) fn choose(&mut self, index: Option<u32>) -> String {
        let mut number = 0;
        loop {
            let name = name(self.job, index, number);
            let free = !self.taken.contains(name.as_str()) && !self.others.contains(&name);
            if free && self.chosen.insert(name.clone()) {
                return name;
            }
            number += 1;
        }
    }
}

fn name(job: &JobView, index: Option<u32>, number: u64) -> String {
    let mut prefix = match index {
        Some(index) => format!("{}-{index}-", job.job.name),
        None => format!("{}-", job.job.name),
    };
    prefix.truncate(LONGEST_PREFIX);
    let mut hash = Fnv::default();
    hash.add(job.job.uid.as_bytes());
    hash.add(&index.map_or(u64::MAX, u64::from).to_le_bytes());
    hash.add(&number.to_le_bytes());
    let mut rest = hash.finish();
    for _ in 0..SUFFIX {
        let letter = ALPHABET[usize::try_from(rest % 27).unwrap_or(0)];
        prefix.push(char::from(letter));
        rest /= 27;
    }
    prefix
}

/// A hash that is the same in every version of this program: names depend on it.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// The low bits of the sum are its worst, and the name is made of them.
    fn finish(self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 33)
    }
}

/// The object to create.
pub(super) fn body(job: &JobView, name: &str, index: Option<u32>, failures: IndexFailures) -> Value {
    let mut template: Value = serde_json::from_str(&job.spec.template.0).unwrap_or_default();
    let mut metadata = Map::new();
    let given = template["metadata"].take();
    for field in ["labels", "annotations"] {
        metadata.insert(field.into(), json!(given[field].as_object().cloned().unwrap_or_default()));
    }
    let mut finalizers = given["finalizers"].as_array().cloned().unwrap_or_default();
    finalizers.push(TRACKING_FINALIZER.into());
    metadata.insert("finalizers".into(), finalizers.into());
    metadata.insert("name".into(), name.into());
    metadata.insert("namespace".into(), job.job.namespace.as_str().into());
    metadata.insert(
        "ownerReferences".into(),
        json!([{
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job.job.name,
            "uid": job.job.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }]),
    );
    let mut spec = template["spec"].take();
    if let Some(index) = index {
        let text = index.to_string();
        metadata["labels"][COMPLETION_INDEX] = text.as_str().into();
        metadata["annotations"][COMPLETION_INDEX] = text.as_str().into();
        if job.spec.backoff_limit_per_index.is_some() {
            metadata["annotations"][INDEX_FAILURE_COUNT] = failures.counted.to_string().into();
            if failures.ignored > 0 {
                metadata["annotations"][INDEX_IGNORED_FAILURE_COUNT] = failures.ignored.to_string().into();
            }
        }
        spec["hostname"] = format!("{}-{index}", job.job.name).into();
        for containers in ["initContainers", "containers"] {
            for container in spec[containers].as_array_mut().into_iter().flatten() {
                add_index_variable(container);
            }
        }
    }
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
}

/// Tells a container its index, unless its owner has set that variable.
fn add_index_variable(container: &mut Value) {
    if container["env"].is_null() {
        container["env"] = json!([]);
    }
    let Some(variables) = container["env"].as_array_mut() else { return };
    if variables.iter().any(|variable| variable["name"] == COMPLETION_INDEX_ENV) {
        return;
    }
    let path = format!("metadata.labels['{COMPLETION_INDEX}']");
    let from_label =
        json!({ "name": COMPLETION_INDEX_ENV, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    variables.push(from_label);
}
