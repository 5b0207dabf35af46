//! The controller half of a simulated CSI driver: creates a volume for every claim, attaches and detaches it.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fleet::RetryBackoff;

/// Set by the persistent volume controller on claims that wait for an external provisioner.
const PROVISIONER_ANNOTATION: &str = "volume.kubernetes.io/storage-provisioner";

/// The backoff after a failed call.
const RETRY: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageFault {
    /// Volumes are attached and detached when asked.
    None,
    /// Detaching hangs; attachments that are being deleted stay.
    DetachHangs,
}

/// A running simulated CSI driver. Dropping it stops it.
#[derive(Debug)]
pub struct Storage {
    driver: String,
    fault: watch::Sender<StorageFault>,
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl Storage {
    /// Starts a driver of this name, with a StorageClass of the same name, on the current tokio runtime.
    pub fn start(client: Client, driver: &str) -> BoxFuture<'_, kube::Result<Self>> {
        async move {
            let class: StorageClass = serde_json::from_value(json!({
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": { "name": driver },
                "provisioner": driver,
                "volumeBindingMode": "Immediate",
            }))
            .map_err(kube::Error::SerdeError)?;
            Api::all(client.clone()).create(&PostParams::default(), &class).await?;
            let stop = CancellationToken::new();
            #[expect(clippy::disallowed_methods, reason = "only one waits")]
            let (fault, faults) = watch::channel(StorageFault::None);
            let controller = Controller {
                client,
                driver: driver.to_owned(),
                finalizer: format!("external-attacher/{driver}"),
                faults,
                leaving: BTreeMap::new(),
            };
            let running = stop.clone();
            let task = tokio::spawn(async move {
                running.run_until_cancelled(controller.run()).await;
            });
            Ok(Self { driver: driver.to_owned(), fault, task, stop: stop.drop_guard() })
        }
        .boxed()
    }

    /// The name of the driver and of its StorageClass.
    pub fn class(&self) -> &str {
        &self.driver
    }

    pub fn inject(&self, fault: StorageFault) {
        self.fault.send_replace(fault);
    }

    /// Stops it and waits until its calls have ended.
    pub async fn stop(self) {
        drop(self.stop);
        // A panic of the task has been printed already, and there is nothing left to stop then.
        let _ = self.task.await;
    }
}

struct Controller {
    client: Client,
    driver: String,
    finalizer: String,
    faults: watch::Receiver<StorageFault>,
    /// Attachments that are being deleted, while detaching hangs.
    leaving: BTreeMap<String, VolumeAttachment>,
}

enum Task {
    Provision(PersistentVolumeClaim),
    Attach(VolumeAttachment),
    Detach(VolumeAttachment),
}

impl Controller {
    async fn run(mut self) {
        let config = || watcher::Config::default().timeout(60);
        let claims = watcher(Api::<PersistentVolumeClaim>::all(self.client.clone()), config());
        let attachments = watcher(Api::<VolumeAttachment>::all(self.client.clone()), config());
        let mut claims = pin!(claims.backoff(RetryBackoff::default()).applied_objects());
        let mut attachments = pin!(attachments.backoff(RetryBackoff::default()).applied_objects());
        loop {
            tokio::select! {
                biased;
                // The watch recovers from errors by itself.
                Some(claim) = claims.next() => if let Ok(claim) = claim {
                    self.until_done(Task::Provision(claim)).await;
                },
                Some(attachment) = attachments.next() => if let Ok(attachment) = attachment {
                    self.attachment(attachment).await;
                },
                Ok(()) = self.faults.changed() => {
                    for (_, attachment) in std::mem::take(&mut self.leaving) {
                        self.attachment(attachment).await;
                    }
                }
                else => return,
            }
        }
    }

    async fn attachment(&mut self, attachment: VolumeAttachment) {
        if attachment.spec.attacher != self.driver {
            return;
        }
        let goes = attachment.metadata.deletion_timestamp.is_some();
        if goes && *self.faults.borrow() == StorageFault::DetachHangs {
            self.leaving.insert(attachment.name_any(), attachment);
        } else if goes {
            self.until_done(Task::Detach(attachment)).await;
        } else if !attachment.status.as_ref().is_some_and(|s| s.attached) {
            self.until_done(Task::Attach(attachment)).await;
        }
    }

    async fn until_done(&self, task: Task) {
        loop {
            let result = match &task {
                Task::Provision(claim) => self.provision(claim).await,
                Task::Attach(attachment) => self.attach(attachment).await,
                Task::Detach(attachment) => self.detach(attachment).await,
            };
            let Err(error) = result else { return };
            if matches!(&error, kube::Error::Api(status) if matches!(status.code, 404 | 409)) {
                return;
            }
            tracing::debug!(driver = self.driver, %error, "call failed; it will be made again");
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn provision(&self, claim: &PersistentVolumeClaim) -> kube::Result<()> {
        let wanted = claim.annotations().get(PROVISIONER_ANNOTATION) == Some(&self.driver);
        let spec = claim.spec.clone().unwrap_or_default();
        if !wanted || spec.volume_name.is_some() || claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let uid = claim.uid().unwrap_or_default();
        let requests = spec.resources.and_then(|r| r.requests);
        let volume: PersistentVolume = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": format!("pvc-{uid}"),
                "annotations": { "pv.kubernetes.io/provisioned-by": self.driver },
            },
            "spec": {
                "accessModes": spec.access_modes,
                "capacity": requests,
                "storageClassName": spec.storage_class_name,
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": claim.namespace(),
                    "name": claim.name_any(),
                    "uid": uid,
                },
                "csi": { "driver": self.driver, "volumeHandle": format!("volume-{uid}") },
            },
        }))
        .map_err(kube::Error::SerdeError)?;
        Api::all(self.client.clone()).create(&PostParams::default(), &volume).await.map(|_| ())
    }

    async fn attach(&self, attachment: &VolumeAttachment) -> kube::Result<()> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let name = attachment.name_any();
        let hold = json!({"metadata": {"finalizers": [self.finalizer]}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(hold)).await?;
        let attached = json!({"status": {"attached": true}});
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(attached)).await.map(|_| ())
    }

    async fn detach(&self, attachment: &VolumeAttachment) -> kube::Result<()> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let released = json!({"metadata": {"finalizers": null}});
        let name = attachment.name_any();
        api.patch(&name, &PatchParams::default(), &Patch::Merge(released)).await.map(|_| ())
    }
}
