//! The binary as a kubectl plugin, and its krew manifest.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use salvor_testkit::{Part, program_of};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{run, stdout};

/// A folder on the PATH with kubectl, the plugin and its completion script.
fn installed() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let kubectl = program_of(Part::ApiServer).unwrap().with_file_name("kubectl");
    symlink(kubectl, folder.path().join("kubectl")).unwrap();
    symlink(env!("CARGO_BIN_EXE_salvor"), folder.path().join("kubectl-salvor")).unwrap();
    let script = folder.path().join("kubectl_complete-salvor");
    fs::write(&script, run(&["completions", "kubectl"]).stdout).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn kubectl(folder: &Path, arguments: &[&str]) -> Output {
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let mut kubectl = Command::new(folder.join("kubectl"));
    kubectl.args(arguments).env_clear().env("PATH", path).env("HOME", folder).output().unwrap()
}

#[test]
fn help_calls_the_plugin_as_its_user_does() {
    let folder = installed();
    for (arguments, usage) in [
        (&["salvor", "--help"][..], "Usage: kubectl salvor <COMMAND>"),
        (&["salvor", "why", "--help"], "Usage: kubectl salvor why "),
        (&["salvor", "config", "check", "-h"], "Usage: kubectl salvor config check "),
    ] {
        let help = stdout(&kubectl(folder.path(), arguments));
        assert!(help.contains(usage), "{arguments:?}: {help}");
        assert!(!help.contains("Usage: salvor") && !help.contains("kubectl-salvor"), "{help}");
    }
    let wrong = kubectl(folder.path(), &["salvor", "why", "--no-such-flag"]);
    assert_eq!(wrong.status.code(), Some(2));
    let told = String::from_utf8(wrong.stderr).unwrap();
    assert!(told.contains("Usage: kubectl salvor why"), "{told}");
    let version = stdout(&kubectl(folder.path(), &["salvor", "version"]));
    assert_eq!(version, format!("salvor {}\n", env!("CARGO_PKG_VERSION")));
    assert!(stdout(&run(&["why", "--help"])).contains("Usage: salvor why "));
}

#[test]
fn kubectl_completes_the_arguments_of_the_plugin() {
    let folder = installed();
    for (words, expected) in [
        (&["__complete", "salvor", "uninst"][..], "uninstall\t"),
        (&["__complete", "salvor", "explain", "nod"], "node\t"),
        (&["__complete", "salvor", "why", "job/a", "-o", "js"], "json\t"),
        (&["__complete", "salvor", "manifests", "--skip"], "--skip-crds\t"),
    ] {
        let said = stdout(&kubectl(folder.path(), words));
        let mut lines = said.lines();
        assert!(lines.next().unwrap_or_default().starts_with(expected), "{words:?}: {said}");
        assert_eq!(lines.next(), Some(":4"), "{words:?}: {said}");
    }
}

/// Otherwise errors in the manifest would only show up during a release.
#[test]
fn the_krew_manifest_is_one_of_this_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("deploy/krew/salvor.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!((&manifest["kind"], &manifest["metadata"]), (&json!("Plugin"), &json!({"name": "salvor"})));
    let spec = &manifest["spec"];
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(spec["version"], version);
    let known = ["version", "homepage", "shortDescription", "description", "caveats", "platforms"];
    for field in spec.as_object().unwrap().keys() {
        assert!(known.contains(&field.as_str()), "krew knows no {field}");
    }
    let short = spec["shortDescription"].as_str().unwrap();
    assert!(
        !short.is_empty() && short.len() <= 60 && !short.ends_with('.') && !short.contains('\n'),
        "{short}"
    );
    assert!(spec["homepage"].as_str().unwrap().starts_with("https://"));
    let platforms = spec["platforms"].as_array().unwrap();
    let mut seen = Vec::new();
    for platform in platforms {
        let fields: Vec<&String> = platform.as_object().unwrap().keys().collect();
        assert!(
            fields
                .iter()
                .all(|field| ["selector", "uri", "sha256", "bin", "files"].contains(&field.as_str())),
            "{fields:?}"
        );
        let labels = &platform["selector"]["matchLabels"];
        let (os, arch) = (labels["os"].as_str().unwrap(), labels["arch"].as_str().unwrap());
        let archive = format!("salvor-{version}-{os}-{arch}.tar.gz");
        let uri = platform["uri"].as_str().unwrap();
        assert!(
            uri.starts_with("https://") && uri.contains(&format!("/{version}/")) && uri.ends_with(&archive),
            "{uri}"
        );
        let sum = platform["sha256"].as_str().unwrap();
        assert!(sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()), "{sum}");
        // kubectl finds a plugin by this name.
        assert_eq!(platform["bin"], "kubectl-salvor");
        let files = platform["files"].as_array().unwrap();
        assert!(files.iter().any(|file| file["from"] == "kubectl-salvor"), "{platform}");
        assert!(files.iter().any(|file| file["from"] == "LICENSE"), "krew wants the licence: {platform}");
        seen.push(format!("{os}/{arch}"));
    }
    assert_eq!(seen, ["linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"]);
    assert!(root.join("LICENSE").is_file());
}
