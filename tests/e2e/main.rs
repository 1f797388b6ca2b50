//! Whole nodes on one machine, each in a network namespace of its own, driven as a user drives them.

#[path = "../support/mod.rs"]
mod support;

mod chaos;
mod host;
mod kubectl;
mod limits;
mod main_path;
mod node;
mod reset;
