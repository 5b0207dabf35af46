//! Captures the PodDisruptionBudgets of a cluster.

use salvor_api::{LabelSelector, Labels};
use serde_json::{Value, json};

use super::{strings, text};

/// The fields of a budget that a scenario can express.
struct Budget {
    namespace: String,
    selector: LabelSelector,
    written: Value,
    /// The number of workloads that it was assigned to.
    used: usize,
}

pub(super) struct Budgets {
    all: Vec<Budget>,
    unreadable: usize,
    /// The number of workloads with several budgets.
    several: usize,
}

impl Budgets {
    pub(super) fn of(objects: &[Value]) -> Self {
        let all: Vec<Budget> = objects.iter().filter_map(read).collect();
        Self { unreadable: objects.len() - all.len(), all, several: 0 }
    }

    /// The budget of the pods of a template.
    pub(super) fn of_template(&mut self, object: &Value, template: &Value) -> Option<Value> {
        let namespace = text(&object["metadata"]["namespace"]);
        let labels: Labels = strings(&template["metadata"]["labels"]).into_iter().collect();
        let fits = |budget: &&mut Budget| budget.namespace == namespace && budget.selector.matches(&labels);
        let mut own = self.all.iter_mut().filter(fits);
        let first = own.next()?;
        first.used += 1;
        let written = first.written.clone();
        let mut others = 0;
        for other in own {
            other.used += 1;
            others += 1;
        }
        self.several += usize::from(others > 0);
        Some(written)
    }

    /// Notes the budgets that cannot be captured as they are.
    pub(super) fn tell(&self, notes: &mut Vec<String>) {
        let shared = self.all.iter().filter(|budget| budget.used > 1).count();
        let idle = self.all.iter().filter(|budget| budget.used == 0).count();
        for (count, what) in [
            (
                self.unreadable,
                "PodDisruptionBudgets have neither minAvailable nor maxUnavailable, or no selector, and are left out",
            ),
            (idle, "PodDisruptionBudgets select no workload that is simulated, and are left out"),
            (shared, "PodDisruptionBudgets select several workloads: here each of those has one of its own"),
            (
                self.several,
                "workloads have several PodDisruptionBudgets, so that no eviction is allowed in the cluster: here the first counts",
            ),
        ] {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        }
    }
}

fn read(object: &Value) -> Option<Budget> {
    let spec = &object["spec"];
    let written = ["minAvailable", "maxUnavailable"].into_iter().find(|field| !spec[*field].is_null())?;
    // A missing selector selects nothing, and an empty one everything in the namespace.
    let selector = serde_json::from_value(spec.get("selector").filter(|it| !it.is_null())?.clone()).ok()?;
    let written = json!({ written: spec[written] });
    Some(Budget { namespace: text(&object["metadata"]["namespace"]), selector, written, used: 0 })
}
