//! Records what happens to every object, in order.

use std::{
    io::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salvor_apiserver::{Change, Cluster};

/// Every change of every object, in order, with its time: one line of JSON each. Clones share the log.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Vec<u8>>>);

impl History {
    /// Records a cluster from now on.
    pub fn of(cluster: &Cluster) -> Self {
        let history = Self::default();
        let pen = history.clone();
        cluster.observe(move |change| pen.record(change));
        history
    }

    pub(crate) fn record(&self, change: &Change<'_>) {
        let Change { at, revision, group, resource, kind, object, .. } = change;
        let mut lines = self.lines();
        // Writing to memory cannot fail.
        let _ = write!(
            lines,
            r#"{{"at":"{at}","revision":{revision},"change":"{kind:?}","group":"{group}","resource":"{resource}","object":"#
        );
        lines.extend_from_slice(object);
        lines.extend_from_slice(b"}\n");
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.lines().clone()
    }

    fn lines(&self) -> MutexGuard<'_, Vec<u8>> {
        // A panic elsewhere truncates at most one line.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
