//! Plays a story and reports the outcome.

use std::io;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_page::{Caption, Kind};
use salvor_recovery::expected::DEFAULT_TOLERATION;
use salvor_simulate::scenario::{Missing, Scenario, Step, missing};
use tokio::time::sleep;

use super::error::DemoError;
use super::stage::Stage;
use super::terminal::{Terminal, lasting};

const SALVOR: &str = "Salvor";
/// The toleration of a lost node that Kubernetes gives to every pod without one.
const BY_DEFAULT: Duration = DEFAULT_TOLERATION.unsigned_abs();
const LOOK: Duration = Duration::from_millis(500);
/// Seeds the random failures of a scenario.
const SEED: u64 = 1;
/// How long a new cluster may take until all its pods run.
const OPENING: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct Report {
    /// Workloads that did not recover in time, by chapter.
    pub(super) failures: Vec<String>,
    /// The number of recovered pods, and the longest time one of them was not running.
    pub(super) came_back: usize,
    pub(super) longest_away: SignedDuration,
    /// The number of replaced nodes, the number of pods that run again afterwards, and the longest time that took.
    pub(super) replaced: usize,
    pub(super) moved: usize,
    pub(super) longest_move: SignedDuration,
    /// The total time in which a pod and its replacement both ran, because a partitioned node kept running.
    pub(super) ran_twice: SignedDuration,
    pub(super) lasted: SignedDuration,
}

impl Report {
    pub(super) fn all_recovered(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Waits until all workloads run for the first time.
pub(super) async fn opening(
    stage: &Stage,
    scenario: &Scenario,
    tell_time: impl Fn(Timestamp),
) -> kube::Result<Missing> {
    let deadline = stage.now() + OPENING;
    loop {
        tell_time(stage.now());
        let missing = missing(&stage.client(), scenario).await?;
        if missing.nothing_is_short() || stage.now() > deadline {
            return Ok(missing);
        }
        sleep(LOOK).await;
    }
}

pub(super) async fn play(
    stage: &Stage,
    scenario: &Scenario,
    terminal: &mut Terminal,
    with_salvor: bool,
) -> Result<Report, DemoError> {
    let began = stage.now();
    let mut steps = scenario.chapters(SEED);
    if !with_salvor {
        for step in &mut steps {
            (step.title, step.say) = (title_without(&step.title), text_without(&step.say));
        }
    }
    let chapters = steps.len() + 1;
    let caption = |chapter: usize, title: &str, text: &str| Caption {
        title: title.to_owned(),
        text: text.to_owned(),
        chapter,
        chapters,
    };
    let mut failures = Vec::new();
    let opening = match tolerations(scenario) {
        Some(told) => format!("{} {told}", scenario.say),
        None => scenario.say.clone(),
    };
    turn(stage, terminal, caption(1, &scenario.title, opening.trim()))?;
    for (index, step) in steps.iter().enumerate() {
        wait(stage, terminal, stage.now() + step.after).await?;
        if step.expect_recovered {
            let missing = missing(&stage.client(), scenario).await?;
            failures.extend(missing.short.iter().map(|short| format!("before \"{}\": {short}", step.title)));
        }
        turn(stage, terminal, caption(index + 2, &step.title, &step.say))?;
        perform(stage, step).await;
    }
    let end = stage.now() + scenario.patience;
    let missing = loop {
        let seen = stage.page.version();
        let missing = missing(&stage.client(), scenario).await?;
        if missing.nothing() || stage.now() >= end {
            break missing;
        }
        // Lists all pods again only after a change.
        while stage.page.version() == seen && stage.now() < end {
            wait(stage, terminal, stage.now() + LOOK).await?;
        }
    };
    terminal.catch_up(&stage.page, stage.now(), true)?;
    failures.extend(missing.short.iter().map(|short| format!("at the end: {short}")));
    failures.extend(missing.stuck.iter().map(|pod| format!("at the end: {pod} is stuck Terminating")));
    let unfinished = missing.unfinished.iter();
    failures
        .extend(unfinished.map(|(name, pods)| format!("at the end: {pods} {name} pods have not Succeeded")));
    let moments = stage.page.moments();
    let of = |kind: Kind| moments.iter().filter(move |m| m.kind == kind);
    let count = |kind: Kind| of(kind).map(|m| m.subjects.len()).sum::<usize>();
    let longest = |kind: Kind| of(kind).filter_map(|m| m.away).max().unwrap_or_default();
    Ok(Report {
        failures,
        came_back: count(Kind::WorkBack),
        longest_away: longest(Kind::WorkBack),
        replaced: count(Kind::Replaced),
        moved: count(Kind::WorkMoved),
        longest_move: longest(Kind::WorkMoved),
        ran_twice: stage.truth().ran_twice(stage.now()),
        lasted: stage.now().duration_since(began),
    })
}

fn turn(stage: &Stage, terminal: &mut Terminal, caption: Caption) -> io::Result<()> {
    terminal.catch_up(&stage.page, stage.now(), true)?;
    terminal.chapter(&caption)?;
    stage.page.turn_page(caption);
    Ok(())
}

async fn perform(stage: &Stage, step: &Step) {
    let Some((deed, nodes)) = &step.strike else { return };
    stage.page.tell(&deed.told(nodes));
    stage.strike(deed, nodes).await;
}

/// Waits, and prints new moments in the meantime.
async fn wait(stage: &Stage, terminal: &mut Terminal, until: Timestamp) -> io::Result<()> {
    while stage.now() < until {
        let left = Duration::try_from(until.duration_since(stage.now())).unwrap_or_default();
        sleep(left.min(LOOK)).await;
        terminal.catch_up(&stage.page, stage.now(), false)?;
    }
    Ok(())
}

/// Prints new moments forever.
pub(super) async fn go_on(stage: &Stage, terminal: &mut Terminal) -> io::Result<()> {
    loop {
        wait(stage, terminal, stage.now() + LOOK).await?;
    }
}

/// The title of a chapter that Salvor has no part in.
fn title_without(title: &str) -> String {
    if title.contains(SALVOR) { "Kubernetes alone".to_owned() } else { title.to_owned() }
}

/// The text up to the first sentence about Salvor.
fn text_without(text: &str) -> String {
    let sentences = text.split_inclusive(". ").take_while(|sentence| !sentence.contains(SALVOR));
    sentences.collect::<String>().trim_end().to_owned()
}

/// How long pods tolerate a lost node here, if that is not Kubernetes' default.
fn tolerations(scenario: &Scenario) -> Option<String> {
    let shorter = shortest_toleration(scenario)?;
    Some(format!(
        "Most pods tolerate a lost node for {} here. Kubernetes' default is {}: with it, they are evicted {} later.",
        lasting(shorter),
        lasting(BY_DEFAULT),
        lasting(BY_DEFAULT - shorter)
    ))
}

fn shortest_toleration(scenario: &Scenario) -> Option<Duration> {
    let all = scenario.workloads.iter().filter_map(|workload| workload.tolerates);
    all.min().filter(|shortest| *shortest < BY_DEFAULT)
}

pub(super) fn tell(
    report: &Report,
    terminal: &Terminal,
    scenario: &Scenario,
    with_salvor: bool,
) -> io::Result<()> {
    let seconds = |d: SignedDuration| lasting(Duration::try_from(d).unwrap_or_default());
    terminal.line("")?;
    if report.all_recovered() {
        terminal.outcome(true, "Everything recovered.")?;
    } else {
        terminal.outcome(false, "Not everything recovered:")?;
        for failure in &report.failures {
            terminal.line(&format!("  {failure}"))?;
        }
    }
    let back = report.came_back;
    terminal.line(&format!(
        "  {back} pods were recovered, the slowest {} after its node became unreachable.",
        seconds(report.longest_away)
    ))?;
    if let Some(shorter) = shortest_toleration(scenario).filter(|_| back > 0) {
        terminal.line(&format!(
            "  Most pods tolerated a lost node for {}. With Kubernetes' default of {} the slowest would have taken up to {}.",
            lasting(shorter),
            lasting(BY_DEFAULT),
            seconds(report.longest_away + SignedDuration::try_from(BY_DEFAULT - shorter).unwrap_or_default())
        ))?;
    }
    if report.replaced > 0 {
        let nodes = if report.replaced == 1 { "node was" } else { "nodes were" };
        let pods = if report.moved == 1 { "pod" } else { "pods" };
        terminal.line(&format!(
            "  {} {nodes} replaced, and {} {pods} ran again, the slowest {} after the repair began.",
            report.replaced,
            report.moved,
            seconds(report.longest_move)
        ))?;
    }
    if report.ran_twice > SignedDuration::ZERO {
        terminal.line(&format!(
            "  Some work ran twice, for {} in sum: a machine that is cut off still runs its pods, and nobody can see it. The \
             owners opted in to that.",
            seconds(report.ran_twice)
        ))?;
    } else {
        terminal.line("  No work ran twice.")?;
    }
    terminal.line(&format!("  The demo took {} of the cluster's time.", seconds(report.lasted)))?;
    if !with_salvor {
        terminal.line("  Salvor did not run. Run the same demo without --without-salvor to compare.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use salvor_simulate::scenario::{DEMO, Source};

    use super::*;

    #[test]
    fn without_salvor_the_story_does_not_tell_what_salvor_would_do() {
        let scenario = Scenario::read(DEMO, &Source::default()).unwrap();
        let steps = scenario.chapters(SEED);
        assert!(steps.iter().any(|step| step.title.contains(SALVOR)), "the story has changed");
        for step in &steps {
            let told = format!("{} {}", title_without(&step.title), text_without(&step.say));
            assert!(!told.contains(SALVOR), "{told}");
        }
        assert_eq!(text_without("It waits for ever. Salvor acts. It waits."), "It waits for ever.");
        assert_eq!(text_without("One. Two."), "One. Two.");
    }

    #[test]
    fn tolerations_that_are_not_the_default_are_told() {
        let scenario = Scenario::read(DEMO, &Source::default()).unwrap();
        let told = tolerations(&scenario).unwrap();
        assert!(
            told.contains("for 30 s here") && told.contains("5 min 0 s") && told.contains("4 min 30 s later"),
            "{told}"
        );
        let mut plain = scenario;
        for workload in &mut plain.workloads {
            workload.tolerates = None;
        }
        assert_eq!(tolerations(&plain), None);
    }
}
