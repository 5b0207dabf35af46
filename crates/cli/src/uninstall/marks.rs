//! The marks that Salvor leaves on objects, and what happens to each of them when Salvor is removed.

use salvor_api::names::{annotations, appwrapper, job, node_conditions, repair, taints};
use salvor_recovery::objects::Taint;
use salvor_recovery::taints::Taints;
use serde_json::{Map, Value, json};

/// A kind of object that may carry a mark of Salvor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Node,
    Pod,
    Job,
    AppWrapper,
    NodePool,
    NodeClaim,
}

impl Carrier {
    /// All kinds. Pods come after the Jobs that own them.
    pub(super) const ALL: [Self; 6] =
        [Self::Job, Self::AppWrapper, Self::Pod, Self::Node, Self::NodePool, Self::NodeClaim];

    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Job => "Job",
            Self::AppWrapper => appwrapper::KIND,
            Self::NodePool => "NodePool",
            Self::NodeClaim => "NodeClaim",
        }
    }

    /// The path of its API group and its plural name.
    const fn api(self) -> (&'static str, &'static str) {
        match self {
            Self::Node => ("/api/v1", "nodes"),
            Self::Pod => ("/api/v1", "pods"),
            Self::Job => ("/apis/batch/v1", "jobs"),
            Self::AppWrapper => ("/apis/workload.codeflare.dev/v1beta2", appwrapper::PLURAL),
            Self::NodePool => ("/apis/karpenter.sh/v1", "nodepools"),
            Self::NodeClaim => ("/apis/karpenter.sh/v1", "nodeclaims"),
        }
    }

    pub(super) fn all(self) -> String {
        let (api, plural) = self.api();
        format!("{api}/{plural}")
    }

    pub(super) fn one(self, object: &Value) -> String {
        let (api, plural) = self.api();
        let name = text(object, "/metadata/name");
        match object.pointer("/metadata/namespace").and_then(Value::as_str) {
            Some(namespace) => format!("{api}/namespaces/{namespace}/{plural}/{name}"),
            None => format!("{api}/{plural}/{name}"),
        }
    }
}

/// Where on an object a mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Annotation,
    Finalizer,
    /// Every taint with this key.
    Taint,
    /// The out-of-service taint in the form that Salvor adds, if the annotation of Salvor is present. Others add that
    /// taint, too.
    OurOutOfService,
    Condition,
}

/// What happens to a name when Salvor is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is removed from objects of this kind.
    TakenOff(Carrier, Place),
    /// It is on the Lease of the leader election, which is deleted.
    GoesWithTheLease,
    /// It stays, for this reason.
    Stays(&'static str),
}

use Fate::{GoesWithTheLease, Stays, TakenOff};

const CONSENT: &str = "the owner of a workload wrote it, and it means nothing without Salvor";
const NO_MARK: &str = "it is on no object of others";
const NOT_OURS: &str = "others write it, and Salvor only reads it";

/// Every name that is a mark or looks like one. A name that ends with `/` stands for all names with this prefix. A test
/// checks that no name of `names.rs` is missing.
pub(super) const FATES: &[(&str, Fate)] = &[
    (annotations::OUT_OF_SERVICE_SINCE, TakenOff(Carrier::Node, Place::Annotation)),
    (annotations::OUT_OF_SERVICE_BOOT, TakenOff(Carrier::Node, Place::Annotation)),
    (annotations::EVICTION, TakenOff(Carrier::Node, Place::Annotation)),
    (annotations::EVICTION_ASKED, TakenOff(Carrier::Node, Place::Annotation)),
    (annotations::DESPITE_ZONE_OUTAGE, TakenOff(Carrier::Node, Place::Annotation)),
    (repair::annotations::PROGRESS, TakenOff(Carrier::Node, Place::Annotation)),
    (repair::annotations::REBOOT_REQUESTED, TakenOff(Carrier::Node, Place::Annotation)),
    (repair::annotations::REBOOT_DONE, TakenOff(Carrier::Node, Place::Annotation)),
    (repair::annotations::REPAIRS, TakenOff(Carrier::NodePool, Place::Annotation)),
    (repair::annotations::TERMINATION_BEFORE, TakenOff(Carrier::NodeClaim, Place::Annotation)),
    (job::USED_NAMES, TakenOff(Carrier::Job, Place::Annotation)),
    (annotations::BACKOFF_LIMIT_RAISED, TakenOff(Carrier::Job, Place::Annotation)),
    (job::TRACKING_FINALIZER, TakenOff(Carrier::Pod, Place::Finalizer)),
    (appwrapper::FINALIZER, TakenOff(Carrier::AppWrapper, Place::Finalizer)),
    (appwrapper::WRITTEN_BY, TakenOff(Carrier::AppWrapper, Place::Annotation)),
    (taints::FORCE_EVICTION, TakenOff(Carrier::Node, Place::Taint)),
    (taints::OUT_OF_SERVICE, TakenOff(Carrier::Node, Place::OurOutOfService)),
    (node_conditions::FORCE_EVICTION, TakenOff(Carrier::Node, Place::Condition)),
    (repair::CONDITION, TakenOff(Carrier::Node, Place::Condition)),
    (repair::REBOOT_CONDITION, TakenOff(Carrier::Node, Place::Condition)),
    (annotations::BRAKE, GoesWithTheLease),
    (annotations::BRAKE_UNREADABLE, GoesWithTheLease),
    (annotations::PAUSED, GoesWithTheLease),
    (annotations::PAUSED_ACKNOWLEDGED, GoesWithTheLease),
    (annotations::STATUS, GoesWithTheLease),
    (annotations::SAFE_TO_FORCEFULLY_TERMINATE, Stays(CONSENT)),
    (annotations::SAFE_TO_FORCEFULLY_DELETE, Stays(CONSENT)),
    (annotations::TERMINATION_GRACE_AFTER, Stays(CONSENT)),
    (annotations::EVICT_AFTER, Stays(CONSENT)),
    (repair::annotations::DO_NOT_REPAIR, Stays("a person wrote it, and it means nothing without Salvor")),
    (job::CONTROLLER_NAME, Stays("spec.managedBy of a Job cannot be changed")),
    (appwrapper::CONTROLLER_NAME, Stays("the owner of an AppWrapper wrote it")),
    (
        appwrapper::MEMBER_LABEL,
        Stays("it tells which pods belong to an AppWrapper, also to CodeFlare's controller"),
    ),
    (appwrapper::USER_LABEL, Stays("it tells who created an AppWrapper, also to CodeFlare's controller")),
    (appwrapper::USER_ID_LABEL, Stays("it tells who created an AppWrapper, also to CodeFlare's controller")),
    (appwrapper::QUEUE_LABEL, Stays(NOT_OURS)),
    (appwrapper::annotations::PREFIX, Stays("the owner of an AppWrapper wrote it")),
    (appwrapper::API_VERSION, Stays(NO_MARK)),
    (salvor_api::names::configuration::API_VERSION, Stays(NO_MARK)),
    // Users' tools read these names on pods of Jobs, and they mean the same with the built-in controller.
    ("batch.kubernetes.io/", Stays("Kubernetes' own names on the pods of Jobs")),
    (job::BUILT_IN_CONTROLLER, Stays(NOT_OURS)),
    (salvor_api::names::labels::EXCLUDE_DISRUPTION, Stays(NOT_OURS)),
    (taints::UNREACHABLE, Stays(NOT_OURS)),
    (taints::NOT_READY, Stays(NOT_OURS)),
    ("karpenter.sh/", Stays("Karpenter acts on it, and it goes with its NodeClaim")),
    ("cluster.x-k8s.io/", Stays("Cluster API acts on it, and it goes with its Machine")),
];

/// Everything to remove from one object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Release {
    /// Each mark, such as `annotation eviction.salvor.dev/progress`.
    pub(super) marks: Vec<String>,
    /// The merge patch of the object, without its preconditions.
    pub(super) object: Option<Value>,
    /// The merge patch of its status, without its preconditions.
    pub(super) status: Option<Value>,
}

/// What to remove from an object. `None` if it has no mark.
pub(super) fn release(carrier: Carrier, object: &Value) -> Option<Release> {
    let (mut marks, mut metadata, mut spec) = (Vec::new(), Map::new(), Map::new());
    let mut gone_annotations = Map::new();
    let list = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let (old_taints, old_finalizers) = (list("/spec/taints"), list("/metadata/finalizers"));
    let old_conditions = list("/status/conditions");
    let mut taints = Taints::of(object);
    let (mut finalizers, mut conditions) = (old_finalizers.clone(), old_conditions.clone());
    let annotation =
        |name: &str| object.pointer("/metadata/annotations").is_some_and(|all| all.get(name).is_some());
    for (name, fate) in FATES {
        let TakenOff(from, place) = fate else { continue };
        if *from != carrier {
            continue;
        }
        let (word, is_there) = match place {
            Place::Annotation => {
                let is_there = annotation(name);
                if is_there {
                    gone_annotations.insert((*name).to_owned(), Value::Null);
                }
                ("annotation", is_there)
            }
            Place::Finalizer => {
                finalizers.retain(|finalizer| finalizer != name);
                ("finalizer", old_finalizers.iter().any(|finalizer| finalizer == name))
            }
            Place::Taint => {
                taints = taints.without_key(name);
                ("taint", old_taints.iter().any(|taint| taint["key"] == *name))
            }
            Place::OurOutOfService => {
                let ours = out_of_service();
                let is_ours = |taint: &Value| {
                    taint["key"] == *name && taint["value"] == *ours.value && taint["effect"] == *ours.effect
                };
                let is_there =
                    annotation(annotations::OUT_OF_SERVICE_SINCE) && old_taints.iter().any(is_ours);
                if is_there {
                    taints = taints.without(&ours);
                }
                ("taint", is_there)
            }
            Place::Condition => {
                conditions.retain(|condition| condition["type"] != *name);
                ("condition", old_conditions.iter().any(|condition| condition["type"] == *name))
            }
        };
        if is_there {
            marks.push(format!("{word} {name}"));
        }
    }
    if !gone_annotations.is_empty() {
        metadata.insert("annotations".into(), Value::Object(gone_annotations));
    }
    if finalizers != old_finalizers {
        metadata.insert("finalizers".into(), json!(finalizers));
    }
    let taints = taints.into_list();
    if taints != old_taints {
        spec.insert("taints".into(), json!(taints));
    }
    let mut patch = Map::new();
    for (name, part) in [("metadata", metadata), ("spec", spec)] {
        if !part.is_empty() {
            patch.insert(name.into(), Value::Object(part));
        }
    }
    let object = (!patch.is_empty()).then_some(Value::Object(patch));
    let status = (conditions != old_conditions).then(|| json!({"status": {"conditions": conditions}}));
    (!marks.is_empty()).then_some(Release { marks, object, status })
}

fn out_of_service() -> Taint {
    Taint {
        key: taints::OUT_OF_SERVICE.into(),
        value: taints::OUT_OF_SERVICE_VALUE.into(),
        effect: taints::NO_EXECUTE.into(),
    }
}

/// Whether Salvor runs an AppWrapper: it wrote to it, or is configured to run AppWrappers. CodeFlare's controller uses
/// the same finalizer, which must not be removed from its AppWrappers.
pub(super) fn is_our_appwrapper(object: &Value, configured: bool) -> bool {
    let managed_by = object.pointer("/spec/managedBy").and_then(Value::as_str);
    let writers = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let written = writers.is_some_and(|all| all.iter().any(|entry| entry["manager"] == "salvor"));
    managed_by.is_none_or(|name| name == appwrapper::CONTROLLER_NAME) && (configured || written)
}

/// Whether a Job or AppWrapper has not ended and no other controller runs it.
pub(super) fn is_unfinished(carrier: Carrier, object: &Value) -> bool {
    if object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null()) {
        return false;
    }
    match carrier {
        Carrier::Job => {
            let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
            let over = |condition: &Value| {
                condition["status"] == "True"
                    && (condition["type"] == job::conditions::COMPLETE
                        || condition["type"] == job::conditions::FAILED)
            };
            object.pointer("/spec/managedBy").is_some_and(|name| name == job::CONTROLLER_NAME)
                && !conditions.is_some_and(|all| all.iter().any(over))
        }
        Carrier::AppWrapper => !matches!(text(object, "/status/phase"), "Succeeded" | "Failed"),
        Carrier::Node | Carrier::Pod | Carrier::NodePool | Carrier::NodeClaim => false,
    }
}

/// The text at a pointer. Empty if there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &str = include_str!("../../../api/src/names.rs");

    fn fate(name: &str) -> Option<Fate> {
        let of = |known: &str| known == name || (known.ends_with('/') && name.starts_with(known));
        FATES.iter().find(|(known, _)| of(known)).map(|(_, fate)| *fate)
    }

    /// Each constant of the file as module, name and value.
    fn constants() -> Vec<(String, String, String)> {
        let mut path: Vec<String> = Vec::new();
        let mut found = Vec::new();
        // A long value is on its own line.
        let joined = NAMES.replace("=\n", "= ");
        for line in joined.lines().map(str::trim) {
            if let Some(module) = line.strip_prefix("pub mod ") {
                path.push(module.trim_end_matches(" {").to_owned());
            } else if line == "}" {
                path.pop();
            } else if let Some(rest) = line.strip_prefix("pub const ") {
                let (name, value) = rest.split_once(": &str = ").unwrap();
                let value = value.trim().trim_start_matches('"').trim_end_matches("\";");
                found.push((path.join("::"), name.to_owned(), value.to_owned()));
            }
        }
        assert!(found.len() > 100, "{}", found.len());
        found
    }

    #[test]
    fn every_name_that_may_be_a_mark_has_a_fate() {
        for (module, name, value) in constants() {
            // Qualified names are annotations, labels, taints and finalizers. A path begins with a slash.
            let qualified = value.split_once('/').is_some_and(|(domain, _)| domain.contains('.'));
            let on_nodes = module == "node_conditions" || (module == "repair" && name.ends_with("CONDITION"));
            if qualified || on_nodes {
                let why = "say in FATES what `salvor uninstall` does with it";
                assert!(fate(&value).is_some(), "names::{module}::{name} = {value:?}: {why}");
            }
        }
        let known = |value: &str| constants().iter().any(|(_, _, known)| known.starts_with(value));
        for (name, _) in FATES {
            assert!(known(name), "{name} is no name of names.rs any more");
        }
        // All of Salvor's own names that are not on the Lease are removed, except those that people write.
        for (_, _, value) in constants() {
            let ours = value.contains("salvor.dev/") && !value.starts_with("config.");
            if let (true, Some(Stays(why))) = (ours, fate(&value)) {
                assert!(
                    [CONSENT, "a person wrote it, and it means nothing without Salvor"].contains(&why)
                        || value == job::CONTROLLER_NAME,
                    "{value}"
                );
            }
        }
    }

    #[test]
    fn all_marks_of_a_node_are_taken_off_and_nothing_else() {
        let theirs = json!({"key": "pool", "value": "gpu", "effect": "NoSchedule"});
        let node = json!({
            "metadata": {"name": "n", "annotations": {
                "zombie.salvor.dev/out-of-service-since": "x", "eviction.salvor.dev/progress": "{", "salvor.dev/do-not-repair": "true", "a": "b",
            }},
            "spec": {"taints": [
                theirs,
                {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"},
                {"key": "salvor.dev/force-eviction", "effect": "NoSchedule"},
                {"key": "salvor.dev/force-eviction", "value": "INC-1", "effect": "NoExecute"},
            ]},
            "status": {"conditions": [{"type": "Ready"}, {"type": "SalvorRepair"}, {"type": "NodeReboot"}, {"type": "ForceEviction"}]},
        });
        let release = release(Carrier::Node, &node).unwrap();
        assert_eq!(
            release.marks,
            [
                "annotation zombie.salvor.dev/out-of-service-since",
                "annotation eviction.salvor.dev/progress",
                "taint salvor.dev/force-eviction",
                "taint node.kubernetes.io/out-of-service",
                "condition ForceEviction",
                "condition SalvorRepair",
                "condition NodeReboot",
            ]
        );
        assert_eq!(
            release.object.unwrap(),
            json!({
                "metadata": {"annotations": {"zombie.salvor.dev/out-of-service-since": null, "eviction.salvor.dev/progress": null}},
                "spec": {"taints": [theirs]},
            })
        );
        assert_eq!(release.status.unwrap(), json!({"status": {"conditions": [{"type": "Ready"}]}}));
    }

    #[test]
    fn what_others_put_there_stays() {
        let out_of_service = json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"});
        let other_value =
            json!({"key": "node.kubernetes.io/out-of-service", "value": "mine", "effect": "NoExecute"});
        let ours = json!({"zombie.salvor.dev/out-of-service-since": "now"});
        let node = |annotations: &Value, taint: &Value| json!({"metadata": {"name": "n", "annotations": annotations}, "spec": {"taints": [taint]}});
        assert_eq!(release(Carrier::Node, &node(&json!({}), &out_of_service)), None);
        let marked = release(Carrier::Node, &node(&ours, &other_value)).unwrap();
        assert_eq!(marked.marks, ["annotation zombie.salvor.dev/out-of-service-since"]);
        assert!(marked.object.unwrap().get("spec").is_none());
        // Marks in other places, and fields of unexpected types.
        let pod = json!({"metadata": {"name": "p", "finalizers": ["a/b"], "annotations": {"eviction.salvor.dev/progress": "x"}}});
        assert_eq!(release(Carrier::Pod, &pod), None);
        let odd = json!({"metadata": {"finalizers": "x", "annotations": 1}, "spec": {"taints": {}}, "status": {"conditions": 2}});
        for carrier in Carrier::ALL {
            assert_eq!(release(carrier, &odd), None);
        }
    }

    #[test]
    fn a_finalizer_goes_and_the_others_stay() {
        let pod = json!({"metadata": {"name": "p", "finalizers": ["a/b", "job.salvor.dev/tracking", "c"]}});
        let release = release(Carrier::Pod, &pod).unwrap();
        assert_eq!(release.object.unwrap(), json!({"metadata": {"finalizers": ["a/b", "c"]}}));
        assert_eq!(
            (release.marks, release.status),
            (vec!["finalizer job.salvor.dev/tracking".to_owned()], None)
        );
    }

    #[test]
    fn an_appwrapper_is_ours_if_salvor_wrote_to_it_or_runs_them() {
        let by = |manager: &str, managed_by: Value| json!({"metadata": {"managedFields": [{"manager": "kubectl"}, {"manager": manager}]}, "spec": {"managedBy": managed_by}});
        let ours = "workload.codeflare.dev/appwrapper-controller";
        for (object, configured, expected) in [
            (by("salvor", Value::Null), false, true),
            (by("salvor", json!(ours)), false, true),
            (by("salvor", json!("kueue.x-k8s.io/multikueue")), true, false),
            (by("manager", Value::Null), false, false),
            (by("manager", Value::Null), true, true),
            (json!({}), false, false),
        ] {
            assert_eq!(is_our_appwrapper(&object, configured), expected, "{object}");
        }
    }

    #[test]
    fn only_jobs_of_salvors_that_have_not_ended_are_in_the_way() {
        let job = |name: &str, condition: &str| json!({"metadata": {}, "spec": {"managedBy": name}, "status": {"conditions": [{"type": condition, "status": "True"}]}});
        let ours = "salvor.dev/job-controller";
        assert!(is_unfinished(Carrier::Job, &job(ours, "Suspended")));
        assert!(is_unfinished(Carrier::Job, &json!({"spec": {"managedBy": ours}})));
        assert!(!is_unfinished(Carrier::Job, &job(ours, "Complete")));
        assert!(!is_unfinished(Carrier::Job, &job(ours, "Failed")));
        assert!(!is_unfinished(Carrier::Job, &job("kubernetes.io/job-controller", "Suspended")));
        let mut leaving = job(ours, "Suspended");
        leaving["metadata"]["deletionTimestamp"] = json!("2026-11-16T10:00:00Z");
        assert!(!is_unfinished(Carrier::Job, &leaving));
    }
}
