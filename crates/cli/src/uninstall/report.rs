//! The report of what was found and done, for people and for machines.

use salvor_why::NotSeen;
use serde::Serialize;

/// An object with marks of Salvor, or an object of Salvor itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Released {
    pub(super) kind: &'static str,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// The removed marks. Empty if the whole object is deleted.
    pub(super) marks: Vec<String>,
}

impl Released {
    pub(super) fn title(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) dry_run: bool,
    /// Why nothing may be removed now.
    pub(super) blocked: Vec<String>,
    /// What was removed, or would be in a dry run.
    pub(super) released: Vec<Released>,
    /// What stays, and why.
    pub(super) stays: Vec<String>,
    /// What could not be removed.
    pub(super) failed: Vec<NotSeen>,
    /// What could not be read.
    pub(super) not_seen: Vec<NotSeen>,
}

impl Report {
    pub(super) fn miss(&mut self, what: &str, why: String) {
        let missed = NotSeen { what: what.to_owned(), why };
        if !self.not_seen.contains(&missed) {
            self.not_seen.push(missed);
        }
    }

    pub(super) fn fail(&mut self, what: &str, why: String) {
        self.failed.push(NotSeen { what: what.to_owned(), why });
    }

    /// Whether everything was read and nothing failed.
    pub(super) fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.not_seen.is_empty() && self.blocked.is_empty()
    }

    pub(super) fn render(&self) -> String {
        let mut lines = Vec::new();
        let refused = !self.dry_run && !self.blocked.is_empty();
        if !refused {
            for released in &self.released {
                let verb = match (self.dry_run, released.marks.is_empty()) {
                    (true, true) => "would be deleted".to_owned(),
                    (true, false) => format!("would lose {}", released.marks.join(", ")),
                    (false, true) => "deleted".to_owned(),
                    (false, false) => format!("lost {}", released.marks.join(", ")),
                };
                lines.push(format!("{}: {verb}", released.title()));
            }
        }
        lines.extend(self.stays.iter().map(|text| format!("Stays: {text}")));
        lines.extend(self.failed.iter().map(|one| format!("Not released: {}: {}", one.what, one.why)));
        lines.extend(self.not_seen.iter().map(|one| format!("Not seen: {}: {}", one.what, one.why)));
        lines.extend(self.blocked.iter().map(|text| format!("Blocked: {text}")));
        lines.push(self.end().to_owned());
        lines.join("\n") + "\n"
    }

    fn end(&self) -> &'static str {
        match (self.dry_run, self.blocked.is_empty()) {
            (true, _) if self.released.is_empty() && self.is_complete() => {
                "Nothing of Salvor's is on any object"
            }
            (true, true) => "This was a dry run, and nothing was changed: add --yes to do it",
            (true, false) => "This was a dry run, and nothing was changed. With --yes it would be refused",
            (false, false) => "Nothing was changed",
            (false, true) if self.is_complete() => {
                "Nothing of Salvor's is on any object any more. Remove the installation itself as you made it: with \
                 `salvor manifests --skip-crds ... | kubectl delete -f -`, or with `helm uninstall`"
            }
            (false, true) => "Something is left. Run the command again when what is said above is solved",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_tells_the_outcome() {
        let one = Released {
            kind: "Pod",
            namespace: Some("a".into()),
            name: "b".into(),
            marks: vec!["finalizer f".into()],
        };
        let dry = Report { dry_run: true, ..Report::default() };
        assert_eq!(dry.render(), "Nothing of Salvor's is on any object\n");
        let found = Report { released: vec![one.clone()], ..dry };
        assert_eq!(
            found.render(),
            "Pod a/b: would lose finalizer f\nThis was a dry run, and nothing was changed: add --yes to do it\n"
        );
        let refused = Report { dry_run: false, blocked: vec!["somebody leads".into()], ..found.clone() };
        assert_eq!(refused.render(), "Blocked: somebody leads\nNothing was changed\n");
        let mut partly = Report { dry_run: false, ..found };
        partly.fail("Pod c/d", "forbidden".into());
        let text = partly.render();
        assert!(
            text.starts_with(
                "Pod a/b: lost finalizer f\nNot released: Pod c/d: forbidden\nSomething is left."
            ),
            "{text}"
        );
        let deleted = Released { kind: "Lease", marks: Vec::new(), ..one };
        let done = Report { released: vec![deleted], ..Report::default() };
        assert!(
            done.render().starts_with("Lease a/b: deleted\nNothing of Salvor's is on any object any more."),
            "{}",
            done.render()
        );
    }
}
