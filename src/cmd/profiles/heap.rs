//! jemalloc's heap profiles: it samples allocations while enabled, and dumps those that are still live.

use std::{
    fmt,
    fs::File,
    io::{Read, Seek},
    num::ParseIntError,
    os::fd::AsRawFd,
    sync::OnceLock,
    time::Duration,
};

use rustix::fs::{MemfdFlags, memfd_create};
use tikv_jemalloc_ctl::{Access, AsName, profiling};

use super::encode::{Profile, Sample};
use crate::server::profiling::{Measured, ProfileError};

/// A memory file that jemalloc writes to by name: a confined process has no other place.
#[derive(Debug, Default)]
pub struct Heap(OnceLock<(File, &'static [u8])>);

/// Enables sampling while it exists.
struct Sampling;

impl Sampling {
    fn begin() -> Result<Sampling, ProfileError> {
        let activated = b"prof.active\0".name().write(true);
        activated.map_err(|why| ProfileError::Enable(Measured::Heap, format!("prof.active: {why}").into()))?;
        Ok(Sampling)
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        let name = b"prof.active\0".name();
        let stopped: Result<(), _> = name.write(false);
        // Discards samples: they are no longer needed, and each costs time when it is freed.
        let forgotten = b"prof.lg_sample\0".name().read().and_then(|rate: usize| b"prof.reset\0".name().write(rate));
        if let Err(why) = stopped.and(forgotten) {
            tracing::warn!(%why, "failed to stop jemalloc's sampling");
        }
    }
}

impl Heap {
    /// The live allocations sampled since the start or, without sampling at the start, within `time` from now.
    pub async fn dump(&self, time: Duration) -> Result<String, ProfileError> {
        match profiling::prof::read() {
            Ok(true) => {}
            Ok(false) => return Err(ProfileError::Enable(Measured::Heap, "_RJEM_MALLOC_CONF has prof:false".into())),
            Err(why) => return Err(ProfileError::Enable(Measured::Heap, why.to_string().into())),
        }
        let is_active = b"prof.active\0".name().read();
        let is_active: bool = is_active.map_err(|why| ProfileError::Enable(Measured::Heap, why.to_string().into()))?;
        let sampling = if is_active { None } else { Some(Sampling::begin()?) };
        if sampling.is_some() {
            tokio::time::sleep(time).await;
        }
        let dumped = self.dumped();
        drop(sampling);
        dumped.map_err(|why| ProfileError::Read(Measured::Heap, why.into()))
    }

    fn dumped(&self) -> std::io::Result<String> {
        if self.0.get().is_none() {
            let file = File::from(memfd_create("heap", MemfdFlags::CLOEXEC)?);
            let name = format!("/proc/self/fd/{}\0", file.as_raw_fd());
            // One file per process, for its lifetime.
            let _ = self.0.set((file, Box::leak(name.into_boxed_str().into_boxed_bytes())));
        }
        let Some((file, name)) = self.0.get() else { return Err(std::io::ErrorKind::NotFound.into()) };
        let (mut file, name): (&File, &'static [u8]) = (file, name);
        file.set_len(0)?;
        b"prof.dump\0".name().write(name).map_err(|why| std::io::Error::other(format!("prof.dump: {why}")))?;
        file.rewind()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        file.set_len(0)?;
        Ok(text)
    }
}

/// What is wrong with a dump.
#[derive(Debug, PartialEq, Eq)]
pub enum DumpError {
    /// Unknown format.
    Form,
    /// A line with invalid addresses.
    Addresses { line: String, why: ParseIntError },
    /// A line with invalid counts.
    Counts(String),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpError::Form => f.write_str("jemalloc's dump is not a heap_v2"),
            DumpError::Addresses { line, why } => write!(f, "jemalloc's dump: {line:?}: {why}"),
            DumpError::Counts(line) => write!(f, "jemalloc's dump: {line:?}"),
        }
    }
}

impl std::error::Error for DumpError {}

/// Converts a dump (`heap_v2`) to a profile, scaling samples to estimated totals.
pub fn profile(dump: &str) -> Result<Profile, DumpError> {
    let mut lines = dump.lines();
    let rate = lines.next().and_then(|line| line.strip_prefix("heap_v2/")?.parse::<f64>().ok());
    let rate = rate.ok_or(DumpError::Form)?;
    let (mut samples, mut stack) = (Vec::new(), Vec::new());
    for line in lines.take_while(|line| !line.starts_with("MAPPED_LIBRARIES")) {
        if let Some(addresses) = line.strip_prefix('@') {
            let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16);
            let read: Result<Vec<u64>, _> = addresses.split_whitespace().map(hex).collect();
            stack = read.map_err(|why| DumpError::Addresses { line: line.to_owned(), why })?;
        } else if let Some(counts) = line.trim_start().strip_prefix("t*:").filter(|_| !stack.is_empty()) {
            let mut numbers = counts.split([':', '[']).map(|word| word.trim().parse::<f64>());
            let (Some(Ok(count)), Some(Ok(bytes))) = (numbers.next(), numbers.next()) else {
                return Err(DumpError::Counts(line.to_owned()));
            };
            let stack = std::mem::take(&mut stack);
            if count > 0.0 {
                let scale = 1.0 / (1.0 - (-(bytes / count) / rate).exp());
                samples.push(Sample { stack, values: vec![(count * scale) as i64, (bytes * scale) as i64] });
            }
        }
    }
    Ok(Profile {
        types: &[("inuse_objects", "count"), ("inuse_space", "bytes")],
        period: ("space", "bytes", rate as i64),
        default: "inuse_space",
        time: Duration::ZERO,
        samples,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_read_and_made_up_to_what_it_stands_for() {
        let dump = "heap_v2/524288\n  t*: 3: 1048704 [0: 0]\n  t0: 3: 1048704 [0: 0]\n@ 0x10 0x20\n  t*: 1: 1048576 [0: 0]\n\
            \x20 t0: 1: 1048576 [0: 0]\n@ 0x30\n  t*: 2: 128 [0: 0]\n@ 0x40\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n@ 0x1\n";
        let samples = profile(dump).unwrap().samples;
        assert_eq!(samples.len(), 2);
        assert_eq!(samples[0].stack, [0x10, 0x20]);
        assert!((1_048_576..1_300_000).contains(&samples[0].values[1]), "{:?}", samples[0]);
        // Few small allocations are sampled.
        assert_eq!(samples[1].stack, [0x30]);
        assert!((16_000..17_000).contains(&samples[1].values[0]), "{:?}", samples[1]);
        assert_eq!(profile("heap_v1/1\n").err(), Some(DumpError::Form));
        let why = profile("heap_v2/1\n@ 0xzz\n").err().unwrap();
        assert_eq!(why.to_string(), "jemalloc's dump: \"@ 0xzz\": invalid digit found in string");
        assert_eq!(profile("heap_v2/1\n@ 0x1\n t*: x\n").err(), Some(DumpError::Counts(" t*: x".into())));
    }
}
