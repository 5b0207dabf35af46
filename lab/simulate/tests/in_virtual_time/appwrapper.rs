//! AppWrappers, with everything around them played by the test: the Job controller, the kubelet and the garbage
//! collector. Every revision of every object is audited.

mod audit;
mod changed;
pub(crate) mod corrupted;
mod crash_points;
mod hands;
mod held;
mod moments;
mod play;
mod timers;
mod unseen;
mod world;
