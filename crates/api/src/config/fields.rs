//! The table of fields. It defines what a file may contain, and generates the reference page and the documented
//! defaults.
//!
//! The parser refuses a field that is not in the table, and a test compares the table with the types, so they cannot
//! drift apart.

use std::fmt::Write;
use std::sync::LazyLock;

use super::examples::EXAMPLE_RULES;
use super::section::Kind::{
    Address, Bool, Choice, Duration, Gates, Integer, List, Object, TaintMap, Text, TextList, TextMap,
    TextOrNothing,
};
use super::section::Presence::{Default, Optional, Parent, Required};
use super::section::{Field, field};
use super::{at_most_one, section_of};
use crate::{Controller, Gate, names};

/// Every field of the file, parents before their children.
pub static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
    let of_recoveries = Controller::ALL.iter().flat_map(|controller| section_of(*controller).fields);
    FIRST.iter().chain(at_most_one::FIELDS).chain(of_recoveries).chain(LAST).copied().collect()
});

const FIRST: &[Field] = &[
    field(
        "apiVersion",
        Choice(&[names::configuration::API_VERSION]),
        Required,
        "The group and version of this file's format.",
    ),
    field("kind", Choice(&[names::configuration::KIND]), Required, "The kind of this file."),
    field(
        "featureGates",
        Gates,
        Default("{}"),
        "Features enabled or disabled by name. A gate that is not named keeps its default. The flag --feature-gates \
         beats this field for the gates that it names.",
    ),
    field(
        "controllers",
        TextList,
        Default("[\"*\"]"),
        "Which recoveries run: \"*\" for all but appwrapper and repair, a name for one; a name with a leading \"-\" switches that one off. Without \"*\" \
         only those run that are named. If a name is there more than once, its first entry counts. A recovery also needs \
         its feature gate.",
    ),
    field(
        "dryRun",
        Bool,
        Default("false"),
        "Judge and report, but change no object. Logs, metrics and explain show the same verdicts as without it.",
    ),
    field(
        "leaderElection",
        Object,
        Parent,
        "The leader election: only the leader acts. The other replicas watch the cluster and wait.",
    ),
    field(
        "leaderElection.enabled",
        Bool,
        Default("true"),
        "Elect a leader. Switch it off only where a single replica is sure to run.",
    ),
    field(
        "leaderElection.leaseName",
        Text,
        Default("salvor"),
        "The name of the Lease on which replicas agree.",
    ),
    field("leaderElection.leaseNamespace", Text, Default("salvor-system"), "The namespace of that Lease."),
    field(
        "leaderElection.leaseDuration",
        Duration,
        Default("15s"),
        "The lease expires this long after its last renewal. Another replica takes over no sooner. Must be longer \
         than renewDeadline.",
    ),
    field(
        "leaderElection.renewDeadline",
        Duration,
        Default("10s"),
        "The leader stops writing if it cannot renew the lease for this long. Must be longer than 1.2 times retryPeriod.",
    ),
    field(
        "leaderElection.retryPeriod",
        Duration,
        Default("2s"),
        "The time between two attempts to get or renew the lease.",
    ),
    field(
        "bind",
        Address,
        Default("0.0.0.0:8080"),
        "The IP address and port on which /metrics, /healthz and /readyz are served.",
    ),
    field(
        "page",
        Object,
        Parent,
        "A page that shows nodes, pods, stuck pods with the reasons, and a timeline. It is read-only. It watches all pods \
         and nodes, which costs memory. Only the leader's page has verdicts.",
    ),
    field("page.enabled", Bool, Default("false"), "True serves the page."),
    field(
        "page.bind",
        Address,
        Default("127.0.0.1:8081"),
        "The IP address and port on which the page is served. It shows the names of all nodes and pods to everybody who can \
         reach that address; there is no password. Use kubectl port-forward to look at it from elsewhere.",
    ),
    field(
        "webhooks",
        Object,
        Parent,
        "Admission webhooks, served over TLS by every replica. They are there only while a recovery runs that has some, and \
         not in a dry run.",
    ),
    field(
        "webhooks.enabled",
        Bool,
        Default("true"),
        "True serves the webhooks. Without them nothing is set and nothing is refused at admission; each recovery says in \
         its own section what it does then.",
    ),
    field(
        "webhooks.bind",
        Address,
        Default("0.0.0.0:9443"),
        "The IP address and port on which webhooks are served. The API server must be able to reach it.",
    ),
    field(
        "webhooks.url",
        Text,
        Optional,
        "How the API server reaches a Salvor that runs outside the cluster: https://HOST:PORT, with nothing after the port. \
         Salvor then creates and repairs the MutatingWebhookConfiguration and ValidatingWebhookConfiguration named salvor \
         itself, before it is ready. If it is not set, both come with the manifests and name a Service, and Salvor only \
         fills in their caBundle and their path.",
    ),
    field(
        "webhooks.certDir",
        Text,
        Optional,
        "A folder with the files tls.crt and tls.key, and, if the configurations are to trust it, ca.crt, all as PEM: Salvor \
         serves with these and reads them again when they change. If it is not set, Salvor makes its own certificates and \
         renews them in time. It keeps its certificate authority in the Secret salvor-webhooks in \
         leaderElection.leaseNamespace, where all replicas find it, beside the token of the webhooks' path and the keys of stamps. With \
         webhooks.url, and without that namespace or the right to use that Secret, it keeps all of it in memory: then only one \
         replica may run, and AppWrappers from before a restart have no valid stamp.",
    ),
    field(
        "logFormat",
        Choice(&["text", "json"]),
        Default("text"),
        "Log lines for people (text) or for machines (json).",
    ),
    field("concurrency", Object, Parent, "The limits of parallel work."),
    field(
        "concurrency.writes",
        Integer(1, 10_000),
        Default("32"),
        "The largest number of write requests at the same time: this many of zombie recovery and eviction together, \
         and as many again of Jobs. Jobs never delay recoveries.",
    ),
    field("staleness", Object, Parent, "The limits of the age of the view of the cluster."),
    field(
        "staleness.readyLimit",
        Duration,
        Default("3m0s"),
        "When a watch has brought neither event nor bookmark for this long, /readyz fails. API servers send a bookmark about \
         once a minute.",
    ),
    field(
        "staleness.irreversibleActionLimit",
        Duration,
        Default("1m30s"),
        "When a watch has brought neither event nor bookmark for this long, nothing irreversible is done that \
         depends on it. At most readyLimit, so that a replica that may not act does not stay ready for long.",
    ),
];

const LAST: &[Field] = &[
    field(
        "brake",
        Object,
        Parent,
        "The brake blocks all recoveries when too much fails at once: then the network or the control plane has \
         probably failed, not the nodes. Blocked recoveries say so, and go on by themselves when it is over.",
    ),
    field(
        "brake.maxPodsPerMinute",
        Integer(0, u32::MAX),
        Default("1000"),
        "At most this many pods are recovered in any minute. 0 sets no limit.",
    ),
    field(
        "brake.maxNodesPerMinute",
        Integer(0, u32::MAX),
        Default("20"),
        "At most this many evictions and repairs of nodes begin in any minute, together. 0 sets no limit.",
    ),
    field(
        "brake.maxUnreachablePercent",
        Integer(0, 100),
        Default("50"),
        "Nothing is recovered while more than this share of the nodes, and more than two nodes, are unreachable; and no \
         eviction begins while that is so in the node's zone. 0 sets no limit.",
    ),
    field(
        "brake.settlePeriod",
        Duration,
        Default("50s"),
        "When fewer nodes are unreachable, the others probably become Ready, too: nothing is recovered until the number of \
         unreachable nodes has not fallen for this long. Then recoveries go on gradually: one pod at first, and twice as \
         many every five seconds. The same holds for evictions in a zone. The default is the time after which Kubernetes \
         marks a node without heartbeat as unreachable. 0s allows everything at once.",
    ),
    field(
        "brake.countNodesReadyWithin",
        Duration,
        Default("24h0m0s"),
        "The nodes that count for maxUnreachablePercent: those that are Ready, or were within this time. So machines that \
         were switched off long ago block nothing. Nodes with the label node.kubernetes.io/exclude-disruption (with any \
         value but \"false\") never count. 0s counts all others, however long they have been unreachable.",
    ),
];

/// The fields of every label selector.
pub(super) const SELECTOR_FIELDS: &[Field] = &[
    field("matchLabels", TextMap, Optional, "Labels that must be there with exactly these values."),
    field("matchExpressions", List, Optional, "Further requirements; all must hold."),
    field("matchExpressions[]", Object, Parent, "One requirement on one label."),
    field("matchExpressions[].key", Text, Required, "The label's key."),
    field(
        "matchExpressions[].operator",
        Choice(&["In", "NotIn", "Exists", "DoesNotExist"]),
        Required,
        "In: the label is there with one of the values. NotIn: it is absent or has none of them. Exists and DoesNotExist: it \
         is there, or is not.",
    ),
    field(
        "matchExpressions[].values",
        TextList,
        Optional,
        "The values for In and NotIn; empty for the others.",
    ),
];

/// The fields of every taint in a map of lists.
pub(super) const TAINT_FIELDS: &[Field] = &[
    field("key", Text, Required, "The label's key."),
    field("value", TextOrNothing, Default("\"\""), "The label's value."),
    field(
        "effect",
        Choice(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        Required,
        "What the label means for pods that use the resource.",
    ),
];

/// An example of what a list of the file may contain.
pub(super) fn example(list: &str) -> Option<&'static str> {
    let examples = Controller::ALL.iter().flat_map(|controller| section_of(*controller).examples);
    examples.copied().find_map(|(path, example)| (path == list).then_some(example))
}

/// The reference page of the configuration file, in Markdown.
pub fn reference() -> String {
    let mut page = format!(
        "# Configuration\n\n <!-- Generated from the field table in salvor-api; change it there. -->\n\n The file given by \
         `--config` has `apiVersion: {}` and `kind: {}`. An unknown field, a value of the wrong form and values that \
         contradict each other are refused at start, each with its path and line. A flag beats an environment variable, \
         which beats this file, which beats the default.\n\n Durations are written as in Go: numbers with the units `ns`, \
         `us`, `ms`, `s`, `m` and `h`, for example `1m30s`.\n",
        names::configuration::API_VERSION,
        names::configuration::KIND,
    );
    section(&mut page, "Fields", &FIELDS);
    section(&mut page, "Label selectors", SELECTOR_FIELDS);
    page.push_str("\n## Feature gates\n\n| gate | stage | default |\n|---|---|---|\n");
    for gate in Gate::ALL {
        line(&mut page, format_args!("| `{gate}` | {} | {} |", gate.stage(), gate.default_enabled()));
    }
    page.push_str("\n## Recoveries\n\nThe names for `controllers`:");
    for controller in Controller::ALL {
        page.push_str(&format!(" `{controller}`"));
    }
    page.push_str(".\n\n## Example rules\n\n```yaml\nfailureRecoveryPolicy:\n");
    for text in EXAMPLE_RULES.lines() {
        line(&mut page, format_args!("  {text}"));
    }
    page.push_str("```\n");
    page
}

fn section(page: &mut String, title: &str, fields: &[Field]) {
    line(page, format_args!("\n## {title}"));
    for field in fields {
        line(page, format_args!("\n### `{}`\n\n{}\n\n{}", field.path, field.summary(), field.doc));
    }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(page, "{text}").expect("writing to a string does not fail");
}

/// A complete file with all defaults and the description of every field.
pub fn defaults_yaml() -> String {
    let mut file = String::new();
    for field in FIELDS.iter().filter(|field| !field.in_a_list()) {
        let indent = "  ".repeat(field.depth());
        if !file.is_empty() && !file.ends_with(":\n") {
            file.push('\n');
        }
        comment(&mut file, &indent, field.doc);
        let value = match (field.presence, field.kind) {
            (Default(value), TextList) if value.len() > WIDTH / 2 => block(value, &indent),
            (Default(value), TaintMap) => taint_block(value, &indent),
            (Default(value), _) => format!(" {value}"),
            (Required, Choice(choices)) => format!(" {}", choices.join("|")),
            _ => String::new(),
        };
        line(&mut file, format_args!("{indent}{}:{value}", field.name()));
        if field.kind == List {
            comment(&mut file, &indent, "For example:");
            for text in example(field.path).unwrap_or_default().lines() {
                line(&mut file, format_args!("{indent}# {text}"));
            }
        }
    }
    file
}

/// Fits a terminal.
const WIDTH: usize = 100;

/// A list such as `[a, b]`, with one line per entry.
fn block(list: &str, indent: &str) -> String {
    let entries = list.trim_matches(['[', ']']).split(", ");
    entries.map(|entry| format!("\n{indent}- {entry}")).collect()
}

/// A map such as `{a: [{..}, {..}]}`, with one line per taint.
fn taint_block(map: &str, indent: &str) -> String {
    let inner = map.trim_start_matches('{').trim_end_matches("]}");
    let (resource, taints) = inner.split_once(": [").unwrap_or((inner, ""));
    let taints: String =
        taints.split("}, ").map(|taint| format!("\n{indent}  - {}}}", taint.trim_end_matches('}'))).collect();
    format!("\n{indent}  {resource}:{taints}")
}

/// Wraps the text into comment lines.
fn comment(file: &mut String, indent: &str, text: &str) {
    let mut row = format!("{indent}#");
    for word in text.split_whitespace() {
        if row.len() + 1 + word.len() > WIDTH {
            line(file, format_args!("{row}"));
            row = format!("{indent}#");
        }
        row.push(' ');
        row.push_str(word);
    }
    line(file, format_args!("{row}"));
}
