//! Pods that are missing, not ready, or terminating for too long.

use jiff::SignedDuration;
use serde_json::Value;

use crate::{
    admission::between,
    answer::{Object, Remedy},
    code::Code,
    diagnosis::{Diagnosis, Finding, Rules},
    jobs::failed_job,
    json::{
        condition, controller, deletion_asked, has_ended, holds, is_owned_by, is_ready, is_terminating,
        is_true, list, name, named, namespace, number, since, text, time, told_at, uid,
    },
    kinds::{CONFIG_MAP, JOB, Kind, SECRET},
    world::Seen,
};

/// The finalizers that a Job controller uses to count its pods.
const TRACKING: [&str; 2] = ["batch.kubernetes.io/job-tracking", "job.salvor.dev/tracking"];

/// A kubelet repeats the event of a failing mount at least this often: it retries every two minutes, and frequently
/// repeated events are written only every five minutes.
const REPEATED_WITHIN: SignedDuration = SignedDuration::from_mins(6);

/// Kubernetes creates this ConfigMap in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

impl Rules<'_> {
    pub(crate) fn asked_pod(&self, pod: &Value) -> Diagnosis {
        let mut findings = self.pod(pod);
        // Its last status may be Ready although its node is lost.
        if findings.is_empty() && is_ready(pod) {
            let lost = self.is_gone(text(pod, "/spec/nodeName")) || !self.runs(pod);
            findings.extend(if lost { self.by_its_node(pod) } else { None });
        }
        if findings.is_empty() {
            return Diagnosis::default();
        }
        let phrase = if is_terminating(pod) {
            "it is being deleted, and does not end"
        } else if text(pod, "/status/phase") == "Failed" {
            "it has failed"
        } else if text(pod, "/spec/nodeName").is_empty() {
            "it has no node yet"
        } else {
            "it does not run ready"
        };
        Diagnosis::phrase(phrase, findings)
    }

    /// Ready on a node that is not lost. The last status of a pod on a lost node may still be Ready.
    pub(crate) fn runs(&self, pod: &Value) -> bool {
        is_ready(pod) && !self.is_lost(text(pod, "/spec/nodeName"))
    }

    /// Why a pod is not running and ready, also if its last status from a lost node is Ready.
    pub(crate) fn not_running(&self, pod: &Value) -> Vec<Finding> {
        if is_ready(pod) && !self.runs(pod) {
            return self.by_its_node(pod).into_iter().collect();
        }
        self.pod(pod)
    }

    /// Why a pod is not running and ready, from the pod down. Empty if it is, or if it succeeded.
    pub(crate) fn pod(&self, pod: &Value) -> Vec<Finding> {
        if is_terminating(pod) {
            return self.ending(pod);
        }
        if is_ready(pod) || text(pod, "/status/phase") == "Succeeded" {
            return Vec::new();
        }
        let me = named("Pod", pod);
        if text(pod, "/status/phase") == "Failed" {
            return vec![self.failed(pod)];
        }
        if text(pod, "/spec/nodeName").is_empty() {
            return vec![self.unscheduled(pod)];
        }
        if let Some(finding) = self.by_its_node(pod) {
            return vec![finding];
        }
        let down = |finding: Finding, says: &str| vec![finding.waiting(me.clone()).under(me.clone(), says)];
        let missing = self.config_missing(pod);
        if !missing.is_empty() {
            let says = "cannot start: something that it needs is not there";
            return missing.into_iter().flat_map(|finding| down(finding, says)).collect();
        }
        if let Some(finding) = by_its_containers(pod) {
            return vec![finding.waiting(me)];
        }
        if text(pod, "/status/phase") != "Running" {
            if let Some(finding) = self.unbound(pod, None) {
                return down(finding, "cannot start before its volume is there");
            }
            if let Some(finding) = self.attached_elsewhere(pod) {
                return down(finding, "cannot start: its volume is not attached to its node");
            }
        }
        vec![starting(pod).waiting(me)]
    }

    pub(crate) fn ending(&self, pod: &Value) -> Vec<Finding> {
        let me = named("Pod", pod);
        let forced = number(pod, "/metadata/deletionGracePeriodSeconds") == Some(0);
        let finalizers: Vec<&str> =
            list(pod, "/metadata/finalizers").iter().filter_map(Value::as_str).collect();
        let asked = deletion_asked(pod);
        if !finalizers.is_empty() && (has_ended(pod) || forced) {
            return vec![held(pod, &me, &finalizers).since(asked).waiting(me)];
        }
        if !text(pod, "/spec/nodeName").is_empty()
            && let Some(finding) = self.by_its_node(pod)
        {
            return vec![finding];
        }
        let until = time(pod, "/metadata/deletionTimestamp");
        let message = match until {
            Some(until) if until > self.world.now => {
                format!("pod {} is ending, and has until {until}", name(pod))
            }
            _ => format!(
                "pod {} is ending for longer than its grace, and its kubelet has not said that it is gone",
                name(pod)
            ),
        };
        let finding = Finding::new(Code::AwaitingTermination, me.clone(), message)
            .since(asked)
            .until(until.filter(|until| *until > self.world.now))
            .advice("Wait until its kubelet has ended it: what it does on SIGTERM takes as long as it takes")
            .waiting(me);
        vec![finding]
    }

    fn unscheduled(&self, pod: &Value) -> Finding {
        let me = named("Pod", pod);
        let gates: Vec<&str> =
            list(pod, "/spec/schedulingGates").iter().map(|gate| text(gate, "/name")).collect();
        if gates.iter().any(|gate| gate.starts_with("kueue.x-k8s.io/"))
            && let Some(finding) = self.not_admitted(pod)
        {
            return finding.waiting(me.clone()).under(me, "waits for Kueue");
        }
        let scheduled =
            condition(pod, "PodScheduled").filter(|scheduled| text(scheduled, "/status") != "True");
        let says = scheduled.map_or("", |scheduled| text(scheduled, "/message"));
        if let Some(finding) = self.unbound(pod, Some(says)) {
            return finding.waiting(me.clone()).under(me, "cannot be scheduled before its volume is there");
        }
        let began = scheduled.and_then(since).or_else(|| time(pod, "/metadata/creationTimestamp"));
        let message = if !gates.is_empty() {
            format!("pod {} is held back by the scheduling gates {}", name(pod), gates.join(", "))
        } else if says.is_empty() {
            let scheduler = match text(pod, "/spec/schedulerName") {
                "" => "default-scheduler",
                scheduler => scheduler,
            };
            format!("scheduler {scheduler} has not looked at pod {} yet", name(pod))
        } else {
            format!("no node takes pod {}: {says}", name(pod))
        };
        let advice = if !gates.is_empty() {
            "Look at the controllers that set these gates: the scheduler waits until each has removed its own"
        } else if says.contains("Insufficient") {
            "Add a node with enough room, or free room on one, or let the pod ask for less"
        } else if says.is_empty() {
            "Look whether the scheduler runs"
        } else {
            "Change what keeps the pod from the nodes, as the message names it: taints, affinity, or what it asks for"
        };
        Finding::new(Code::Unschedulable, me.clone(), message).since(began).advice(advice).waiting(me)
    }

    /// A failed pod. If its Job failed too, that is why it is not replaced.
    fn failed(&self, pod: &Value) -> Finding {
        let me = named("Pod", pod);
        let owner = controller(pod).filter(|owner| text(owner, "/kind") == "Job");
        let job = owner.and_then(|owner| self.world.get(&JOB, namespace(pod), text(owner, "/name")).here());
        let job = job.filter(|job| is_owned_by(pod, uid(job)));
        match job.and_then(|job| Some((job, holds(job, "Failed").or_else(|| holds(job, "FailureTarget"))?))) {
            Some((job, failed)) => {
                let finding = failed_job(job, failed, self.disruptions(job, failed));
                finding.waiting(me.clone()).under(me, "has failed, and its Job makes no more")
            }
            None => failed(pod, job.is_some_and(|job| holds(job, "Complete").is_some())),
        }
    }

    /// The ConfigMaps and Secrets that the pod requires and that do not exist.
    fn config_missing(&self, pod: &Value) -> Vec<Finding> {
        let waits = |status: &Value| {
            matches!(
                text(status, "/state/waiting/reason"),
                "CreateContainerConfigError" | "ContainerCreating" | "PodInitializing"
            )
        };
        let statuses = || {
            list(pod, "/status/initContainerStatuses").iter().chain(list(pod, "/status/containerStatuses"))
        };
        if text(pod, "/status/phase") != "Pending" && !statuses().any(waits) {
            return Vec::new();
        }
        let mut missing = Vec::new();
        for (kind, object) in needed(pod) {
            if let Seen::Absent = self.world.get(kind, namespace(pod), &object) {
                let message = format!(
                    "there is no {} {object} in namespace {}, which pod {} needs",
                    kind.kind,
                    namespace(pod),
                    name(pod)
                );
                let finding = Finding::new(
                    Code::ConfigMissing,
                    Object::of(&kind.kind, namespace(pod), &object),
                    message,
                )
                .since(time(pod, "/metadata/creationTimestamp"))
                .advice(format!(
                    "Create {} {object} in namespace {}: its kubelet then starts the pod by itself",
                    kind.kind,
                    namespace(pod)
                ));
                missing.push(finding);
            }
        }
        if missing.is_empty() {
            let wrong = statuses()
                .find(|status| text(status, "/state/waiting/reason") == "CreateContainerConfigError");
            missing.extend(wrong.and_then(|wrong| key_missing(pod, text(wrong, "/state/waiting/message"))));
        }
        if missing.is_empty() {
            missing.extend(self.mount_failed(pod));
        }
        missing
    }

    /// The mounts that the kubelet reports as failed. This is the only source where Secrets cannot be read.
    fn mount_failed(&self, pod: &Value) -> Vec<Finding> {
        // A pod with a sandbox has mounted its volumes.
        let has_sandbox = holds(pod, "PodReadyToStartContainers").is_some();
        if has_sandbox || !list(pod, "/spec/volumes").iter().any(mounts_config) {
            return Vec::new();
        }
        let mut missing: Vec<Finding> = Vec::new();
        for event in self.world.failed_mounts(namespace(pod), uid(pod)).unwrap_or_default() {
            let at = told_at(event);
            let repeated = at.and_then(|at| at.checked_add(REPEATED_WITHIN).ok());
            if repeated.is_none_or(|until| until < self.world.now) {
                continue;
            }
            for (kind, object) in unmounted(pod, text(event, "/message")) {
                let found = Object::of(&kind.kind, namespace(pod), &object);
                // It may have been created after the event.
                let is_here = matches!(self.world.get(kind, namespace(pod), &object), Seen::Here(_));
                let names_a_key = text(event, "/message").contains(NO_SUCH_KEY);
                if (is_here && !names_a_key) || missing.iter().any(|known| known.cause.object == found) {
                    continue;
                }
                let finding = Finding::new(Code::ConfigMissing, found, text(event, "/message"))
                    .since(time(pod, "/metadata/creationTimestamp"))
                    .advice(format!(
                        "Create {} {object} in namespace {} with all that the pod mounts of it: its kubelet then starts the pod by itself",
                        kind.kind,
                        namespace(pod)
                    ));
                missing.push(finding);
            }
        }
        missing
    }
}

/// Whether a volume mounts ConfigMaps or Secrets. The projected token volume that every pod has does not count.
pub(crate) fn mounts_config(volume: &Value) -> bool {
    let projects = |source: &Value| {
        source.get("secret").is_some() || !matches!(text(source, "/configMap/name"), "" | ROOT_CA)
    };
    volume.get("configMap").is_some()
        || volume.get("secret").is_some()
        || list(volume, "/projected/sources").iter().any(projects)
}

/// What a kubelet reports, after the volume's name, for a key that a volume mounts and that does not exist.
const NO_SUCH_KEY: &str = "references non-existent";

/// The ConfigMaps and Secrets that a kubelet could not mount, parsed from its event, such as `MountVolume.SetUp failed
/// for volume "v" : secret "token" not found`. For a missing key, the event names only the volume.
fn unmounted(pod: &Value, says: &str) -> Vec<(&'static Kind, String)> {
    let named = |kind: &'static Kind, before: &str| {
        let parts = says.split(before).skip(1);
        let names = parts.filter_map(|part| part.split_once("\" not found").map(|(name, _)| name.to_owned()));
        names.filter(|name| !name.contains('"')).map(|name| (kind, name)).collect::<Vec<_>>()
    };
    let mut all = named(&SECRET, "secret \"");
    all.extend(named(&CONFIG_MAP, "configmap \""));
    if says.contains(NO_SUCH_KEY)
        && let Some(volume) = between(says, "for volume \"", "\"")
        && let Some(volume) = list(pod, "/spec/volumes").iter().find(|one| text(one, "/name") == volume)
    {
        let of = [(&CONFIG_MAP, "/configMap/name"), (&SECRET, "/secret/secretName")];
        let sources = of.iter().map(|(kind, path)| (*kind, text(volume, path).to_owned()));
        all.extend(sources.filter(|(_, name)| !name.is_empty()));
    }
    all
}

/// A missing key, ConfigMap or Secret, parsed from a kubelet's message such as `couldn't find key PORT in ConfigMap
/// team-a/settings` or `secret "token" not found`.
fn key_missing(pod: &Value, says: &str) -> Option<Finding> {
    let kind = match says.to_lowercase() {
        low if low.contains("configmap") => &CONFIG_MAP,
        low if low.contains("secret") => &SECRET,
        _ => return None,
    };
    let quoted = says.split('"').nth(1);
    let by_path = says.rsplit_once('/').map(|(_, name)| name);
    let object = Object::of(&kind.kind, namespace(pod), quoted.or(by_path)?.trim());
    let finding = Finding::new(Code::ConfigMissing, object, says)
        .since(time(pod, "/metadata/creationTimestamp"))
        .advice("Add what the message names: its kubelet then starts the pod by itself");
    Some(finding)
}

fn failed(pod: &Value, done: bool) -> Finding {
    let (reason, message) = (text(pod, "/status/reason"), text(pod, "/status/message"));
    let ended = list(pod, "/status/containerStatuses").iter().find_map(|status| {
        let code = number(status, "/state/terminated/exitCode").filter(|code| *code != 0)?;
        Some((
            format!("container {} ended with exit code {code}", text(status, "/name")),
            time(status, "/state/terminated/finishedAt"),
        ))
    });
    let (told, at) = match ended {
        _ if !reason.is_empty() => (format!("{reason}: {message}"), None),
        Some((told, at)) => (told, at),
        None => ("nobody says why".to_owned(), None),
    };
    let me = named("Pod", pod);
    let again = match controller(pod) {
        Some(_) if done => "Nothing needs to be done here: its Job is complete".to_owned(),
        Some(_) => "Nothing needs to be done here: its owner replaces it".to_owned(),
        None => format!("Create pod {} anew: nobody owns it, so nobody replaces it", name(pod)),
    };
    Finding::new(Code::PodFailed, me.clone(), format!("pod {} has failed: {told}", name(pod)))
        .since(at)
        .advice(again)
        .waiting(me)
}

/// A pod that only finalizers keep.
fn held(pod: &Value, me: &Object, finalizers: &[&str]) -> Finding {
    let (kept, foreign): (Vec<&str>, Vec<&str>) =
        finalizers.iter().partition(|finalizer| TRACKING.contains(finalizer));
    let ended = has_ended(pod);
    let how = if ended { "has ended" } else { "was force deleted" };
    let finding = Finding::new(
        Code::FinalizerHolds,
        me.clone(),
        format!("pod {} {how}, and is held by {}", name(pod), finalizers.join(", ")),
    );
    if foreign.is_empty() {
        return finding.advice(
            "Look at the controller of its Job: it takes its finalizer off when it has counted the pod",
        );
    }
    let whose = finding
        .advice(format!("Look at whoever put {} there: it should take it off by itself", foreign.join(", ")));
    let left = serde_json::json!({"metadata": {"finalizers": if kept.is_empty() { Value::Null } else { kept.into() }}});
    let risk =
        if ended { "" } else { " (nobody saw it end: if its machine still runs, its work may run twice)" };
    whose.remedy(Remedy::command(
        format!("Take the finalizer off, if whoever put it there is gone{risk}"),
        format!("kubectl patch pod {} -n {} --type=merge -p '{left}'", name(pod), namespace(pod)),
    ))
}

fn by_its_containers(pod: &Value) -> Option<Finding> {
    let me = named("Pod", pod);
    let statuses =
        list(pod, "/status/initContainerStatuses").iter().chain(list(pod, "/status/containerStatuses"));
    let statuses: Vec<&Value> = statuses.collect();
    let logs = |container: &str, previous: &str| {
        format!("kubectl logs {} -n {} -c {container}{previous}", name(pod), namespace(pod))
    };
    for status in &statuses {
        let (container, reason) = (text(status, "/name"), text(status, "/state/waiting/reason"));
        if matches!(
            reason,
            "ImagePullBackOff"
                | "ErrImagePull"
                | "InvalidImageName"
                | "ErrImageNeverPull"
                | "ImageInspectError"
                | "RegistryUnavailable"
        ) {
            let image = text(status, "/image");
            let message = format!(
                "image {image} of container {container} cannot be pulled: {reason}: {}",
                text(status, "/state/waiting/message")
            );
            let finding = Finding::new(Code::ImagePullFailed, me.clone(), message.trim_end_matches(": "))
                .since(began(pod))
                .advice(format!(
                    "Correct the image {image} in what makes the pod, or give the node access to its registry"
                ));
            return Some(finding);
        }
    }
    for status in &statuses {
        let (container, restarts) = (text(status, "/name"), number(status, "/restartCount").unwrap_or(0));
        let waits = text(status, "/state/waiting/reason") == "CrashLoopBackOff";
        let ended = status.pointer("/lastState/terminated").or_else(|| status.pointer("/state/terminated"));
        let failed = ended.is_some_and(|ended| number(ended, "/exitCode") != Some(0));
        if waits || (restarts > 0 && failed && !is_true(status, "/ready")) {
            let how = match ended.and_then(|ended| number(ended, "/exitCode")) {
                Some(code) => format!(", last with exit code {code}"),
                None => String::new(),
            };
            let message = format!("container {container} of pod {} ended {restarts} times{how}", name(pod));
            let finding = Finding::new(Code::CrashLooping, me.clone(), message)
                .since(ended.and_then(|ended| time(ended, "/finishedAt")).or_else(|| began(pod)))
                .remedy(Remedy::command("Read what it said before it ended", logs(container, " --previous")));
            return Some(finding);
        }
    }
    for status in &statuses {
        let (container, reason) = (text(status, "/name"), text(status, "/state/waiting/reason"));
        if reason.ends_with("Error") {
            let says = text(status, "/state/waiting/message");
            let message =
                format!("container {container} of pod {} cannot start: {reason}: {says}", name(pod));
            let finding = Finding::new(Code::StartFailed, me, message.trim_end_matches(": "))
                .since(began(pod))
                .advice("Change what the kubelet names, in what makes the pod");
            return Some(finding);
        }
    }
    let running = text(pod, "/status/phase") == "Running";
    let not_ready = statuses
        .iter()
        .find(|status| !is_true(status, "/ready") && status.pointer("/state/running").is_some());
    if let (true, Some(status)) = (running, not_ready) {
        let container = text(status, "/name");
        let message =
            format!("container {container} of pod {} runs, and is not ready: its probes fail", name(pod));
        let at = condition(pod, "Ready").and_then(since);
        let finding = Finding::new(Code::NotReady, me, message)
            .since(at)
            .remedy(Remedy::command("Read what it says", logs(container, "")));
        return Some(finding);
    }
    None
}

fn starting(pod: &Value) -> Finding {
    let message = match text(pod, "/status/phase") {
        "Running" => format!("pod {} runs, and its kubelet has not called it ready", name(pod)),
        _ => format!(
            "pod {} is bound to node {}, and its kubelet has not started it yet",
            name(pod),
            text(pod, "/spec/nodeName")
        ),
    };
    Finding::new(Code::Starting, named("Pod", pod), message)
        .since(began(pod))
        .advice("Wait: its kubelet is starting it; images and volumes take their time")
}

fn began(pod: &Value) -> Option<jiff::Timestamp> {
    holds(pod, "PodScheduled").and_then(since).or_else(|| time(pod, "/metadata/creationTimestamp"))
}

/// The ConfigMaps and Secrets that a pod requires.
fn needed(pod: &Value) -> Vec<(&'static Kind, String)> {
    let mut needed: Vec<(&'static Kind, String)> = Vec::new();
    let mut add = |kind: &'static Kind, from: Option<&Value>, field: &str| {
        let Some(from) = from.filter(|from| !is_true(from, "/optional")) else { return };
        let name = text(from, field).to_owned();
        if !name.is_empty() && !needed.contains(&(kind, name.clone())) {
            needed.push((kind, name));
        }
    };
    let containers = list(pod, "/spec/containers").iter().chain(list(pod, "/spec/initContainers"));
    for container in containers {
        for env in list(container, "/env") {
            add(&CONFIG_MAP, env.pointer("/valueFrom/configMapKeyRef"), "/name");
            add(&SECRET, env.pointer("/valueFrom/secretKeyRef"), "/name");
        }
        for from in list(container, "/envFrom") {
            add(&CONFIG_MAP, from.get("configMapRef"), "/name");
            add(&SECRET, from.get("secretRef"), "/name");
        }
    }
    for volume in list(pod, "/spec/volumes") {
        add(&CONFIG_MAP, volume.get("configMap"), "/name");
        add(&SECRET, volume.get("secret"), "/secretName");
        for source in list(volume, "/projected/sources") {
            // Every pod has this one. Kubernetes creates it in each namespace.
            let root = text(source, "/configMap/name") == ROOT_CA;
            add(&CONFIG_MAP, source.get("configMap").filter(|_| !root), "/name");
            add(&SECRET, source.get("secret"), "/name");
        }
    }
    needed
}
