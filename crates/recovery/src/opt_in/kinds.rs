//! The kinds of work that can opt in, and where their pod templates are.

use serde_json::Value;

use super::edit::Path;
use super::terms::{Consent, Problem};
use crate::appwrapper::podsets;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pod,
    Deployment,
    StatefulSet,
    Job,
    CronJob,
    JobSet,
    LeaderWorkerSet,
    TrainJob,
    PyTorchJob,
    RayJob,
    RayCluster,
    AppWrapper,
}

impl Kind {
    pub const ALL: [Self; 12] = [
        Self::Pod,
        Self::Deployment,
        Self::StatefulSet,
        Self::Job,
        Self::CronJob,
        Self::JobSet,
        Self::LeaderWorkerSet,
        Self::TrainJob,
        Self::PyTorchJob,
        Self::RayJob,
        Self::RayCluster,
        Self::AppWrapper,
    ];

    /// Its API group, the empty one for the core group, and its name.
    pub const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Pod => ("", "Pod"),
            Self::Deployment => ("apps", "Deployment"),
            Self::StatefulSet => ("apps", "StatefulSet"),
            Self::Job => ("batch", "Job"),
            Self::CronJob => ("batch", "CronJob"),
            Self::JobSet => ("jobset.x-k8s.io", "JobSet"),
            Self::LeaderWorkerSet => ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
            Self::TrainJob => ("trainer.kubeflow.org", "TrainJob"),
            Self::PyTorchJob => ("kubeflow.org", "PyTorchJob"),
            Self::RayJob => ("ray.io", "RayJob"),
            Self::RayCluster => ("ray.io", "RayCluster"),
            Self::AppWrapper => ("workload.codeflare.dev", "AppWrapper"),
        }
    }

    pub fn of(object: &Value) -> Option<Self> {
        let (group, name) = group_and_kind(object)?;
        Self::ALL.into_iter().find(|kind| kind.names() == (group, name))
    }

    /// The least that its controller needs to replace a pod on a lost node.
    pub const fn consent(self) -> Consent {
        match self {
            // A Job replaces a pod as soon as it is Failed.
            Self::Job | Self::CronJob => Consent::Terminate,
            // Their Jobs are deleted in the foreground, their pods keep their names, or their pods are replaced only
            // when they are gone. Nothing replaces a bare Pod, but its name is free for another.
            Self::Pod
            | Self::Deployment
            | Self::StatefulSet
            | Self::JobSet
            | Self::LeaderWorkerSet
            | Self::TrainJob
            | Self::PyTorchJob
            | Self::RayJob
            | Self::RayCluster
            | Self::AppWrapper => Consent::Delete,
        }
    }

    /// Whether its controller replaces a pod only after the old one has ended or is gone.
    pub(super) const fn waits_for_the_end(self) -> bool {
        match self {
            Self::Deployment => false,
            Self::Pod
            | Self::StatefulSet
            | Self::Job
            | Self::CronJob
            | Self::JobSet
            | Self::LeaderWorkerSet
            | Self::TrainJob
            | Self::PyTorchJob
            | Self::RayJob
            | Self::RayCluster
            | Self::AppWrapper => true,
        }
    }
}

/// The API group and the kind of an object.
pub(super) fn group_and_kind(object: &Value) -> Option<(&str, &str)> {
    let kind = object.get("kind")?.as_str()?;
    let version = object.get("apiVersion")?.as_str()?;
    Some((version.rsplit_once('/').map_or("", |(group, _)| group), kind))
}

/// A pod template in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    /// Where its `metadata` and `spec` are.
    pub(super) at: Path,
    /// What makes pods from it. None for a kind that an AppWrapper declares.
    pub(super) by: Option<Kind>,
    /// As `Kind.group`, the form of `atMostOne.owners`.
    pub(super) owner: String,
    /// The spec of the Job that it belongs to.
    pub(super) job: Option<Path>,
    /// The list of claims that each pod gets.
    pub(super) claims: Option<Path>,
}

impl Template {
    fn of(by: Kind, at: Path) -> Self {
        let (group, kind) = by.names();
        Self { at, by: Some(by), owner: full_kind(group, kind), job: None, claims: None }
    }

    pub(super) fn consent(&self) -> Consent {
        self.by.map_or(Consent::Delete, Kind::consent)
    }

    fn behind(self, prefix: &Path) -> Self {
        Self {
            at: self.at.behind(prefix),
            job: self.job.map(|path| path.behind(prefix)),
            claims: self.claims.map(|path| path.behind(prefix)),
            ..self
        }
    }
}

fn full_kind(group: &str, kind: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

/// The pod templates of an object that are there. Of a TrainJob, the patches of its runtime's pod templates.
pub(super) fn templates(kind: Kind, object: &Value) -> Result<Vec<Template>, Problem> {
    let root = Path::default();
    let spec = root.to(&["spec"]);
    let one = |at: Path| vec![Template::of(kind, at)];
    let of_job = |job: Path| Template { job: Some(job.clone()), ..Template::of(kind, job.to(&["template"])) };
    let found = match kind {
        Kind::Pod => one(root.clone()),
        Kind::Deployment => one(spec.to(&["template"])),
        Kind::StatefulSet => vec![Template {
            claims: Some(spec.to(&["volumeClaimTemplates"])),
            ..Template::of(kind, spec.to(&["template"]))
        }],
        Kind::Job => vec![of_job(spec.clone())],
        Kind::CronJob => vec![of_job(spec.to(&["jobTemplate", "spec"]))],
        Kind::JobSet => {
            let jobs = entries(object, &spec.to(&["replicatedJobs"]))?;
            jobs.iter().map(|job| of_job(job.to(&["template", "spec"]))).collect()
        }
        Kind::LeaderWorkerSet => {
            let both = spec.to(&["leaderWorkerTemplate"]);
            let made = |field| Template {
                claims: Some(both.to(&["volumeClaimTemplates"])),
                ..Template::of(kind, both.to(&[field]))
            };
            vec![made("leaderTemplate"), made("workerTemplate")]
        }
        Kind::TrainJob => {
            let mut found = Vec::new();
            for patch in entries(object, &spec.to(&["runtimePatches"]))? {
                let jobs = patch.to(&["trainingRuntimeSpec", "template", "spec", "replicatedJobs"]);
                let jobs = entries(object, &jobs)?;
                found.extend(jobs.iter().map(|job| job.to(&["template", "spec", "template"])));
            }
            // The former name of these patches.
            found.extend(entries(object, &spec.to(&["podTemplateOverrides"]))?);
            found.into_iter().map(|at| Template::of(kind, at)).collect()
        }
        Kind::PyTorchJob => {
            let roles = spec.to(&["pytorchReplicaSpecs"]);
            let names = fields(object, &roles)?.into_iter();
            names.map(|role| Template::of(kind, roles.to(&[role.as_str(), "template"]))).collect()
        }
        Kind::RayCluster => ray(kind, object, &spec)?,
        Kind::RayJob => {
            let mut found = ray(kind, object, &spec.to(&["rayClusterSpec"]))?;
            found.push(Template::of(kind, spec.to(&["submitterPodTemplate"])));
            found
        }
        Kind::AppWrapper => {
            let mut found = Vec::new();
            for component in entries(object, &spec.to(&["components"]))? {
                found.extend(of_component(object, &component)?);
            }
            found
        }
    };
    let mut there = Vec::new();
    for template in found {
        match template.at.of(object) {
            Some(Value::Object(_)) => there.push(template),
            Some(other) => return Err(Problem::wrong(&template.at, other, "it must be a pod template")),
            None => {}
        }
    }
    Ok(there)
}

fn ray(kind: Kind, object: &Value, cluster: &Path) -> Result<Vec<Template>, Problem> {
    let groups = entries(object, &cluster.to(&["workerGroupSpecs"]))?;
    let all = [cluster.to(&["headGroupSpec"])].into_iter().chain(groups);
    Ok(all.map(|group| Template::of(kind, group.to(&["template"]))).collect())
}

/// The pod templates of a component: those of its kind, or those that it declares.
fn of_component(object: &Value, component: &Path) -> Result<Vec<Template>, Problem> {
    let at = component.to(&["template"]);
    let Some(inner) = at.of(object) else { return Ok(Vec::new()) };
    if let Some(kind) = Kind::of(inner) {
        let found = templates(kind, inner).map_err(|problem| problem.behind(&at))?;
        return Ok(found.into_iter().map(|template| template.behind(&at)).collect());
    }
    let declared = component.of(object).map(podsets::declared);
    let declared = declared.and_then(Result::ok).unwrap_or_default();
    let paths = declared.iter().filter_map(|set| podset_path(&set.path));
    let owner = group_and_kind(inner).map(|(group, kind)| full_kind(group, kind)).unwrap_or_default();
    let made = |path: Path| Template {
        at: path.behind(&at),
        by: None,
        owner: owner.clone(),
        job: None,
        claims: None,
    };
    Ok(paths.map(made).collect())
}

/// The path of a PodSet, such as `template.spec.groups[0].template`, from the component's template.
fn podset_path(text: &str) -> Option<Path> {
    let mut path = Path::default();
    for part in text.strip_prefix("template")?.split('.') {
        let (field, indexes) = part.split_once('[').map_or((part, None), |(field, rest)| (field, Some(rest)));
        if !field.is_empty() {
            path = path.to(&[field]);
        }
        for index in indexes.into_iter().flat_map(|rest| rest.split('[')) {
            path = path.index(index.strip_suffix(']')?.parse().ok()?);
        }
    }
    Some(path)
}

/// The paths of the entries of a list; none if it is absent.
pub(super) fn entries(object: &Value, list: &Path) -> Result<Vec<Path>, Problem> {
    match list.of(object) {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok((0..items.len()).map(|index| list.index(index)).collect()),
        Some(other) => Err(Problem::wrong(list, other, "it must be a list")),
    }
}

fn fields(object: &Value, map: &Path) -> Result<Vec<String>, Problem> {
    match map.of(object) {
        None => Ok(Vec::new()),
        Some(Value::Object(fields)) => Ok(fields.keys().cloned().collect()),
        Some(other) => Err(Problem::wrong(map, other, "it must be an object")),
    }
}
