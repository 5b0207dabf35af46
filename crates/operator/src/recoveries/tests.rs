//! The registry is complete: every part of Salvor knows every recovery.

use std::{fs, path::Path};

use salvor_api::config::{Configuration, FIELDS, parse};
use salvor_recovery::{eviction::EvictionPolicy, job::JobPolicy, zombie::ZombiePolicy};

use super::*;
use crate::{
    explain::Explains,
    metrics::Description,
    recoveries::rights::{Right, Verb},
};

/// A configuration that enables exactly this recovery.
fn only(entry: &RecoveryEntry) -> Configuration {
    let gates = entry.gate.map_or(String::new(), |gate| format!("featureGates: {{{gate}: true}}\n"));
    configuration(&format!("{gates}controllers: [{}]\n", entry.controller))
}

fn configuration(rest: &str) -> Configuration {
    parse(&format!("apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n{rest}")).unwrap()
}

/// A file of the repository.
fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_controller_has_an_entry_with_rights_verdicts_and_a_documented_section() {
    let configuration_page = file("docs/reference/configuration.md");
    let (cli_page, metrics_page) = (file("docs/reference/cli.md"), file("docs/reference/metrics.md"));
    for controller in Controller::ALL {
        let entry = entry(*controller);
        assert_eq!(entry.controller, *controller);
        assert!(!entry.reporter.is_empty(), "{controller}: its events name nobody");

        assert_eq!(entry.off(&only(entry)), None, "{controller}");
        assert!(!entry.rights(&only(entry)).is_empty(), "{controller} has no rights");
        let dry = Configuration { dry_run: true, ..only(entry) };
        let reads = |right: &Right| right.verbs.iter().all(|verb| Verb::READ.contains(verb));
        assert!(entry.rights(&dry).iter().all(reads), "{controller} writes in a dry run");
        let off = configuration("controllers: []\n");
        assert!(entry.off(&off).is_some() && entry.rights(&off).is_empty(), "{controller}");

        assert!(!entry.explains.is_empty(), "{controller} explains nothing");
        for Explains { kind, .. } in entry.explains {
            let heading = format!("## `salvor explain {}`", kind.word);
            assert!(cli_page.contains(&heading), "{heading} is not in docs/reference/cli.md");
        }
        for Description { name, .. } in entry.metrics {
            assert!(
                metrics_page.contains(&format!("| `{name}")),
                "{name} is not in docs/reference/metrics.md"
            );
        }

        let section = entry.section();
        assert!(FIELDS.iter().any(|field| field.path == section), "{section} is no field");
        let heading = format!("### `{section}`\n");
        assert!(configuration_page.contains(&heading), "{heading} is not in docs/reference/configuration.md");
        assert_eq!(
            (entry.settings)(&Configuration::default()),
            None,
            "{controller}: the defaults are no settings"
        );
    }
}

/// The rules know themselves when their recovery is disabled; the registry must agree.
#[test]
fn a_recovery_is_off_here_exactly_when_its_rules_say_so() {
    let lists =
        ["'*'", "zombie", "job", "eviction", "zombie, job, eviction", "'*', -zombie, -job", "-eviction", ""];
    for gate in [true, false] {
        for list in lists {
            let file = format!("featureGates: {{FailureRecoveryPolicy: {gate}}}\ncontrollers: [{list}]\n");
            let configuration = configuration(&file);
            let on = |controller| entry(controller).off(&configuration).is_none();
            assert_eq!(
                on(Controller::Zombie),
                ZombiePolicy::new(&configuration).disabled.is_none(),
                "{file}"
            );
            assert_eq!(on(Controller::Job), JobPolicy::new(&configuration).enabled, "{file}");
            assert_eq!(on(Controller::Eviction), EvictionPolicy::new(&configuration).enabled, "{file}");
        }
    }
}

#[test]
fn why_a_recovery_is_off_is_told_as_it_was_always_told() {
    let off = |rest: &str| entry(Controller::Zombie).off(&configuration(rest)).map(|off| off.to_string());
    let gate = "feature gate FailureRecoveryPolicy is off; --feature-gates=FailureRecoveryPolicy=true switches it on";
    assert_eq!(off("").as_deref(), Some(gate));
    assert_eq!(off("controllers: [job]\n").as_deref(), Some(gate));
    let open = "featureGates: {FailureRecoveryPolicy: true}\n";
    assert_eq!(off(&format!("{open}controllers: [job]\n")).as_deref(), Some("not in controllers"));
    assert_eq!(off(open), None);
}

/// The page lists the files to touch, so they must exist; five files are the limit that the registry guarantees.
#[test]
fn the_files_that_a_new_recovery_touches_are_there_and_few() {
    let page = file("docs/develop/architecture.md");
    let (_, section) =
        page.split_once("\n## Add a recovery\n").expect("docs/develop/architecture.md has no such section");
    let section = section.split("\n## ").next().unwrap();
    let (_, table) = section.split_once("| file | change |\n").expect("the section has no table of files");
    let rows = table.lines().skip(1).map_while(|row| row.strip_prefix("| `")?.split_once('`'));
    let files: Vec<&str> = rows.map(|(file, _)| file).collect();
    assert!((1..=5).contains(&files.len()), "{files:?}");
    for path in files {
        assert!(!file(path).is_empty(), "{path}");
    }
    // A new field must be added here, and then to the page.
    let RecoveryEntry {
        controller: _,
        gate: _,
        settings: _,
        memory: _,
        definitions: _,
        rights: _,
        reporter: _,
        explains: _,
        metrics: _,
        webhooks: _,
        prepare: _,
    } = entry(Controller::Zombie);
    let fields = [
        "controller",
        "gate",
        "settings",
        "memory",
        "definitions",
        "rights",
        "reporter",
        "explains",
        "metrics",
        "webhooks",
        "prepare",
    ];
    for field in fields {
        assert!(section.contains(&format!("\n| `{field}` | ")), "{field} is not explained");
    }
}
