//! Removes cgroups, whatever a container has created below its own.

use std::ffi::CString;
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::mem;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use podwright_sys::{Kernel, SysResult};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use super::{await_empty, kill};

/// How long killed processes may take to die.
const DEATH: Duration = Duration::from_secs(5);
/// Time limit for all cgroups below one: a thread walks through them, and the agent's shutdown waits for it. The rest is removed on
/// the next call.
const LONGEST: Duration = Duration::from_secs(10);
/// Number of names read at a time.
const PIECE: usize = 4096;

const LIST: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Kills what is left in a cgroup and below, and removes them; succeeds if it does not exist.
pub(super) fn remove(kernel: &Kernel, cgroup: &Path) -> SysResult<()> {
    if !cgroup.exists() {
        return Ok(());
    }
    // Kills once, here: that includes everything below. If it fails, the remaining processes keep the cgroup, and removing it
    // reports why.
    let killed = match await_empty(cgroup, Duration::ZERO) {
        true => Ok(()),
        false => kill(kernel, cgroup),
    };
    await_empty(cgroup, DEATH);
    let end = Instant::now() + LONGEST;
    let mut emptied = empty(kernel, cgroup, end);
    // A process in another Pod with a descriptor of one of them could create more as fast as they are removed.
    let most = cgroup.join("cgroup.max.descendants");
    let is_closed = emptied.is_err() && kernel.write(&most, "0").is_ok();
    if is_closed {
        emptied = empty(kernel, cgroup, end);
    }
    let removed = killed.and(emptied).and_then(|()| kernel.rmdir(cgroup));
    if is_closed && removed.is_err() {
        // What stays is used again, as the root is by the next agent.
        let _ = kernel.write(&most, "max");
    }
    removed
}

fn empty(kernel: &Kernel, cgroup: &Path, end: Instant) -> SysResult<()> {
    let top = || openat(CWD, cgroup, LIST, Mode::empty());
    match top().and_then(|top| Ok((children(&top)?, top))) {
        Ok((children, _)) if children.is_empty() => Ok(()),
        Err(Errno::NOENT) => Ok(()),
        Ok((children, top)) => {
            kernel.op("rmdir", |a| a.path(cgroup).text(": all below"), || empty_from(top, children, end))
        }
        Err(e) => kernel.op("open", |a| a.path(cgroup), || Err(e.into())),
    }
}

/// A cgroup being walked: its known children that are not handled yet.
struct Level {
    name: CString,
    left: Vec<CString>,
    /// Whether there are more than that.
    has_more: bool,
    /// Whether any was removed since they were read.
    goes_on: bool,
}

impl Level {
    fn of(name: CString, left: Vec<CString>) -> Level {
        Level { name, has_more: left.len() >= PIECE, left, goes_on: false }
    }
}

/// Removes all cgroups below the open one, whose `children` are known. One that cannot be removed does not keep the others.
///
/// They may be nested deeper than PATH_MAX: each is left through its `..`, which is where it was entered from, as cgroups cannot be
/// moved; so one descriptor is enough, and each path is walked once.
fn empty_from(top: OwnedFd, children_of_top: Vec<CString>, end: Instant) -> IoResult<()> {
    let (mut here, mut level) = (top, Level::of(CString::default(), children_of_top));
    let (mut above, mut failed) = (Vec::new(), None);
    loop {
        if Instant::now() > end {
            return Err(IoError::from(ErrorKind::TimedOut));
        }
        if let Some(name) = level.left.pop() {
            match rmdir_at(&here, &name) {
                Ok(()) => level.goes_on = true,
                // It contains others, or processes.
                Err(Errno::BUSY) => match openat(&here, &name, LIST, Mode::empty()) {
                    Ok(entered) => match children(&entered) {
                        Ok(inside) => {
                            let inner = Level::of(name, inside);
                            above.push(mem::replace(&mut level, inner));
                            here = entered;
                        }
                        Err(Errno::NOENT) => {}
                        Err(e) => failed = failed.or(Some(e)),
                    },
                    Err(Errno::NOENT) => {}
                    Err(e) => failed = failed.or(Some(e)),
                },
                Err(e) => failed = failed.or(Some(e)),
            }
        } else if level.has_more && level.goes_on {
            level = Level::of(mem::take(&mut level.name), children(&here)?);
        } else if let Some(around) = above.pop() {
            here = openat(&here, "..", LIST, Mode::empty())?;
            let left = mem::replace(&mut level, around);
            match rmdir_at(&here, &left.name) {
                Ok(()) => level.goes_on = true,
                Err(e) => failed = failed.or(Some(e)),
            }
        } else {
            return failed.map_or(Ok(()), |e| Err(e.into()));
        }
    }
}

/// Succeeds if it does not exist.
fn rmdir_at(parent: &OwnedFd, name: &CString) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// Some of the names of a cgroup's children.
fn children(cgroup: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(cgroup)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name.to_owned());
        }
        if names.len() >= PIECE {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use podwright_journal::JournalWriter;
    use rustix::fs::mkdirat;

    use super::super::{Tree, bound};
    use super::*;
    use crate::spec::CgroupName;

    /// Nests cgroups; returns how many the kernel creates.
    fn nest(top: &Path, name: &str, deep: usize) -> usize {
        let mut here = openat(CWD, top, LIST, Mode::empty()).unwrap();
        for depth in 0..deep {
            match mkdirat(&here, name, Mode::from(0o755)) {
                Err(Errno::AGAIN) => return depth,
                made => made.unwrap(),
            }
            here = openat(&here, name, LIST, Mode::empty()).unwrap();
        }
        deep
    }

    #[test]
    fn cgroups_below_a_pods_have_an_end_and_go_however_deep_they_are() {
        let kernel = Kernel::new(&JournalWriter::none());
        let root = format!("/podwright-removal-{}", std::process::id());
        let (tree, name) = (Tree::open(&kernel, Path::new(&root)).unwrap(), CgroupName::new("pod"));
        let pod = tree.make(&kernel, &name).unwrap();
        // Longer than PATH_MAX, and many siblings, as possible without the bounds.
        assert_eq!(nest(&pod, &"d".repeat(60), 200), 200);
        fs::create_dir(pod.join("beside")).unwrap();
        (0..300).for_each(|at| fs::create_dir(pod.join(format!("beside/{at}"))).unwrap());
        tree.remove(&kernel, &name).unwrap();
        assert!(!pod.exists());
        tree.make(&kernel, &name).unwrap();
        assert_eq!(bound(&kernel, &pod).unwrap(), ["cgroup.max.depth", "cgroup.max.descendants"]);
        assert_eq!(bound(&kernel, &pod).unwrap(), [""; 0]);
        assert_eq!(nest(&pod, &"d".repeat(255), 100), 14);
        let names = std::iter::repeat_n("d".repeat(255), 14).collect::<Vec<_>>().join("/");
        assert!(pod.join(names).join("cgroup.procs").exists(), "its processes are found by its path");
        tree.remove_root(&kernel).unwrap();
        assert!(!tree.path(&name).exists());
    }
}
