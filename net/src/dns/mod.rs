//! The cluster's DNS: served on the node for its own Pods, everything else forwarded.

mod records;

pub use records::{Entry, Records, Srv};
