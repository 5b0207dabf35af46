//! The conditions of an AppWrapper: every status, reason and message that Salvor writes.
//!
//! `lastTransitionTime` changes only when `status` does. Grace periods count from it, so it is rounded up to the next
//! second, the resolution of Kubernetes: no grace period is ever cut short.

use jiff::{SignedDuration, Timestamp};

use super::bounds::{LONGEST_MESSAGE, shortened};
use super::deletion::Held;
use super::health::Counts;
use super::names::conditions::{
    ANNOTATIONS_VALID, COMPONENTS_VALID, DELETING_RESOURCES, PODS_READY, QUOTA_RESERVED, RESOURCES_DEPLOYED,
    SUCCEEDED, UNHEALTHY,
};
use super::names::{annotations, reasons};
use super::policy::Defect;
use super::resets::Evidence;
use super::status::{AppWrapperStatus, ComponentStatus, Condition};
use super::views::ComponentView;
use crate::moments::{in_go, up_to_the_second};

const SUSPEND_IS_FALSE: &str = "Suspend is false";
const SUSPEND_IS_TRUE: &str = "Suspend is true";
const NOTHING_DEPLOYED: &str = "No resources deployed";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Yes,
    No,
    Unknown,
}

impl Holds {
    fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "True",
            Self::No => "False",
            Self::Unknown => "Unknown",
        }
    }
}

fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    holds: Holds,
    reason: &str,
    message: impl AsRef<str>,
    now: Timestamp,
) {
    let message = shortened(message.as_ref(), LONGEST_MESSAGE);
    let status = holds.as_str();
    match conditions.iter_mut().find(|it| it.kind == kind) {
        Some(known) => {
            if known.status != status {
                known.status = status.into();
                known.last_transition_time = up_to_the_second(now);
            }
            known.reason = reason.into();
            known.message = message;
        }
        None => conditions.push(Condition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message,
            last_transition_time: up_to_the_second(now),
            observed_generation: None,
        }),
    }
}

/// Why the components are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    Suspended,
    Reset,
    /// It has failed.
    Failed {
        /// True if a suspension, by Kueue for example, cut the time for debugging short.
        by_suspending: bool,
    },
    /// It succeeded, and its time to live is over.
    Succeeded {
        /// The time to live after success.
        ttl: SignedDuration,
        /// True if a suspension cut the time to live short.
        by_suspending: bool,
    },
    Terminating,
}

impl AppWrapperStatus {
    fn set(&mut self, kind: &str, holds: Holds, reason: &str, message: impl AsRef<str>, now: Timestamp) {
        set(&mut self.conditions, kind, holds, reason, message, now);
    }

    /// Start of an attempt: quota is taken, and components may exist from now on.
    pub(super) fn set_resuming(&mut self, now: Timestamp) {
        self.set(QUOTA_RESERVED, Holds::Yes, "Resuming", SUSPEND_IS_FALSE, now);
        self.set(RESOURCES_DEPLOYED, Holds::Yes, "Resuming", SUSPEND_IS_FALSE, now);
        self.set(PODS_READY, Holds::No, "Resuming", SUSPEND_IS_FALSE, now);
        self.set(UNHEALTHY, Holds::No, "Resuming", SUSPEND_IS_FALSE, now);
    }

    /// Restores the conditions that every running AppWrapper has, if another writer removed them. Waits count from the
    /// creation of the AppWrapper, as they do without the conditions.
    pub(super) fn restore_running(&mut self, created: Timestamp) {
        for kind in [QUOTA_RESERVED, RESOURCES_DEPLOYED] {
            if !self.holds(kind) {
                self.set(kind, Holds::Yes, "Resuming", SUSPEND_IS_FALSE, created);
            }
        }
        for kind in [PODS_READY, UNHEALTHY] {
            if self.condition(kind).is_none() {
                self.set(kind, Holds::No, "Resuming", SUSPEND_IS_FALSE, created);
            }
        }
    }

    /// End of a reset: components may exist again from now on.
    pub(super) fn set_reset_complete(&mut self, now: Timestamp) {
        self.set(RESOURCES_DEPLOYED, Holds::Yes, "Resuming", "Reset complete; resuming", now);
    }

    /// The work is done: quota is free, and components are kept for a while.
    pub(super) fn set_succeeded(&mut self, counts: &Counts, now: Timestamp) {
        let n = counts.succeeded;
        let message = if counts.failed == 0 {
            format!("{n} pods succeeded and no running, pending, or failed pods")
        } else {
            format!("{n} pods succeeded and no running or pending pods; failed pods were made up for")
        };
        self.set(QUOTA_RESERVED, Holds::No, "Succeeded", &message, now);
        self.set(RESOURCES_DEPLOYED, Holds::Yes, "Succeeded", &message, now);
    }

    /// Nothing is left of the components.
    pub(super) fn set_gone(&mut self, gone: Gone, now: Timestamp) {
        let (reason, message) = match gone {
            Gone::Suspended => ("Suspended", SUSPEND_IS_TRUE.into()),
            Gone::Reset => ("Resetting", "Resources deleted for resetting AppWrapper".into()),
            Gone::Failed { by_suspending: true } => {
                ("Failed", "Kueue forced resource deletion by suspending AppWrapper".into())
            }
            Gone::Failed { by_suspending: false } => {
                ("Failed", "Resources deleted for failed AppWrapper".into())
            }
            Gone::Succeeded { by_suspending: true, .. } => ("Succeeded", SUSPEND_IS_TRUE.into()),
            Gone::Succeeded { ttl, by_suspending: false } => {
                ("Succeeded", format!("Time to live after success of {} expired", in_go(ttl)))
            }
            Gone::Terminating => ("Terminating", "Resources successfully deleted".to_owned()),
        };
        self.set(RESOURCES_DEPLOYED, Holds::No, reason, message, now);
        match gone {
            Gone::Suspended => {
                self.set(QUOTA_RESERVED, Holds::No, "Suspended", SUSPEND_IS_TRUE, now);
                self.clear_pods_ready("Suspended", now);
                if self.holds(UNHEALTHY) {
                    self.set(UNHEALTHY, Holds::No, "Suspended", "", now);
                }
            }
            Gone::Failed { .. } => self.release_quota("Failed", now),
            Gone::Terminating => self.release_quota("Terminating", now),
            Gone::Reset | Gone::Succeeded { .. } => {}
        }
    }

    /// Quota is free because nothing is deployed.
    pub(super) fn release_quota(&mut self, reason: &str, now: Timestamp) {
        if self.holds(QUOTA_RESERVED) {
            self.set(QUOTA_RESERVED, Holds::No, reason, NOTHING_DEPLOYED, now);
        }
    }

    /// Pods are not ready any more because they are being deleted.
    pub(super) fn clear_pods_ready(&mut self, reason: &str, now: Timestamp) {
        if self.holds(PODS_READY) {
            self.set(PODS_READY, Holds::No, reason, "", now);
        }
    }

    /// Sets whether enough pods run. The numbers in the message are those at the time of the change: a write forevery
    /// pod that starts or ends would be useless.
    pub(super) fn set_pods_ready(&mut self, counts: &Counts, now: Timestamp) {
        let ready = counts.are_sufficient();
        let reason = if ready { reasons::SUFFICIENT_PODS_READY } else { reasons::INSUFFICIENT_PODS_READY };
        if ready && !self.holds(PODS_READY) {
            let message = format!("{} pods running; {} pods succeeded", counts.running, counts.succeeded);
            self.set(PODS_READY, Holds::Yes, reason, message, now);
        } else if !ready && self.holds(PODS_READY) {
            self.set(PODS_READY, Holds::No, reason, counts.to_string(), now);
        }
    }

    /// The workload is unhealthy. While the cause stays the same, so does the message.
    pub(super) fn set_unhealthy(&mut self, evidence: &Evidence, now: Timestamp) {
        let known =
            self.condition(UNHEALTHY).is_some_and(|it| it.is_true() && it.reason == evidence.cause.as_str());
        if !known {
            self.set(UNHEALTHY, Holds::Yes, evidence.cause.as_str(), &evidence.condition, now);
        }
    }

    pub(super) fn set_healthy(&mut self, now: Timestamp) {
        if self.holds(UNHEALTHY) {
            self.set(UNHEALTHY, Holds::No, reasons::FOUND_NO_FAILED_PODS, "", now);
        }
    }

    pub(super) fn unhealthy_since(&self) -> Option<Timestamp> {
        self.condition(UNHEALTHY).filter(|it| it.is_true()).map(|it| it.last_transition_time)
    }

    /// Marks the start of a deletion, and returns its time.
    pub(super) fn set_deleting(&mut self, now: Timestamp) -> Timestamp {
        if !self.holds(DELETING_RESOURCES) {
            self.set(DELETING_RESOURCES, Holds::Yes, reasons::DELETION_INITIATED, "", now);
        }
        self.condition(DELETING_RESOURCES).map_or(now, |it| it.last_transition_time)
    }

    /// Marks that pods of components that are done are being ended, and returns since when.
    pub(super) fn set_ending(&mut self, pods: usize, now: Timestamp) -> Timestamp {
        if !self.holds(DELETING_RESOURCES) {
            let message = format!("All components are done; {pods} pods have not ended");
            self.set(DELETING_RESOURCES, Holds::Yes, reasons::DELETION_INITIATED, message, now);
        }
        self.condition(DELETING_RESOURCES).map_or(now, |it| it.last_transition_time)
    }

    /// Reports for which machines a deletion waits, or that it no longer waits for any. The condition's time stays.
    pub(super) fn set_held(&mut self, held: Option<&Held>, now: Timestamp) {
        if let Some(held) = held {
            let message = held.to_string();
            self.set(DELETING_RESOURCES, Holds::Yes, reasons::MACHINE_MAY_RUN, message, now);
        } else if self.condition(DELETING_RESOURCES).is_some_and(|it| it.reason == reasons::MACHINE_MAY_RUN) {
            self.set(DELETING_RESOURCES, Holds::Yes, reasons::DELETION_INITIATED, "", now);
        }
    }

    /// Nothing is being deleted. A later deletion gets its full time before force is used.
    pub(super) fn set_deletion_over(&mut self, now: Timestamp) {
        if self.holds(DELETING_RESOURCES) {
            self.set(DELETING_RESOURCES, Holds::No, reasons::DELETION_COMPLETE, "", now);
        }
    }

    /// When the last of the finished components reported that it is done.
    pub(super) fn done_since(&self) -> Option<Timestamp> {
        let told = self.component_status.iter().filter_map(|it| it.condition(SUCCEEDED));
        told.filter(|it| it.is_true()).map(|it| it.last_transition_time).max()
    }

    pub(super) fn set_deleted(&mut self, now: Timestamp) {
        if self.condition(DELETING_RESOURCES).is_some() {
            self.set(DELETING_RESOURCES, Holds::No, reasons::DELETION_COMPLETE, "", now);
        }
        for component in &mut self.component_status {
            let deployed = component.condition(RESOURCES_DEPLOYED).is_some_and(|it| !it.is_false());
            if deployed {
                component.set(RESOURCES_DEPLOYED, Holds::No, reasons::COMPONENT_DELETED, now);
            }
            component.conditions.retain(|it| it.kind != SUCCEEDED);
        }
    }

    /// The deletion waits, to allow debugging of the failure.
    pub(super) fn set_deletion_paused(&mut self, delay: SignedDuration, now: Timestamp) {
        let message = format!("{} has value {}", annotations::DELETION_ON_FAILURE_GRACE_PERIOD, in_go(delay));
        self.set(DELETING_RESOURCES, Holds::No, reasons::DELETION_PAUSED, message, now);
    }

    /// Sets whether every annotation can be read. An AppWrapper that never had an unreadable annotation has no such
    /// condition.
    pub(super) fn set_annotations_valid(&mut self, defects: &[Defect], now: Timestamp) {
        if !defects.is_empty() {
            let all: Vec<String> = defects.iter().map(ToString::to_string).collect();
            self.set(ANNOTATIONS_VALID, Holds::No, reasons::INVALID_ANNOTATION, all.join(". "), now);
        } else if self.condition(ANNOTATIONS_VALID).is_some_and(Condition::is_false) {
            self.set(ANNOTATIONS_VALID, Holds::Yes, reasons::VALID, "", now);
        }
    }

    /// Sets whether the admission rules allow the components and these are unchanged since admission. An AppWrapper
    /// that never had this problem has no such condition.
    pub(super) fn set_components_valid(&mut self, refused: Option<&str>, now: Timestamp) {
        if let Some(message) = refused {
            self.set(COMPONENTS_VALID, Holds::No, reasons::REFUSED, message, now);
        } else if self.condition(COMPONENTS_VALID).is_some_and(|it| !it.is_true()) {
            self.set(COMPONENTS_VALID, Holds::Yes, reasons::VALID, "", now);
        }
    }

    /// The reviews of the author's rights are unanswered.
    pub(super) fn set_author_unknown(&mut self, message: &str, now: Timestamp) {
        self.set(COMPONENTS_VALID, Holds::Unknown, reasons::AUTHOR_UNKNOWN, message, now);
    }

    /// Creates one status for each component, with its PodSets.
    pub(super) fn init_components(&mut self, components: &[ComponentView]) {
        if self.component_status.len() != components.len() {
            let of =
                |it: &ComponentView| ComponentStatus { pod_sets: it.pod_sets.clone(), ..Default::default() };
            self.component_status = components.iter().map(of).collect();
        }
    }

    /// Components are about to be created under these names.
    pub(super) fn set_creating(&mut self, components: &[ComponentView], now: Timestamp) {
        self.init_components(components);
        for (status, component) in self.component_status.iter_mut().zip(components) {
            status.identify(component, &component.name);
            status.conditions.retain(|it| it.kind != SUCCEEDED);
            status.set(RESOURCES_DEPLOYED, Holds::Unknown, reasons::COMPONENT_CREATION_INITIATED, now);
        }
    }
}

impl ComponentStatus {
    fn set(&mut self, kind: &str, holds: Holds, reason: &str, now: Timestamp) {
        set(&mut self.conditions, kind, holds, reason, "", now);
    }

    /// Records the object's identity.
    pub(super) fn identify(&mut self, component: &ComponentView, name: &str) {
        self.name = name.into();
        self.kind = component.kind.kind.clone();
        self.api_version = component.kind.api_version();
    }

    pub(super) fn set_created(&mut self, now: Timestamp) {
        self.set(RESOURCES_DEPLOYED, Holds::Yes, reasons::COMPONENT_CREATED, now);
    }

    pub(super) fn set_creation_errored(&mut self, now: Timestamp) {
        self.set(RESOURCES_DEPLOYED, Holds::No, reasons::COMPONENT_CREATION_ERRORED, now);
    }

    /// The component reported that it is done. That is recorded, because its own time to live may delete it later.
    pub(super) fn set_succeeded(&mut self, now: Timestamp) {
        if !self.has_succeeded() {
            self.set(SUCCEEDED, Holds::Yes, reasons::COMPONENT_SUCCEEDED, now);
        }
    }

    /// True if the component reported that it is done.
    pub fn has_succeeded(&self) -> bool {
        self.condition(SUCCEEDED).is_some_and(Condition::is_true)
    }
}
