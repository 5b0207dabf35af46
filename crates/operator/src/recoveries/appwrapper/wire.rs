//! AppWrappers, their components, pods and nodes as the API sends them, and the fields that are kept.

mod components;
mod nodes;
mod pods;

pub(super) use self::{
    components::{Components, answered, found},
    pods::{LabelledPods, PodWire},
};
pub(crate) use self::{nodes::SeenNode, pods::SeenPod};

use std::collections::BTreeMap;

use jiff::Timestamp;
use salvor_api::{
    config::Configuration,
    names::appwrapper::{FINALIZER, conditions::RESOURCES_DEPLOYED},
};
use salvor_recovery::{
    appwrapper::{
        Annotations, AppWrapperRef, AppWrapperStatus, Comparison, Phase,
        admission::{
            AdmissionPolicy, Answer, Operation, Refusal, Request, User, refusal_without_stamp,
            refusal_without_webhook, validate,
        },
        admitted::compare,
        bounds::Size,
        inject::{self, Component, InjectionPolicy, Owner},
        podsets::{FieldError, PodSet, TemplateKind, pod_sets},
        stamp::{self, Claim, Unstamped},
        status::ComponentStatus,
    },
    ids::{ResourceVersion, Uid},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use tokio::time::Instant;

use crate::{
    client::{discovery::Kind, revision::Revision, wire::Meta},
    watch_set::watch::{Identified, Project},
    webhooks::Keyring,
};

/// Limit on the characters of a refusal that are kept.
const LONGEST_REFUSAL: usize = 1024;

/// The parts of the configuration that decide which AppWrappers run, and what is created for them.
#[derive(Debug)]
pub(super) struct Rules {
    admission: AdmissionPolicy,
    injection: InjectionPolicy,
    authors: Authors,
}

/// The user whose permissions decide what may be created.
#[derive(Debug)]
enum Authors {
    /// There are no webhooks, as in a dry run, so the author of an AppWrapper is unknown.
    Unknown,
    /// The administrator disabled the access reviews.
    Unasked,
    /// The authors that stamps name. Without a keyring, every matching stamp is trusted: `salvor explain` has no keys.
    Stamped(Option<Keyring>),
}

impl Rules {
    /// The rules of a controller that trusts stamps signed with these keys.
    pub(super) fn new(configuration: &Configuration, keyring: &Keyring) -> Self {
        Self::believing(configuration, Some(keyring.clone()))
    }

    /// The rules for a reader without keys, such as `salvor explain`.
    pub(super) fn without_keys(configuration: &Configuration) -> Self {
        Self::believing(configuration, None)
    }

    fn believing(configuration: &Configuration, keyring: Option<Keyring>) -> Self {
        let settings = &configuration.appwrapper;
        let authors = if !configuration.webhooks.enabled || configuration.dry_run {
            Authors::Unknown
        } else if settings.user_rbac_admission_check {
            Authors::Stamped(keyring)
        } else {
            Authors::Unasked
        };
        let admission = AdmissionPolicy::new(settings);
        Self { admission, injection: InjectionPolicy::new(settings), authors }
    }

    /// Whether objects of this kind may be created, and therefore read.
    pub(super) fn wraps(&self, kind: &Kind) -> bool {
        self.admission.kinds.iter().any(|wrapped| wrapped.is(&kind.group, &kind.kind))
    }

    /// Why nothing may be created for an AppWrapper.
    fn refusal(&self, owner: &AppWrapperRef, components: &[Value]) -> Option<String> {
        let object = json!({
            "metadata": {"namespace": owner.namespace, "name": owner.name},
            "spec": {"components": components},
        });
        let refusal = match &self.authors {
            Authors::Unknown => refusal_without_webhook(&object, &self.admission),
            Authors::Unasked | Authors::Stamped(_) => match self.questions(&object, &User::default()) {
                Answer::Refused(refusal) => Some(refusal),
                Answer::Allowed | Answer::Ask(_) => None,
            },
        };
        refusal.map(|refusal| brief(&refusal))
    }

    /// The access reviews to make about a user before the components of an AppWrapper are created.
    pub(super) fn questions(&self, object: &Value, user: &User) -> Answer {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        validate(&Request { operation: Operation::Create, namespace, object, user }, &self.admission)
    }

    /// Who wrote an AppWrapper, as its stamp claims.
    fn written(&self, object: &Value) -> Written {
        match &self.authors {
            Authors::Unknown | Authors::Unasked => return Written::Unasked,
            Authors::Stamped(_) => {}
        }
        let refusal = |why: &Unstamped| {
            refusal_without_stamp(object, &self.admission, why).map(|refusal| brief(&refusal))
        };
        match stamp::read(object) {
            Ok(claim) => Written::Claimed { claim: Box::new(claim), if_forged: refusal(&Unstamped::Forged) },
            Err(why) => Written::Unstamped { refusal: refusal(&why) },
        }
    }

    /// True if the keys were read since then. If not, the Secret is read again soon.
    pub(super) fn keys_were_read_since(&self, at: Instant) -> bool {
        match &self.authors {
            Authors::Stamped(Some(keyring)) => keyring.was_read_since(at),
            Authors::Unknown | Authors::Unasked | Authors::Stamped(None) => true,
        }
    }

    /// Who wrote an AppWrapper; `None` while the keys are unknown.
    pub(super) fn author(&self, claim: &Claim) -> Option<Result<User, Unstamped>> {
        match &self.authors {
            Authors::Stamped(Some(keyring)) => Some(claim.author(&keyring.keys()?).cloned()),
            Authors::Unknown | Authors::Unasked | Authors::Stamped(None) => Some(Ok(User::default())),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Written {
    /// It does not matter: nothing is about to be created, or no review is made.
    Unasked,
    /// The author of this stamp, if it is signed.
    Claimed {
        claim: Box<Claim>,
        /// Why nothing is created if it is not signed.
        if_forged: Option<String>,
    },
    Unstamped {
        /// Why nothing is created; `None` if the administrator allows its kinds anyway.
        refusal: Option<String>,
    },
}

fn brief(refusal: &Refusal) -> String {
    refusal.to_string().chars().take(LONGEST_REFUSAL).collect()
}

/// An AppWrapper as decoded. If it exceeds a bound and has nothing deployed, its components are skipped, because they
/// are never used.
#[derive(Deserialize, Debug)]
#[serde(try_from = "RawApp")]
pub(super) struct AppWire {
    uid: Uid,
    resource_version: ResourceVersion,
    /// The object without `managedFields`.
    pub(super) object: Value,
    /// The exceeded bound, if its components are skipped.
    excess: Option<String>,
}

/// The raw text of its parts.
#[derive(Deserialize)]
struct RawApp {
    metadata: BTreeMap<String, Box<RawValue>>,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

impl TryFrom<RawApp> for AppWire {
    type Error = serde_json::Error;

    fn try_from(RawApp { mut metadata, spec, status }: RawApp) -> Result<Self, serde_json::Error> {
        let read =
            |text: Option<Box<RawValue>>| text.map_or(Ok(Value::Null), |it| serde_json::from_str(it.get()));
        // It is as large as the rest of the object.
        metadata.remove("managedFields");
        let text =
            |field: &str| metadata.get(field).map_or(Ok(String::new()), |it| serde_json::from_str(it.get()));
        let (uid, resource_version) =
            (Uid::from(text("uid")?), ResourceVersion::from(text("resourceVersion")?));
        let metadata: Result<Map<String, Value>, _> = metadata
            .into_iter()
            .map(|(field, value)| Ok((field, serde_json::from_str(value.get())?)))
            .collect();
        let status = read(status)?;
        // One that was created before there were bounds is managed until its end.
        let excess = spec.as_deref().map(Size::of_spec).transpose()?.and_then(Size::excess);
        let excess = excess.filter(|_| !has_deployed(&status)).map(|excess| excess.to_string());
        let spec = match (&excess, spec) {
            (Some(_), Some(spec)) => serde_json::to_value(serde_json::from_str::<Spec>(spec.get())?)?,
            (_, spec) => read(spec)?,
        };
        let object = json!({"metadata": metadata?, "spec": spec, "status": status});
        Ok(Self { uid, resource_version, object, excess })
    }
}

/// True if any of its components may exist.
fn has_deployed(status: &Value) -> bool {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == RESOURCES_DEPLOYED && it["status"] == "True")
}

impl Identified for AppWire {
    fn uid(&self) -> &Uid {
        &self.uid
    }

    fn resource_version(&self) -> &ResourceVersion {
        &self.resource_version
    }
}

#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(super) appwrapper: AppWrapperRef,
    pub(super) resource_version: ResourceVersion,
    pub(super) created: Timestamp,
    pub(super) deleting: bool,
    pub(super) has_finalizer: bool,
    pub(super) other_finalizers: Vec<String>,
    pub(super) suspend: bool,
    pub(super) managed_by: Option<String>,
    pub(super) annotations: Annotations,
    pub(super) refused: Option<String>,
    pub(super) written: Written,
    pub(super) admitted: Comparison,
    /// Its components; if they were changed since admission, those that were created.
    pub(super) parts: Vec<Part>,
    pub(super) status: AppWrapperStatus,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) pod_sets: Vec<PodSet>,
    /// Why it can never be created.
    pub(super) defect: Option<String>,
    /// True if it has a Job that does not replace a pod before the pod ends. Once the Job is gone, this is the only
    /// record of that.
    pub(super) awaits_ends: bool,
}

#[derive(Deserialize, Serialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    suspend: bool,
    managed_by: Option<String>,
}

impl App {
    pub(super) fn read(wire: &AppWire, rules: &Rules) -> Result<Self, serde_json::Error> {
        let AppWire { object, excess, .. } = wire;
        let metadata = Meta::<Map<String, Value>>::deserialize(&object["metadata"])?;
        let spec = Option::<Spec>::deserialize(&object["spec"])?.unwrap_or_default();
        // An undecodable status must not be treated as that of a new AppWrapper.
        let status = Option::<AppWrapperStatus>::deserialize(&object["status"]);
        let status = status.map(Option::unwrap_or_default).unwrap_or_else(|error| AppWrapperStatus {
            phase: Phase::Unknown(format!("unreadable: {error}")),
            ..AppWrapperStatus::default()
        });
        let appwrapper =
            AppWrapperRef { uid: metadata.uid, namespace: metadata.namespace, name: metadata.name };
        let components = components(object);
        let about_to_create = match &status.phase {
            Phase::Empty | Phase::Suspended | Phase::Resuming | Phase::Resetting => true,
            Phase::Running
            | Phase::Suspending
            | Phase::Succeeded
            | Phase::Failed
            | Phase::Terminating
            | Phase::Unknown(_) => false,
        };
        // Without its components it cannot be compared, and nothing is created for it.
        let admitted = if excess.is_some() { Comparison::Same } else { compare(object, &status) };
        let is_changed = matches!(admitted, Comparison::Changed(_));
        let is_asked = about_to_create && !is_changed && excess.is_none();
        let refused =
            is_asked.then(|| rules.refusal(&appwrapper, components)).flatten().or_else(|| excess.clone());
        let checks = is_asked && refused.is_none();
        let written = if checks { rules.written(object) } else { Written::Unasked };
        let reading = Reading { of: &appwrapper, attempt: ATTEMPT, rules, checks };
        let parts = if is_changed && !status.component_status.is_empty() {
            let created = status.component_status.iter().enumerate();
            created.map(|(index, created)| reading.created(created, components.get(index), index)).collect()
        } else {
            components.iter().enumerate().map(|(index, component)| reading.part(component, index)).collect()
        };
        let annotations = &metadata.annotations;
        let (ours, other_finalizers): (Vec<_>, Vec<_>) =
            metadata.finalizers.into_iter().partition(|finalizer| finalizer == FINALIZER);
        Ok(Self {
            parts,
            refused,
            written,
            admitted,
            resource_version: metadata.resource_version,
            created: metadata.creation_timestamp.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            has_finalizer: !ours.is_empty(),
            other_finalizers,
            suspend: spec.suspend,
            managed_by: spec.managed_by,
            annotations: Annotations::pick(|key| annotations.get(key)?.as_str()),
            status,
            appwrapper,
        })
    }

    /// As `read`, from the API's text.
    pub(super) fn parse(text: &str, rules: &Rules) -> Result<(Self, Value), serde_json::Error> {
        let wire: AppWire = serde_json::from_str(text)?;
        Ok((Self::read(&wire, rules)?, wire.object))
    }

    pub(super) fn revision(&self) -> Revision {
        self.resource_version.revision()
    }

    /// The name under which a component is looked up: the recorded one while it is in use, else the one to create it
    /// with.
    pub(super) fn name_of(&self, index: usize) -> &str {
        let recorded = self.status.component_status.get(index).and_then(|it| it.name_in_use());
        recorded.unwrap_or_else(|| self.parts.get(index).map_or("", |part| &part.name))
    }

    /// The object to create for a component; `None` for one that was changed since admission.
    pub(super) fn body(&self, index: usize, object: &Value, rules: &Rules) -> Option<String> {
        if matches!(self.admitted, Comparison::Changed(_)) {
            return None;
        }
        let component = components(object).get(index)?;
        let recorded = self.status.component_status.get(index).map(|it| it.pod_sets.as_slice());
        let inferred = &self.parts.get(index)?.pod_sets;
        // Kueue's additions are in the order of the recorded pod sets.
        let pod_sets = recorded.filter(|sets| sets.len() == inferred.len()).unwrap_or(inferred);
        let component = Component { spec: component, index, pod_sets, attempt: 0 };
        let mut body = inject::object(component, owner(&self.appwrapper), &rules.injection).ok()?;
        body["metadata"]["name"] = self.name_of(index).into();
        Some(body.to_string())
    }
}

fn owner(AppWrapperRef { uid, namespace, name }: &AppWrapperRef) -> Owner<'_> {
    Owner { namespace, name, uid }
}

fn components(object: &Value) -> &[Value] {
    object["spec"]["components"].as_array().map_or(&[], Vec::as_slice)
}

/// The attempt number in generated names: the same for all. A late creation then collides with the object of the next
/// attempt and is refused; under its own name it would be a duplicate.
const ATTEMPT: u32 = 0;

struct Reading<'a> {
    of: &'a AppWrapperRef,
    attempt: u32,
    rules: &'a Rules,
    /// Whether to check that they can be created.
    checks: bool,
}

impl Reading<'_> {
    /// A component as it was created. `component` is what the spec now has in its place.
    fn created(&self, created: &ComponentStatus, component: Option<&Value>, index: usize) -> Part {
        let (group, version) = created.api_version.rsplit_once('/').unwrap_or(("", &created.api_version));
        if created.kind.is_empty() || created.name.is_empty() {
            // Its identity is unknown: nothing of it was created, or another controller has not recorded it.
            return self.part(component.unwrap_or(&Value::Null), index);
        }
        Part {
            kind: Kind { group: group.into(), version: version.into(), kind: created.kind.clone() },
            name: created.name.clone(),
            pod_sets: created.pod_sets.clone(),
            defect: None,
            awaits_ends: component.is_some_and(|component| awaits_ends(&component["template"])),
        }
    }

    fn part(&self, component: &Value, index: usize) -> Part {
        self.read(component, index).unwrap_or_else(|error| Part {
            kind: Kind { group: String::new(), version: String::new(), kind: String::new() },
            name: String::new(),
            pod_sets: Vec::new(),
            awaits_ends: awaits_ends(&component["template"]),
            defect: Some(error.within(&format!("spec.components[{index}]")).to_string()),
        })
    }

    fn read(&self, component: &Value, index: usize) -> Result<Part, FieldError> {
        let Self { of, attempt, rules, checks } = *self;
        let template = &component["template"];
        let kind = TemplateKind::of(template)?;
        let name = inject::object_name(template, index, attempt, owner(of))?;
        let pod_sets = pod_sets(component)?;
        let creation = || {
            let component = Component { spec: component, index, pod_sets: &pod_sets, attempt };
            inject::object(component, owner(of), &rules.injection).err()
        };
        let defect = if checks { creation() } else { None };
        Ok(Part {
            kind: Kind { group: kind.group.into(), version: kind.version.into(), kind: kind.kind.into() },
            name,
            pod_sets,
            awaits_ends: awaits_ends(template),
            defect: defect.map(|error| error.within(&format!("spec.components[{index}]")).to_string()),
        })
    }
}

/// True if a template contains, at any depth, a Job spec whose `podReplacementPolicy` is `Failed`. That is also the
/// default beside a `podFailurePolicy`.
fn awaits_ends(template: &Value) -> bool {
    match template {
        Value::Object(fields) => {
            let replaces = fields.get("podReplacementPolicy").filter(|it| !it.is_null());
            let is_default = || fields.get("podFailurePolicy").is_some_and(|it| !it.is_null());
            replaces.map_or_else(is_default, |it| it == "Failed") || fields.values().any(awaits_ends)
        }
        Value::Array(items) => items.iter().any(awaits_ends),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

impl Part {
    /// True if its template could not be decoded.
    pub(super) fn is_unreadable(&self) -> bool {
        self.kind.kind.is_empty()
    }
}

/// The AppWrappers that we manage.
pub(super) struct OurAppWrappers(pub(super) std::sync::Arc<Rules>);

impl Project for OurAppWrappers {
    type Wire = AppWire;
    type Kept = App;

    fn keep(&self, wire: AppWire) -> Option<App> {
        let app = App::read(&wire, &self.0)
            .inspect_err(|error| tracing::warn!(%error, "object skipped: unreadable"))
            .ok()?;
        let foreign = |name: &str| name != salvor_api::names::appwrapper::CONTROLLER_NAME;
        (!app.managed_by.as_deref().is_some_and(foreign)).then_some(app)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_tells_whether_its_job_awaits_the_end_of_its_pods() {
        for (template, expected) in [
            (json!({"kind": "Job", "spec": {}}), false),
            (json!({"kind": "Job", "spec": {"podReplacementPolicy": "Failed"}}), true),
            (json!({"kind": "Job", "spec": {"podReplacementPolicy": "TerminatingOrFailed"}}), false),
            (json!({"kind": "Job", "spec": {"podFailurePolicy": {"rules": []}}}), true),
            (json!({"kind": "Job", "spec": {"podFailurePolicy": null, "podReplacementPolicy": null}}), false),
            (
                json!({"kind": "JobSet", "spec": {"replicatedJobs": [
                    {"template": {"spec": {}}}, {"template": {"spec": {"podReplacementPolicy": "Failed"}}},
                ]}}),
                true,
            ),
        ] {
            assert_eq!(awaits_ends(&template), expected, "{template}");
        }
    }
}
