//! Profiles of this process for `/debug/pprof/`: CPU time with the crate `pprof`, and memory with jemalloc. One runs at a time, and
//! without requests there is no overhead.

mod encode;
mod heap;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Mutex;

use crate::server::profiling::{Measured, ProfileError, Profiler};
use encode::{Profile, Sample};

/// The sampling frequency: Go's minus one, to avoid lockstep with periodic activity.
const FREQUENCY: i32 = 99;
/// Libraries that cannot be unwound, or may hold locks that unwinding needs.
const NOT_WALKED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// Creates profiles of this process.
#[derive(Debug)]
pub struct Profiles {
    /// The directory where `pprof` spills data: a file of its own, from the first profile on.
    scratch: PathBuf,
    one: Arc<Mutex<()>>,
    heap: heap::Heap,
}

impl Profiles {
    /// `scratch`: a directory that is created on demand. Leftovers of an earlier process are removed.
    pub fn new(scratch: PathBuf) -> Arc<Profiles> {
        match std::fs::remove_dir_all(&scratch) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%why, "failed to remove {}", scratch.display());
            }
            _ => {}
        }
        Arc::new(Profiles { scratch, one: Arc::default(), heap: heap::Heap::default() })
    }

    fn make_scratch(&self) -> Result<(), ProfileError> {
        std::fs::create_dir_all(&self.scratch)
            .map_err(|why| ProfileError::Enable(Measured::Cpu, format!("{}: {why}", self.scratch.display()).into()))?;
        // For the whole process, in which nothing else creates temporary files.
        let _ = tempfile::env::override_temp_dir(&self.scratch);
        Ok(())
    }
}

#[async_trait]
impl Profiler for Profiles {
    async fn cpu(&self, time: Duration) -> Result<Bytes, ProfileError> {
        let one = self.one.clone().try_lock_owned().map_err(|_| ProfileError::Busy(Measured::Cpu))?;
        self.make_scratch()?;
        // The first one's set-up takes a while, and its caller may be gone by then.
        let begin = move || {
            let begun = pprof::ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&NOT_WALKED).build();
            (begun, one)
        };
        let (begun, one) = tokio::task::spawn_blocking(begin).await.map_err(|why| ProfileError::Make(why.into()))?;
        let guard = begun.map_err(|why| ProfileError::Enable(Measured::Cpu, why.into()))?;
        tokio::time::sleep(time).await;
        let work = move || {
            let found = guard.report().build_unresolved();
            drop(guard);
            let found = found.map_err(|why| ProfileError::Read(Measured::Cpu, why.into()))?;
            let made = cpu_profile(found, time).gzipped();
            // A cancelled caller does not let the next one start early.
            drop(one);
            Ok(made)
        };
        tokio::task::spawn_blocking(work).await.map_err(|why| ProfileError::Make(why.into()))?
    }

    async fn heap(&self, time: Duration) -> Result<Bytes, ProfileError> {
        let one = self.one.clone().try_lock_owned().map_err(|_| ProfileError::Busy(Measured::Heap))?;
        let dump = self.heap.dump(time).await?;
        let work = move || {
            let made = heap::profile(&dump).map_err(|why| ProfileError::Make(why.into()))?.gzipped();
            drop(one);
            Ok(made)
        };
        tokio::task::spawn_blocking(work).await.map_err(|why| ProfileError::Make(why.into()))?
    }
}

fn cpu_profile(found: pprof::UnresolvedReport, time: Duration) -> Profile {
    let period = 1_000_000_000 / i64::from(FREQUENCY);
    let samples = found.data.into_iter().map(|(stack, count)| {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let stack = stack.frames.iter().map(|frame| frame.ip() as u64).collect();
        Sample { stack, values: vec![count, count.saturating_mul(period)] }
    });
    let mut samples: Vec<Sample> = samples.collect();
    encode::without_handler(&mut samples);
    Profile {
        types: &[("samples", "count"), ("cpu", "nanoseconds")],
        period: ("cpu", "nanoseconds", period),
        default: "cpu",
        time,
        samples,
    }
}
