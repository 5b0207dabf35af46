//! The real promtool, which `control-plane/promtool` builds once into the cache.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::plane::assets::{self, AssetsError};

/// The folder that holds it. The first call of a process runs the build script, which may take minutes.
fn folder() -> Result<&'static Path, AssetsError> {
    static FOLDER: OnceLock<Result<PathBuf, AssetsError>> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../control-plane/promtool");
            assets::build(Command::new(script), &mut std::io::stderr())
        })
        .as_deref()
        .map_err(Clone::clone)
}

/// Runs promtool with these arguments, and waits for its end.
///
/// # Panics
/// If there is none, and none can be built or started.
pub fn promtool(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
    let folder = folder().unwrap_or_else(|error| panic!("{error}"));
    let output = Command::new(folder.join("promtool")).args(arguments).output();
    output.unwrap_or_else(|error| panic!("promtool does not start: {error}"))
}
