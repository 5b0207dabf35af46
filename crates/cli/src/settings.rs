//! Merges the sources of a setting: flags override environment variables, which override the file, which overrides the
//! defaults.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use salvor_api::config::{self, Configuration, LogFormat};
use salvor_api::{ControllerList, FeatureGates};

use crate::error::CliError;

/// The flags of every command that judges objects, or prints manifests.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct JudgingArgs {
    /// The configuration file [env: SALVOR_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The recoveries to run, separated by commas: `*` for all but appwrapper and repair, `name` for one, `-name` to leave one out
    /// [env: SALVOR_CONTROLLERS] [default: *]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) controllers: Option<ControllerList>,
    /// Feature gates, such as FailureRecoveryPolicy=true; each beats the variable and the file
    /// [env: SALVOR_FEATURE_GATES]
    #[arg(long, value_name = "GATE=BOOL,...")]
    pub(crate) feature_gates: Option<FeatureGates>,
    /// Judge and report, but change no object [env: SALVOR_DRY_RUN] [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) dry_run: Option<bool>,
}

impl JudgingArgs {
    fn overrides(&self) -> Overrides {
        Overrides {
            feature_gates: self.feature_gates.clone().unwrap_or_default(),
            controllers: self.controllers.clone(),
            dry_run: self.dry_run,
            ..Overrides::default()
        }
    }

    /// Whether the caller gives any configuration. Otherwise the configuration of the running operator applies.
    pub(crate) fn is_given(&self) -> bool {
        const VARIABLES: [&str; 4] =
            ["SALVOR_CONFIG", "SALVOR_CONTROLLERS", "SALVOR_FEATURE_GATES", "SALVOR_DRY_RUN"];
        self.config.is_some()
            || self.controllers.is_some()
            || self.feature_gates.is_some()
            || self.dry_run.is_some()
            || VARIABLES.iter().any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
    }

    /// The configuration for a command without further flags.
    pub(crate) fn load(&self) -> Result<Configuration, CliError> {
        Ok(self.load_with_source()?.configuration)
    }

    /// The same, and whether the list of recoveries was set.
    pub(crate) fn load_with_source(&self) -> Result<Loaded, CliError> {
        load(self.config.as_deref(), &self.overrides())
    }
}

/// The flags of a process that serves.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ServingArgs {
    /// Elect a leader: only the leader acts [env: SALVOR_LEADER_ELECT] [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) leader_elect: Option<bool>,
    /// The address of /metrics, /healthz and /readyz [env: SALVOR_BIND] [default: 0.0.0.0:8080]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) bind: Option<SocketAddr>,
    /// Serve a page that shows the cluster; without an address, on 127.0.0.1:8081 [env: SALVOR_PAGE] [default: no page]
    #[arg(long, value_name = "ADDR", value_parser = page_address, num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:8081")]
    pub(crate) page: Option<SocketAddr>,
    /// The form of log lines on standard error [env: SALVOR_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(["text", "json"]).try_map(|name| log_format(&name)))]
    pub(crate) log_format: Option<LogFormat>,
}

impl ServingArgs {
    /// The configuration for a process that decides and serves.
    pub(crate) fn load(&self, judging: &JudgingArgs) -> Result<Configuration, CliError> {
        let flags = Overrides {
            leader_elect: self.leader_elect,
            bind: self.bind,
            page: self.page,
            log_format: self.log_format,
            ..judging.overrides()
        };
        Ok(load(judging.config.as_deref(), &flags)?.configuration)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) configuration: Configuration,
    /// Whether a flag, a variable or the file sets the list of recoveries.
    pub(crate) names_controllers: bool,
}

/// The settings of a layer above the file. All others come from the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    feature_gates: FeatureGates,
    controllers: Option<ControllerList>,
    dry_run: Option<bool>,
    leader_elect: Option<bool>,
    bind: Option<SocketAddr>,
    page: Option<SocketAddr>,
    log_format: Option<LogFormat>,
}

impl Overrides {
    fn over(&self, mut below: Configuration) -> Configuration {
        fn set<T: Clone>(field: &mut T, value: Option<&T>) {
            if let Some(value) = value {
                field.clone_from(value);
            }
        }
        below.feature_gates = below.feature_gates.overridden_by(&self.feature_gates);
        set(&mut below.controllers, self.controllers.as_ref());
        set(&mut below.dry_run, self.dry_run.as_ref());
        set(&mut below.leader_election.enabled, self.leader_elect.as_ref());
        set(&mut below.bind, self.bind.as_ref());
        below.page.enabled |= self.page.is_some();
        set(&mut below.page.bind, self.page.as_ref());
        set(&mut below.log_format, self.log_format.as_ref());
        below
    }

    /// Reads the environment variables. An empty variable counts as not set.
    fn from_variables(variable: &dyn Fn(&'static str) -> Option<OsString>) -> Result<Self, InvalidVariable> {
        fn read<T>(
            variable: &dyn Fn(&'static str) -> Option<OsString>,
            name: &'static str,
            parse: impl FnOnce(&str) -> Result<T, String>,
        ) -> Result<Option<T>, InvalidVariable> {
            let Some(value) = variable(name).filter(|value| !value.is_empty()) else {
                return Ok(None);
            };
            let value = value.to_string_lossy();
            parse(&value).map(Some).map_err(|problem| InvalidVariable {
                name,
                value: value.clone().into_owned(),
                problem,
            })
        }
        let gates = |text: &str| text.parse().map_err(|error| format!("{error}"));
        Ok(Self {
            feature_gates: read(variable, "SALVOR_FEATURE_GATES", gates)?.unwrap_or_default(),
            controllers: read(variable, "SALVOR_CONTROLLERS", |text| {
                text.parse().map_err(|error| format!("{error}"))
            })?,
            dry_run: read(variable, "SALVOR_DRY_RUN", boolean)?,
            leader_elect: read(variable, "SALVOR_LEADER_ELECT", boolean)?,
            bind: read(variable, "SALVOR_BIND", address)?,
            page: read(variable, "SALVOR_PAGE", page_address)?,
            log_format: read(variable, "SALVOR_LOG_FORMAT", log_format)?,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value:?} cannot be used: {problem}")]
pub(crate) struct InvalidVariable {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// The correct form.
    pub(crate) problem: String,
}

impl From<InvalidVariable> for CliError {
    fn from(error: InvalidVariable) -> Self {
        Self::Usage(error.into())
    }
}

fn merge(flags: &Overrides, variables: &Overrides, file: Configuration) -> Configuration {
    flags.over(variables.over(file))
}

fn load(config_flag: Option<&Path>, flags: &Overrides) -> Result<Loaded, CliError> {
    let variable = |name| env::var_os(name);
    let variables = Overrides::from_variables(&variable)?;
    let file = match (config_flag, variable("SALVOR_CONFIG")) {
        (Some(path), _) => read_with_source(path, "--config")?,
        (None, Some(path)) if !path.is_empty() => read_with_source(Path::new(&path), "SALVOR_CONFIG")?,
        _ => Loaded { configuration: Configuration::default(), names_controllers: false },
    };
    let names_controllers =
        file.names_controllers || flags.controllers.is_some() || variables.controllers.is_some();
    Ok(Loaded { configuration: merge(flags, &variables, file.configuration), names_controllers })
}

pub(crate) fn read_file(path: &Path, named_by: &'static str) -> Result<Configuration, CliError> {
    Ok(read_with_source(path, named_by)?.configuration)
}

/// Reads the file only once, because it may be a pipe.
fn read_with_source(path: &Path, named_by: &'static str) -> Result<Loaded, CliError> {
    let text = fs::read_to_string(path).map_err(|source| CliError::ReadConfig {
        path: path.into(),
        named_by,
        source,
    })?;
    let configuration =
        config::parse(&text).map_err(|error| CliError::Config { path: path.into(), error })?;
    let fields: serde_json::Value = serde_saphyr::from_str(&text).unwrap_or_default();
    let names_controllers = fields.get("controllers").is_some_and(|list| !list.is_null());
    Ok(Loaded { configuration, names_controllers })
}

fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "set it to true or false".into())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "set it to an IP address and port, for example 0.0.0.0:8080 or [::]:8080".into())
}

pub(crate) fn page_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "set it to an IP address and port, for example 127.0.0.1:8081".into())
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("set it to text or json".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use salvor_api::{Controller, Gate};

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        judging: JudgingArgs,
        #[command(flatten)]
        serving: ServingArgs,
    }

    fn flags(arguments: &[&str]) -> Overrides {
        let Flags { judging, serving } = Flags::try_parse_from([&["salvor"], arguments].concat()).unwrap();
        Overrides {
            leader_elect: serving.leader_elect,
            bind: serving.bind,
            page: serving.page,
            log_format: serving.log_format,
            ..judging.overrides()
        }
    }

    fn variables(set: &[(&str, &str)]) -> Result<Overrides, InvalidVariable> {
        Overrides::from_variables(&|name| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.into())
        })
    }

    fn file(rest: &str) -> Configuration {
        let text = format!("apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n{rest}\n");
        config::parse(&text).unwrap()
    }

    /// The setting under test in a merged configuration.
    fn seen(setting: &str, configuration: &Configuration) -> String {
        match setting {
            "gate" => configuration.feature_gates.enabled(Gate::FailureRecoveryPolicy).to_string(),
            "controllers" => configuration.controllers.enabled(Controller::Zombie).to_string(),
            "dry run" => configuration.dry_run.to_string(),
            "leader" => configuration.leader_election.enabled.to_string(),
            "bind" => configuration.bind.to_string(),
            "page" => format!("{} {}", configuration.page.enabled, configuration.page.bind),
            _ => format!("{:?}", configuration.log_format),
        }
    }

    /// One setting: how each layer sets it, and the result with no layer, then with the file, the variable and the flag
    /// added.
    struct Layers {
        setting: &'static str,
        file: &'static str,
        variable: (&'static str, &'static str),
        flag: &'static [&'static str],
        seen: [&'static str; 4],
    }

    const EVERY_SETTING: &[Layers] = &[
        Layers {
            setting: "gate",
            file: "featureGates: {FailureRecoveryPolicy: true}",
            variable: ("SALVOR_FEATURE_GATES", "FailureRecoveryPolicy=false"),
            flag: &["--feature-gates=FailureRecoveryPolicy=true"],
            seen: ["false", "true", "false", "true"],
        },
        Layers {
            setting: "controllers",
            file: "controllers: ['*', -zombie]",
            variable: ("SALVOR_CONTROLLERS", "zombie"),
            flag: &["--controllers", "-zombie"],
            seen: ["true", "false", "true", "false"],
        },
        Layers {
            setting: "dry run",
            file: "dryRun: true",
            variable: ("SALVOR_DRY_RUN", "false"),
            flag: &["--dry-run"],
            seen: ["false", "true", "false", "true"],
        },
        Layers {
            setting: "dry run",
            file: "dryRun: false",
            variable: ("SALVOR_DRY_RUN", "true"),
            flag: &["--dry-run=false"],
            seen: ["false", "false", "true", "false"],
        },
        Layers {
            setting: "leader",
            file: "leaderElection: {enabled: false}",
            variable: ("SALVOR_LEADER_ELECT", "true"),
            flag: &["--leader-elect=false"],
            seen: ["true", "false", "true", "false"],
        },
        Layers {
            setting: "bind",
            file: "bind: 127.0.0.1:1",
            variable: ("SALVOR_BIND", "127.0.0.1:2"),
            flag: &["--bind=[::1]:3"],
            seen: ["0.0.0.0:8080", "127.0.0.1:1", "127.0.0.1:2", "[::1]:3"],
        },
        Layers {
            setting: "page",
            file: "page: {enabled: false, bind: '127.0.0.1:1'}",
            variable: ("SALVOR_PAGE", "127.0.0.1:2"),
            flag: &["--page=[::1]:3"],
            seen: ["false 127.0.0.1:8081", "false 127.0.0.1:1", "true 127.0.0.1:2", "true [::1]:3"],
        },
        Layers {
            setting: "log format",
            file: "logFormat: json",
            variable: ("SALVOR_LOG_FORMAT", "text"),
            flag: &["--log-format=json"],
            seen: ["Text", "Json", "Text", "Json"],
        },
    ];

    #[test]
    fn each_layer_beats_the_ones_below() {
        for case in EVERY_SETTING {
            let none = Overrides::default();
            let from_file = || file(case.file);
            let variable = variables(&[case.variable]).unwrap();
            let flag = flags(case.flag);
            let merged = [
                merge(&none, &none, Configuration::default()),
                merge(&none, &none, from_file()),
                merge(&none, &variable, from_file()),
                merge(&flag, &variable, from_file()),
            ];
            let seen = merged.each_ref().map(|merged| seen(case.setting, merged));
            assert_eq!(seen, case.seen, "{}", case.setting);
            // A layer also applies if the layers below set nothing.
            let past = merge(&flag, &none, Configuration::default());
            assert_eq!(super::tests::seen(case.setting, &past), case.seen[3]);
        }
    }

    #[test]
    fn a_layer_changes_nothing_else() {
        let file = file("brake: {maxPodsPerMinute: 7}\nlogFormat: json");
        let merged = merge(
            &flags(&["--dry-run"]),
            &variables(&[("SALVOR_BIND", "127.0.0.1:2")]).unwrap(),
            file.clone(),
        );
        let expected = Configuration { dry_run: true, bind: "127.0.0.1:2".parse().unwrap(), ..file };
        assert_eq!(merged, expected);
    }

    #[test]
    fn an_empty_variable_is_not_set() {
        let empty: Vec<_> = EVERY_SETTING.iter().map(|case| (case.variable.0, "")).collect();
        assert_eq!(variables(&empty), Ok(Overrides::default()));
    }

    #[test]
    fn a_bad_variable_is_named_with_its_value_and_the_remedy() {
        let cases = [
            (
                "SALVOR_FEATURE_GATES",
                "Foo=true",
                "unknown feature gate \"Foo\": known are FailureRecoveryPolicy",
            ),
            ("SALVOR_CONTROLLERS", "vampire", "unknown controller \"vampire\""),
            ("SALVOR_DRY_RUN", "yes", "set it to true or false"),
            ("SALVOR_LEADER_ELECT", "1", "set it to true or false"),
            ("SALVOR_BIND", "8080", "set it to an IP address and port"),
            ("SALVOR_PAGE", "yes", "set it to an IP address and port"),
            ("SALVOR_LOG_FORMAT", "xml", "set it to text or json"),
        ];
        for (name, value, problem) in cases {
            let error = variables(&[(name, value)]).unwrap_err().to_string();
            let expected = format!("{name}={value:?} cannot be used: {problem}");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn help_tells_the_true_defaults() {
        use clap::CommandFactory;

        let default = Configuration::default();
        let help = Flags::command().term_width(1000).render_help().to_string();
        let line = |flag: &str| {
            let line = help.lines().find(|line| line.contains(flag));
            line.unwrap_or_else(|| panic!("no {flag} in {help}"))
        };
        for (flag, value) in [
            ("--dry-run", default.dry_run.to_string()),
            ("--leader-elect", default.leader_election.enabled.to_string()),
            ("--bind", default.bind.to_string()),
            ("--log-format", "text".into()),
        ] {
            let told = format!("[default: {value}]");
            assert!(line(flag).contains(&told), "{}", line(flag));
        }
        assert_eq!(log_format("text"), Ok(default.log_format));
    }

    #[test]
    fn a_bad_flag_is_named_with_its_value() {
        for (flag, value) in [
            ("--feature-gates", "Foo=true"),
            ("--controllers", "vampire"),
            ("--dry-run", "yes"),
            ("--leader-elect", "1"),
            ("--bind", "8080"),
            ("--page", "8081"),
            ("--log-format", "xml"),
        ] {
            let argument = format!("{flag}={value}");
            let Err(error) = Flags::try_parse_from(["salvor", &argument]) else {
                panic!("{argument} was accepted");
            };
            let text = error.to_string();
            assert!(text.contains(&format!("invalid value '{value}' for '{flag}")), "{text}");
        }
    }
}
