//! What becomes of the dependents of an object that is deleted.

pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// What becomes of an object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl Propagation {
    /// As `propagationPolicy` names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Background => "Background",
            Self::Foreground => "Foreground",
        }
    }

    /// The finalizer that stands for it.
    pub(crate) fn finalizer(self) -> Option<&'static str> {
        match self {
            Self::Orphan => Some(ORPHAN),
            Self::Background => None,
            Self::Foreground => Some(FOREGROUND),
        }
    }
}
