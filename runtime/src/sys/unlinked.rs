//! Disk space held by processes through unlinked files: deleted, but still open or mapped.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statfs, statx};

use super::walk::{Measure, Pace};

/// Maximum descriptors, mappings and mounts inspected at a time; a container with more is evading. The kernel keeps a kilobyte for
/// each one queried, charged to the querier.
const LINKS: usize = 1 << 17;

/// Maximum length of a mountinfo line: two paths, with each byte escaped as four, and a page of file system options.
const MOUNT: u64 = 64 << 10;

/// A container to inspect.
pub struct Holder<'a> {
    /// Lists its current processes.
    pub pids: Box<dyn Fn() -> Vec<u32> + Send + Sync + 'a>,
    /// Files mounted for it, at paths visible to the caller.
    pub mounted: Vec<PathBuf>,
}

/// How often processes are listed until no new ones appear.
const LISTS: usize = 16;

/// Counts the unlinked files that these containers of one sandbox have open, mapped, mounted, or execute, in any of their threads:
/// each file once, for its first holder. All are inspected together, because they may pass files to each other. Processes created
/// during the inspection are included.
///
/// A mount visible to any of them decides about files on it: overlays count as disk usage, and file systems mounted from a folder
/// whose path contains `own`. Files on other mounts, in memory, and of the host do not count. A mount visible to none of them
/// belongs to an exited container or to whoever passed the file on, or is hidden by a change of root: it counts if it is an overlay
/// or the file system of `disk`. References inside the kernel (in flight through a socket, in a system call in progress, in a
/// ruleset) are not seen; an exited process has nothing.
///
/// Gives up after `most` CPU time, like a walk: files may be opened faster than they are counted.
pub fn unlinked(containers: &[Holder<'_>], own: &str, disk: &Path, most: Duration) -> Vec<Measure> {
    let mut look = Look::new(own, disk, most);
    let looked: Vec<Looked> = containers.iter().map(|holder| look.container(holder)).collect();
    let mut seen = HashSet::new();
    let sum = |looked: Looked| {
        let mut sum = Measure { evades: looked.evades, cost: looked.cost, ..Measure::default() };
        for ((mount, file), found) in looked.files {
            if look.mounts.get(&mount).copied().unwrap_or(found.of_node) && seen.insert(file) {
                sum.bytes = sum.bytes.saturating_add(found.bytes);
                sum.inodes += 1;
            }
        }
        sum
    };
    looked.into_iter().map(sum).collect()
}

/// Device (major, minor) and inode.
type File = (u32, u32, u64);

/// An unlinked file.
struct Found {
    bytes: u64,
    /// It is on the node's disk, as far as its file system tells; for a mount that is not visible.
    of_node: bool,
}

/// What a container holds.
#[derive(Default)]
struct Looked {
    /// By the mount through which they were opened.
    files: HashMap<(u64, File), Found>,
    /// It holds too much, or it cannot be read.
    evades: bool,
    cost: Duration,
}

struct Look<'a> {
    pace: Pace,
    most: Duration,
    own: &'a str,
    disk: Disk,
    links_left: usize,
    tables: Known,
    memories: Known,
    /// Mounts visible to any of the processes, by id: whether files on them count as the container's disk usage.
    mounts: HashMap<u64, bool>,
    namespaces: HashSet<PathBuf>,
}

impl<'a> Look<'a> {
    fn new(own: &'a str, disk: &Path, most: Duration) -> Look<'a> {
        Look {
            pace: Pace::new(),
            most,
            own,
            disk: Disk::of(disk),
            links_left: LINKS,
            tables: Known::new(KCMP_FILES),
            memories: Known::new(KCMP_VM),
            mounts: HashMap::new(),
            namespaces: HashSet::new(),
        }
    }

    fn container(&mut self, holder: &Holder<'_>) -> Looked {
        let (mut looked, begin) = (Looked::default(), self.pace.cost());
        let mut known = HashSet::new();
        for _ in 0..LISTS {
            let mut pids = (holder.pids)();
            pids.retain(|pid| known.insert(*pid));
            if pids.is_empty() || looked.evades {
                break;
            }
            looked.evades |= self.processes(&pids, &mut looked).is_none();
        }
        for mounted in &holder.mounted {
            self.link(mounted, &mut looked);
        }
        looked.cost = self.pace.cost() - begin;
        looked
    }

    /// Each thread separately: it may have its own descriptors and mounts, and an exited main thread hides them from the process's
    /// folder. `None`: there is too much.
    fn processes(&mut self, pids: &[u32], looked: &mut Looked) -> Option<()> {
        for pid in pids {
            for task in entries(&PathBuf::from(format!("/proc/{pid}/task")), looked) {
                self.step()?;
                let Some(tid) = task.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
                self.see_mounts(&task)?;
                if self.tables.is_new(tid) {
                    let folder = task.join("fd");
                    // Before listing them, if the kernel (6.2) reports their number.
                    let count = folder.metadata().map_or(0, |fd| usize::try_from(fd.len()).unwrap_or(usize::MAX));
                    if count > self.links_left {
                        return None;
                    }
                    self.links(&folder, looked)?;
                }
                if self.memories.is_new(tid) {
                    // Not in the thread's folder, but in its own one.
                    let thread = PathBuf::from(format!("/proc/{tid}"));
                    self.links(&thread.join("map_files"), looked)?;
                    self.link(&thread.join("exe"), looked);
                }
            }
        }
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        self.pace.step();
        (self.pace.cost() <= self.most).then_some(())
    }

    fn links(&mut self, folder: &Path, looked: &mut Looked) -> Option<()> {
        for link in entries(folder, looked) {
            self.step()?;
            self.links_left = self.links_left.checked_sub(1)?;
            self.link(&link, looked);
        }
        Some(())
    }

    fn link(&self, link: &Path, looked: &mut Looked) {
        let Some(file) = without_name(link) else { return };
        let id = (file.stx_dev_major, file.stx_dev_minor, file.stx_ino);
        let of_node = !self.mounts.contains_key(&file.stx_mnt_id) && self.disk.holds(&file, link);
        let bytes = file.stx_blocks.saturating_mul(512);
        looked.files.insert((file.stx_mnt_id, id), Found { bytes, of_node });
    }

    /// Line by line: a container can create many mounts, whose paths the kernel escapes to four times their length. `None`: there
    /// is too much.
    fn see_mounts(&mut self, task: &Path) -> Option<()> {
        if !fs::read_link(task.join("ns/mnt")).is_ok_and(|namespace| self.namespaces.insert(namespace)) {
            return Some(());
        }
        let Ok(table) = fs::File::open(task.join("mountinfo")) else { return Some(()) };
        let (mut table, mut line) = (BufReader::new(table), Vec::new());
        loop {
            line.clear();
            let read = table.by_ref().take(MOUNT).read_until(b'\n', &mut line).unwrap_or(0);
            if read == 0 {
                return Some(());
            }
            self.step()?;
            self.links_left = self.links_left.checked_sub(1).filter(|_| line.ends_with(b"\n"))?;
            self.mounts.extend(own_mount(&String::from_utf8_lossy(&line), self.own));
        }
    }
}

/// The entries of a folder of /proc; none for an exited process. An unreadable one counts as evading.
fn entries(folder: &Path, looked: &mut Looked) -> impl Iterator<Item = PathBuf> + use<> {
    let read = fs::read_dir(folder);
    looked.evades |= read.as_ref().is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
    read.into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The file system on which the node stores what its containers write.
struct Disk {
    device: Option<(u32, u32)>,
    /// Its type, from statfs(2); `None` for one in memory.
    kind: Option<i64>,
}

impl Disk {
    fn of(folder: &Path) -> Disk {
        let device = statx(CWD, folder, AtFlags::empty(), StatxFlags::INO).ok();
        let kind = statfs(folder).ok().map(|found| found.f_type as i64);
        let kind = kind.filter(|kind| !matches!(*kind, TMPFS | RAMFS));
        Disk { device: device.map(|found| (found.stx_dev_major, found.stx_dev_minor)), kind }
    }

    /// Only file systems without their own device (overlays, subvolumes) are queried for their type.
    fn holds(&self, file: &Statx, link: &Path) -> bool {
        let device = (file.stx_dev_major, file.stx_dev_minor);
        let kind = || statfs(link).ok().map(|found| found.f_type as i64);
        self.device == Some(device)
            || (device.0 == 0 && kind().is_some_and(|kind| kind == OVERLAY || self.kind == Some(kind)))
    }
}

/// statfs(2)'s types.
const OVERLAY: i64 = 0x794c_7630;
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Queries cached attributes of the file; a remote file system may never respond.
fn without_name(link: &Path) -> Option<Statx> {
    let wanted = StatxFlags::TYPE | StatxFlags::NLINK | StatxFlags::BLOCKS | StatxFlags::INO | StatxFlags::MNT_ID;
    let file = statx(CWD, link, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, wanted).ok()?;
    let regular = FileType::from_raw_mode(file.stx_mode.into()) == FileType::RegularFile;
    (regular && file.stx_nlink == 0).then_some(file)
}

/// A line of mountinfo: the mount, and whether files on it count as the container's disk usage.
fn own_mount(line: &str, own: &str) -> Option<(u64, bool)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut fields = place.split(' ');
    let (id, root) = (fields.next()?.parse().ok()?, fields.nth(2)?);
    let kind = kind.split(' ').next()?;
    let in_memory = matches!(kind, "tmpfs" | "ramfs" | "hugetlbfs");
    Some((id, kind == "overlay" || (!in_memory && root.contains(own))))
}

/// kcmp(2)'s types: descriptor tables, address spaces.
const KCMP_FILES: libc::c_int = 2;
const KCMP_VM: libc::c_int = 1;

/// Resources that tasks may share, one task for each that was seen, in the kernel's own order.
struct Known {
    kind: libc::c_int,
    tasks: Vec<u32>,
}

impl Known {
    fn new(kind: libc::c_int) -> Known {
        Known { kind, tasks: Vec::new() }
    }

    /// Whether the task's resource was not seen before. Assumed new if the kernel cannot compare.
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

/// kcmp(2); `Less` on failure, such as for an exited task.
fn compare(kind: libc::c_int, one: u32, other: u32) -> Ordering {
    // SAFETY: plain values; the last two are ignored for these types.
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

    fn of(pid: u32) -> Holder<'static> {
        Holder { pids: Box::new(move || vec![pid]), mounted: Vec::new() }
    }

    fn look_at(pid: u32, disk: &Path, most: Duration) -> Measure {
        unlinked(&[of(pid)], "", disk, most).remove(0)
    }

    /// An unlinked file of this size.
    fn hidden(folder: &Path, mib: usize) -> fs::File {
        let path = folder.join("hidden");
        let mut file = fs::File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(&vec![7; mib << 20]).unwrap();
        file.sync_all().unwrap();
        file
    }

    #[test]
    fn mounts_are_read_one_by_one_and_too_many_of_them_evade() {
        let (folder, mut file) = (tempfile::tempdir().unwrap(), Vec::new());
        let place = |at: usize| format!("{} 1 0:1 /x{} /x rw - ext4 /dev/x rw\n", at + 7, "\\012".repeat(3848));
        (0..100).for_each(|at| file.extend(place(at).into_bytes()));
        let look_at = |text: &[u8], left: usize| {
            fs::create_dir_all(folder.path().join("ns")).unwrap();
            fs::write(folder.path().join("mountinfo"), text).unwrap();
            let mut look = Look::new("/x", folder.path(), MOST);
            let _ = fs::remove_file(folder.path().join("ns/mnt"));
            std::os::unix::fs::symlink("mnt:[1]", folder.path().join("ns/mnt")).unwrap();
            look.links_left = left;
            let seen = look.see_mounts(folder.path()).is_some();
            (seen, look.mounts.len(), look.links_left)
        };
        assert_eq!(look_at(&file, 1000), (true, 100, 900));
        assert_eq!(look_at(&file, 99), (false, 99, 0), "too many");
        assert!(!look_at(&[b"7 1 0:1 /".as_slice(), &vec![b'x'; 1 << 20]].concat(), 1000).0, "no end");
        // Invalid UTF-8 must not hide mounts.
        assert_eq!(look_at(b"7 1 0:1 /\xff /x rw - ext4 x rw\n8 1 0:1 / / rw - ext4 x rw\n", 9), (true, 2, 7));
    }

    #[test]
    fn who_hides_bytes_in_a_thread_or_a_mapping_or_has_too_much_is_seen() {
        // Not in memory.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let look = |most| look_at(std::process::id(), folder.path(), most);
        let count = || look(MOST).bytes;
        let (ready, is_ready) = channel();
        let (end, ends) = channel::<()>();
        let path = folder.path().to_owned();
        let thread = std::thread::spawn(move || {
            // SAFETY: a plain value; the thread has its own descriptor table from now on.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let _file = hidden(&path, 64);
            ready.send(()).unwrap();
            ends.recv().ok();
        });
        is_ready.recv().unwrap();
        // Other tests of this process hold less.
        assert!(count() >= 64 << 20, "in a thread's own table");
        end.send(()).unwrap();
        thread.join().unwrap();

        let file = hidden(folder.path(), 64);
        // SAFETY: a new mapping that is not read.
        let map = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        drop(file);
        assert!(count() >= 64 << 20, "mapped alone");
        // SAFETY: the mapping from above.
        unsafe { libc::munmap(map, 4096) };
        assert!(look(Duration::ZERO).evades);
        assert!(!look(MOST).evades);
    }

    extern "C" fn stay(_: *mut libc::c_void) -> *mut libc::c_void {
        loop {
            // SAFETY: no arguments.
            unsafe { libc::pause() };
        }
    }

    /// A process whose main thread has exited while another one continues. It inherits our descriptors, and maps this file.
    fn headless(file: &fs::File) -> libc::pid_t {
        // SAFETY: the child only calls wrappers of the C library, and never returns.
        unsafe {
            let pid = libc::fork();
            if pid != 0 {
                return pid;
            }
            let fd = std::os::fd::AsRawFd::as_raw_fd(file);
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            libc::close(fd);
            let mut thread = std::mem::zeroed();
            libc::pthread_create(&mut thread, std::ptr::null(), stay, std::ptr::null_mut());
            libc::syscall(libc::SYS_exit, 0);
            libc::_exit(1)
        }
    }

    #[test]
    fn who_goes_on_without_a_main_thread_is_seen() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let (open, mapped) = (hidden(folder.path(), 5), hidden(folder.path(), 9));
        let pid = headless(&mapped);
        let stat = format!("/proc/{pid}/stat");
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::sleep(Duration::from_millis(5));
        }
        let found = look_at(pid as u32, folder.path(), MOST);
        // SAFETY: our own child.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
        // Other tests of this process may have passed it a file of theirs.
        assert!(found.bytes >= 14 << 20 && found.inodes >= 2 && !found.evades, "{found:?}");
        drop((open, mapped));
    }

    #[test]
    fn more_descriptors_than_anybody_treads_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = |links_left| {
            let mut look = Look { links_left, ..Look::new("", folder.path(), MOST) };
            look.container(&of(child.id())).evades
        };
        let evades = [2, 1000].map(found);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(evades, [true, false]);
    }
}
