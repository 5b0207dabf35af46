//! Which kinds a cluster serves, and where.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Reader, Refusal, WhyError};
use crate::{
    json,
    kinds::{Kind, Resource, ServedKind, USUAL_GROUPS, built_in, by_name, encode, words},
    near::near,
};

impl Reader {
    /// Where a kind is served; `None` if it is not.
    pub(super) async fn locate(&mut self, kind: &Kind) -> Result<Option<Resource>, Refusal> {
        if let Some(resource) = built_in(kind) {
            return Ok(Some(resource));
        }
        if let Some(known) = self.served.get(kind) {
            return Ok(known.clone());
        }
        let found = self.group(&kind.group).await?.into_iter().find(|found| found.resource.kind == *kind);
        let resource = found.map(|found| found.resource);
        self.served.insert(kind.clone(), resource.clone());
        Ok(resource)
    }

    /// The kind that people call by this word.
    pub(super) async fn resolve(&mut self, word: &str) -> Result<Resource, WhyError> {
        if let Some(resource) = by_name(word) {
            return Ok(resource);
        }
        let low = word.to_lowercase();
        let (short, group) =
            low.split_once('.').map_or((low.as_str(), None), |(short, group)| (short, Some(group)));
        let usual = USUAL_GROUPS
            .iter()
            .filter(|(word, _)| short.trim_end_matches('s') == *word)
            .map(|(_, group)| (*group).to_owned());
        // A group, or a version and a group, as in deployments.v1.apps.
        let after_version = group.and_then(|group| group.split_once('.')).map(|(_, group)| group);
        let named = group.into_iter().chain(after_version).map(str::to_owned);
        let mut groups: Vec<String> = named.chain(usual).collect();
        if group.is_none() {
            // An answer without groups means an unknown kind. A server that does not answer is an error of its own.
            let all = self.fetch("/apis", false).await;
            let all = all.map_err(|refusal| WhyError::NotReadable {
                what: "the kinds of this cluster".to_owned(),
                why: refusal.message,
            })?;
            groups.extend(
                json::list(&all, "/groups").iter().map(|group| json::text(group, "/name").to_owned()),
            );
            groups.push(String::new());
        }
        for group in groups {
            // One group that does not answer must not hide the others.
            let found = self.group(&group).await.unwrap_or_default();
            let found = found.into_iter().find(|found| found.names.iter().any(|name| name == short));
            if let Some(found) = found {
                return Ok(found.resource);
            }
        }
        let served = self.groups.values().flatten().flat_map(|found| found.names.iter().cloned());
        let known: BTreeSet<String> = words().chain(served).collect();
        let near = near(short, known.iter().map(String::as_str));
        Err(WhyError::UnknownKind { word: word.to_owned(), near })
    }

    /// The kinds of a group, in the server's preferred version.
    async fn group(&mut self, group: &str) -> Result<Vec<ServedKind>, Refusal> {
        if let Some(known) = self.groups.get(group) {
            return Ok(known.clone());
        }
        let found = match self.discover(group).await {
            Err(Refusal { code: 404, .. }) => Vec::new(),
            other => other?,
        };
        self.groups.insert(group.to_owned(), found.clone());
        Ok(found)
    }

    async fn discover(&mut self, group: &str) -> Result<Vec<ServedKind>, Refusal> {
        let (root, version) = if group.is_empty() {
            ("/api/v1".to_owned(), "v1".to_owned())
        } else {
            let about = self.fetch(&format!("/apis/{}", encode(group)), false).await?;
            let version = json::text(&about, "/preferredVersion/version").to_owned();
            (format!("/apis/{}/{version}", encode(group)), version)
        };
        let list = self.fetch(&root, false).await?;
        let served =
            json::list(&list, "/resources").iter().filter(|one| !json::text(one, "/name").contains('/'));
        let found = served.map(|one| {
            let text = |path| json::text(one, path);
            let shorts = json::list(one, "/shortNames").iter().filter_map(Value::as_str);
            let names = [text("/name"), text("/singularName"), text("/kind")].into_iter().chain(shorts);
            ServedKind {
                names: names.map(str::to_lowercase).collect(),
                resource: Resource {
                    kind: Kind { group: group.to_owned().into(), kind: text("/kind").to_owned().into() },
                    version: version.clone(),
                    plural: text("/name").to_owned(),
                    namespaced: json::is_true(one, "/namespaced"),
                },
            }
        });
        Ok(found.collect())
    }
}
