//! A Job's spec and the events of its life, drawn from a seed.

use serde_json::{Value, json};

use crate::stage::{blocked_template, template_on_a_node};

/// An event in the life of a Job or of its n-th pod.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    Succeeds(usize),
    Fails(usize, i32),
    IsReady(usize),
    /// Its container failed this many times and was restarted in place.
    Restarts(usize, i32),
    /// The pod fails with the condition DisruptionTarget.
    IsDisrupted(usize),
    IsDeleted(usize),
    /// Its node becomes silent and the pod is evicted: its deletion is requested, and no kubelet acts on it.
    LosesItsNode(usize),
    /// The n-th terminating pod ends.
    Ends(usize, i32),
    /// The node of the n-th terminating pod is removed: the pod is marked Failed and deleted for good.
    IsCollected(usize),
    /// All terminating pods disappear without a final status.
    Vanish,
    Suspend,
    Resume,
    Parallelism(i32),
    Resize(i32),
    BackoffLimit(i32),
    /// The active deadline of the Job passes.
    Deadline,
    Policy(&'static str),
}

/// What keeps a deleted pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// A finalizer of another controller.
    ByFinalizer,
    /// Its kubelet, played by the test: a deletion is a request with a grace period.
    ByKubelet,
}

#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) seed: u64,
    pub(super) held: Held,
    pub(super) spec: Value,
    pub(super) happenings: Vec<Happening>,
}

/// A small random number generator, reproducible from its seed on every platform.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn up_to(&mut self, most: u64) -> i32 {
        i32::try_from(self.roll(most + 1)).unwrap()
    }

    fn happens(&mut self, times: u64, of: u64) -> bool {
        self.roll(of) < times
    }

    fn position(&mut self) -> usize {
        usize::try_from(self.roll(8)).unwrap()
    }

    fn policy(&mut self) -> &'static str {
        if self.happens(1, 2) { "Failed" } else { "TerminatingOrFailed" }
    }
}

impl History {
    pub(super) fn draw(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let held = if dice.happens(1, 2) { Held::ByKubelet } else { Held::ByFinalizer };
        let mut spec = json!({
            "parallelism": 1 + dice.up_to(2), "completions": 1 + dice.up_to(3), "backoffLimit": dice.up_to(5),
            "template": match held {
                Held::ByFinalizer => blocked_template(),
                Held::ByKubelet => template_on_a_node(),
            },
        });
        let indexed = dice.happens(1, 2);
        if indexed {
            index(&mut spec, &mut dice);
        } else if dice.happens(1, 5) {
            spec["completions"] = Value::Null;
        }
        if dice.happens(1, 4) {
            spec["podFailurePolicy"] = failure_policy(&spec, &mut dice);
        } else if dice.happens(2, 3) {
            spec["podReplacementPolicy"] = dice.policy().into();
        }
        if dice.happens(1, 8) {
            spec["suspend"] = true.into();
        }
        if spec["podFailurePolicy"].is_null() && dice.happens(1, 6) {
            spec["template"]["spec"]["restartPolicy"] = "OnFailure".into();
        }
        let kinds = Kinds {
            resizes: indexed && spec["parallelism"] == spec["completions"],
            any_policy: spec["podFailurePolicy"].is_null(),
            restarts: spec["template"]["spec"]["restartPolicy"] == "OnFailure",
        };
        let happenings = (0..3 + dice.roll(6)).map(|_| kinds.draw(&mut dice)).collect();
        Self { seed, held, spec, happenings }
    }
}

fn index(spec: &mut Value, dice: &mut Dice) {
    spec["completionMode"] = "Indexed".into();
    if dice.happens(1, 3) {
        spec["parallelism"] = spec["completions"].clone();
    }
    if dice.happens(1, 3) {
        spec["backoffLimitPerIndex"] = dice.up_to(2).into();
        if dice.happens(1, 2) {
            spec["maxFailedIndexes"] = dice.up_to(1).into();
        }
    }
    if dice.happens(1, 4) {
        let rule = if dice.happens(1, 2) {
            json!({"succeededCount": 1})
        } else {
            let last = spec["completions"].as_u64().unwrap() - 1;
            json!({"succeededIndexes": dice.up_to(last.min(1)).to_string()})
        };
        spec["successPolicy"] = json!({ "rules": [rule] });
    }
}

fn failure_policy(spec: &Value, dice: &mut Dice) -> Value {
    let per_index = !spec["backoffLimitPerIndex"].is_null();
    let action = if per_index && dice.happens(1, 2) { "FailIndex" } else { "FailJob" };
    json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": action, "onExitCodes": {"operator": "In", "values": [42]}},
    ]})
}

struct Kinds {
    resizes: bool,
    any_policy: bool,
    restarts: bool,
}

impl Kinds {
    fn draw(&self, dice: &mut Dice) -> Happening {
        match dice.roll(28) {
            0..=5 => Happening::Succeeds(dice.position()),
            6..=8 => Happening::Fails(dice.position(), if dice.happens(1, 3) { 42 } else { 1 }),
            9 => Happening::IsReady(dice.position()),
            10 if self.restarts => Happening::Restarts(dice.position(), 1 + dice.up_to(3)),
            10 | 11 => Happening::IsDisrupted(dice.position()),
            12..=14 => Happening::IsDeleted(dice.position()),
            15 | 16 => Happening::LosesItsNode(dice.position()),
            17 | 18 => Happening::Ends(dice.position(), dice.up_to(1)),
            19 => Happening::IsCollected(dice.position()),
            20 => Happening::Vanish,
            21 => Happening::Suspend,
            22 => Happening::Resume,
            23 if self.resizes => Happening::Resize(1 + dice.up_to(3)),
            23 => Happening::Parallelism(dice.up_to(4)),
            24 => Happening::BackoffLimit(dice.up_to(4)),
            25 => Happening::Deadline,
            _ if self.any_policy => Happening::Policy(dice.policy()),
            _ => Happening::Succeeds(dice.position()),
        }
    }
}
