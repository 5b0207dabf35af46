//! The parts of an object that are written separately.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    Status,
    /// A namespace's own finalizers.
    Finalizers,
    /// A subresource that may change any field of the spec.
    Spec,
    /// The node of a pod, which does not change its generation.
    Node,
}
