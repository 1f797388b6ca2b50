//! The sysctls of a sandbox's own namespaces, compared with what was set there.
//!
//! They are compared with what the kernel showed after writing them, which may differ from the written text (`0x10`, ranges,
//! clamped values).

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::names::PAUSE;
use super::super::{Inner, Sandbox};
use crate::spec::Network;
use crate::{Error, JournalWriter, Result, cgroup, sysctl};
use podwright_sys::process::{NEWIPC, NEWNET, namespace_of};
use podwright_sys::{Kernel, SysResult};

type Files = Vec<(PathBuf, String)>;

pub fn mend(inner: &Inner, _: &Kernel, sandbox: &Sandbox) -> Result<Vec<String>> {
    let mut namespaces = Vec::new();
    let (files, known, ipc) = {
        let state = sandbox.state();
        let spec = &state.record.spec;
        if !state.ready() || spec.sysctls.is_empty() {
            return Ok(Vec::new());
        }
        if spec.network == Network::New {
            let Some(netns) = &state.netns else { return Ok(Vec::new()) };
            namespaces.push((netns.try_clone().map_err(|e| Error::Kernel(format!("dup: {e}")))?, NEWNET));
        }
        let ipc = (!spec.host_ipc).then(|| (state.pid, inner.tree.path(&spec.cgroup.child(PAUSE))));
        // A thread cannot join a user namespace: it reads from here.
        (sysctl::from_outside(sysctl::files(spec)?, spec.users), state.sysctls.clone(), ipc)
    };
    if let Some((pid, cgroup)) = ipc {
        namespaces.push((own(pid, "ipc", &cgroup)?, NEWIPC));
    }
    // Namespaces are per thread: this thread ends with the check.
    let looked = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || look(&namespaces, &files, known));
        thread.map(|thread| thread.join())
    });
    let looked = looked.map_err(|e| Error::Kernel(format!("a thread in a sandbox's namespaces: {e}")))?;
    let (mended, shown) = looked.map_err(|_| Error::Kernel("a thread in a sandbox's namespaces failed".into()))??;
    sandbox.state().sysctls = Some(shown);
    Ok(mended.into_iter().map(|name| format!("{name} of sandbox {}", sandbox.id)).collect())
}

/// A namespace of the sandbox's first process, if it is not our own and the process is alone in this cgroup: otherwise its pid has
/// been reused.
fn own(pid: u32, kind: &str, cgroup: &Path) -> Result<OwnedFd> {
    let failed = |e| Error::Kernel(format!("the {kind} namespace of process {pid}: {e}"));
    let namespace = namespace_of(pid, kind).map_err(failed)?;
    let inode = |file: &std::fs::File| file.metadata().map(|found| found.ino());
    let theirs = std::fs::File::from(namespace);
    let ours = std::fs::File::from(namespace_of(std::process::id(), kind).map_err(failed)?);
    // Checked afterwards: a process that has that pid and is there now has had it since the sandbox's start.
    let is_its =
        inode(&theirs).map_err(failed)? != inode(&ours).map_err(failed)? && cgroup::procs(cgroup).contains(&pid);
    match is_its {
        true => Ok(theirs.into()),
        false => Err(failed(std::io::ErrorKind::NotFound.into())),
    }
}

/// Runs in its own thread. Returns the names of restored sysctls, and what the kernel shows now.
fn look(
    namespaces: &[(OwnedFd, u64)],
    files: &Files,
    known: Option<Vec<String>>,
) -> Result<(Vec<String>, Vec<String>)> {
    let kernel = Kernel::new(&JournalWriter::none());
    namespaces.iter().try_for_each(|(fd, kind)| kernel.setns(fd.as_fd(), *kind, "of a sandbox"))?;
    Ok(put_back(&kernel, Path::new("/proc"), files, known)?)
}

fn put_back(
    kernel: &Kernel,
    proc: &Path,
    files: &Files,
    known: Option<Vec<String>>,
) -> SysResult<(Vec<String>, Vec<String>)> {
    let shown = |path: &Path| words(&std::fs::read_to_string(proc.join(path)).unwrap_or_default());
    let before: Vec<String> = files.iter().map(|(path, _)| shown(path)).collect();
    let wanted = known.unwrap_or_else(|| files.iter().map(|(_, text)| words(text)).collect());
    let (mut mended, mut after) = (Vec::new(), before.clone());
    for (at, (path, text)) in files.iter().enumerate().filter(|(at, _)| before[*at] != wanted[*at]) {
        kernel.write(&proc.join(path), text)?;
        after[at] = shown(path);
        if after[at] != before[at] {
            mended.push(path.display().to_string());
        }
    }
    Ok((mended, after))
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_put_back_and_what_the_kernel_writes_otherwise_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (kernel, put) = (Kernel::new(&JournalWriter::none()), |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        });
        let files: Files = vec![("range".into(), "0 1000".to_owned()), ("most".into(), "0x10".to_owned())];
        put("range", "0\t1000\n");
        put("most", "16\n");
        let look = |known| put_back(&kernel, folder.path(), &files, known).unwrap();
        // Simulates a kernel that shows 16 after writing 0x10: here it is a file, which shows the written text.
        let (mended, shown) = look(Some(vec!["0 1000".to_owned(), "16".to_owned()]));
        assert_eq!((mended, &shown[..]), (vec![], &["0 1000".to_owned(), "16".to_owned()][..]));
        put("range", "5\t7\n");
        let (mended, now) = look(Some(shown.clone()));
        assert_eq!((mended, &now), (vec!["range".to_owned()], &shown));
        // The first check only has the specification.
        put("range", "5 7");
        let (mended, now) = look(None);
        assert_eq!((mended.len(), &now[..]), (2, &["0 1000".to_owned(), "0x10".to_owned()][..]));
        assert_eq!(look(Some(now)).0, [""; 0]);
    }

    /// A process has the pid of the sandbox's first one, in namespaces that are not ours: it is not accepted outside its cgroup.
    #[test]
    fn a_namespace_is_taken_of_the_sandboxs_own_process_alone() {
        let mut child = std::process::Command::new("unshare").args(["--ipc", "sleep", "1000"]).spawn().unwrap();
        let ours = namespace_inode(std::process::id());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while namespace_inode(child.id()) == ours
            && std::time::Instant::now() < until
            && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        if child.try_wait().unwrap().is_some() {
            return println!("left out: this user makes no namespaces");
        }
        let cgroup = tempfile::tempdir().unwrap();
        let of = |pids: &str| {
            std::fs::write(cgroup.path().join("cgroup.procs"), pids).unwrap();
            own(child.id(), "ipc", cgroup.path()).map(drop).map_err(|why| why.to_string())
        };
        let (alone, another, nobody) = (of(&format!("{}\n", child.id())), of("1\n"), of(""));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(alone, Ok(()));
        for refused in [another, nobody] {
            assert!(refused.as_ref().is_err_and(|why| why.contains("ipc namespace")), "{refused:?}");
        }
    }

    fn namespace_inode(pid: u32) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{pid}/ns/ipc")).ok()
    }
}
