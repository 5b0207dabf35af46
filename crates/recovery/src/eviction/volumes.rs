//! Decides which volumes an evicted node no longer uses, so that they are detached.
//!
//! A node names a volume by its driver and handle (`kubernetes.io/csi/DRIVER^HANDLE`); an attachment names a driver and
//! a PersistentVolume. The PersistentVolumes are read only where counting is not enough, and never more than are
//! attached: a tenant may have thousands of claims.

use serde_json::Value;

use super::views::AttachmentView;
use crate::gate::Claim;
use crate::ids::Uid;
use crate::objects::{Object, PERSISTENT_VOLUME};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Volumes<'a> {
    /// The volumes in use, by the node's own names.
    pub(super) in_use: &'a [String],
    pub(super) attached: &'a [AttachmentView],
    /// The attached volumes in the node's status, by the node's own names.
    pub(super) attached_names: &'a [String],
    /// Claims of pods that stay, in order.
    pub(super) keep: &'a [Claim],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The volumes that the node still uses, by its own names.
    pub(super) left: Vec<String>,
    /// PersistentVolumes that stay, because a remaining pod has claimed them.
    pub(super) kept: Vec<String>,
}

struct Volume {
    /// The node's name for it, if it belongs to a CSI driver.
    name: Option<String>,
    /// The claim that it is bound to.
    claim: Option<Claim>,
}

impl<'a> Volumes<'a> {
    /// The volumes in use that the attachments do not account for, found without reading PersistentVolumes. If no
    /// remaining pod has a claim, a driver's attachments account for all its volumes, unless there are more volumes.
    fn left_by_counting(&self) -> Vec<String> {
        let mut left = self.in_use.to_vec();
        if self.keep.is_empty() {
            left.retain(|name| !self.attached_names.contains(name));
            strike_by_count(&mut left, &self.attached.iter().collect::<Vec<_>>());
        }
        left
    }

    fn is_settled_by_counting(&self) -> bool {
        self.keep.is_empty() && self.left_by_counting().is_empty()
    }

    /// The PersistentVolumes that must be read to decide what stays: those behind the attachments, in their order.
    pub(super) fn volumes_to_read(&self) -> Vec<Object<'a>> {
        if self.is_settled_by_counting() {
            return Vec::new();
        }
        let named = self.attached.iter().filter_map(|attachment| attachment.volume.as_deref());
        named
            .map(|name| Object { kind: &PERSISTENT_VOLUME, namespace: None, name, uid: Uid::unknown() })
            .collect()
    }

    /// The volumes that stay, given the objects that were read.
    pub(super) fn settle(&self, read: &[Option<Value>]) -> Outcome {
        let mut left = self.left_by_counting();
        if self.is_settled_by_counting() {
            return Outcome::default();
        }
        let mut answers = read.iter();
        let volumes: Vec<(&AttachmentView, Option<Volume>)> = self
            .attached
            .iter()
            .map(|attachment| {
                let object = attachment.volume.as_ref().and_then(|_| answers.next());
                (attachment, object.and_then(Option::as_ref).map(Volume::of))
            })
            .collect();
        let stays = |volume: &Volume| {
            volume.claim.as_ref().is_some_and(|claim| self.keep.binary_search(claim).is_ok())
        };
        let known = || volumes.iter().filter_map(|(attachment, volume)| Some((attachment, volume.as_ref()?)));
        let names_of = |staying: bool| -> Vec<&String> {
            known().filter(|(_, it)| stays(it) == staying).filter_map(|(_, it)| it.name.as_ref()).collect()
        };
        let (gone, kept_names) = (names_of(false), names_of(true));
        left.retain(|name| kept_names.contains(&name) || !gone.contains(&name));
        // A volume whose PersistentVolume is gone, or has an in-tree type, has no name to look up.
        if self.keep.is_empty() {
            let is_nameless = |volume: &Option<Volume>| volume.as_ref().is_none_or(|it| it.name.is_none());
            let nameless: Vec<&AttachmentView> =
                volumes.iter().filter(|(_, it)| is_nameless(it)).map(|(attachment, _)| *attachment).collect();
            strike_by_count(&mut left, &nameless);
        }
        let kept = known()
            .filter(|(_, volume)| stays(volume))
            .filter_map(|(attachment, _)| attachment.volume.clone());
        let kept = kept.collect();
        Outcome { left, kept }
    }
}

impl Volume {
    fn of(object: &Value) -> Self {
        let (csi, claim) = (&object["spec"]["csi"], &object["spec"]["claimRef"]);
        let (driver, handle) = (text(&csi["driver"]), text(&csi["volumeHandle"]));
        let name = driver.zip(handle).map(|(driver, handle)| format!("{}{handle}", names_begin(&driver)));
        let claim = text(&claim["namespace"]).zip(text(&claim["name"]));
        Self { name, claim: claim.map(|(namespace, name)| Claim { namespace, name }) }
    }
}

/// The prefix of a node's names for the volumes of a driver.
fn names_begin(driver: &str) -> String {
    format!("kubernetes.io/csi/{driver}^")
}

/// Removes the names of each driver that does not have more names than attachments.
fn strike_by_count(names: &mut Vec<String>, attached: &[&AttachmentView]) {
    for AttachmentView { driver, .. } in attached {
        let begin = names_begin(driver);
        let unknown = names.iter().filter(|name| name.starts_with(&begin)).count();
        if unknown <= attached.iter().filter(|other| other.driver == *driver).count() {
            names.retain(|name| !name.starts_with(&begin));
        }
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}
