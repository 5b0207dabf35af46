//! A step of any recovery, for tests of the code that carries steps out.

use std::{borrow::Cow, fmt};

use salvor_recovery::{
    Step, eviction, job,
    objects::Object,
    step::{Changed, Effect, StepEvent, Write},
    zombie,
};
use serde::Serialize;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum AnyStep {
    Zombie(zombie::Step),
    Eviction(eviction::Step),
    Job(job::Step),
}

impl From<zombie::Step> for AnyStep {
    fn from(step: zombie::Step) -> Self {
        Self::Zombie(step)
    }
}

impl From<eviction::Step> for AnyStep {
    fn from(step: eviction::Step) -> Self {
        Self::Eviction(step)
    }
}

impl From<job::Step> for AnyStep {
    fn from(step: job::Step) -> Self {
        Self::Job(step)
    }
}

macro_rules! each {
    ($any:expr, $step:ident => $then:expr) => {
        match $any {
            AnyStep::Zombie($step) => $then,
            AnyStep::Eviction($step) => $then,
            AnyStep::Job($step) => $then,
        }
    };
}

impl Step for AnyStep {
    fn name(&self) -> &'static str {
        each!(self, step => step.name())
    }

    fn object(&self) -> Object<'_> {
        each!(self, step => step.object())
    }

    fn effect(&self) -> Effect<'_> {
        each!(self, step => step.effect())
    }

    fn detail(&self) -> Cow<'_, str> {
        each!(self, step => step.detail())
    }

    fn tells(&self) -> Option<StepEvent<'_>> {
        each!(self, step => step.tells())
    }

    fn headline(&self) -> Option<&'static str> {
        each!(self, step => step.headline())
    }

    fn reads(&self) -> Vec<Object<'_>> {
        each!(self, step => step.reads())
    }

    fn write(&self, read: &[Option<Value>]) -> Result<Write<'_>, Changed> {
        each!(self, step => step.write(read))
    }
}

impl fmt::Display for AnyStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(self, step => step.fmt(f))
    }
}
