//! Sends a transcript's requests and keeps the answers.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use http::Method;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::transcript::{Step, Transcript};

/// No compared request takes the real server this long.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Embedded,
    Real,
}

/// The answer of one server to one request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) warnings: Vec<String>,
    pub(crate) retry_after: String,
    pub(crate) body: Value,
    /// Kept so that both sides leave out the same fields.
    pub(crate) ignore: Vec<String>,
    pub(crate) only: Vec<String>,
    /// Texts that always differ, and their placeholders.
    pub(crate) known: BTreeMap<String, String>,
}

pub(crate) struct Player {
    client: Client,
    namespace: String,
    side: Side,
    kept: BTreeMap<String, String>,
    known: BTreeMap<String, String>,
}

impl Player {
    pub(crate) fn new(client: Client, namespace: &str, side: Side) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            side,
            kept: BTreeMap::from([("ns".to_owned(), namespace.to_owned())]),
            known: BTreeMap::new(),
        }
    }

    /// Sets the values of words in braces.
    pub(crate) fn knowing(mut self, words: &[(&str, String)]) -> Self {
        self.kept.extend(words.iter().map(|(word, text)| ((*word).to_owned(), text.clone())));
        self
    }

    pub(crate) async fn play(mut self, transcript: &Transcript) -> Vec<Answer> {
        let namespace = json!({ "metadata": { "name": self.namespace } });
        let (status, ..) = self
            .send(Method::POST, "/api/v1/namespaces", Some(&namespace), "application/json", None, None)
            .await;
        assert_eq!(status, 201, "the namespace {} cannot be made", self.namespace);
        let mut answers = Vec::new();
        for step in &transcript.steps {
            answers.push(self.step(step).await);
        }
        answers
    }

    async fn step(&mut self, step: &Step) -> Answer {
        let request = self.fill(&step.request);
        let (method, path) = request.split_once(' ').expect("a request is `METHOD path`");
        let body = step.body.as_ref().map(|body| match body {
            // Text is sent as it is: not everything that a client sends is JSON.
            Value::String(text) => Value::String(self.fill(text)),
            other => serde_json::from_str(&self.fill(&other.to_string())).unwrap(),
        });
        let kind = match step.kind.as_deref() {
            None => "application/json",
            Some("json") => "application/json-patch+json",
            Some("merge") => "application/merge-patch+json",
            Some("strategic") => "application/strategic-merge-patch+json",
            Some("apply") => "application/apply-patch+yaml",
            Some(other) => other,
        };
        let method: Method = method.parse().unwrap();
        let mut last = Value::Null;
        let asking = async {
            loop {
                let accept = step.accept.as_deref();
                let answer = self.send(method.clone(), path, body.as_ref(), kind, accept, step.events).await;
                if step.until.iter().all(|(pointer, wanted)| answer.2.pointer(pointer) == Some(wanted)) {
                    return answer;
                }
                last = answer.2;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (status, headers, body) = tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| {
            panic!("{:?} never answers {path} with {:?}, but with {last}", self.side, step.until)
        });
        for (name, pointer) in &step.keep {
            let found =
                body.pointer(pointer).unwrap_or_else(|| panic!("{}: no {pointer} in {body}", step.request));
            let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
            self.kept.insert(name.clone(), text);
        }
        self.learn(&body);
        let header =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        Answer {
            status,
            content_type: header("content-type"),
            retry_after: header("retry-after"),
            warnings: headers
                .get_all("warning")
                .iter()
                .map(|value| value.to_str().unwrap().to_owned())
                .collect(),
            body,
            ignore: step.ignore.clone(),
            only: step.only.clone(),
            known: self.known.clone(),
        }
    }

    fn fill(&self, text: &str) -> String {
        self.kept
            .iter()
            .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }

    /// Remembers UIDs and revisions, which also appear in messages.
    fn learn(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                for (key, member) in members {
                    if let (true, Some(text)) = (key == "uid" || key == "resourceVersion", member.as_str()) {
                        self.known.insert(text.to_owned(), format!("<{key}>"));
                    }
                    self.learn(member);
                }
            }
            Value::Array(elements) => elements.iter().for_each(|element| self.learn(element)),
            _ => {}
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        kind: &str,
        accept: Option<&str>,
        events: Option<usize>,
    ) -> (u16, http::HeaderMap, Value) {
        let bytes = match body {
            None => Vec::new(),
            Some(Value::String(text)) => text.clone().into_bytes(),
            Some(value) => value.to_string().into_bytes(),
        };
        let path = path.replace(' ', "%20").replace('>', "%3E");
        let mut request =
            http::Request::builder().method(method).uri(&path).header("user-agent", "transcripts");
        if body.is_some() {
            request = request.header("content-type", kind);
        }
        request = request.header("accept", accept.unwrap_or("application/json"));
        let request = request.body(Body::from(bytes)).unwrap();
        let answering = async {
            let response = self.client.send(request).await.unwrap();
            let (head, body) = response.into_parts();
            let value = match events {
                Some(count) if head.status.is_success() => read_events(body, count).await,
                _ => {
                    let bytes = body.collect().await.unwrap().to_bytes();
                    serde_json::from_slice(&bytes)
                        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()))
                }
            };
            (head.status.as_u16(), head.headers, value)
        };
        tokio::time::timeout(PATIENCE, answering)
            .await
            .unwrap_or_else(|_| panic!("{:?} does not answer {path} in time", self.side))
    }
}

/// The first events of a watch, or all that come before its end.
async fn read_events(body: Body, count: usize) -> Value {
    let mut frames = body.into_data_stream();
    let mut text = Vec::new();
    while let Some(frame) = frames.next().await {
        text.extend_from_slice(&frame.unwrap());
        if text.iter().filter(|byte| **byte == b'\n').count() >= count && count > 0 {
            break;
        }
    }
    let text = String::from_utf8(text).unwrap();
    // After the last event that is wanted, the next may have begun.
    let wanted = if count == 0 { usize::MAX } else { count };
    text.lines().take(wanted).map(|line| serde_json::from_str::<Value>(line).unwrap()).collect()
}
