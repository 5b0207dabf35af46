//! Checks that the table of corrupted fields is complete. New fields in `names.rs`, in the status of a CRD or in a
//! Lease must be added to it, or be excused here.

use std::collections::BTreeSet;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use salvor_api::names::{annotations, appwrapper, job, labels, repair, taints};

use super::{Spot, stories};

/// Modules of `names.rs` with texts that Salvor writes and never interprets.
const ONLY_WRITTEN: [&str; 3] = ["reasons", "events", "configuration"];

/// Names that are not corrupted, and why.
const EXCUSED: &[(&str, &str)] = &[
    (annotations::CONSENT, "a value, not a place"),
    (
        annotations::BACKOFF_LIMIT_RAISED,
        "read only while a Job's pods are lost, and unreadable it holds them: see zombie/tests/jobs.rs",
    ),
    (labels::EXCLUDE_DISRUPTION, "Kubernetes' own: whether it is there counts, not its value"),
    (taints::UNREACHABLE, "Kubernetes' own: clocks that are wrong are tested in clocks.rs and waits.rs"),
    (taints::NOT_READY, "Kubernetes' own, and never read"),
    (taints::OUT_OF_SERVICE_VALUE, "a value, not a place"),
    (taints::NO_EXECUTE, "a value, not a place"),
    (taints::NO_SCHEDULE, "a value, not a place"),
    (job::CONTROLLER_NAME, "a value of an immutable field"),
    (job::BUILT_IN_CONTROLLER, "a value of an immutable field"),
    (job::TRACKING_FINALIZER, "a finalizer has no value"),
    (
        job::COMPLETION_INDEX,
        "Kubernetes' own: a pod without a readable index has no place, as for the built-in controller",
    ),
    (job::COMPLETION_INDEX_ENV, "only written"),
    (job::conditions::COMPLETE, "Kubernetes' own: the API server validates it"),
    (job::conditions::FAILED, "Kubernetes' own: the API server validates it"),
    (job::conditions::FAILURE_TARGET, "Kubernetes' own: the API server validates it"),
    (job::conditions::SUCCESS_CRITERIA_MET, "Kubernetes' own: the API server validates it"),
    (job::conditions::SUSPENDED, "Kubernetes' own: the API server validates it"),
    (appwrapper::GROUP, "part of a kind"),
    (appwrapper::VERSION, "part of a kind"),
    (appwrapper::API_VERSION, "part of a kind"),
    (appwrapper::KIND, "part of a kind"),
    (appwrapper::PLURAL, "part of a kind"),
    (appwrapper::CONTROLLER_NAME, "a value of an immutable field"),
    (appwrapper::FINALIZER, "a finalizer has no value"),
    (appwrapper::MEMBER_LABEL, "with another value a pod is another AppWrapper's; see the tests of deletion"),
    (appwrapper::USER_LABEL, "only written, by the webhook"),
    (
        appwrapper::WRITTEN_BY,
        "read only where webhooks are, and garbage is no stamp; see the tests of stamps",
    ),
    (appwrapper::USER_ID_LABEL, "only written, by the webhook"),
    (appwrapper::QUEUE_LABEL, "read by the webhook only"),
    (appwrapper::EVENT_COMPONENT, "only written"),
    (appwrapper::MUTATING_WEBHOOK, "a name"),
    (appwrapper::VALIDATING_WEBHOOK, "a name"),
    (appwrapper::MUTATING_PATH, "a name"),
    (appwrapper::VALIDATING_PATH, "a name"),
    (appwrapper::annotations::PREFIX, "the beginning of others"),
    (appwrapper::annotations::TAS_POD_INDEX_LABEL, "only written, for Kueue"),
    (appwrapper::annotations::TAS_SUB_GROUP_INDEX_LABEL, "only written, for Kueue"),
    (appwrapper::annotations::TAS_SUB_GROUP_COUNT, "only written, for Kueue"),
    (repair::GROUP, "part of a kind"),
    (repair::REPAIR_CONTROLLER, "only written"),
    (repair::REPAIR_NODE, "only written"),
    (repair::annotations::REMEDIATE_MACHINE, "Cluster API's own: whether it is there counts, not its value"),
    (repair::annotations::SKIP_REMEDIATION, "Cluster API's own: whether it is there counts, not its value"),
    (repair::annotations::PAUSED, "Cluster API's own: whether it is there counts, not its value"),
    (repair::annotations::MACHINE, "Cluster API's own: a Machine that is not there holds the repair"),
    (
        repair::annotations::CLUSTER_NAMESPACE,
        "Cluster API's own: a Machine that is not there holds the repair",
    ),
    (repair::labels::NODE_POOL, "Karpenter's own"),
    (repair::labels::INITIALIZED, "Karpenter's own"),
];

fn all_spots() -> Vec<Spot> {
    let groups = [
        stories::of_zombies(),
        stories::of_nodes_out_of_service(),
        stories::of_evictions(),
        stories::of_jobs(),
        crate::appwrapper::corrupted::all_spots(),
        crate::repair::corrupted::all_spots(),
    ];
    groups.into_iter().flatten().flatten().collect()
}

/// The values of all constants of `names.rs`, each with its module.
fn names() -> Vec<(String, String)> {
    let source = include_str!("../../../../../crates/api/src/names.rs");
    let mut modules: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    // A constant whose line was too long continues on the next line.
    let joined = source.replace("=\n", "= ");
    for line in joined.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("pub mod ") {
            modules.push(rest.trim_end_matches(" {"));
        } else if line == "}" {
            modules.pop();
        } else if line.starts_with("pub const ") {
            let value = line.split('"').nth(1).unwrap_or_else(|| panic!("{line}"));
            found.push((modules.join("::"), value.to_owned()));
        }
    }
    found
}

/// The fields of the status in a CRD.
fn status_fields(definition: &str) -> Vec<&str> {
    let status = "\n          status:\n            type: object\n";
    let (_, status) = definition.split_once(status).unwrap();
    let (_, properties) = status.split_once("            properties:\n").unwrap();
    let deeper = |line: &&str| line.starts_with("              ");
    let is_field = |line: &&str| !line[14..].starts_with([' ', '-', '#']);
    let fields = properties.lines().take_while(deeper).filter(is_field);
    fields.filter_map(|line| line.trim().strip_suffix(':')).collect()
}

#[test]
fn everything_that_is_ours_is_corrupted_or_excused() {
    let spots = all_spots();
    let corrupted: BTreeSet<&str> = spots.iter().map(|spot| spot.name).collect();
    let excused: BTreeSet<&str> = EXCUSED.iter().map(|(name, _)| *name).collect();
    let names = names();
    assert!(names.len() > 150, "{names:?}");
    for (module, name) in &names {
        if module.split("::").any(|it| ONLY_WRITTEN.contains(&it)) {
            continue;
        }
        let is_there = corrupted.contains(name.as_str()) || excused.contains(name.as_str());
        assert!(
            is_there,
            "{name} (names::{module}) is new: add it to a story of corrupted input, or excuse it"
        );
    }
    for name in &excused {
        assert!(names.iter().any(|(_, value)| value == name), "{name} is excused, and not there any more");
        assert!(!corrupted.contains(name), "{name} is excused, and corrupted all the same");
    }
}

#[test]
fn every_field_of_a_status_of_ours_is_corrupted() {
    let spots = all_spots();
    for (kind, definition) in [
        ("AppWrapper", salvor_api::crds::APPWRAPPER),
        ("NodeRepairPolicy", salvor_api::crds::NODE_REPAIR_POLICY),
    ] {
        let fields = status_fields(definition);
        assert!(fields.len() >= 5, "{fields:?}");
        for field in fields {
            let name = format!("{kind} status.{field}");
            assert!(spots.iter().any(|spot| spot.name == name), "{name} is new: add it to a story");
        }
    }
}

#[test]
fn every_field_of_the_lease_is_corrupted() {
    // The exhaustive pattern makes the compiler report new fields.
    let LeaseSpec {
        acquire_time: _,
        holder_identity: _,
        lease_duration_seconds: _,
        lease_transitions: _,
        preferred_holder: _,
        renew_time: _,
        strategy: _,
    } = LeaseSpec::default();
    for field in ["acquireTime", "holderIdentity", "leaseDurationSeconds", "leaseTransitions", "renewTime"] {
        assert!(all_spots().iter().any(|spot| spot.name == field), "{field}");
    }
}
