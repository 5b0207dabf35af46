//! Applies the pause switch to the subjects of one recovery, and reports its changes.

use salvor_api::names::{events, reasons};
use salvor_recovery::{
    brake::Held,
    event::{EventNote, EventType},
    objects::ObjectRef,
    pause::{Pause, pause_token},
};

use super::Engine;
use crate::engine::{notices::Notice, recovery::Recovery};

impl<R: Recovery> Engine<R> {
    /// A user has paused all writes, or resumed them.
    pub(super) fn apply_pause(&mut self, version: u64) {
        let held = self.shared.leadership.pause().held();
        self.pause_heeded = version;
        if held.is_none() {
            for subject in std::mem::take(&mut self.held) {
                self.agenda.enqueue(subject);
            }
        }
        let is_said = |held: &Held| !matches!(held, Held::Paused { pause } if **pause == Pause::Unread);
        let said = held.filter(is_said);
        let said = said.map(|held| held.to_string());
        self.shared.notices.say(|| Notice::Paused(said.clone()));
        let before = std::mem::replace(&mut self.paused, said);
        if let Some(term) = self.led.filter(|_| !self.shared.dry_run) {
            for note in pause_events(&self.shared.home, before.as_deref(), self.paused.as_deref()) {
                self.shared.executor.record_in_background(note, term);
            }
        }
    }
}

/// The events about a pause or its end. Every recovery records them, so the name is the same for all and only one is
/// stored.
fn pause_events(home: &ObjectRef, before: Option<&str>, now: Option<&str>) -> Vec<EventNote> {
    let note = |verb: &str, reason: &'static str, kind, of: &str, message: &str| EventNote {
        name: format!("salvor-{verb}.{}", pause_token(of)),
        regarding: home.clone(),
        kind,
        reason: reason.into(),
        action: events::HOLD_RECOVERIES,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message: message.to_owned(),
    };
    let resumed =
        |of| note("resumed", reasons::RESUMED, EventType::Normal, of, "Salvor is not paused any more");
    let paused = |of| note("paused", reasons::PAUSED, EventType::Warning, of, of);
    match now {
        Some(of) => vec![paused(of)],
        None => before.map(resumed).into_iter().collect(),
    }
}
