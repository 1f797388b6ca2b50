//! Profiles for `/debug/pprof/`: CPU time and memory of the process.

use std::error::Error;
use std::fmt::{self, Debug};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

/// The profiler of the server's process.
#[async_trait]
pub trait Profiler: Debug + Send + Sync {
    /// A CPU profile over this time: a gzipped pprof `Profile`. Refused while another one runs.
    async fn cpu(&self, time: Duration) -> Result<Bytes, ProfileError>;
    /// A heap profile: since the start, or if that was not enabled then, of allocations during this time.
    async fn heap(&self, time: Duration) -> Result<Bytes, ProfileError>;
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    Cpu,
    Heap,
}

/// Why there is no profile, in the words of Go's `net/http/pprof` where it has them.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Another profile is in progress.
    #[error("Could not enable {} profiling: {}", .0, .0.in_use())]
    Busy(Measured),
    /// Profiling could not be started.
    #[error("Could not enable {0} profiling: {1}")]
    Enable(Measured, #[source] Box<dyn Error + Send + Sync>),
    /// The samples could not be read.
    #[error("Could not read the {0} profile: {1}")]
    Read(Measured, #[source] Box<dyn Error + Send + Sync>),
    /// The profile could not be built from the samples.
    #[error(transparent)]
    Make(Box<dyn Error + Send + Sync>),
}

impl Measured {
    fn in_use(self) -> &'static str {
        match self {
            Measured::Cpu => "cpu profiling already in use",
            Measured::Heap => "a profile is being made",
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measured::Cpu => "CPU",
            Measured::Heap => "heap",
        })
    }
}
