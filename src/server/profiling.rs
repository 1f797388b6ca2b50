//! What `/debug/pprof/` asks of its process: where its CPU time goes, and who holds its memory.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

/// Whoever measures the process that a server is in.
#[async_trait]
pub trait Profiler: Debug + Send + Sync {
    /// What runs for so long: a gzipped `Profile` of pprof. Refused, in words, while another one is made.
    async fn cpu(&self, time: Duration) -> Result<Bytes, String>;
    /// What holds memory: of all since the start, or where that was not asked for then, of what is allocated for so long.
    async fn heap(&self, time: Duration) -> Result<Bytes, String>;
}
