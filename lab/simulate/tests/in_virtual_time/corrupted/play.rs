//! Plays a story in which something is corrupted, and reverted minutes later.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use salvor_simulate::{Process, in_virtual_time};
use serde_json::Value;
use tokio::time::sleep;
use tracing_subscriber::fmt::MakeWriter;

use super::{spot::Spot, value::Corruption};
use crate::stage::Stage;

/// The interval at which the simulated world reconciles.
const BEAT: Duration = Duration::from_secs(5);
/// Something stays corrupted for this many beats: two minutes.
const CORRUPTED: usize = 24;
/// Every story is over after this many beats.
const MOST_BEATS: usize = 900;
/// An end must last for this many beats.
const QUIET: usize = 4;

/// A recovery in progress, in a world that the test plays.
pub(crate) trait Story {
    fn stage(&self) -> &Stage;

    /// The path of an object that the story names by a word.
    async fn path(&self, object: &str) -> String {
        object.to_owned()
    }

    /// All simulated controllers reconcile once.
    async fn beat(&mut self) {}

    /// Nothing is corrupted any more.
    async fn mended(&mut self) {}

    /// Whether it has reached its end.
    async fn is_over(&self) -> bool;

    /// All that was done, and the final state.
    async fn end(&self) -> Value;
}

/// Plays a story with every corruption of these places; those of a group are corrupted together. A corruption lasts two
/// minutes. Nothing panics, it is reported where that is promised, and after the rollback the story ends as it does
/// undisturbed, by the same actions.
pub(crate) fn assert_withstood<S: Story>(begin: impl AsyncFn() -> (S, Process), groups: &[Vec<Spot>]) {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(
        tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_max_level(tracing::Level::INFO)
            .with_writer(log.clone())
            .finish(),
    );
    count_panics();
    let undisturbed = in_virtual_time(play(&begin, None, &log)).end;
    let mut wrong = Vec::new();
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    for (group, corruption) in groups.iter().flat_map(|group| Corruption::ALL.map(|it| (group, it))) {
        let before = panics();
        let played = in_virtual_time(play(&begin, Some((group, corruption)), &log));
        taken.extend(played.taken);
        let names: Vec<&str> = group.iter().map(|spot| spot.name).collect();
        let mut note = |what: String| wrong.push(format!("{names:?} ({corruption:?}): {what}"));
        if panics() > before {
            note(format!("something panicked:\n{}", log.end()));
        }
        if played.end != undisturbed {
            note(format!("it ended as {}\n    instead of {undisturbed}", played.end));
        }
        for word in played.untold {
            note(format!("nobody was told of {word:?}"));
        }
    }
    for spot in groups.iter().flatten().filter(|spot| !taken.contains(spot.name)) {
        wrong.push(format!("{}: the API server takes no bad value of it, so nothing was tried", spot.name));
    }
    assert!(wrong.is_empty(), "{} endings are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The course of a story.
struct Played {
    end: Value,
    /// The places where the API server accepted the bad value.
    taken: Vec<&'static str>,
    /// The words that should have been reported and were not.
    untold: Vec<&'static str>,
}

async fn play<S: Story>(
    begin: &impl AsyncFn() -> (S, Process),
    bad: Option<(&Vec<Spot>, Corruption)>,
    log: &Log,
) -> Played {
    let (mut story, process) = begin().await;
    let client = story.stage().client.clone();
    log.clear();
    let (mut taken, mut untold) = (Vec::new(), Vec::new());
    if let Some((group, corruption)) = bad {
        let since = story.stage().cluster.now();
        let mut kept = Vec::new();
        for spot in group {
            let path = story.path(spot.object()).await;
            if let Some(before) = spot.corrupt(&client, &path, corruption).await {
                kept.push((spot, path, before));
            }
        }
        for _ in 0..CORRUPTED {
            sleep(BEAT).await;
            story.beat().await;
        }
        let said = log.end() + &story.stage().said_since(since);
        for (spot, path, before) in kept {
            taken.push(spot.name);
            untold.extend(spot.word(corruption).filter(|word| !said.contains(word)));
            spot.roll_back(&client, &path, &before).await;
        }
    }
    story.mended().await;
    let mut quiet = 0;
    for _ in 0..MOST_BEATS {
        sleep(BEAT).await;
        story.beat().await;
        quiet = if story.is_over().await { quiet + 1 } else { 0 };
        if quiet > QUIET {
            break;
        }
    }
    let mut end = story.end().await;
    end["over"] = (quiet > QUIET).into();
    end["leads"] = process.metrics().contains("\nsalvor_leader 1\n").into();
    process.stop().await;
    Played { end, taken, untold }
}

// ---- logs and panics ----------------------------------------------------------------------------------------------

/// What the operator of this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// The last lines.
    fn end(&self) -> String {
        let bytes = self.0.lock().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        text[text.ceil_char_boundary(text.len().saturating_sub(20_000))..].to_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the panics of each thread. A task that panics does not stop the others, so a test would not notice; a
/// simulation runs on one thread.
fn count_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
}

fn panics() -> usize {
    PANICS.get()
}
