//! Plays a story in which something is corrupted, and put back minutes later.

use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use salvor_simulate::{Process, in_virtual_time};
use serde_json::Value;
use tokio::time::sleep;
use tracing_subscriber::fmt::MakeWriter;

use super::{spot::Spot, value::Corruption};
use crate::stage::Stage;

/// How often the world around looks.
const BEAT: Duration = Duration::from_secs(5);
/// Beats for which something stays corrupted: five minutes.
const CORRUPTED: usize = 60;
/// Beats after which every story is over.
const MOST_BEATS: usize = 900;
/// Beats that show that an end stays one.
const QUIET: usize = 12;

/// A recovery that is under way, in a world that the test plays.
pub(crate) trait Story {
    /// The cluster.
    fn stage(&self) -> &Stage;

    /// The path of an object that is called by a word.
    async fn path(&self, object: &str) -> String {
        object.to_owned()
    }

    /// All who are not Salvor look once.
    async fn beat(&mut self) {}

    /// Nothing is corrupted any more.
    async fn mended(&mut self) {}

    /// Whether it has come to its end.
    async fn is_over(&self) -> bool;

    /// All that was done, and what it came to.
    async fn end(&self) -> Value;
}

/// Plays a story with every corruption of each of these places. Whatever is there for five minutes: nothing panics, somebody is
/// told where that is promised, and after the rollback the story has the end that it has undisturbed, by the same deeds.
pub(crate) fn assert_withstood<S: Story>(begin: impl AsyncFn() -> (S, Process), spots: &[Spot]) {
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
    for spot in spots {
        let mut taken = 0;
        for corruption in Corruption::ALL {
            let before = panics();
            let Played { end, refused, untold } =
                in_virtual_time(play(&begin, Some((spot, corruption)), &log));
            taken += usize::from(!refused);
            let mut note = |what: String| wrong.push(format!("{} ({corruption:?}): {what}", spot.name));
            if panics() > before {
                note(format!("something panicked:\n{}", log.end()));
            }
            if end != undisturbed {
                note(format!("it ended as {end}\n    instead of {undisturbed}"));
            }
            if let Some(word) = untold {
                note(format!("nobody was told of {word:?}:\n{}", log.end()));
            }
        }
        assert!(taken > 0, "{}: the API server takes no bad value of it, so nothing was tried", spot.name);
    }
    assert!(wrong.is_empty(), "{} endings are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// How a story went.
struct Played {
    end: Value,
    /// True if the API server did not take the bad value.
    refused: bool,
    /// The word that nobody said.
    untold: Option<&'static str>,
}

async fn play<S: Story>(
    begin: &impl AsyncFn() -> (S, Process),
    bad: Option<(&Spot, Corruption)>,
    log: &Log,
) -> Played {
    let (mut story, process) = begin().await;
    let client = story.stage().client.clone();
    log.clear();
    let (mut refused, mut untold) = (false, None);
    if let Some((spot, corruption)) = bad {
        let path = story.path(spot.object()).await;
        let since = story.stage().cluster.now();
        let kept = spot.corrupt(&client, &path, corruption).await;
        for _ in 0..CORRUPTED {
            sleep(BEAT).await;
            story.beat().await;
        }
        refused = kept.is_none();
        let is_said = |word: &&str| {
            let said = |it: &crate::stage::Happening| {
                let object = &it.object;
                let spoken = [&object["message"], &object["note"], &object["status"]["conditions"]];
                it.at >= since && spoken.iter().any(|text| text.to_string().contains(*word))
            };
            log.end().contains(*word) || story.stage().happenings().iter().any(said)
        };
        untold = spot.word(corruption).filter(|_| !refused).filter(|word| !is_said(word));
        if let Some(kept) = kept {
            spot.roll_back(&client, &path, &kept).await;
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
    Played { end, refused, untold }
}

// ---- what was logged, and what panicked ---------------------------------------------------------------------------

/// What the operator of this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// The last of it.
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

/// A task that panics takes nobody with it, so panics are counted: all that a simulation does is done by its thread.
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
