//! Views that are shown again whenever they change.

use std::process::ExitCode;
use std::time::Duration;

use crate::error::CliError;
use crate::output::{self, Form};

/// How often a live view is refreshed.
const PERIOD: Duration = Duration::from_secs(2);
/// The exit code after SIGINT, by the convention of shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// Prints the text that `view` returns whenever it changes, until SIGINT.
pub(crate) async fn watch(
    form: Form,
    mut view: impl AsyncFnMut() -> Result<String, CliError>,
) -> Result<ExitCode, CliError> {
    let mut shown = String::new();
    loop {
        let one = async {
            let text = view().await?;
            if text != shown {
                match form {
                    Form::Text => output::show(&text, true)?,
                    Form::Json => output::print(&text)?,
                }
                shown = text;
            }
            tokio::time::sleep(PERIOD).await;
            Ok::<(), CliError>(())
        };
        tokio::select! {
            one = one => one?,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(INTERRUPTED)),
        }
    }
}
