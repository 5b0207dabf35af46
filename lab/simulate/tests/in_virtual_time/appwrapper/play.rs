//! Stories of one AppWrapper, and the end that each must reach.

use std::time::Duration;

use salvor_apiserver::ChangeKind;
use salvor_simulate::Line;
use serde_json::{Value, json};

use super::{
    audit::{Rule, holds, problems},
    world::{Plot, World, settings},
};
use crate::stage::Happening;
use crate::troubles::{Salvor, Trouble};

/// The interval at which the simulated controllers reconcile.
pub(super) const BEAT: Duration = Duration::from_secs(5);
/// Every story is over after this many beats.
pub(super) const MOST_BEATS: usize = 700;
/// An end must last for this many beats.
const QUIET: usize = 20;

/// What happens to the AppWrapper without interference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// It fails twice, is reset twice, and succeeds.
    Mended,
    /// It fails once more than allowed.
    GivenUp,
}

impl Flow {
    pub(super) const RETRIES: i64 = 2;

    pub(super) fn plot(self) -> Plot {
        match self {
            Self::Mended => Plot { failures: 2, ends: true },
            Self::GivenUp => Plot { failures: usize::MAX, ends: true },
        }
    }

    /// The phase, retries, attempts, and true conditions.
    pub(super) fn end(self) -> Value {
        match self {
            Self::Mended => {
                json!({"phase": "Succeeded", "retries": 2, "attempts": 3, "deployed": true, "left": 4})
            }
            Self::GivenUp => {
                json!({"phase": "Failed", "retries": 2, "attempts": 3, "deployed": false, "left": 0})
            }
        }
    }

    /// A world with this AppWrapper in it.
    pub(super) async fn begin(self) -> World {
        let world = World::new(self.plot()).await;
        world.create(&[("retryLimit", "2")]).await;
        world
    }
}

pub(super) fn phase(app: &Value) -> &str {
    app["status"]["phase"].as_str().unwrap_or_default()
}

/// Whether an AppWrapper has reached its end, and keeps nothing but what it should.
pub(super) fn is_over(app: &Value) -> bool {
    match phase(app) {
        "Succeeded" => true,
        "Failed" => !holds(&app["status"], "ResourcesDeployed"),
        _ => false,
    }
}

/// The actual end, in the form of [`Flow::end`].
pub(super) async fn describe(world: &World) -> Value {
    let app = world.app();
    let history = world.stage.happenings();
    let made = |it: &&Happening| it.change == ChangeKind::Added && it.resource == "jobs";
    json!({
        "phase": phase(&app), "retries": app["status"]["resettingCount"].as_i64().unwrap_or(0),
        "attempts": history.iter().filter(made).count(),
        "deployed": holds(&app["status"], "ResourcesDeployed"),
        "left": world.left().await,
    })
}

/// Runs a world until a condition holds, and a while longer.
pub(super) async fn until(
    world: &mut World,
    salvor: &mut Salvor<'_>,
    holds: impl AsyncFn(&World) -> bool,
) -> bool {
    let mut quiet = 0;
    for _ in 0..MOST_BEATS {
        salvor.live(BEAT).await;
        world.beat().await;
        quiet = if holds(world).await { quiet + 1 } else { 0 };
        if quiet > QUIET {
            return true;
        }
    }
    false
}

/// Plays a story to its end. Returns all problems, and the number of processes.
pub(super) async fn play(flow: Flow, line: Line, trouble: Trouble) -> (Vec<String>, u32) {
    let mut world = flow.begin().await;
    let stage = world.stage.clone();
    let mut salvor = Salvor::start(&stage, settings(), line, trouble, Duration::from_secs(70));
    let over = async |world: &World| is_over(&world.app());
    let ended = until(&mut world, &mut salvor, over).await;
    let mut wrong = ending(&world, flow).await;
    if !ended {
        wrong.push("it came to no end".into());
    }
    let (_, lives) = salvor.stop().await;
    (wrong, lives)
}

/// The problems of the end of a story, and of its whole history.
pub(super) async fn ending(world: &World, flow: Flow) -> Vec<String> {
    let mut wrong = problems(&world.stage.happenings(), Flow::RETRIES, &[]);
    let end = describe(world).await;
    if end != flow.end() {
        wrong.push(format!("it ended as {end} instead of {}", flow.end()));
    }
    wrong
}

/// The problems of a story in which a user broke these rules.
pub(super) fn problems_but(world: &World, but: &[Rule]) -> Vec<String> {
    problems(&world.stage.happenings(), Flow::RETRIES, but)
}
