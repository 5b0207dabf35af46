//! Watches all served resources that no loop knows as a kind, also those that are defined while the cluster runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::Change;
use super::collection::Resource;
use super::follow::{Other, PATIENCE, Shared, follow, retry_after};
use super::served::Served;

/// A server may report a definition as established a little before it serves the resource: the second look finds it
/// then.
const SECOND_LOOK: Duration = Duration::from_secs(30);

pub(crate) async fn follow_everything(client: Client, shared: Arc<Shared>) {
    let mut definitions = shared.definitions();
    let mut tasks = JoinSet::new();
    let mut followed: BTreeMap<Arc<Resource>, AbortHandle> = BTreeMap::new();
    let mut failures = 0;
    let mut looks_again = false;
    loop {
        definitions.catch_up();
        let Ok(Ok(served)) = timeout(PATIENCE, Served::ask(&client)).await else {
            tracing::debug!("cannot find out what is served");
            failures += 1;
            sleep(retry_after(failures)).await;
            continue;
        };
        failures = 0;
        let mut gone = std::mem::take(&mut followed);
        for resource in served.others() {
            let follower = gone.remove(resource).unwrap_or_else(|| {
                let shelf = Other(Arc::clone(resource));
                tasks.spawn(follow(shelf, client.clone(), Arc::clone(&shared)))
            });
            followed.insert(Arc::clone(resource), follower);
        }
        gone.into_values().for_each(|follower| follower.abort());
        shared.tell(|world| {
            world.serve(served);
            vec![Change::Served]
        });
        if looks_again {
            looks_again = timeout(SECOND_LOOK, definitions.changed()).await.is_ok();
        } else {
            definitions.changed().await;
            looks_again = true;
        }
    }
}
