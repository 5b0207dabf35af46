//! Chooses the next rung of a node's ladder.

use jiff::Timestamp;

use super::action::Action;
use super::progress::Tried;
use super::sickness::Sick;
use crate::moments::after;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Try {
        action: Action,
        /// The index in the ladder, from 0.
        rung: usize,
        /// The attempt on that rung, from 1.
        attempt: u32,
    },
    /// The last attempt has not timed out yet.
    Running {
        action: Action,
        until: Timestamp,
    },
    Exhausted,
}

impl Turn {
    /// The current or last action. An exhausted ladder counts as a replacement.
    pub(super) fn action(self) -> Action {
        match self {
            Self::Try { action, .. } | Self::Running { action, .. } => action,
            Self::Exhausted => Action::Replace,
        }
    }
}

/// The next turn after the last attempt. If the ladder was edited meanwhile, it continues at the same index.
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
