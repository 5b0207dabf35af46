//! Writes: create and update, with all the checks between a request and the store.

use std::num::IntErrorKind;
use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::definitions;
use crate::admission::{self, Body, Operation, Subject};
use crate::environment::Environment;
use crate::kinds::part::Part;
use crate::kinds::table::{Resource, ResourceKey, Subresource};
use crate::kinds::{defaults, events, metadata, prepare, validation};
use crate::object::{self, Stored};
use crate::patch::managers;
use crate::protocol::duplicates;
use crate::protocol::request::{Query, Request, Target, media_type};
use crate::protocol::status::{Cause, Refusal};
use crate::state::{self, Core};
use crate::store;
use crate::{custom, schema};

/// A generated name is tried this many times before the client gets an error.
const NAME_ATTEMPTS: usize = 8;

#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    /// The write is an apply, which maintains `managedFields` itself.
    pub(crate) applies: bool,
    /// The options as webhooks see them. `None` for the server's own writes, which webhooks do not review.
    pub(crate) shown: Option<Value>,
}

impl Options {
    pub(crate) fn read(request: &Request, query: &Query) -> Result<Self, Refusal> {
        let kind = match request.method.as_str() {
            "POST" => "CreateOptions",
            "PATCH" => "PatchOptions",
            _ => "UpdateOptions",
        };
        let causes = wrong_options(request, query);
        if !causes.is_empty() {
            return Err(Refusal::invalid("meta.k8s.io", kind, "", &causes));
        }
        let manager = match query.text("fieldManager") {
            "" => request.user_agent.split('/').next().unwrap_or("unknown"),
            named => named,
        };
        let mut shown = json!({});
        for key in ["fieldManager", "fieldValidation"] {
            if let Some(stated) = query.get(key).filter(|stated| !stated.is_empty()) {
                shown[key] = json!(stated);
            }
        }
        let dry_run = query.dry_run(kind)?;
        if dry_run {
            shown["dryRun"] = json!(["All"]);
        }
        Ok(Self { dry_run, manager: manager.to_owned(), applies: false, shown: Some(shown) })
    }

    /// The same write, without further webhook calls.
    pub(crate) fn reviewed(&self) -> Self {
        Self { shown: None, ..self.clone() }
    }
}

/// The problems of the options of a write, apart from `dryRun`.
fn wrong_options(request: &Request, query: &Query) -> Vec<Cause> {
    const MANAGER_LENGTH: usize = 128;
    let mut causes = Vec::new();
    let manager = query.text("fieldManager");
    let applies = media_type(&request.content_type).starts_with("application/apply-patch");
    if request.method == Method::PATCH && !applies && query.get("force").is_some() {
        causes.push(Cause::forbidden("force", "may not be specified for non-apply patch"));
    }
    if request.method == Method::PATCH && applies && manager.is_empty() {
        causes.push(Cause::required("fieldManager", "is required for apply patch"));
    }
    if manager.len() > MANAGER_LENGTH {
        causes.push(Cause::too_long("fieldManager", MANAGER_LENGTH));
    }
    for (position, odd) in manager.char_indices().filter(|(_, one)| one.is_control()) {
        let why = format!("invalid character U+{:04X} (at position {position})", u32::from(odd));
        causes.push(Cause::invalid("fieldManager", &json!(manager), &why));
    }
    let strictness = query.text("fieldValidation");
    let known = ["", "Ignore", "Strict", "Warn"];
    if !known.contains(&strictness) {
        causes.push(Cause::unsupported("fieldValidation", strictness, &known));
    }
    causes
}

/// Drops or refuses unknown fields, as the client asked for, and brings the object into its stored form.
pub(crate) fn admit_fields(
    resource: &Resource,
    value: Value,
    request: &Request,
    query: &Query,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    let strictness = query.text("fieldValidation");
    let is_json = ["", "application/json"].contains(&media_type(&request.content_type));
    // Duplicate keys need another pass over the text, so only clients that ask for it pay for that.
    let repeated = if is_json && request.method != Method::PATCH && ["Strict", "Warn"].contains(&strictness) {
        duplicates::find(&request.body)
    } else {
        Vec::new()
    };
    let mut unknown = Vec::new();
    let value = if resource.custom.is_some() {
        custom::prune_noting(resource, state::normalise(resource, value, &mut unknown)?, &mut unknown)
    } else {
        state::normalise(resource, value, &mut unknown)?
    };
    let repeated = repeated.iter().map(|path| format!("duplicate field {path:?}"));
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let complaints: Vec<String> = repeated.chain(unknown).collect();
    match strictness {
        "Strict" if !complaints.is_empty() => {
            return Err(Refusal::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
                resource.kind,
                resource.version,
                resource.kind,
                complaints.join(", ")
            )));
        }
        "Ignore" => {}
        _ => warnings.extend(complaints),
    }
    let mut value = events::to_stored(resource, value);
    warnings.extend(metadata::drop_duplicate_owners(&mut value, request.method == Method::PATCH));
    Ok(value)
}

pub(crate) fn create(
    core: &mut Core,
    resource: &Arc<Resource>,
    namespace: &str,
    mut value: Value,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<Arc<Stored>, Refusal> {
    metadata::check_place(&mut value, resource, namespace, "")?;
    // A text that is no revision counts as zero.
    if object::resource_version(&value) != 0 {
        return Err(Refusal::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    object::set_metadata(&mut value, "resourceVersion", Value::Null);
    let name = match object::name(&value) {
        "" => object::text(&value, "/metadata/generateName"),
        name => name,
    };
    check_namespace(core, resource, namespace, name)?;
    mutate_new(core, resource, namespace, &mut value, options, environment)?;
    let generated =
        object::name(&value).is_empty() && !object::text(&value, "/metadata/generateName").is_empty();
    let mut attempt = 0;
    loop {
        let outcome = create_once(core, resource, namespace, value.clone(), options, environment);
        attempt += 1;
        match outcome {
            Err(refusal) if generated && refusal.reason() == "AlreadyExists" && attempt < NAME_ATTEMPTS => {}
            other => return other,
        }
    }
}

/// Lets webhooks change a new object.
fn mutate_new(
    core: &mut Core,
    resource: &Arc<Resource>,
    namespace: &str,
    value: &mut Value,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<(), Refusal> {
    let Some(shown) = options.shown.as_ref().filter(|_| admission::has_hooks(core)) else { return Ok(()) };
    let mut object = value.clone();
    for key in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        object::set_metadata(&mut object, key, Value::Null);
    }
    let mut object = with_defaults(resource, object);
    if resource.is_pod() {
        admit(core, resource, &mut object)?;
        prepare::tolerate_node_failure(&mut object);
        // The phase of a new pod is set after webhooks.
        object["status"] = value.get("status").cloned().unwrap_or_else(|| json!({}));
    }
    let mut subject = Subject {
        resource,
        subresource: "",
        namespace,
        name: object::name(&object).to_owned(),
        operation: Operation::Create,
        body: Body::Stored { object: Some(object), old: None },
        options: shown,
        dry_run: options.dry_run,
    };
    if let (true, Body::Stored { object: Some(changed), .. }) =
        (admission::mutate(core, &mut subject, environment)?, subject.body)
    {
        *value = changed;
        metadata::check_place(value, resource, namespace, "")?;
    }
    Ok(())
}

/// An object as a webhook sees it: with all defaults.
fn with_defaults(resource: &Resource, mut value: Value) -> Value {
    if let Some(custom) = &resource.custom {
        custom::default(custom, &mut value);
        return value;
    }
    defaults::apply(resource, &mut value);
    settle(resource, value)
}

fn create_once(
    core: &mut Core,
    resource: &Arc<Resource>,
    namespace: &str,
    mut value: Value,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<Arc<Stored>, Refusal> {
    metadata::fill_in(&mut value, resource, environment);
    if !options.applies {
        object::set_metadata(&mut value, "managedFields", Value::Null);
        if managers::is_lease(resource) {
            managers::track_renewal(resource, &options.manager, None, &mut value, environment.now);
        }
    }
    if let Some(custom) = &resource.custom {
        if resource.has(Subresource::Status)
            && let Some(members) = value.as_object_mut()
        {
            members.remove("status");
        }
        custom::default(custom, &mut value);
    } else {
        defaults::apply(resource, &mut value);
        prepare::create(resource, &mut value, environment);
        admit(core, resource, &mut value)?;
        value = settle(resource, value);
    }
    let mut causes = metadata::check(&value, resource);
    if resource.custom.is_some() {
        causes.extend(custom::validate(resource, &value, None));
    } else {
        causes.extend(validation::create(resource, &value));
    }
    refuse(resource, object::name(&value), &causes)?;
    prepare::when_read(resource, &mut value);
    let name = object::name(&value).to_owned();
    if let Some(shown) = options.shown.as_ref().filter(|_| admission::has_hooks(core)) {
        let subject = Subject {
            resource,
            subresource: "",
            namespace,
            name: name.clone(),
            operation: Operation::Create,
            body: Body::Stored { object: Some(value.clone()), old: None },
            options: shown,
            dry_run: options.dry_run,
        };
        admission::validate(core, &subject, environment)?;
    }
    let key = store::key(namespace, &name);
    if let Some(existing) = core.store.get(resource.key(), &key) {
        if object::is_terminating(&existing.value()) {
            return Err(Refusal::new(
                409,
                "AlreadyExists",
                format!("object is being deleted: {} {name:?} already exists", resource.qualified()),
            )
            .about_object(resource, &name));
        }
        return Err(Refusal::already_exists(resource, &name));
    }
    if options.dry_run {
        return Ok(Stored::new(value));
    }
    let stored = core.store.put(resource.key(), key, value);
    if resource.is_definition() {
        definitions::register(core, &name, environment);
        return Ok(stored);
    }
    Ok(stored)
}

/// Runs an object through the schema again, so that fields that the server added have the printed form as well.
fn settle(resource: &Resource, mut value: Value) -> Value {
    if resource.group == "events.k8s.io" {
        return value;
    }
    // Fields that the server added have the right type.
    let _ = schema::settle(&resource.schema, &mut value);
    if let Some(members) = value.as_object_mut() {
        members.remove("apiVersion");
        members.remove("kind");
    }
    value
}

fn check_namespace(core: &Core, resource: &Resource, namespace: &str, name: &str) -> Result<(), Refusal> {
    if !resource.namespaced {
        return Ok(());
    }
    let Some(found) = core.namespace(namespace) else {
        return Err(Refusal::namespace_not_found(namespace));
    };
    if object::is_terminating(&found.value()) {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        return Err(Refusal::forbidden(resource, name, &why).with_causes(cause));
    }
    Ok(())
}

/// Defaults of admission that depend on other objects.
fn admit(core: &mut Core, resource: &Resource, value: &mut Value) -> Result<(), Refusal> {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => {
            let class = object::text(value, "/spec/priorityClassName").to_owned();
            let found = if class.is_empty() {
                default_priority(core)
            } else {
                let found = core.store.get(&priority_classes(), &class).map(|stored| stored.value());
                Some(found.ok_or_else(|| {
                    let why = format!("no PriorityClass with name {class} was found");
                    Refusal::forbidden(resource, object::name(value), &why)
                })?)
            };
            let of_class = |key: &str| found.as_ref().and_then(|found| found.get(key)).cloned();
            let spec = object::object_at(value, "spec");
            if let Some(found) = &found {
                spec.insert("priorityClassName".to_owned(), json!(object::name(found)));
            }
            spec.insert("priority".to_owned(), of_class("value").unwrap_or(json!(0)));
            let policy = of_class("preemptionPolicy").unwrap_or(json!("PreemptLowerPriority"));
            spec.entry("preemptionPolicy").or_insert(policy);
        }
        ("scheduling.k8s.io", "PriorityClass") => check_default_priority(core, resource, value)?,
        ("", "Service") => allocate_address(core, value),
        _ => {}
    }
    Ok(())
}

fn priority_classes() -> ResourceKey {
    ("scheduling.k8s.io".to_owned(), "priorityclasses".to_owned())
}

/// The priority class of pods that name none.
fn default_priority(core: &Core) -> Option<Arc<Value>> {
    core.store
        .scan(&priority_classes(), "")
        .map(|(_, stored)| stored.value())
        .find(|class| class.get("globalDefault") == Some(&json!(true)))
}

/// Refuses a second default class.
fn check_default_priority(core: &Core, resource: &Resource, class: &Value) -> Result<(), Refusal> {
    let name = object::name(class);
    match default_priority(core).as_deref().map(object::name) {
        Some(known) if class.get("globalDefault") == Some(&json!(true)) && known != name => {
            let why =
                format!("PriorityClass {known} is already marked as default. Only one default can exist");
            Err(Refusal::forbidden(resource, name, &why))
        }
        _ => Ok(()),
    }
}

fn allocate_address(core: &mut Core, value: &mut Value) {
    let selector = value.pointer("/spec/selector").is_some();
    let spec = object::object_at(value, "spec");
    if spec.get("type") == Some(&json!("ExternalName")) {
        return;
    }
    let headless = spec.get("clusterIP") == Some(&json!("None"));
    if !spec.contains_key("clusterIP") {
        core.service_addresses = core.service_addresses.wrapping_add(1);
        let [high, low] = core.service_addresses.to_be_bytes();
        spec.insert("clusterIP".to_owned(), json!(format!("10.0.{high}.{low}")));
    }
    let address = spec["clusterIP"].clone();
    spec.entry("clusterIPs").or_insert_with(|| json!([address]));
    let (families, policy) = if headless && !selector {
        (json!(["IPv4", "IPv6"]), "RequireDualStack")
    } else {
        (json!(["IPv4"]), "SingleStack")
    };
    spec.entry("ipFamilies").or_insert(families);
    spec.entry("ipFamilyPolicy").or_insert(json!(policy));
}

pub(crate) fn refuse(resource: &Resource, name: &str, causes: &[Cause]) -> Result<(), Refusal> {
    if causes.is_empty() {
        Ok(())
    } else {
        // An Event is refused under its older name.
        let group = if resource.is("events.k8s.io", "Event") { "" } else { &resource.group };
        Err(Refusal::invalid(group, &resource.kind, name, causes))
    }
}

/// Replaces an object with the one that the client sent.
pub(crate) fn replace(
    core: &mut Core,
    target: &Target,
    mut value: Value,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<(StatusCode, Arc<Stored>), Refusal> {
    let resource = &target.resource;
    metadata::check_place(&mut value, resource, &target.namespace, &target.name)?;
    let Some(current) = core.present(resource, &target.namespace, &target.name) else {
        if !resource.create_on_update {
            return Err(Refusal::not_found(resource, &target.name));
        }
        let uid = object::uid(&value);
        if !uid.is_empty() {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
            return Err(Refusal::conflict(resource, &target.name, &why));
        }
        object::set_metadata(&mut value, "resourceVersion", Value::Null);
        let stored = create(core, resource, &target.namespace, value, options, environment)?;
        return Ok((StatusCode::CREATED, stored));
    };
    check_uid(resource, &target.name, &current.value(), &value)?;
    let stored = update(core, target, Part::Whole, &current, value, options, environment)?;
    Ok((StatusCode::OK, stored))
}

/// A replacement with another UID refers to an object that is gone.
pub(crate) fn check_uid(
    resource: &Resource,
    name: &str,
    current: &Value,
    new: &Value,
) -> Result<(), Refusal> {
    let (wanted, found) = (object::uid(new), object::uid(current));
    if !wanted.is_empty() && wanted != found {
        let key = resource.registry_key(object::namespace(current), name);
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
        );
        return Err(Refusal::conflict(resource, name, &why));
    }
    Ok(())
}

/// Stores a changed object, in its stored form, if all rules allow it.
pub(crate) fn update(
    core: &mut Core,
    target: &Target,
    part: Part,
    current: &Arc<Stored>,
    mut new: Value,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<Arc<Stored>, Refusal> {
    let resource = &target.resource;
    let name = target.name.as_str();
    let old = &*current.value();
    // The subject of a review is built only if there is one: it copies both objects.
    let is_reviewed = options.shown.is_some() && admission::has_hooks(core);
    let subject_with = |object: Value| Subject {
        resource,
        subresource: &target.subresource,
        namespace: &target.namespace,
        name: name.to_owned(),
        operation: Operation::Update,
        body: Body::Stored { object: Some(object), old: Some(old.clone()) },
        options: options.shown.as_ref().unwrap_or(&Value::Null),
        dry_run: options.dry_run,
    };
    if is_reviewed {
        let mut subject = subject_with(with_defaults(resource, new.clone()));
        if let (true, Body::Stored { object: Some(changed), .. }) =
            (admission::mutate(core, &mut subject, environment)?, subject.body)
        {
            new = changed;
            metadata::check_place(&mut new, resource, &target.namespace, name)?;
        }
    }
    let version = object::text(&new, "/metadata/resourceVersion");
    if version.is_empty() || version == "0" {
        if !resource.unconditional_update {
            let cause =
                Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
            return Err(Refusal::invalid(&resource.group, &resource.plural, name, &[cause]));
        }
    } else if let Err(error) = version.parse::<u64>() {
        let why = match error.kind() {
            IntErrorKind::PosOverflow => "value out of range",
            _ => "invalid syntax",
        };
        return Err(Refusal::internal_plain(&format!("strconv.ParseUint: parsing {version:?}: {why}")));
    } else if version != object::text(old, "/metadata/resourceVersion") {
        return Err(Refusal::modified(resource, name));
    }
    metadata::carry_over(old, &mut new);
    match part {
        Part::Whole => {
            prepare::update(resource, old, &mut new, environment.now);
            if resource.custom.is_none() {
                defaults::apply(resource, &mut new);
            }
        }
        Part::Status => {
            defaults::apply(resource, &mut new);
            prepare::update_status(resource, old, &mut new, environment.now);
        }
        Part::Finalizers => defaults::apply(resource, &mut new),
        Part::Spec | Part::Node => {}
    }
    if let Some(custom) = &resource.custom {
        custom::default(custom, &mut new);
    } else {
        new = settle(resource, new);
    }
    object::set_metadata(&mut new, "resourceVersion", json!(object::text(old, "/metadata/resourceVersion")));
    if !matches!(part, Part::Status | Part::Node) {
        metadata::count_generation(resource, old, &mut new);
    }
    let mut causes = metadata::check_update(old, &new, resource);
    if resource.custom.is_some() {
        causes.extend(custom::validate(resource, &new, Some(old)));
    } else {
        causes.extend(match part {
            Part::Whole => validation::update(resource, old, &new),
            Part::Status => validation::update_status(resource, old, &new),
            Part::Finalizers => validation::finalize(&new),
            Part::Spec | Part::Node => Vec::new(),
        });
    }
    refuse(resource, name, &causes)?;
    if resource.is("scheduling.k8s.io", "PriorityClass") {
        check_default_priority(core, resource, &new)?;
    }
    prepare::when_read(resource, &mut new);
    if !options.applies {
        managers::track_update(resource, part, &options.manager, old, &mut new, environment.now);
    }
    if is_reviewed {
        admission::validate(core, &subject_with(new.clone()), environment)?;
    }
    if new == *old {
        return Ok(Arc::clone(current));
    }
    if options.dry_run {
        return Ok(Stored::new(new));
    }
    let key = store::key(&target.namespace, name);
    let is_released = object::is_terminating(&new)
        && object::finalizers(&new).is_empty()
        && new.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0) == 0
        && (!resource.is_namespace() || object::list(&new, "/spec/finalizers").is_empty());
    if is_released {
        core.store.remove(resource.key(), &key);
        if resource.is_definition() {
            definitions::unregister(core, name);
        }
        return Ok(Stored::new(new));
    }
    let stored = core.store.put(resource.key(), key, new);
    if resource.is_definition() {
        definitions::register(core, name, environment);
    }
    Ok(stored)
}
