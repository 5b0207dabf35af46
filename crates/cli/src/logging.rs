//! Log lines on standard error: text for people, JSON for machines.

use std::env;
use std::io::{self, IsTerminal};

use salvor_api::config::LogFormat;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::settings::InvalidVariable;

const VARIABLE: &str = "SALVOR_LOG";

/// This target logs every failed request. The caller gets the same error and logs it with its context.
const TELLS_TWICE: &str = "kube_client::client::builder";

/// Starts logging. `SALVOR_LOG` overrides the level.
pub(crate) fn start(format: LogFormat, otherwise: LevelFilter) -> Result<(), InvalidVariable> {
    let filter = filter(env::var(VARIABLE).ok().as_deref(), otherwise)?;
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(wants_colour()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // This could only fail on a second call, and there is none.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}

fn filter(variable: Option<&str>, otherwise: LevelFilter) -> Result<Targets, InvalidVariable> {
    match variable {
        None | Some("") => {
            Ok(Targets::new().with_default(otherwise).with_target(TELLS_TWICE, LevelFilter::OFF))
        }
        Some(text) => text.parse().map_err(|error| InvalidVariable {
            name: VARIABLE,
            value: text.into(),
            problem: format!("{error}: write a level, or levels by crate as in info,salvor_operator=debug"),
        }),
    }
}

fn wants_colour() -> bool {
    io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_variable_chooses_levels_by_crate() {
        let filter = filter(Some("warn,salvor_operator=debug"), LevelFilter::INFO).unwrap();
        assert!(filter.would_enable("salvor_operator::watch", &Level::DEBUG));
        assert!(!filter.would_enable("kube_client", &Level::INFO));
    }

    #[test]
    fn without_the_variable_the_command_chooses() {
        for variable in [None, Some("")] {
            let filter = filter(variable, LevelFilter::WARN).unwrap();
            assert!(filter.would_enable("salvor", &Level::WARN));
            assert!(!filter.would_enable("salvor", &Level::INFO));
            assert!(!filter.would_enable(TELLS_TWICE, &Level::ERROR));
        }
    }

    #[test]
    fn a_bad_filter_names_the_variable() {
        let error = filter(Some("salvor=loud"), LevelFilter::INFO).unwrap_err();
        assert!(error.to_string().starts_with("SALVOR_LOG=\"salvor=loud\" cannot be used: "), "{error}");
    }
}
