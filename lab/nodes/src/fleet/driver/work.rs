//! The calls of the nodes: which are due, and how their results are handled.

use std::{cmp::Reverse, future::Future, sync::Arc};

use tokio::sync::Semaphore;

use super::{Done, Driver, Wake};
use crate::{
    calls::Outcome,
    fleet::{FIRST_RETRY, retry_after},
    kubelet::{PodKey, PodStep},
};

impl Driver {
    pub(super) fn register(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node).filter(|s| s.kubelet.is_connected() && !s.registered)
        else {
            return;
        };
        slot.renewing = true;
        let calls = self.calls.clone();
        let body = slot.kubelet.registration(now);
        let name = node.to_owned();
        let lasts = self.timers.lease_duration.as_secs();
        self.spawn(node, self.heartbeat_lane.clone(), async move {
            let registered = match calls.register(&body, &name).await {
                Ok(()) => calls.renew(&name, lasts, now).await,
                Err(error) => Err(error),
            };
            Done::Registered(registered)
        });
    }

    pub(super) fn renew(&mut self, node: &str) {
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        if slot.renewing || !slot.registered || !slot.kubelet.is_connected() {
            return;
        }
        slot.renewing = true;
        let (calls, clock, name) = (self.calls.clone(), self.clock, node.to_owned());
        let lasts = self.timers.lease_duration.as_secs();
        self.spawn(node, self.heartbeat_lane.clone(), async move {
            Done::Renewed(calls.renew(&name, lasts, clock.now()).await)
        });
    }

    pub(super) fn report_node_if_changed(&mut self, node: &str) {
        let Some(slot) = self.slots.get(node) else {
            return;
        };
        let in_use = slot.kubelet.volumes_in_use();
        if slot.reported.as_ref().is_none_or(|(told, _)| *told != in_use) {
            self.report_node(node);
        }
    }

    pub(super) fn report_node(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        if slot.reporting || !slot.registered || !slot.kubelet.is_connected() {
            return;
        }
        slot.reporting = true;
        let in_use = slot.kubelet.volumes_in_use();
        let status = slot.kubelet.node_status(now);
        let (calls, name) = (self.calls.clone(), node.to_owned());
        self.spawn(node, self.heartbeat_lane.clone(), async move {
            Done::NodeReported(in_use, calls.report_node(&name, &status).await)
        });
    }

    /// Performs a node's next step for a pod, one call at a time.
    pub(super) fn drive(&mut self, node: &str, key: &PodKey) {
        let now = self.clock.now();
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        let step = slot.kubelet.step(key, now);
        if let PodStep::Rest(wake) = step {
            if let Some(at) = wake {
                self.wakes.push(Reverse((at, Wake::Pod(node.to_owned(), key.clone()))));
            }
            return self.report_node_if_changed(node);
        }
        if let PodStep::Forget = step {
            slot.attempts.remove(key);
            return self.report_node_if_changed(node);
        }
        if !slot.busy.insert(key.clone()) {
            return;
        }
        let (calls, key, lane) = (self.calls.clone(), key.clone(), self.pod_lane.clone());
        match step {
            PodStep::Report { id, status } => self.spawn(node, lane, async move {
                let outcome = calls.report_pod(&id, &status).await;
                Done::PodReported(key, status, outcome)
            }),
            PodStep::Remove { id } => {
                self.spawn(node, lane, async move { Done::PodRemoved(key, calls.remove_pod(&id).await) });
            }
            PodStep::CreateMirror(pod) => {
                self.spawn(node, lane, async move { Done::Mirrored(key, calls.create_mirror(&pod).await) });
            }
            PodStep::ResolveVolumes { namespace, claims } => self.spawn(node, lane, async move {
                Done::Resolved(key, calls.resolve(&namespace, &claims).await)
            }),
            PodStep::Rest(_) | PodStep::Forget => {}
        }
        self.report_node_if_changed(node);
    }

    fn spawn(&self, node: &str, lane: Arc<Semaphore>, call: impl Future<Output = Done> + Send + 'static) {
        let Some(slot) = self.slots.get(node) else {
            return;
        };
        let (cut, life, delay) = (slot.calls.clone(), slot.life, slot.kubelet.delay());
        let (done, node) = (self.done.clone(), node.to_owned());
        tokio::spawn(cut.run_until_cancelled_owned(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // The semaphore is never closed; only the permit matters.
            let _permit = lane.acquire_owned().await;
            let end = call.await;
            // The loop may have been stopped meanwhile: then the result is not needed.
            let _ = done.send((node, life, end));
        }));
    }

    pub(super) fn finish(&mut self, node: &str, life: u64, done: Done) {
        let Some(slot) = self.slots.get_mut(node).filter(|s| s.life == life) else {
            return;
        };
        match done {
            Done::Registered(result) => {
                slot.renewing = false;
                match result {
                    Ok(()) => self.registered(node),
                    Err(error) => {
                        self.note_failure(node, &error);
                        let again = self.clock.now() + FIRST_RETRY;
                        self.wakes.push(Reverse((again, Wake::Register(node.to_owned()))));
                    }
                }
            }
            Done::Renewed(result) => {
                slot.renewing = false;
                if let Err(error) = result {
                    self.note_failure(node, &error);
                }
            }
            Done::NodeReported(in_use, result) => {
                slot.reporting = false;
                match result {
                    Ok(at) => slot.reported = Some((in_use, at)),
                    Err(error) => {
                        self.note_failure(node, &error);
                        return;
                    }
                }
                self.report_node_if_changed(node);
            }
            Done::PodReported(key, status, outcome) => {
                if let Outcome::Done(at) = &outcome {
                    slot.kubelet.reported(&key, &status, *at);
                }
                self.settle(node, key, outcome);
            }
            Done::PodRemoved(key, outcome) => {
                if let Outcome::Done(()) = &outcome {
                    slot.kubelet.removed(&key);
                }
                self.settle(node, key, outcome);
            }
            Done::Mirrored(key, result) => {
                // The mirror itself arrives by the watch; until then it would be created again.
                let outcome = match result {
                    Ok(()) => Outcome::Gone,
                    Err(error) => Outcome::Failed(error),
                };
                self.settle::<()>(node, key, outcome);
            }
            Done::Resolved(key, result) => {
                let outcome = match result {
                    Ok(Some(volumes)) => {
                        slot.kubelet.resolved(&key, volumes);
                        Outcome::Done(())
                    }
                    // A claim that is not bound yet: checked again soon.
                    Ok(None) => Outcome::Gone,
                    Err(error) => Outcome::Failed(error),
                };
                self.settle(node, key, outcome);
            }
        }
    }

    fn registered(&mut self, node: &str) {
        let now = self.clock.now();
        let (renewal, report) = (self.timers.lease_renewal, self.timers.status_report);
        // Spread out, so that a thousand nodes that start together do not send heartbeats together.
        let first = [self.rng.f64(), self.rng.f64()];
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        slot.registered = true;
        slot.reported = None;
        if slot.added.take().is_some() {
            let name = node.to_owned();
            self.wakes.push(Reverse((now + renewal.mul_f64(first[0]), Wake::Heartbeat(name.clone()))));
            self.wakes.push(Reverse((now + report.mul_f64(first[1]), Wake::NodeStatus(name))));
        } else {
            self.report_node(node);
        }
    }

    /// After a call for a pod: continue, or retry later.
    fn settle<T>(&mut self, node: &str, key: PodKey, outcome: Outcome<T>) {
        let Some(slot) = self.slots.get_mut(node) else {
            return;
        };
        if let Outcome::Done(_) = outcome {
            slot.busy.remove(&key);
            slot.attempts.remove(&key);
            return self.drive(node, &key);
        }
        let attempt = slot.attempts.entry(key.clone()).or_default();
        *attempt += 1;
        let wait = retry_after(*attempt);
        let again = Wake::PodAgain(node.to_owned(), key, slot.life);
        self.wakes.push(Reverse((self.clock.now() + wait, again)));
        if let Outcome::Failed(error) = outcome {
            self.note_failure(node, &error);
        }
    }

    fn note_failure(&mut self, node: &str, error: &kube::Error) {
        self.failed_calls += 1;
        tracing::debug!(node, %error, "call failed; it will be made again");
    }
}
