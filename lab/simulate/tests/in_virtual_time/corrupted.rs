//! While a recovery is in progress, a user writes unreadable values, 100 kB, nothing, or impossible times into every
//! field that Salvor reads back or that others read from it, and reverts that minutes later.

mod complete;
mod play;
mod spot;
mod stories;
mod value;

pub(crate) use play::{Story, assert_withstood};
pub(crate) use spot::Spot;
pub(crate) use value::Corruption;
