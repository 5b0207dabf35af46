//! Renders an explanation as text: the verdict first, then the reasons.

use std::fmt::{self, Display, Write};

use jiff::Timestamp;
use salvor_api::GoDuration;
use salvor_operator::{Detail, DetailLine, Explanation, RecoveryReport};

use crate::output;

/// Limits the lines of a detail: a Job may have a hundred thousand waiting indexes.
const MOST_LINES: usize = 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) marks: Marks,
    /// Whether the operator only reports.
    pub(super) dry_run: bool,
}

/// The signs for rules that hold and rules that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marks {
    Unicode,
    Ascii,
}

impl Marks {
    /// Unicode if the locale supports it.
    pub(super) fn for_terminal(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set);
        let utf8 = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        if utf8 && variable("TERM").as_deref() != Some("dumb") { Self::Unicode } else { Self::Ascii }
    }

    fn of(self, holds: bool) -> &'static str {
        match (self, holds) {
            (Self::Unicode, true) => "✓",
            (Self::Unicode, false) => "✗",
            (Self::Ascii, true) => "yes",
            (Self::Ascii, false) => "NO ",
        }
    }
}

/// Renders the whole explanation. Times are relative to `now`.
pub(super) fn render(explanation: &Explanation, now: Timestamp, style: Style) -> String {
    let mut page = Page { text: String::new(), now, style };
    for report in &explanation.recoveries {
        page.headline(&explanation.subject, report);
    }
    if explanation.recoveries.is_empty() {
        page.line(format_args!("{}: IGNORE, no recovery applies", explanation.subject));
    }
    for report in &explanation.recoveries {
        page.recovery(report);
    }
    for detail in &explanation.details {
        page.detail(detail);
    }
    page.section("Already done");
    if explanation.history.is_empty() {
        page.line("  nothing");
    }
    for entry in &explanation.history {
        page.line(format_args!("  {entry}"));
    }
    page.text
}

struct Page {
    text: String,
    now: Timestamp,
    style: Style,
}

impl Page {
    fn line(&mut self, text: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{}", output::one_line(&text.to_string()));
    }

    fn section(&mut self, title: impl Display) {
        self.text.push('\n');
        self.line(format_args!("{title}:"));
    }

    fn headline(&mut self, subject: &str, of: &RecoveryReport) {
        let RecoveryReport { recovery, report, brake_unknown } = of;
        let verdict = report.verdict.to_ascii_uppercase();
        let when = match report.until {
            Some(until) => format!(" until {}", self.moment(until)),
            None => String::new(),
        };
        let unless = if brake_unknown.is_some() { ", unless the brake holds," } else { "" };
        self.line(format_args!("{subject}: {verdict}{when}{unless} [{recovery}: {}]", report.reason));
    }

    fn recovery(&mut self, RecoveryReport { recovery, report, brake_unknown }: &RecoveryReport) {
        self.section(format_args!("Why ({recovery} recovery)"));
        self.line(format_args!("  {}", report.message));
        if let Some(held) = &report.blocked_by {
            self.section("Blocked by the brake");
            self.line(format_args!("  {held}"));
        }
        if let Some(unknown) = brake_unknown {
            self.section("Not known from here");
            self.line(format_args!("  The brake's state: {unknown}."));
            self.line("  The operator's metric salvor_brake_engaged and its log show it.");
        }
        if !report.findings.is_empty() {
            self.section("Rules in order, the last one decided");
        }
        let questions = report.findings.iter().map(|finding| finding.question);
        let widest = questions.map(|question| question.chars().count()).max();
        for finding in &report.findings {
            let mark = self.style.marks.of(finding.holds);
            self.line(format_args!(
                "  {mark} {:<width$}  {}",
                finding.question,
                finding.observed,
                width = widest.unwrap_or(0)
            ));
        }
        self.section("What would change it");
        self.line(format_args!("  {}", report.what_would_change_it));
        self.next(report.verdict, report.until, &report.actions);
    }

    fn detail(&mut self, Detail { title, lines, .. }: &Detail) {
        self.section(title);
        for DetailLine { text, until } in lines.iter().take(MOST_LINES) {
            let until = until.map_or(String::new(), |until| format!(", until {}", self.moment(until)));
            self.line(format_args!("  {text}{until}"));
        }
        if lines.len() > MOST_LINES {
            self.line(format_args!("  and {} more: -o json has them all", lines.len() - MOST_LINES));
        }
    }

    fn next(&mut self, verdict: &str, until: Option<Timestamp>, actions: &[impl Display]) {
        if actions.is_empty() {
            self.section("Next");
            match until {
                Some(until) => {
                    let until = self.moment(until);
                    self.line(format_args!("  judged again at {until}"));
                }
                None if verdict == "Blocked" => self.line("  judged again when the brake allows it"),
                None => self.line("  nothing, until something above changes"),
            }
            return;
        }
        self.section(if self.style.dry_run {
            "Next, if this were not a dry run"
        } else {
            "Next, by the leader"
        });
        for (position, action) in actions.iter().enumerate() {
            self.line(format_args!("  {}. {action}", position + 1));
        }
    }

    fn moment(&self, at: Timestamp) -> Moment {
        Moment { at, now: self.now }
    }
}

/// A time as timestamp and relative to now.
struct Moment {
    at: Timestamp,
    now: Timestamp,
}

impl Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let away = self.at.duration_since(self.now);
        let distance = away.unsigned_abs();
        // Fractions of a second round up, so that a time in the future is never shown as reached.
        let seconds = distance.as_secs() + u64::from(distance.subsec_nanos() > 0);
        let seconds = GoDuration::from_secs(u32::try_from(seconds).unwrap_or(u32::MAX));
        let at = self.at;
        if away.is_zero() {
            write!(f, "{at} (now)")
        } else if away.is_positive() {
            write!(f, "{at} (in {seconds})")
        } else {
            write!(f, "{at} ({seconds} ago)")
        }
    }
}

#[cfg(test)]
mod tests {
    use salvor_recovery::objects::{PodPhase, PodRef};
    use salvor_recovery::{Finding, Report, step::ShownStep, zombie::Step};

    use super::*;

    const NOW: &str = "2026-11-15T05:00:00Z";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn finding(question: &'static str, observed: &str, holds: bool) -> Finding {
        Finding { question, observed: observed.into(), holds }
    }

    fn explanation(report: Report, history: &[&str]) -> Explanation {
        Explanation {
            subject: "pod training/worker-3".into(),
            recoveries: vec![RecoveryReport { recovery: "zombie", report, brake_unknown: None }],
            details: Vec::new(),
            history: history.iter().map(ToString::to_string).collect(),
        }
    }

    fn report(verdict: &'static str, reason: &'static str) -> Report {
        Report {
            verdict,
            reason,
            message: "The message.".into(),
            what_would_change_it: "The change.".into(),
            until: None,
            blocked_by: None,
            findings: Vec::new(),
            actions: Vec::new(),
        }
    }

    fn text(explanation: &Explanation, dry_run: bool) -> String {
        let style = Style { marks: Marks::Unicode, dry_run };
        render(explanation, at(NOW), style)
    }

    #[test]
    fn waiting_says_until_when() {
        let report = Report {
            until: Some(at("2026-11-15T05:00:42Z")),
            findings: vec![
                finding("Is the pod being deleted?", "deletionTimestamp T", true),
                finding("Is the wait over?", "until T", false),
            ],
            ..report("Wait", "GraceRunning")
        };
        assert_eq!(
            text(&explanation(report, &[]), false),
            "\
pod training/worker-3: WAIT until 2026-11-15T05:00:42Z (in 42s) [zombie: GraceRunning]

Why (zombie recovery):
  The message.

Rules in order, the last one decided:
  ✓ Is the pod being deleted?  deletionTimestamp T
  ✗ Is the wait over?          until T

What would change it:
  The change.

Next:
  judged again at 2026-11-15T05:00:42Z (in 42s)

Already done:
  nothing
"
        );
    }

    fn acting() -> Report {
        let pod = PodRef { namespace: "training".into(), name: "worker-3".into(), uid: "u".into() };
        Report {
            findings: vec![finding("Is the wait over?", "yes", true)],
            actions: vec![
                ShownStep::of(&Step::PatchPodStatus {
                    pod: pod.clone(),
                    resource_version: "7".into(),
                    phase: Some(PodPhase::Failed),
                    conditions: Vec::new(),
                    ended: None,
                }),
                ShownStep::of(&Step::ForceDeletePod { pod, resource_version: "7".into() }),
            ],
            ..report("Act", "HalfRecovered")
        }
    }

    #[test]
    fn acting_lists_the_steps_and_what_was_done() {
        let text = text(&explanation(acting(), &["T declared Failed"]), false);
        let expected = "\
pod training/worker-3: ACT [zombie: HalfRecovered]

Why (zombie recovery):
  The message.

Rules in order, the last one decided:
  ✓ Is the wait over?  yes

What would change it:
  The change.

Next, by the leader:
  1. patch the status of pod training/worker-3: phase Failed,
  2. delete pod training/worker-3 with no grace

Already done:
  T declared Failed
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_the_brake_does_is_not_promised_where_nobody_knows_it() {
        let mut acting = explanation(acting(), &[]);
        acting.recoveries[0].brake_unknown = Some("leader election is off".into());
        let text = text(&acting, false);
        assert!(
            text.starts_with("pod training/worker-3: ACT, unless the brake holds, [zombie: HalfRecovered]\n"),
            "{text}"
        );
        let expected = "
Not known from here:
  The brake's state: leader election is off.
  The operator's metric salvor_brake_engaged and its log show it.
";
        assert!(text.contains(expected), "{text}");
        let json = serde_json::to_value(&acting).unwrap();
        assert_eq!(json["recoveries"][0]["brakeUnknown"], "leader election is off");
    }

    #[test]
    fn a_dry_run_does_not_promise() {
        let text = text(&explanation(acting(), &[]), true);
        assert!(text.contains("\nNext, if this were not a dry run:\n  1. patch"), "{text}");
    }

    #[test]
    fn the_brake_is_named() {
        let blocked = |until| Report {
            blocked_by: Some("6 of 10 nodes are unreachable".into()),
            until,
            ..report("Blocked", "Zombie")
        };
        let open = text(&explanation(blocked(None), &[]), false);
        assert!(open.starts_with("pod training/worker-3: BLOCKED [zombie: Zombie]\n"), "{open}");
        assert!(open.contains("\nBlocked by the brake:\n  6 of 10 nodes are unreachable\n"));
        assert!(open.contains("\nNext:\n  judged again when the brake allows it\n"));
        let timed = text(&explanation(blocked(Some(at("2026-11-15T05:01:00Z"))), &[]), false);
        assert!(timed.contains("BLOCKED until 2026-11-15T05:01:00Z (in 1m0s)"), "{timed}");
    }

    #[test]
    fn details_are_told_line_by_line_but_not_by_the_thousand() {
        let line = |text: &str, until: Option<&str>| DetailLine { text: text.into(), until: until.map(at) };
        let waiting = |lines| Detail {
            key: "waiting",
            value: serde_json::Value::Null,
            title: "What each index waits for".into(),
            lines,
        };
        let mut job = explanation(report("Wait", "BackingOff"), &[]);
        job.details = vec![waiting(vec![
            line("index 0: pod w-0-x on node n1 to end", None),
            line("index 1: its backoff", Some("2026-11-15T05:00:07Z")),
        ])];
        let told = text(&job, false);
        let expected = "
What each index waits for:
  index 0: pod w-0-x on node n1 to end
  index 1: its backoff, until 2026-11-15T05:00:07Z (in 7s)

Already done:
";
        assert!(told.contains(expected), "{told}");
        job.details = vec![waiting((0..50).map(|n| line(&format!("index {n}: x"), None)).collect())];
        let told = text(&job, false);
        assert!(told.contains("  index 19: x\n  and 30 more: -o json has them all\n"), "{told}");
    }

    #[test]
    fn ignoring_says_that_nothing_comes() {
        let text = text(&explanation(report("Ignore", "NotTerminating"), &[]), false);
        assert!(text.starts_with("pod training/worker-3: IGNORE [zombie: NotTerminating]\n"));
        assert!(text.contains("\nNext:\n  nothing, until something above changes\n"));
        let nobody = Explanation { recoveries: Vec::new(), ..explanation(report("Ignore", "x"), &[]) };
        let text = super::tests::text(&nobody, false);
        assert_eq!(text, "pod training/worker-3: IGNORE, no recovery applies\n\nAlready done:\n  nothing\n");
    }

    #[test]
    fn times_are_told_from_now_and_never_early() {
        let cases = [
            (NOW, "(now)"),
            ("2026-11-15T05:00:00.001Z", "(in 1s)"),
            ("2026-11-15T05:01:29.5Z", "(in 1m30s)"),
            ("2026-11-15T07:00:00Z", "(in 2h0m0s)"),
            ("2026-11-15T04:59:00Z", "(1m0s ago)"),
        ];
        for (time, expected) in cases {
            let moment = Moment { at: at(time), now: at(NOW) };
            assert_eq!(moment.to_string(), format!("{time} {expected}"));
        }
        let ends = Moment { at: Timestamp::MAX, now: Timestamp::MIN };
        assert!(ends.to_string().contains("(in "));
    }

    #[test]
    fn unicode_is_used_only_where_it_shows() {
        let cases: &[(&[(&str, &str)], Marks)] = &[
            (&[("LANG", "C.UTF-8")], Marks::Unicode),
            (&[("LANG", "de_DE.utf8"), ("TERM", "xterm")], Marks::Unicode),
            (&[("LC_ALL", "C"), ("LANG", "C.UTF-8")], Marks::Ascii),
            (&[("LC_ALL", ""), ("LANG", "C.UTF-8")], Marks::Unicode),
            (&[("LANG", "C.UTF-8"), ("TERM", "dumb")], Marks::Ascii),
            (&[], Marks::Ascii),
        ];
        for (set, expected) in cases {
            let variable = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(Marks::for_terminal(variable), *expected, "{set:?}");
        }
        let report = Report {
            findings: vec![finding("A?", "a", true), finding("B?", "b", false)],
            ..report("Ignore", "x")
        };
        let style = Style { marks: Marks::Ascii, dry_run: false };
        let text = render(&explanation(report, &[]), at(NOW), style);
        assert!(text.contains("\n  yes A?  a\n  NO  B?  b\n"), "{text}");
    }
}
