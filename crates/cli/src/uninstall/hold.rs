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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{Namespace, Node};
    use kube::api::{Patch, PatchParams, PostParams};
    use salvor_api::config::Configuration;
    use salvor_apiserver::{Cluster, Settings};

    use super::super::marks::Carrier;
    use super::super::report::Report;
    use super::super::{Look, Uninstall, UninstallArgs};
    use super::*;
    use crate::cluster::ClusterArgs;
    use crate::output::Form;

    const HOME: &str = "salvor-system";
    const MARK: &str = "repair.salvor.dev/progress";

    async fn cluster() -> Cluster {
        let cluster = Cluster::new(Settings::default());
        let home = serde_json::from_value(json!({"metadata": {"name": HOME}})).unwrap();
        let namespaces: kube::Api<Namespace> = kube::Api::all(cluster.client());
        namespaces.create(&PostParams::default(), &home).await.unwrap();
        cluster
    }

    fn args() -> UninstallArgs {
        UninstallArgs {
            yes: true,
            abandon_workloads: false,
            delete_crds: false,
            output: Form::Json,
            config: None,
            cluster: ClusterArgs::default(),
        }
    }

    fn uninstall<'a>(args: &'a UninstallArgs, cluster: &Cluster) -> Uninstall<'a> {
        Uninstall {
            args,
            api: Api::of(cluster.client()),
            configuration: Configuration::default(),
            runs_appwrappers: false,
            lease: None,
            hold: None,
            report: Report::default(),
        }
    }

    /// The same, while it holds the Lease.
    async fn holding<'a>(args: &'a UninstallArgs, cluster: &Cluster) -> Uninstall<'a> {
        elect(cluster, HOME, "").await;
        let mut uninstall = uninstall(args, cluster);
        uninstall.find_lease(cluster.now()).await;
        let (path, lease) = (uninstall.lease_path(), uninstall.lease.clone().unwrap());
        uninstall.hold = Some(Hold::take(&uninstall.api, &path, &lease, "me").await.unwrap());
        uninstall
    }

    fn leases(cluster: &Cluster, namespace: &str) -> kube::Api<Lease> {
        kube::Api::namespaced(cluster.client(), namespace)
    }

    /// An operator makes the Lease.
    async fn elect(cluster: &Cluster, namespace: &str, holder: &str) {
        let lease = json!({
            "metadata": {"name": "salvor", "namespace": namespace},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": micro(cluster.now())},
        });
        let lease = serde_json::from_value(lease).unwrap();
        leases(cluster, namespace).create(&PostParams::default(), &lease).await.unwrap();
    }

    /// An operator takes the Lease.
    async fn take(cluster: &Cluster) {
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": "salvor-7"}}));
        leases(cluster, HOME).patch("salvor", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn holder(cluster: &Cluster) -> Option<String> {
        leases(cluster, HOME).get_opt("salvor").await.unwrap()?.spec?.holder_identity
    }

    #[tokio::test]
    async fn a_leader_in_any_namespace_is_in_the_way() {
        for namespace in [HOME, "default"] {
            let (cluster, args) = (cluster().await, args());
            elect(&cluster, namespace, "salvor-7").await;
            let mut uninstall = uninstall(&args, &cluster);
            uninstall.find_lease(cluster.now()).await;
            let blocked = uninstall.report.blocked.join(" ");
            assert!(blocked.contains(&format!("salvor-7 leads (Lease {namespace}/salvor)")), "{blocked}");
        }
    }

    #[tokio::test]
    async fn a_lease_that_an_operator_took_since_it_was_read_is_left_to_it() {
        let (cluster, args) = (cluster().await, args());
        elect(&cluster, HOME, "").await;
        let mut uninstall = uninstall(&args, &cluster);
        uninstall.find_lease(cluster.now()).await;
        take(&cluster).await;
        let (path, read) = (uninstall.lease_path(), uninstall.lease.clone().unwrap());
        assert!(Hold::take(&uninstall.api, &path, &read, "me").await.is_err());
        assert_eq!(holder(&cluster).await.as_deref(), Some("salvor-7"));
    }

    #[tokio::test]
    async fn nothing_more_is_taken_off_after_an_operator_took_the_lease() {
        let (cluster, args) = (cluster().await, args());
        let nodes: kube::Api<Node> = kube::Api::all(cluster.client());
        let marked = json!({"metadata": {"name": "n", "annotations": {MARK: "{}"}}});
        nodes.create(&PostParams::default(), &serde_json::from_value(marked).unwrap()).await.unwrap();
        let mut uninstall = holding(&args, &cluster).await;
        take(&cluster).await;
        uninstall.hold.as_mut().unwrap().renewed -= PERIOD;
        uninstall.sweep(Carrier::Node, Look::Act).await;
        let annotations = nodes.get("n").await.unwrap().metadata.annotations.unwrap_or_default();
        assert!(annotations.contains_key(MARK), "{annotations:?}");
        assert!(!uninstall.report.is_complete());
    }

    #[tokio::test]
    async fn the_lease_of_an_operator_is_not_deleted() {
        let (cluster, args) = (cluster().await, args());
        let mut uninstall = holding(&args, &cluster).await;
        take(&cluster).await;
        uninstall.end_lease().await;
        assert!(!uninstall.report.is_complete());
        assert_eq!(holder(&cluster).await.as_deref(), Some("salvor-7"));
    }

    #[tokio::test]
    async fn without_a_lease_an_operator_that_begins_meanwhile_is_reported() {
        let (cluster, args) = (cluster().await, args());
        let mut uninstall = uninstall(&args, &cluster);
        uninstall.find_lease(cluster.now()).await;
        assert!(uninstall.lease.is_none() && uninstall.report.is_complete(), "{:?}", uninstall.report);
        elect(&cluster, HOME, "salvor-7").await;
        uninstall.end_lease().await;
        assert!(!uninstall.report.is_complete());
    }
}
