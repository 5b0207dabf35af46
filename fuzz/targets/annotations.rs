//! Everything that is read back from annotations.

#![no_main]

use jiff::Timestamp;
use salvor_recovery::appwrapper::{Annotations, AppWrapperPolicy, Timers};
use salvor_recovery::brake::{Brake, BrakeState};
use salvor_recovery::eviction::{DespiteOutage, Memory};
use salvor_recovery::job::UsedNames;
use salvor_recovery::pause::Pause;
use salvor_recovery::repair::{PolicyStatus, Progress};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let now = Timestamp::UNIX_EPOCH;
    if let Ok(state) = BrakeState::read(text) {
        let mut brake = Brake::new(salvor_api::config::BrakeLimits::default(), BrakeState::default());
        brake.restore(now, state);
        let _ = (brake.admit(now, 1), brake.changes_at(now));
        let kept = serde_json::to_string(&brake.state_to_save()).unwrap();
        assert_eq!(BrakeState::read(&kept).unwrap(), brake.state_to_save());
    }
    let _ = Memory::read(Some(text), Some(text));
    let _ = DespiteOutage::from_annotation(text);
    let _ = Pause::read(text).to_string();
    if let Ok(progress) = Progress::read(text) {
        assert_eq!(Progress::read(&serde_json::to_string(&progress).unwrap()).unwrap(), progress);
    }
    let _ = PolicyStatus::read_annotation(Some(text));
    if let Ok(names) = UsedNames::read(text) {
        assert_eq!(UsedNames::read(&names.text()).unwrap(), names);
    }
    let _ = Timers::of(&Annotations::pick(|_| Some(text)), &AppWrapperPolicy::default());
});
