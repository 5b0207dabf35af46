//! Compares the two webhook configurations in the cluster with what they must contain.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::declaration::{Target, Webhook, WebhookKind, configuration};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Repair {
    Nothing,
    /// It does not exist, and we create it.
    Create(Value),
    /// Replace it by this one.
    Update(Value),
    /// This webhook is missing, and we do not create it: the manifests bring it.
    Missing(&'static str),
}

/// What to do about the configuration of one kind, given what was found. Webhooks of others in it are left alone.
pub(super) fn repair(
    kind: WebhookKind,
    webhooks: &[Webhook],
    target: &Target,
    token: &str,
    bundle: Option<&str>,
    found: Option<&Value>,
) -> Repair {
    let Some(mut wanted) = configuration(kind, webhooks, target) else { return Repair::Nothing };
    let bundle = bundle.map(|bundle| json!(STANDARD.encode(bundle)));
    let ours = webhooks.iter().filter(|webhook| webhook.kind == kind);
    // How the API server reaches us, and which authority it trusts: only we know these.
    let fill_in = |webhook: &Webhook, client: &mut Map<String, Value>| {
        let path = webhook.path_with(token);
        match target {
            Target::Url(url) => drop(client.insert("url".to_owned(), json!(format!("{url}{path}")))),
            Target::Service { .. } => {
                if let Some(service) = client.get_mut("service").and_then(Value::as_object_mut) {
                    service.insert("path".to_owned(), json!(path));
                }
            }
        }
        if let Some(bundle) = &bundle {
            client.insert("caBundle".to_owned(), bundle.clone());
        }
    };
    for (webhook, entry) in ours.clone().zip(wanted["webhooks"].as_array_mut().into_iter().flatten()) {
        entry["clientConfig"].as_object_mut().into_iter().for_each(|client| fill_in(webhook, client));
    }
    match (target, found) {
        (Target::Url(_), None) => Repair::Create(wanted),
        (Target::Service { .. }, None) => {
            ours.map(|webhook| webhook.name).next().map_or(Repair::Nothing, Repair::Missing)
        }
        (_, Some(found)) => {
            let mut repaired = found.clone();
            // A missing list of webhooks counts as an empty one.
            let list = repaired.as_object_mut().map(|object| object.entry("webhooks").or_insert(json!([])));
            let Some(list) = list else { return Repair::Nothing };
            if !list.is_array() {
                *list = json!([]);
            }
            let Some(entries) = list.as_array_mut() else { return Repair::Nothing };
            for (webhook, wanted) in ours.zip(wanted["webhooks"].as_array().into_iter().flatten()) {
                let entry = entries.iter_mut().find(|entry| entry["name"] == webhook.name);
                match (target, entry) {
                    (Target::Url(_), Some(entry)) if holds(entry, wanted) => {}
                    (Target::Url(_), Some(entry)) => *entry = wanted.clone(),
                    (Target::Url(_), None) => entries.push(wanted.clone()),
                    (Target::Service { .. }, Some(entry)) => {
                        let client = entry.get_mut("clientConfig").and_then(Value::as_object_mut);
                        client.into_iter().for_each(|client| fill_in(webhook, client));
                    }
                    (Target::Service { .. }, None) => return Repair::Missing(webhook.name),
                }
            }
            if repaired["webhooks"] == found["webhooks"] { Repair::Nothing } else { Repair::Update(repaired) }
        }
    }
}

/// True if everything wanted is present. A server may add fields that we do not know. But `clientConfig` must not
/// contain more than wanted, and a foreign selector would let requests bypass us.
fn holds(found: &Value, wanted: &Value) -> bool {
    let Some(wanted) = wanted.as_object() else { return found == wanted };
    wanted.iter().all(|(name, value)| found.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhooks::declaration::{FailurePolicy, Operation, Rule};

    fn webhook(kind: WebhookKind, name: &'static str) -> Webhook {
        Webhook {
            kind,
            name,
            path: "/mutate",
            rules: vec![Rule {
                group: "",
                versions: &["v1"],
                resources: &["configmaps"],
                operations: &[Operation::Create, Operation::Update],
            }],
            failure_policy: FailurePolicy::Fail,
            timeout_seconds: 10,
        }
    }

    fn url() -> Target {
        Target::Url("https://127.0.0.1:9443".to_owned())
    }

    fn service() -> Target {
        Target::Service { namespace: "salvor-system".to_owned() }
    }

    const KIND: WebhookKind = WebhookKind::Mutating;

    #[test]
    fn a_configuration_of_ours_is_made_repaired_and_then_left_alone() {
        let webhooks = [webhook(KIND, "a.salvor.dev"), webhook(KIND, "b.salvor.dev")];
        let look = |found: Option<&Value>| repair(KIND, &webhooks, &url(), "t0ken", Some("ca"), found);
        let Repair::Create(made) = look(None) else { panic!() };
        let client = json!({"url": "https://127.0.0.1:9443/mutate/t0ken", "caBundle": "Y2E="});
        assert_eq!(made["webhooks"][0]["clientConfig"], client);
        assert_eq!(made["webhooks"][0]["rules"][0]["operations"], json!(["CREATE", "UPDATE"]));
        assert_eq!(look(Some(&made)), Repair::Nothing);
        // Fields that a newer server adds do not cause a write.
        let mut newer = made.clone();
        newer["metadata"]["resourceVersion"] = json!("7");
        newer["webhooks"][0]["matchConditions"] = json!([]);
        assert_eq!(look(Some(&newer)), Repair::Nothing);
        for (path, value) in [
            ("/webhooks/0/clientConfig/caBundle", json!("eA==")),
            ("/webhooks/0/clientConfig/url", json!("https://127.0.0.1:9443/mutate")),
            ("/webhooks/0/clientConfig", json!({"service": {"name": "x", "namespace": "y"}})),
            ("/webhooks/1/failurePolicy", json!("Ignore")),
            ("/webhooks/1/objectSelector", json!({"matchLabels": {"a": "b"}})),
            ("/webhooks/1/rules", json!([])),
            ("/webhooks/1", json!({"name": "b.salvor.dev"})),
            ("/webhooks", json!([])),
            ("/webhooks", Value::Null),
        ] {
            let mut edited = newer.clone();
            *edited.pointer_mut(path).unwrap() = value;
            let Repair::Update(repaired) = look(Some(&edited)) else { panic!("{path}") };
            assert_eq!(repaired["metadata"]["resourceVersion"], "7", "the write is guarded");
            assert_eq!(look(Some(&repaired)), Repair::Nothing, "{path}");
        }
    }

    #[test]
    fn webhooks_of_others_are_left_alone() {
        let webhooks = [webhook(KIND, "a.salvor.dev")];
        let others = json!({"name": "other.example.com", "clientConfig": {"url": "https://elsewhere"}});
        let found = json!({"metadata": {"name": "salvor"}, "webhooks": [others]});
        let Repair::Update(repaired) = repair(KIND, &webhooks, &url(), "t0ken", Some("ca"), Some(&found))
        else {
            panic!()
        };
        assert_eq!(repaired["webhooks"][0], others);
        assert_eq!(repaired["webhooks"][1]["name"], "a.salvor.dev");
        assert_eq!(repair(WebhookKind::Validating, &webhooks, &url(), "t0ken", None, None), Repair::Nothing);
    }

    #[test]
    fn in_a_cluster_only_the_bundle_and_the_path_are_filled_in() {
        let webhooks = [webhook(KIND, "a.salvor.dev")];
        let look =
            |bundle, found: Option<&Value>| repair(KIND, &webhooks, &service(), "t0ken", bundle, found);
        assert_eq!(look(Some("ca"), None), Repair::Missing("a.salvor.dev"));
        let mut found = configuration(KIND, &webhooks, &service()).unwrap();
        // An administrator's change stays.
        found["webhooks"][0]["failurePolicy"] = json!("Ignore");
        let Repair::Update(repaired) = look(Some("ca"), Some(&found)) else { panic!() };
        let mut expected = found.clone();
        expected["webhooks"][0]["clientConfig"]["caBundle"] = json!("Y2E=");
        expected["webhooks"][0]["clientConfig"]["service"]["path"] = json!("/mutate/t0ken");
        assert_eq!(repaired, expected);
        assert_eq!(look(Some("ca"), Some(&repaired)), Repair::Nothing);
        // As written by a version without tokens.
        let mut old = repaired.clone();
        old["webhooks"][0]["clientConfig"]["service"]["path"] = json!("/mutate");
        assert_eq!(look(Some("ca"), Some(&old)), Repair::Update(repaired.clone()));
        // Without an authority of ours, the `caBundle` belongs to someone else.
        assert_eq!(look(None, Some(&repaired)), Repair::Nothing);
        let empty = json!({"metadata": {"name": "salvor"}});
        assert_eq!(look(Some("ca"), Some(&empty)), Repair::Missing("a.salvor.dev"));
        let garbage = json!({"webhooks": [{"name": "a.salvor.dev", "clientConfig": null}, 7, {"name": 3}]});
        assert_eq!(look(Some("ca"), Some(&garbage)), Repair::Nothing);
        let garbage = json!({"webhooks": [{"name": "a.salvor.dev"}]});
        assert_eq!(look(Some("ca"), Some(&garbage)), Repair::Nothing);
        assert_eq!(look(Some("ca"), Some(&json!([]))), Repair::Nothing);
    }
}
