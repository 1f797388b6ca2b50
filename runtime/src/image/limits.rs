//! The cost limits of an image: bounds on external data, the ratio of unpacked to packed size, and reserved disk space.
//!
//! A few kilobytes can unpack to terabytes. So unpacking counts its output against its input, per image and not per layer (an image
//! has hundreds), and checks disk space as it proceeds. Downloads announce their needs: concurrent pulls share the space.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::lock::lock;
use super::{ImageError, Result};

/// Maximum layers of an image: what other runtimes support, of the 500 that overlayfs can stack (`OVL_MAX_STACK`). A file lookup
/// may have to search each.
pub(super) const MAX_LAYERS: usize = 128;
/// Maximum bytes of a manifest, index or config (containerd's `MaxManifestSize`).
pub(super) const MAX_DOCUMENT: u64 = 4 << 20;
/// Maximum bytes of those of all images of an archive together.
pub(super) const MAX_DOCUMENTS: u64 = 64 << 20;
/// Maximum bytes of the names of an archive's files, with overhead.
pub(super) const MAX_NAMES: usize = 16 << 20;
/// Maximum images of an archive, and names of one.
pub(super) const MAX_IMAGES: usize = 1000;
/// The overhead of a file, directory or link: an inode and its directory entry.
const ENTRY: u64 = 4096;
/// Maximum bytes reserved for a tenant's downloads at a time, or a part of the free space if that is less: announcing much and
/// sending little does not block others.
const SHARE: u64 = 256 << 20;
const SHARE_OF_FREE: u64 = 8;

/// Bounds for external data.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum uncompressed bytes of one layer.
    pub max_layer_bytes: u64,
    /// Maximum entries of all layers of an image.
    pub max_entries: u64,
    /// Maximum directory lookups while unpacking an image, in its own layer or one below: paths that are long, contain symlinks or
    /// are missing from many layers take thousands of lookups each, and each walks the whole path.
    pub max_looks: u64,
    /// An image may unpack to this multiple of its packed size ..
    pub max_ratio: u64,
    /// .. or to this many bytes, whichever is more: for small images of zeros.
    pub free_bytes: u64,
    /// Percent of the disk kept free of images ..
    pub keep_percent: u64,
    /// .. or this many bytes, whichever is more; on small disks at most a tenth.
    pub keep_bytes: u64,
    /// Concurrent layer downloads, per pull.
    pub parallel_downloads: usize,
    /// Timeout for a registry's responses, in seconds without a byte.
    pub read_timeout_seconds: u64,
    /// Minimum bytes per second of a download over such a period.
    pub min_rate: u64,
    /// Minimum average bytes per second of a download over all attempts, after five such periods.
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

/// The store's disk, and what downloads in progress will still write to it.
#[derive(Debug)]
pub(super) struct Space {
    dir: PathBuf,
    keep_percent: u64,
    keep_bytes: u64,
    promises: Mutex<Promises>,
}

/// Bytes that downloads in progress may still write: in total, and by tenant.
#[derive(Debug, Default)]
struct Promises {
    total: u64,
    of: HashMap<String, u64>,
}

impl Space {
    pub(super) fn new(dir: PathBuf, options: &Options) -> Space {
        Space { dir, keep_percent: options.keep_percent, keep_bytes: options.keep_bytes, promises: Mutex::default() }
    }

    /// Checks that `bytes` more leave enough space free.
    pub(super) fn check(&self, bytes: u64) -> Result<()> {
        self.room(bytes, lock(&self.promises).total).map(drop)
    }

    /// Reserves space for a download of this size, as its descriptor says. The reservation is limited to the tenant's share, and
    /// extended as data is written: a registry that announces much and sends little does not block others. Fails if there is not
    /// enough space.
    pub(super) fn download(self: &Arc<Space>, tenant: &str, bytes: u64) -> Result<Room> {
        self.check(bytes)?;
        let mut room = Room { space: self.clone(), tenant: tenant.to_owned(), promised: 0, rest: bytes };
        room.promise(0)?;
        Ok(room)
    }

    /// The space beyond what is kept and reserved. Fails if it is less than `bytes`.
    fn room(&self, bytes: u64, promised: u64) -> Result<u64> {
        let disk = rustix::fs::statvfs(&self.dir).map_err(|e| ImageError::io("statvfs", &self.dir, e))?;
        let (total, free) = (disk.f_blocks.saturating_mul(disk.f_frsize), disk.f_bavail.saturating_mul(disk.f_frsize));
        let keep = keep(total, self.keep_percent, self.keep_bytes);
        // Some file systems do not report their size.
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

/// The reservation of one download.
#[derive(Debug)]
pub(super) struct Room {
    space: Arc<Space>,
    tenant: String,
    /// Bytes reserved ..
    promised: u64,
    /// .. and bytes to be reserved later.
    rest: u64,
}

impl Room {
    /// Ensures space for bytes about to be written.
    pub(super) fn write(&mut self, bytes: u64) -> Result<()> {
        if self.promised < bytes && self.rest > 0 {
            self.promise(bytes - self.promised)?;
        }
        self.give_back(bytes.min(self.promised));
        Ok(())
    }

    /// Reserves as much of the rest as the tenant's share allows, and at least `least`.
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

/// How much one image may still unpack to.
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

    /// Counts the transferred input.
    pub(super) fn packed<R: Read>(self: &Arc<Allowance>, reader: R) -> Packed<R> {
        Packed { reader, allowance: self.clone() }
    }

    /// Counts the uncompressed output.
    pub(super) fn unpacked<R: Read>(self: &Arc<Allowance>, reader: R) -> Unpacking<R> {
        Unpacking { reader, allowance: self.clone() }
    }

    /// Counts an entry of a layer or archive with its number of headers: a million headers before one file are an attack.
    pub(super) fn entry(&self, headers: u64) -> Result<()> {
        let mut used = lock(&self.used);
        used.entries = used.entries.saturating_add(headers);
        if used.entries > self.max_entries {
            return Err(ImageError::Invalid(format!("more than {} entries", self.max_entries)));
        }
        drop(used);
        self.spend(ENTRY)
    }

    /// Counts the directory lookups of an entry.
    pub(super) fn look(&self, times: u64) -> Result<()> {
        let mut used = lock(&self.used);
        used.looks = used.looks.saturating_add(times);
        match used.looks > self.max_looks {
            true => Err(ImageError::Invalid(format!("more than {} looks for directories", self.max_looks))),
            false => Ok(()),
        }
    }

    /// Counts bytes about to be written.
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

/// Counts what is read through it as unpacked, and fails above the limit.
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
        // The maximum of concurrent downloads, each announcing much and sending nothing.
        let mut held: Vec<Room> = (0..12).map(|_| space.download("greedy", share).unwrap()).collect();
        assert!(of("greedy") <= share, "{} of {share}", of("greedy"));
        let other = space.download("other", 1000).unwrap();
        assert_eq!(of("other"), 1000);
        // Beyond the share they continue as long as there is space.
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
