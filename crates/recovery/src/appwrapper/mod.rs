//! AppWrapper recovery: a workload that is unhealthy and that its own controllers do not mend is reset as a whole.
//!
//! [`decide`] is the phase machine; read it top to bottom beside the description of its fault tolerance. The rest is what it
//! looks at ([`AppWrapperView`]), what the administrator and the AppWrapper's annotations say ([`AppWrapperPolicy`],
//! [`Timers`]), what it writes ([`Step`], [`AppWrapperStatus`]) and what it says ([`AppWrapperWhy`]).

pub mod components;
mod conditions;
mod creation;
pub mod deletion;
pub mod health;
mod machine;
mod moves;
mod names;
mod notes;
pub mod policy;
mod reasons;
pub mod resets;
pub mod status;
pub mod steps;
pub mod views;

pub use components::ComponentState;
pub use machine::decide;
pub use policy::{Annotations, AppWrapperPolicy, Timers};
pub use reasons::AppWrapperWhy;
pub use resets::{Cause, ResetRecord};
pub use status::{AppWrapperStatus, Phase};
pub use steps::{Manner, Stakes, Step};
pub use views::{
    AppWrapperRef, AppWrapperView, ComponentKind, ComponentView, CreateFailure, FoundComponent, Memory,
    NodeView, ObjectRef, PodView, Seen,
};

#[cfg(test)]
mod tests;
