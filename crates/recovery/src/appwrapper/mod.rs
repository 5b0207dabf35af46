//! AppWrapper recovery: a workload that is unhealthy and that its own controllers do not mend is reset as a whole.
//!
//! [`decide`] is the phase machine; read it top to bottom beside the description of its fault tolerance. The rest is what it
//! looks at ([`AppWrapperView`]), what the administrator and the AppWrapper's annotations say ([`AppWrapperPolicy`],
//! [`Timers`]), what it writes ([`Step`], [`AppWrapperStatus`]) and what it says ([`AppWrapperWhy`]).
//!
//! Whoever fills the view keeps to this:
//! - Each component is looked up under [`AppWrapperView::name_of`]. [`Seen::Absent`] means that it is known not to exist; a kind
//!   that is not listed yet, or may not be read, is [`Seen::Unknown`].
//! - `last` in [`Seen::Absent`] is the object's last state as the watch delivered it: it tells success, failure and eviction
//!   from a user's deletion. It may be lost in a restart, and it is not the final one if the watch has missed the end ([`End`]).
//! - A creation that answers AlreadyExists has succeeded if the object's controller has the AppWrapper's UID.
//! - Of an AppWrapper that was [changed](admitted::Comparison::Changed) since it was admitted, the components are those that the
//!   status names: they were created, and the changed ones are not.
//! - Who wrote its components is known from a [`stamp`]. Right before a creation the author's rights are asked for, by the object
//!   that is created from.
//! - A failed creation goes into [`Memory::creation`], and an event that is recorded into [`Memory::told`].
//! - Before a step that needs a second look the view is read live and judged once more; the step is done if the new judgement
//!   asks for [the same](Step::means_the_same).

pub mod admission;
pub mod admitted;
pub mod bounds;
pub mod components;
mod conditions;
mod creation;
pub mod deletion;
pub mod health;
pub mod inject;
mod machine;
mod moves;
mod names;
mod notes;
pub mod podsets;
pub mod policy;
mod reasons;
pub mod resets;
pub mod stamp;
pub mod status;
pub mod steps;
pub mod views;

pub use admitted::{Admitted, Comparison};
pub use components::ComponentState;
pub use deletion::works_to_read;
pub use machine::decide;
pub use notes::notes_told;
pub use policy::{Annotations, AppWrapperPolicy, Timers};
pub use reasons::AppWrapperWhy;
pub use resets::{Cause, ResetRecord};
pub use status::{AppWrapperStatus, Phase};
pub use steps::{Manner, Stakes, Step};
pub use views::{
    APPWRAPPER, AppWrapperRef, AppWrapperView, Authorship, ComponentKind, ComponentView, CreateFailure, End,
    FoundComponent, Last, Memory, NodeView, ObjectRef, PodView, Seen,
};

#[cfg(test)]
mod tests;
