//! Deletion: grace period, finalizers, preconditions and propagation, in the order in which the real server checks
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{definitions, read};
use crate::admission::{self, Body, Operation, Subject};
use crate::environment::Environment;
use crate::kinds::table::Resource;
use crate::object::{self, Stored};
use crate::propagation::{FOREGROUND, ORPHAN, Propagation};
use crate::protocol::render;
use crate::protocol::request::{self, Query, Representation, Request, Target, check_dry_run};
use crate::protocol::status::{Cause, Refusal};
use crate::schema::{self, Schema};
use crate::state::Core;
use crate::store;

/// Namespaces that cannot be deleted.
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-public", "kube-system"];

#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) grace: Option<i64>,
    pub(crate) propagation: Option<Propagation>,
    /// The deprecated `orphanDependents`, if it was used.
    pub(crate) orphan: Option<bool>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) dry_run: bool,
    /// The options as webhooks see them. `None` for the server's own deletions, which webhooks do not review.
    shown: Option<Value>,
}

impl Options {
    /// Reads the body, or else the query: never both.
    pub(crate) fn read(request: &Request, query: &Query) -> Result<Self, Refusal> {
        if request.body.is_empty() {
            return Self::asked_with(stated_in(query)?);
        }
        let body = request.value()?;
        let kind = object::text(&body, "/kind");
        if !kind.is_empty() && kind != "DeleteOptions" {
            return Err(Refusal::bad_request("decoded object cannot be converted to DeleteOptions"));
        }
        let definition = Schema::built_in("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
        Self::asked_with(schema::decode(&definition, body).map_err(Refusal::bad_request)?)
    }

    fn asked_with(mut stated: Value) -> Result<Self, Refusal> {
        let options = Self::of(&stated)?;
        if let Some(members) = stated.as_object_mut() {
            members.retain(|_, member| !member.is_null() && *member != json!([]));
        }
        Ok(Self { shown: Some(stated), ..options })
    }

    /// Reads a `DeleteOptions` whose fields have their types.
    pub(crate) fn of(stated: &Value) -> Result<Self, Refusal> {
        let policy = stated.get("propagationPolicy").and_then(Value::as_str);
        let orphan = stated.get("orphanDependents").and_then(Value::as_bool);
        let refused = |cause: Cause| Refusal::invalid("meta.k8s.io", "DeleteOptions", "", &[cause]);
        if policy.is_some() && orphan.is_some() {
            let shown = json!(policy);
            return Err(refused(Cause::invalid(
                "propagationPolicy",
                &shown,
                "orphanDependents and deletionPropagation cannot be both set",
            )));
        }
        let propagation = match (policy, orphan) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some(other), _) => {
                return Err(refused(Cause::unsupported(
                    "propagationPolicy",
                    other,
                    &["Foreground", "Background", "Orphan", "nil"],
                )));
            }
            (None, None) => None,
        };
        let precondition = |key: &str| {
            stated.pointer(&format!("/preconditions/{key}")).and_then(Value::as_str).map(str::to_owned)
        };
        let dry = object::strings(stated, "/dryRun");
        Ok(Self {
            // A negative grace period counts as one second.
            grace: stated
                .get("gracePeriodSeconds")
                .and_then(Value::as_i64)
                .map(|seconds| if seconds < 0 { 1 } else { seconds }),
            propagation,
            orphan,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            dry_run: check_dry_run(dry.iter().map(String::as_str), "DeleteOptions")?,
            shown: None,
        })
    }

    pub(crate) fn check(&self, resource: &Resource, name: &str, value: &Value) -> Result<(), Refusal> {
        let found = object::uid(value);
        if let Some(wanted) = &self.uid
            && wanted != found
        {
            let why = format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({found}). The object might have been deleted and then recreated"
            );
            return Err(Refusal::kind_conflict(resource, name, &why));
        }
        let found = object::text(value, "/metadata/resourceVersion");
        if let Some(wanted) = &self.resource_version
            && wanted != found
        {
            let why = format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({found}). The object might have been modified"
            );
            return Err(Refusal::kind_conflict(resource, name, &why));
        }
        Ok(())
    }
}

/// The `DeleteOptions` of a request without a body.
fn stated_in(query: &Query) -> Result<Value, Refusal> {
    Ok(json!({
        "gracePeriodSeconds": query.number("gracePeriodSeconds")?,
        "propagationPolicy": query.get("propagationPolicy"),
        "orphanDependents": query.flag_if_set("orphanDependents"),
        "dryRun": query.all("dryRun").collect::<Vec<&str>>(),
    }))
}

#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// The object still exists, and waits for its grace period or its finalizers.
    Kept(Arc<Stored>),
    Gone(Arc<Stored>),
}

/// Deletes one object, as far as possible.
pub(crate) fn one(
    core: &mut Core,
    resource: &Arc<Resource>,
    namespace: &str,
    name: &str,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<Outcome, Refusal> {
    if resource.is_namespace() && IMMORTAL_NAMESPACES.contains(&name) {
        return Err(Refusal::forbidden(resource, name, "this namespace may not be deleted"));
    }
    let Some(current) = core.find(resource, namespace, name).cloned() else {
        return Err(Refusal::not_found(resource, name));
    };
    let key = store::key(namespace, name);
    if resource.is_namespace()
        && let Some(outcome) = namespace_away(core, resource, &current, options, environment)?
    {
        return Ok(outcome);
    }
    options.check(resource, name, &current.value())?;
    let mut new = (*current.value()).clone();
    let grace = grace(resource, &mut new, options, environment.now);
    if grace == Grace::Pending {
        return Ok(Outcome::Kept(current));
    }
    review(core, resource, (namespace, name), &current, options, environment)?;
    set_propagation(resource, &mut new, options);
    let has_finalizers = !object::finalizers(&new).is_empty();
    if grace == Grace::None && has_finalizers {
        mark(&mut new, environment.now);
    }
    let stays = has_finalizers || grace == Grace::Waits;
    if options.dry_run {
        let outcome = Stored::new(new);
        return Ok(if stays { Outcome::Kept(outcome) } else { Outcome::Gone(outcome) });
    }
    if stays {
        if new == *current.value() {
            return Ok(Outcome::Kept(current));
        }
        return Ok(Outcome::Kept(core.store.put(resource.key(), key, new)));
    }
    if grace == Grace::Over {
        // Watchers of a kind with a grace period see the deletionTimestamp before the end, however short the grace
        // period.
        core.store.put(resource.key(), key.clone(), new);
    }
    let gone = core.store.remove(resource.key(), &key).unwrap_or(current);
    if resource.is_definition() {
        definitions::unregister(core, name);
    }
    Ok(Outcome::Gone(gone))
}

/// Calls webhooks for a deletion, with the namespace and the name of the request.
fn review(
    core: &Core,
    resource: &Arc<Resource>,
    (namespace, name): (&str, &str),
    current: &Stored,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<(), Refusal> {
    let Some(shown) = options.shown.as_ref().filter(|_| admission::has_hooks(core)) else { return Ok(()) };
    let subject = Subject {
        resource,
        subresource: "",
        namespace,
        name: name.to_owned(),
        operation: Operation::Delete,
        body: Body::Stored { object: None, old: Some((*current.value()).clone()) },
        options: shown,
        dry_run: options.dry_run,
    };
    admission::deletion(core, subject, environment)
}

/// The effect of a deletion's grace period on the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grace {
    /// The kind has none.
    None,
    /// An earlier deletion continues unchanged.
    Pending,
    /// Some time is left.
    Waits,
    /// The grace period is zero.
    Over,
}

/// Sets the deletion time and grace period on a pod. A grace period can only be shortened.
fn grace(resource: &Resource, value: &mut Value, options: &Options, now: Timestamp) -> Grace {
    if !resource.is_pod() {
        return Grace::None;
    }
    if object::is_terminating(value) {
        let pending = object::at(value, "/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
        // Without a grace period it only waits for its finalizers.
        let Some(pending) = pending.filter(|pending| *pending != 0) else {
            return Grace::None;
        };
        let Some(mut asked) = options.grace.filter(|asked| *asked < pending) else {
            return Grace::Pending;
        };
        let due: Timestamp = object::text(value, "/metadata/deletionTimestamp").parse().unwrap_or(now);
        let mut due = later(due, asked - pending);
        if due < now {
            due = now;
            // At least a second is left for the kubelet to notice, unless the client asks for none.
            asked = asked.min(1);
        }
        object::set_metadata(value, "deletionTimestamp", json!(object::time(due)));
        object::set_metadata(value, "deletionGracePeriodSeconds", json!(asked));
        return if asked > 0 { Grace::Waits } else { Grace::Over };
    }
    let mut seconds = options.grace.unwrap_or_else(|| {
        value.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0)
    });
    let is_over = ["Failed", "Succeeded"].contains(&object::text(value, "/status/phase"));
    if object::text(value, "/spec/nodeName").is_empty() || is_over {
        seconds = 0;
    }
    if seconds < 0 {
        seconds = 1;
    }
    let due = later(now, seconds);
    object::set_metadata(value, "deletionTimestamp", json!(object::time(due)));
    object::set_metadata(value, "deletionGracePeriodSeconds", json!(seconds));
    bump_generation(value);
    if seconds > 0 { Grace::Waits } else { Grace::Over }
}

/// A time this many seconds later, saturating.
fn later(time: Timestamp, seconds: i64) -> Timestamp {
    time.saturating_add(request::go_seconds(seconds)).unwrap_or(time)
}

fn bump_generation(value: &mut Value) {
    let generation = value.pointer("/metadata/generation").and_then(Value::as_i64);
    if let Some(generation) = generation.filter(|generation| *generation > 0) {
        object::set_metadata(value, "generation", json!(generation + 1));
    }
}

/// Sets the deletionTimestamp of an object without grace period that waits for its finalizers.
fn mark(value: &mut Value, now: Timestamp) {
    if !object::is_terminating(value) {
        bump_generation(value);
    }
    let marked: Option<Timestamp> = object::text(value, "/metadata/deletionTimestamp").parse().ok();
    if marked.is_none_or(|marked| marked > now) {
        object::set_metadata(value, "deletionTimestamp", json!(object::time(now)));
    }
    object::set_metadata(value, "deletionGracePeriodSeconds", json!(0));
}

/// Adds or removes the finalizers that instruct the garbage collector.
fn set_propagation(resource: &Resource, value: &mut Value, options: &Options) {
    let known = object::finalizers(value);
    // Events own nothing.
    let policy = if resource.plural == "events" {
        Propagation::Background
    } else {
        options.propagation.or_else(|| stated_by(&known)).unwrap_or_else(|| default_propagation(resource))
    };
    let mut finalizers: Vec<String> =
        known.iter().filter(|name| *name != ORPHAN && *name != FOREGROUND).cloned().collect();
    finalizers.extend(policy.finalizer().map(str::to_owned));
    if known.iter().collect::<BTreeSet<_>>() != finalizers.iter().collect() {
        object::set_finalizers(value, &finalizers);
    }
}

/// The policy that an object's finalizers express: the first of them.
fn stated_by(finalizers: &[String]) -> Option<Propagation> {
    finalizers.iter().find_map(|finalizer| match finalizer.as_str() {
        ORPHAN => Some(Propagation::Orphan),
        FOREGROUND => Some(Propagation::Foreground),
        _ => None,
    })
}

/// Some kinds orphan their pods, for compatibility with older clients.
fn default_propagation(resource: &Resource) -> Propagation {
    if resource.built_in.is_some_and(|kind| kind.orphans) {
        Propagation::Orphan
    } else {
        Propagation::Background
    }
}

/// The special rules for a namespace: the first deletion only marks it, and further ones do nothing until its own
/// finalizers are gone.
fn namespace_away(
    core: &mut Core,
    resource: &Arc<Resource>,
    current: &Arc<Stored>,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<Option<Outcome>, Refusal> {
    let known = &*current.value();
    let name = object::name(known);
    let preconditions = [
        ("UID", &options.uid, object::uid(known)),
        ("ResourceVersion", &options.resource_version, object::text(known, "/metadata/resourceVersion")),
    ];
    for (what, wanted, found) in preconditions {
        if let Some(wanted) = wanted
            && wanted != found
        {
            let why = format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            );
            return Err(Refusal::conflict(resource, name, &why));
        }
    }
    if object::is_terminating(known) {
        let is_held = !object::list(known, "/spec/finalizers").is_empty();
        return Ok(is_held.then(|| Outcome::Kept(Arc::clone(current))));
    }
    review(core, resource, ("", name), current, options, environment)?;
    let mut new = known.clone();
    object::set_metadata(&mut new, "deletionTimestamp", json!(object::time(environment.now)));
    new["status"]["phase"] = json!("Terminating");
    let stated = match options.orphan {
        Some(true) => Some(Propagation::Orphan),
        Some(false) => Some(Propagation::Foreground),
        None => options.propagation,
    };
    if let Some(policy) = stated {
        let mut finalizers = object::finalizers(&new);
        finalizers.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
        finalizers.extend(policy.finalizer().map(str::to_owned));
        object::set_finalizers(&mut new, &finalizers);
    }
    if options.dry_run {
        return Ok(Some(Outcome::Kept(Stored::new(new))));
    }
    let marked = core.store.put(resource.key(), name.to_owned(), new);
    Ok(Some(Outcome::Kept(marked)))
}

/// Deletes all objects that a list with the same options would return.
pub(crate) fn collection(
    core: &mut Core,
    target: &Target,
    query: &Query,
    options: &Options,
    form: Representation,
    environment: &mut Environment<'_>,
) -> Result<Bytes, Refusal> {
    let resource = Arc::clone(&target.resource);
    let page = read::page(core, target, query, form, 0)?;
    // Webhooks review all objects before the first is deleted: a request that waits for a webhook must change nothing.
    let mut refused = None;
    let mut allowed = 0;
    for stored in &page.items {
        let value = stored.value();
        let namespace = object::namespace(&value);
        // Webhooks do not see the name, because the request has none.
        refused = review(core, &resource, (namespace, ""), stored, options, environment).err();
        if refused.is_some() {
            break;
        }
        allowed += 1;
    }
    if let Some(refusal) = refused.take_if(|_| environment.hearing.is_waiting()) {
        return Err(refusal);
    }
    let reviewed = Options { shown: None, ..options.clone() };
    for stored in &page.items[..allowed] {
        let value = stored.value();
        let (namespace, name) = (object::namespace(&value), object::name(&value));
        match one(core, &resource, namespace, name, &reviewed, environment) {
            Err(refusal) if refusal.reason() != "NotFound" => return Err(refusal),
            _ => {}
        }
    }
    if let Some(refusal) = refused {
        return Err(refusal);
    }
    Ok(render::list(&resource, page.items.iter().map(Arc::as_ref), &page.metadata, form, environment.now))
}
