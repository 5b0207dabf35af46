//! The embedded structures are those of the Go sources of the real server. `SALVOR_UPDATE=1` rewrites them. The sources
//! are in Go's module cache once the control plane was built here; without them nothing is compared.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[path = "support/served.rs"]
mod served;

/// Bodies that clients send besides objects.
const OTHERS: [&str; 12] = [
    "authentication.v1.SelfSubjectReview",
    "authentication.v1.TokenRequest",
    "authentication.v1.TokenReview",
    "authorization.v1.LocalSubjectAccessReview",
    "authorization.v1.SelfSubjectAccessReview",
    "authorization.v1.SelfSubjectRulesReview",
    "authorization.v1.SubjectAccessReview",
    "autoscaling.v1.Scale",
    "core.v1.Binding",
    "meta.v1.DeleteOptions",
    "meta.v1.Status",
    "policy.v1.Eviction",
];

/// A type in Go. It refers to other types with their packages: `*core.v1:PodSpec`.
#[derive(Debug, Clone)]
enum Type {
    /// Fields by their numbers: name, type, and whether it is always printed.
    Structure(BTreeMap<u32, (String, String, bool)>),
    Alias(String),
}

struct Sources {
    modules: PathBuf,
    version: String,
    packages: BTreeMap<String, BTreeMap<String, Type>>,
}

impl Sources {
    /// The sources of the pinned Kubernetes, if they are present.
    fn find() -> Option<Self> {
        let pins = concat!(env!("CARGO_MANIFEST_DIR"), "/../../control-plane/kubernetes-1.37/go.mod");
        let pins = std::fs::read_to_string(pins).unwrap();
        let pin = pins.lines().find_map(|line| line.trim().split_once("k8s.io/api => k8s.io/api "))?;
        let home = std::env::var("HOME").unwrap_or_default();
        let cache = std::env::var("GOMODCACHE").unwrap_or_else(|_| format!("{home}/go/pkg/mod"));
        let modules = Path::new(&cache).join("k8s.io");
        let version = pin.1.trim().to_owned();
        let is_here = modules.join(format!("api@{version}")).is_dir();
        is_here.then(|| Self { modules, version, packages: BTreeMap::new() })
    }

    /// The types of a package, for example `core.v1`.
    fn package(&mut self, name: &str) -> &BTreeMap<String, Type> {
        if !self.packages.contains_key(name) {
            let (package, version) = name.split_once('.').unwrap();
            let folder = match package {
                "meta" => self.modules.join(format!("apimachinery@{}/pkg/apis/meta/v1", self.version)),
                _ => self.modules.join(format!("api@{}/{package}/{version}", self.version)),
            };
            let mut types = BTreeMap::new();
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let file = path.file_name().unwrap().to_string_lossy().into_owned();
                if file.ends_with(".go") && !file.contains("generated") && !file.ends_with("_test.go") {
                    parse(&std::fs::read_to_string(&path).unwrap(), name, &mut types);
                }
            }
            self.packages.insert(name.to_owned(), types);
        }
        &self.packages[name]
    }

    /// A type as it is written into the list.
    fn listed(&mut self, text: &str) -> String {
        let (is_pointer, text) = text.strip_prefix('*').map_or((false, text), |text| (true, text));
        if let Some(element) = text.strip_prefix("[]") {
            return format!("[]{}", self.listed(element));
        }
        if let Some((_, values)) = text.strip_prefix("map[").and_then(|map| map.split_once(']')) {
            return format!("map {}", self.listed(values));
        }
        let (package, name) = text.split_once(':').unwrap();
        let listed = match (package, name) {
            (_, "string") | ("types", _) => "string",
            (_, "int" | "int32" | "int64" | "uint8") => "int",
            (_, "bool") => "bool",
            (_, "float64") => "double",
            (_, "bytes") => "bytes",
            ("resource", "Quantity") => "quantity",
            ("intstr", "IntOrString") => "intorstring",
            ("runtime", "RawExtension") | ("meta.v1", "FieldsV1") => "raw",
            ("meta.v1", "Time") => "time",
            ("meta.v1", "MicroTime") => "microtime",
            _ => match self.package(package).get(name).cloned() {
                Some(Type::Structure(_)) => return format!("{package}.{name}"),
                Some(Type::Alias(inner)) => {
                    return self.listed(&format!("{}{inner}", if is_pointer { "*" } else { "" }));
                }
                None => panic!("no type {name} in {package}"),
            },
        };
        // An unset structure is the same as a missing one, pointer or not.
        let tells = ["string", "int", "bool", "double", "time", "microtime"];
        if is_pointer && tells.contains(&listed) { format!("*{listed}") } else { listed.to_owned() }
    }
}

/// The short name of an imported package.
fn short(path: &str) -> String {
    let mut parts = path.rsplit('/');
    let (last, before) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    if path.starts_with("k8s.io/api/") || path.ends_with("/apis/meta/v1") {
        return format!("{before}.{last}");
    }
    last.to_owned()
}

fn parse(text: &str, package: &str, types: &mut BTreeMap<String, Type>) {
    let mut imports = BTreeMap::new();
    /// The known fields of a structure, by number.
    type Fields = BTreeMap<u32, (String, String, bool)>;
    let mut current: Option<(String, Fields)> = None;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("//") {
            continue;
        }
        if let Some((alias, path)) = import(line) {
            let alias = if alias.is_empty() { path.rsplit('/').next().unwrap() } else { alias };
            imports.insert(alias.to_owned(), short(path));
        } else if let Some(name) = line.strip_prefix("type ").and_then(|rest| rest.strip_suffix(" struct {"))
        {
            current = Some((name.to_owned(), BTreeMap::new()));
        } else if let Some(alias) = line.strip_prefix("type ") {
            if let Some((name, inner)) = alias.split_once(' ') {
                let inner = inner.trim_start_matches("= ");
                types.insert(name.to_owned(), Type::Alias(qualified(inner, package, &imports)));
            }
        } else if line == "}" {
            if let Some((name, fields)) = current.take() {
                types.insert(name, Type::Structure(fields));
            }
        } else if let (Some((_, fields)), Some((declared, tags))) = (&mut current, line.split_once('`')) {
            let tag = |key: &str| {
                let (_, rest) = tags.split_once(&format!("{key}:\""))?;
                Some(rest.split_once('"')?.0)
            };
            let Some(number) = tag("protobuf").and_then(|tag| tag.split(',').nth(1)?.parse().ok()) else {
                continue;
            };
            let Some(json) = tag("json") else { continue };
            let words: Vec<&str> = declared.split_whitespace().collect();
            let written = words.last().unwrap().to_string();
            // A field without a name is inlined.
            let name = json.split(',').next().filter(|name| !name.is_empty()).unwrap_or("+");
            let is_always = !json.contains(",omitempty") && name != "+";
            fields.insert(number, (name.to_owned(), qualified(&written, package, &imports), is_always));
        }
    }
}

fn import(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("import ").unwrap_or(line);
    let (alias, path) = line.split_once('"')?;
    let path = path.strip_suffix('"')?;
    let is_import = path.starts_with("k8s.io/") && alias.trim().chars().all(char::is_alphanumeric);
    is_import.then(|| (alias.trim(), path))
}

/// The type with its package instead of the file's alias for it: `core.v1:Pod`.
fn qualified(text: &str, package: &str, imports: &BTreeMap<String, String>) -> String {
    let (pointer, text) = text.strip_prefix('*').map_or(("", text), |text| ("*", text));
    if text == "[]byte" {
        return format!("{package}:bytes");
    }
    if let Some(element) = text.strip_prefix("[]") {
        return format!("{pointer}[]{}", qualified(element, package, imports));
    }
    if let Some((key, values)) = text.strip_prefix("map[").and_then(|map| map.split_once(']')) {
        return format!("{pointer}map[{key}]{}", qualified(values, package, imports));
    }
    match text.split_once('.') {
        Some((alias, name)) => format!("{pointer}{}:{name}", imports.get(alias).map_or("", String::as_str)),
        None => format!("{pointer}{package}:{text}"),
    }
}

/// The structures that a type consists of.
fn structures(listed: &str) -> Option<&str> {
    let name = listed.trim_start_matches("[]").trim_start_matches("map ").trim_start_matches("[]");
    name.contains('.').then_some(name)
}

#[tokio::test]
async fn structures_are_those_of_the_sources() {
    let Some(mut sources) = Sources::find() else {
        return eprintln!("the sources of Kubernetes are not here: nothing is compared");
    };
    let mut wanted: BTreeSet<String> = OTHERS.iter().map(|&name| name.to_owned()).collect();
    for kind in served::all().await {
        let package = match kind.group.as_str() {
            "" => "core",
            // CustomResourceDefinitions are not decoded from protobuf.
            "apiextensions.k8s.io" => continue,
            group => group.split('.').next().unwrap(),
        };
        wanted.insert(format!("{package}.{}.{}", kind.version, kind.kind));
    }
    let mut lists: BTreeMap<String, String> = BTreeMap::new();
    while let Some(structure) = wanted.pop_first() {
        if lists.contains_key(&structure) {
            continue;
        }
        let (package, name) = structure.rsplit_once('.').unwrap();
        let Some(Type::Structure(fields)) = sources.package(package).get(name).cloned() else {
            panic!("{structure} is no structure");
        };
        let mut list = format!("{structure}\n");
        for (number, (name, written, is_always)) in fields {
            // Its texts are a separate message, and only the server sets it.
            if written.ends_with(":ExtraValue") {
                continue;
            }
            let listed = sources.listed(&written);
            wanted.extend(structures(&listed).map(str::to_owned));
            list.push_str(&format!(" {number} {name} {listed}{}\n", if is_always { " !" } else { "" }));
        }
        lists.insert(structure, list);
    }
    let text: String = lists.into_values().collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/structs.txt");
    if std::env::var_os("SALVOR_UPDATE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap();
    let different: Vec<&str> =
        text.lines().filter(|line| !stored.lines().any(|known| known == *line)).collect();
    assert!(
        stored == text,
        "data/structs.txt is not what the sources say; run this test with SALVOR_UPDATE=1. New: {different:?}"
    );
}
