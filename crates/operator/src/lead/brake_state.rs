//! The brake state that a leader keeps on the Lease for the next one.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use salvor_api::{config::BrakeLimits, names::annotations};
use salvor_recovery::brake::{Brake, BrakeState};

/// Bytes of an unreadable brake state that are kept on the Lease for inspection.
const UNREADABLE_KEPT: usize = 1024;

/// The brake state that the previous leader left on the Lease.
#[derive(Debug)]
pub(super) enum Inherited {
    /// No replica has led before.
    Nothing,
    Memory(Box<BrakeState>),
    /// The state is unreadable, or missing although a replica has led before.
    Lost(String),
}

pub(super) fn inherited(lease: &Lease) -> Inherited {
    let Some(kept) = annotation(lease, annotations::BRAKE) else {
        let held = lease.spec.as_ref().is_some_and(|spec| {
            spec.holder_identity.is_some() || spec.acquire_time.is_some() || spec.lease_transitions.is_some()
        });
        let why = || format!("annotation {} of the Lease is not there", annotations::BRAKE);
        return if held { Inherited::Lost(why()) } else { Inherited::Nothing };
    };
    match BrakeState::read(kept) {
        Ok(state) => Inherited::Memory(Box::new(state)),
        Err(error) => Inherited::Lost(format!("annotation {} of the Lease: {error}", annotations::BRAKE)),
    }
}

fn annotation<'a>(lease: &'a Lease, key: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The start of an unreadable brake state on the Lease.
pub(super) fn unreadable(lease: &Lease) -> Option<String> {
    let kept = annotation(lease, annotations::BRAKE)?;
    Some(kept[..kept.floor_char_boundary(UNREADABLE_KEPT)].to_owned())
}

/// The brake as the leader left it on the Lease; for display only.
pub(crate) fn brake_of(limits: BrakeLimits, lease: Option<&Lease>, now: Timestamp) -> Brake {
    let mut brake = Brake::new(limits, BrakeState::default());
    match lease.map_or(Inherited::Nothing, inherited) {
        Inherited::Nothing => {}
        Inherited::Memory(state) => brake.restore(now, *state),
        Inherited::Lost(why) => brake.assume_spent(now, why),
    }
    brake
}
