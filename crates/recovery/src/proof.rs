//! What proves that the machine of a node is off. It is defined once, for all recoveries.
//!
//! A statement counts until the node's kubelet shows life. Taints that Salvor puts on itself state nothing:
//! out-of-service rests on elapsed time alone, and an eviction adds force-eviction for whatever requested it. The
//! kubelet's own report counts for more than any statement, so callers check that it is silent.

use std::fmt;

use salvor_api::config::{Configuration, EvictionTrigger};
use salvor_api::names::taints;

use crate::eviction::Progress;
use crate::objects::{ObjectRef, Taint};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// Nothing proves that it is off.
    MayRun,
    Off(Proof),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A taint by which a person, or a trigger with `proof`, says so; the out-of-service taint is one.
    Taint(String),
    /// Salvor ended the machine. A live read confirms that its Node and this NodeClaim or Machine are gone.
    MachineGone(ObjectRef),
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taint(taint) => write!(f, "taint {taint} says that the machine is off"),
            Self::MachineGone(owner) => write!(f, "the machine was ended, and its Node and {owner} are gone"),
        }
    }
}

/// Everything on a node that may state that its machine is off.
#[derive(Clone, Debug)]
pub struct Statements<'a> {
    pub taints: &'a [Taint],
    /// The progress of its eviction.
    pub progress: Option<&'a Progress>,
    /// A person's taint that was removed while the node was Ready, if its kubelet has been silent since.
    pub remembered: Option<Taint>,
    /// True if our annotations about its eviction cannot be read: its kubelet may have returned since any statement.
    pub is_damaged: bool,
    /// True if our annotation says that we set the out-of-service taint.
    pub out_of_service: bool,
}

/// The settings that say what counts as proof.
#[derive(Clone, Debug, Default)]
pub struct ProofPolicy {
    triggers: Vec<EvictionTrigger>,
}

impl ProofPolicy {
    pub fn new(configuration: &Configuration) -> Self {
        Self { triggers: configuration.eviction.triggers.clone() }
    }

    /// What the statements on a node say about its machine.
    pub fn machine(&self, on: &Statements<'_>) -> Machine {
        let has_returned = on.progress.is_some_and(|progress| progress.returned.is_some());
        if on.is_damaged || has_returned {
            return Machine::MayRun;
        }
        let taint = on.taints.iter().find(|taint| self.proves(taint, on)).or(on.remembered.as_ref());
        taint.map_or(Machine::MayRun, |taint| Machine::Off(Proof::Taint(taint.to_string())))
    }

    /// True if this taint states that the machine is off, whatever happened since.
    pub(crate) fn proves(&self, taint: &Taint, on: &Statements<'_>) -> bool {
        match taint.key.as_str() {
            taints::FORCE_EVICTION => match on.progress {
                Some(progress) => !progress.has_added(taint),
                // Our annotation was lost. Beside a trigger, a taint like the one that Salvor adds for it does not count
                // as a person's.
                None => !on.taints.iter().any(|other| self.is_trigger(other) && is_added_for(taint, other)),
            },
            taints::OUT_OF_SERVICE => !on.out_of_service,
            _ => self.triggers.iter().any(|trigger| trigger.proof && fits(trigger, taint)),
        }
    }

    fn is_trigger(&self, taint: &Taint) -> bool {
        taint.key != taints::FORCE_EVICTION && self.triggers.iter().any(|trigger| fits(trigger, taint))
    }
}

/// True if a taint with our key is like the one that an eviction adds for this request.
pub(crate) fn is_added_for(ours: &Taint, request: &Taint) -> bool {
    ours.effect == taints::NO_EXECUTE && ours.value == value_for(request)
}

/// The value of the taint that an eviction adds for a request: that of the request, or for a foreign key the name of
/// the key.
pub(crate) fn value_for(request: &Taint) -> &str {
    let Taint { key, value, .. } = request;
    if key == taints::FORCE_EVICTION { value } else { key.split_once('/').map_or(key, |(_, name)| name) }
}

pub(crate) fn fits(trigger: &EvictionTrigger, taint: &Taint) -> bool {
    trigger.key == taint.key
        && trigger.value.as_ref().is_none_or(|value| *value == taint.value)
        && trigger.effect.is_none_or(|effect| effect.as_str() == taint.effect)
}

#[cfg(test)]
mod tests {
    use salvor_api::config::parse;

    use super::*;
    use crate::eviction::Memory;

    const OUT: &str = "node.kubernetes.io/out-of-service";
    const OURS: &str = "salvor.dev/force-eviction";
    const LOST: &str = "example.com/lost";

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: String::new(), effect: effect.into() }
    }

    fn policy() -> ProofPolicy {
        let text = format!(
            "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\neviction:\n  triggers:\n  - {{key: {LOST}}}\n  \
             - {{key: example.com/off, proof: true}}\n"
        );
        ProofPolicy::new(&parse(&text).unwrap())
    }

    fn proof(taints: &[Taint], memory: &Memory, out_of_service: bool) -> Option<String> {
        let on = Statements {
            taints,
            progress: memory.progress.as_ref(),
            remembered: None,
            is_damaged: memory.damage.is_some(),
            out_of_service,
        };
        match policy().machine(&on) {
            Machine::Off(proof) => Some(proof.to_string()),
            Machine::MayRun => None,
        }
    }

    /// A person's taint proves it, and so does one that the administrator configured as proof; a taint that we set does
    /// not.
    #[test]
    fn some_taints_prove_that_a_machine_is_off() {
        for (key, is_ours, proves) in [
            (OURS, false, true),
            (OUT, false, true),
            (OUT, true, false),
            ("example.com/off", false, true),
            (LOST, false, false),
            ("node.kubernetes.io/unreachable", false, false),
        ] {
            let taints = [taint("example.com/other", "NoSchedule"), taint(key, "NoExecute")];
            let expected = proves.then(|| format!("taint {key}:NoExecute says that the machine is off"));
            assert_eq!(proof(&taints, &Memory::default(), is_ours), expected, "{key}, ours: {is_ours}");
        }
    }

    /// An eviction adds a force-eviction taint of its own to whatever asked for it.
    #[test]
    fn a_taint_of_an_eviction_proves_nothing_by_itself() {
        let by_trigger = format!("{LOST}:NoSchedule");
        let (no_execute, no_schedule) = (format!("{OURS}:NoExecute"), format!("{OURS}:NoSchedule"));
        let began = |request: &str, more: &str| {
            let text = format!(r#"{{"request":"{request}","started":"2026-11-16T10:00:00Z"{more}}}"#);
            Memory::read(Some(&text), None)
        };
        let returned = r#","returned":"2026-11-16T10:05:00Z""#;
        let stopped = r#","stopped":"2026-11-16T10:05:00Z""#;
        for (case, memory, effect, proves) in [
            ("a trigger without proof", began(&by_trigger, ""), "NoExecute", false),
            ("a person asked by another effect", began(&no_schedule, ""), "NoSchedule", true),
            ("ours beside it", began(&no_schedule, ""), "NoExecute", false),
            ("a person asked by this one", began(&no_execute, ""), "NoExecute", true),
            ("the kubelet returned", began(&no_execute, returned), "NoExecute", false),
            ("a person put it on after a stop", began(&by_trigger, stopped), "NoExecute", true),
            ("unreadable", Memory::read(Some("x"), None), "NoExecute", false),
        ] {
            let taints = [taint(OURS, effect)];
            assert_eq!(proof(&taints, &memory, false).is_some(), proves, "{case}: {memory:?}");
        }
        for (case, memory) in
            [("returned", began(&by_trigger, returned)), ("unreadable", Memory::read(Some("x"), None))]
        {
            let statements = [taint(OUT, "NoExecute"), taint("example.com/off", "NoExecute")];
            assert_eq!(proof(&statements, &memory, false), None, "{case}: no statement counts");
        }
    }

    #[test]
    fn what_we_add_for_a_trigger_is_no_persons_word_when_our_memory_is_lost() {
        let ours = |value: &str| Taint { value: value.into(), ..taint(OURS, "NoExecute") };
        let proves = |taints: &[Taint]| proof(taints, &Memory::default(), false).is_some();
        assert!(!proves(&[taint(LOST, "NoSchedule"), ours("lost")]));
        assert!(proves(&[taint(LOST, "NoSchedule"), ours("INC-1")]), "a person wrote another value");
        assert!(proves(&[ours("lost")]), "no trigger is there");
    }

    #[test]
    fn a_remembered_word_counts_until_the_kubelet_returns() {
        let taints = [taint(LOST, "NoSchedule")];
        let on = Statements {
            taints: &taints,
            progress: None,
            remembered: Some(taint(OURS, "NoSchedule")),
            is_damaged: false,
            out_of_service: false,
        };
        let expected = Machine::Off(Proof::Taint(format!("{OURS}:NoSchedule")));
        assert_eq!(policy().machine(&on), expected);
        assert_eq!(policy().machine(&Statements { is_damaged: true, ..on }), Machine::MayRun);
    }
}
