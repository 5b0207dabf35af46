//! What single kinds do differently: defaults, what the server decides on creation and update, and validation.

pub(crate) mod defaults;
pub(crate) mod prepare;
pub(crate) mod validation;
