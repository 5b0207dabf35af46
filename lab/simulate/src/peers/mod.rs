//! Peers whose rules no configuration of Salvor matches: small clients of the API that decide as they do.

mod appwrapper;
mod node_health;

pub use appwrapper::AppWrapperController;
pub use node_health::{NodeHealth, SICK_CONDITIONS, SickCondition};
