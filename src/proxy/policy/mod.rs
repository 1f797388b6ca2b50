//! NetworkPolicies, Pods and Namespaces compiled to whom this node's Pods talk with: pure, one change at a time.
//!
//! [`spec`] reads a policy, [`rules`] says it as the dataplane has it, [`groups`] says who is of which group, [`limits`] how much a
//! namespace may take, [`Policies`] puts them together. [`Gate`] is where a Pod waits until its policies are in force.

mod gate;
mod groups;
mod limits;
mod peers;
mod pod;
mod policies;
mod ranges;
mod rules;
mod sources;
mod spec;
mod sync;

pub use gate::{Gate, Questions};
pub use pod::{NamedPort, PodView};
pub use policies::{Local, Outcome, Policies};
pub use sources::PolicySources;
pub use sync::PolicySync;
