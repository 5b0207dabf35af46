//! The modules of a crate, and which file names what of which other file. Only production code counts.
//!
//! An arrow leads from the file that uses a name to the file that *defines* it: a `use` on the way is followed. So a
//! parent that only declares its children and re-exports names of theirs closes no circle. It has an arrow to a child
//! if it uses the child itself, and the child has one to its parent if it uses what the parent's own file defines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::read;
use crate::source::{Token, tokens};

type ModulePath = Vec<String>;

/// From a file to those that it names, with a name for each. Files are relative to the crate's `src`.
pub(crate) type Arrows = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Default)]
struct Crate {
    /// Each module, also one within a file, and its file.
    files: BTreeMap<ModulePath, String>,
    /// What a module calls by a name through a `use`.
    names: BTreeMap<(ModulePath, String), Vec<String>>,
    mentions: Vec<Mention>,
}

/// A path in the code.
struct Mention {
    scope: ModulePath,
    path: Vec<String>,
}

enum Found {
    Module(ModulePath),
    /// Something that this file defines.
    Item(String),
}

/// The arrows between the files of a crate, from its `src` folder.
pub(crate) fn arrows(src: &Path) -> Result<Arrows, String> {
    let mut it = Crate::default();
    for root in ["lib.rs", "main.rs"] {
        if src.join(root).exists() {
            it.load(src, &src.join(root), &Vec::new())?;
        }
    }
    Ok(it.arrows())
}

impl Crate {
    /// Reads the file of a module, and those of the modules that it declares.
    fn load(&mut self, src: &Path, file: &Path, module: &ModulePath) -> Result<(), String> {
        let text = read(file)?;
        let name = file.strip_prefix(src).unwrap_or(file).display().to_string();
        for child in self.take(&text, &name, module) {
            let path = child.iter().collect::<PathBuf>();
            let candidates = [src.join(&path).with_extension("rs"), src.join(&path).join("mod.rs")];
            let found = candidates.iter().find(|file| file.exists());
            let found = found
                .ok_or_else(|| format!("{}: module {} has no file", file.display(), child.join("::")))?;
            self.load(src, found, &child)?;
        }
        Ok(())
    }

    /// Takes the text of a module in, and returns the modules that it declares and that have files of their own.
    fn take(&mut self, text: &str, file: &str, module: &ModulePath) -> Vec<ModulePath> {
        let tokens: Vec<Token<'_>> = tokens(text).into_iter().filter(|token| !token.test).collect();
        self.files.insert(module.clone(), file.to_owned());
        let mut scope = module.clone();
        // The depth of braces at which each module within this file ends.
        let mut open: Vec<usize> = Vec::new();
        let mut depth = 0;
        let mut children = Vec::new();
        let mut words = BTreeSet::new();
        let mut re_exports = Vec::new();
        let mut at = 0;
        let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.text == text);
        while let Some(token) = tokens.get(at) {
            match token.text {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if open.last() == Some(&depth) {
                        open.pop();
                        scope.pop();
                    }
                }
                "mod" if is(at + 2, ";") => {
                    let mut child = scope.clone();
                    child.push(tokens[at + 1].text.to_owned());
                    children.push(child);
                    at += 2;
                }
                "mod" if is(at + 2, "{") => {
                    open.push(depth);
                    scope.push(tokens[at + 1].text.to_owned());
                    self.files.insert(scope.clone(), file.to_owned());
                    at += 1;
                }
                // Not the bounds of captured lifetimes: `impl Trait + use<'a>`.
                "use" if !is(at + 1, "<") => {
                    let public = at > 0 && matches!(tokens[at - 1].text, "pub" | ")");
                    let mut leaves = Vec::new();
                    at = use_tree(&tokens, at + 1, &[], &mut leaves);
                    for Leaf { path, name } in leaves {
                        let mention = Mention { scope: scope.clone(), path: path.clone() };
                        match &name {
                            Some(name) if public => re_exports.push((name.clone(), mention)),
                            _ => self.mentions.push(mention),
                        }
                        if let Some(name) = name {
                            self.names.insert((scope.clone(), name), path);
                        }
                    }
                }
                word if is_name(word) => {
                    words.insert(word);
                    let mut path = vec![word.to_owned()];
                    while is(at + 1, "::") && tokens.get(at + 2).is_some_and(|it| is_name(it.text)) {
                        path.push(tokens[at + 2].text.to_owned());
                        at += 2;
                    }
                    if path.len() > 1 {
                        self.mentions.push(Mention { scope: scope.clone(), path });
                    }
                }
                _ => {}
            }
            at += 1;
        }
        // A name that is only passed on is not used here.
        let used = re_exports.into_iter().filter(|(name, _)| words.contains(name.as_str()));
        self.mentions.extend(used.map(|(_, mention)| mention));
        children
    }

    fn arrows(&self) -> Arrows {
        let mut arrows: Arrows =
            self.files.values().map(|file| (file.clone(), BTreeMap::default())).collect();
        for mention in &self.mentions {
            // A module that is imported is not used yet: the paths that begin with it are.
            let Some(Found::Item(to)) = self.find(&mention.scope, &mention.path, 0) else { continue };
            let from = &self.files[&mention.scope];
            if let Some(arrows) = arrows.get_mut(from).filter(|_| *from != to) {
                arrows.entry(to).or_insert_with(|| mention.path.join("::"));
            }
        }
        arrows
    }

    /// What a path means in a module; nothing if it is another crate's, or a name that this module defines itself.
    fn find(&self, scope: &ModulePath, path: &[String], followed: usize) -> Option<Found> {
        // `use a::b` and `use b::a` can name each other without end.
        if followed > 16 {
            return None;
        }
        let mut module = scope.clone();
        for (at, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" => module.clear(),
                "self" => {}
                "super" => {
                    module.pop()?;
                }
                _ => {
                    let mut child = module.clone();
                    child.push(name.clone());
                    let by_use = self.names.get(&(module.clone(), name.clone()));
                    if self.files.contains_key(&child) {
                        module = child;
                    } else if let Some(used) = by_use.filter(|used| *used != path || module != *scope) {
                        match self.find(&module, used, followed + 1)? {
                            Found::Module(found) => module = found,
                            item @ Found::Item(_) => return Some(item),
                        }
                    } else if at == 0 {
                        return None;
                    } else {
                        return Some(Found::Item(self.files[&module].clone()));
                    }
                }
            }
        }
        Some(Found::Module(module))
    }
}

/// A name that a `use` brings in, and what it stands for. `a::*` and `a as _` bring in none.
struct Leaf {
    path: Vec<String>,
    name: Option<String>,
}

/// Reads a tree of a `use` from its first token, and returns the place of what ends it: a semicolon, a comma or a brace.
fn use_tree(tokens: &[Token<'_>], mut at: usize, prefix: &[String], leaves: &mut Vec<Leaf>) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(at) {
        match token.text {
            "::" => {}
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|it| it.text != "}") {
                    at = use_tree(tokens, at, &path, leaves);
                    at += usize::from(tokens.get(at).is_some_and(|it| it.text == ","));
                }
                return at + 1;
            }
            "as" => {
                let name = tokens.get(at + 1).map(|it| it.text).filter(|name| *name != "_");
                leaves.push(Leaf { path, name: name.map(str::to_owned) });
                return at + 2;
            }
            "*" => {
                path.push("*".to_owned());
                leaves.push(Leaf { path, name: None });
                return at + 1;
            }
            // `a::{self}` is `a`.
            "self" if !path.is_empty() => {}
            name if is_name(name) => path.push(name.to_owned()),
            _ => break,
        }
        at += 1;
    }
    let name = path.last().cloned();
    leaves.push(Leaf { path, name });
    at
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arrows between modules with these texts, as `from > to`.
    fn arrows_of(files: &[(&str, &str)]) -> Vec<String> {
        let mut it = Crate::default();
        for (file, text) in files {
            let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
            let module =
                if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() };
            it.take(text, file, &module);
        }
        let arrows = it.arrows();
        arrows.iter().flat_map(|(from, to)| to.keys().map(move |to| format!("{from} > {to}"))).collect()
    }

    #[test]
    fn an_arrow_leads_to_the_file_that_defines_a_name() {
        let lib = ("lib.rs", "mod a; mod b; pub use b::B; #[cfg(test)] mod tests;");
        assert_eq!(arrows_of(&[lib, ("a.rs", "use crate::B;"), ("b.rs", "pub struct B;")]), ["a.rs > b.rs"]);
        assert_eq!(
            arrows_of(&[lib, ("a.rs", "use super::{b::{self, C as D}, X};"), ("b.rs", "")]),
            ["a.rs > b.rs", "a.rs > lib.rs"]
        );
        assert_eq!(arrows_of(&[lib, ("a.rs", "fn f() { crate::b::f::<u8>() }"), ("b.rs", "")]), {
            ["a.rs > b.rs"]
        });
    }

    #[test]
    fn a_parent_that_passes_names_on_uses_none_of_them() {
        let (a, child) = (("a.rs", "mod b;\npub(crate) use b::B;"), ("a/b.rs", "use super::C;"));
        assert_eq!(arrows_of(&[("lib.rs", "mod a;"), a, child]), ["a/b.rs > a.rs"]);
        let a = ("a.rs", "mod b;\npub(crate) use b::B;\nfn f(b: B) {}");
        assert_eq!(arrows_of(&[("lib.rs", "mod a;"), a, child]), ["a.rs > a/b.rs", "a/b.rs > a.rs"]);
        let a = ("a.rs", "mod b;\nfn f() { b::f() }");
        assert_eq!(arrows_of(&[("lib.rs", "mod a;"), a, child]), ["a.rs > a/b.rs", "a/b.rs > a.rs"]);
    }

    #[test]
    fn an_imported_module_counts_where_something_of_it_is_used() {
        let files = |text| [("lib.rs", "mod a; mod b;"), ("a/mod.rs", text), ("b.rs", "")];
        assert!(arrows_of(&files("use crate::b;")).is_empty());
        assert_eq!(arrows_of(&files("use crate::b as c;\nfn f() { c::f() }")), ["a/mod.rs > b.rs"]);
    }

    #[test]
    fn tests_comments_and_other_crates_make_no_arrow() {
        let text = "//! See [`crate::b::B`].\nuse serde::b; #[cfg(test)] mod tests { use crate::b::B; }";
        assert!(arrows_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", text), ("b.rs", "")]).is_empty());
    }

    #[test]
    fn super_in_a_module_within_a_file_is_the_file() {
        let text = "mod inner { use super::A; use super::super::b::B; }\nfn f() { inner::f() }";
        assert_eq!(arrows_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", text), ("b.rs", "")]), ["a.rs > b.rs"]);
    }
}
