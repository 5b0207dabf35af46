//! Our annotations on a Node about its eviction, and their validation.
//!
//! An unreadable annotation may have said that a person stopped the eviction, or that it is over. So its content is
//! never guessed.

use jiff::Timestamp;
use salvor_api::config::TaintEffect;
use salvor_api::names::{annotations, taints};
use salvor_api::value_defect;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::fnv::Fnv;
use crate::moments::{CLOCKS_DIFFER, after};
use crate::objects::{Claim, Taint};

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

/// The progress of an eviction: our annotation on the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Progress {
    pub started: Timestamp,
    /// The taint that requested it; once its kubelet showed life, the one that requested it at that time.
    pub request: String,
    /// The boot ID at the start; none if it was unknown, or an older version began the eviction.
    #[serde(rename = "bootID", default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// When its kubelet first showed life since the start. Earlier statements that the machine is off do not apply to
    /// what comes after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Released>,
    /// When pods and volumes were gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// When our taint was removed before the eviction finished, while another taint still requests it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Timestamp>,
}

impl Progress {
    /// True if this taint with our key was added by this eviction, and is not what asked for it.
    pub(crate) fn has_added(&self, taint: &Taint) -> bool {
        self.stopped.is_none() && !self.asked_by_no_execute() && taint.effect == taints::NO_EXECUTE
    }

    /// True if a taint with our key and the effect `NoExecute` was itself the request, and not added by us.
    pub(super) fn asked_by_no_execute(&self) -> bool {
        let key = self.request.split(['=', ':']).next();
        key == Some(taints::FORCE_EVICTION) && self.request.ends_with(taints::NO_EXECUTE)
    }
}

/// A person's request that was removed because the node was Ready: our annotation on the Node.
///
/// A machine that was switched off a moment ago is Ready as well. If its kubelet never shows life again, the person was
/// right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Asked {
    /// The value of the taint.
    pub value: String,
    /// The renew time in the Lease when the request was removed.
    pub renewed: Timestamp,
}

impl Asked {
    /// The taint as it was.
    pub(super) fn taint(&self) -> Taint {
        Taint {
            key: taints::FORCE_EVICTION.into(),
            value: self.value.clone(),
            effect: taints::NO_SCHEDULE.into(),
        }
    }
}

/// The volumes that were released, and those that stayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Released {
    pub at: Timestamp,
    /// A hash of the claims of pods that stayed on the node then; none if there were none. A tenant may have thousands
    /// of claims, more than an annotation can hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_hash: Option<String>,
    /// The volumes behind them that are attached to the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// True if every volume that the node had in use stayed, so that none has been released so far. Absent in records of
    /// earlier versions, which count as having released some.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept_all: bool,
}

impl Released {
    /// Volumes released at a time, except those of some claims, which are in order.
    pub fn keeping(claims: &[Claim], at: Timestamp) -> Self {
        Self { at, kept_hash: hash_of(claims), volumes: Vec::new(), kept_all: false }
    }

    /// Volumes that an earlier eviction released in the same boot. Which ones stayed then does not matter any more, so
    /// the volumes in use now are released as if none were.
    pub(super) fn earlier(at: Timestamp) -> Self {
        // No hash is empty.
        Self { at, kept_hash: Some(String::new()), volumes: Vec::new(), kept_all: false }
    }

    /// True if the claims that stayed then are the same as these.
    pub(super) fn kept(&self, claims: &[Claim]) -> bool {
        self.kept_hash == hash_of(claims)
    }
}

fn hash_of(claims: &[Claim]) -> Option<String> {
    let mut hash = Fnv::default();
    for Claim { namespace, name } in claims {
        // The separators cannot occur in names, so different claims have different input.
        [namespace, "/", name, ","].iter().for_each(|part| hash.add(part.as_bytes()));
    }
    (!claims.is_empty()).then(|| format!("{:016x}", hash.finish()))
}

/// One of our annotations that cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its key.
    pub annotation: &'static str,
    pub problem: String,
    /// When it can be trusted, if only time has to pass.
    pub until: Option<Timestamp>,
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
    pub(super) fn absurd_time(
        &self,
        created: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<(String, Option<Timestamp>)> {
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

fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| brief(error.to_string()))
}

fn brief(mut problem: String) -> String {
    problem.truncate(problem.floor_char_boundary(LONGEST_PROBLEM));
    problem
}
