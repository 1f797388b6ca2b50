//! Projects of folders: a file system with project quotas counts what is in a folder, without a walk.
//!
//! ```text
//!   give([upper, work])   a new, empty folder: into an unused project   ->  FS_IOC_FSSETXATTR, PROJINHERIT
//!   usage([upper, work])  its project's usage, including deleted files that are still open  ->  Q_GETQUOTA
//! ```
//!
//! The file system itself is the allocation table: a folder stores its project, and a project with any inode is in use. So no state
//! must be kept for a restarted agent, and a project is free when its last inode is. (Upstream uses `/etc/projects` and
//! `/etc/projid`; projects registered there count as used, too.) A Pod's scratch space is only monitored, as upstream; a claim's
//! volume is limited in size by [`limit`].
//!
//! This relies on files keeping their project. A file's owner can change it, unless in a user namespace: projects are only reliable
//! for sandboxes with user namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Result as IoResult};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::fstat;

use podwright_sys::quota::{self, Project, Tally};
use podwright_sys::walk::Measure;
use podwright_sys::{Kernel, SysResult};

/// The projects to allocate: far above those commonly used in `/etc/projid`, and kubelet's (from 1048576 on).
pub const IDS: Range<u32> = 0x5000_0000..0x5010_0000;
/// Maximum attempts. Used ones are sparse: the first candidate is derived from the inode, which is unique in a file system.
const TRIES: u32 = 64;

/// Checks that the contents of this folder can be counted by projects. Fails with the reason.
pub fn supported(folder: &Path) -> Result<(), String> {
    let at = |why: String| format!("{}: {why}", folder.display());
    let open = quota::open(folder).map_err(|e| at(e.to_string()))?;
    let counts = quota::counts_projects(open.as_fd()).and_then(|()| quota::project(open.as_fd()));
    match counts {
        Err(e) => Err(at(quota::why_not(&e))),
        Ok(project) if project != Project::default() => Err(at(format!("it is in project {} itself", project.id))),
        Ok(_) => Ok(()),
    }
}

/// Puts new, empty folders of one file system into one project: `of`, if given, or else an unused one. Everything created in them
/// belongs to it. Returns whether it did: not if their file system has no project quotas, or if they are in a project already,
/// inherited from a parent folder of someone else.
///
/// # Errors
///
/// Some of the folders are in the project and the others are not.
pub fn give(kernel: &Kernel, paths: &[&Path], of: Option<u32>) -> SysResult<bool> {
    let Some((folders, begin)) = takers(paths) else { return Ok(false) };
    let taken = registered(&text("/etc/projects"), &text("/etc/projid"));
    let candidates: Vec<u32> = match of {
        Some(id) => vec![id],
        None => candidates(begin, &taken).collect(),
    };
    // Two concurrent searches would find the same one free.
    static GIVING: Mutex<()> = Mutex::new(());
    let _turn = GIVING.lock().unwrap_or_else(PoisonError::into_inner);
    for id in candidates {
        let held = |folder: &OwnedFd| quota::tally(folder.as_fd(), id);
        if of.is_none() && !held(&folders[0]).is_ok_and(|tally| tally.is_unused()) {
            continue;
        }
        if let Err(error) = put(kernel, paths, &folders, Project { id, inherited: true }) {
            tracing::warn!(%error, "failed to assign a directory to a project");
            put(kernel, paths, &folders, Project::default())?;
            return Ok(false);
        }
        // Another agent on this file system may have searched concurrently.
        let alone = Tally { inodes: folders.len() as u64, ..Tally::default() };
        if of.is_some() || held(&folders[0]).is_ok_and(|tally| Tally { bytes: 0, ..tally } == alone) {
            return Ok(true);
        }
        put(kernel, paths, &folders, Project::default())?;
    }
    tracing::warn!(folder = %paths[0].display(), "no project ID is free");
    Ok(false)
}

/// The project of a folder.
pub fn of(path: &Path) -> Option<u32> {
    let project = quota::open(path).and_then(|folder| quota::project(folder.as_fd())).ok()?;
    is_ours(project).then_some(project.id)
}

/// The usage of these folders' projects; missing folders count as empty. `None`: one of them has no project.
pub fn usage(paths: &[PathBuf]) -> IoResult<Option<Measure>> {
    let (mut sum, mut seen) = (Measure::default(), BTreeSet::new());
    for path in paths {
        let folder = match quota::open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        let Some(project) = quota::project(folder.as_fd()).ok().filter(|project| is_ours(*project)) else {
            return Ok(None);
        };
        if seen.insert(project.id) {
            let tally = quota::tally(folder.as_fd(), project.id)?;
            sum += Measure { bytes: tally.bytes, inodes: tally.inodes, ..Measure::default() };
        }
    }
    Ok(Some(sum))
}

/// Checks that the size of this folder can be limited. Fails with the reason.
pub fn enforced(folder: &Path) -> Result<(), String> {
    supported(folder)?;
    let at = |why: String| format!("{}: {why}", folder.display());
    let open = quota::open(folder).map_err(|e| at(e.to_string()))?;
    match quota::limits_projects(open.as_fd()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(at("its file system counts what projects hold, and limits nothing".to_owned())),
        Err(e) => Err(at(quota::why_not(&e))),
    }
}

/// Limits the size of a folder with a project; `None`: removes the limit. Returns whether the limit is in force: not for a folder
/// without a project. Writes nothing if it is already set.
pub fn limit(kernel: &Kernel, path: &Path, bytes: Option<u64>) -> SysResult<bool> {
    let Ok(folder) = quota::open(path) else { return Ok(false) };
    let Some(project) = quota::project(folder.as_fd()).ok().filter(|project| is_ours(*project)) else {
        return Ok(false);
    };
    let wanted = bytes.map_or(0, |bytes| bytes.div_ceil(1024).max(1).saturating_mul(1024));
    if !quota::tally(folder.as_fd(), project.id).is_ok_and(|tally| tally.limit == wanted) {
        kernel.set_limit(folder.as_fd(), path, project.id, bytes)?;
    }
    Ok(true)
}

fn is_ours(project: Project) -> bool {
    project.inherited && IDS.contains(&project.id)
}

/// The opened folders, if their file system supports projects and they have none, and the first candidate to try.
fn takers(paths: &[&Path]) -> Option<(Vec<OwnedFd>, u64)> {
    let folders: Vec<OwnedFd> = paths.iter().map(|path| quota::open(path)).collect::<IoResult<_>>().ok()?;
    let first = folders.first()?;
    quota::counts_projects(first.as_fd()).ok()?;
    let is_free = |folder: &OwnedFd| quota::project(folder.as_fd()).is_ok_and(|project| project == Project::default());
    let begin = fstat(first).ok()?.st_ino;
    folders.iter().all(is_free).then_some((folders, begin))
}

fn put(kernel: &Kernel, paths: &[&Path], folders: &[OwnedFd], project: Project) -> SysResult<()> {
    folders.iter().zip(paths).try_for_each(|(folder, path)| kernel.set_project(folder.as_fd(), path, project))
}

/// Projects in the order of attempts. Pure.
fn candidates(begin: u64, taken: &BTreeSet<u32>) -> impl Iterator<Item = u32> {
    let count = IDS.end - IDS.start;
    // Invariant: the remainder of a division by a u32 fits one.
    let begin = (begin % u64::from(count)) as u32;
    let all = (0..TRIES).map(move |step| IDS.start + (begin + step) % count);
    all.filter(|id| !taken.contains(id))
}

/// The ids in projects(5) (`ID:PATH`) and projid(5) (`NAME:ID`). Pure.
fn registered(projects: &str, projid: &str) -> BTreeSet<u32> {
    let field = |line: &str, at: usize| line.split(':').nth(at)?.trim().parse().ok();
    let first = projects.lines().filter_map(|line| field(line, 0));
    first.chain(projid.lines().filter_map(|line| field(line, 1))).collect()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JournalWriter;

    #[test]
    fn ids_come_from_the_range_and_are_nobody_elses() {
        let taken = registered("# ours\n1342177285:/srv\n42:/home\n", "srv:1342177286\nbroken\n:\nx:y\n");
        assert_eq!(taken, BTreeSet::from([42, IDS.start + 5, IDS.start + 6]));
        let ids: Vec<u32> = candidates(3, &taken).collect();
        assert_eq!(ids[..4], [3, 4, 7, 8].map(|n| IDS.start + n));
        assert_eq!(ids.len(), TRIES as usize - 2);
        // It wraps around at the end, and inodes may be any number.
        let count = u64::from(IDS.end - IDS.start);
        let ids: Vec<u32> = candidates(u64::from(u32::MAX) * count - 2, &BTreeSet::new()).take(4).collect();
        assert_eq!(ids, [IDS.end - 2, IDS.end - 1, IDS.start, IDS.start + 1]);
        const { assert!(IDS.start > 1 << 20 && IDS.end < 1 << 31) };
    }

    #[test]
    fn a_folder_without_quotas_stays_in_no_project_and_is_not_counted() {
        // tmpfs counts at most users and groups.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().to_owned();
        assert!(supported(&path).unwrap_err().ends_with("its file system has no project quotas"));
        assert!(supported(&path.join("missing")).unwrap_err().contains("missing"));
        assert!(!give(&Kernel::new(&JournalWriter::none()), &[&path], None).unwrap());
        assert_eq!(of(&path), None);
        assert_eq!(usage(std::slice::from_ref(&path)).unwrap(), None);
        assert_eq!(usage(&[path.join("missing")]).unwrap(), Some(Measure::default()));
    }
}
