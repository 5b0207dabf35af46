//! Digests of what was admitted, kept in the status. If no webhook refuses a change, the controller detects it with
//! them.
//!
//! A digest must stay the same while the object means the same. So it does not depend on the order of keys, on fields
//! that are null, or on whether a whole number is written as `1` or `1.0`: the API server changes those.

use ring::digest::{Context, SHA256};
use salvor_api::names::appwrapper as names;
use serde_json::Value;

use super::components::components;
use super::names::conditions::RESOURCES_DEPLOYED;
use super::podsets::{self, FieldError, TemplateKind};
use super::status::{
    Admitted, AdmittedComponent, AppWrapperStatus, ComponentStatus, DIGEST_BYTES, DIGEST_VERSION,
};

/// The maximum number of changed fields named in a message.
const NAMED: usize = 5;

/// What both the webhook and the controller say about a change of what was admitted.
pub(super) const IMMUTABLE: &str = "attempt to change immutable field";

/// The spec compared with what was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    Same,
    /// Nothing is recorded yet. This would be the record.
    New(Admitted),
    /// These fields were changed since.
    Changed(Vec<String>),
}

impl Comparison {
    /// The changed fields, in the webhook's wording.
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

    /// The same, with instructions for the user.
    pub fn refusal(&self) -> Option<String> {
        let what_to_do = "Change it back, or delete the AppWrapper and create it again; until then nothing is created for it";
        self.forbidden().map(|forbidden| format!("{forbidden}. {what_to_do}"))
    }
}

/// Compares an AppWrapper with what was admitted.
pub fn compare(object: &Value, status: &AppWrapperStatus) -> Comparison {
    let now = Admitted::of(object);
    let changed = match &status.admitted {
        Some(admitted) => admitted.changes(&now),
        // Another controller wrote the status, or the record was removed. The names and kinds of created components
        // still show some changes.
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
            version: DIGEST_VERSION,
            user: label(names::USER_LABEL),
            userid: label(names::USER_ID_LABEL),
            components: components(object).iter().map(AdmittedComponent::of).collect(),
        }
    }

    /// The fields that differ. They are the same fields that the webhook refuses to change.
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

/// The digest input for declared PodSets: unset replicas are 1, and annotations may change.
fn pod_sets(component: &Value) -> Value {
    match podsets::declared(component) {
        Ok(sets) => {
            sets.iter().map(|set| Value::from(vec![Value::from(&*set.path), set.count().into()])).collect()
        }
        Err(_) => component["podSets"].clone(),
    }
}

/// The full digest of the immutable parts of the components: templates and declared PodSets, without Kueue's additions.
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

/// The components that cannot be the created ones, by recorded name and kind.
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
    // Before the first creation, only PodSets are recorded.
    let named = all.filter(|(_, (_, created))| !created.kind.is_empty());
    let changed = named.filter(|(_, (component, created))| differs((&component["template"], created)));
    changed.map(|(index, _)| format!("spec.components[{index}].template")).collect()
}

/// The prefix of the SHA-256 of a value, in hexadecimal.
fn digest(value: &Value) -> String {
    let mut context = Context::new(&SHA256);
    feed(&mut context, value);
    let digest = context.finish();
    digest.as_ref().iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Strings and lists are preceded by their length, so that no two values feed the same bytes.
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

/// A number as text. A float without fraction counts as a whole number.
fn canonical(number: &serde_json::Number) -> String {
    /// All whole numbers up to this one are exact in a float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) if float.fract() == 0.0 && float.abs() < EXACT => {
            // Turns negative zero into zero.
            format!("{:.0}", float + 0.0)
        }
        Some(float) => format!("{float:e}"),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests;
