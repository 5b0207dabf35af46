//! The annotations on a pod that script its containers.
//!
//! | annotation | value | meaning |
//! |---|---|---|
//! | `sim.salvor.dev/run-for` | duration | the container ends by itself after this long; without it, it runs on |
//! | `sim.salvor.dev/checkpoint-every` | duration | work that another pod of the same index or ordinal has saved counts for `run-for` |
//! | `sim.salvor.dev/exit-code` | 0 to 255 | how it ends by itself (default 0) |
//! | `sim.salvor.dev/fail-first` | count | the first N runs of this work end with 1 instead |
//! | `sim.salvor.dev/start-delay` | duration | time between admission and start |
//! | `sim.salvor.dev/ignore-sigterm` | duration | how long it runs on after SIGTERM (default: ends at once) |
//! | `sim.salvor.dev/sigterm-exit-code` | 0 to 255 | how it ends on SIGTERM (default 143) |
//! | `sim.salvor.dev/image-error` | duration | the image cannot be pulled for this long |
//!
//! Every value may be given for all containers (`5s`), for some (`main=5s,sidecar=1h`), or both
//! (`5s,sidecar=1h`). Durations are `250ms`, `5s`, `2m`, `1h` or `forever`.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use thiserror::Error;

pub const PREFIX: &str = "sim.salvor.dev/";

/// "forever", as a duration that is longer than any test or simulation.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// An annotation whose value the simulated kubelet cannot parse.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("annotation {PREFIX}{name}: {value:?} is not {expected}")]
pub struct ScriptError {
    name: &'static str,
    value: String,
    expected: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerScript {
    pub(crate) run_for: Option<Duration>,
    pub(crate) checkpoint_every: Option<Duration>,
    pub(crate) exit_code: u8,
    pub(crate) fail_first: u32,
    pub(crate) start_delay: Duration,
    pub(crate) ignore_sigterm: Duration,
    pub(crate) sigterm_exit_code: u8,
    pub(crate) image_error: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodScript {
    run_for: PerContainer<Span>,
    checkpoint_every: PerContainer<Span>,
    exit_code: PerContainer<u8>,
    fail_first: PerContainer<u32>,
    start_delay: PerContainer<Span>,
    ignore_sigterm: PerContainer<Span>,
    sigterm_exit_code: PerContainer<u8>,
    image_error: PerContainer<Span>,
}

impl PodScript {
    pub(crate) fn parse(annotations: &BTreeMap<String, String>) -> Result<Self, ScriptError> {
        const SPAN: &str = "a duration such as 250ms, 5s, 2m, 1h or forever, for all or as CONTAINER=VALUE";
        const CODE: &str = "an exit code from 0 to 255, for all or as CONTAINER=VALUE";
        const COUNT: &str = "a count, for all or as CONTAINER=VALUE";
        Ok(Self {
            run_for: parse(annotations, "run-for", SPAN)?,
            checkpoint_every: parse(annotations, "checkpoint-every", SPAN)?,
            exit_code: parse(annotations, "exit-code", CODE)?,
            fail_first: parse(annotations, "fail-first", COUNT)?,
            start_delay: parse(annotations, "start-delay", SPAN)?,
            ignore_sigterm: parse(annotations, "ignore-sigterm", SPAN)?,
            sigterm_exit_code: parse(annotations, "sigterm-exit-code", CODE)?,
            image_error: parse(annotations, "image-error", SPAN)?,
        })
    }

    pub(crate) fn container(&self, name: &str) -> ContainerScript {
        let span = |of: &PerContainer<Span>| of.get(name).map_or(Duration::ZERO, |s| s.0);
        ContainerScript {
            run_for: self.run_for.get(name).map(|s| s.0),
            checkpoint_every: self.checkpoint_every.get(name).map(|s| s.0).filter(|every| !every.is_zero()),
            exit_code: self.exit_code.get(name).unwrap_or(0),
            fail_first: self.fail_first.get(name).unwrap_or(0),
            start_delay: span(&self.start_delay),
            ignore_sigterm: span(&self.ignore_sigterm),
            sigterm_exit_code: self.sigterm_exit_code.get(name).unwrap_or(143),
            image_error: span(&self.image_error),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span(Duration);

impl FromStr for Span {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "forever" {
            return Ok(Self(FOREVER));
        }
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| ())?;
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(()),
        };
        let span = Duration::from_millis(number.checked_mul(millis).ok_or(())?);
        Ok(Self(span.min(FOREVER)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PerContainer<T> {
    all: Option<T>,
    named: BTreeMap<String, T>,
}

impl<T> Default for PerContainer<T> {
    fn default() -> Self {
        Self { all: None, named: BTreeMap::new() }
    }
}

impl<T: Copy> PerContainer<T> {
    fn get(&self, name: &str) -> Option<T> {
        self.named.get(name).copied().or(self.all)
    }
}

fn parse<T: FromStr>(
    annotations: &BTreeMap<String, String>,
    name: &'static str,
    expected: &'static str,
) -> Result<PerContainer<T>, ScriptError> {
    let mut parsed = PerContainer::default();
    let Some(value) = annotations.get(&format!("{PREFIX}{name}")) else {
        return Ok(parsed);
    };
    let error = || ScriptError { name, value: value.clone(), expected };
    for item in value.split(',') {
        match item.split_once('=') {
            Some((container, text)) => {
                let of = text.trim().parse().map_err(|_| error())?;
                parsed.named.insert(container.trim().to_owned(), of);
            }
            None => parsed.all = Some(item.trim().parse().map_err(|_| error())?),
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(pairs: &[(&str, &str)]) -> Result<PodScript, ScriptError> {
        let annotations = pairs.iter().map(|(k, v)| (format!("{PREFIX}{k}"), (*v).to_owned()));
        PodScript::parse(&annotations.collect())
    }

    #[test]
    fn without_annotations_a_container_runs_on_and_ends_at_sigterm() {
        let main = script(&[]).unwrap().container("main");
        assert_eq!(main.run_for, None);
        assert_eq!(main.ignore_sigterm, Duration::ZERO);
        assert_eq!(main.sigterm_exit_code, 143);
    }

    #[test]
    fn a_named_value_beats_the_value_for_all() {
        let script = script(&[("run-for", "5s, side=250ms"), ("exit-code", "main=3")]).unwrap();
        assert_eq!(script.container("main").run_for, Some(Duration::from_secs(5)));
        assert_eq!(script.container("side").run_for, Some(Duration::from_millis(250)));
        assert_eq!(script.container("main").exit_code, 3);
        assert_eq!(script.container("side").exit_code, 0);
    }

    #[test]
    fn bad_values_name_the_annotation_the_value_and_what_is_right() {
        for (name, value) in [
            ("run-for", "5"),
            ("run-for", ""),
            ("run-for", "-1s"),
            ("run-for", "99999999999999999999h"),
            ("exit-code", "256"),
            ("exit-code", "main="),
            ("fail-first", "many"),
        ] {
            let error = script(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(&format!("{value:?}")), "{error}");
            assert!(error.contains("for all or as CONTAINER=VALUE"), "{error}");
        }
    }

    #[test]
    fn a_huge_duration_is_forever() {
        assert_eq!(script(&[("run-for", "9999999h")]).unwrap().container("x").run_for, Some(FOREVER));
    }
}
