//! What `/debug/pprof/` asks of its process: where its CPU time goes, and who holds its memory.

use std::error::Error;
use std::fmt::{self, Debug};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

/// Whoever measures the process that a server is in.
#[async_trait]
pub trait Profiler: Debug + Send + Sync {
    /// What runs for so long: a gzipped `Profile` of pprof. Refused while another one is made.
    async fn cpu(&self, time: Duration) -> Result<Bytes, ProfileError>;
    /// What holds memory: of all since the start, or where that was not asked for then, of what is allocated for so long.
    async fn heap(&self, time: Duration) -> Result<Bytes, ProfileError>;
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    Cpu,
    Heap,
}

/// Why there is no profile, as Go's `net/http/pprof` words it where it fails so too.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Another one is being made.
    #[error("Could not enable {} profiling: {}", .0, .0.in_use())]
    Busy(Measured),
    /// Measuring could not begin.
    #[error("Could not enable {0} profiling: {1}")]
    Enable(Measured, #[source] Box<dyn Error + Send + Sync>),
    /// What was measured could not be read.
    #[error("Could not read the {0} profile: {1}")]
    Read(Measured, #[source] Box<dyn Error + Send + Sync>),
    /// No profile could be made of what was read.
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
