//! Applies completed and refused steps: what the server's answers show.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use salvor_recovery::{
    Step as _,
    eviction::{Refusal, Step},
};

use super::{Evictions, subject::Subject, wire::SeenNode};
use crate::{
    client::revision::Told,
    engine::recovery::{Refused, View},
    execute::{self, Written},
    watch_set::nodes::{CountedNode, NodeWire},
};

/// Delay before a refused write is retried.
const REFUSED_FOR: SignedDuration = SignedDuration::from_mins(1);
/// Limit on the part of the server's message that is passed on.
const LONGEST_WORDS: usize = 400;

impl Evictions {
    pub(super) fn done(&mut self, subject: &Subject, step: &Step, answer: &Written, now: Timestamp) -> View {
        if let Subject::Node { name } = subject
            && let Some(node) = self.nodes.get_mut(name)
        {
            node.view.refused.retain(|refusal| refusal.step != step.name());
        }
        match (subject, step) {
            (Subject::Node { name }, Step::EmitEvent(note)) => {
                if let Some(node) = self.nodes.get_mut(name) {
                    // The last of each kind is enough: the server's message on a refusal may differ every time.
                    let kind = |name: &str| name.split('.').next().map(str::to_owned);
                    node.view.told.retain(|told| kind(told) != kind(&note.name));
                    node.view.told.insert(note.name.clone());
                }
                View::Synced
            }
            (Subject::Pod(pod), Step::EmitEvent(_)) => {
                if let Some(pod) = self.nodes.get_mut(&pod.node).and_then(|n| n.pods.get_mut(&pod.uid)) {
                    pod.announced = true;
                }
                View::Synced
            }
            (Subject::Node { .. }, _) => match answer {
                Written::Object(object) => match serde_json::from_str::<NodeWire>(object) {
                    // Other affected subjects are requeued when the watch delivers the same state.
                    Ok(wire) => {
                        let counted = Arc::new(CountedNode::from(&wire));
                        let seen = SeenNode::new(&wire, &counted, &self.policy);
                        // If the watch reported its deletion before the answer arrived, the node must not come back.
                        let known = self.counted.get(&counted.node.name);
                        let is_there = known.is_some_and(|known| known.node == counted.node);
                        match Some(seen).filter(|seen| is_there && seen.view.is_some()) {
                            Some(node) => {
                                if let Some((view, watch)) = node.view.as_ref().zip(self.node_watch.as_ref())
                                {
                                    watch.saw(view.resource_version.revision());
                                }
                                self.apply_node(node, Told::Alone, now);
                                View::Synced
                            }
                            None => View::Lagging,
                        }
                    }
                    Err(_) => View::Lagging,
                },
                Written::Nothing => View::Lagging,
            },
            (Subject::Pod(_), _) => View::Lagging,
        }
    }

    pub(super) fn refused(
        &mut self,
        subject: &Subject,
        step: &Step,
        refusal: &execute::Refusal,
        now: Timestamp,
    ) -> Refused {
        let Subject::Node { name } = subject else { return Refused::Waits };
        let is_told = step.tells().is_some();
        let Some(node) = self.nodes.get_mut(name).filter(|_| !is_told) else { return Refused::Waits };
        // Decided again, which reports the refusal on the node; retried later.
        node.view.refused.retain(|refusal| refusal.step != step.name());
        node.view.refused.push(Refusal {
            step: step.name(),
            what: step.to_string(),
            words: shortened(&refusal.words).to_owned(),
            until: now.saturating_add(REFUSED_FOR).unwrap_or(Timestamp::MAX),
        });
        Refused::Judged(None)
    }
}

fn shortened(words: &str) -> &str {
    &words[..words.floor_char_boundary(LONGEST_WORDS)]
}
