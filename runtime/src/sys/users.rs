//! Ids of a user namespace (user_namespaces(7)).

use serde::{Deserialize, Serialize};

/// Maps the ids `0..size` of a sandbox to `host..host + size` on the host, for users and groups alike (user_namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdRange {
    pub host: u32,
    pub size: u32,
}
