//! Objects of custom kinds, for clients that know them only by name.

use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) trait Kind: Clone + Debug + Send + Sync + 'static {
    type Scope;
    const GROUP: &'static str;
    const VERSION: &'static str;
    const KIND: &'static str;
    const PLURAL: &'static str;
}

/// An object of that kind, with its fields as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound = "")]
pub(crate) struct Object<K: Kind> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) spec: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) status: Value,
    #[serde(skip)]
    of: PhantomData<K>,
}

impl<K: Kind> Object<K> {
    pub(crate) fn new(metadata: ObjectMeta, spec: Value) -> Self {
        Self {
            api_version: format!("{}/{}", K::GROUP, K::VERSION),
            kind: K::KIND.to_owned(),
            metadata,
            spec,
            status: Value::Null,
            of: PhantomData,
        }
    }

    pub(crate) fn named(name: &str, spec: Value) -> Self {
        Self::new(ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, spec)
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<Condition> {
        condition(&self.status, kind)
    }
}

impl<K: Kind> Resource for Object<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        K::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        K::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

macro_rules! kinds {
    ($($kind:ident = $marker:ident, $scope:ident, $group:literal, $version:literal, $plural:literal;)*) => {
        $(
            #[derive(Clone, Debug)]
            pub(crate) enum $marker {}

            impl $crate::custom::Kind for $marker {
                type Scope = $scope;
                const GROUP: &'static str = $group;
                const VERSION: &'static str = $version;
                const KIND: &'static str = stringify!($kind);
                const PLURAL: &'static str = $plural;
            }
        )*
    };
}

pub(crate) use kinds;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// When its status last changed.
    pub(crate) since: String,
}

pub(crate) fn condition(status: &Value, kind: &str) -> Option<Condition> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some(Condition {
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
        since: text("lastTransitionTime"),
    })
}
