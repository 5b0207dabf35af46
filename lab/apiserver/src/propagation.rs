//! The propagation policy of a deletion.

pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl Propagation {
    /// The value of `propagationPolicy`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Background => "Background",
            Self::Foreground => "Foreground",
        }
    }

    /// The finalizer that represents it.
    pub(crate) fn finalizer(self) -> Option<&'static str> {
        match self {
            Self::Orphan => Some(ORPHAN),
            Self::Background => None,
            Self::Foreground => Some(FOREGROUND),
        }
    }
}
