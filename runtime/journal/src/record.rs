//! One record, as `trace` shows it.

use serde::{Deserialize, Serialize};

/// Which process acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Role {
    Agent = 1,
    Shim = 2,
    /// A container's first process, before it executes the image's command.
    Init = 3,
    Net = 4,
    Server = 5,
}

impl Role {
    pub(crate) fn from(byte: u8) -> Option<Role> {
        [Role::Agent, Role::Shim, Role::Init, Role::Net, Role::Server].into_iter().find(|r| *r as u8 == byte)
    }
}

/// One operation, as `trace` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its position in the journal: increases in writing order, and never repeats.
    pub sequence: u64,
    /// Its start, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// Its start, in nanoseconds since boot; comparable between processes.
    pub monotonic_ns: u64,
    pub duration_ns: u64,
    pub pid: u32,
    pub role: Role,
    /// The system call or operation, as `clone3`.
    pub call: String,
    /// Its arguments as short text.
    pub args: String,
    /// The error as text; empty on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub subject: String,
    pub revision: u64,
    pub field: String,
}
