//! Reads from the API what decides whether a second copy of a pod may run: its owners, its claims and its Job.
//!
//! Claims and Jobs are read only for the few pods for which they decide.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::{try_join, try_join_all};
use kube::Client;
use salvor_recovery::{
    gate::{Claim, Copies, GatePolicy, LEADER_WORKER_SET, Owner, Work},
    objects::JobRef,
    zombie::ConsentAnnotations,
};
use serde::{Deserialize, de::IgnoredAny};
use tokio::{
    sync::{Notify, Semaphore},
    task::{AbortHandle, JoinSet},
};

use crate::{
    client::{
        live,
        wire::{self, Meta, Nothing, Object, read},
    },
    recoveries::rights::{Resource, Right, Verb},
    tasks::of_this_operator,
    watch_set::feeds::Outbox,
};

/// Limit on the claims of one pod that are read, all at once: a second look must finish within a second. A pod with
/// more is assumed to have a single-node claim among them.
const MOST_CLAIMS: usize = 16;
/// Access modes that let pods on several nodes use a volume at once.
const FOR_MANY: [&str; 2] = ["ReadWriteMany", "ReadOnlyMany"];
/// Limit on pods whose claims and Jobs are read concurrently.
const AT_ONCE: usize = 4;
/// Timeout for the claims and the Job of a pod.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Delay before an unreadable object is read again. It may be created later, or access to it granted.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The permissions to read what decides about a second copy of a pod.
pub(crate) fn rights() -> [Right; 2] {
    [
        Resource::of("", "persistentvolumeclaims").everywhere(&[Verb::Get]),
        Resource::of("batch", "jobs").everywhere(&[Verb::Get]),
    ]
}

/// The annotations of a pod that matter to more than one recovery.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct WorkAnnotations {
    /// Set by a kubelet on the mirror pod of a static pod.
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<IgnoredAny>,
    #[serde(rename = "kueue.x-k8s.io/safe-to-forcefully-terminate")]
    terminate: Option<String>,
    #[serde(rename = "kueue.x-k8s.io/safe-to-forcefully-delete")]
    delete: Option<String>,
}

impl WorkAnnotations {
    pub(crate) fn is_mirror(&self) -> bool {
        self.mirror.is_some()
    }

    fn consent(&self) -> ConsentAnnotations {
        let Self { mirror: _, terminate, delete } = self;
        ConsentAnnotations {
            terminate: terminate.clone(),
            delete: delete.clone(),
            ..ConsentAnnotations::default()
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeWire {
    pub(crate) name: String,
    persistent_volume_claim: Option<ClaimName>,
    pub(crate) ephemeral: Option<IgnoredAny>,
    // Disks that a pod uses without a claim: only one node at a time can attach them.
    aws_elastic_block_store: Option<IgnoredAny>,
    azure_disk: Option<IgnoredAny>,
    cinder: Option<IgnoredAny>,
    fc: Option<IgnoredAny>,
    gce_persistent_disk: Option<IgnoredAny>,
    iscsi: Option<IgnoredAny>,
    rbd: Option<IgnoredAny>,
    vsphere_volume: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ClaimName {
    claim_name: String,
}

impl VolumeWire {
    fn is_disk(&self) -> bool {
        let disks = [
            self.aws_elastic_block_store,
            self.azure_disk,
            self.cinder,
            self.fc,
            self.gce_persistent_disk,
            self.iscsi,
            self.rbd,
            self.vsphere_volume,
        ];
        disks.iter().any(Option::is_some)
    }
}

/// What a pod itself says about a second copy. Its claims and its Job are not read yet.
pub(crate) fn work(metadata: &Meta<WorkAnnotations>, volumes: &[VolumeWire], gate: &GatePolicy) -> Work {
    let claim = |volume: &VolumeWire| {
        let name = volume.persistent_volume_claim.as_ref()?.claim_name.clone();
        Some(Claim { namespace: metadata.namespace.clone(), name })
    };
    let claims: Vec<Claim> = volumes.iter().filter_map(claim).collect();
    let job = metadata.controller().filter(|owner| owner.kind == "Job" && group(owner) == "batch");
    let job = job.map(|owner| JobRef {
        uid: owner.uid.clone(),
        namespace: metadata.namespace.clone(),
        name: owner.name.clone(),
    });
    let disk = volumes.iter().find(|volume| volume.is_disk());
    let copies = match (disk, claims.len(), &job) {
        (Some(volume), _, _) => Copies::Forbidden(format!("volume {} is a disk for one node", volume.name)),
        (None, 0, None) => Copies::Allowed,
        (None, 0..=MOST_CLAIMS, _) => Copies::Unread,
        (None, more, _) => Copies::Forbidden(format!("it has {more} claims, more than are read")),
    };
    Work {
        owners: metadata.owner_references.iter().map(owner).collect(),
        in_leader_worker_set: metadata.labels.get(LEADER_WORKER_SET).is_some(),
        claims,
        job,
        copies,
        consent: gate.consent(&metadata.annotations.consent(), &metadata.labels),
    }
}

fn group(owner: &wire::Owner) -> &str {
    owner.api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

fn owner(owner: &wire::Owner) -> Owner {
    Owner { kind: owner.kind.clone(), group: group(owner).to_owned(), controls: owner.controller }
}

type ClaimWire = Object<ClaimSpec, Nothing>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSpec {
    access_modes: Vec<String>,
}

type JobWire = Object<JobSpec, Nothing>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct JobSpec {
    pod_replacement_policy: String,
}

/// Reads the claims and the Job of a pod; the first one that forbids a second copy decides.
pub(crate) async fn read_copies(client: &Client, work: &Work) -> kube::Result<Copies> {
    if let Copies::Forbidden(_) = &work.copies {
        return Ok(work.copies.clone());
    }
    let claims = try_join_all(work.claims.iter().map(|claim| read_claim(client, claim)));
    let (claims, job) = try_join(claims, read_job(client, work.job.as_ref())).await?;
    Ok(claims.into_iter().chain([job]).find(|it| *it != Copies::Allowed).unwrap_or(Copies::Allowed))
}

async fn read_claim(client: &Client, claim: &Claim) -> kube::Result<Copies> {
    let Claim { namespace, name } = claim;
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
    let Some(text) = live::get(client, &path).await? else {
        return Ok(Copies::Unreadable(format!("claim {claim} does not exist")));
    };
    let modes = read::<ClaimWire>(&text)?.spec.access_modes;
    if modes.is_empty() {
        return Ok(Copies::Forbidden(format!("claim {claim} is without an access mode")));
    }
    let is_for_many = modes.iter().all(|mode| FOR_MANY.contains(&mode.as_str()));
    Ok(if is_for_many {
        Copies::Allowed
    } else {
        Copies::Forbidden(format!("claim {claim} is {}", modes.join(", ")))
    })
}

/// A deleted Job replaces no pod.
async fn read_job(client: &Client, job: Option<&JobRef>) -> kube::Result<Copies> {
    let Some(job) = job else { return Ok(Copies::Allowed) };
    let JobRef { uid, namespace, name } = job;
    let path = format!("/apis/batch/v1/namespaces/{namespace}/jobs/{name}");
    let Some(text) = live::get_if_there(client, &path).await? else { return Ok(Copies::Allowed) };
    let wire = read::<JobWire>(&text)?;
    let waits = wire.metadata.uid == *uid && wire.spec.pod_replacement_policy == "Failed";
    Ok(if waits {
        Copies::Forbidden(format!(
            "its Job {job} waits for the end of its pods (podReplacementPolicy: Failed)"
        ))
    } else {
        Copies::Allowed
    })
}

/// As `read_copies`, with an error as a possible answer.
pub(crate) async fn read_copies_or_why_not(client: &Client, work: &Work) -> Copies {
    let unreadable =
        |error| Copies::Unreadable(format!("a claim or its Job cannot be read: {}", live::brief(&error)));
    read_copies(client, work).await.unwrap_or_else(unreadable)
}

/// The pods whose claims and Jobs are read for a recovery, under its own keys. Clones share it.
#[derive(Debug)]
pub(crate) struct WorkReads<K>(Arc<(Mutex<BTreeMap<K, Work>>, Notify)>);

impl<K> Clone for WorkReads<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for WorkReads<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Ord + Clone + Send + 'static> WorkReads<K> {
    /// Reads these from now on, each until it is left out.
    pub(crate) fn set(&self, wanted: BTreeMap<K, Work>) {
        let mut now = self.state();
        if *now != wanted {
            *now = wanted;
            self.0.1.notify_one();
        }
    }

    pub(crate) fn now(&self) -> BTreeMap<K, Work> {
        self.state().clone()
    }

    fn state(&self) -> MutexGuard<'_, BTreeMap<K, Work>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the wanted pods until the receiver is gone.
    pub(crate) async fn run<News: Send + 'static>(
        self,
        client: Client,
        news: Outbox<News>,
        wrap: fn(K, Copies) -> News,
    ) {
        let mut tasks = JoinSet::new();
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut running: BTreeMap<K, AbortHandle> = BTreeMap::new();
        loop {
            let wanted = self.now();
            running.retain(|key, task| {
                let stays = wanted.contains_key(key);
                if !stays {
                    task.abort();
                }
                stays
            });
            for (key, work) in wanted {
                running.entry(key).or_insert_with_key(|key| {
                    let (client, turns, news) = (client.clone(), turns.clone(), news.clone());
                    tasks.spawn(of_this_operator(read_again(client, key.clone(), work, turns, news, wrap)))
                });
            }
            tokio::select! {
                biased;
                () = news.closed() => return,
                () = self.0.1.notified() => {}
                // Only to collect the tasks that ended.
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            }
        }
    }
}

/// Reads the claims and the Job of a pod repeatedly, as long as they are wanted.
async fn read_again<K: Clone, News>(
    client: Client,
    key: K,
    work: Work,
    turns: Arc<Semaphore>,
    news: Outbox<News>,
    wrap: fn(K, Copies) -> News,
) {
    loop {
        // The semaphore is never closed.
        let Ok(turn) = turns.acquire().await else { return };
        let reading = read_copies_or_why_not(&client, &work);
        let copies = match tokio::time::timeout(TIMEOUT, reading).await {
            Ok(copies) => copies,
            Err(_) => Copies::Unreadable(format!("its claims and its Job were not read within {TIMEOUT:?}")),
        };
        drop(turn);
        if news.send(wrap(key.clone(), copies)).await.is_err() {
            return;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::fake_api::{Answer, FakeApi};

    #[tokio::test(start_paused = true)]
    async fn claims_and_jobs_say_whether_two_may_run() {
        let api = FakeApi::new(|asked| {
            let name = asked.path.rsplit('/').next().unwrap_or_default();
            let modes = |modes: &[&str]| {
                Answer::Json(
                    200,
                    json!({
                        "metadata": {"name": name, "uid": "u", "resourceVersion": "1"}, "spec": {"accessModes": modes},
                    }),
                )
            };
            let job = |uid: &str, policy: &str| {
                let metadata = json!({"name": name, "uid": uid, "resourceVersion": "1"});
                Answer::Json(200, json!({"metadata": metadata, "spec": {"podReplacementPolicy": policy}}))
            };
            match name {
                "awaits" => job("u", "Failed"),
                "replaces" => job("u", "TerminatingOrFailed"),
                "another" => job("other", "Failed"),
                "once" => modes(&["ReadWriteOnce"]),
                "pod" => modes(&["ReadWriteOncePod"]),
                "many" => modes(&["ReadWriteMany"]),
                "read" => modes(&["ReadOnlyMany"]),
                "both" => modes(&["ReadWriteMany", "ReadWriteOnce"]),
                "none" => modes(&[]),
                "new" => modes(&["ReadWriteWhenever"]),
                "forbidden" => Answer::Refused(403, "not yours"),
                _ => Answer::Refused(404, "not found"),
            }
        });
        let work = |names: &[&str], job: Option<&str>| Work {
            owners: Vec::new(),
            in_leader_worker_set: false,
            claims: names.iter().map(|name| Claim { namespace: "ns".into(), name: (*name).into() }).collect(),
            job: job.map(|name| JobRef { uid: "u".into(), namespace: "ns".into(), name: name.into() }),
            copies: Copies::Unread,
            consent: None,
        };
        let once = |text: &str| Copies::Forbidden(text.into());
        let unreadable = |text: &str| Copies::Unreadable(text.into());
        let cases = [
            (vec![], Copies::Allowed),
            (vec!["many", "read"], Copies::Allowed),
            (vec!["many", "once", "gone"], once("claim ns/once is ReadWriteOnce")),
            (vec!["pod"], once("claim ns/pod is ReadWriteOncePod")),
            (vec!["both"], once("claim ns/both is ReadWriteMany, ReadWriteOnce")),
            (vec!["none"], once("claim ns/none is without an access mode")),
            (vec!["new"], once("claim ns/new is ReadWriteWhenever")),
            (vec!["gone"], unreadable("claim ns/gone does not exist")),
            (vec!["many", "forbidden"], unreadable("a claim or its Job cannot be read: not yours (403)")),
        ];
        for (names, expected) in cases {
            assert_eq!(read_copies_or_why_not(&api.client, &work(&names, None)).await, expected, "{names:?}");
        }
        assert!(read_copies(&api.client, &work(&["forbidden"], None)).await.is_err());
        let copies = async |job| read_copies_or_why_not(&api.client, &work(&["many"], Some(job))).await;
        let awaits = "its Job ns/awaits waits for the end of its pods (podReplacementPolicy: Failed)";
        assert_eq!(copies("awaits").await, once(awaits));
        assert_eq!(copies("replaces").await, Copies::Allowed);
        assert_eq!(copies("another").await, Copies::Allowed, "another Job of that name replaces nothing");
        assert_eq!(copies("gone").await, Copies::Allowed);
        assert_eq!(
            copies("forbidden").await,
            unreadable("a claim or its Job cannot be read: not yours (403)")
        );
    }
}
