//! What an image may cost: bounds of what comes from outside, the ratio of unpacked to packed, and room kept on the disk.
//!
//! A few kilobytes can unpack to terabytes. So whoever unpacks counts what comes out against what went in, per image and not per
//! layer (an image has hundreds), and asks the disk for room as it goes. Downloads announce what they will need: pulls that
//! run side by side share the room.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::disk::lock;
use super::{ImageError, Result};

/// Layers of an image: what other runtimes support, of the 500 that overlayfs stacks (`OVL_MAX_STACK`). Whatever is looked for in
/// an image may be looked for in each.
pub(super) const MAX_LAYERS: usize = 128;
/// Manifests, indexes and configs may have this many bytes (containerd's `MaxManifestSize`).
pub(super) const MAX_DOCUMENT: u64 = 4 << 20;
/// Those of all images of an archive together.
pub(super) const MAX_DOCUMENTS: u64 = 64 << 20;
/// Names of an archive's files, and what is kept with them, may take this many bytes.
pub(super) const MAX_NAMES: usize = 16 << 20;
/// Images that an archive may hold, and names that it may give one.
pub(super) const MAX_IMAGES: usize = 1000;
/// What a file, directory or link takes beside its data: an inode and its part of a directory.
const ENTRY: u64 = 4096;
/// So many bytes of a download are announced at a time.
const STEP: u64 = 64 << 20;

/// Bounds for what comes from outside.
#[derive(Debug, Clone)]
pub struct Options {
    /// Uncompressed bytes that one layer may have.
    pub max_layer_bytes: u64,
    /// Entries that an image's layers may have together.
    pub max_entries: u64,
    /// How often unpacking an image may look for a directory, in its own layer or one below: paths that are long, lead through
    /// symlinks or are missing from many layers take thousands of looks each.
    pub max_looks: u64,
    /// An image may unpack to so many times the bytes that it came as ..
    pub max_ratio: u64,
    /// .. or to this many, whichever is more: a small image of zeros is none the worse for it.
    pub free_bytes: u64,
    /// Percent of the disk that images leave free ..
    pub keep_percent: u64,
    /// .. or so many bytes, whichever is more; on small disks no more than a tenth.
    pub keep_bytes: u64,
    /// Layer downloads at once, per pull.
    pub parallel_downloads: usize,
    /// Where a registry's answers stop being waited for, in seconds without a byte.
    pub read_timeout_seconds: u64,
    /// Bytes a second that a download must bring over such a time.
    pub min_rate: u64,
    /// Bytes a second that a download must bring over all its tries, but for five such times at its beginning.
    pub min_average: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_layer_bytes: 64 << 30,
            max_entries: 4_000_000,
            max_looks: 20_000_000,
            max_ratio: 100,
            free_bytes: 1 << 30,
            keep_percent: 5,
            keep_bytes: 1 << 30,
            parallel_downloads: 4,
            read_timeout_seconds: 60,
            min_rate: 16 << 10,
            min_average: 64 << 10,
        }
    }
}

/// The disk below the store, and what downloads under way will still write to it.
#[derive(Debug)]
pub(super) struct Space {
    dir: PathBuf,
    keep_percent: u64,
    keep_bytes: u64,
    announced: Mutex<u64>,
}

impl Space {
    pub(super) fn new(dir: PathBuf, options: &Options) -> Space {
        Space { dir, keep_percent: options.keep_percent, keep_bytes: options.keep_bytes, announced: Mutex::default() }
    }

    /// Whether `bytes` more leave free what is to be kept free.
    pub(super) fn check(&self, bytes: u64) -> Result<()> {
        self.check_beside(bytes, *lock(&self.announced))
    }

    /// Room for a download that may need so many bytes in all. Only the next [`STEP`] of them are announced at a time: a
    /// registry that promises much and brings little keeps nobody else from his room.
    pub(super) fn download(self: &Arc<Space>, bytes: u64) -> Result<Room> {
        self.check(bytes)?;
        Ok(Room { announced: self.announce(bytes.min(STEP))?, rest: bytes.saturating_sub(STEP) })
    }

    /// As `check`; what is announced counts for everybody until it has been written or given up.
    fn announce(self: &Arc<Space>, bytes: u64) -> Result<Announced> {
        let mut announced = lock(&self.announced);
        self.check_beside(bytes, *announced)?;
        *announced = announced.saturating_add(bytes);
        Ok(Announced { space: self.clone(), left: bytes })
    }

    fn check_beside(&self, bytes: u64, announced: u64) -> Result<()> {
        let disk = rustix::fs::statvfs(&self.dir).map_err(|e| ImageError::io("statvfs", &self.dir, e))?;
        let (total, free) = (disk.f_blocks.saturating_mul(disk.f_frsize), disk.f_bavail.saturating_mul(disk.f_frsize));
        let keep = keep(total, self.keep_percent, self.keep_bytes);
        // Some file systems do not say how large they are.
        if total == 0 || free >= keep.saturating_add(announced).saturating_add(bytes) {
            return Ok(());
        }
        let dir = self.dir.display();
        let (free, keep, announced, bytes) = (size(free), size(keep), size(announced), size(bytes));
        Err(ImageError::DiskFull(format!(
            "no space left for images in {dir}: {free} are free, {keep} of them are kept, {announced} are promised to other \
             downloads, {bytes} are wanted"
        )))
    }
}

fn size(bytes: u64) -> String {
    if bytes >= 10 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

fn keep(total: u64, percent: u64, bytes: u64) -> u64 {
    (total / 100).saturating_mul(percent).max(bytes.min(total / 10))
}

/// What a download has announced and will announce.
#[derive(Debug)]
pub(super) struct Room {
    announced: Announced,
    rest: u64,
}

impl Room {
    /// Makes sure of room for bytes that are about to be written.
    pub(super) fn write(&mut self, bytes: u64) -> Result<()> {
        if self.announced.left < bytes && self.rest > 0 {
            let step = self.rest.min(STEP.max(bytes));
            let next = self.announced.space.announce(step)?;
            self.rest -= step;
            self.announced.join(next);
        }
        self.announced.written(bytes);
        Ok(())
    }
}

/// A step of a download's room: less with every byte that is written.
#[derive(Debug)]
struct Announced {
    space: Arc<Space>,
    left: u64,
}

impl Announced {
    fn join(&mut self, mut other: Announced) {
        self.left += std::mem::take(&mut other.left);
    }

    fn written(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        let mut announced = lock(&self.space.announced);
        *announced = announced.saturating_sub(bytes);
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.written(self.left);
    }
}

/// What one image may still unpack to.
#[derive(Debug)]
pub(super) struct Allowance {
    space: Arc<Space>,
    max_ratio: u64,
    free_bytes: u64,
    max_entries: u64,
    max_looks: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    packed: u64,
    unpacked: u64,
    entries: u64,
    looks: u64,
}

impl Allowance {
    pub(super) fn new(space: &Arc<Space>, options: &Options) -> Arc<Allowance> {
        let Options { max_ratio, free_bytes, max_entries, max_looks, .. } = *options;
        let (space, used) = (space.clone(), Mutex::default());
        Arc::new(Allowance { space, max_ratio, free_bytes, max_entries, max_looks, used })
    }

    /// What comes in, as it was transferred.
    pub(super) fn packed<R: Read>(self: &Arc<Allowance>, reader: R) -> Packed<R> {
        Packed { reader, allowance: self.clone() }
    }

    /// What comes out of it, uncompressed.
    pub(super) fn unpacked<R: Read>(self: &Arc<Allowance>, reader: R) -> Unpacking<R> {
        Unpacking { reader, allowance: self.clone() }
    }

    /// Counts an entry of a layer or archive, with so many headers: whoever writes a million of them before one file means harm.
    pub(super) fn entry(&self, headers: u64) -> Result<()> {
        let mut used = lock(&self.used);
        used.entries = used.entries.saturating_add(headers);
        if used.entries > self.max_entries {
            return Err(ImageError::Invalid(format!("more than {} entries", self.max_entries)));
        }
        drop(used);
        self.spend(ENTRY)
    }

    /// Counts looks for directories that an entry needs.
    pub(super) fn look(&self, times: u64) -> Result<()> {
        let mut used = lock(&self.used);
        used.looks = used.looks.saturating_add(times);
        match used.looks > self.max_looks {
            true => Err(ImageError::Invalid(format!("more than {} looks for directories", self.max_looks))),
            false => Ok(()),
        }
    }

    /// Counts bytes that are about to be written.
    pub(super) fn spend(&self, bytes: u64) -> Result<()> {
        let mut used = lock(&self.used);
        used.unpacked = used.unpacked.saturating_add(bytes);
        if used.unpacked > used.packed.saturating_mul(self.max_ratio).max(self.free_bytes) {
            let Allowance { max_ratio, free_bytes, .. } = self;
            let why = format!("more than {free_bytes} bytes and more than {max_ratio} times the {} that", used.packed);
            return Err(ImageError::Invalid(format!("unpacks to {why} it came as: taken for a decompression bomb")));
        }
        drop(used);
        self.space.check(bytes)
    }
}

/// Counts what is read through it as packed.
pub(super) struct Packed<R> {
    reader: R,
    allowance: Arc<Allowance>,
}

impl<R: Read> Read for Packed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        let mut used = lock(&self.allowance.used);
        used.packed = used.packed.saturating_add(read as u64);
        Ok(read)
    }
}

/// Counts what is read through it as unpacked, and refuses when it is too much.
pub(super) struct Unpacking<R> {
    reader: R,
    allowance: Arc<Allowance>,
}

impl<R> Unpacking<R> {
    pub(super) fn into_inner(self) -> R {
        self.reader
    }
}

impl<R: Read> Read for Unpacking<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.allowance.spend(read as u64)?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(options: &Options) -> (tempfile::TempDir, Arc<Space>) {
        let dir = tempfile::tempdir().unwrap();
        let space = Arc::new(Space::new(dir.path().to_owned(), options));
        (dir, space)
    }

    #[test]
    fn small_disks_keep_a_tenth_large_ones_a_twentieth() {
        const GIB: u64 = 1 << 30;
        for (total, expected) in [(GIB, GIB / 10), (15 * GIB, GIB), (100 * GIB, 5 * GIB), (0, 0)] {
            assert_eq!(keep(total, 5, GIB) >> 20, expected >> 20, "{total}");
        }
    }

    #[test]
    fn an_image_unpacks_to_so_many_times_its_size_and_no_more() {
        let options = Options { free_bytes: 1000, max_ratio: 10, ..Options::default() };
        let (_dir, space) = space(&options);
        let allowance = Allowance::new(&space, &options);
        allowance.spend(1000).unwrap();
        assert!(matches!(allowance.spend(1), Err(ImageError::Invalid(m)) if m.contains("decompression bomb")));
        io::copy(&mut allowance.packed(&[0u8; 200][..]), &mut io::sink()).unwrap();
        allowance.spend(999).unwrap();
        let error = io::copy(&mut allowance.unpacked(&b"ab"[..]), &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("the 200 that it came as"), "{error}");
    }

    #[test]
    fn entries_count_and_cost() {
        let options = Options { free_bytes: 3 * ENTRY, max_entries: 2, ..Options::default() };
        let (_dir, space) = space(&options);
        let allowance = Allowance::new(&space, &options);
        allowance.entry(1).and_then(|()| allowance.entry(1)).unwrap();
        assert_eq!(allowance.entry(1).unwrap_err().to_string(), "more than 2 entries");
        let allowance = Allowance::new(&space, &options);
        assert!(allowance.entry(3).is_err(), "an entry with three headers");
    }

    #[test]
    fn downloads_share_the_room() {
        let options = Options { keep_percent: 0, keep_bytes: 0, ..Options::default() };
        let (dir, space) = space(&options);
        let disk = rustix::fs::statvfs(dir.path()).unwrap();
        let half = disk.f_bavail * disk.f_frsize / 2;
        let mut first = space.announce(half + half / 2).unwrap();
        let error = space.announce(half).unwrap_err();
        assert!(matches!(&error, ImageError::DiskFull(m) if m.contains("promised to other downloads")), "{error}");
        assert!(matches!(space.check(half), Err(ImageError::DiskFull(_))));
        first.written(half);
        let second = space.announce(half).unwrap();
        drop((first, second));
        assert_eq!(*lock(&space.announced), 0);
        assert!(space.announce(u64::MAX).is_err());
    }

    #[test]
    fn a_download_holds_the_room_of_its_next_step_alone() {
        let options = Options { keep_percent: 0, keep_bytes: 0, ..Options::default() };
        let (_dir, space) = space(&options);
        let announced = || *lock(&space.announced);
        let mut room = space.download(STEP + 10).unwrap();
        assert_eq!(announced(), STEP);
        room.write(STEP - 1).unwrap();
        assert_eq!(announced(), 1);
        room.write(3).unwrap();
        assert_eq!(announced(), 8);
        room.write(8).unwrap();
        assert_eq!(announced(), 0);
        drop(room);
        let room = space.download(10).unwrap();
        assert_eq!(announced(), 10);
        drop(room);
        assert_eq!(announced(), 0);
        assert!(space.download(u64::MAX).is_err());
    }
}
