//! Somebody writes what nobody can read, 100 kB, nothing, or times that cannot be, into whatever Salvor reads back or others read of
//! it, while a recovery is under way, and puts it right minutes later.

mod complete;
mod play;
mod spot;
mod stories;
mod value;

pub(crate) use play::{Story, assert_withstood};
pub(crate) use spot::Spot;
pub(crate) use value::Corruption;
