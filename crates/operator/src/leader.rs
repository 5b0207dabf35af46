//! Leader election on a Lease, by client-go's protocol: a claim expires when it has not been *seen* to change for its
//! duration, on the observer's own monotonic clock. Wall clocks are written for people, and never compared.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
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
use salvor_api::{
    config::{BrakeLimits, LeaderElection},
    names::annotations,
};
use salvor_recovery::{
    brake::{Brake, BrakeState},
    ids::ResourceVersion,
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    live,
    metrics::Metrics,
    pause::{PauseSwitch, paused},
    pulse::Pulse,
    revision::{History, Revision},
    time::{Time, std_duration},
};

/// The lease is not renewed more often than this, even if the brake admits much.
const SOONEST_RENEWAL: Duration = Duration::from_millis(100);
/// Of a memory that cannot be read, so much is kept for whoever wants to know.
const UNREADABLE_KEPT: usize = 1024;

/// Leadership: this process may write or not, and for how long that is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tenure {
    Follows,
    /// Nobody else can hold the lease before this instant, with a margin for what is under way.
    LeadsUntil(Instant),
    /// There is no election.
    LeadsAlone,
}

/// One time of leading in which nobody else can have led. What was judged in one term is written in no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term(u64);

/// Continuity of a lease: was it held before, without a gap?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// The lease was ours, and nobody else has held it since our last renewal.
    Renewed,
    /// The lease was nobody's, or another's.
    Acquired,
}

/// Every writer asks this first. Clones share it.
///
/// Not a watch channel of tokio's: that wakes those who wait in a random order, and one seed must give one history.
#[derive(Clone, Debug)]
pub(crate) struct Leadership(Arc<Standing>);

#[derive(Debug)]
struct Standing {
    /// The tenure, and the term that it is part of; the last one's if this process does not lead.
    tenure: Mutex<(Tenure, Term)>,
    changed: Notify,
    renew: Notify,
    pause: PauseSwitch,
}

impl Leadership {
    fn new(tenure: Tenure) -> Self {
        Self(Arc::new(Standing {
            tenure: Mutex::new((tenure, Term(0))),
            changed: Notify::new(),
            renew: Notify::new(),
            pause: PauseSwitch::default(),
        }))
    }

    /// The pause switch: a person may have paused every replica.
    pub(crate) fn pause(&self) -> &PauseSwitch {
        &self.0.pause
    }

    /// A process that leads because there is no other.
    pub(crate) fn alone() -> Self {
        Self::new(Tenure::LeadsAlone)
    }

    fn standing(&self) -> MutexGuard<'_, (Tenure, Term)> {
        self.0.tenure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tenure(&self) -> Tenure {
        self.standing().0
    }

    fn follow(&self) {
        self.standing().0 = Tenure::Follows;
        self.0.changed.notify_waiters();
    }

    /// This process leads until then. Whether that is a new term: another may have led since the last one.
    fn lead_until(&self, end: Instant, claim: Claim) -> bool {
        let begins = {
            let mut standing = self.standing();
            let begins = standing.0.time_left().is_none() || claim == Claim::Acquired;
            let Term(number) = standing.1;
            *standing = (Tenure::LeadsUntil(end), Term(number + u64::from(begins)));
            begins
        };
        self.0.changed.notify_waiters();
        begins
    }

    /// The term in which this process leads now; `None` when it does not.
    pub(crate) fn term(&self) -> Option<Term> {
        let (tenure, term) = *self.standing();
        tenure.time_left().map(|_| term)
    }

    /// The time that a write of this term may take from now on; `None` if there must be no write.
    pub(crate) fn time_left(&self, judged_in: Term) -> Option<Duration> {
        let (tenure, term) = *self.standing();
        tenure.time_left().filter(|_| term == judged_in)
    }

    /// The brake has something new to remember: whoever leads next must know of it, also if this process dies.
    pub(crate) fn renew_soon(&self) {
        self.0.renew.notify_one();
    }

    /// Waits until this process leads in another term, or ceases to lead. Renewals are not news.
    pub(crate) async fn changed(&self, led: Option<Term>) {
        loop {
            // Changes from here on are not missed.
            let changed = self.0.changed.notified();
            if self.term() != led {
                return;
            }
            changed.await;
        }
    }
}

/// A candidate for the lease.
pub(crate) struct Elector {
    leases: Api<Lease>,
    client: Client,
    settings: LeaderElection,
    identity: String,
    time: Time,
    metrics: Metrics,
    brake: Arc<Mutex<Brake>>,
    /// True if the brake's memory is written down. A dry run writes what the election needs, and nothing else.
    keeps_brake: bool,
    /// What whoever leads tells about itself, if anything.
    status: Option<String>,
    leadership: Leadership,
    history: History,
    pulse: Pulse,
    /// The lease as last seen, and when it was last seen to change.
    seen: Option<(Lease, Instant)>,
    /// The saved state of the previous leader's brake.
    inherited: Inherited,
    /// An unreadable value of it, or of an overwritten one of ours, that is to be kept.
    unreadable: Option<String>,
}

/// The saved state of the previous leader's brake.
#[derive(Debug)]
enum Inherited {
    /// Nothing: nobody has led before.
    Nothing,
    Memory(Box<BrakeState>),
    /// Something that cannot be read, or nothing although somebody has led before.
    Lost(String),
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
            pulse: Pulse::of_this_thread(),
            seen: None,
            inherited: Inherited::Nothing,
            unreadable: None,
        };
        (elector, leadership)
    }

    /// The same for a dry run: of the lease it writes only who holds it.
    #[must_use]
    pub(crate) fn in_dry_run(self) -> Self {
        Self { keeps_brake: false, status: None, ..self }
    }

    /// Tells on the lease, while it leads, what it is and how it is configured.
    #[must_use]
    pub(crate) fn publishing(self, status: String) -> Self {
        Self { status: Some(status), ..self }
    }

    /// Tells everybody when it notices that revisions go backwards.
    pub(crate) fn minding(self, history: History) -> Self {
        Self { history, ..self }
    }

    /// Leads only while the thread that works turns.
    pub(crate) fn heeding(self, pulse: Pulse) -> Self {
        Self { pulse, ..self }
    }

    /// Campaigns and renews until told to stop; then gives the lease back, so that another need not wait for it.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let pause = std_duration(self.settings.retry_period);
        let deadline = std_duration(self.settings.renew_deadline);
        let mut said = String::new();
        loop {
            if self.pulse.is_stuck() {
                self.step_back(&stop).await;
                if stop.is_cancelled() {
                    break;
                }
                said.clear();
            }
            let sent = Instant::now();
            // Half the time for one try, so that one hung request does not use up the whole tenure.
            let attempt = tokio::time::timeout(deadline / 2, self.acquire_or_renew());
            let result = tokio::select! {
                biased;
                result = attempt => result,
                () = stop.cancelled() => break,
            };
            match result {
                Ok(Ok(claim)) => {
                    if !self.is_leading() || claim == Claim::Acquired {
                        // Before anybody judges in the new term.
                        self.take_over_the_brake();
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
                Err(_) => tracing::warn!(lease = self.lease_name(), "the lease could not be renewed in time"),
            }
            if let Tenure::LeadsUntil(end) = self.leadership.tenure()
                && end <= Instant::now()
            {
                tracing::warn!(
                    identity = self.identity,
                    lease = self.lease_name(),
                    "no longer sure to lead; writes stop"
                );
            }
            if self.leadership.tenure().has_ended() {
                self.leadership.follow();
            }
            self.metrics.leads(self.is_leading());
            let next = async {
                self.leadership.0.renew.notified().await;
                // Other admissions of the brake in the same moment are written with it.
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

    /// Gives the lease back, and waits until the thread that works turns again: until then another replica is better.
    async fn step_back(&mut self, stop: &CancellationToken) {
        tracing::error!(
            identity = self.identity,
            lease = self.lease_name(),
            silent_for = ?self.pulse.silence(),
            "the working thread does not turn; another replica may lead"
        );
        self.release().await;
        while self.pulse.is_stuck() {
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
        // The fast path of a leader: what we wrote last is still there.
        if let Some((lease, _)) = self.seen.clone()
            && self.is_leading()
        {
            match self.write(lease).await {
                Err(Refusal::Lost) => {}
                other => return other.map(|()| Claim::Renewed),
            }
        }
        let name = self.settings.lease_name.clone();
        let Some(lease) = self.leases.get_opt(&name).await.map_err(Refusal::Api)? else {
            // Whoever held it learns of its end only at the next renewal, and may write until then.
            return match self.claimed_by_another() {
                Some(holder) => Err(Refusal::HeldBy(holder)),
                None => {
                    self.inherited = match self.seen {
                        // Its annotations are lost with it, and its holder may have spent the whole budget.
                        Some(_) => Inherited::Lost("the Lease was deleted".to_owned()),
                        None => Inherited::Nothing,
                    };
                    self.create().await.map(|()| Claim::Acquired)
                }
            };
        };
        // Before it is claimed: whoever leads knows of a pause from the first moment on.
        self.heed_the_pause(paused(&lease));
        // Others may change what is not the election's, and that ends no term. Whoever led meanwhile has left a trace here.
        let renewed = self.seen.as_ref().is_some_and(|(known, _)| same_tenure(known, &lease))
            && holder(&lease) == Some(&self.identity);
        let claim = if renewed { Claim::Renewed } else { Claim::Acquired };
        if renewed && self.is_leading() {
            self.watch_over_the_memory(&lease);
        } else {
            self.inherited = inherited(&lease);
        }
        let changed = self.seen.as_ref().is_none_or(|(known, _)| record(known) != record(&lease));
        // Nothing is read and written as often as this: whoever leads notices here first that a backup was restored.
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

    /// Another holder of the lease as last seen, if it still renews.
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
        // A pause does not end because somebody deleted the lease.
        if let Some(paused) = self.leadership.pause().annotation() {
            lease.metadata.annotations.get_or_insert_default().insert(annotations::PAUSED.to_owned(), paused);
        }
        let created = match self.leases.create(&PostParams::default(), &lease).await {
            // Run from outside the cluster by somebody who may: then the namespace is made. Otherwise it is said.
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
            // Whoever creates it next leads at once, so we must not.
            Err(kube::Error::Api(status)) if status.code == 404 && self.seen.take().is_some() => {
                Err(Refusal::Deleted)
            }
            Err(error) => Err(Refusal::Api(error)),
        }
    }

    /// The lease with us as its holder, and with the brake's memory while we hold it already.
    fn claim(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(self.time.local());
        let before = lease.spec.unwrap_or_default();
        let ours = before.holder_identity.as_deref() == Some(&self.identity);
        // A new one has changed no hands: client-go counts so too.
        let changes_hands = !ours && lease.metadata.resource_version.is_some();
        let lasts = std_duration(self.settings.lease_duration).as_secs();
        // From the first moment on: a lease that somebody has held always has it.
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
    fn take_over_the_brake(&mut self) {
        let now = self.time.roughly();
        let mut brake = self.brake.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut self.inherited, Inherited::Nothing) {
            Inherited::Nothing => {}
            Inherited::Memory(state) => brake.restore(now, *state),
            Inherited::Lost(why) => {
                tracing::warn!(
                    lease = self.lease_name(),
                    why,
                    "Salvor does not know what the leader before has recovered lately: the whole budget counts as spent"
                );
                brake.distrust(now, why);
                self.leadership.renew_soon();
                self.unreadable = self.seen.as_ref().and_then(|(lease, _)| unreadable(lease));
            }
        }
    }

    fn heed_the_pause(&self, annotation: Option<&str>) {
        self.leadership.pause().set(annotation);
        self.metrics.paused(annotation.is_some());
    }

    /// Somebody changed the lease while we lead. Of the brake's memory our own counts, and is written again.
    fn watch_over_the_memory(&mut self, lease: &Lease) {
        match inherited(lease) {
            Inherited::Memory(_) => {}
            Inherited::Nothing => {
                tracing::warn!(lease = self.lease_name(), "somebody emptied the lease: it is filled again");
            }
            Inherited::Lost(why) => {
                tracing::warn!(
                    lease = self.lease_name(),
                    why,
                    "somebody changed what the brake has kept: our own memory counts, and is written again"
                );
                self.unreadable = unreadable(lease).or(self.unreadable.take());
            }
        }
    }

    /// The state that the next leader needs.
    fn memory(&self) -> String {
        let state = self.brake.lock().unwrap_or_else(PoisonError::into_inner).keepsake();
        // Numbers, times and strings always have a JSON form.
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
        let release = self.give_back(lease);
        match tokio::time::timeout(Duration::from_secs(5), release).await {
            Ok(Ok(())) => tracing::info!(lease = self.lease_name(), "lease given back"),
            Ok(Err(error)) => tracing::warn!(
                lease = self.lease_name(),
                error = live::brief(&error),
                "lease not given back; it expires by itself"
            ),
            Err(_) => tracing::warn!(
                lease = self.lease_name(),
                "lease not given back in time; it expires by itself"
            ),
        }
    }

    async fn give_back(&self, mut held: Lease) -> kube::Result<()> {
        let name = &self.settings.lease_name;
        let is_ours = |lease: &Lease| holder(lease) == Some(&self.identity);
        loop {
            let mut free = self.claim(held);
            if let Some(spec) = &mut free.spec {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
            }
            match self.leases.replace(name, &PostParams::default(), &free).await {
                // A renewal that nobody waited for any more may have come through all the same.
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

impl Tenure {
    /// The term is certain to last this long from now on; none if it is over.
    fn time_left(self) -> Option<Duration> {
        match self {
            Self::Follows => None,
            Self::LeadsUntil(end) => {
                end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            }
            Self::LeadsAlone => Some(Duration::MAX),
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self, Self::LeadsUntil(end) if *end <= Instant::now())
    }
}

/// The part of a lease whose change proves that its holder lives.
fn record(lease: &Lease) -> Option<(&LeaseSpec, Option<&String>)> {
    lease.spec.as_ref().map(|spec| (spec, lease.metadata.resource_version.as_ref()))
}

fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref()
}

/// True if nobody has acquired a lease between two states of it.
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

/// The brake's saved state on a lease.
fn inherited(lease: &Lease) -> Inherited {
    let Some(kept) = annotation(lease, annotations::BRAKE) else {
        let held = lease.spec.as_ref().is_some_and(|spec| {
            spec.holder_identity.is_some() || spec.acquire_time.is_some() || spec.lease_transitions.is_some()
        });
        let why = || format!("annotation {} of the Lease is not there", annotations::BRAKE);
        return if held { Inherited::Lost(why()) } else { Inherited::Nothing };
    };
    match BrakeState::read(kept) {
        Ok(state) => Inherited::Memory(Box::new(state)),
        Err(error) => Inherited::Lost(format!("annotation {} of the Lease: {error}", annotations::BRAKE)),
    }
}

fn annotation<'a>(lease: &'a Lease, key: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The text in the place of the brake's memory.
fn unreadable(lease: &Lease) -> Option<String> {
    let kept = annotation(lease, annotations::BRAKE)?;
    Some(kept[..kept.floor_char_boundary(UNREADABLE_KEPT)].to_owned())
}

/// The brake as whoever leads has left it on a lease; for showing.
pub(crate) fn brake_of(limits: BrakeLimits, lease: Option<&Lease>, now: Timestamp) -> Brake {
    let mut brake = Brake::new(limits, BrakeState::default());
    match lease.map_or(Inherited::Nothing, inherited) {
        Inherited::Nothing => {}
        Inherited::Memory(state) => brake.restore(now, *state),
        Inherited::Lost(why) => brake.distrust(now, why),
    }
    brake
}

#[cfg(test)]
mod tests;
