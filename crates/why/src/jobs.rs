//! Jobs, and the kinds that create Jobs.

use jiff::{SignedDuration, Timestamp};
use salvor_api::{
    Controller,
    config::DisruptedPods,
    names::{conditions::DISRUPTION_TARGET, job as names},
};
use serde_json::Value;

use crate::{
    answer::Remedy,
    code::Code,
    diagnosis::{Diagnosis, Finding, Missing, Rules},
    json::{
        controller, has_ended, holds, is_true, list, name, named, namespace, number, selector, since, text,
        time, uid,
    },
    kinds::{CRON_JOB, JOB, Kind, POD},
    owners::{Creation, add_up, out_of_sight, template_pods},
    presence::Presence,
    words::counted,
};

/// A running controller has written a status by then.
const ABSENT_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// The first backoff of the built-in controller before it replaces a failed pod. Each further one is twice as long.
const BACKOFF: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_secs(600);

impl Rules<'_> {
    pub(crate) fn job(&self, job: &Value) -> Diagnosis {
        let me = named("Job", job);
        if holds(job, "Complete").is_some() || holds(job, "SuccessCriteriaMet").is_some() {
            return Diagnosis::default();
        }
        if let Some(failed) = holds(job, "Failed") {
            let of = should_run(job, 0).unwrap_or(1);
            return match of {
                0 => Diagnosis::default(),
                of => {
                    let findings = vec![failed_job(job, failed, self.disruptions(job, failed))];
                    Diagnosis::of(Missing::Pods { missing: of, of }, findings)
                }
            };
        }
        let of = should_run(job, failed_indexes(job));
        if of == Some(0) {
            return Diagnosis::default();
        }
        let labels = selector(job.pointer("/spec/selector/matchLabels"));
        let seen = self.world.owned(&POD, namespace(job), uid(job), &labels);
        let unseen = seen.is_none();
        let pods = seen.unwrap_or_default();
        // A work queue with a success creates no more pods. The remaining ones only have to end.
        let left = || pods.iter().filter(|pod| !has_ended(pod)).count();
        let (queue_ends, of) = (of.is_none(), of.unwrap_or_else(left));
        let ready = pods.iter().filter(|pod| self.runs(pod)).count();
        let missing = Missing::Pods { missing: of.saturating_sub(ready), of };
        if ready >= of {
            return Diagnosis::of(missing, Vec::new());
        }
        if let Some(failed) = holds(job, "FailureTarget") {
            return Diagnosis::of(missing, vec![failed_job(job, failed, self.disruptions(job, failed))]);
        }
        if is_true(job, "/spec/suspend") {
            return Diagnosis::of(missing, vec![self.suspended(&JOB, "jobs", job)]);
        }
        if let Some(finding) = self.no_controller(job, &pods) {
            return Diagnosis::of(missing, vec![finding]);
        }
        if unseen {
            return self.unseen(&JOB, job, of);
        }
        let waits = queue_ends
            || text(job, "/spec/podReplacementPolicy") == "Failed"
            || job.pointer("/spec/podFailurePolicy").is_some();
        let mut diagnosis = self.of_pods(
            &JOB,
            job,
            of,
            &pods,
            Creation { waits_for_ending: waits, template: "/spec/template" },
        );
        diagnosis.missing = missing;
        diagnosis.under_owner(&me)
    }

    /// A Job whose controller has not written anything. Pods show that the built-in one works, or did.
    fn no_controller(&self, job: &Value, pods: &[&Value]) -> Option<Finding> {
        let by = match text(job, "/spec/managedBy") {
            "" => names::BUILT_IN_CONTROLLER,
            by => by,
        };
        let status = job.get("status").and_then(Value::as_object);
        let created = time(job, "/metadata/creationTimestamp")?;
        let silent = status.is_none_or(serde_json::Map::is_empty);
        if !silent || self.world.now < created.checked_add(ABSENT_AFTER).ok()? {
            return None;
        }
        let me = named("Job", job);
        if by == names::BUILT_IN_CONTROLLER && !pods.is_empty() {
            return None;
        }
        if by == names::BUILT_IN_CONTROLLER {
            let message = format!("no controller has written a status of Job {}", name(job));
            return Some(Finding::new(Code::ControllerAbsent, me, message).since(Some(created)).advice(
                "Look whether kube-controller-manager runs, with its Job controller: or let Salvor run the Job \
                 (managedBy, or job.unmanagedJobs)",
            ));
        }
        let message = format!(
            "managedBy names {by}, and nobody by that name has written anything on Job {}",
            name(job)
        );
        let found = |code, message: String| Finding::new(code, me.clone(), message).since(Some(created));
        if by == names::CONTROLLER_NAME
            && let Presence::Here(installed) = self.judge.presence(self.world)
        {
            if installed.leader.is_none() {
                return Some(
                    found(Code::NobodyLeads, format!("{message}: no replica of Salvor leads"))
                        .remedy(self.start_a_replica(&installed.configuration)),
                );
            }
            if !installed.configuration.controllers.enabled(Controller::Job) {
                return Some(
                    found(Code::RecoveryOff, format!("{message}: Salvor's controller job is not enabled"))
                        .remedy(self.switch_on(&installed.configuration, Controller::Job)),
                );
            }
        }
        Some(found(Code::ControllerAbsent, message).advice(format!(
            "Start the controller {by}, or make the Job anew without managedBy: the field cannot be changed"
        )))
    }

    /// A suspended object: suspended by Kueue, by its owner or by a person.
    pub(crate) fn suspended(&self, kind: &Kind, resource: &str, object: &Value) -> Finding {
        let me = named(&kind.kind, object);
        // Kueue may manage a workload that names no queue.
        if *kind != CRON_JOB
            && let Some(finding) = self.not_admitted(object)
        {
            return finding.under(me, "is suspended until Kueue admits it");
        }
        if *kind == JOB
            && let Some(finding) = self.suspended_above(object)
        {
            return finding.under(me, "is suspended with what made it");
        }
        let at = holds(object, "Suspended").and_then(since);
        let message = format!("{} {} is suspended", kind.kind, name(object));
        let full = if kind.group.is_empty() || kind.group == "batch" {
            resource.to_owned()
        } else {
            format!("{resource}.{}", kind.group)
        };
        Finding::new(Code::Suspended, me, message).since(at).remedy(Remedy::command(
            "Let it run",
            format!(
                "kubectl patch {full} {} -n {} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'",
                name(object),
                namespace(object)
            ),
        ))
    }

    /// The owner of a Job suspends it. Resuming the Job alone does not help, because the owner suspends it again.
    fn suspended_above(&self, object: &Value) -> Option<Finding> {
        let owner = controller(object).filter(|owner| !["CronJob", "Job"].contains(&text(owner, "/kind")))?;
        let (group, _) = text(owner, "/apiVersion").split_once('/').unwrap_or(("", ""));
        let kind = Kind { group: group.to_owned().into(), kind: text(owner, "/kind").to_owned().into() };
        let above = self.world.get(&kind, namespace(object), text(owner, "/name")).here()?;
        is_true(above, "/spec/suspend").then(|| self.suspended(&kind, &kind.kind.to_lowercase(), above))
    }

    /// The number of failures of a failed Job, if all that are still visible were disruptions.
    pub(crate) fn disruptions(&self, job: &Value, failed: &Value) -> Option<usize> {
        let labels = selector(job.pointer("/spec/selector/matchLabels"));
        let pods = self.world.owned(&POD, namespace(job), uid(job), &labels)?;
        let end = since(holds(job, "FailureTarget").unwrap_or(failed));
        // Pods that are deleted because the Job failed are not the reason for the failure.
        let ended_with_it = |pod: &&Value| {
            let deleted = time(pod, "/metadata/deletionTimestamp").filter(|_| !is_disrupted(pod));
            deleted.is_some_and(|at| end.is_none_or(|end| at >= end))
        };
        let failures = pods.into_iter().filter(|pod| text(pod, "/status/phase") == "Failed");
        let failures: Vec<&Value> = failures.filter(|pod| !ended_with_it(pod)).collect();
        (!failures.is_empty() && failures.iter().all(|pod| is_disrupted(pod))).then_some(failures.len())
    }

    /// Whether Salvor runs the Job and replaces disrupted pods without backoff.
    fn spares_disrupted(&self, job: &Value) -> bool {
        text(job, "/spec/managedBy") == names::CONTROLLER_NAME
            && matches!(self.judge.presence(self.world), Presence::Here(installed)
                if installed.configuration.job.disrupted_pods == DisruptedPods::Ignore)
    }

    /// A Job that backs off before it replaces a failed pod.
    pub(crate) fn backoff(&self, job: &Value, pods: &[&Value]) -> Option<Finding> {
        let succeeded = pods.iter().filter(|pod| text(pod, "/status/phase") == "Succeeded");
        let last_success = succeeded.filter_map(|pod| ended_at(pod)).max();
        let spares = self.spares_disrupted(job);
        let failed = pods.iter().filter(|pod| text(pod, "/status/phase") == "Failed");
        let failed = failed.filter(|pod| !(spares && is_disrupted(pod)));
        let mut ends: Vec<Timestamp> = failed
            .filter_map(|pod| ended_at(pod))
            .filter(|at| last_success.is_none_or(|success| *at > success))
            .collect();
        ends.sort();
        let last = *ends.last()?;
        let doublings = u32::try_from(ends.len().saturating_sub(1)).unwrap_or(u32::MAX).min(10);
        let wait = BACKOFF.checked_mul(2_i32.pow(doublings)).unwrap_or(LONGEST_BACKOFF).min(LONGEST_BACKOFF);
        let until = last.checked_add(wait).ok()?;
        if self.world.now > until {
            return None;
        }
        let message = format!(
            "{} of its pods failed, so that the Job waits {wait:#} since the last failure, and the next one is made at {until:.0}",
            ends.len()
        );
        let finding = Finding::new(Code::BackoffRunning, named("Job", job), message)
            .since(Some(last))
            .until(Some(until))
            .advice(format!("Nothing needs to be done: the next pod is made at {until:.0}"));
        let latest = pods.iter().filter(|pod| ended_at(pod) == Some(last)).map(|pod| name(pod)).next();
        Some(match latest {
            Some(pod) => finding.remedy(Remedy::command(
                "Read why the last one failed",
                format!("kubectl logs {pod} -n {}", namespace(job)),
            )),
            None => finding,
        })
    }

    pub(crate) fn cron_job(&self, cron: &Value) -> Diagnosis {
        let me = named("CronJob", cron);
        let Some(jobs) = self.world.owned(&JOB, namespace(cron), uid(cron), "") else {
            return match list(cron, "/status/active") {
                [] => Diagnosis::default(),
                _ => Diagnosis::phrase("what cannot be seen from here", vec![out_of_sight(me, "jobs")]),
            };
        };
        let runs: Vec<&Value> = jobs
            .iter()
            .filter(|job| holds(job, "Complete").is_none() && holds(job, "Failed").is_none())
            .copied()
            .collect();
        if runs.is_empty() && is_true(cron, "/spec/suspend") {
            let finding = self.suspended(&CRON_JOB, "cronjobs", cron);
            return Diagnosis::phrase("its next run", vec![finding]);
        }
        let last = jobs.iter().max_by_key(|job| time(job, "/metadata/creationTimestamp")).copied();
        if runs.is_empty()
            && let Some(refused) = self.refused_run(cron, last)
        {
            return Diagnosis::phrase("its last run", vec![refused]);
        }
        let last = last.filter(|_| runs.is_empty());
        let all = runs.into_iter().chain(last).map(|job| self.job(job));
        add_up(all).under(&me, "made the Job")
    }

    /// The refusal of a CronJob's Job, if no Job was made since.
    fn refused_run(&self, cron: &Value, last: Option<&Value>) -> Option<Finding> {
        let refusal = self.refusal(cron)?;
        let made = last.and_then(|job| time(job, "/metadata/creationTimestamp"));
        if made.is_some_and(|made| refusal.at.is_none_or(|at| at <= made)) {
            return None;
        }
        let template = cron.pointer("/spec/jobTemplate/spec/template").unwrap_or(&Value::Null);
        Some(match self.quota(cron, template, &refusal.message, 1) {
            Some(finding) => finding.since(refusal.at),
            None => self.refused(&CRON_JOB, cron, &refusal),
        })
    }

    pub(crate) fn job_set(&self, set: &Value) -> Diagnosis {
        let me = named("JobSet", set);
        let of: usize = list(set, "/spec/replicatedJobs")
            .iter()
            .map(|part| {
                let replicas = usize::try_from(number(part, "/replicas").unwrap_or(1)).unwrap_or(0);
                replicas
                    .saturating_mul(template_pods("Job", part.pointer("/template").unwrap_or(&Value::Null)))
            })
            .fold(0, usize::saturating_add);
        let whole = Missing::Pods { missing: of, of };
        if holds(set, "Completed").is_some() {
            return Diagnosis::default();
        }
        if let Some(failed) = holds(set, "Failed") {
            let message = format!("JobSet {} has failed: {}", name(set), text(failed, "/message"));
            let finding = Finding::new(Code::JobFailed, me, message)
                .since(since(failed))
                .advice("Make the JobSet anew, once what failed is put right");
            return Diagnosis::of(whole, vec![finding]);
        }
        if is_true(set, "/spec/suspend") {
            return Diagnosis::of(whole, vec![self.suspended(&crate::kinds::JOB_SET, "jobsets", set)]);
        }
        let labels = format!("jobset.sigs.k8s.io/jobset-name={}", name(set));
        let Some(jobs) = self.world.owned(&JOB, namespace(set), uid(set), &labels) else {
            return Diagnosis::of(whole, vec![out_of_sight(me, "jobs")]);
        };
        if jobs.is_empty() {
            return Diagnosis::of(whole, Vec::new());
        }
        let diagnosis = add_up(jobs.into_iter().map(|job| self.job(job)));
        diagnosis.under(&me, "made the Job")
    }
}

/// The number of pods that should run now: the parallelism, or what is left to do if that is less. `None` for a work
/// queue with a success, because it creates no more pods.
fn should_run(job: &Value, given_up: usize) -> Option<usize> {
    let count = |path| number(job, path).map(|count| usize::try_from(count).unwrap_or(0));
    let parallelism = count("/spec/parallelism").unwrap_or(1);
    let succeeded = count("/status/succeeded").unwrap_or(0);
    match count("/spec/completions") {
        Some(completions) => {
            Some(parallelism.min(completions.saturating_sub(succeeded.saturating_add(given_up))))
        }
        None if succeeded > 0 => None,
        None => Some(parallelism),
    }
}

/// The number of indexes that failed for good. A Job with `backoffLimitPerIndex` reports them as `1,3-5`.
fn failed_indexes(job: &Value) -> usize {
    let told = text(job, "/status/failedIndexes").split(',').filter(|part| !part.is_empty());
    let count = told.filter_map(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.trim().parse::<usize>().ok()?, to.trim().parse::<usize>().ok()?);
        to.checked_sub(from)?.checked_add(1)
    });
    count.fold(0, usize::saturating_add)
}

fn is_disrupted(pod: &Value) -> bool {
    holds(pod, DISRUPTION_TARGET).is_some()
}

/// A failed Job. `disruptions` is the number of its failures, if all of them were disruptions.
pub(crate) fn failed_job(job: &Value, failed: &Value, disruptions: Option<usize>) -> Finding {
    let reason = text(failed, "/reason");
    let code = match reason {
        names::reasons::BACKOFF_LIMIT_EXCEEDED => Code::BackoffLimitExceeded,
        names::reasons::DEADLINE_EXCEEDED => Code::DeadlineExceeded,
        _ => Code::JobFailed,
    };
    let message = format!("Job {} has failed: {reason}: {}", name(job), text(failed, "/message"));
    let message = message.trim_end_matches(": ").to_owned();
    let message = match disruptions {
        Some(pods) => format!("{message} ({} ended by lost nodes)", counted(pods, "pod")),
        None => message,
    };
    let limit = number(job, "/spec/backoffLimit").unwrap_or(6);
    let advice = match code {
        Code::DeadlineExceeded => {
            let seconds = number(job, "/spec/activeDeadlineSeconds").unwrap_or(0);
            format!(
                "Make the Job anew with a longer activeDeadlineSeconds than {seconds}: a failed Job does not run again"
            )
        }
        Code::BackoffLimitExceeded | Code::JobFailed if disruptions.is_some() => format!(
            "Its pods were ended by lost nodes and not by what they did: make the Job anew, with a podFailurePolicy that ignores \
             DisruptionTarget or a higher backoffLimit than {limit}. A failed Job does not run again"
        ),
        Code::BackoffLimitExceeded => {
            format!(
                "Put right what failed, then make the Job anew (backoffLimit was {limit}): a failed Job does not run again"
            )
        }
        _ => "Put right what failed, then make the Job anew: a failed Job does not run again".to_owned(),
    };
    Finding::new(code, named("Job", job), message).since(since(failed)).advice(advice).remedy(
        Remedy::command(
            "Read what its pods said",
            format!(
                "kubectl logs -n {} -l batch.kubernetes.io/job-name={} --all-containers --tail=50",
                namespace(job),
                name(job)
            ),
        ),
    )
}

fn ended_at(pod: &Value) -> Option<Timestamp> {
    let ends = list(pod, "/status/containerStatuses")
        .iter()
        .filter_map(|status| time(status, "/state/terminated/finishedAt"));
    ends.max()
        .or_else(|| crate::json::condition(pod, "Ready").and_then(since))
        .or_else(|| time(pod, "/metadata/deletionTimestamp"))
        // The built-in controller does the same for a pod without a finish time.
        .or_else(|| time(pod, "/metadata/creationTimestamp"))
}
