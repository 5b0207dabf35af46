//! Whether the installed Salvor acts at all.

use salvor_operator::InCluster;

use super::finding::{Check, Finding, Severity};

pub(super) fn check(running: &InCluster) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |what: String, why: &str, fix: &str| {
        findings.push(Finding::new(Severity::Error, Check::Running, what, why, fix));
    };
    if running.was_led && running.leader.is_none() {
        add(
            "no replica of Salvor leads".to_owned(),
            "nothing is recovered before a replica leads",
            "See whether its replicas run: salvor why deployment/salvor -n salvor-system, and their logs",
        );
    }
    if let Some(pause) = &running.pause {
        add(
            format!("Salvor is {pause}"),
            "nothing is recovered before the pause ends",
            "Once its reason is gone: salvor resume",
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use salvor_recovery::pause::Pause;

    use super::*;

    #[test]
    fn a_salvor_that_does_not_act_is_an_error() {
        let of = |leader: Option<&str>, was_led: bool, pause: Option<&str>| {
            let pause = pause.map(Pause::read);
            let running =
                InCluster { leader: leader.map(str::to_owned), was_led, pause, ..InCluster::default() };
            check(&running).into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert_eq!(of(Some("a"), true, None), Vec::<String>::new());
        assert_eq!(of(None, false, None), Vec::<String>::new(), "it is not installed");
        assert_eq!(of(None, true, None), ["no replica of Salvor leads"]);
        let jane = r#"{"since":"2026-11-16T03:00:00Z","by":"jane","reason":""}"#;
        assert_eq!(of(Some("a"), true, Some(jane)), ["Salvor is paused by jane since 2026-11-16T03:00:00Z"]);
        assert_eq!(of(None, true, Some(jane)).len(), 2);
    }
}
