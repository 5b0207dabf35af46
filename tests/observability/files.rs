//! The files themselves: promtool accepts the rules, each alert is tested, and each has a section in the runbook.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use salvor_testkit::promtool;
use serde_json::Value;

/// The prefixes of all metrics of Salvor.
const PREFIXES: [&str; 3] = ["salvor_", "job_controller_", "appwrapper_"];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The alerts, each with its expression and its runbook.
fn alerts() -> Vec<(String, String, String)> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/prometheus/rules.yaml")).unwrap();
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules
        .map(|rule| (text(&rule["alert"]), text(&rule["expr"]), text(&rule["annotations"]["runbook_url"])))
        .collect()
}

/// The queries of the dashboard, each with the title of its panel.
pub(crate) fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(|target| (panel["title"].as_str().unwrap(), target["expr"].as_str().unwrap()))
    });
    targets.map(|(title, query)| (title.to_owned(), query.to_owned())).collect()
}

fn metrics_in(query: &str) -> BTreeSet<String> {
    let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let ours = words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)));
    ours.map(str::to_owned).collect()
}

/// All metrics that the rules and the dashboard use.
pub(crate) fn metrics_in_use() -> BTreeSet<String> {
    let of_alerts = alerts().into_iter().map(|(_, query, _)| query);
    let all = of_alerts.chain(queries().into_iter().map(|(_, query)| query));
    all.flat_map(|query| metrics_in(&query)).collect()
}

#[test]
fn every_alert_has_a_section_in_the_runbook_and_every_section_an_alert() {
    let runbook = read("docs/guides/runbook.md");
    let sections: BTreeSet<String> =
        runbook.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_lowercase).collect();
    let mut named = BTreeSet::new();
    for (alert, _, url) in alerts() {
        let anchor = url.strip_prefix("docs/guides/runbook.md#").unwrap_or_else(|| panic!("{alert}: {url}"));
        assert_eq!(anchor, alert.to_lowercase());
        assert!(sections.contains(anchor), "docs/guides/runbook.md has no section {anchor}");
        assert!(named.insert(anchor.to_owned()), "two alerts are called {alert}");
    }
    assert_eq!(sections, named);
}

#[test]
fn every_metric_is_described() {
    let reference = read("docs/reference/metrics.md");
    for metric in metrics_in_use() {
        let bare = metric.trim_end_matches("_bucket");
        assert!(reference.contains(&format!("`{bare}`")), "{metric} is not in docs/reference/metrics.md");
    }
}

#[test]
fn promtool_accepts_the_rules_and_each_alert_fires_when_it_should() {
    let folder = root().join("deploy/prometheus");
    let tests = read("deploy/prometheus/rules.test.yaml");
    for (alert, ..) in alerts() {
        assert!(tests.contains(&format!("{{alertname=\"{alert}\"}}")), "{alert} is never tested");
    }
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "rules.test.yaml"]] {
        let file = folder.join(arguments[2]);
        let output = promtool([arguments[0].as_ref(), arguments[1].as_ref(), file.as_os_str()]);
        assert!(
            output.status.success(),
            "{arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
