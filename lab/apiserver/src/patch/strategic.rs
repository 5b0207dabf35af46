//! Strategic merge: a merge patch that knows which lists are maps by a key.

use serde_json::{Map, Value};

use crate::schema::Schema;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch.
///
/// # Errors
/// If the patch leaves out a merge key, or has an unknown directive.
pub(crate) fn apply(target: &mut Value, patch: &Value, schema: &Schema) -> Result<(), String> {
    let Value::Object(patch) = patch else {
        return Err("the patch is not an object".to_owned());
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else {
        return Ok(());
    };
    merge_object(members, patch, Some(schema))
}

fn merge_object(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    schema: Option<&Schema>,
) -> Result<(), String> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => {
            *target = patch
                .iter()
                .filter(|(key, _)| *key != DIRECTIVE)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => return Err(format!("Unknown patch type found: {other}")),
    }
    if let Some(Value::Array(keys)) = patch.get(RETAIN_KEYS) {
        target.retain(|key, _| keys.iter().any(|kept| kept.as_str() == Some(key)));
    }
    for (key, value) in patch {
        if key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(ELEMENT_ORDER) {
            continue;
        }
        if let Some(name) = key.strip_prefix(DELETE_FROM_LIST) {
            if let (Some(Value::Array(list)), Value::Array(gone)) = (target.get_mut(name), value) {
                list.retain(|element| !gone.contains(element));
            }
            continue;
        }
        let field = schema.and_then(|schema| schema.field(key));
        match value {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(inner) => {
                let place = target.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
                match place {
                    Value::Object(members) => merge_object(members, inner, field)?,
                    other => {
                        let mut fresh = Map::new();
                        merge_object(&mut fresh, inner, field)?;
                        *other = Value::Object(fresh);
                    }
                }
            }
            Value::Array(elements) => {
                let current = match target.remove(key) {
                    Some(Value::Array(current)) => current,
                    _ => Vec::new(),
                };
                let order = patch.get(&format!("{ELEMENT_ORDER}{key}")).and_then(Value::as_array);
                let merged = merge_list(current, elements, field, order)?;
                target.insert(key.clone(), Value::Array(merged));
            }
            scalar => {
                target.insert(key.clone(), scalar.clone());
            }
        }
    }
    // A `$setElementOrder` alone sorts the list, even if no element changes.
    for (key, value) in patch {
        if let (Some(name), Value::Array(order)) = (key.strip_prefix(ELEMENT_ORDER), value)
            && !patch.contains_key(name)
            && let Some(Value::Array(list)) = target.get_mut(name)
        {
            let field = schema.and_then(|schema| schema.field(name));
            let before = list.clone();
            *list = arrange(
                std::mem::take(list),
                order,
                &before,
                field.and_then(|field| field.merge_key.as_deref()),
            );
        }
    }
    Ok(())
}

fn merge_list(
    mut current: Vec<Value>,
    patch: &[Value],
    schema: Option<&Schema>,
    order: Option<&Vec<Value>>,
) -> Result<Vec<Value>, String> {
    let merges = schema.is_some_and(|schema| schema.merges);
    let directive = |element: &Value| element.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    let replaces = patch.iter().any(|element| directive(element).as_deref() == Some("replace"));
    if !merges || replaces {
        return Ok(patch
            .iter()
            .filter(|element| {
                directive(element).as_deref() != Some("replace")
                    || element.as_object().is_some_and(|members| members.len() > 1)
            })
            .cloned()
            .map(|mut element| {
                if let Value::Object(members) = &mut element {
                    members.remove(DIRECTIVE);
                }
                element
            })
            .collect());
    }
    let merge_key = schema.and_then(|schema| schema.merge_key.as_deref());
    let before = current.clone();
    let order = order.map_or(patch, Vec::as_slice);
    let Some(merge_key) = merge_key else {
        for element in patch {
            if !current.contains(element) {
                current.push(element.clone());
            }
        }
        return Ok(arrange(current, order, &before, None));
    };
    let element_schema = schema.and_then(Schema::element);
    for element in patch {
        let key = element.get(merge_key).ok_or_else(|| {
            format!("map: map[{}] does not contain declared merge key: {merge_key}", go_map(element))
        })?;
        let place = current.iter().position(|existing| existing.get(merge_key) == Some(key));
        if directive(element).as_deref() == Some("delete") {
            current.retain(|existing| existing.get(merge_key) != Some(key));
            continue;
        }
        let Value::Object(changes) = element else {
            continue;
        };
        match place {
            Some(index) => {
                if let Value::Object(members) = &mut current[index] {
                    merge_object(members, changes, element_schema)?;
                }
            }
            None => {
                let mut fresh = Map::new();
                merge_object(&mut fresh, changes, element_schema)?;
                current.push(Value::Object(fresh));
            }
        }
    }
    Ok(arrange(current, order, &before, Some(merge_key)))
}

/// Sorts the elements that the patch names in its order, and the others in their former order. Between the two groups,
/// the former order decides if it has both elements; otherwise the patch goes first.
fn arrange(list: Vec<Value>, order: &[Value], before: &[Value], merge_key: Option<&str>) -> Vec<Value> {
    let identity = |value: &Value| match merge_key {
        Some(key) => value.get(key).cloned().unwrap_or(Value::Null),
        None => value.clone(),
    };
    let place =
        |value: &Value, among: &[Value]| among.iter().position(|entry| identity(entry) == identity(value));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|value| place(value, order).is_some());
    named.sort_by_key(|value| place(value, order));
    others.sort_by_key(|value| place(value, before));
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (others.peek(), named.peek()) {
            (None, None) => return arranged,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(other), Some(one)) => match (place(other, before), place(one, before)) {
                (Some(other), Some(one)) => other < one,
                _ => false,
            },
        };
        arranged.extend(if other_first { others.next() } else { named.next() });
    }
}

fn go_map(value: &Value) -> String {
    let Value::Object(members) = value else {
        return String::new();
    };
    members
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => format!("{key}:{text}"),
            other => format!("{key}:{other}"),
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::schema::Schema;

    fn patched(target: Value, patch: &Value) -> Value {
        let mut target = target;
        super::apply(&mut target, patch, &Schema::built_in("io.k8s.api.core.v1.Pod")).unwrap();
        target
    }

    #[test]
    fn containers_merge_by_name() {
        let pod = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}});
        let patch = json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}, {"name": "a", "$patch": "delete"}]}});
        assert_eq!(
            patched(pod, &patch),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]}})
        );
    }

    #[test]
    fn tolerations_are_replaced_and_finalizers_united() {
        let pod = json!({"metadata": {"finalizers": ["a", "b"]}, "spec": {"tolerations": [{"key": "a"}]}});
        let patch = json!({"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}, "spec": {"tolerations": [{"key": "b"}]}});
        assert_eq!(
            patched(pod, &patch),
            json!({"metadata": {"finalizers": ["c", "b"]}, "spec": {"tolerations": [{"key": "b"}]}})
        );
    }

    #[test]
    fn retained_keys_drop_the_rest() {
        let pod = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}});
        let patch = json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}});
        assert_eq!(
            patched(pod, &patch),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}})
        );
    }

    #[test]
    fn an_element_without_its_key_is_refused() {
        let mut pod = json!({});
        let patch = json!({"spec": {"containers": [{"image": "2"}]}});
        let schema = Schema::built_in("io.k8s.api.core.v1.Pod");
        let error = super::apply(&mut pod, &patch, &schema).unwrap_err();
        assert_eq!(error, "map: map[image:2] does not contain declared merge key: name");
    }
}
