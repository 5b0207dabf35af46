//! Renders the status for people.

use jiff::Timestamp;
use salvor_why::{NotSeen, Object};

use super::actions::{Action, Recovered};
use super::answer::{RecoverySwitch, Status};
use crate::output::{lasting, one_line};

pub(super) fn render(status: &Status, now: Timestamp) -> String {
    let mut lines = vec![leader(status, now)];
    if let Some(recoveries) = &status.recoveries {
        lines.extend(switches(recoveries));
    }
    if status.dry_run == Some(true) {
        lines.push("Dry run: it decides and counts, and writes nothing".to_owned());
    }
    lines.push(brake(status, now));
    lines.push(match &status.paused {
        None => "Paused: no".to_owned(),
        Some(paused) => {
            let confirmed = match &paused.confirmed_by {
                Some(leader) => format!("{leader} has stopped"),
                None => "no leader has confirmed it".to_owned(),
            };
            format!("Paused: {}; {confirmed}. To go on: salvor resume", one_line(&paused.told))
        }
    });
    let counted = |pods: Option<usize>, workloads: Option<usize>| match (pods, workloads) {
        (Some(pods), Some(workloads)) => {
            format!("{} of {}", count(pods, "pod"), count(workloads, "workload"))
        }
        _ => "not known".to_owned(),
    };
    lines.push(format!("Waiting: {}", counted(status.waiting, status.waiting_workloads)));
    lines.push(format!("Blocked: {}", counted(status.blocked, status.blocked_workloads)));
    lines.push(match &status.recovered_last_hour {
        None => "Recovered in the last hour: not known".to_owned(),
        Some(Recovered { pods, nodes, workloads }) => {
            let all = [(*pods, "pod"), (*nodes, "node"), (*workloads, "AppWrapper")];
            let some: Vec<String> = all
                .into_iter()
                .filter(|(number, _)| *number > 0)
                .map(|(number, one)| count(number, one))
                .collect();
            format!(
                "Recovered in the last hour: {}",
                if some.is_empty() { "nothing".to_owned() } else { some.join(", ") }
            )
        }
    });
    if !status.proven_by.is_empty() {
        lines.push("A machine is proven off by:".to_owned());
        lines.extend(status.proven_by.iter().map(|proof| format!("  {proof}")));
    }
    match status.last_actions.as_deref() {
        None => {}
        Some([]) => lines.push("Last actions: none".to_owned()),
        Some(actions) => {
            lines.push("Last actions:".to_owned());
            lines.extend(actions.iter().map(|action| self::action(action, now)));
        }
    }
    let details = status.waiting.unwrap_or(0) + status.blocked.unwrap_or(0) > 0;
    lines.extend(details.then(|| "To see what waits, and why: salvor why -A".to_owned()));
    for NotSeen { what, why } in &status.not_seen {
        lines.push(format!("Not seen: {what}: {}", one_line(why)));
    }
    lines.join("\n") + "\n"
}

fn leader(status: &Status, now: Timestamp) -> String {
    let version = status.version.as_ref().map(|version| format!(", version {version}")).unwrap_or_default();
    match &status.leader {
        None => format!("Leader: none. {}", status.told),
        Some(leader) => {
            let since = status.leader_since.map(|since| format!(", for {}", lasting(now, since)));
            format!("Leader: {leader}{version}{}", since.unwrap_or_default())
        }
    }
}

fn switches(recoveries: &[RecoverySwitch]) -> [String; 2] {
    let names = |on: bool| {
        let some: Vec<String> = recoveries
            .iter()
            .filter(|recovery| recovery.on == on)
            .map(|recovery| match &recovery.why {
                Some(why) => format!("{} ({why})", recovery.name),
                None => recovery.name.to_owned(),
            })
            .collect();
        if some.is_empty() { "none".to_owned() } else { some.join(", ") }
    };
    [format!("On: {}", names(true)), format!("Off: {}", names(false))]
}

fn brake(status: &Status, now: Timestamp) -> String {
    let brake = &status.brake;
    let mut text = match (&brake.why, brake.zones.as_slice()) {
        (None, []) => return "Brake: free".to_owned(),
        (Some(why), _) => format!("Brake: holds. {why}"),
        (None, zones) => format!("Brake: holds what is in zone {}", zones.join(", ")),
    };
    if let Some(until) = brake.until.filter(|until| *until > now) {
        text.push_str(&format!(" (in {})", lasting(until, now)));
    }
    text
}

fn action(action: &Action, now: Timestamp) -> String {
    let object =
        Object { kind: action.kind.clone(), namespace: action.namespace.clone(), name: action.name.clone() };
    let ago = lasting(now, action.at);
    format!(
        "  {ago:>7} ago  {:<10}  {} {object}: {}",
        action.recovery,
        action.reason,
        one_line(&action.message)
    )
}

fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::answer::{BrakeStatus, PauseStatus};

    #[test]
    fn a_status_is_one_screen() {
        let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
        let switch = |name, on, why: Option<&str>| RecoverySwitch { name, on, why: why.map(str::to_owned) };
        let mut status = Status {
            leader: Some("salvor-0".into()),
            leader_since: Some("2026-11-16T08:58:00Z".parse().unwrap()),
            version: Some("1.2.3".into()),
            dry_run: Some(false),
            recoveries: Some(vec![
                switch("zombie", true, None),
                switch("job", false, Some("not in controllers")),
            ]),
            waiting: Some(2),
            waiting_workloads: Some(1),
            blocked: Some(0),
            blocked_workloads: Some(0),
            recovered_last_hour: Some(Recovered { pods: 3, nodes: 0, workloads: 1 }),
            last_actions: Some(Vec::new()),
            proven_by: vec!["a person".into()],
            ..Status::default()
        };
        let expected = "Leader: salvor-0, version 1.2.3, for 1h2m\nOn: zombie\nOff: job (not in controllers)\nBrake: free\n\
                        Paused: no\nWaiting: 2 pods of 1 workload\nBlocked: 0 pods of 0 workloads\n\
                        Recovered in the last hour: 3 pods, 1 AppWrapper\nA machine is proven off by:\n  a person\n\
                        Last actions: none\nTo see what waits, and why: salvor why -A\n";
        assert_eq!(render(&status, now), expected);
        status.leader = None;
        status.told = "Nobody leads".into();
        status.brake = BrakeStatus {
            holds: true,
            why: Some("it waits".into()),
            until: Some("2026-11-16T10:00:42Z".parse().unwrap()),
            ..BrakeStatus::default()
        };
        status.paused = Some(PauseStatus {
            by: None,
            since: None,
            until: None,
            reason: None,
            confirmed_by: None,
            told: "paused by jane".into(),
        });
        let text = render(&status, now);
        for part in [
            "Leader: none. Nobody leads\n",
            "Brake: holds. it waits (in 42s)\n",
            "Paused: paused by jane; no leader has confirmed it. To go on: salvor resume\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
