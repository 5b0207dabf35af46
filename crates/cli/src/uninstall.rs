//! `salvor uninstall`: removes all marks of Salvor from the objects of a cluster, before Salvor itself is removed.

mod api;
mod hold;
mod marks;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use salvor_api::config::{Configuration, LogFormat};
use salvor_api::names::repair;
use salvor_api::{Controller, ControllerList};
use salvor_operator::webhooks::{CONFIGURATION, WebhookKind};
use salvor_operator::{Published, recoveries, webhooks_in_effect};
use serde_json::{Value, json};
use tokio::runtime;
use tracing::level_filters::LevelFilter;

use self::api::{Api, is_expired, is_passing, told};
use self::hold::Hold;
use self::marks::{Carrier, is_our_appwrapper, is_unfinished, release, text};
use self::report::{Released, Report};
use crate::cluster::ClusterArgs;
use crate::error::CliError;
use crate::output::{self, Form};
use crate::settings::JudgingArgs;
use crate::{evict, logging};

/// Retries after conflicts. API servers also keep calling a webhook for a moment after it was deleted.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Limits how many blocking workloads are named.
const NAMED: usize = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    /// Do it; without this, what would be done is printed
    #[arg(short, long)]
    yes: bool,
    /// Go on although Jobs or AppWrappers have not ended that only Salvor runs: they stay as they are, and nobody runs them
    #[arg(long)]
    abandon_workloads: bool,
    /// Delete the CustomResourceDefinitions of AppWrappers and NodeRepairPolicies as well, if no object of theirs is left
    #[arg(long)]
    delete_crds: bool,
    /// The form of the answer
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    /// The operator's configuration file, for the name and namespace of its Lease [env: SALVOR_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn execute(args: &UninstallArgs) -> Result<ExitCode, CliError> {
    let judging = JudgingArgs { config: args.config.clone(), ..JudgingArgs::default() };
    let given = judging.is_given();
    let configuration = judging.load()?;
    logging::start(LogFormat::Text, LevelFilter::ERROR)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let report = runtime.block_on(async {
        let cluster = args.cluster.load().await?;
        let api = Api::open(&cluster)?;
        // Without this answer there is nothing to check.
        let now = api.now().await.map_err(|error| cluster.unreachable(told(&error)))?;
        let runs_appwrappers = given && configuration.controllers.enabled(Controller::AppWrapper);
        let report = Report { dry_run: !args.yes, ..Report::default() };
        let mut uninstall =
            Uninstall { args, api, configuration, runs_appwrappers, lease: None, hold: None, report };
        uninstall.find_lease(now).await;
        uninstall.look().await;
        if args.yes && uninstall.report.blocked.is_empty() {
            uninstall.carry_out().await;
        }
        Ok::<_, CliError>(uninstall.report)
    })?;
    let text = match args.output {
        Form::Text => report.render(),
        Form::Json => {
            serde_json::to_string_pretty(&report).map_err(|error| CliError::Output(error.into()))? + "\n"
        }
    };
    output::print(&text)?;
    Ok(if report.dry_run || report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Uninstall<'a> {
    args: &'a UninstallArgs,
    api: Api,
    configuration: Configuration,
    /// Whether Salvor is known to run AppWrappers in this cluster.
    runs_appwrappers: bool,
    /// The Lease of the leader election as it was read.
    lease: Option<Value>,
    hold: Option<Hold>,
    report: Report,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Records what would be done and what blocks it.
    Plan,
    Act,
    /// A mark that is still there counts as failed.
    Check,
}

impl Uninstall<'_> {
    fn lease_path(&self) -> String {
        let election = &self.configuration.leader_election;
        format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}",
            election.lease_namespace, election.lease_name
        )
    }

    /// Reads the Lease, and refuses while an operator leads, here or in another namespace.
    async fn find_lease(&mut self, now: jiff::Timestamp) {
        let election = self.configuration.leader_election.clone();
        let what = format!("Lease {}/{}", election.lease_namespace, election.lease_name);
        match self.api.get(&self.lease_path()).await {
            Ok(lease) => self.lease = lease,
            Err(error) => {
                let why = told(&error);
                self.report
                    .blocked
                    .push(format!("{what} cannot be read, so an operator may be running: {why}"));
            }
        }
        let everywhere = format!(
            "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.name%3D{}",
            election.lease_name
        );
        let mut leases: Vec<Value> = match self.api.get(&everywhere).await {
            Ok(Some(mut list)) => match list["items"].take() {
                Value::Array(items) => items,
                _ => Vec::new(),
            },
            Ok(None) => Vec::new(),
            Err(error) => {
                self.report.miss("leases in all namespaces", told(&error));
                Vec::new()
            }
        };
        let here = |lease: &Value| text(lease, "/metadata/namespace") == election.lease_namespace;
        leases.retain(|lease| !here(lease));
        leases.extend(self.lease.clone());
        for lease in leases {
            let Ok(read) = serde_json::from_value::<Lease>(lease.clone()) else { continue };
            let published = Published::read(&read);
            let runs = published.as_ref().and_then(|published| published.configuration.as_ref());
            self.runs_appwrappers |=
                runs.is_some_and(|runs| runs.controllers.enabled(Controller::AppWrapper));
            if let Some(leader) = Published::leader(&read, now) {
                let namespace = text(&lease, "/metadata/namespace");
                self.report.blocked.push(format!(
                    "{leader} leads (Lease {namespace}/{}), and would put its marks back: stop all replicas first, for example with \
                     kubectl scale deployment/salvor -n {namespace} --replicas=0",
                    election.lease_name
                ));
            }
        }
    }

    /// Checks everything, and records what blocks the removal.
    async fn look(&mut self) {
        let namespace = &self.configuration.leader_election.lease_namespace;
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/salvor");
        let replicas = |deployment: &Value| deployment.pointer("/spec/replicas").and_then(Value::as_u64);
        match self.api.get(&path).await {
            Ok(Some(deployment)) if replicas(&deployment) != Some(0) => self.report.blocked.push(format!(
                "Deployment {namespace}/salvor asks for {} replicas, and the next leader would put marks back: run \
                 kubectl scale deployment/salvor -n {namespace} --replicas=0",
                replicas(&deployment).unwrap_or(1)
            )),
            Ok(_) => {}
            Err(error) => self.report.miss(&format!("Deployment {namespace}/salvor"), told(&error)),
        }
        self.webhooks(Look::Plan).await;
        let mut unfinished = Vec::new();
        for carrier in Carrier::ALL {
            unfinished.extend(self.sweep(carrier, Look::Plan).await);
        }
        if !self.args.yes {
            self.definitions(Look::Plan).await;
        }
        if let Some(lease) = &self.lease {
            self.report.released.push(whole("Lease", lease));
        }
        self.note_unfinished(&unfinished);
    }

    /// Workloads that only Salvor runs would never end.
    fn note_unfinished(&mut self, unfinished: &[String]) {
        if unfinished.is_empty() {
            return;
        }
        let mut named = unfinished.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        if unfinished.len() > NAMED {
            named.push_str(&format!(" and {} more", unfinished.len() - NAMED));
        }
        if self.args.abandon_workloads {
            self.report.stays.push(format!("{named}: not ended, and nobody runs it without Salvor"));
        } else {
            self.report.blocked.push(format!(
                "{named} has not ended, and nobody runs it without Salvor: let it end, delete it, or add --abandon-workloads"
            ));
        }
    }

    async fn carry_out(&mut self) {
        self.report.released.clear();
        if let Some(lease) = &self.lease {
            match Hold::take(&self.api, &self.lease_path(), lease, &evict::person()).await {
                Ok(hold) => self.hold = Some(hold),
                Err(error) => {
                    self.report.fail(&whole("Lease", lease).title(), told(&error));
                    return;
                }
            }
        }
        // First, because without an operator the API server would refuse the writes that the webhooks check.
        self.webhooks(Look::Act).await;
        for carrier in Carrier::ALL {
            self.sweep(carrier, Look::Act).await;
        }
        for carrier in Carrier::ALL {
            self.sweep(carrier, Look::Check).await;
        }
        self.definitions(Look::Act).await;
        self.end_lease().await;
    }

    /// Deletes the Lease last, and only if everything else is removed. Until then no operator can lead.
    async fn end_lease(&mut self) {
        let Some(hold) = self.hold.take() else {
            self.check_for_new_leader().await;
            return;
        };
        let lease = whole("Lease", hold.lease());
        let ended = if self.report.is_complete() {
            let deleted = self.api.delete(&self.lease_path(), hold.lease()).await;
            deleted.map(|()| self.report.released.push(lease.clone()))
        } else {
            hold.give_back(&self.api).await
        };
        if let Err(error) = ended {
            self.report.fail(&lease.title(), told(&error));
        }
    }

    /// Without a Lease to hold, an operator may have become leader in the meantime.
    async fn check_for_new_leader(&mut self) {
        let what = "the Lease of the leader election";
        match self.api.get(&self.lease_path()).await {
            Ok(None) => {}
            Ok(Some(_)) => self.report.fail(what, "an operator has begun to run meanwhile".into()),
            Err(error) => self.report.fail(what, told(&error)),
        }
    }

    /// Whether this process still holds the Lease.
    async fn still_holds(&mut self) -> bool {
        let problem = match &mut self.hold {
            Some(hold) => hold.renew(&self.api).await.err().map(|error| told(&error)),
            None => None,
        };
        let Some(problem) = problem else { return true };
        let what = "the Lease of the leader election";
        if !self.report.failed.iter().any(|failed| failed.what == what) {
            self.report
                .fail(what, format!("it cannot be held any more, so an operator may be running: {problem}"));
        }
        false
    }

    /// Goes through all objects of a kind. Returns the workloads that have not ended.
    async fn sweep(&mut self, carrier: Carrier, look: Look) -> Vec<String> {
        let (mut next, mut unfinished) = (String::new(), Vec::new());
        let mut begun = 0;
        let before = self.report.released.len();
        loop {
            let page = match self.api.page(&carrier.all(), &next, None).await {
                Ok(Some(page)) => page,
                Ok(None) => return unfinished,
                Err(error) if is_expired(&error) && begun < TRIES => {
                    begun += 1;
                    next.clear();
                    if look == Look::Plan {
                        unfinished.clear();
                        self.report.released.truncate(before);
                    }
                    continue;
                }
                Err(error) => {
                    self.report.miss(&format!("{}s", carrier.kind()), told(&error));
                    return unfinished;
                }
            };
            for object in page.items {
                if carrier == Carrier::AppWrapper && !is_our_appwrapper(&object, self.runs_appwrappers) {
                    continue;
                }
                if look == Look::Plan && is_unfinished(carrier, &object) {
                    unfinished.push(whole(carrier.kind(), &object).title());
                }
                let Some(found) = release(carrier, &object) else { continue };
                let mut released = whole(carrier.kind(), &object);
                released.marks = found.marks;
                match look {
                    Look::Plan => {
                        self.note_cordon(carrier, &object);
                        self.report.released.push(released);
                    }
                    Look::Check => {
                        let title = released.title();
                        if !self.report.failed.iter().any(|failed| failed.what == title) {
                            self.report.fail(&title, format!("it still has {}", released.marks.join(", ")));
                        }
                    }
                    Look::Act => {
                        if !self.still_holds().await {
                            return unfinished;
                        }
                        match self.take_off(carrier, object).await {
                            Ok(()) => self.report.released.push(released),
                            Err(error) => self.report.fail(&released.title(), told(&error)),
                        }
                    }
                }
            }
            next = page.next;
            if next.is_empty() {
                return unfinished;
            }
        }
    }

    /// A repair cordons a node without an owner. After the removal, no annotation shows that the cordon is Salvor's.
    fn note_cordon(&mut self, carrier: Carrier, object: &Value) {
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let repairing = |condition: &Value| {
            let (reason, told) =
                (&condition["reason"], [repair::reasons::REPAIRING, repair::reasons::BLOCKED]);
            condition["type"] == repair::CONDITION && told.iter().any(|told| reason == told)
        };
        if carrier == Carrier::Node
            && object.pointer("/spec/unschedulable") == Some(&Value::Bool(true))
            && conditions.is_some_and(|all| all.iter().any(repairing))
        {
            let name = text(object, "/metadata/name");
            self.report.stays.push(format!(
                "Node {name} is cordoned and was being repaired: if it is to be used, run kubectl uncordon {name}"
            ));
        }
    }

    /// Removes all marks from an object, which may be changed or deleted concurrently.
    async fn take_off(&self, carrier: Carrier, mut object: Value) -> kube::Result<()> {
        let path = carrier.one(&object);
        let mut pause = FIRST_PAUSE;
        for tries_left in (0..TRIES).rev() {
            let Some(release) = release(carrier, &object) else { return Ok(()) };
            match self.write(&path, &object, release).await {
                Ok(()) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(error) if tries_left == 0 || !is_passing(&error) => return Err(error),
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            match self.api.get(&path).await? {
                Some(read) => object = read,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    async fn write(&self, path: &str, object: &Value, release: marks::Release) -> kube::Result<()> {
        let mut read = object.clone();
        if let Some(patch) = release.object {
            read = self.api.patch(path, &read, patch).await?;
        }
        if let Some(patch) = release.status {
            self.api.patch(&format!("{path}/status"), &read, patch).await?;
        }
        Ok(())
    }

    /// The webhook configurations. Webhooks of other controllers in them stay.
    async fn webhooks(&mut self, look: Look) {
        let ours = our_webhooks();
        for kind in WebhookKind::ALL {
            let path = format!("/apis/admissionregistration.k8s.io/v1/{}/{CONFIGURATION}", kind.plural());
            let found = match self.api.get(&path).await {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    self.report.miss(kind.configuration(), told(&error));
                    continue;
                }
            };
            let entries = found["webhooks"].as_array().cloned().unwrap_or_default();
            let is_ours = |entry: &&Value| ours.iter().any(|name| entry["name"] == *name);
            let theirs: Vec<&Value> = entries.iter().filter(|entry| !is_ours(entry)).collect();
            let mut released = whole(kind.configuration(), &found);
            if !theirs.is_empty() {
                let names =
                    entries.iter().filter(is_ours).map(|entry| format!("webhook {}", text(entry, "/name")));
                released.marks = names.collect();
                if released.marks.is_empty() {
                    continue;
                }
            }
            if look == Look::Act {
                let outcome = if theirs.is_empty() {
                    self.api.delete(&path, &found).await
                } else {
                    self.api.patch(&path, &found, json!({ "webhooks": theirs })).await.map(drop)
                };
                if let Err(error) = outcome {
                    self.report.fail(&released.title(), told(&error));
                    continue;
                }
            }
            self.report.released.push(released);
        }
    }

    /// The CRDs of the recoveries. Deleting a CRD deletes all its objects.
    async fn definitions(&mut self, look: Look) {
        let complete = look == Look::Plan || self.report.is_complete();
        for definition in recoveries().flat_map(|entry| entry.definitions) {
            let Ok(definition) = serde_saphyr::from_str::<Value>(definition) else { continue };
            let name = text(&definition, "/metadata/name");
            let what = format!("CustomResourceDefinition {name}");
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
            let found = match self.api.get(&path).await {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    self.report.miss(&what, told(&error));
                    continue;
                }
            };
            let (group, plural) = (text(&definition, "/spec/group"), text(&definition, "/spec/names/plural"));
            let objects = format!("/apis/{group}/{}/{plural}", text(&definition, "/spec/versions/0/name"));
            let number = match self.api.page(&objects, "", Some(1)).await {
                Ok(page) => page.map_or(0, |page| page.items.len() as u64 + page.more),
                Err(error) => {
                    self.report.miss(&format!("{plural}.{group}"), told(&error));
                    continue;
                }
            };
            match (self.args.delete_crds, number) {
                (false, 0) => {
                    self.report.stays.push(format!("{what}: no object is left; --delete-crds deletes it"));
                }
                (false, _) => self
                    .report
                    .stays
                    .push(format!("{what}: objects of it are left ({number}), and would go with it")),
                (true, 0) => {
                    let outcome = match look {
                        Look::Act if complete => self.api.delete(&path, &found).await,
                        Look::Plan | Look::Act | Look::Check => Ok(()),
                    };
                    match outcome {
                        Ok(()) if complete => {
                            self.report.released.push(whole("CustomResourceDefinition", &found));
                        }
                        Ok(()) => {}
                        Err(error) => self.report.fail(&what, told(&error)),
                    }
                }
                (true, _) => {
                    let why = format!(
                        "objects of it are left ({number}), and would go with it: delete them first, with kubectl delete {plural}.{group} -A --all"
                    );
                    match look {
                        Look::Act => self.report.fail(&what, why),
                        Look::Plan | Look::Check => self.report.stays.push(format!("{what}: {why}")),
                    }
                }
            }
        }
    }
}

/// The names of all webhooks of any recovery.
fn our_webhooks() -> Vec<&'static str> {
    let everything = ControllerList::new(Controller::ALL.iter().map(|controller| controller.name()));
    let configuration = Configuration { controllers: everything, ..Configuration::default() };
    webhooks_in_effect(&configuration).into_iter().map(|webhook| webhook.name).collect()
}

fn whole(kind: &'static str, object: &Value) -> Released {
    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
    Released { kind, namespace, name: text(object, "/metadata/name").to_owned(), marks: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_webhooks_of_every_recovery_are_known() {
        assert_eq!(our_webhooks(), ["mappwrapper.kb.io", "vappwrapper.kb.io"]);
    }
}
