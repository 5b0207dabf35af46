//! The form of every decision: a verdict, its reason, and the rules that led there.

use std::fmt::{Debug, Display};

use jiff::Timestamp;
use serde::Serialize;

use crate::brake::Held;
use crate::step::{self, ShownStep};

/// The reason of a verdict: each recovery has its own enum.
///
/// `Display` is the sentence for people; it may contain names and times.
pub trait Reason: Display + Debug {
    /// A stable name for metrics, logs and JSON: one per variant, never with anything variable in it.
    fn code(&self) -> &'static str;

    /// A sentence that says what would change the verdict.
    fn what_would_change_it(&self) -> String;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<Why, Step> {
    /// Do nothing until something that was observed changes.
    Ignore(Why),
    /// Do nothing yet; decided again at `until` with all else equal, the verdict differs.
    Wait {
        /// The first instant at which the verdict differs.
        until: Timestamp,
        why: Why,
    },
    /// There is something to do, but a limit blocks it for now.
    Blocked {
        by: Held,
        /// The reason for the blocked action.
        why: Why,
    },
    /// The actions, in this order; each only if the one before succeeded.
    Act {
        /// Never empty.
        actions: Vec<Step>,
        why: Why,
    },
}

impl<Why, Step> Verdict<Why, Step> {
    pub fn why(&self) -> &Why {
        match self {
            Self::Ignore(why)
            | Self::Wait { why, .. }
            | Self::Blocked { why, .. }
            | Self::Act { why, .. } => why,
        }
    }

    /// A stable name of the verdict for metrics, logs and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ignore(_) => "Ignore",
            Self::Wait { .. } => "Wait",
            Self::Blocked { .. } => "Blocked",
            Self::Act { .. } => "Act",
        }
    }

    /// Empty unless the verdict is to act.
    pub fn actions(&self) -> &[Step] {
        match self {
            Self::Act { actions, .. } => actions,
            Self::Ignore(_) | Self::Wait { .. } | Self::Blocked { .. } => &[],
        }
    }

    /// When to decide again although nothing changed.
    pub fn wake_at(&self) -> Option<Timestamp> {
        match self {
            Self::Wait { until, .. } => Some(*until),
            Self::Blocked { by, .. } => by.until(),
            Self::Ignore(_) | Self::Act { .. } => None,
        }
    }
}

/// A rule that was checked, what it saw, and whether it held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule as a question; "yes" leads towards acting.
    pub question: &'static str,
    pub observed: String,
    /// True if the answer was yes.
    pub holds: bool,
}

/// A verdict together with every rule that was checked for it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<Why, Step> {
    pub verdict: Verdict<Why, Step>,
    /// The rules in order; the last one settled the verdict.
    pub findings: Vec<Finding>,
}

impl<Why, Step> Decision<Why, Step> {
    /// The same decision with its reason as part of a larger type.
    #[must_use]
    pub fn map_why<Wider>(self, widen: impl FnOnce(Why) -> Wider) -> Decision<Wider, Step> {
        let verdict = match self.verdict {
            Verdict::Ignore(why) => Verdict::Ignore(widen(why)),
            Verdict::Wait { until, why } => Verdict::Wait { until, why: widen(why) },
            Verdict::Blocked { by, why } => Verdict::Blocked { by, why: widen(why) },
            Verdict::Act { actions, why } => Verdict::Act { actions, why: widen(why) },
        };
        Decision { verdict, findings: self.findings }
    }

    /// Turns "act" into "blocked"; every other verdict stays.
    #[must_use]
    pub fn held_back(mut self, by: Held) -> Self {
        if let Verdict::Act { why, .. } = self.verdict {
            self.findings.push(Finding { question: by.question(), observed: by.to_string(), holds: false });
            self.verdict = Verdict::Blocked { by, why };
        }
        self
    }
}

impl<Why: Reason, Step: step::Step> Decision<Why, Step> {
    /// The decision without its types, for people and machines.
    pub fn report(&self) -> Report {
        let why = self.verdict.why();
        Report {
            verdict: self.verdict.name(),
            reason: why.code(),
            message: why.to_string(),
            what_would_change_it: why.what_would_change_it(),
            until: self.verdict.wake_at(),
            blocked_by: match &self.verdict {
                Verdict::Blocked { by, .. } => Some(by.to_string()),
                Verdict::Ignore(_) | Verdict::Wait { .. } | Verdict::Act { .. } => None,
            },
            findings: self.findings.clone(),
            actions: self.verdict.actions().iter().map(ShownStep::of).collect(),
        }
    }
}

/// A decision as it is shown, in the same form for every recovery.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// `Ignore`, `Wait`, `Blocked` or `Act`.
    pub verdict: &'static str,
    /// The reason's stable name.
    pub reason: &'static str,
    /// The reason as a sentence.
    pub message: String,
    pub what_would_change_it: String,
    /// When it is decided again although nothing changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// In the order in which the rules were checked.
    pub findings: Vec<Finding>,
    /// The steps to do now, in order.
    pub actions: Vec<ShownStep>,
}

/// Runs a recovery's rules and keeps what each of them saw.
///
/// The rules end with their verdict: early as an error, by `?` at the first rule that does not hold, or at their end.
pub fn judge<Why, Step>(
    rules: impl FnOnce(&mut Trace) -> Result<Verdict<Why, Step>, Verdict<Why, Step>>,
) -> Decision<Why, Step> {
    let mut trace = Trace { findings: Vec::new() };
    let (Ok(verdict) | Err(verdict)) = rules(&mut trace);
    Decision { verdict, findings: trace.findings }
}

/// Records each rule as it is checked, with what it saw, and passes the answer on.
#[derive(Debug)]
pub struct Trace {
    findings: Vec<Finding>,
}

impl Trace {
    /// A rule that holds if the statement is true.
    pub fn that(&mut self, question: &'static str, observed: impl Display, holds: bool) -> Option<()> {
        self.note(question, &observed, holds);
        holds.then_some(())
    }

    /// A rule that holds if the value exists.
    pub fn some<T>(&mut self, question: &'static str, observed: impl Display, found: Option<T>) -> Option<T> {
        self.note(question, &observed, found.is_some());
        found
    }

    /// A rule that holds if there is no obstacle.
    ///
    /// # Errors
    /// The obstacle.
    pub fn none<T>(
        &mut self,
        question: &'static str,
        observed: impl Display,
        obstacle: Option<T>,
    ) -> Result<(), T> {
        self.note(question, &observed, obstacle.is_none());
        obstacle.map_or(Ok(()), Err)
    }

    fn note(&mut self, question: &'static str, observed: &dyn Display, holds: bool) {
        self.findings.push(Finding { question, observed: observed.to_string(), holds });
    }
}
