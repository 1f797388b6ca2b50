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
#[derive(Debug)]
pub enum ProfileError {
    /// Another one is being made.
    Busy(Measured),
    /// Measuring could not begin.
    Enable(Measured, Box<dyn Error + Send + Sync>),
    /// What was measured could not be read.
    Read(Measured, Box<dyn Error + Send + Sync>),
    /// No profile could be made of what was read.
    Make(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measured::Cpu => "CPU",
            Measured::Heap => "heap",
        })
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::Busy(Measured::Cpu) => {
                f.write_str("Could not enable CPU profiling: cpu profiling already in use")
            }
            ProfileError::Busy(Measured::Heap) => {
                f.write_str("Could not enable heap profiling: a profile is being made")
            }
            ProfileError::Enable(what, why) => write!(f, "Could not enable {what} profiling: {why}"),
            ProfileError::Read(what, why) => write!(f, "Could not read the {what} profile: {why}"),
            ProfileError::Make(why) => write!(f, "{why}"),
        }
    }
}

impl Error for ProfileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ProfileError::Busy(_) => None,
            ProfileError::Enable(_, why) | ProfileError::Read(_, why) => Some(why.as_ref()),
            ProfileError::Make(why) => why.source(),
        }
    }
}
