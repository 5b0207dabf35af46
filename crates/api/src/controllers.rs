//! The list of enabled recoveries, in the form of kube-controller-manager's `--controllers`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A recovery that can be switched on or off by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Pods stuck terminating on an unreachable node.
    Zombie,
    /// Jobs that Salvor runs in place of the built-in Job controller.
    Job,
    /// Nodes that are certainly down and must be evicted.
    Eviction,
    /// Workloads in an AppWrapper.
    AppWrapper,
    /// Nodes that have been sick for too long and must be replaced.
    Repair,
}

impl Controller {
    /// All recoveries.
    pub const ALL: &'static [Self] =
        &[Self::Zombie, Self::Job, Self::Eviction, Self::AppWrapper, Self::Repair];

    /// Whether `*` switches it on. A recovery that needs a CRD and far-reaching rights runs only where it is named.
    pub const fn is_on_by_default(self) -> bool {
        match self {
            Self::Zombie | Self::Job | Self::Eviction => true,
            Self::AppWrapper | Self::Repair => false,
        }
    }

    /// The name in flags, in the configuration file and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zombie => "zombie",
            Self::Job => "job",
            Self::Eviction => "eviction",
            Self::AppWrapper => "appwrapper",
            Self::Repair => "repair",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An entry of the list that is not a recovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown controller {entry:?}: known are \"*\" (all that are on by default) and {}; a leading \"-\" switches one off",
    known()
)]
pub struct UnknownController {
    /// The entry as written.
    pub entry: String,
}

fn known() -> String {
    let names: Vec<_> = Controller::ALL.iter().map(|controller| format!("{:?}", controller.name())).collect();
    names.join(", ")
}

/// `*` switches on all recoveries that are on by default, `name` switches one on, `-name` switches one off. The first
/// entry for a name wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ControllerList(Vec<String>);

impl Default for ControllerList {
    fn default() -> Self {
        Self(vec!["*".into()])
    }
}

impl ControllerList {
    /// A list of entries, unchecked; see [`Self::unknown`].
    pub fn new(entries: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(entries.into_iter().map(Into::into).collect())
    }

    /// Whether a recovery is enabled.
    pub fn enabled(&self, controller: Controller) -> bool {
        let name = controller.name();
        self.0
            .iter()
            .find_map(|entry| match entry.strip_prefix('-') {
                Some(off) => (off == name).then_some(false),
                None => (entry == name).then_some(true),
            })
            .unwrap_or_else(|| controller.is_on_by_default() && self.0.iter().any(|entry| entry == "*"))
    }

    /// The entries that are not recoveries, with their positions.
    pub fn unknown(&self) -> impl Iterator<Item = (usize, UnknownController)> {
        self.0.iter().enumerate().filter_map(|(index, entry)| {
            let name = entry.strip_prefix('-').unwrap_or(entry);
            let known = entry == "*" || Controller::ALL.iter().any(|controller| controller.name() == name);
            (!known).then(|| (index, UnknownController { entry: entry.clone() }))
        })
    }
}

/// Parses the form of the `--controllers` flag: entries separated by commas.
impl FromStr for ControllerList {
    type Err = UnknownController;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let list = Self::new(list.split(',').map(str::trim).filter(|entry| !entry.is_empty()));
        let unknown = list.unknown().next();
        unknown.map_or(Ok(list), |(_, unknown)| Err(unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_mean_what_they_mean_to_kube_controller_manager() {
        let cases = [
            ("*", true),
            ("zombie", true),
            ("-zombie", false),
            ("*,-zombie", false),
            ("-zombie,*", false),
            ("-zombie,zombie", false),
            ("zombie,-zombie", true),
            ("", false),
        ];
        for (list, enabled) in cases {
            let controllers: ControllerList = list.parse().unwrap();
            assert_eq!(controllers.enabled(Controller::Zombie), enabled, "{list:?}");
        }
        assert!(ControllerList::default().enabled(Controller::Zombie));
    }

    #[test]
    fn appwrapper_runs_only_where_it_is_named() {
        let cases = [
            ("*", false),
            ("appwrapper", true),
            ("*,appwrapper", true),
            ("appwrapper,*", true),
            ("*,-appwrapper", false),
            ("zombie", false),
        ];
        for (list, enabled) in cases {
            let controllers: ControllerList = list.parse().unwrap();
            assert_eq!(controllers.enabled(Controller::AppWrapper), enabled, "{list:?}");
        }
        assert!(!ControllerList::default().enabled(Controller::AppWrapper));
        assert!(!ControllerList::default().enabled(Controller::Repair));
        assert!("repair".parse::<ControllerList>().unwrap().enabled(Controller::Repair));
    }

    #[test]
    fn unknown_names_are_found_with_the_known_ones() {
        let list = ControllerList::new(["*", "vampire", "-zombie", "-ghoul", "-*"]);
        let found: Vec<_> = list.unknown().map(|(index, unknown)| (index, unknown.entry)).collect();
        assert_eq!(found, [(1, "vampire".into()), (3, "-ghoul".into()), (4, "-*".into())]);
        let error = "*,vampire".parse::<ControllerList>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown controller \"vampire\": known are \"*\" (all that are on by default) and \"zombie\", \"job\", \"eviction\", \"appwrapper\", \"repair\"; a leading \"-\" switches one off"
        );
    }
}
