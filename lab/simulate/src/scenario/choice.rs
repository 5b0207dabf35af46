//! Changes a choice of a workload's owner in a scenario.

use std::time::Duration;

use super::{Consent, Scenario, Shape, file::unplaced, read};

/// The fields that can be set.
const FIELDS: &str =
    "consent, podReplacementPolicy, toleratesUnreachable, gracePeriod, evictAfter or checkpointEvery";

impl Scenario {
    /// Sets a field of a workload, for example `train.consent`, to a value as it is written in a file.
    ///
    /// # Errors
    /// If there is no such workload or field, or it cannot have this value.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), String> {
        let usage = || format!("{path:?} is no field of a workload: write NAME.FIELD; a FIELD is {FIELDS}");
        let (name, field) = path.split_once('.').ok_or_else(usage)?;
        let known: Vec<&str> = self.workloads.iter().map(|it| it.name.as_str()).collect();
        let known = known.join(", ");
        let workload = self.workloads.iter_mut().find(|it| it.name == name);
        let workload = workload.ok_or_else(|| format!("there is no workload {name:?}: there are {known}"))?;
        match field {
            "consent" => workload.consent = Consent::read(value)?,
            "podReplacementPolicy" => match &mut workload.shape {
                Shape::Job { waits_for_the_end, .. } | Shape::JobSet { waits_for_the_end, .. } => {
                    *waits_for_the_end = Shape::waits(value)?;
                }
                Shape::StatefulSet { .. } | Shape::Deployment | Shape::AppWrapper => {
                    return Err(format!(
                        "{name} has no podReplacementPolicy: only Jobs and JobSets have one"
                    ));
                }
            },
            "toleratesUnreachable" => workload.tolerates = Some(time(path, value)?),
            "gracePeriod" => workload.grace = time(path, value)?,
            "evictAfter" => workload.evict_after = Some(time(path, value)?),
            "checkpointEvery" if workload.accumulates() => {
                let every = time(path, value)?;
                if every.is_zero() {
                    return Err(format!("{path}: must be more than 0s"));
                }
                workload.checkpoint_every = Some(every);
            }
            "checkpointEvery" => {
                return Err(format!("{name} has no checkpoints: only Jobs and AppWrappers have some"));
            }
            _ => return Err(usage()),
        }
        Ok(())
    }
}

fn time(path: &str, value: &str) -> Result<Duration, String> {
    // The value does not come from a file, so there is no line to report.
    read::duration(&unplaced(value.to_owned()), path).map_err(|error| match error {
        super::ScenarioError::Value { field, problem, .. } => format!("{field}: {problem}"),
        super::ScenarioError::Yaml(problem) => problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Source;

    const TEXT: &str = "\
title: t
pools: [{name: cpu, nodes: 3}]
workloads:
- {name: train, kind: IndexedJob, pods: 3}
- {name: db, kind: StatefulSet, pods: 1}
";

    #[test]
    fn an_owner_may_choose_otherwise() {
        let mut scenario = Scenario::read(TEXT, &Source::default()).unwrap();
        for (path, value) in [
            ("train.consent", "terminate"),
            ("train.podReplacementPolicy", "Failed"),
            ("train.toleratesUnreachable", "2m"),
            ("train.gracePeriod", "7s"),
            ("train.evictAfter", "0s"),
            ("train.checkpointEvery", "10m"),
            ("db.consent", "delete"),
        ] {
            scenario.set(path, value).unwrap_or_else(|error| panic!("{path}={value}: {error}"));
        }
        let [train, db] = &scenario.workloads[..] else { panic!("two workloads") };
        assert_eq!((train.consent, db.consent), (Consent::Terminate, Consent::Delete));
        assert!(matches!(train.shape, Shape::Job { waits_for_the_end: true, .. }));
        assert_eq!(train.tolerates, Some(Duration::from_secs(120)));
        assert_eq!((train.evict_after, db.evict_after), (Some(Duration::ZERO), None));
        assert_eq!(
            (train.grace, train.checkpoint_every),
            (Duration::from_secs(7), Some(Duration::from_secs(600)))
        );
    }

    #[test]
    fn a_wrong_choice_names_what_would_be_right() {
        let mut scenario = Scenario::read(TEXT, &Source::default()).unwrap();
        for (path, value, expected) in [
            ("train", "1", "write NAME.FIELD"),
            ("train.colour", "red", "a FIELD is consent, podReplacementPolicy"),
            ("web.consent", "none", "there is no workload \"web\": there are train, db"),
            ("train.consent", "yes", "write none, terminate or delete"),
            ("train.podReplacementPolicy", "Never", "write Failed or TerminatingOrFailed"),
            ("db.podReplacementPolicy", "Failed", "only Jobs and JobSets have one"),
            ("db.checkpointEvery", "1m", "db has no checkpoints"),
            ("train.checkpointEvery", "0s", "must be more than 0s"),
            ("train.toleratesUnreachable", "soon", "train.toleratesUnreachable: "),
        ] {
            let error = scenario.set(path, value).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
