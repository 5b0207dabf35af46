//! `salvor opt-in`: prints manifests with what recovery needs, and says what changed and what it means in seconds.

mod document;
mod text;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::{Path as FilePath, PathBuf};
use std::process::ExitCode;

use salvor_api::GoDuration;
use salvor_api::config::AtMostOne;
use salvor_recovery::opt_in::{self, Claims, Consent, Edit, Kind, OptIn, Path, Plan, Problem};
use serde_json::Value;

use self::document::{Document, read};
use crate::error::CliError;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct OptInArgs {
    /// The manifests, as YAML or JSON; - reads standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    file: PathBuf,
    /// What may happen to a pod on a lost node [default: by kind]
    ///
    /// Without it, work of which two copies must not run is refused: StatefulSets, and pods with a volume for one node.
    #[arg(long, value_name = "WHAT")]
    consent: Option<ConsentArg>,
    /// How long after its node became unreachable a pod is given up [default: 30s, or what is there already]
    #[arg(long, value_name = "DURATION")]
    evict_after: Option<GoDuration>,
    /// Print what is missing instead, and exit with 1 if anything is
    #[arg(long, conflicts_with = "uninject")]
    check: bool,
    /// Remove what opt-in adds
    #[arg(long, conflicts_with_all = ["consent", "evict_after"])]
    uninject: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ConsentArg {
    /// It may be marked Failed
    Terminate,
    /// It may be marked Failed, and then deleted
    Delete,
}

impl From<ConsentArg> for Consent {
    fn from(argument: ConsentArg) -> Self {
        match argument {
            ConsentArg::Terminate => Self::Terminate,
            ConsentArg::Delete => Self::Delete,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum OptInError {
    #[error("cannot read {file} (-f): {source}")]
    Read { file: String, source: io::Error },
    #[error("{file}: line {line}: not YAML: {problem}")]
    NotYaml { file: String, line: usize, problem: String },
    #[error("{0}")]
    Refused(String),
    #[error("--evict-after {0} must not be negative: write for example 30s")]
    Negative(GoDuration),
}

fn failed(error: OptInError) -> CliError {
    match error {
        OptInError::Negative(_) => CliError::Usage(Box::new(error)),
        OptInError::Read { .. } | OptInError::NotYaml { .. } | OptInError::Refused(_) => {
            CliError::Command(Box::new(error))
        }
    }
}

pub(crate) fn execute(args: &OptInArgs) -> Result<ExitCode, CliError> {
    if let Some(wait) = args.evict_after.filter(|wait| wait.is_negative()) {
        return Err(failed(OptInError::Negative(wait)));
    }
    let file =
        if is_stdin(&args.file) { "standard input".to_owned() } else { args.file.display().to_string() };
    let text =
        read_text(&args.file).map_err(|source| failed(OptInError::Read { file: file.clone(), source }))?;
    let documents = read(&text).map_err(|error| {
        failed(OptInError::NotYaml { file: file.clone(), line: error.line, problem: error.problem })
    })?;
    let answer = answer(args, &file, &documents).map_err(failed)?;
    output::talk(&answer.told);
    output::print_exactly(&answer.text)?;
    Ok(if args.check && answer.changes { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn is_stdin(file: &FilePath) -> bool {
    file == FilePath::new("-")
}

fn read_text(file: &FilePath) -> io::Result<String> {
    if is_stdin(file) {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text)?;
        Ok(text)
    } else {
        fs::read_to_string(file)
    }
}

#[derive(Default)]
struct Answer {
    /// For standard output.
    text: String,
    /// For standard error.
    told: String,
    /// True if any object changes.
    changes: bool,
}

/// An object of a document: the document itself, or an item of a List.
struct Found<'d> {
    at: Path,
    object: &'d Value,
}

fn objects(document: &Value) -> Vec<Found<'_>> {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match &document["items"] {
        Value::Array(items) if is_list => {
            let items = items.iter().enumerate();
            items
                .map(|(index, object)| Found { at: Path::default().to(&["items"]).index(index), object })
                .collect()
        }
        _ => vec![Found { at: Path::default(), object: document }],
    }
}

fn answer(args: &OptInArgs, file: &str, documents: &[Document<'_>]) -> Result<Answer, OptInError> {
    let mut claims = Claims::default();
    for found in documents.iter().flat_map(|document| objects(&document.value)) {
        claims.learn(found.object);
    }
    let owners = AtMostOne::default().owners;
    let how = OptIn {
        consent: args.consent.map(Consent::from),
        evict_after: args.evict_after,
        at_most_one_owners: &owners,
        claims: &claims,
    };
    let (mut answer, mut refused) = (Answer::default(), Vec::new());
    for document in documents {
        let mut edits = Vec::new();
        for Found { at, object } in objects(&document.value) {
            if object.is_null() {
                continue;
            }
            let name = name(object);
            let Some(kind) = Kind::of(object) else {
                let _ = writeln!(answer.told, "{name}: unchanged, because opt-in does not know this kind");
                continue;
            };
            let planned = if args.uninject {
                opt_in::opt_out(kind, object)
            } else {
                opt_in::opt_in(kind, object, &how)
            };
            match planned {
                Ok(plan) => {
                    answer.report(args, &name, &plan);
                    edits.extend(plan.edits.iter().map(|edit| edit.behind(&at)));
                }
                Err(problem) => refused.push(refusal(file, &name, kind, &problem)),
            }
        }
        if !args.check {
            answer.append(document, &edits);
        }
    }
    if refused.is_empty() { Ok(answer) } else { Err(OptInError::Refused(refused.join("\n"))) }
}

impl Answer {
    fn report(&mut self, args: &OptInArgs, name: &str, plan: &Plan) {
        let Self { text, told, changes } = self;
        // Writing to a string cannot fail.
        if plan.edits.is_empty() {
            let nothing = if args.uninject { "nothing of opt-in is there" } else { "nothing is missing" };
            let _ = writeln!(told, "{name}: {nothing}");
        } else {
            *changes = true;
            let (to, title) = match (args.check, args.uninject) {
                (true, _) => (&mut *text, "this is missing"),
                (false, true) => (&mut *told, "not opted in any more"),
                (false, false) => (&mut *told, "opted in"),
            };
            let _ = writeln!(to, "{name}: {title}");
            for edit in &plan.edits {
                let _ = writeln!(to, "  {edit}");
            }
        }
        for note in &plan.notes {
            let _ = writeln!(told, "  note: {note}");
        }
        for clock in plan.clocks.iter().filter(|_| !plan.edits.is_empty()) {
            let _ = writeln!(told, "  {clock}");
        }
    }

    fn append(&mut self, document: &Document<'_>, edits: &[Edit]) {
        let edited = document.edited(edits);
        if edited.is_reprinted {
            let _ = writeln!(
                self.told,
                "line {}: this document is printed without its comments, because it cannot be changed in place",
                document.line
            );
        }
        self.text.push_str(&edited.text);
    }
}

fn name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let Some(kind) = text(&object["kind"]) else { return "an object without a kind".to_owned() };
    let metadata = &object["metadata"];
    let name = text(&metadata["name"]).or_else(|| text(&metadata["generateName"]));
    let name = name.unwrap_or_else(|| "without a name".to_owned());
    match text(&metadata["namespace"]) {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

fn refusal(file: &str, name: &str, kind: Kind, problem: &Problem) -> String {
    match problem {
        Problem::AtMostOne { .. } => {
            let consent = match kind.consent() {
                Consent::Terminate => "terminate",
                Consent::Delete => "delete",
            };
            format!(
                "{file}: {name}: {problem}. If it may run twice while its node is only cut off, say so with --consent {consent}. \
                 Otherwise leave it out of the file: `salvor evict NODE` recovers it when the machine is off"
            )
        }
        Problem::Wrong { .. } => format!("{file}: {name}: {problem}"),
    }
}

#[cfg(test)]
mod tests;
