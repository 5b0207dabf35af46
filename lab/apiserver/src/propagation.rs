//! The propagation policy of a deletion.

/// The finalizer of an owner whose dependents lose it and stay.
pub const ORPHAN: &str = "orphan";
/// The finalizer of an owner that goes after its dependents.
pub const FOREGROUND: &str = "foregroundDeletion";

/// What becomes of the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl Propagation {
    /// The value of `propagationPolicy`.
    pub fn name(self) -> &'static str {
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
