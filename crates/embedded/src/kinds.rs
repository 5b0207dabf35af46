//! What single kinds do differently: defaults, what the server decides on creation and update, and validation.

pub(crate) mod defaults;
pub(crate) mod go;
mod indexes;
mod job;
mod job_status;
mod pod_status;
pub(crate) mod prepare;
pub(crate) mod validation;
