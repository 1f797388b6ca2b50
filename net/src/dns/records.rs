//! The cluster's names as an immutable table, and how a question is answered from it. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

/// What a name has. Names are lower case, fully qualified, without the final dot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub addresses: Vec<IpAddr>,
    /// The name is another name's alias; everything else is ignored then.
    pub cname: Option<String>,
    pub services: Vec<Srv>,
    pub pointers: Vec<String>,
}

/// One SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Srv {
    pub priority: u16,
    pub weight: u16,
    pub port: u16,
    pub target: String,
}

/// All records of one cluster domain.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// `cluster.local`.
    pub domain: String,
    /// The reverse zones that are answered here and never forwarded: `244.10.in-addr.arpa`.
    pub reverse_zones: Vec<String>,
    /// Seconds that an answer may be kept; 5 to 30.
    pub ttl: u32,
    /// Namespaces that exist: `a-b-c-d.<namespace>.pod.<domain>` is answered for these alone.
    pub namespaces: std::collections::HashSet<String>,
    pub names: HashMap<String, Entry>,
}
