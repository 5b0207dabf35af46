//! Waits for conditions: by watch, with a deadline, and with a message that shows the last state seen.
//!
//! The functions here panic when a condition does not come true, which is what a test wants; [`Patience`] has the same
//! with its own deadline and an error instead.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use futures::StreamExt;
use kube::Resource;
use kube::api::{Api, ListParams};
use kube::runtime::watcher;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::replica::{Replica, follow, named, without_managed_fields};

/// Every object that can be waited for; implemented for all that fit.
pub trait Watched:
    Resource + Clone + Serialize + DeserializeOwned + fmt::Debug + Send + Sync + 'static
{
}
impl<K: Resource + Clone + Serialize + DeserializeOwned + fmt::Debug + Send + Sync + 'static> Watched for K {}

/// The number of objects that a message shows at most: more would not be read.
const SHOWN: usize = 20;

/// The deadline of a wait.
#[derive(Debug, Clone, Copy)]
pub struct Patience(Duration);

/// The usual patience: three minutes, multiplied by `SALVOR_TEST_PATIENCE` if that is set (for slow or loaded
/// machines).
///
/// # Panics
/// If `SALVOR_TEST_PATIENCE` is not a number above zero.
pub fn patience() -> Patience {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| match std::env::var("SALVOR_TEST_PATIENCE") {
        Err(_) => 1.0,
        Ok(text) => match text.parse() {
            Ok(factor) if factor > 0.0 && factor < 1e6 => factor,
            _ => panic!("SALVOR_TEST_PATIENCE is {text:?}; it must be a number above zero, such as 2 or 0.5"),
        },
    });
    Patience(Duration::from_secs(180).mul_f64(*factor))
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("waited {waited:?} in vain for: {what}\n{last}")]
pub struct Expired {
    what: String,
    waited: Duration,
    last: String,
}

/// Waits until the named object exists and the condition holds for it; returns it.
///
/// # Panics
/// If that does not happen in time.
pub async fn for_object<K: Watched<DynamicType = ()>>(
    api: &Api<K>,
    name: &str,
    what: &str,
    condition: impl FnMut(&K) -> bool,
) -> K {
    or_panic(patience().for_object(api, name, what, condition).await)
}

/// Waits until the condition holds for the selected objects as a whole; returns them, ordered by namespace and name.
///
/// # Panics
/// If that does not happen in time.
pub async fn for_list<K: Watched<DynamicType = ()>>(
    api: &Api<K>,
    selection: &ListParams,
    what: &str,
    condition: impl FnMut(&[K]) -> bool,
) -> Vec<K> {
    or_panic(patience().for_list(api, selection, what, condition).await)
}

/// Waits until no object of that name exists.
///
/// # Panics
/// If that does not happen in time.
pub async fn for_absence<K: Watched<DynamicType = ()>>(api: &Api<K>, name: &str) {
    let what = format!("{} {name} is gone", K::kind(&()));
    for_list(api, &named(name), &what, <[K]>::is_empty).await;
}

/// Watches the selected objects, first in their present state, then while `until` runs, and then until everything that
/// had happened by its end was seen. Returns the result of `until`.
///
/// # Panics
/// If the forbidden condition was ever true for an object, or if the watch cannot keep up.
pub async fn never<K: Watched<DynamicType = ()>, T>(
    api: &Api<K>,
    selection: &ListParams,
    forbidden: &str,
    mut condition: impl FnMut(&K) -> bool,
    until: impl Future<Output = T>,
) -> T {
    let mut events = follow(api, selection);
    let mut replica = Replica::default();
    let mut look = |replica: &mut Replica<K>, event| {
        // Every state of an object comes as one of these.
        if let watcher::Event::InitApply(object) | watcher::Event::Apply(object) = &event {
            assert!(!condition(object), "must never be seen: {forbidden}\n{}", show(object));
        }
        replica.take(event);
    };
    let blind = |phase: &str| format!("the watch {phase}, so this could be missed: {forbidden}");

    let begin = async {
        while replica.objects().is_none() {
            if let Some(Ok(event)) = events.next().await {
                look(&mut replica, event);
            }
        }
    };
    assert!(patience().until(begin).await.is_some(), "{}", blind("did not begin"));

    let mut until = pin!(until);
    let result = loop {
        tokio::select! {
            event = events.next() => if let Some(Ok(event)) = event {
                look(&mut replica, event);
            },
            result = &mut until => break result,
        }
    };

    let finish = async {
        let end = loop {
            match api.list(selection).await {
                Ok(list) => break list,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        while !replica.has_caught_up_with(&end) {
            if let Some(Ok(event)) = events.next().await {
                look(&mut replica, event);
            }
        }
    };
    assert!(patience().until(finish).await.is_some(), "{}", blind("did not keep up"));
    result
}

impl Patience {
    /// A patience that is not multiplied by anything.
    pub fn of(duration: Duration) -> Self {
        Self(duration)
    }

    pub fn duration(self) -> Duration {
        self.0
    }

    /// Like [`for_object`], with an error instead of a panic.
    pub async fn for_object<K: Watched<DynamicType = ()>>(
        self,
        api: &Api<K>,
        name: &str,
        what: &str,
        mut condition: impl FnMut(&K) -> bool,
    ) -> Result<K, Expired> {
        let what = format!("{} {name}: {what}", K::kind(&()));
        self.watch(api, &named(name), &what, |objects| {
            objects.first().filter(|object| condition(object)).cloned()
        })
        .await
    }

    /// Like [`for_list`], with an error instead of a panic.
    pub async fn for_list<K: Watched<DynamicType = ()>>(
        self,
        api: &Api<K>,
        selection: &ListParams,
        what: &str,
        mut condition: impl FnMut(&[K]) -> bool,
    ) -> Result<Vec<K>, Expired> {
        self.watch(api, selection, what, |objects| condition(objects).then(|| objects.to_vec())).await
    }

    /// Waits for any future; `None` when it does not end in time.
    pub async fn until<T>(self, future: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(self.0, future).await.ok()
    }

    async fn watch<K: Watched<DynamicType = ()>, T>(
        self,
        api: &Api<K>,
        selection: &ListParams,
        what: &str,
        mut judge: impl FnMut(&[K]) -> Option<T>,
    ) -> Result<T, Expired> {
        let mut events = follow(api, selection);
        let mut replica = Replica::default();
        let mut trouble = None;
        let found = self
            .until(async {
                loop {
                    match events.next().await {
                        Some(Ok(event)) => {
                            replica.take(event);
                            trouble = None;
                        }
                        Some(Err(error)) => {
                            trouble = Some(error);
                            continue;
                        }
                        // The watcher never ends by itself.
                        None => std::future::pending().await,
                    }
                    if let Some(found) = replica.objects().and_then(&mut judge) {
                        return found;
                    }
                }
            })
            .await;
        found.ok_or_else(|| {
            let mut last = match replica.objects() {
                None => "nothing was seen: the API server never answered".to_owned(),
                Some([]) => "last state seen: no such object".to_owned(),
                Some(objects) => {
                    let mut lines: Vec<_> = objects.iter().take(SHOWN).map(show).collect();
                    if objects.len() > SHOWN {
                        lines.push(format!("and {} more", objects.len() - SHOWN));
                    }
                    lines.join("\n")
                }
            };
            if let Some(error) = &trouble {
                last.push_str(&format!("\nthe watch's last word: {error}"));
            }
            Expired { what: what.to_owned(), waited: self.0, last }
        })
    }
}

fn or_panic<T>(result: Result<T, Expired>) -> T {
    result.unwrap_or_else(|expired| panic!("{expired}"))
}

fn show<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> String {
    let name = object.meta().name.as_deref().unwrap_or("?");
    format!("last state seen of {} {name}: {}", K::kind(&()), without_managed_fields(object))
}
