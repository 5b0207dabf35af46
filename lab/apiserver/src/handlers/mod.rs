//! What the server does with a request whose path is resolved.

mod apply;
mod definitions;
pub(crate) mod delete;
pub(crate) mod discovery;
pub(crate) mod patching;
pub(crate) mod read;
pub(crate) mod reviews;
pub(crate) mod subresources;
pub(crate) mod write;
