//! Profiles of this process for `/debug/pprof/`: where its CPU time goes, by the crate `pprof`, and who holds its memory, by
//! jemalloc. One of them is made at a time, and none costs anything while nobody asks for it.

mod encode;
mod heap;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Mutex;

use crate::server::profiling::Profiler;
use encode::{Profile, Sample};

/// Signals in a second of CPU time: Go's, but for one, to keep out of step with what happens in steps.
const FREQUENCY: i32 = 99;
/// Where a signal finds nothing to walk up from, or locks that a walk would take.
const NOT_WALKED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// Makes profiles of this process.
#[derive(Debug)]
pub struct Profiles {
    /// Where `pprof` keeps what is too much for its memory: files of its own, as long as a profile is made.
    scratch: PathBuf,
    one: Mutex<()>,
    heap: heap::Heap,
}

impl Profiles {
    /// `scratch`: a folder that is made when it is needed, and removed.
    pub fn new(scratch: PathBuf) -> Arc<Profiles> {
        Arc::new(Profiles { scratch, one: Mutex::new(()), heap: heap::Heap::default() })
    }
}

/// The folder of what a profile is made of; it goes when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make(folder: &PathBuf) -> Result<Scratch, String> {
        let failed = |why| format!("Could not enable CPU profiling: {}: {why}", folder.display());
        std::fs::create_dir_all(folder).map_err(failed)?;
        // Of the whole process; nothing else in it makes such files, and one folder is as good as another.
        let _ = tempfile::env::override_temp_dir(folder);
        Ok(Scratch(folder.clone()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(why) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%why, "{} stays behind", self.0.display());
        }
    }
}

#[async_trait]
impl Profiler for Profiles {
    async fn cpu(&self, time: Duration) -> Result<Bytes, String> {
        let busy = |_| "Could not enable CPU profiling: cpu profiling already in use".to_owned();
        let _one = self.one.try_lock().map_err(busy)?;
        let scratch = Scratch::make(&self.scratch)?;
        // What the first one sets up takes a while.
        let begin = || pprof::ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&NOT_WALKED).build();
        let begun = tokio::task::spawn_blocking(begin).await.map_err(|why| why.to_string())?;
        let guard = begun.map_err(|why| format!("Could not enable CPU profiling: {why}"))?;
        tokio::time::sleep(time).await;
        let work = move || {
            let found = guard.report().build_unresolved();
            drop(guard);
            drop(scratch);
            let found = found.map_err(|why| format!("Could not read the CPU profile: {why}"))?;
            Ok(cpu_profile(found, time).gzipped())
        };
        tokio::task::spawn_blocking(work).await.map_err(|why| why.to_string())?
    }

    async fn heap(&self, time: Duration) -> Result<Bytes, String> {
        let busy = |_| "Could not enable heap profiling: a profile is being made".to_owned();
        let _one = self.one.try_lock().map_err(busy)?;
        let dump = self.heap.dump(time).await?;
        let work = move || Ok(heap::profile(&dump)?.gzipped());
        tokio::task::spawn_blocking(work).await.map_err(|why| why.to_string())?
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
