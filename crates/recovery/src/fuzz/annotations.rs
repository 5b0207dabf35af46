//! Fuzzes everything that Salvor reads back from annotations and statuses: other writers may have changed it.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{cases, damaged, json};
use crate::appwrapper::{Annotations, AppWrapperPolicy, AppWrapperStatus, Timers};
use crate::brake::{Brake, BrakeState};
use crate::eviction::{DespiteOutage, Memory};
use crate::job::UsedNames;
use crate::pause::{Pause, pause_token};
use crate::repair::{self, Amount, Head, NODE_REPAIR_POLICY, Policy, PolicyStatus};

/// The longest message about a value, however long the value is.
const LONGEST: usize = 700;

const WORDS: &[&str] = &[
    "admitted",
    "admittedNodes",
    "engaged",
    "settling",
    "since",
    "nodes",
    "zones",
    "lost",
    "why",
    "started",
    "request",
    "released",
    "finished",
    "stopped",
    "returned",
    "at",
    "value",
    "renewed",
    "by",
    "sick",
    "tried",
    "condition",
    "action",
    "Reboot",
    "Replace",
    "rung",
    "attempt",
    "cordoned",
    "told",
    "repairs",
    "repaired",
    "node",
    "uid",
    "phase",
    "conditions",
    "resets",
    "resettingCount",
    "type",
    "status",
    "2026-11-16T03:00:00Z",
    "salvor.dev/force-eviction:NoSchedule",
    "numbers",
    "counts",
    "all",
    "0-3,5",
    "5m",
    "spec",
    "nodeSelector",
    "matchLabels",
    "policies",
    "conditionType",
    "conditionStatus",
    "toleration",
    "budgets",
    "schedule",
    "duration",
    "unhealthyLimit",
    "20%",
    "ladder",
    "timeout",
    "attempts",
    "reasonPattern",
    "(((",
    "termination",
    "Graceful",
    "gracePeriod",
];

const BRAKE: &str = r#"{"admitted":{"1800000000":3},"admittedNodes":{},"engaged":{"since":"2026-11-16T03:00:00Z","nodes":{"unreachable":3,"total":4}},"lost":{"since":"2026-11-16T03:00:00Z","why":"x"}}"#;
const EVICTION: &str = r#"{"started":"2026-11-16T03:00:00Z","request":"salvor.dev/force-eviction=x:NoSchedule","finished":"2026-11-16T03:10:00Z"}"#;
const ASKED: &str = r#"{"value":"INC-1","renewed":"2026-11-16T03:00:00Z"}"#;
const REPAIR: &str = r#"{"sick":{"Ready=False":{"since":"2026-11-16T03:00:00Z"}},"tried":{"condition":"Ready=False","action":"Reboot","rung":0,"attempt":1,"at":"2026-11-16T03:00:00Z"},"told":"x"}"#;
const REPAIRS: &str =
    r#"{"repaired":3,"repairs":[{"node":"n","uid":"u","since":"2026-11-16T03:00:00Z","action":"Replace"}]}"#;
const NAMES: &str = r#"{"counts":{"1":"0-3","2":"5"},"all":1}"#;
const PAUSED: &str = r#"{"since":"2026-11-16T03:00:00Z","by":"jane","reason":"work"}"#;

fn any_of_ours() -> impl Strategy<Value = String> {
    let ours = [BRAKE, EVICTION, ASKED, REPAIR, REPAIRS, NAMES, PAUSED];
    let all = ours.map(|text| damaged(text).boxed()).into_iter().chain([
        json(WORDS).prop_map(|value| value.to_string()).boxed(),
        "\\PC{0,40}".boxed(),
        Just("x".repeat(100_000)).boxed(),
        Just("[".repeat(100_000)).boxed(),
        Just(format!("{{\"request\":\"{}\"}}", "\u{fffd}".repeat(30_000))).boxed(),
    ]);
    proptest::strategy::Union::new(all)
}

fn assert_brief<T>(result: Result<T, String>) -> Result<Option<T>, TestCaseError> {
    match result {
        Ok(read) => Ok(Some(read)),
        Err(error) => {
            prop_assert!(
                !error.is_empty() && error.len() <= LONGEST,
                "{} bytes: {:.100}",
                error.len(),
                error
            );
            Ok(None)
        }
    }
}

proptest! {
    #![proptest_config(cases(2048))]

    #[test]
    fn whatever_stands_in_an_annotation_is_read_or_refused_briefly(text in any_of_ours(), now in -377_705_023_201i64..253_402_207_200) {
        let now = jiff::Timestamp::from_second(now).unwrap();
        if let Some(state) = assert_brief(BrakeState::read(&text))? {
            let mut brake = Brake::new(salvor_api::config::BrakeLimits::default(), BrakeState::default());
            brake.restore(now, state);
            let _ = (brake.check(now, 1), brake.changes_at(now), brake.admit(now, 1), brake.holds_all(now));
            let kept = serde_json::to_string(&brake.state_to_save()).unwrap();
            prop_assert_eq!(BrakeState::read(&kept).unwrap(), brake.state_to_save());
        }
        let memory = Memory::read(Some(&text), Some(&text));
        prop_assert!(memory.damage.is_none_or(|damage| damage.problem.len() <= LONGEST));
        let _ = DespiteOutage::from_annotation(&text);
        prop_assert!(Pause::read(&text).to_string().len() <= text.len().min(1000) + LONGEST || matches!(Pause::read(&text), Pause::Said(_)));
        let _ = pause_token(&text);
        if let Some(progress) = assert_brief(repair::Progress::read_of(&text, Some(now)))? {
            let written = serde_json::to_string(&progress).unwrap();
            prop_assert_eq!(repair::Progress::read(&written).unwrap(), progress);
        }
        let list = PolicyStatus::read_annotation(Some(&text)).of_object(now);
        prop_assert!(!list.damaged || list.repairs.is_empty());
        if let Ok(names) = UsedNames::read(&text) {
            prop_assert_eq!(UsedNames::read(&names.text()).unwrap(), names);
        }
        let timers = Timers::of(&Annotations::pick(|_| Some(&text)), &AppWrapperPolicy::default());
        for defect in &timers.defects {
            prop_assert!(defect.to_string().len() <= LONGEST, "{}", defect);
        }
    }

    #[test]
    fn whatever_stands_in_a_status_or_spec_is_read_or_refused(value in json(WORDS)) {
        let _ = PolicyStatus::read(Some(&value));
        let _ = serde_json::from_value::<AppWrapperStatus>(value.clone()).map_err(|error| error.to_string());
        let _ = Amount::read(&value);
        let policy = Policy::read(head(), &value);
        prop_assert!(policy.defects.iter().all(|defect| !defect.is_empty()));
        let _ = Policy::read_pool(head(), &value);
        let around = json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "policies": [value.clone()], "budgets": [value]});
        let _ = Policy::read(head(), &around);
    }
}

fn head() -> Head {
    let object = crate::objects::ObjectRef {
        uid: "u".into(),
        kind: NODE_REPAIR_POLICY.clone(),
        namespace: None,
        name: "p".to_owned(),
    };
    let created = jiff::Timestamp::UNIX_EPOCH;
    Head {
        object,
        resource_version: "1".into(),
        generation: 1,
        created,
        status: PolicyStatus::read(None::<&Value>),
    }
}
