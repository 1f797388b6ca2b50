//! Load balancer addresses: the pool that they are given out of, and the words by which a Service asks for one.

mod pool;

use std::fmt;
use std::str::FromStr;

pub use pool::{Cursor, Pool, PoolError, Range};

/// The `loadBalancerClass` of the built-in controller; Services without a class are its own as well.
pub const CLASS: &str = "podwright/load-balancer";
/// The annotation that asks for addresses: one of each family, separated by commas.
pub const ADDRESSES: &str = "podwright/load-balancer-ips";
/// The annotation by which Services of a namespace share an address: those with the same value, on different ports.
pub const SHARING_KEY: &str = "podwright/load-balancer-sharing-key";
/// The condition that says whether a Service has all that it asks for, and of whom. Nodes announce addresses by it.
pub const CONDITION: &str = "podwright/LoadBalancerAllocated";
/// The condition's reasons for addresses of the pool, which nodes announce, and for the nodes' own.
pub const FROM_POOL: &str = "IPAllocated";
pub const FROM_NODES: &str = "NodeAddresses";
/// The label of nodes that no load balancer sends traffic to (upstream's).
pub const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Where the addresses of Services of type LoadBalancer come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadBalancing {
    /// They are the nodes' own, as k3s' ServiceLB has it.
    #[default]
    Nodes,
    /// Something else gives them out.
    Off,
    Pool(Pool),
}

impl LoadBalancing {
    /// The pool, if there is one.
    pub fn pool(&self) -> Option<&Pool> {
        match self {
            LoadBalancing::Pool(pool) => Some(pool),
            LoadBalancing::Nodes | LoadBalancing::Off => None,
        }
    }
}

impl FromStr for LoadBalancing {
    type Err = PoolError;

    /// Reads `nodes`, `none`, or a pool. Fails as [`Pool::from_str`] does.
    fn from_str(text: &str) -> Result<LoadBalancing, PoolError> {
        match text.trim() {
            "nodes" => Ok(LoadBalancing::Nodes),
            "none" => Ok(LoadBalancing::Off),
            pool => pool.parse().map(LoadBalancing::Pool),
        }
    }
}

impl fmt::Display for LoadBalancing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadBalancing::Nodes => f.write_str("nodes"),
            LoadBalancing::Off => f.write_str("none"),
            LoadBalancing::Pool(pool) => pool.fmt(f),
        }
    }
}
