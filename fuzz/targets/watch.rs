//! The responses of an API server to a list and a watch. The first line is the list, the rest is the watch.

#![no_main]

use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use salvor_operator::watch::{Identified, Project, Source, Target, WatchHealth, follow};
use salvor_recovery::ids::{ResourceVersion, Uid};
use serde_json::Value;
use tokio::sync::mpsc;

struct Everything;

impl Project for Everything {
    type Wire = Thing;
    type Kept = Uid;

    fn keep(&self, thing: Thing) -> Option<Uid> {
        Some(thing.uid)
    }
}

struct Thing {
    uid: Uid,
    resource_version: ResourceVersion,
}

impl<'de> serde::Deserialize<'de> for Thing {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default().to_owned();
        Ok(Self { uid: text("uid").into(), resource_version: text("resourceVersion").as_str().into() })
    }
}

impl Identified for Thing {
    fn uid(&self) -> &Uid {
        &self.uid
    }

    fn resource_version(&self) -> &ResourceVersion {
        &self.resource_version
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let data = data.to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let service = tower::service_fn(move |request: Request<Body>| {
            let line = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let body = if is_watch { &data[line..] } else { &data[..line] };
            std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(Body::from(body.to_vec()))))
        });
        let source = Source::new(kube::Client::new(service, "default"));
        let (changes, mut heard) = mpsc::channel(64);
        let target = Target::all("things", "/things");
        let watch = follow(source, target, Everything, WatchHealth::new("things"), changes);
        let listener = async { while heard.recv().await.is_some() {} };
        // Long enough to be refused a few times.
        let _ = tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(watch, listener) }).await;
    });
});
