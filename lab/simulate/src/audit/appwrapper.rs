//! Reads the history of a cluster, revision by revision, and reports what an AppWrapper must never do.
//!
//! Each AppWrapper has at most one Job and one bare pod among its components.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvor_api::names::appwrapper::MEMBER_LABEL as MEMBER;
use salvor_apiserver::ChangeKind;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// `ResourcesDeployed` and `QuotaReserved` are True until the last component and the last labelled pod are gone.
    Released,
    /// A component is created only while `ResourcesDeployed` is True.
    Undeclared,
    /// No object of one attempt exists when the next attempt begins.
    Generations,
    /// A component is created once in each attempt.
    Twice,
    /// The retry limit is never exceeded, and no retry is lost.
    Retries,
    /// A phase follows only after those that lead to it.
    Phases,
    /// An AppWrapper is removed only after all objects that it created.
    Orphans,
}

#[derive(Clone, Debug, Default)]
struct App {
    name: String,
    created: String,
    phase: String,
    deployed: bool,
    quota: bool,
    retries: i64,
    /// The line of the history at which the current attempt began.
    began: usize,
    made: BTreeMap<&'static str, u32>,
}

#[derive(Clone, Debug)]
struct Object {
    resource: &'static str,
    name: String,
    owner: Option<String>,
    label: Option<String>,
    created: String,
    phase: String,
    line: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Audit {
    retry_limit: i64,
    apps: BTreeMap<String, App>,
    objects: BTreeMap<String, Object>,
}

impl Audit {
    /// `retry_limit` is the number of resets that an AppWrapper is allowed.
    pub fn new(retry_limit: i64) -> Self {
        Self { retry_limit, ..Self::default() }
    }

    /// Reads one change and returns a line for each broken rule. `line` is its position in the history.
    pub fn read(
        &mut self,
        line: usize,
        at: Timestamp,
        change: ChangeKind,
        resource: &str,
        object: &Value,
    ) -> Vec<(Rule, String)> {
        let uid = text(&object["metadata"]["uid"]);
        let found = match (resource, change) {
            ("appwrappers", ChangeKind::Removed) => self.app_gone(&uid),
            ("appwrappers", _) => self.app(line, &uid, object),
            ("jobs" | "pods", ChangeKind::Removed) => {
                self.objects.remove(&uid);
                Vec::new()
            }
            ("jobs", _) => self.object(line, uid, "jobs", object),
            ("pods", _) => self.object(line, uid, "pods", object),
            _ => Vec::new(),
        };
        found.into_iter().map(|(rule, text)| (rule, format!("at {at}: {text}"))).collect()
    }

    /// The objects of an AppWrapper: those that it owns, and pods with its label that are not older than it.
    fn things<'a>(&'a self, uid: &'a str, app: &'a App) -> impl Iterator<Item = &'a Object> {
        self.objects.values().filter(move |object| {
            let labelled = object.label.as_ref() == Some(&app.name) && object.created >= app.created;
            object.owner.as_deref() == Some(uid) || (object.resource == "pods" && labelled)
        })
    }

    fn app(&mut self, line: usize, uid: &str, object: &Value) -> Vec<(Rule, String)> {
        let mut wrong = Vec::new();
        let before = self.apps.remove(uid).unwrap_or_default();
        let status = &object["status"];
        let (deployed, quota) = (holds(status, "ResourcesDeployed"), holds(status, "QuotaReserved"));
        let mut app = App {
            name: text(&object["metadata"]["name"]),
            created: text(&object["metadata"]["creationTimestamp"]),
            phase: text(&status["phase"]),
            deployed,
            quota,
            retries: status["resettingCount"].as_i64().unwrap_or(0),
            ..before
        };
        let left: Vec<String> =
            self.things(uid, &app).map(|it| format!("{} {}", it.resource, it.name)).collect();
        if before.deployed && !deployed && !left.is_empty() {
            wrong.push((
                Rule::Released,
                format!("ResourcesDeployed is False in {}, and {left:?} are left", app.phase),
            ));
        }
        let active: Vec<&str> = self
            .things(uid, &app)
            .filter(|it| it.resource == "pods" && !["Succeeded", "Failed"].contains(&it.phase.as_str()))
            .map(|it| it.name.as_str())
            .collect();
        let ended = app.phase == "Succeeded" && before.quota && deployed;
        if before.quota && !quota && (if ended { !active.is_empty() } else { !left.is_empty() }) {
            wrong
                .push((Rule::Released, format!("quota is released in {}, and {left:?} are left", app.phase)));
        }
        // Writing a success over a status that a user has emptied does not begin an attempt.
        if !before.deployed && deployed && app.phase == "Resuming" {
            if !left.is_empty() {
                wrong.push((Rule::Generations, format!("an attempt begins, and {left:?} are left")));
            }
            app.began = line;
            app.made.clear();
        }
        if before.phase != app.phase && !leads_to(&before.phase, &app.phase) {
            wrong.push((Rule::Phases, format!("from {:?} to {:?}", before.phase, app.phase)));
        }
        let counted = app.retries - before.retries;
        let resets = before.phase != "Resetting" && app.phase == "Resetting";
        if app.retries > self.retry_limit || !(0..=i64::from(resets)).contains(&counted) {
            wrong.push((
                Rule::Retries,
                format!("from {} to {} in {}", before.retries, app.retries, app.phase),
            ));
        }
        self.apps.insert(uid.to_owned(), app);
        wrong
    }

    fn app_gone(&mut self, uid: &str) -> Vec<(Rule, String)> {
        let Some(app) = self.apps.remove(uid) else { return Vec::new() };
        let left: Vec<&str> = self.things(uid, &app).map(|it| it.name.as_str()).collect();
        if left.is_empty() {
            Vec::new()
        } else {
            vec![(Rule::Orphans, format!("it is gone, and {left:?} are left"))]
        }
    }

    fn object(
        &mut self,
        line: usize,
        uid: String,
        resource: &'static str,
        object: &Value,
    ) -> Vec<(Rule, String)> {
        let mut wrong = Vec::new();
        let metadata = &object["metadata"];
        let owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
        let owner = owners.iter().find(|it| it["kind"] == "AppWrapper").map(|it| text(&it["uid"]));
        let label = metadata["labels"][MEMBER].as_str().map(str::to_owned);
        let known = self.objects.get(&uid).map(|it| it.line);
        let new = Object {
            resource,
            name: text(&metadata["name"]),
            owner: owner.clone(),
            label,
            created: text(&metadata["creationTimestamp"]),
            phase: text(&object["status"]["phase"]),
            line: known.unwrap_or(line),
        };
        if let (None, Some(owner)) = (known, owner) {
            wrong.extend(self.component_made(&owner, &new));
        }
        self.objects.insert(uid, new);
        wrong
    }

    fn component_made(&mut self, owner: &str, new: &Object) -> Vec<(Rule, String)> {
        let mut wrong = Vec::new();
        let name = format!("{} {}", new.resource, new.name);
        let Some(app) = self.apps.get(owner) else {
            return vec![(Rule::Orphans, format!("{name} is made for an AppWrapper that is gone"))];
        };
        if !app.deployed {
            wrong.push((Rule::Undeclared, format!("{name} is made in {}", app.phase)));
        }
        let things: Vec<&Object> = self.things(owner, app).collect();
        let old: BTreeSet<&str> =
            things.iter().filter(|it| it.line < app.began).map(|it| it.name.as_str()).collect();
        let same = things.iter().any(|it| it.owner.as_deref() == Some(owner) && it.resource == new.resource);
        if !old.is_empty() || same {
            wrong.push((Rule::Generations, format!("{name} is made beside {things:?}")));
        }
        if let Some(app) = self.apps.get_mut(owner) {
            let made = app.made.entry(new.resource).or_default();
            *made += 1;
            if *made > 1 {
                wrong.push((Rule::Twice, format!("{name} is made {made} times in one attempt")));
            }
        }
        wrong
    }
}

/// The phases that may follow, as the state machine defines them.
fn leads_to(from: &str, to: &str) -> bool {
    let next: &[&str] = match from {
        "" => &["Suspended", "Resuming", "Failed"],
        "Suspended" => &["Resuming", "Failed"],
        "Resuming" => &["Running", "Resetting", "Failed", "Suspending"],
        "Running" => &["Succeeded", "Resetting", "Failed", "Suspending"],
        // It was changed after its admission, and not changed back.
        "Resetting" => &["Resuming", "Failed", "Suspending"],
        "Suspending" => &["Suspended"],
        _ => &[],
    };
    to == "Terminating" || next.contains(&to)
}

pub fn holds(status: &Value, condition: &str) -> bool {
    let conditions = status["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == condition && it["status"] == "True")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
