//! Standard output is data, standard error is talk.

use std::io::{self, Write};

use salvor_operator::story;

use crate::error::CliError;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people
    Text,
    /// For machines
    Json,
}

/// Writes data. A reader that has seen enough, such as `head`, is not an error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Output(error)),
        _ => Ok(()),
    }
}

/// Says on standard error what went wrong.
pub(crate) fn complain(error: &CliError) {
    // There is nobody left to tell if this fails.
    let _ = writeln!(io::stderr().lock(), "salvor: {}", story(error));
}

/// Says something on standard error that is no error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "salvor: {text}");
}

/// A value as YAML.
pub(crate) fn yaml(value: &serde_json::Value) -> Result<String, CliError> {
    serde_saphyr::to_string(value).map_err(|error| CliError::Output(io::Error::other(error)))
}
