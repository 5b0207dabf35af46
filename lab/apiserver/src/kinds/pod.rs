//! The table columns of a pod.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::object;
use crate::protocol::printing::{AGE, Column, NAME, NONE, Row, integer, made, or, since, text_or};

pub(super) const COLUMNS: &[Column] = &[
    NAME,
    made("Ready", |row| json!(Summary::of(row).ready())),
    made("Status", |row| json!(Summary::of(row).reason)),
    made("Restarts", |row| json!(Summary::of(row).restarts(row))),
    AGE,
    made("IP", |row| json!(address(row))).wide(),
    text_or("Node", "/spec/nodeName", NONE).wide(),
    text_or("Nominated Node", "/status/nominatedNodeName", NONE).wide(),
    made("Readiness Gates", |row| json!(gates(row))).wide(),
];

fn address<'v>(row: &Row<'v>) -> &'v str {
    let first = row.list("/status/podIPs").first();
    or(first.map_or("", |address| object::text(address, "/ip")), NONE)
}

fn gates(row: &Row<'_>) -> String {
    let gates = row.list("/spec/readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let is_open = |gate: &&Value| row.condition(object::text(gate, "/conditionType")) == Some("True");
    format!("{}/{}", gates.iter().filter(is_open).count(), gates.len())
}

/// The containers of a pod, counted.
struct Summary {
    containers: usize,
    ready: usize,
    restarts: i64,
    /// When a restarted container last terminated.
    last_restart: String,
    reason: String,
}

/// Restarts of some containers, and the time of the last one.
#[derive(Default)]
struct Restarts {
    count: i64,
    last: String,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += integer(status, "/restartCount");
        let ended = object::text(status, "/lastState/terminated/finishedAt");
        // Times in the same format sort as texts.
        if ended > self.last.as_str() {
            ended.clone_into(&mut self.last);
        }
    }
}

impl Summary {
    fn of(row: &Row<'_>) -> Self {
        let phase = row.text("/status/phase");
        let mut reason = or(row.text("/status/reason"), phase).to_owned();
        let is_gated = row.list("/status/conditions").iter().any(|condition| {
            object::text(condition, "/type") == "PodScheduled"
                && object::text(condition, "/reason") == "SchedulingGated"
        });
        if is_gated {
            "SchedulingGated".clone_into(&mut reason);
        }
        let (mut all, mut sidecars) = (Restarts::default(), Restarts::default());
        let mut summary = Self {
            containers: row.list("/spec/containers").len(),
            ready: 0,
            restarts: 0,
            last_restart: String::new(),
            reason,
        };
        let is_initializing = summary.initialize(row, &mut all, &mut sidecars);
        if !is_initializing || row.condition("Initialized") == Some("True") {
            all = sidecars;
            summary.run(row, &mut all);
        }
        (summary.restarts, summary.last_restart) = (all.count, all.last);
        if object::is_terminating(row.item) {
            if row.text("/status/reason") == "NodeLost" {
                "Unknown".clone_into(&mut summary.reason);
            } else if !["Failed", "Succeeded"].contains(&phase) {
                "Terminating".clone_into(&mut summary.reason);
            }
        }
        summary
    }

    /// Counts the init containers, up to the first that is not done.
    fn initialize(&mut self, row: &Row<'_>, all: &mut Restarts, sidecars: &mut Restarts) -> bool {
        let wanted = row.list("/spec/initContainers");
        let is_sidecar: BTreeMap<&str, bool> = wanted
            .iter()
            .map(|container| {
                let lasts = object::text(container, "/restartPolicy") == "Always";
                (object::text(container, "/name"), lasts)
            })
            .collect();
        self.containers += is_sidecar.values().filter(|&&is_sidecar| is_sidecar).count();
        for (index, status) in row.list("/status/initContainerStatuses").iter().enumerate() {
            let is_sidecar = is_sidecar.get(object::text(status, "/name")) == Some(&true);
            all.add(status);
            if is_sidecar {
                sidecars.add(status);
            }
            let is_true = |key: &str| status.get(key) == Some(&json!(true));
            let waiting = object::text(status, "/state/waiting/reason");
            match object::at(status, "/state/terminated") {
                Some(ended) if integer(ended, "/exitCode") == 0 => continue,
                _ if is_sidecar && is_true("started") => {
                    self.ready += usize::from(is_true("ready"));
                    continue;
                }
                Some(ended) => self.reason = format!("Init:{}", how_it_ended(ended)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => {
                    self.reason = format!("Init:{waiting}");
                }
                None => self.reason = format!("Init:{index}/{}", wanted.len()),
            }
            return true;
        }
        false
    }

    /// Counts the containers, the first one last.
    fn run(&mut self, row: &Row<'_>, restarts: &mut Restarts) {
        let mut is_running = false;
        let mut failure = None;
        for status in row.list("/status/containerStatuses").iter().rev() {
            restarts.add(status);
            let waiting = object::text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if let Some(ended) = object::at(status, "/state/terminated") {
                self.reason = how_it_ended(ended);
                if integer(ended, "/exitCode") != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if status.get("ready") == Some(&json!(true))
                && object::at(status, "/state/running").is_some()
            {
                is_running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if is_running && row.condition("Ready") == Some("True") {
                "Running".clone_into(&mut self.reason);
            } else if let Some(failure) = failure {
                self.reason = failure;
            } else if is_running {
                "NotReady".clone_into(&mut self.reason);
            }
        }
    }

    fn ready(&self) -> String {
        format!("{}/{}", self.ready, self.containers)
    }

    fn restarts(&self, row: &Row<'_>) -> String {
        if self.restarts != 0 && !self.last_restart.is_empty() {
            return format!("{} ({} ago)", self.restarts, since(&self.last_restart, row.now));
        }
        self.restarts.to_string()
    }
}

fn how_it_ended(ended: &Value) -> String {
    match (object::text(ended, "/reason"), integer(ended, "/signal")) {
        ("", 0) => format!("ExitCode:{}", integer(ended, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}
