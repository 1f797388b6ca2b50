//! Profiles of this process for `/debug/pprof/`: where its CPU time goes, by the crate `pprof`, and who holds its memory, by
//! jemalloc. One of them is made at a time, and none costs anything while nobody asks for it.

mod encode;
mod heap;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Mutex;

use crate::server::profiling::{Measured, ProfileError, Profiler};
use encode::{Profile, Sample};

/// Signals in a second of CPU time: Go's, but for one, to keep out of step with what happens in steps.
const FREQUENCY: i32 = 99;
/// Where a signal finds nothing to walk up from, or locks that a walk would take.
const NOT_WALKED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// Makes profiles of this process.
#[derive(Debug)]
pub struct Profiles {
    /// Where `pprof` keeps what is too much for its memory: one file of its own, from the first profile on.
    scratch: PathBuf,
    one: Arc<Mutex<()>>,
    heap: heap::Heap,
}

impl Profiles {
    /// `scratch`: a folder that is made when it is needed. What an earlier process has left there is removed.
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
        // Of the whole process; nothing else in it makes such files, and one folder is as good as another.
        let _ = tempfile::env::override_temp_dir(&self.scratch);
        Ok(())
    }
}

#[async_trait]
impl Profiler for Profiles {
    async fn cpu(&self, time: Duration) -> Result<Bytes, ProfileError> {
        let one = self.one.clone().try_lock_owned().map_err(|_| ProfileError::Busy(Measured::Cpu))?;
        self.make_scratch()?;
        // What the first one sets up takes a while, for which nobody may wait any more.
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
            // Who does not wait for it makes no room for the next one.
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
