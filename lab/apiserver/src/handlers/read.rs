//! Reads: get, list with its pages, and the start of a watch.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::{self, Stored};
use crate::protocol::render;
use crate::protocol::request::{self, Query, Representation, Target};
use crate::protocol::status::{Cause, Refusal};
use crate::state::Core;
use crate::store;
use crate::store::selection::Selection;
use crate::store::watch::Watch;

const TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// A watch without a timeout lasts between half an hour and an hour. The real server draws the time at random.
const WATCH_SECONDS: i64 = 1800;

pub(crate) fn get(core: &Core, target: &Target, query: &Query, behind: u64) -> Result<Arc<Stored>, Refusal> {
    let asked = read_revision(query)?;
    let now = core.store.revision();
    if let Some(asked) = asked.filter(|asked| *asked > now) {
        return Err(too_new(asked, now));
    }
    let at = stale_revision(asked, now, behind);
    if at < now {
        let key = store::key(&target.namespace, &target.name);
        if let Ok(past) = core.store.snapshot(target.resource.key(), &key, at) {
            return past
                .get(key.as_str())
                .cloned()
                .ok_or_else(|| Refusal::not_found(&target.resource, &target.name));
        }
    }
    core.lookup(target)
}

/// The revision of a read by a client that accepts a stale answer, which is never older than it asked for. A client
/// that names no revision gets the newest.
fn stale_revision(asked: Option<u64>, now: u64, behind: u64) -> u64 {
    asked.map_or(now, |asked| now.saturating_sub(behind).max(asked))
}

/// A revision as clients write it; empty means "the newest". The error explains an invalid one.
fn revision(query: &Query) -> Result<Option<u64>, String> {
    match query.text("resourceVersion") {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            )
        }),
    }
}

/// The revision of a list, which is checked before anything is read.
fn list_revision(query: &Query) -> Result<Option<u64>, Refusal> {
    revision(query).map_err(|why| Refusal::bad_request(format!("invalid resource version: {why}")))
}

/// The revision of a single read or a watch, which fails where it is used.
fn read_revision(query: &Query) -> Result<Option<u64>, Refusal> {
    revision(query).map_err(|why| Refusal::internal_plain(&why))
}

/// Where a list continues.
struct Token {
    /// The revision of the first page.
    revision: u64,
    /// The first key of the next page.
    start: String,
}

impl Token {
    fn encode(&self) -> String {
        let token = json!({ "v": "meta.k8s.io/v1", "rv": self.revision, "start": self.start });
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(text: &str) -> Result<Self, Refusal> {
        let wrong = |why: &str| Refusal::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| wrong(&error.to_string()))?;
        let token: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(&error.to_string()))?;
        let revision = token.get("rv").and_then(Value::as_u64);
        Ok(Self {
            revision: revision.ok_or_else(|| wrong("it has no revision"))?,
            start: object::text(&token, "/start").to_owned(),
        })
    }
}

fn options_refused(causes: &[Cause]) -> Refusal {
    Refusal::invalid("meta.k8s.io", "ListOptions", "", causes)
}

pub(crate) fn list(
    core: &Core,
    target: &Target,
    query: &Query,
    form: Representation,
    behind: u64,
    time: Timestamp,
) -> Result<Bytes, Refusal> {
    let page = page(core, target, query, form, behind)?;
    Ok(render::list(&target.resource, page.items.iter().map(Arc::as_ref), &page.metadata, form, time))
}

/// A list, or one page of it.
pub(crate) struct Page {
    pub(crate) items: Vec<Arc<Stored>>,
    pub(crate) metadata: Value,
}

/// Selects the objects of a list.
pub(crate) fn page(
    core: &Core,
    target: &Target,
    query: &Query,
    form: Representation,
    behind: u64,
) -> Result<Page, Refusal> {
    query.number("timeoutSeconds")?;
    let limit =
        query.number("limit")?.filter(|limit| *limit > 0).and_then(|limit| usize::try_from(limit).ok());
    let selection = Selection::read(target, query)?;
    let matching = query.text("resourceVersionMatch");
    check_list_options(query, matching)?;
    let asked = list_revision(query)?;
    let now = core.store.revision();
    let page = match query.text("continue") {
        "" => None,
        token => Some(Token::decode(token)?),
    };
    if page.is_some() && !matches!(asked, None | Some(0)) {
        return Err(Refusal::bad_request("specifying resource version is not allowed when using continue"));
    }
    if let (None, Some(asked)) = (&page, asked)
        && asked > now
    {
        return Err(too_new(asked, now));
    }
    // A client that accepts any state gets all objects from the real server's cache, which has no pages.
    let limit = limit.filter(|_| asked != Some(0));
    let at = match (&page, matching, asked) {
        (Some(page), _, _) => page.revision,
        (None, "Exact", Some(asked)) => asked,
        // A page of the state at that revision: only whole lists may be newer than requested.
        (None, "", Some(asked)) if limit.is_some() && asked > 0 => asked,
        _ => stale_revision(asked, now, behind),
    };
    let resource = &target.resource;
    let start = page.as_ref().map_or("", |page| page.start.as_str());
    // Only a page or an exact list of the past needs a snapshot.
    let past;
    let items: Box<dyn Iterator<Item = (&Arc<str>, &Arc<Stored>)>> = if at == now {
        Box::new(core.store.scan(resource.key(), &selection.prefix))
    } else {
        past = core
            .store
            .snapshot(resource.key(), &selection.prefix, at)
            .map_err(|_| expired_list(page.is_some(), start, now))?;
        Box::new(past.iter())
    };
    let mut chosen: Vec<Arc<Stored>> = Vec::new();
    let mut next = None;
    let mut remaining: u64 = 0;
    for (key, stored) in items {
        if **key < *start {
            continue;
        }
        // The server does not look ahead: only the next page shows whether later objects match.
        if limit.is_some_and(|limit| chosen.len() >= limit) {
            next.get_or_insert_with(|| key.to_string());
            remaining += 1;
            continue;
        }
        if selection.matches(stored) {
            chosen.push(Arc::clone(stored));
        }
    }
    let mut metadata = json!({ "resourceVersion": at.to_string() });
    if let Some(start) = next {
        let page = Token { revision: at, start };
        metadata["continue"] = json!(page.encode());
        // With a selector the server does not count what it has not read.
        if selection.is_everything() {
            metadata["remainingItemCount"] = json!(remaining);
        }
    }
    // Lists of custom resources print fields that others omit.
    let is_table = matches!(form, Representation::Table(_));
    if resource.custom.is_some() && !is_table && metadata.get("continue").is_none() {
        metadata["continue"] = json!("");
    }
    Ok(Page { items: chosen, metadata })
}

fn check_list_options(query: &Query, matching: &str) -> Result<(), Refusal> {
    let mut causes = Vec::new();
    let mut forbid = |field: &str, why: &str| causes.push(Cause::forbidden(field, why));
    const MATCH: &str = "resourceVersionMatch";
    if !matching.is_empty() {
        if query.text("resourceVersion").is_empty() {
            forbid(MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !query.text("continue").is_empty() {
            forbid(MATCH, "resourceVersionMatch is forbidden when continue is provided");
        }
        if !["Exact", "NotOlderThan"].contains(&matching) {
            causes.push(Cause::unsupported(MATCH, matching, &["Exact", "NotOlderThan", ""]));
        } else if matching == "Exact" && query.text("resourceVersion") == "0" {
            forbid(MATCH, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if query.get("sendInitialEvents").is_some() {
        causes.push(Cause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if causes.is_empty() { Ok(()) } else { Err(options_refused(&causes)) }
}

fn too_new(asked: u64, now: u64) -> Refusal {
    Refusal::new(504, "Timeout", format!("Timeout: Too large resource version: {asked}, current: {now}"))
        .with_causes(
            json!([{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }]),
        )
        .retry_after(1)
}

fn expired_list(continues: bool, start: &str, now: u64) -> Refusal {
    if continues {
        let page = Token { revision: now, start: start.to_owned() };
        return Refusal::expired(TOO_OLD).with_continue(&page.encode());
    }
    Refusal::expired("The resourceVersion for the provided list is too old.")
}

pub(crate) fn watch(
    core: &Core,
    target: &Target,
    query: &Query,
    form: Representation,
    behind: u64,
    time: Timestamp,
) -> Result<Watch, Refusal> {
    query.number("limit")?;
    let seconds = query.number("timeoutSeconds")?;
    let selection = Selection::read(target, query)?;
    let initial = query.flag_if_set("sendInitialEvents");
    let matching = query.text("resourceVersionMatch");
    if initial.is_none() && !matching.is_empty() {
        return Err(options_refused(&[Cause::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )]));
    }
    if initial.is_some() && matching != "NotOlderThan" {
        return Err(options_refused(&[Cause::forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )]));
    }
    let asked = read_revision(query)?;
    let lasts = request::go_seconds(seconds.filter(|seconds| *seconds != 0).unwrap_or(WATCH_SECONDS));
    // A watch that should have ended already ends at once.
    let lasts = Duration::try_from(lasts).unwrap_or(Duration::ZERO);
    let bookmarks = query.flag("allowWatchBookmarks");
    let wants_state = initial.unwrap_or(matches!(asked, None | Some(0)));
    let now = core.store.revision();
    let mut watch = Watch::new(Arc::clone(&target.resource), selection, form, bookmarks, lasts);
    if wants_state {
        let ends_with_bookmark = initial.is_some() && bookmarks;
        let at = stale_revision(asked, now, behind);
        watch.begin_with_state(&core.store, at, ends_with_bookmark, time);
    } else {
        let from = asked.unwrap_or(now);
        let from = if initial.is_some() && from == 0 { now } else { from };
        watch.begin_after(from);
    }
    Ok(watch)
}
