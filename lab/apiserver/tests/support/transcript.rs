//! The file format of transcripts.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// A file of transcripts for one topic.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) topic: String,
    pub(crate) transcripts: Vec<Transcript>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    /// Objects by name, for `body: $name`.
    #[serde(default)]
    objects: BTreeMap<String, Value>,
    /// The base of paths without a leading slash, if not the core group.
    #[serde(default)]
    below: Option<String>,
    transcripts: Vec<Transcript>,
}

/// A sequence of requests, in its own namespace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Transcript {
    pub(crate) title: String,
    pub(crate) steps: Vec<Step>,
}

/// One request and what to compare in the answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// `METHOD path`. `{ns}` is the transcript's namespace, `{name.uid}` something kept from an earlier answer. A path
    /// without a leading slash is below `/api/v1/namespaces/{ns}/`, or below the file's base.
    pub(crate) request: String,
    /// The body; a string that begins with `$` is one of the file's objects.
    #[serde(default)]
    pub(crate) body: Option<Value>,
    /// `json` (a JSON patch), `merge`, `strategic` or `apply` for patches; otherwise a whole media type.
    #[serde(default, rename = "as")]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) accept: Option<String>,
    /// Keeps fields of the answer: name to JSON pointer.
    #[serde(default)]
    pub(crate) keep: BTreeMap<String, String>,
    /// JSON pointers that are not compared.
    #[serde(default)]
    pub(crate) ignore: Vec<String>,
    /// If not empty, only these JSON pointers are compared.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    /// Reads this many events of a watch, or all until the server ends it.
    #[serde(default)]
    pub(crate) events: Option<usize>,
    /// Repeats the request until the answer has these values: for changes that the real server makes asynchronously.
    #[serde(default)]
    pub(crate) until: BTreeMap<String, Value>,
    /// The status that both must answer with, so that a transcript cannot pass by failing on both sides.
    pub(crate) expect: u16,
}

impl Transcript {
    pub(crate) fn title_in(&self, file: &File) -> String {
        format!("{}: {}", file.topic, self.title)
    }
}

impl File {
    pub(crate) fn all(folder: &Path) -> Vec<Self> {
        let mut paths: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.is_file());
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let contents: Contents =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut transcripts = contents.transcripts;
        for step in transcripts.iter_mut().flat_map(|transcript| &mut transcript.steps) {
            if let Some(body) = &mut step.body {
                resolve(body, &contents.objects);
            }
            let (method, path) = step.request.split_once(' ').expect("a request is `METHOD path`");
            if !path.starts_with('/') {
                let below = contents.below.as_deref().unwrap_or("/api/v1/namespaces/{ns}/");
                step.request = format!("{method} {below}{path}");
            }
        }
        Self { topic: path.file_stem().unwrap().to_string_lossy().into_owned(), transcripts }
    }
}

/// Inserts the file's objects where they are named. `{ $: name, ... }` is the object with some fields merged over it.
fn resolve(body: &mut Value, objects: &BTreeMap<String, Value>) {
    let named =
        |name: &str| objects.get(name).unwrap_or_else(|| panic!("no object is named {name:?}")).clone();
    match body {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix('$') {
                *body = named(name);
            }
        }
        Value::Object(members) => {
            if let Some(name) = members.remove("$") {
                let mut base = named(name.as_str().unwrap());
                merge(&mut base, &Value::Object(members.clone()));
                *body = base;
            }
        }
        _ => {}
    }
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}
