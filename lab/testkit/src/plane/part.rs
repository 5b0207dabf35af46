//! The four programs of a control plane, and how their command lines are built.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Etcd,
    ApiServer,
    /// Node lifecycle, taint eviction, jobs, garbage collection and the other control loops.
    ControllerManager,
    Scheduler,
}

impl Part {
    /// All of them, in the order in which they start.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler];

    /// The name of its program, and of its log.
    pub fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// The command line: defaults, then what the caller chose. A later flag replaces an earlier one of the same name,
/// because the programs themselves would append the values of list flags.
pub(crate) fn command_line(defaults: Vec<String>, chosen: &[String]) -> Vec<String> {
    let mut line: Vec<String> = Vec::new();
    for flag in defaults.into_iter().chain(chosen.iter().cloned()) {
        match line.iter_mut().find(|earlier| name(earlier) == name(&flag)) {
            Some(earlier) => *earlier = flag,
            None => line.push(flag),
        }
    }
    line
}

fn name(flag: &str) -> &str {
    let bare = flag.trim_start_matches('-');
    bare.split_once('=').map_or(bare, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(flags: &[&str]) -> Vec<String> {
        flags.iter().map(|&flag| flag.to_owned()).collect()
    }

    #[test]
    fn a_chosen_flag_replaces_the_default_of_the_same_name() {
        let line = command_line(
            strings(&["--a=1", "--leader-elect=false", "--ab=2"]),
            &strings(&["--a=3", "--new", "--a=4"]),
        );
        assert_eq!(line, strings(&["--a=4", "--leader-elect=false", "--ab=2", "--new"]));
    }

    #[test]
    fn one_dash_or_two_and_a_value_or_none_name_the_same_flag() {
        assert_eq!(command_line(strings(&["--v=1"]), &strings(&["-v=4"])), strings(&["-v=4"]));
        assert_eq!(command_line(strings(&["--x=false"]), &strings(&["--x"])), strings(&["--x"]));
    }
}
