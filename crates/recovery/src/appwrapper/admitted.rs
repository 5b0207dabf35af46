//! Digests of what was admitted, which the status keeps. Where no webhook refuses a change, the controller sees it by them.
//!
//! A digest must stay the same while the object means the same: it does not depend on the order of keys, on fields that are
//! null, or on whether a whole number is written as `1` or `1.0`. The API server changes those.

use ring::digest::{Context, SHA256};
use salvor_api::names::appwrapper as names;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::admission::{IMMUTABLE, components};
use super::names::conditions::RESOURCES_DEPLOYED;
use super::podsets::{self, FieldError, TemplateKind};
use super::status::{AppWrapperStatus, ComponentStatus};

/// The way in which digests are made. A record of another version is written anew, and not compared.
const VERSION: u32 = 1;
/// So many bytes of SHA-256 are kept: nobody finds two templates with the same.
const KEPT: usize = 16;
/// So many changed fields are named.
const NAMED: usize = 5;

/// What was admitted, as digests. Every field is written, also an empty one: a merge patch keeps what it does not name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Admitted {
    /// The way in which the digests are made.
    version: u32,
    /// The label that tells who created it; empty if there is none.
    user: String,
    /// The label with the UID of that user; empty if there is none.
    userid: String,
    /// One for each component.
    components: Vec<AdmittedComponent>,
}

/// What was admitted of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AdmittedComponent {
    /// Its template.
    template: String,
    /// Its declared PodSets; empty if there are none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pod_sets: String,
}

/// The spec beside what was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// It is as it was admitted.
    Same,
    /// Nothing is written down yet. This would be.
    New(Admitted),
    /// It was changed since, in these fields.
    Changed(Vec<String>),
}

impl Comparison {
    /// The fields that were changed, in the words of the webhook.
    pub(super) fn forbidden(&self) -> Option<String> {
        let fields = match self {
            Self::Changed(fields) => fields,
            Self::Same | Self::New(_) => return None,
        };
        let refused = |field: &String| FieldError::forbidden(field.as_str(), IMMUTABLE).to_string();
        let mut errors: Vec<String> = fields.iter().take(NAMED).map(refused).collect();
        if fields.len() > NAMED {
            errors.push(format!("and {} fields more", fields.len() - NAMED));
        }
        Some(errors.join(", "))
    }

    /// The same, with what to do about it.
    pub fn refusal(&self) -> Option<String> {
        let what_to_do = "Change it back, or delete the AppWrapper and create it again; until then nothing is created for it";
        self.forbidden().map(|forbidden| format!("{forbidden}. {what_to_do}"))
    }
}

/// Compares an AppWrapper with what was admitted of it.
pub fn compare(object: &Value, status: &AppWrapperStatus) -> Comparison {
    let now = Admitted::of(object);
    let changed = match &status.admitted {
        Some(admitted) => admitted.changes(&now),
        // Another controller wrote the status, or somebody took the record away. What was created still tells something.
        None if status.holds(RESOURCES_DEPLOYED) => differences(object, status),
        None => Vec::new(),
    };
    match (changed.is_empty(), &status.admitted) {
        (false, _) => Comparison::Changed(changed),
        (true, None) => Comparison::New(now),
        (true, Some(_)) => Comparison::Same,
    }
}

impl Admitted {
    fn of(object: &Value) -> Self {
        let label = |name: &str| match object["metadata"]["labels"][name].as_str().unwrap_or_default() {
            "" => String::new(),
            text => digest(&text.into()),
        };
        Self {
            version: VERSION,
            user: label(names::USER_LABEL),
            userid: label(names::USER_ID_LABEL),
            components: components(object).iter().map(AdmittedComponent::of).collect(),
        }
    }

    /// The fields that are others now. They are the fields that the webhook refuses to change.
    fn changes(&self, now: &Self) -> Vec<String> {
        let labels =
            [(names::USER_LABEL, self.user != now.user), (names::USER_ID_LABEL, self.userid != now.userid)];
        let labels = labels.into_iter().filter(|(_, differs)| *differs);
        let mut changed: Vec<String> = labels.map(|(name, _)| format!("metadata.labels[{name}]")).collect();
        if self.components.len() != now.components.len() {
            changed.push("spec.components".into());
            return changed;
        }
        for (index, (before, after)) in self.components.iter().zip(&now.components).enumerate() {
            let place = format!("spec.components[{index}]");
            if before.template != after.template {
                changed.push(format!("{place}.template"));
            }
            if before.pod_sets != after.pod_sets {
                changed.push(format!("{place}.podSets"));
            }
        }
        changed
    }

    /// False for a record that another version wrote, or that nobody can have written.
    fn is_readable(&self) -> bool {
        let is_digest = |text: &str| {
            text.len() == 2 * KEPT && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_empty_or_digest = |text: &str| text.is_empty() || is_digest(text);
        self.version == VERSION
            && is_empty_or_digest(&self.user)
            && is_empty_or_digest(&self.userid)
            && self.components.iter().all(|it| is_digest(&it.template) && is_empty_or_digest(&it.pod_sets))
    }

    /// Reads the record of a status. One that nobody can read is none: it is written anew.
    pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self::deserialize(value).ok().filter(Self::is_readable))
    }
}

impl AdmittedComponent {
    fn of(component: &Value) -> Self {
        let pod_sets = pod_sets(component);
        let is_empty = pod_sets.as_array().is_some_and(Vec::is_empty);
        Self {
            template: digest(&component["template"]),
            pod_sets: if is_empty { String::new() } else { digest(&pod_sets) },
        }
    }
}

/// What was admitted of the declared PodSets: replicas that are not set are 1, and annotations may change.
fn pod_sets(component: &Value) -> Value {
    match podsets::declared(component) {
        Ok(sets) => {
            sets.iter().map(|set| Value::from(vec![Value::from(&*set.path), set.count().into()])).collect()
        }
        Err(_) => component["podSets"].clone(),
    }
}

/// The digest of all that must not change of the components, whole: their templates and declared PodSets, and not what Kueue adds.
pub(super) fn components_digest(object: &Value) -> String {
    let mut context = Context::new(&SHA256);
    let components = components(object);
    context.update(format!("{}:", components.len()).as_bytes());
    for component in components {
        feed(&mut context, &component["template"]);
        feed(&mut context, &pod_sets(component));
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The components that cannot be those that were created, by the names and kinds that are written down.
fn differences(object: &Value, status: &AppWrapperStatus) -> Vec<String> {
    let (now, created) = (components(object), &status.component_status);
    if created.is_empty() {
        return Vec::new();
    }
    if now.len() != created.len() {
        return vec!["spec.components".into()];
    }
    let differs = |(template, created): (&Value, &ComponentStatus)| {
        let Ok(kind) = TemplateKind::of(template) else { return true };
        let api_version = template["apiVersion"].as_str().unwrap_or_default();
        let name = template["metadata"]["name"].as_str().unwrap_or_default();
        kind.kind != created.kind
            || api_version != created.api_version
            || (!name.is_empty() && !created.name.is_empty() && name != created.name)
    };
    let all = now.iter().zip(created).enumerate();
    // Before its first creation nothing is written down but its PodSets.
    let named = all.filter(|(_, (_, created))| !created.kind.is_empty());
    let changed = named.filter(|(_, (component, created))| differs((&component["template"], created)));
    changed.map(|(index, _)| format!("spec.components[{index}].template")).collect()
}

/// The beginning of the SHA-256 of a value, in hexadecimal digits.
fn digest(value: &Value) -> String {
    let mut context = Context::new(&SHA256);
    feed(&mut context, value);
    let digest = context.finish();
    digest.as_ref().iter().take(KEPT).map(|byte| format!("{byte:02x}")).collect()
}

/// Texts and lists are preceded by their length, so that no two values are fed as the same bytes.
fn feed(context: &mut Context, value: &Value) {
    let text = |context: &mut Context, mark: &[u8], text: &str| {
        context.update(mark);
        context.update(text.len().to_string().as_bytes());
        context.update(b":");
        context.update(text.as_bytes());
    };
    match value {
        Value::Null => context.update(b"n"),
        Value::Bool(true) => context.update(b"t"),
        Value::Bool(false) => context.update(b"f"),
        Value::Number(number) => text(context, b"d", &canonical(number)),
        Value::String(string) => text(context, b"s", string),
        Value::Array(items) => {
            context.update(format!("a{}:", items.len()).as_bytes());
            items.iter().for_each(|item| feed(context, item));
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            context.update(format!("o{}:", fields.len()).as_bytes());
            for (name, value) in fields {
                text(context, b"k", name);
                feed(context, value);
            }
        }
    }
}

/// A number as text. A whole number is one also if it is written with a fraction of 0.
fn canonical(number: &serde_json::Number) -> String {
    /// All whole numbers up to this one are exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) if float.fract() == 0.0 && float.abs() < EXACT => {
            // There is a negative 0.
            format!("{:.0}", float + 0.0)
        }
        Some(float) => format!("{float:e}"),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests;
