//! The containers of one pod, as a state machine that only time and signals move. Pure: no I/O, no clock.
//!
//! Every transition happens at its own exact instant, however late `advance` is called, so that the ground truth of an
//! unreachable node is as exact as that of any other.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    pod::{ContainerSpec, PodId, PodSpecView, RestartPolicy, Role, TerminalPhase},
    truth::{GroundTruth, Run, RunId, Work},
};

#[derive(Clone, Copy, Debug)]
pub struct RestartBackoff {
    /// Wait before the second restart; the first one is immediate.
    pub base: Duration,
    /// The wait doubles up to this.
    pub max: Duration,
    /// The backoff of a container that ran this long starts over.
    pub reset_after: Duration,
}

impl Default for RestartBackoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(10),
            max: Duration::from_secs(300),
            reset_after: Duration::from_secs(600),
        }
    }
}

/// Exit codes as Linux and container runtimes return them.
const KILLED: i32 = 137;
const LOST: i32 = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) since: Timestamp,
    pub(crate) at: Timestamp,
    pub(crate) code: i32,
    pub(crate) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerState {
    /// Not started, because of `reason`; `until` is when that ends by itself.
    Waiting {
        reason: &'static str,
        until: Option<Timestamp>,
    },
    Running {
        since: Timestamp,
        run: RunId,
        /// When and how it ends if nothing else happens.
        exit: Option<Exit>,
    },
    Ended(Ended),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    at: Timestamp,
    code: i32,
}

#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) spec: ContainerSpec,
    pub(crate) state: ContainerState,
    pub(crate) last: Option<Ended>,
    pub(crate) restarts: u32,
    backoff: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// Admitted; volumes are not mounted yet.
    Mounting,
    /// Sandbox and volumes exist; containers start as their order allows.
    Started { at: Timestamp },
    /// No container starts any more; those that run end by `kill_at`.
    Stopping { kill_at: Timestamp },
}

/// The facts about the node on which the containers of a pod depend.
pub(crate) struct World<'a> {
    pub(crate) node: &'a str,
    pub(crate) truth: &'a GroundTruth,
    pub(crate) backoff: RestartBackoff,
    /// True if a kubelet is running to start containers.
    pub(crate) kubelet_runs: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct PodRuntime {
    id: PodId,
    work: Vec<Work>,
    restart_policy: RestartPolicy,
    grace: Duration,
    stage: Stage,
    /// The time up to which these containers have run.
    cursor: Timestamp,
    pub(crate) containers: Vec<Container>,
}

impl PodRuntime {
    pub(crate) fn new(id: &PodId, spec: &PodSpecView, now: Timestamp) -> Self {
        let has_init = spec.containers.iter().any(|c| c.role != Role::Main);
        let created = |spec: &ContainerSpec| Container {
            state: ContainerState::Waiting {
                reason: if spec.role == Role::Main && has_init {
                    "PodInitializing"
                } else {
                    "ContainerCreating"
                },
                until: None,
            },
            spec: spec.clone(),
            last: None,
            restarts: 0,
            backoff: Duration::ZERO,
        };
        Self {
            id: id.clone(),
            work: spec.work.clone(),
            restart_policy: spec.restart_policy,
            grace: spec.grace,
            stage: Stage::Mounting,
            cursor: now,
            containers: spec.containers.iter().map(created).collect(),
        }
    }

    /// The volumes are mounted: containers may start.
    pub(crate) fn mounted(&mut self, at: Timestamp, extra_work: Vec<Work>) {
        if self.stage == Stage::Mounting {
            self.work.extend(extra_work);
            self.stage = Stage::Started { at };
        }
    }

    /// SIGTERM to all running containers, SIGKILL after `grace`. A second, shorter grace period wins; a longer one does
    /// not.
    pub(crate) fn stop(&mut self, at: Timestamp, grace: Duration) {
        let kill_at = match self.stage {
            Stage::Stopping { kill_at } => kill_at.min(at + grace),
            Stage::Mounting | Stage::Started { .. } => at + grace,
        };
        let first = !matches!(self.stage, Stage::Stopping { .. });
        self.stage = Stage::Stopping { kill_at };
        for container in &mut self.containers {
            let script = &container.spec.script;
            let ContainerState::Running { exit, .. } = &mut container.state else {
                continue;
            };
            let by_signal =
                Exit { at: at + script.ignore_sigterm, code: i32::from(script.sigterm_exit_code) };
            if first && exit.is_none_or(|natural| by_signal.at < natural.at) {
                *exit = Some(by_signal);
            }
            if exit.is_none_or(|e| kill_at < e.at) {
                *exit = Some(Exit { at: kill_at, code: KILLED });
            }
        }
    }

    /// The machine lost power: running containers ended at this instant, unobserved.
    pub(crate) fn power_off(&mut self, at: Timestamp, truth: &GroundTruth) {
        for container in &mut self.containers {
            container.end(at, LOST, truth);
        }
    }

    /// Moves everything up to `now`; returns the time of the next transition.
    pub(crate) fn advance(&mut self, now: Timestamp, world: &World<'_>) -> Option<Timestamp> {
        loop {
            self.start_what_may(world);
            self.stop_sidecars_after_the_last_main();
            let next = self.next_transition(world);
            match next {
                Some(at) if at <= now => {
                    self.transition(at, world);
                    self.cursor = self.cursor.max(at);
                }
                _ => {
                    self.cursor = self.cursor.max(now);
                    return next;
                }
            }
        }
    }

    fn stop_sidecars_after_the_last_main(&mut self) {
        if !self.is_stopping() && !self.is_quiet() && self.mains_are_over() {
            self.stop(self.cursor, self.grace);
        }
    }

    fn next_transition(&self, world: &World<'_>) -> Option<Timestamp> {
        let may_start = world.kubelet_runs && matches!(self.stage, Stage::Started { .. });
        let of = |c: &Container| match &c.state {
            ContainerState::Running { exit, .. } => exit.map(|e| e.at),
            ContainerState::Waiting { until, .. } if may_start => *until,
            ContainerState::Waiting { .. } | ContainerState::Ended(_) => None,
        };
        self.containers.iter().filter_map(of).min()
    }

    fn transition(&mut self, at: Timestamp, world: &World<'_>) {
        for i in 0..self.containers.len() {
            match self.containers[i].state {
                ContainerState::Running { exit: Some(exit), .. } if exit.at <= at => {
                    self.containers[i].end(exit.at, exit.code, world.truth);
                }
                ContainerState::Waiting { until: Some(until), .. }
                    if until <= at && world.kubelet_runs && matches!(self.stage, Stage::Started { .. }) =>
                {
                    self.start(i, at, world);
                }
                _ => {}
            }
        }
    }

    /// Starts or schedules the containers that their order, their restart policy and the kubelet allow.
    fn start_what_may(&mut self, world: &World<'_>) {
        let Stage::Started { at: started } = self.stage else {
            return;
        };
        if !world.kubelet_runs {
            return;
        }
        for i in 0..self.containers.len() {
            match &self.containers[i].state {
                ContainerState::Waiting { until: None, .. } => {
                    let at = self.ready_to_start_at(i).unwrap_or(started);
                    self.create(i, at.max(self.cursor));
                }
                ContainerState::Ended(ended) if self.restarts(i, ended.code) => {
                    let ended = ended.clone();
                    self.schedule_restart(i, ended, world.backoff);
                }
                _ => {}
            }
            let blocks = match (self.containers[i].spec.role, &self.containers[i].state) {
                (Role::Main, _) | (Role::Sidecar, ContainerState::Running { .. }) => false,
                (Role::Init, ContainerState::Ended(ended)) => ended.code != 0,
                _ => true,
            };
            if blocks {
                return;
            }
        }
    }

    /// When the containers before this one were done, so that its own start delay begins.
    fn ready_to_start_at(&self, i: usize) -> Option<Timestamp> {
        let before = |c: &Container| match (&c.spec.role, &c.state) {
            (Role::Init, ContainerState::Ended(ended)) => Some(ended.at),
            (Role::Sidecar, ContainerState::Running { since, .. }) => Some(*since),
            _ => None,
        };
        self.containers[..i].iter().filter_map(before).max()
    }

    fn create(&mut self, i: usize, at: Timestamp) {
        let container = &mut self.containers[i];
        let script = &container.spec.script;
        container.state = if script.image_error > Duration::ZERO {
            ContainerState::Waiting { reason: "ImagePullBackOff", until: Some(at + script.image_error) }
        } else {
            ContainerState::Waiting { reason: "ContainerCreating", until: Some(at + script.start_delay) }
        };
    }

    fn schedule_restart(&mut self, i: usize, ended: Ended, backoff: RestartBackoff) {
        let container = &mut self.containers[i];
        let ran = Duration::try_from(ended.at.duration_since(ended.since)).unwrap_or_default();
        if ran >= backoff.reset_after {
            container.backoff = Duration::ZERO;
        }
        // A kubelet that was away restarts it when it checks, not in the past.
        let due = (ended.at + container.backoff).max(self.cursor);
        container.backoff = (container.backoff * 2).clamp(backoff.base, backoff.max);
        container.last = Some(ended);
        container.restarts += 1;
        container.state = ContainerState::Waiting { reason: "CrashLoopBackOff", until: Some(due) };
    }

    fn start(&mut self, i: usize, at: Timestamp, world: &World<'_>) {
        let container = &mut self.containers[i];
        let script = &container.spec.script;
        let saved = script
            .checkpoint_every
            .map_or(Duration::ZERO, |every| world.truth.saved(&self.work, &container.spec.name, every, at));
        let run = world.truth.begin(Run {
            node: world.node.to_owned(),
            namespace: self.id.namespace.clone(),
            pod: self.id.name.clone(),
            pod_uid: self.id.uid.clone(),
            container: container.spec.name.clone(),
            work: if container.spec.role == Role::Main { self.work.clone() } else { Vec::new() },
            from: at,
            ended: None,
        });
        let fails = world.truth.failures(&self.work, &container.spec.name) < script.fail_first;
        let natural = match container.spec.role {
            // An init container without a script completes at once, as most of them do.
            Role::Init => Some(script.run_for.unwrap_or_default()),
            Role::Sidecar | Role::Main => script.run_for.map(|whole| whole.saturating_sub(saved)),
        };
        container.state = ContainerState::Running {
            since: at,
            run,
            exit: natural.map(|after| Exit {
                at: at + after,
                code: if fails { 1 } else { i32::from(script.exit_code) },
            }),
        };
    }

    fn restarts(&self, i: usize, code: i32) -> bool {
        match (self.containers[i].spec.role, self.restart_policy) {
            (Role::Sidecar, _) | (Role::Main, RestartPolicy::Always) => true,
            (Role::Init, RestartPolicy::Never) | (Role::Main, RestartPolicy::Never) => false,
            (Role::Init, _) | (Role::Main, RestartPolicy::OnFailure) => code != 0,
        }
    }

    /// True if no container of this pod uses the machine any more.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.containers.iter().any(|c| matches!(c.state, ContainerState::Running { .. }))
    }

    pub(crate) fn is_stopping(&self) -> bool {
        matches!(self.stage, Stage::Stopping { .. })
    }

    /// True if the sandbox exists and containers may start.
    pub(crate) fn is_started(&self) -> bool {
        !matches!(self.stage, Stage::Mounting)
    }

    /// True if every init container has completed or, for a sidecar, started.
    pub(crate) fn is_initialized(&self) -> bool {
        self.containers.iter().all(|c| match (c.spec.role, &c.state) {
            (Role::Main, _) => true,
            (Role::Sidecar, state) => !matches!(state, ContainerState::Waiting { .. }) || c.restarts > 0,
            (Role::Init, ContainerState::Ended(ended)) => ended.code == 0,
            (Role::Init, _) => false,
        })
    }

    /// True if every container that should be serving is running.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_initialized()
            && !self.is_stopping()
            && self
                .containers
                .iter()
                .filter(|c| c.spec.role == Role::Main)
                .all(|c| matches!(c.state, ContainerState::Running { .. }))
    }

    /// The terminal phase, once every container has ended and none will start again.
    pub(crate) fn terminal(&self) -> Option<TerminalPhase> {
        if !self.is_quiet() || !self.mains_are_over() {
            return None;
        }
        let succeeded = |c: &Container| matches!(&c.state, ContainerState::Ended(e) if e.code == 0);
        let mut mains = self.containers.iter().filter(|c| c.spec.role == Role::Main);
        Some(if mains.all(succeeded) { TerminalPhase::Succeeded } else { TerminalPhase::Failed })
    }

    /// True if no main container runs or will ever start (again).
    fn mains_are_over(&self) -> bool {
        let will_not_start = |i: usize| match &self.containers[i].state {
            ContainerState::Ended(ended) => self.is_stopping() || !self.restarts(i, ended.code),
            ContainerState::Waiting { .. } => self.is_stopping(),
            ContainerState::Running { .. } => false,
        };
        let roles = || self.containers.iter().map(|c| c.spec.role).enumerate();
        let an_init_gave_up = roles().any(|(i, role)| {
            role == Role::Init
                && will_not_start(i)
                && !matches!(&self.containers[i].state, ContainerState::Ended(e) if e.code == 0)
        });
        an_init_gave_up || roles().all(|(i, role)| role != Role::Main || will_not_start(i))
    }
}

impl Container {
    fn end(&mut self, at: Timestamp, code: i32, truth: &GroundTruth) {
        if let ContainerState::Running { since, run, .. } = self.state {
            truth.end(run, at, code);
            let reason = match code {
                0 => "Completed",
                LOST => "Unknown",
                _ => "Error",
            };
            self.state = ContainerState::Ended(Ended { since, at, code, reason });
        }
    }
}

#[cfg(test)]
mod tests;
