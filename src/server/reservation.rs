//! Keys that a write must find free: addresses and ports.

use std::collections::HashSet;

use podwright_api::{Kind, Status};

/// Whether objects of this kind hold addresses or ports.
pub(super) fn concerns(kind: &Kind) -> bool {
    kind.built_in() == "Service"
}

/// A key that must be absent but exists: an address or a port.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub key: String,
    pub owner: String,
    /// The response in that case; `None`: it was allocated automatically, so another can be chosen.
    pub refusal: Option<Status>,
}

/// Keys found taken while a write was tried.
#[derive(Default)]
pub(super) struct Occupied {
    pub keys: HashSet<String>,
    /// Whether `keys` holds all of them.
    pub complete: bool,
}
