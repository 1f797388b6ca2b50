//! What a thread has mounted, as far as it is about files that were deleted and are still mounted.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat, openat2, statx};

/// What is asked of a file.
pub(super) const WANTED: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::NLINK)
    .union(StatxFlags::BLOCKS)
    .union(StatxFlags::INO)
    .union(StatxFlags::MNT_ID);

/// mountinfo of a thread: the mounts below its root.
pub(super) struct Table(String);

/// A line of it.
pub(super) struct Mount<'a> {
    pub id: u64,
    /// `major:minor`.
    device: &'a str,
    /// What of the file system is mounted, and where; both escaped.
    root: &'a str,
    place: &'a str,
    kind: &'a str,
}

impl Table {
    pub fn of(task: &Path) -> Table {
        Table(fs::read_to_string(task.join("mountinfo")).unwrap_or_default())
    }

    pub fn mounts(&self) -> impl Iterator<Item = Mount<'_>> {
        self.0.lines().filter_map(Mount::read)
    }

    /// Asks of the file that is mounted; `None`: it is not what is seen there, or it would be asked of who may never answer.
    pub fn stat(&self, task: &Path, mount: &Mount<'_>) -> Option<Statx> {
        let place = PathBuf::from(unescaped(mount.place));
        let on_the_way = |other: &Mount<'_>| place.starts_with(unescaped(other.place));
        if !self.mounts().filter(on_the_way).all(|other| other.is_the_kernels()) {
            return None;
        }
        let root =
            openat(CWD, task.join("root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let way = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file =
            openat2(&root, &place, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), way).ok()?;
        let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        statx(file.as_fd(), "", asked, WANTED).ok().filter(|found| found.stx_mnt_id == mount.id)
    }
}

impl Mount<'_> {
    fn read(line: &str) -> Option<Mount<'_>> {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ');
        let id = fields.next()?.parse().ok()?;
        let (device, root, place) = (fields.nth(1)?, fields.next()?, fields.next()?);
        Some(Mount { id, device, root, place, kind: kind.split(' ').next()? })
    }

    /// What is on it is its owner's use of a disk: it is an overlay, or a folder of a file system whose path holds `own`.
    pub fn is_own(&self, own: &str) -> bool {
        let in_memory = matches!(self.kind, "tmpfs" | "ramfs" | "hugetlbfs");
        self.kind == "overlay" || (!in_memory && self.root.contains(own))
    }

    /// As the kernel puts it.
    pub fn is_deleted(&self) -> bool {
        self.root.ends_with("//deleted")
    }

    /// The kernel answers for it by itself: it is on a disk of the machine's, or in memory.
    fn is_the_kernels(&self) -> bool {
        let on_disk = !self.device.starts_with("0:") && !self.kind.starts_with("fuse");
        on_disk
            || matches!(self.kind, "overlay" | "tmpfs" | "ramfs" | "btrfs" | "proc" | "sysfs" | "cgroup2" | "devpts")
    }
}

/// What the kernel writes with escapes: blanks, line ends and backslashes.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (escape, meant)| text.replace(escape, meant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_say_whose_they_are() {
        let lines = "36 35 254:1 /state/u-1/volumes/v/a\\040b//deleted /m\\040n rw - ext4 /dev/vda1 rw\n\
                     37 35 0:40 / / rw master:1 - overlay overlay rw\n\
                     38 37 0:41 /x//deleted /tmp/x rw - tmpfs none rw\n\
                     39 37 0:42 / /f rw - fuse.sshfs x rw\nnonsense";
        let table = Table(lines.to_owned());
        let told: Vec<_> =
            table.mounts().map(|m| (m.id, m.is_own("u-1"), m.is_deleted(), m.is_the_kernels())).collect();
        let wanted =
            [(36, true, true, true), (37, true, false, true), (38, false, true, true), (39, false, false, false)];
        assert_eq!(told, wanted);
        assert_eq!(table.mounts().next().map(|mount| unescaped(mount.place)).as_deref(), Some("/m n"));
    }
}
