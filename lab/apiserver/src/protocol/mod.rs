//! What goes between a client and the server: what a request says, and how its answer is written.

pub(crate) mod duplicates;
pub(crate) mod printing;
pub(crate) mod render;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod status;
pub(crate) mod user;
pub(crate) mod wire;
