//! Leader election on a Lease, with client-go's protocol: a claim expires when the observer has not *seen* it change
//! for its duration, on the observer's own monotonic clock. The wall-clock times in the Lease are informational and
//! never compared.

mod brake_state;
mod leadership;
pub(crate) mod pause;
pub(crate) mod pause_client;
pub(crate) mod published;
pub(crate) mod watchdog;

pub(crate) use self::{
    brake_state::brake_of,
    leadership::{Leadership, Term},
};

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Namespace,
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use salvor_api::{config::LeaderElection, names::annotations};
use salvor_recovery::{brake::Brake, ids::ResourceVersion};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    brake_state::{Inherited, inherited, unreadable},
    leadership::{Claim, Tenure},
};
use crate::{
    client::{
        live,
        revision::{History, Revision},
    },
    lead::{pause::paused, watchdog::Watchdog},
    metrics::Metrics,
    time::{Time, std_duration},
};

/// Lower limit between two renewals, however often the brake admits something.
const SOONEST_RENEWAL: Duration = Duration::from_millis(100);

pub(crate) struct Elector {
    leases: Api<Lease>,
    client: Client,
    settings: LeaderElection,
    identity: String,
    time: Time,
    metrics: Metrics,
    brake: Arc<Mutex<Brake>>,
    /// False in a dry run, which writes only what the election needs.
    keeps_brake: bool,
    /// Status that the leader publishes on the Lease.
    status: Option<String>,
    leadership: Leadership,
    history: History,
    watchdog: Watchdog,
    /// The Lease as last read, and when it was last seen to change.
    seen: Option<(Lease, Instant)>,
    /// The brake state that the previous leader left on the Lease.
    inherited: Inherited,
    /// An unreadable brake state found on the Lease, kept in an annotation instead of being lost.
    unreadable: Option<String>,
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0} holds it")]
    HeldBy(String),
    #[error("somebody else changed it")]
    Lost,
    #[error("somebody deleted it")]
    Deleted,
    #[error("{}", live::brief(.0))]
    Api(kube::Error),
}

impl Elector {
    pub(crate) fn new(
        client: Client,
        settings: LeaderElection,
        identity: String,
        time: Time,
        metrics: Metrics,
        brake: Arc<Mutex<Brake>>,
    ) -> (Self, Leadership) {
        let leadership = Leadership::new(Tenure::Follows);
        let leases = Api::namespaced(client.clone(), &settings.lease_namespace);
        let elector = Self {
            leases,
            client,
            settings,
            identity,
            time,
            metrics,
            brake,
            keeps_brake: true,
            status: None,
            leadership: leadership.clone(),
            history: History::default(),
            watchdog: Watchdog::of_this_thread(),
            seen: None,
            inherited: Inherited::Nothing,
            unreadable: None,
        };
        (elector, leadership)
    }

    /// In a dry run only the holder fields of the Lease are written.
    #[must_use]
    pub(crate) fn in_dry_run(self) -> Self {
        Self { keeps_brake: false, status: None, ..self }
    }

    /// Publishes the version and configuration on the Lease while this process leads.
    #[must_use]
    pub(crate) fn publishing(self, status: String) -> Self {
        Self { status: Some(status), ..self }
    }

    /// Reports to `history` when the Lease's resourceVersion goes backwards.
    pub(crate) fn minding(self, history: History) -> Self {
        Self { history, ..self }
    }

    /// Leads only while the working thread makes progress.
    pub(crate) fn heeding(self, watchdog: Watchdog) -> Self {
        Self { watchdog, ..self }
    }

    /// Campaigns and renews until `stop` is cancelled, then releases the Lease so that another replica need not wait
    /// for its expiry.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let pause = std_duration(self.settings.retry_period);
        let deadline = std_duration(self.settings.renew_deadline);
        let mut said = String::new();
        loop {
            if self.watchdog.is_stuck() {
                self.release_until_unstuck(&stop).await;
                if stop.is_cancelled() {
                    break;
                }
                said.clear();
            }
            let sent = Instant::now();
            // Half the deadline per attempt, so that one hung request does not use up the whole tenure.
            let attempt = tokio::time::timeout(deadline / 2, self.acquire_or_renew());
            let result = tokio::select! {
                biased;
                result = attempt => result,
                () = stop.cancelled() => break,
            };
            match result {
                Ok(Ok(claim)) => {
                    if !self.is_leading() || claim == Claim::Acquired {
                        // Before any decision is made in the new term.
                        self.restore_brake();
                    }
                    if self.leadership.lead_until(sent + deadline, claim) {
                        tracing::info!(identity = self.identity, lease = self.lease_name(), "leading");
                        said.clear();
                    }
                }
                Ok(Err(refusal)) => {
                    let why = self.explain(&refusal);
                    if why != said {
                        tracing::info!(
                            identity = self.identity,
                            lease = self.lease_name(),
                            why,
                            "not leading"
                        );
                        said = why;
                    }
                    if matches!(refusal, Refusal::HeldBy(_) | Refusal::Deleted) {
                        self.leadership.follow();
                    }
                }
                Err(_) => tracing::warn!(lease = self.lease_name(), "lease request timed out"),
            }
            if let Tenure::LeadsUntil(end) = self.leadership.tenure()
                && end <= Instant::now()
            {
                tracing::warn!(
                    identity = self.identity,
                    lease = self.lease_name(),
                    "lease lost, writes stopped"
                );
            }
            if self.leadership.tenure().has_ended() {
                self.leadership.follow();
            }
            self.metrics.leads(self.is_leading());
            let next = async {
                self.leadership.renewal_asked_for().await;
                // Batch further admissions of the brake into the same renewal.
                tokio::time::sleep(SOONEST_RENEWAL).await;
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => break,
                () = next, if self.is_leading() => {}
            }
        }
        self.release().await;
    }

    /// Releases the Lease and waits until the working thread makes progress again. Until then another replica serves
    /// better.
    async fn release_until_unstuck(&mut self, stop: &CancellationToken) {
        tracing::error!(
            identity = self.identity,
            lease = self.lease_name(),
            silent_for = ?self.watchdog.silence(),
            "working thread stuck, releasing the lease"
        );
        self.release().await;
        while self.watchdog.is_stuck() {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(std_duration(self.settings.retry_period)) => {}
            }
        }
    }

    fn is_leading(&self) -> bool {
        self.leadership.term().is_some()
    }

    fn lease_name(&self) -> String {
        format!("{}/{}", self.settings.lease_namespace, self.settings.lease_name)
    }

    fn explain(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::Api(kube::Error::Api(status)) if status.code == 404 => format!(
                "namespace {:?} (leaderElection.leaseNamespace) is not there: create it, name another one, or run with \
                 --leader-elect=false",
                self.settings.lease_namespace
            ),
            Refusal::Api(kube::Error::Api(status)) if status.code == 403 => format!(
                "not allowed: {}; get, create and update on leases.coordination.k8s.io are needed in namespace {:?}",
                status.message, self.settings.lease_namespace
            ),
            other => other.to_string(),
        }
    }

    async fn acquire_or_renew(&mut self) -> Result<Claim, Refusal> {
        // Fast path of a leader: what we wrote last is usually still there.
        if let Some((lease, _)) = self.seen.clone()
            && self.is_leading()
        {
            match self.write(lease).await {
                Err(Refusal::Lost) => {}
                Err(refusal) => return Err(refusal),
                Ok(()) => {
                    // The annotation is the same, but its pause may have ended by itself.
                    let lease = self.seen.as_ref().map(|(lease, _)| lease);
                    self.apply_pause(lease.and_then(|lease| paused(lease, self.time.server())));
                    return Ok(Claim::Renewed);
                }
            }
        }
        let name = self.settings.lease_name.clone();
        let Some(lease) = self.leases.get_opt(&name).await.map_err(Refusal::Api)? else {
            // The holder notices the deletion only at its next renewal, and may write until then.
            return match self.claimed_by_another() {
                Some(holder) => Err(Refusal::HeldBy(holder)),
                None => {
                    self.inherited = match self.seen {
                        // The annotations are gone with the Lease, and its holder may have spent the whole budget.
                        Some(_) => Inherited::Lost("the Lease was deleted".to_owned()),
                        None => Inherited::Nothing,
                    };
                    self.create().await.map(|()| Claim::Acquired)
                }
            };
        };
        // Before the claim, so that a new leader respects a pause from the start.
        self.apply_pause(paused(&lease, self.time.server()));
        // Other clients may change fields that do not belong to the election; that ends no term. A replica that led in
        // between changed the fields compared here.
        let renewed = self.seen.as_ref().is_some_and(|(known, _)| same_tenure(known, &lease))
            && holder(&lease) == Some(&self.identity);
        let claim = if renewed { Claim::Renewed } else { Claim::Acquired };
        if renewed && self.is_leading() {
            self.check_brake_state(&lease);
        } else {
            self.inherited = inherited(&lease);
        }
        let changed = self.seen.as_ref().is_none_or(|(known, _)| record(known) != record(&lease));
        // No object is read and written as often as the Lease, so the leader notices a restored backup here first.
        if self.seen.as_ref().is_some_and(|(known, _)| revision(&lease) < revision(known)) {
            self.history.ends(self.history.epoch());
        }
        let since = match &self.seen {
            Some((_, since)) if !changed => *since,
            _ => Instant::now(),
        };
        self.seen = Some((lease.clone(), since));
        if let Some(holder) = self.claimed_by_another() {
            return Err(Refusal::HeldBy(holder));
        }
        self.write(lease).await.map(|()| claim)
    }

    /// The other replica that holds the Lease as last seen, if its claim has not expired.
    fn claimed_by_another(&self) -> Option<String> {
        let (lease, since) = self.seen.as_ref()?;
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.as_ref().filter(|h| !h.is_empty() && **h != self.identity)?;
        let lasts = Duration::from_secs(u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0));
        (since.elapsed() < lasts).then(|| holder.clone())
    }

    async fn create(&mut self) -> Result<(), Refusal> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.settings.lease_name.clone()),
                namespace: Some(self.settings.lease_namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        let mut lease = self.claim(lease);
        // Deleting the Lease does not end a pause.
        if let Some(paused) = self.leadership.pause().annotation() {
            lease.metadata.annotations.get_or_insert_default().insert(annotations::PAUSED.to_owned(), paused);
        }
        let created = match self.leases.create(&PostParams::default(), &lease).await {
            // The namespace may be missing when Salvor runs outside the cluster. Create it if we may; otherwise report
            // the error.
            Err(kube::Error::Api(status)) if status.code == 404 && self.create_namespace().await => {
                self.leases.create(&PostParams::default(), &lease).await
            }
            other => other,
        };
        self.remember(created)
    }

    async fn create_namespace(&self) -> bool {
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(self.settings.lease_namespace.clone()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await.is_ok()
    }

    async fn write(&mut self, lease: Lease) -> Result<(), Refusal> {
        let lease = self.claim(lease);
        let written = self.leases.replace(&self.settings.lease_name, &PostParams::default(), &lease).await;
        self.remember(written)
    }

    fn remember(&mut self, written: kube::Result<Lease>) -> Result<(), Refusal> {
        match written {
            Ok(lease) => {
                self.seen = Some((lease, Instant::now()));
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Err(Refusal::Lost),
            // The next replica to create the Lease leads at once, so we must stop leading.
            Err(kube::Error::Api(status)) if status.code == 404 && self.seen.take().is_some() => {
                Err(Refusal::Deleted)
            }
            Err(error) => Err(Refusal::Api(error)),
        }
    }

    /// The Lease with us as holder. It carries the brake state if we already held it or if it is new.
    fn claim(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(self.time.local());
        let before = lease.spec.unwrap_or_default();
        let ours = before.holder_identity.as_deref() == Some(&self.identity);
        // Creating a Lease is no transition; client-go counts the same way.
        let changes_hands = !ours && lease.metadata.resource_version.is_some();
        let lasts = std_duration(self.settings.lease_duration).as_secs();
        // A new Lease carries the brake state from the start, so a Lease that was ever held always has it.
        let is_new = lease.metadata.resource_version.is_none();
        if (ours || is_new) && self.keeps_brake {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(annotations::BRAKE.to_owned(), self.memory());
            if let Some(unreadable) = &self.unreadable {
                annotations.insert(annotations::BRAKE_UNREADABLE.to_owned(), unreadable.clone());
            }
        }
        if let Some(status) = &self.status {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(annotations::STATUS.to_owned(), status.clone());
        }
        if ours {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            self.leadership.pause().acknowledge(annotations, &self.identity, now.0);
        }
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(lasts).unwrap_or(i32::MAX)),
            acquire_time: if ours { before.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(
                before.lease_transitions.unwrap_or(0).saturating_add(i32::from(changes_hands)),
            ),
            ..before
        });
        lease
    }

    /// Admissions of the previous leader count for us too.
    fn restore_brake(&mut self) {
        let now = self.time.roughly();
        let mut brake = self.brake.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut self.inherited, Inherited::Nothing) {
            Inherited::Nothing => {}
            Inherited::Memory(state) => brake.restore(now, *state),
            Inherited::Lost(why) => {
                tracing::warn!(
                    lease = self.lease_name(),
                    why,
                    "brake state unreadable, the whole budget counts as spent"
                );
                brake.assume_spent(now, why);
                self.leadership.renew_soon();
                self.unreadable = self.seen.as_ref().and_then(|(lease, _)| unreadable(lease));
            }
        }
    }

    fn apply_pause(&self, annotation: Option<&str>) {
        self.leadership.pause().set(annotation);
        self.metrics.paused(annotation.is_some());
    }

    /// The Lease changed while we lead. Our own brake state counts, and the next renewal writes it again.
    fn check_brake_state(&mut self, lease: &Lease) {
        match inherited(lease) {
            Inherited::Memory(_) => {}
            Inherited::Nothing => {
                tracing::warn!(
                    lease = self.lease_name(),
                    "lease emptied by another client, writing it again"
                );
            }
            Inherited::Lost(why) => {
                tracing::warn!(
                    lease = self.lease_name(),
                    why,
                    "brake state changed by another client, writing it again"
                );
                self.unreadable = unreadable(lease).or(self.unreadable.take());
            }
        }
    }

    fn memory(&self) -> String {
        let state = self.brake.lock().unwrap_or_else(PoisonError::into_inner).state_to_save();
        // Numbers, times and strings always serialize to JSON.
        serde_json::to_string(&state).unwrap_or_default()
    }

    async fn release(&mut self) {
        let led = self.is_leading();
        self.leadership.follow();
        self.metrics.leads(false);
        let Some((lease, _)) = self.seen.take() else { return };
        if !led {
            return;
        }
        let release = self.release_lease(lease);
        match tokio::time::timeout(Duration::from_secs(5), release).await {
            Ok(Ok(())) => tracing::info!(lease = self.lease_name(), "lease released"),
            Ok(Err(error)) => tracing::warn!(
                lease = self.lease_name(),
                error = live::brief(&error),
                "lease release failed, it expires by itself"
            ),
            Err(_) => {
                tracing::warn!(lease = self.lease_name(), "lease release timed out, it expires by itself");
            }
        }
    }

    async fn release_lease(&self, mut held: Lease) -> kube::Result<()> {
        let name = &self.settings.lease_name;
        let is_ours = |lease: &Lease| holder(lease) == Some(&self.identity);
        loop {
            let mut free = self.claim(held);
            if let Some(spec) = &mut free.spec {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
            }
            match self.leases.replace(name, &PostParams::default(), &free).await {
                // An earlier renewal that timed out here may still have been applied.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    held = self.leases.get(name).await?;
                    if !is_ours(&held) {
                        return Err(kube::Error::Api(status));
                    }
                }
                other => return other.map(drop),
            }
        }
    }
}

/// The part of a Lease whose change proves that its holder is alive.
fn record(lease: &Lease) -> Option<(&LeaseSpec, Option<&String>)> {
    lease.spec.as_ref().map(|spec| (spec, lease.metadata.resource_version.as_ref()))
}

fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref()
}

/// True if no replica acquired the Lease between these two states.
fn same_tenure(before: &Lease, after: &Lease) -> bool {
    let tenure = |lease: &Lease| {
        let spec = lease.spec.clone()?;
        Some((spec.holder_identity, spec.acquire_time, spec.lease_transitions))
    };
    before.metadata.uid == after.metadata.uid && tenure(before) == tenure(after)
}

fn revision(lease: &Lease) -> Revision {
    lease.metadata.resource_version.as_deref().map(ResourceVersion::from).unwrap_or_default().revision()
}

#[cfg(test)]
mod tests;
