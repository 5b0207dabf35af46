//! The controllers of volumes.

pub(crate) mod attach_detach;
pub(crate) mod volumes;
