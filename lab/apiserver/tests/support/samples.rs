//! An object of every kind that is served.

use serde::Deserialize;
use serde_json::Value;

/// An object of a kind, and what is done with it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) group: String,
    pub(crate) object: Value,
    #[serde(default)]
    pub(crate) change: Option<Value>,
    /// A patch that is refused.
    #[serde(default)]
    pub(crate) frozen: Option<Value>,
    /// The patch for its status.
    #[serde(default)]
    pub(crate) status: Option<Value>,
    /// The object is not deleted.
    #[serde(default)]
    pub(crate) stays: bool,
    /// JSON pointers that are not compared.
    #[serde(default)]
    pub(crate) ignore: Vec<String>,
}

impl Sample {
    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }
}

pub(crate) fn all() -> Vec<Sample> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/samples.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("tests/samples.yaml: {error}"))
}
