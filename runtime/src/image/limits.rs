//! What an image may cost: bounds of what comes from outside, the ratio of unpacked to packed, and room kept on the disk.
//!
//! A few kilobytes can unpack to terabytes. So whoever unpacks counts what comes out against what went in, per image and not per
//! layer (an image has hundreds), and asks the disk for room as it goes. Downloads announce what they will need: pulls that
//! run side by side share the room.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::lock::lock;
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
/// So many bytes of room are promised to a tenant's downloads at a time, or a part of what is free where that is less: whoever
/// announces much and brings little keeps no more from others.
const SHARE: u64 = 256 << 20;
const SHARE_OF_FREE: u64 = 8;

/// Bounds for what comes from outside.
#[derive(Debug, Clone)]
pub struct Options {
    /// Uncompressed bytes that one layer may have.
    pub max_layer_bytes: u64,
    /// Entries that an image's layers may have together.
    pub max_entries: u64,
    /// How many directories unpacking an image may step through when it looks for those of its entries, in its own layer or one
    /// below: paths that are long, lead through symlinks or are missing from many layers take thousands of looks each, and each
    /// look goes through the whole path.
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
    promises: Mutex<Promises>,
}

/// Bytes that downloads under way may still write: of all, and of each tenant that has some.
#[derive(Debug, Default)]
struct Promises {
    total: u64,
    of: HashMap<String, u64>,
}

impl Space {
    pub(super) fn new(dir: PathBuf, options: &Options) -> Space {
        Space { dir, keep_percent: options.keep_percent, keep_bytes: options.keep_bytes, promises: Mutex::default() }
    }

    /// Whether `bytes` more leave free what is to be kept free.
    pub(super) fn check(&self, bytes: u64) -> Result<()> {
        self.room(bytes, lock(&self.promises).total).map(drop)
    }

    /// Room for a download of so many bytes, as its descriptor says. They are promised to it as far as its tenant's share goes,
    /// and further ones when those have been written: a registry that announces much and brings little keeps nobody else from
    /// his room.
    pub(super) fn download(self: &Arc<Space>, tenant: &str, bytes: u64) -> Result<Room> {
        self.check(bytes)?;
        let mut room = Room { space: self.clone(), tenant: tenant.to_owned(), promised: 0, rest: bytes };
        room.promise(0)?;
        Ok(room)
    }

    /// What there is beside what is kept and promised. Errors: it is less than `bytes`.
    fn room(&self, bytes: u64, promised: u64) -> Result<u64> {
        let disk = rustix::fs::statvfs(&self.dir).map_err(|e| ImageError::io("statvfs", &self.dir, e))?;
        let (total, free) = (disk.f_blocks.saturating_mul(disk.f_frsize), disk.f_bavail.saturating_mul(disk.f_frsize));
        let keep = keep(total, self.keep_percent, self.keep_bytes);
        // Some file systems do not say how large they are.
        if total == 0 {
            return Ok(u64::MAX);
        }
        let room = free.saturating_sub(keep).saturating_sub(promised);
        if room >= bytes {
            return Ok(room);
        }
        let dir = self.dir.display();
        let (free, keep, promised, bytes) = (size(free), size(keep), size(promised), size(bytes));
        Err(ImageError::DiskFull(format!(
            "no space left for images in {dir}: {free} are free, {keep} of them are kept, {promised} are promised to other \
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

/// The room of one download.
#[derive(Debug)]
pub(super) struct Room {
    space: Arc<Space>,
    tenant: String,
    /// It may write so many bytes whatever others do ..
    promised: u64,
    /// .. and so many more will be asked for.
    rest: u64,
}

impl Room {
    /// Makes sure of room for bytes that are about to be written.
    pub(super) fn write(&mut self, bytes: u64) -> Result<()> {
        if self.promised < bytes && self.rest > 0 {
            self.promise(bytes - self.promised)?;
        }
        self.give_back(bytes.min(self.promised));
        Ok(())
    }

    /// Takes as much of the rest as the tenant's share allows, and `least` in any case.
    fn promise(&mut self, least: u64) -> Result<()> {
        let mut promises = lock(&self.space.promises);
        let room = self.space.room(least, promises.total)?;
        let of_tenant = promises.of.get(&self.tenant).copied().unwrap_or(0);
        let share = SHARE.min(room / SHARE_OF_FREE).saturating_sub(of_tenant);
        let more = self.rest.min(share.max(least));
        if more > 0 {
            promises.total = promises.total.saturating_add(more);
            promises.of.insert(self.tenant.clone(), of_tenant.saturating_add(more));
        }
        self.promised += more;
        self.rest -= more;
        Ok(())
    }

    fn give_back(&mut self, bytes: u64) {
        self.promised -= bytes;
        let mut promises = lock(&self.space.promises);
        promises.total = promises.total.saturating_sub(bytes);
        if let Some(of_tenant) = promises.of.get_mut(&self.tenant) {
            *of_tenant = of_tenant.saturating_sub(bytes);
            if *of_tenant == 0 {
                promises.of.remove(&self.tenant);
            }
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.give_back(self.promised);
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

    /// Counts the steps of looks for directories that an entry needs.
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
        let (_dir, space) = space(&options);
        let total = || lock(&space.promises).total;
        let mut first = space.download("a", 1000).unwrap();
        let second = space.download("b", 500).unwrap();
        assert_eq!(total(), 1500, "as their descriptors say");
        let free = space.room(0, 0).unwrap();
        let error = space.room(2 * free, total()).unwrap_err();
        assert!(matches!(&error, ImageError::DiskFull(m) if m.contains("promised to other downloads")), "{error}");
        first.write(999).unwrap();
        assert_eq!(total(), 501);
        drop((first, second));
        assert_eq!(total(), 0);
        assert!(lock(&space.promises).of.is_empty());
        assert!(space.download("a", u64::MAX).is_err());
    }

    #[test]
    fn a_tenant_keeps_no_more_than_its_share_from_others() {
        let options = Options { keep_percent: 0, keep_bytes: 0, ..Options::default() };
        let (_dir, space) = space(&options);
        let of = |tenant: &str| lock(&space.promises).of.get(tenant).copied().unwrap_or(0);
        let share = SHARE.min(space.room(0, 0).unwrap() / SHARE_OF_FREE);
        // As many as it may download at once, each of which announces much and brings nothing.
        let mut held: Vec<Room> = (0..12).map(|_| space.download("greedy", share).unwrap()).collect();
        assert!(of("greedy") <= share, "{} of {share}", of("greedy"));
        let other = space.download("other", 1000).unwrap();
        assert_eq!(of("other"), 1000);
        // Those beyond the share go on as long as there is room.
        let before = of("greedy");
        held[11].write(1 << 20).unwrap();
        assert_eq!(of("greedy"), before, "what is written is not promised any more");
        drop((held, other));
        assert_eq!(lock(&space.promises).total, 0);
    }

    #[test]
    fn a_large_download_is_promised_its_share_again_and_again() {
        let options = Options { keep_percent: 0, keep_bytes: 0, ..Options::default() };
        let (_dir, space) = space(&options);
        let total = || lock(&space.promises).total;
        let share = SHARE.min(space.room(0, 0).unwrap() / SHARE_OF_FREE);
        let mut room = space.download("a", share + 10).unwrap();
        let first = total();
        assert!(first <= share && first + 10 >= share / 2, "{first} of {share}");
        room.write(first).unwrap();
        assert_eq!(total(), 0);
        room.write(1).unwrap();
        assert!(total() < share + 10 - first, "and the rest as it comes");
        room.write(share + 10 - first - 1).unwrap();
        assert_eq!((total(), room.rest), (0, 0));
    }
}
