//! Holds the Lease of the leader election while marks are removed, so that no operator can add them again in the
//! meantime.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::api::Api;

/// If this command crashes, an operator can lead again after this time.
const SECONDS: u32 = 60;
/// The Lease is renewed if the last renewal is older.
const PERIOD: Duration = Duration::from_secs(10);

pub(super) struct Hold {
    path: String,
    lease: Value,
    renewed: Instant,
}

impl Hold {
    /// Acquires a Lease if it is unchanged since it was read.
    pub(super) async fn take(api: &Api, path: &str, lease: &Value, person: &str) -> kube::Result<Self> {
        let now = micro(api.now().await?);
        let spec = json!({
            "holderIdentity": format!("salvor uninstall, by {person}"), "leaseDurationSeconds": SECONDS, "acquireTime": now, "renewTime": now,
        });
        let lease = api.patch(path, lease, json!({ "spec": spec })).await?;
        Ok(Self { path: path.to_owned(), lease, renewed: Instant::now() })
    }

    /// Renews the Lease if it is due. An error means that another process may hold it.
    pub(super) async fn renew(&mut self, api: &Api) -> kube::Result<()> {
        if self.renewed.elapsed() < PERIOD {
            return Ok(());
        }
        let spec = json!({ "renewTime": micro(api.now().await?) });
        self.lease = api.patch(&self.path, &self.lease, json!({ "spec": spec })).await?;
        self.renewed = Instant::now();
        Ok(())
    }

    /// The Lease as last written.
    pub(super) fn lease(&self) -> &Value {
        &self.lease
    }

    /// Releases the Lease.
    pub(super) async fn give_back(self, api: &Api) -> kube::Result<()> {
        api.patch(&self.path, &self.lease, json!({ "spec": { "holderIdentity": "" } })).await.map(drop)
    }
}

/// The time format of Leases.
fn micro(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
