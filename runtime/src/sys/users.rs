//! Ids of a user namespace (user_namespaces(7)).

use serde::{Deserialize, Serialize};

/// The ids `0..size` of a sandbox are `host..host + size` on the host, users and groups alike (user_namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdRange {
    pub host: u32,
    pub size: u32,
}
