//! The propagation policy of a deletion.

pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// The propagation policy for an object's dependents.
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
