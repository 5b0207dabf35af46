//! Patches of every type, sent to the embedded API server. The first byte selects the type.

#![no_main]

use http::Request;
use salvor_apiserver::{Cluster, Settings};

const TYPES: [&str; 4] = [
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const POD: &str = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"main","image":"x","resources":{"requests":{"cpu":"1500m"}}}]}}"#;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, patch)) = data.split_first() else { return };
    let kind = TYPES[usize::from(*first) % TYPES.len()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let client = Cluster::new(Settings::default()).client();
        let json = |method: http::request::Builder, kind: &str, body: Vec<u8>| {
            method.header("content-type", kind).body(body).unwrap()
        };
        let pods = "/api/v1/namespaces/default/pods";
        let made = json(Request::post(pods), "application/json", POD.as_bytes().to_vec());
        client.request_text(made).await.unwrap();
        let path = format!("{pods}/p?fieldManager=fuzz&force=true");
        let _ = client.request_text(json(Request::patch(path), kind, patch.to_vec())).await;
        client.request_text(Request::get(format!("{pods}/p")).body(Vec::new()).unwrap()).await.unwrap();
    });
});
