//! A recorded history that can be shown at any point in time.
//!
//! A [`Recording`] stores the inputs of the page with their times. A [`Replay`] applies them again up to the time that
//! a browser requests, so the browser gets the page as it was at that time.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use salvor_operator::{
    Notice,
    watch::{Change, Identified, Project},
};
use salvor_recovery::{Report, appwrapper::AppWrapperPolicy};
use salvor_why::Overview;
use serde::Serialize;

use crate::{
    objects::{AllAppWrappers, AllNodes, AllPods, AppWrapper, Node, Pod},
    world::{Caption, World, missing::Missing},
};

/// The number of points on the curve of pods on unreachable nodes.
const POINTS: i64 = 300;

#[derive(Clone, Debug)]
enum Input {
    Node(Change<Node>),
    Pod(Change<Pod>),
    AppWrapper(Change<AppWrapper>),
    Notice(Notice),
    Told(String),
    Caption(Caption),
    Missing(Missing),
}

/// A history that is being recorded.
#[derive(Debug, Default)]
pub struct Recording {
    wrappers: AllAppWrappers,
    inputs: Vec<(Timestamp, Input)>,
    /// The last verdict on each subject. Only changes are recorded.
    verdicts: HashMap<(String, &'static str), Report>,
    began: Timestamp,
    ended: Option<Timestamp>,
}

impl Recording {
    /// An empty recording. The policy has the retry limits of AppWrappers.
    pub fn new(policy: AppWrapperPolicy) -> Self {
        Self { wrappers: AllAppWrappers(policy), ..Self::default() }
    }

    /// Records that an object was written or deleted. `object` is the JSON of the API.
    pub fn object(&mut self, at: Timestamp, group: &str, resource: &str, is_gone: bool, object: &[u8]) {
        let input = match (group, resource) {
            ("", "nodes") => kept(&AllNodes, is_gone, object).map(Input::Node),
            ("", "pods") => kept(&AllPods, is_gone, object).map(Input::Pod),
            ("workload.codeflare.dev", "appwrappers") => {
                kept(&self.wrappers, is_gone, object).map(Input::AppWrapper)
            }
            _ => None,
        };
        if let Some(input) = input {
            self.add(at, input);
        }
    }

    /// Records a decision or action of the operator.
    pub fn notice(&mut self, at: Timestamp, notice: &Notice) {
        match notice {
            Notice::Judged { recovery, subject, report } => {
                let known = self.verdicts.insert((subject.clone(), recovery), report.clone());
                if known.as_ref() == Some(report) {
                    return;
                }
            }
            Notice::Forgotten { recovery, subject } => {
                self.verdicts.remove(&(subject.clone(), *recovery));
            }
            Notice::Did { headline: None, .. } => return,
            Notice::Did { .. } | Notice::Leads(_) | Notice::Paused(_) => {}
        }
        self.add(at, Input::Notice(notice.clone()));
    }

    /// Starts the history. Everything before is its initial state.
    pub fn begin(&mut self, at: Timestamp) {
        self.began = at;
    }

    /// Ends the history with the workloads that have not recovered. Nothing is recorded afterwards.
    pub fn end(&mut self, at: Timestamp, missing: &Overview) {
        self.add(at, Input::Missing(Missing::of(missing.clone())));
        self.ended = Some(at);
    }

    fn add(&mut self, at: Timestamp, input: Input) {
        if self.ended.is_none() {
            self.inputs.push((at, input));
        }
    }

    pub fn replay(self, story: Story) -> Replay {
        let Self { inputs: seen, began, ended, .. } = self;
        let ends = ended.or(seen.last().map(|(at, _)| *at)).map_or(0, |end| since(began, end));
        let mut inputs = vec![(began, Input::Caption(story.caption()))];
        for Episode { at, until, begins, is_over, .. } in &story.episodes {
            let begin = Some((*at, begins));
            let end = until.filter(|until| *until < ends).map(|until| (until, is_over));
            inputs.extend(
                begin
                    .into_iter()
                    .chain(end)
                    .map(|(at, text)| (began + SignedDuration::from_millis(at), Input::Told(text.clone()))),
            );
        }
        inputs.extend(seen);
        // The sort is stable, so a failure stays before its consequences at the same time.
        inputs.sort_by_key(|(at, _)| *at);
        let (changes, events, samples) = survey(&inputs, began, ends);
        let cursor = Mutex::default();
        Replay { story, began, ends, inputs, changes, events, samples, cursor }
    }
}

/// An object as the page keeps it. An object that does not parse would not have been shown either.
fn kept<P: Project>(projection: &P, is_gone: bool, object: &[u8]) -> Option<Change<P::Kept>> {
    let wire: P::Wire = serde_json::from_slice(object).ok()?;
    if is_gone {
        return Some(Change::Gone(wire.uid().clone()));
    }
    projection.keep(wire).map(Change::Applied)
}

/// Milliseconds since the start, rounded up, so that a request for a time includes everything up to it.
fn since(began: Timestamp, at: Timestamp) -> i64 {
    let nanoseconds = (at.as_nanosecond() - began.as_nanosecond()).max(0);
    i64::try_from((nanoseconds + 999_999) / 1_000_000).unwrap_or(i64::MAX)
}

/// The description of a history.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Story {
    pub title: String,
    pub text: String,
    pub episodes: Vec<Episode>,
    /// Seconds of the history per second of real time, until the viewer chooses.
    pub speed: f64,
    /// Whether an operator ran and reported verdicts.
    #[serde(skip)]
    pub has_operator: bool,
}

impl Story {
    fn caption(&self) -> Caption {
        Caption { title: self.title.clone(), text: self.text.clone(), chapter: 1, chapters: 1 }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Episode {
    /// In milliseconds since the start.
    pub at: i64,
    /// When it ended.
    pub until: Option<i64>,
    /// Shown when it begins.
    pub begins: String,
    /// Shown when it ends.
    pub is_over: String,
}

/// A position in the history.
#[derive(Debug, Default)]
struct Cursor {
    world: World,
    /// The first input that is not applied yet.
    next: usize,
}

impl Cursor {
    fn take_in(&mut self, (at, input): &(Timestamp, Input)) {
        let (world, at) = (&mut self.world, *at);
        match input.clone() {
            Input::Node(change) => world.on_nodes(change, at),
            Input::Pod(change) => world.on_pods(change, at),
            Input::AppWrapper(change) => world.on_wrappers(change, at),
            Input::Notice(notice) => world.on_notice(notice, at),
            Input::Told(text) => world.tell(&text, at),
            Input::Caption(caption) => world.turn_page(caption),
            Input::Missing(missing) => world.on_missing(Some(missing)),
        }
        self.next += 1;
    }

    /// Applies all inputs up to a time. The time must not be before the current position.
    fn reach(&mut self, inputs: &[(Timestamp, Input)], began: Timestamp, time: i64) {
        while let Some(input) = inputs.get(self.next).filter(|(at, _)| since(began, *at) <= time) {
            self.take_in(input);
        }
    }
}

/// Returns the times of all changes, the times of new timeline entries, and the curve of pods on unreachable nodes.
fn survey(
    inputs: &[(Timestamp, Input)],
    began: Timestamp,
    ends: i64,
) -> (Vec<i64>, Vec<i64>, Vec<(usize, usize)>) {
    let mut cursor = Cursor::default();
    let (mut changes, mut events, mut samples) = (Vec::new(), Vec::new(), Vec::new());
    let mut moments = 0;
    loop {
        let time = inputs.get(cursor.next).map(|(at, _)| since(began, *at)).filter(|time| *time <= ends);
        while i64::try_from(samples.len())
            .is_ok_and(|done| done < POINTS && time.is_none_or(|time| ends * (done + 1) / POINTS < time))
        {
            samples.push(cursor.world.tally());
        }
        let Some(time) = time else { return (changes, events, samples) };
        let version = cursor.world.version();
        cursor.reach(inputs, began, time);
        if time > 0 && cursor.world.has_changed_since(version) {
            changes.push(time);
        }
        let newest = cursor.world.moments().last().map_or(0, |moment| moment.number + 1);
        if time > 0 && newest > moments {
            events.push(time);
        }
        moments = newest;
    }
}

#[derive(Debug)]
pub struct Replay {
    story: Story,
    began: Timestamp,
    ends: i64,
    inputs: Vec<(Timestamp, Input)>,
    changes: Vec<i64>,
    events: Vec<i64>,
    samples: Vec<(usize, usize)>,
    /// The position of the last request. Going forward from there is fast. Going back starts from the beginning.
    cursor: Mutex<Cursor>,
}

#[derive(Serialize)]
struct Outline<'a> {
    #[serde(flatten)]
    story: &'a Story,
    began: i64,
    ends: i64,
    changes: &'a [i64],
    events: &'a [i64],
    samples: &'a [(usize, usize)],
}

impl Replay {
    pub fn story(&self) -> &Story {
        &self.story
    }

    /// When it began, by the clock of its cluster.
    pub fn began(&self) -> Timestamp {
        self.began
    }

    /// Its length in milliseconds.
    pub fn ends(&self) -> i64 {
        self.ends
    }

    /// The length, the failures and the times of changes, as JSON.
    pub(crate) fn outline(&self) -> String {
        let Self { story, began, ends, changes, events, samples, .. } = self;
        let outline = Outline { story, began: began.as_millisecond(), ends: *ends, changes, events, samples };
        // Serializing strings, numbers and lists cannot fail.
        serde_json::to_string(&outline).unwrap_or_default()
    }

    /// The page this many milliseconds after the start: the changes since the version of an earlier answer, or
    /// everything.
    pub(crate) fn at(&self, time: i64, version: Option<u64>) -> String {
        // After a panic in between, one part of the page may be wrong. That is better than no page.
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = cursor.next.checked_sub(1).and_then(|last| self.inputs.get(last));
        if reached.is_some_and(|(at, _)| since(self.began, *at) > time) {
            *cursor = Cursor::default();
        }
        cursor.reach(&self.inputs, self.began, time);
        cursor.world.delta(version, self.began + SignedDuration::from_millis(time))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn second(n: i64) -> Timestamp {
        Timestamp::from_second(1000 + n).unwrap()
    }

    fn node(is_lost: bool) -> Vec<u8> {
        let taints = if is_lost {
            json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" }])
        } else {
            json!([])
        };
        let status = json!({ "conditions": [{ "type": "Ready", "status": if is_lost { "Unknown" } else { "True" } }] });
        json!({ "metadata": { "name": "n1", "uid": "u1", "resourceVersion": "1" }, "spec": { "taints": taints }, "status": status })
            .to_string()
            .into_bytes()
    }

    fn pod(uid: &str) -> Vec<u8> {
        json!({ "metadata": { "name": uid, "namespace": "default", "uid": uid, "resourceVersion": "1" },
            "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } })
        .to_string()
        .into_bytes()
    }

    fn replay() -> Replay {
        let mut recording =
            Recording::new(AppWrapperPolicy::new(&salvor_api::config::Configuration::default()));
        recording.object(second(-20), "", "nodes", false, &node(false));
        recording.object(second(-10), "", "pods", false, &pod("p1"));
        recording.object(second(-10), "", "pods", false, &pod("p0"));
        recording.object(second(-10), "apps", "deployments", false, b"{}");
        recording.begin(second(0));
        recording.object(second(50), "", "nodes", false, &node(true));
        recording.object(second(60), "", "nodes", false, &node(true));
        recording.object(second(70), "", "nodes", false, &node(false));
        recording.object(second(80), "", "pods", true, &pod("p1"));
        recording.end(second(100), &Overview { groups: Vec::new(), not_seen: Vec::new() });
        recording.object(second(110), "", "pods", true, &pod("p0"));
        let episode = Episode {
            at: 10_000,
            until: Some(70_000),
            begins: "n1 is cut off".into(),
            is_over: "n1 is healed".into(),
        };
        let (title, text) = ("t".to_owned(), String::new());
        recording.replay(Story { title, text, episodes: vec![episode], speed: 8.0, has_operator: true })
    }

    fn at(replay: &Replay, time: i64, version: Option<u64>) -> Value {
        serde_json::from_str(&replay.at(time, version)).unwrap()
    }

    fn names(state: &Value, of: &str) -> Vec<String> {
        state[of].as_array().into_iter().flatten().map(|it| it["text"].to_string()).collect()
    }

    #[test]
    fn the_state_at_a_time_does_not_depend_on_how_one_came_there() {
        let replay = replay();
        assert_eq!(replay.ends(), 100_000);
        let straight: Vec<String> = (0..=100).map(|second| replay.at(second * 1000, None)).collect();
        for second in [100, 0, 50, 49, 99, 51, 10, 9, 80, 79] {
            assert_eq!(replay.at(second * 1000, None), straight[second as usize], "{second}");
        }
        let before = at(&replay, 9_999, None);
        assert_eq!(
            (&before["nodes"][0]["state"], before["pods"].as_array().unwrap().len()),
            (&"ready".into(), 2)
        );
        assert_eq!(before["reset"], true);
        assert!(names(&before, "moments").is_empty());
        assert_eq!(names(&at(&replay, 10_000, None), "moments"), ["\"n1 is cut off\""]);
        assert_eq!(at(&replay, 50_000, None)["nodes"][0]["state"], "unreachable");
        let last = at(&replay, 100_000, None);
        assert_eq!((last["pods"].as_array().unwrap().len(), &last["missing"]["causes"]), (1, &json!([])));
        assert!(before["missing"].is_null());
    }

    #[test]
    fn a_browser_gets_differences_forwards_and_all_of_it_backwards() {
        let replay = replay();
        let first = at(&replay, 0, None);
        let version = first["version"].as_u64();
        let quiet = at(&replay, 9_000, version);
        assert!(quiet["reset"].is_null() && quiet["nodes"].is_null() && quiet["version"] == first["version"]);
        let lost = at(&replay, 55_000, version);
        assert!(lost["reset"].is_null() && lost["nodes"][0]["state"] == "unreachable", "{lost}");
        assert_eq!(lost["pods"].as_array().unwrap().len(), 2, "their node is lost: {lost}");
        let gone = at(&replay, 90_000, lost["version"].as_u64());
        assert_eq!(gone["gonePods"], json!(["p1"]));
        let back = at(&replay, 9_000, gone["version"].as_u64());
        assert!(back["reset"] == true && back["pods"].as_array().unwrap().len() == 2, "{back}");
    }

    #[test]
    fn the_outline_has_the_times_at_which_something_happens() {
        let outline: Value = serde_json::from_str(&replay().outline()).unwrap();
        assert_eq!(outline["changes"], json!([10_000, 50_000, 70_000, 80_000, 100_000]), "{outline}");
        assert_eq!(outline["events"], json!([10_000, 50_000, 70_000]), "{outline}");
        let samples = outline["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 300);
        // A point shows the state at the end of its interval.
        assert_eq!(
            (&samples[148], &samples[149], &samples[209]),
            (&json!([0, 0]), &json!([2, 0]), &json!([0, 0]))
        );
    }

    #[test]
    fn a_history_without_anything_has_a_length_of_nothing() {
        let recording = Recording::new(AppWrapperPolicy::new(&salvor_api::config::Configuration::default()));
        let (title, text) = (String::new(), String::new());
        let replay =
            recording.replay(Story { title, text, episodes: Vec::new(), speed: 1.0, has_operator: false });
        assert_eq!((replay.ends(), at(&replay, 0, None)["nodes"].is_null()), (0, true));
    }
}
