//! The rung of the ladder whose turn it is.

use jiff::Timestamp;

use super::action::Action;
use super::progress::Tried;
use super::sickness::Sick;
use crate::moments::after;

/// What is next for a node that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// This is tried now.
    Try {
        /// What is done.
        action: Action,
        /// The place in the ladder, from 0.
        rung: usize,
        /// Which attempt on that rung, from 1.
        attempt: u32,
    },
    /// The last try still has time.
    Running {
        /// What was done.
        action: Action,
        /// Until when.
        until: Timestamp,
    },
    /// Nothing is left.
    Exhausted,
}

impl Turn {
    /// What is done, or was done last; a ladder that is used up would have replaced the node.
    pub(super) fn action(self) -> Action {
        match self {
            Self::Try { action, .. } | Self::Running { action, .. } => action,
            Self::Exhausted => Action::Replace,
        }
    }
}

/// What is next, after the last try. A ladder that was changed meanwhile goes on at the same place.
pub(super) fn turn(sick: &Sick, tried: Option<&Tried>, now: Timestamp) -> Turn {
    let at = |rung: usize, attempt| match sick.ladder.get(rung) {
        Some(it) => Turn::Try { action: it.action, rung, attempt },
        None => Turn::Exhausted,
    };
    let Some(tried) = tried else { return at(0, 1) };
    let Some(rung) = sick.ladder.get(tried.rung) else { return at(tried.rung, 1) };
    let until = after(tried.at.min(now), rung.timeout);
    if now < until {
        return Turn::Running { action: tried.action, until };
    }
    if tried.attempt < rung.attempts { at(tried.rung, tried.attempt + 1) } else { at(tried.rung + 1, 1) }
}
