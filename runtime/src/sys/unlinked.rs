//! What processes keep on disks without a name: files that were deleted and are still open or mapped.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};

use super::walk::{Measure, Pace};

/// Counts the files without a name that these processes, or any of their threads, have open or mapped: those of their
/// overlays, and those of file systems of which a folder is mounted whose path holds `own`. Others', files in memory and those
/// of the host, do not count; nor do those that are on their way through a socket. What has just ended has none.
///
/// Gives up after `most` CPU time, as a walk does: somebody opens files faster than they are counted.
pub fn unlinked(pids: &[u32], own: &str, most: Duration) -> Measure {
    let mut look =
        Look { pace: Pace::new(), most, files: HashMap::new(), mounts: HashMap::new(), namespaces: HashSet::new() };
    let evades = look.processes(pids, own).is_none();
    let mut sum = Measure { evades, ..Measure::default() };
    let mut seen = HashSet::new();
    for ((mount, file), bytes) in look.files {
        if look.mounts.get(&mount).copied().unwrap_or(false) && seen.insert(file) {
            sum.bytes = sum.bytes.saturating_add(bytes);
            sum.inodes += 1;
        }
    }
    Measure { cost: look.pace.cost(), ..sum }
}

/// Device (major, minor) and inode.
type File = (u32, u32, u64);

struct Look {
    pace: Pace,
    most: Duration,
    /// Bytes of files without a name, by the mount on which they were opened.
    files: HashMap<(u64, File), u64>,
    /// Mounts that any of the processes sees, by their ids: whether what is on them is its own use of a disk.
    mounts: HashMap<u64, bool>,
    namespaces: HashSet<PathBuf>,
}

impl Look {
    /// `None`: it took too long.
    fn processes(&mut self, pids: &[u32], own: &str) -> Option<()> {
        let (mut tables, mut memories) = (Known::new(KCMP_FILES), Known::new(KCMP_VM));
        for pid in pids {
            let process = PathBuf::from(format!("/proc/{pid}"));
            self.see_mounts(&process, own);
            for task in entries(&process.join("task")) {
                self.step()?;
                let Some(tid) = task.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
                if tables.is_new(tid) {
                    self.links(&task.join("fd"))?;
                }
            }
            if memories.is_new(*pid) {
                self.links(&process.join("map_files"))?;
            }
        }
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        self.pace.step();
        (self.pace.cost() <= self.most).then_some(())
    }

    fn links(&mut self, folder: &Path) -> Option<()> {
        for link in entries(folder) {
            self.step()?;
            if let Some(file) = without_name(&link) {
                let id = (file.stx_dev_major, file.stx_dev_minor, file.stx_ino);
                self.files.insert((file.stx_mnt_id, id), file.stx_blocks.saturating_mul(512));
            }
        }
        Some(())
    }

    fn see_mounts(&mut self, process: &Path, own: &str) {
        if fs::read_link(process.join("ns/mnt")).is_ok_and(|namespace| self.namespaces.insert(namespace)) {
            self.mounts.extend(own_mounts(process, own));
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Asks what is known of the file; its file system may be served by somebody who never answers.
fn without_name(link: &Path) -> Option<Statx> {
    let wanted = StatxFlags::TYPE | StatxFlags::NLINK | StatxFlags::BLOCKS | StatxFlags::INO | StatxFlags::MNT_ID;
    let file = statx(CWD, link, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, wanted).ok()?;
    let regular = FileType::from_raw_mode(file.stx_mode.into()) == FileType::RegularFile;
    (regular && file.stx_nlink == 0).then_some(file)
}

/// The mounts that a process sees.
fn own_mounts(process: &Path, own: &str) -> HashMap<u64, bool> {
    let text = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ');
        let (id, root) = (fields.next()?.parse().ok()?, fields.nth(2)?);
        let kind = kind.split(' ').next()?;
        let in_memory = matches!(kind, "tmpfs" | "ramfs" | "hugetlbfs");
        Some((id, kind == "overlay" || (!in_memory && root.contains(own))))
    };
    text.lines().filter_map(mount).collect()
}

/// kcmp(2)'s types: tables of descriptors, address spaces.
const KCMP_FILES: libc::c_int = 2;
const KCMP_VM: libc::c_int = 1;

/// What tasks may share, one task for each that was seen, in the kernel's own order.
struct Known {
    kind: libc::c_int,
    tasks: Vec<u32>,
}

impl Known {
    fn new(kind: libc::c_int) -> Known {
        Known { kind, tasks: Vec::new() }
    }

    /// Whether what the task has is none that was seen. Where the kernel does not tell, it is taken for new.
    fn is_new(&mut self, task: u32) -> bool {
        match self.tasks.binary_search_by(|known| compare(self.kind, *known, task)) {
            Ok(_) => false,
            Err(place) => {
                self.tasks.insert(place, task);
                true
            }
        }
    }
}

/// kcmp(2); `Less` where it does not tell, as for a task that has ended.
fn compare(kind: libc::c_int, one: u32, other: u32) -> Ordering {
    // SAFETY: plain values; the last two are not looked at for these types.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, kind, 0, 0) } {
        0 => Ordering::Equal,
        2 => Ordering::Greater,
        _ => Ordering::Less,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::channel;

    use super::*;

    const MOST: Duration = Duration::from_secs(60);

    /// So many bytes in a file that has no name.
    fn hidden(folder: &Path, mib: usize) -> fs::File {
        let path = folder.join("hidden");
        let mut file = fs::File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(&vec![7; mib << 20]).unwrap();
        file.sync_all().unwrap();
        file
    }

    #[test]
    fn who_hides_bytes_in_a_thread_or_a_mapping_or_has_too_much_is_seen() {
        // Not in memory.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let me = [std::process::id()];
        let count = || unlinked(&me, "", MOST).bytes;
        let before = count();
        let (ready, is_ready) = channel();
        let (end, ends) = channel::<()>();
        let path = folder.path().to_owned();
        let thread = std::thread::spawn(move || {
            // SAFETY: a plain value; the thread has its own table of descriptors from now on.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let _file = hidden(&path, 64);
            ready.send(()).unwrap();
            ends.recv().ok();
        });
        is_ready.recv().unwrap();
        assert!(count() >= before + (64 << 20), "in a thread's own table");
        end.send(()).unwrap();
        thread.join().unwrap();

        let file = hidden(folder.path(), 64);
        // SAFETY: a fresh mapping that nobody reads.
        let map = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        drop(file);
        assert!(count() >= before + (64 << 20), "mapped alone");
        // SAFETY: the mapping from above.
        unsafe { libc::munmap(map, 4096) };
        assert!(unlinked(&me, "", Duration::ZERO).evades);
        assert!(!unlinked(&me, "", MOST).evades);
    }
}
