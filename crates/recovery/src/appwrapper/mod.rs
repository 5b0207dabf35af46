//! AppWrapper recovery: it resets a workload as a whole if the workload is unhealthy and its own controllers do not
//! repair it.
//!
//! [`decide`] is the phase machine; read it top to bottom beside the description of its fault tolerance. Its inputs are
//! [`AppWrapperView`], the configuration ([`AppWrapperPolicy`]) and the annotations ([`Timers`]). Its outputs are
//! writes ([`Step`], [`AppWrapperStatus`]) and reasons ([`AppWrapperWhy`]).
//!
//! The code that fills the view must follow these rules:
//! - Each component is looked up under [`AppWrapperView::name_of`]. [`Seen::Absent`] means that it is known not to
//!   exist. A kind that is not listed yet, or may not be read, is [`Seen::Unknown`].
//! - `last` in [`Seen::Absent`] is the object's last state from the watch. It distinguishes success, failure and
//!   eviction from a user's deletion. It may be lost in a restart, and it is not the final state if the watch has
//!   missed the end ([`End`]).
//! - A creation that answers AlreadyExists has succeeded if the object's controller has the AppWrapper's UID.
//! - If an AppWrapper was [changed](admitted::Comparison::Changed) since it was admitted, its components are those
//!   named in the status: they were created, and the changed ones are not.
//! - The author of the components is known from a [`stamp`]. Right before a creation, SubjectAccessReviews check the
//!   author's rights, based on the object that the component is created from.
//! - [`Memory`] keeps failed creations and the names of recorded events.
//! - Before a step that needs a second look, the view is read live and the decision is made again. The step is carried
//!   out if the new decision asks for [the same](Step::means_the_same).

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

pub use admitted::Comparison;
pub use components::{ComponentKind, ComponentState};
pub use deletion::works_to_read;
pub use machine::decide;
pub use notes::notes_told;
pub use policy::{Annotations, AppWrapperPolicy, Timers};
pub use reasons::AppWrapperWhy;
pub use resets::Cause;
pub use status::{Admitted, AppWrapperStatus, Phase, ResetRecord};
pub use steps::{Manner, Stakes, Step};
pub use views::{
    APPWRAPPER, AppWrapperRef, AppWrapperView, Authorship, ComponentView, CreateFailure, End, FoundComponent,
    Last, Memory, NodeView, ObjectRef, PodView, Seen,
};

#[cfg(test)]
mod tests;
