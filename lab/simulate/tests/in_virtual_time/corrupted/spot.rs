//! Places in objects that hold data of Salvor.

use http::Request;
use kube::Client;
use serde_json::{Value, json};

use super::value::Corruption;

/// A place in an object, and where it must be reported when its value is unreadable.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// The name in `names.rs`, or in the schema.
    pub(crate) name: &'static str,
    /// The object: its path in the API, or a word that the story knows.
    object: &'static str,
    /// The path within the object. `key=value` is the entry of a list that has this field.
    way: Vec<&'static str>,
    /// The value that is corrupted if there is none.
    example: Value,
    /// The corruptions after which an event, a condition or the log must name the place.
    told: &'static [Corruption],
    /// The word that names it.
    word: &'static str,
    /// True if it is reverted although Salvor has changed it since.
    put_back: bool,
}

/// The previous value, for a rollback.
pub(crate) struct Kept {
    before: Option<Value>,
    corrupted: Value,
}

impl Spot {
    fn new(object: &'static str, name: &'static str, way: Vec<&'static str>) -> Self {
        Self { name, object, way, example: "".into(), told: &[], word: name, put_back: false }
    }

    pub(crate) fn annotation(object: &'static str, key: &'static str) -> Self {
        Self::new(object, key, vec!["metadata", "annotations", key])
    }

    pub(crate) fn field(object: &'static str, name: &'static str, way: &[&'static str]) -> Self {
        Self::new(object, name, way.to_vec())
    }

    /// Corrupts this value if there is none.
    pub(crate) fn example(self, example: Value) -> Self {
        Self { example, ..self }
    }

    /// These corruptions must be reported.
    pub(crate) fn told(self, told: &'static [Corruption]) -> Self {
        Self { told, ..self }
    }

    /// They must be reported with this word.
    pub(crate) fn by(self, word: &'static str) -> Self {
        Self { word, ..self }
    }

    /// Reverts it even if Salvor has changed it meanwhile: a list of which Salvor rewrites only some entries.
    pub(crate) fn put_back(self) -> Self {
        Self { put_back: true, ..self }
    }

    pub(crate) fn object(&self) -> &'static str {
        self.object
    }

    /// The word that must be reported after a corruption, if any.
    pub(crate) fn word(&self, corruption: Corruption) -> Option<&'static str> {
        self.told.contains(&corruption).then_some(self.word)
    }

    /// Corrupts it in the object at a path. `None` if the API server refuses the value.
    pub(crate) async fn corrupt(&self, client: &Client, path: &str, corruption: Corruption) -> Option<Kept> {
        for _ in 0..TRIES {
            let mut object = get(client, path).await;
            let before = find(&object, &self.way).cloned();
            let corrupted = corruption.of(before.as_ref().unwrap_or(&self.example));
            put_in(&mut object, &self.way, Some(corrupted.clone()));
            match self.write(client, path, &object).await {
                Written::Yes => return Some(Kept { before, corrupted }),
                Written::No => return None,
                Written::Conflict => {}
            }
        }
        panic!("{}: {TRIES} conflicts", self.name)
    }

    /// Restores the previous value, unless it has been changed since.
    pub(crate) async fn roll_back(&self, client: &Client, path: &str, kept: &Kept) {
        for _ in 0..TRIES {
            let Some(mut object) = get_opt(client, path).await else { return };
            if !self.put_back && find(&object, &self.way) != Some(&kept.corrupted) {
                return;
            }
            put_in(&mut object, &self.way, kept.before.clone());
            match self.write(client, path, &object).await {
                Written::Yes => return,
                Written::No => panic!("{}: what was there is refused", self.name),
                Written::Conflict => {}
            }
        }
        panic!("{}: {TRIES} conflicts", self.name)
    }

    async fn write(&self, client: &Client, path: &str, object: &Value) -> Written {
        let by = if self.way[0] == "status" { "/status" } else { "" };
        let request = Request::put(format!("{path}{by}"))
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())
            .unwrap();
        match client.request::<Value>(request).await {
            Ok(_) => Written::Yes,
            Err(kube::Error::Api(status)) if status.code == 409 => Written::Conflict,
            Err(kube::Error::Api(status)) if [400, 413, 422].contains(&status.code) => Written::No,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }
}

const TRIES: usize = 20;

enum Written {
    Yes,
    No,
    Conflict,
}

async fn get(client: &Client, path: &str) -> Value {
    get_opt(client, path).await.unwrap_or_else(|| panic!("{path} is not there"))
}

async fn get_opt(client: &Client, path: &str) -> Option<Value> {
    match client.request(Request::get(path).body(Vec::new()).unwrap()).await {
        Ok(object) => Some(object),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("{path}: {error}"),
    }
}

fn entry(step: &str) -> Option<(&str, &str)> {
    step.split_once('=')
}

fn find<'a>(value: &'a Value, way: &[&str]) -> Option<&'a Value> {
    let Some((step, rest)) = way.split_first() else { return Some(value) };
    let next = match entry(step) {
        Some((key, is)) => value.as_array()?.iter().find(|item| item[key] == is)?,
        None => value.get(step)?,
    };
    find(next, rest)
}

/// Sets the value at a path, or removes it.
fn put_in(value: &mut Value, way: &[&str], new: Option<Value>) {
    let Some((step, rest)) = way.split_first() else { return };
    if let Some((key, is)) = entry(step) {
        if !value.is_array() {
            *value = json!([]);
        }
        let Value::Array(items) = value else { return };
        let place = items.iter().position(|item| item[key] == is);
        match (rest, new) {
            ([], None) => items.retain(|item| item[key] != is),
            ([], Some(mut new)) => {
                new[key] = is.into();
                match place {
                    Some(place) => items[place] = new,
                    None => items.push(new),
                }
            }
            (rest, new) => {
                let place = place.unwrap_or_else(|| {
                    items.push(json!({ key: is }));
                    items.len() - 1
                });
                put_in(&mut items[place], rest, new);
            }
        }
        return;
    }
    if !value.is_object() {
        *value = json!({});
    }
    let Value::Object(fields) = value else { return };
    match (rest, new) {
        ([], None) => {
            fields.remove(*step);
        }
        ([], Some(new)) => {
            fields.insert((*step).to_owned(), new);
        }
        (rest, new) => put_in(fields.entry((*step).to_owned()).or_insert(Value::Null), rest, new),
    }
}
