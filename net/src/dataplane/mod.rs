//! Services as elements of one nftables table a family, named `podwright`.

pub mod ids;
mod model;

pub use model::{Backends, Empty, NodeFacts, Protocol, Service, ServicePort};
