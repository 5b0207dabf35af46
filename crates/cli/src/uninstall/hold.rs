//! The Lease of the leader election is held while marks are taken off, so that no operator can put them back meanwhile.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::api::Api;

/// After a crash of this command an operator can lead again this much later.
const SECONDS: u32 = 60;
/// The Lease is renewed if the last time is longer ago.
const PERIOD: Duration = Duration::from_secs(10);

pub(super) struct Hold {
    path: String,
    lease: Value,
    renewed: Instant,
}

impl Hold {
    /// Takes a Lease that nobody has taken since it was read.
    pub(super) async fn take(api: &Api, path: &str, lease: &Value, person: &str) -> kube::Result<Self> {
        let now = micro(api.now().await?);
        let spec = json!({
            "holderIdentity": format!("salvor uninstall, by {person}"), "leaseDurationSeconds": SECONDS, "acquireTime": now, "renewTime": now,
        });
        let lease = api.patch(path, lease, json!({ "spec": spec })).await?;
        Ok(Self { path: path.to_owned(), lease, renewed: Instant::now() })
    }

    /// Renews it if it is time to. An error means that somebody else may have it.
    pub(super) async fn renew(&mut self, api: &Api) -> kube::Result<()> {
        if self.renewed.elapsed() < PERIOD {
            return Ok(());
        }
        let spec = json!({ "renewTime": micro(api.now().await?) });
        self.lease = api.patch(&self.path, &self.lease, json!({ "spec": spec })).await?;
        self.renewed = Instant::now();
        Ok(())
    }

    /// The Lease as it was last written.
    pub(super) fn lease(&self) -> &Value {
        &self.lease
    }

    /// Leaves it to whoever wants it next.
    pub(super) async fn give_back(self, api: &Api) -> kube::Result<()> {
        api.patch(&self.path, &self.lease, json!({ "spec": { "holderIdentity": "" } })).await.map(drop)
    }
}

/// A time as Leases have it.
fn micro(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
