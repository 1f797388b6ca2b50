//! The file: one header page with the shared counter, then a ring of fixed slots.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::{Record, SLOT};

/// How many records a journal keeps. A Pod's start is about a hundred; the file is sparse until used.
pub const SLOTS: u64 = 1024;
const PAGE: usize = 4096;
const MAGIC: [u8; 8] = *b"podjrnl1";
/// Where in the header page the counter of claimed slots lives.
const COUNTER: usize = 64;

/// An open journal, with its header page mapped.
pub struct Ring {
    file: File,
    path: PathBuf,
    header: NonNull<u8>,
}

// SAFETY: the mapping lives as long as the Ring and is only accessed through an atomic.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    pub fn open(path: &Path) -> io::Result<Ring> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if file.metadata()?.len() < PAGE as u64 {
            // Several processes may do this at once: all write the same bytes.
            file.write_all_at(&MAGIC, 0)?;
            file.set_len(PAGE as u64 + SLOTS * SLOT as u64)?;
        }
        let mut magic = [0u8; 8];
        file.read_exact_at(&mut magic, 0)?;
        if magic != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a journal", path.display())));
        }
        // SAFETY: a fresh shared mapping of one page of a file at least that long; no address is asked for.
        let header = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if header == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let header = NonNull::new(header.cast()).ok_or_else(|| io::Error::other("mmap gave a null page"))?;
        Ok(Ring { file, path: path.to_owned(), header })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a record into the next slot, whose number it gets. A failure loses the record: the journal never fails what it records.
    pub fn append(&self, mut record: Record) {
        record.sequence = self.counter().fetch_add(1, Ordering::Relaxed);
        let _ = self.file.write_all_at(&record.encode(), PAGE as u64 + (record.sequence % SLOTS) * SLOT as u64);
    }

    fn counter(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped, the offset is inside it and aligned, and every access in every process is atomic.
        unsafe { self.header.add(COUNTER).cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `open` with this length and nothing refers to it any more.
        unsafe { libc::munmap(self.header.as_ptr().cast(), PAGE) };
    }
}

/// The records of a journal in the order of their beginning; empty if the file does not exist.
///
/// Torn, half-written and overwritten slots are left out. Errors: the file cannot be read, or is no journal.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    if !bytes.starts_with(&MAGIC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a journal", path.display())));
    }
    let slots = bytes.get(PAGE..).unwrap_or_default().chunks_exact(SLOT);
    let mut records: Vec<Record> = slots.filter_map(|slot| Record::decode(slot.try_into().ok()?)).collect();
    // A process that was stopped between claiming a slot and filling it may write a lap late: keep one lap only.
    let newest = records.iter().map(|r| r.sequence).max().unwrap_or(0);
    records.retain(|r| r.sequence + SLOTS > newest);
    records.sort_by_key(|r| (r.monotonic_ns, r.sequence));
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Role, Scribe};
    use proptest::prelude::*;

    fn write(scribe: &Scribe, n: u64) {
        for i in 0..n {
            scribe.call("op", || i.to_string(), || Ok::<(), io::Error>(())).unwrap();
        }
    }

    #[test]
    fn keeps_the_newest_records_in_order_with_their_cause() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let scribe = Scribe::open(&path, Role::Shim).unwrap().about("uid", 7).at("spec.hostname");
        write(&scribe, SLOTS + 10);
        let failed: io::Result<()> =
            scribe.call("open", || "x".into(), || Err(io::Error::from_raw_os_error(libc::ENOENT)));
        assert!(failed.is_err());
        let records = read(&path).unwrap();
        assert_eq!(records.len() as u64, SLOTS);
        let last = records.last().unwrap();
        assert_eq!((last.call.as_str(), last.revision, last.field.as_str()), ("open", 7, "spec.hostname"));
        assert!(last.error.as_deref().unwrap().contains("No such file"));
        assert_eq!(records[0].args, "11");
    }

    #[test]
    fn several_writers_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| write(&Scribe::open(&path, Role::Agent).unwrap(), 200));
            }
        });
        let mut seen: Vec<u64> = read(&path).unwrap().iter().map(|r| r.sequence).collect();
        seen.sort();
        assert_eq!(seen, (0..800).collect::<Vec<_>>());
    }

    #[test]
    fn none_records_nothing_and_a_missing_file_is_empty() {
        write(&Scribe::none(), 3);
        assert_eq!(read(Path::new("/nonexistent/journal")).unwrap(), vec![]);
    }

    proptest! {
        #[test]
        fn damage_costs_only_the_damaged_records(n in 1u64..40, at in 0usize..SLOT * 40, bytes in prop::collection::vec(any::<u8>(), 1..600)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("j");
            write(&Scribe::open(&path, Role::Agent).unwrap(), n);
            let before = read(&path).unwrap();
            File::options().write(true).open(&path).unwrap().write_all_at(&bytes, (PAGE + at) as u64).unwrap();
            let after = read(&path).unwrap();
            let (first, last) = (at / SLOT, (at + bytes.len() - 1) / SLOT);
            for record in &before {
                let hit = (first..=last).contains(&(record.sequence as usize));
                prop_assert!(hit || after.contains(record));
            }
            prop_assert!(after.iter().all(|r| before.contains(r)));
        }
    }
}
