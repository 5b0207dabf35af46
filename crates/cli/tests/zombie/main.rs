//! Zombie recovery by the built binary on a real control plane.

mod rules;
mod stage;
mod story;
