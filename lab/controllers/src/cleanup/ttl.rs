//! Time to live: deletes finished Jobs after their `ttlSecondsAfterFinished`.

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::object;
use serde_json::json;

use crate::calls::{Call, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::Kind;
use crate::world::views::Workload;
use crate::world::{Change, World};

#[derive(Debug, Default)]
pub(crate) struct TimeToLive {
    queue: Queue,
}

impl Control for TimeToLive {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Job]
    }

    fn observe(&mut self, change: &Change) {
        if let Change::Workload(Kind::Job, delta) = change
            && let Some(job) = &delta.new
        {
            self.queue.add(job.metadata.key());
        }
    }

    fn again(&mut self, subject: &str) {
        self.queue.add(subject);
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        let mut errands = Vec::new();
        for key in self.queue.take(now) {
            let Some(job) = world.jobs.get(&key).filter(|job| !job.metadata.is_terminating()) else {
                continue;
            };
            match expires(job) {
                Some(at) if at <= now => {
                    errands.push(Errand::new(key, vec![Call::DeleteForeground(Ref::to(Kind::Job, &**job))]));
                }
                Some(at) => self.queue.at(at, &key),
                None => {}
            }
        }
        Plan { errands, wake: self.queue.wake() }
    }
}

fn expires(job: &Workload) -> Option<Timestamp> {
    let kept = job.spec["ttlSecondsAfterFinished"].as_i64()?;
    let finished = object::list(&job.status, "/conditions").iter().find(|condition| {
        ["Complete", "Failed"].contains(&object::text(condition, "/type"))
            && condition["status"] == json!("True")
    })?;
    let at: Timestamp = object::text(finished, "/lastTransitionTime").parse().ok()?;
    at.checked_add(SignedDuration::from_secs(kept)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_job_goes_so_long_after_it_has_finished() {
        let job = |spec: Value, conditions: Value| -> Workload {
            serde_json::from_value(json!({"spec": spec, "status": {"conditions": conditions}})).unwrap()
        };
        let done =
            json!([{"type": "Complete", "status": "True", "lastTransitionTime": "1970-01-01T00:01:40Z"}]);
        let failing = json!([{"type": "FailureTarget", "status": "True", "lastTransitionTime": "1970-01-01T00:01:40Z"}]);
        for (job, expected) in [
            (job(json!({"ttlSecondsAfterFinished": 10}), done.clone()), Some(110)),
            (job(json!({"ttlSecondsAfterFinished": 0}), done.clone()), Some(100)),
            (job(json!({"ttlSecondsAfterFinished": i64::MAX}), done.clone()), None),
            (job(json!({}), done), None),
            (job(json!({"ttlSecondsAfterFinished": 10}), failing), None),
        ] {
            assert_eq!(expires(&job).map(Timestamp::as_second), expected, "{job:?}");
        }
    }
}
