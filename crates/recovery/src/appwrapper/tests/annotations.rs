//! Timers from configuration and annotations.

use super::*;

fn timers(pairs: &[(&str, &str)]) -> Timers {
    Timers::of(&annotated(pairs), &AppWrapperPolicy::default())
}

const DURATIONS: [&str; 6] = [
    "admissionGracePeriodDuration",
    "warmupGracePeriodDuration",
    "failureGracePeriodDuration",
    "retryPausePeriodDuration",
    "forcefulDeletionGracePeriodDuration",
    "deletionOnFailureGracePeriodDuration",
];

fn all_graces(it: &Timers) -> [SignedDuration; 6] {
    [
        it.admission_grace,
        it.warmup_grace,
        it.failure_grace,
        it.retry_pause,
        it.forceful_deletion_grace,
        it.deletion_on_failure_grace,
    ]
}

#[test]
fn without_annotations_the_configuration_counts() {
    let it = timers(&[]);
    assert_eq!(all_graces(&it), [secs(60), secs(300), secs(60), secs(90), secs(600), secs(0)]);
    assert_eq!((it.retry_limit, it.success_ttl, it.defects.len()), (3, secs(7 * 24 * 3600), 0));
}

#[test]
fn every_annotation_is_honoured() {
    let mut pairs: Vec<_> = DURATIONS.iter().map(|key| (*key, "10s")).collect();
    pairs.extend([("retryLimit", "101"), ("successTTLDuration", "10s")]);
    let it = timers(&pairs);
    assert_eq!(all_graces(&it), [secs(10); 6]);
    assert_eq!((it.retry_limit, it.success_ttl), (101, secs(10)));
}

#[test]
fn malformed_annotations_are_reported_and_the_configuration_counts() {
    let mut pairs: Vec<_> = DURATIONS.iter().map(|key| (*key, "222badTime")).collect();
    pairs.extend([("retryLimit", "abc"), ("successTTLDuration", "5")]);
    let it = timers(&pairs);
    assert_eq!(all_graces(&it), all_graces(&timers(&[])));
    assert_eq!((it.retry_limit, it.success_ttl), (3, timers(&[]).success_ttl));
    assert_eq!(it.defects.len(), 8);
    let text = it.defects[0].to_string();
    for part in ["admissionGracePeriodDuration", "222badTime", "1m0s is used"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn the_ceiling_and_zero_bound_annotations_and_configuration() {
    for key in DURATIONS {
        let below = timers(&[(key, "-10m")]);
        let above = timers(&[(key, "48h")]);
        let beyond = timers(&[(key, "99999999999h")]);
        let index = DURATIONS.iter().position(|it| *it == key).unwrap();
        assert_eq!(all_graces(&below)[index], secs(0), "{key}");
        assert_eq!(all_graces(&above)[index], secs(24 * 3600), "{key}");
        assert_eq!(all_graces(&beyond)[index], secs(24 * 3600), "{key}");
    }
    let policy = AppWrapperPolicy { grace_ceiling: secs(5), ..AppWrapperPolicy::default() };
    assert_eq!(Timers::of(&annotated(&[]), &policy).warmup_grace, secs(5));
}

#[test]
fn success_ttl_can_only_be_shortened() {
    for asked in ["200h", "0", "-1s"] {
        assert_eq!(timers(&[("successTTLDuration", asked)]).success_ttl, secs(7 * 24 * 3600), "{asked}");
    }
}

#[test]
fn exit_codes_tolerate_spaces_and_report_what_is_none() {
    let it = timers(&[("terminalExitCodes", "3, 10,abc ,42"), ("retryableExitCodes", "x, 10 ,20")]);
    assert_eq!(it.terminal_exit_codes, BTreeSet::from([3, 10, 42]));
    assert_eq!(it.retryable_exit_codes, BTreeSet::from([10, 20]));
    assert_eq!(it.defects.len(), 2);
    assert!(it.is_terminal(10), "a code in both lists is terminal");
    assert!(it.is_terminal(7), "a code that is not retryable is terminal");
    assert!(!it.is_terminal(20));
    assert!(!timers(&[]).is_terminal(1), "without lists every code may be retried");
}

#[test]
fn a_list_that_is_too_long_is_reported_and_not_cut() {
    let long = vec!["1"; 2000].join(",");
    let it = timers(&[("terminalExitCodes", &long)]);
    assert!(it.terminal_exit_codes.is_empty());
    assert_eq!(it.defects.len(), 1);
    assert!(it.defects[0].to_string().len() < 300);
}

#[test]
fn a_retry_limit_beyond_32_bits_is_the_largest_and_does_not_wrap() {
    assert_eq!(timers(&[("retryLimit", "4294967296")]).retry_limit, i32::MAX);
    assert_eq!(timers(&[("retryLimit", "-1")]).retry_limit, -1);
}

#[test]
fn a_malformed_annotation_is_told_by_condition_and_event_and_once() {
    let mut it = Cluster::job().annotate(&[("retryLimit", "three")]);
    it.settle();
    let (status, reason, message) = it.condition("AnnotationsValid");
    assert_eq!((status, reason), ("False", "InvalidAnnotation"));
    assert!(message.contains("retryLimit") && message.contains("three"), "{message}");
    assert_eq!(it.events.len(), 1);
    assert_eq!(it.code(), "Suspended");
    it.view.annotations = annotated(&[("retryLimit", "3")]);
    it.settle();
    assert_eq!(it.condition("AnnotationsValid").0, "True");
    assert_eq!(it.events.len(), 1);
}
