//! The parts of an object that are written apart.

/// Which part of an object an update is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    Status,
    /// A namespace's own finalizers.
    Finalizers,
    /// A subresource that may change the spec as it likes.
    Spec,
    /// The node of a pod, which is no change of its generation.
    Node,
}
