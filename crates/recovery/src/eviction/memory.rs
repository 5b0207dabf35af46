//! Our annotations on a Node about its eviction, and their validation.
//!
//! An unreadable annotation may have said that a person stopped the eviction, or that it is over. So its content is
//! never guessed.

use jiff::Timestamp;
use salvor_api::config::TaintEffect;
use salvor_api::names::annotations;
use salvor_api::value_defect;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::views::{Asked, Damage, NodeView, Progress};
use crate::moments::{CLOCKS_DIFFER, after};

/// The longest possible taint: a key of 317 characters, a value of 63 and an effect.
const LONGEST_TAINT: usize = 512;
/// How much of a defect is reported.
const LONGEST_PROBLEM: usize = 200;

/// The content of our annotations on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub progress: Option<Progress>,
    /// A request whose taint was removed.
    pub asked: Option<Asked>,
    /// The annotation that cannot be read; then the others do not count either.
    pub damage: Option<Damage>,
}

impl Memory {
    pub fn read(progress: Option<&str>, asked: Option<&str>) -> Self {
        let damaged = |annotation| move |problem| Damage { annotation, problem, until: None };
        let read = || {
            let progress = progress.map(Progress::from_annotation).transpose();
            let asked = asked.map(Asked::from_annotation).transpose();
            Ok((
                progress.map_err(damaged(annotations::EVICTION))?,
                asked.map_err(damaged(annotations::EVICTION_ASKED))?,
            ))
        };
        match read() {
            Ok((progress, asked)) => Self { progress, asked, damage: None },
            Err(damage) => Self { damage: Some(damage), ..Self::default() },
        }
    }
}

impl Progress {
    /// Reads the annotation. Unknown fields are an error: one of a later version may say that everything must stop.
    ///
    /// # Errors
    /// The defect.
    pub fn from_annotation(text: &str) -> Result<Self, String> {
        let mut fields: Map<String, Value> = from_json(text)?;
        // Fields of earlier versions that nothing uses any more.
        fields.remove("claims");
        if let Some(Value::Object(released)) = fields.get_mut("released") {
            released.remove("kept");
        }
        let progress: Self = from_json(&Value::Object(fields).to_string())?;
        let request = &progress.request;
        let effect = request.rsplit_once(':').map(|(_, effect)| effect);
        let is_taint = TaintEffect::ALL.iter().any(|known| Some(known.as_str()) == effect);
        if !is_taint || request.len() > LONGEST_TAINT {
            return Err(brief(format!("its request is not a taint: {request:?}")));
        }
        Ok(progress)
    }

    /// An impossible time: the defect, and if it is in the future, when it has passed.
    fn absurd_time(&self, created: Option<Timestamp>, now: Timestamp) -> Option<(String, Option<Timestamp>)> {
        let Self { started, returned, released, finished, stopped, .. } = self;
        let times = [
            ("started", Some(*started)),
            ("returned", *returned),
            ("released.at", released.as_ref().map(|released| released.at)),
            ("finished", *finished),
            ("stopped", *stopped),
        ];
        let times = times.into_iter().filter_map(|(name, time)| Some((name, time?)));
        times.into_iter().find_map(|(name, time)| {
            let is_before = |other: Timestamp| after(time, CLOCKS_DIFFER) < other;
            let known = after(time, -CLOCKS_DIFFER);
            if now < known {
                Some((format!("its {name} is {time}, which is in the future"), Some(known)))
            } else if let Some(created) = created.filter(|created| is_before(*created)) {
                Some((format!("its {name} is {time}, and the Node was made at {created}"), None))
            } else if is_before(*started) {
                Some((format!("its {name} is {time}, and it started at {started}"), None))
            } else {
                None
            }
        })
    }
}

impl Asked {
    /// Reads the annotation.
    ///
    /// # Errors
    /// The defect.
    pub fn from_annotation(text: &str) -> Result<Self, String> {
        let asked: Self = from_json(text)?;
        match value_defect(&asked.value) {
            Some(defect) => Err(brief(format!("its value cannot be that of a taint: {defect}"))),
            None => Ok(asked),
        }
    }
}

/// A defect of our annotations on a node: one is unreadable, or its times are impossible.
pub(super) fn damage(node: &NodeView, now: Timestamp) -> Option<Damage> {
    let absurd = || {
        let (problem, until) = node.progress.as_ref()?.absurd_time(node.created, now)?;
        Some(Damage { annotation: annotations::EVICTION, problem, until })
    };
    node.damage.clone().or_else(absurd)
}

fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| brief(error.to_string()))
}

fn brief(mut problem: String) -> String {
    problem.truncate(problem.floor_char_boundary(LONGEST_PROBLEM));
    problem
}
