//! The watch of a kind that is known only at run time: discovery finds it first, and it may not be served.

use std::{fmt, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::{sync::mpsc, time::Instant};

use super::{CHANGES, Feed, Health, Key, KindTarget, Stage, in_turn, relay};
use crate::{
    client::{
        discovery::{Lookup, Served},
        live,
    },
    watch_set::watch::{Change, GivenUp, Patience, Project, Target, follow_with},
};

/// A kind whose watch fails for this long is given up for now. A healthy but quiet watch may be silent for 75 seconds.
pub(super) const KIND_PATIENCE: Duration = Duration::from_secs(90);
/// Delay before a kind that is not served, or was given up, is tried again.
const KIND_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A kind counts as not served once two answers this far apart say so. While a CustomResourceDefinition changes or an
/// API server starts, a single answer may be wrong.
const NOT_SERVED_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) enum OfKind<T> {
    /// The kind is served. A list of its objects follows.
    Served(Served),
    Change(Change<T>),
    /// The state of all objects of this kind is unknown until they are listed again.
    Lost(KindLost),
}

/// Why the objects of a kind are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KindLost {
    /// The server does not serve it right now, but may again in a moment.
    Unserved,
    /// The server does not serve it: two answers a minute apart said so.
    NotServed,
    /// The kind may not or cannot be read. Carries the server's message.
    Failed(String),
}

impl fmt::Display for KindLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unserved => f.write_str("the API server does not serve this kind now"),
            Self::NotServed => f.write_str("the API server does not serve this kind"),
            Self::Failed(words) => f.write_str(words),
        }
    }
}

impl<News: Send + 'static> Feed<News> {
    /// A watch of a kind that is known only at run time. `name` is used in metrics; the number distinguishes it from an
    /// earlier watch.
    pub(crate) fn kind<P: Project>(
        name: &'static str,
        target: KindTarget,
        number: u64,
        projection: P,
        wrap: impl Fn(OfKind<P::Kept>) -> News + Send + Sync + 'static,
    ) -> Self {
        let key = Key::Kind(name, target.clone(), number);
        let start = move |stage| follow_kind(stage, name, target, Arc::new(projection), wrap).boxed();
        Self { key, health: Health::OneOfMany(name), listed_to_lead: false, start: Box::new(start) }
    }
}

/// Follows a kind until the receiver is gone: where it is served, its objects, and the periods in which they are
/// unknown.
async fn follow_kind<P: Project, News: Send + 'static>(
    stage: Stage<News>,
    name: &'static str,
    target: KindTarget,
    projection: Arc<P>,
    wrap: impl Fn(OfKind<P::Kept>) -> News + Send + Sync,
) {
    let mut told: Option<KindLost> = None;
    // When the kind was first reported as not served since it was last served.
    let mut missing: Option<Instant> = None;
    loop {
        let lost = match stage.hub.discovery.find(&target.kind, target.versions).await {
            Ok(Lookup { served: Some(served), .. }) => {
                missing = None;
                let ended = follow_served(&stage, name, &target, served, &projection, &wrap, &mut told).await;
                match ended {
                    None | Some(GivenUp::Unheard) => return,
                    Some(GivenUp::NotServed) => {
                        stage.hub.discovery.forget(&target.kind);
                        KindLost::Unserved
                    }
                    Some(GivenUp::Failed(words)) => KindLost::Failed(words),
                }
            }
            Ok(Lookup { served: None, asked }) => {
                let first = *missing.get_or_insert(asked);
                let is_certain = asked.duration_since(first) >= NOT_SERVED_FOR;
                if is_certain { KindLost::NotServed } else { KindLost::Unserved }
            }
            Err(error) => KindLost::Failed(live::brief(&error)),
        };
        if told.as_ref() != Some(&lost) {
            tracing::warn!(resource = name, kind = %target.kind, %lost, "kind unavailable, retrying");
            told = Some(lost.clone());
            if stage.outbox.send(wrap(OfKind::Lost(lost))).await.is_err() {
                return;
            }
        }
        tokio::select! {
            biased;
            () = stage.outbox.closed() => return,
            () = tokio::time::sleep(KIND_AGAIN_AFTER) => {}
        }
    }
}

async fn follow_served<P: Project, News: Send + 'static>(
    stage: &Stage<News>,
    name: &'static str,
    target: &KindTarget,
    served: Served,
    projection: &Arc<P>,
    wrap: &(impl Fn(OfKind<P::Kept>) -> News + Send + Sync),
    told: &mut Option<KindLost>,
) -> Option<GivenUp> {
    let turn = stage.turn().await;
    let target = Target {
        resource: name,
        path: served.path(target.namespace.as_deref()).into(),
        field_selector: target.field_selector.clone().map(Into::into),
        label_selector: target.label_selector.clone().map(Into::into),
    };
    let health = stage.health.candidate();
    let (changes, inbox) = mpsc::channel(CHANGES);
    let watch = follow_with(
        Patience::Until(KIND_PATIENCE),
        stage.hub.source.clone(),
        target,
        projection.clone(),
        health.clone(),
        changes,
    );
    let mut served = Some(served);
    let split = |change| {
        // No decision depends on a kind before its first list. From then on its staleness counts.
        let first = served.take().map(|served| {
            stage.health.admit(&health);
            *told = None;
            OfKind::Served(served)
        });
        first.into_iter().chain([OfKind::Change(change)]).map(wrap).collect::<Vec<_>>()
    };
    relay(watch, in_turn(turn, inbox), &stage.outbox, split).await
}
