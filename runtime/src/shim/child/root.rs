//! A container's root: built from the host's side, mount by mount, each onto a descriptor opened inside it.
//!
//! What depends on the container's PID namespace (procfs, and mounts on it) is completed once its first process exists, also from
//! outside: with `pidns` of Linux 6.17, or by a helper that lives in there for one mount.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, makedev};

use super::may_cover_proc;
use super::stdio::{NULL, null_tmpfs};
use super::users::{Users, host_id};
use super::{procfs, refused};
use crate::fork::Child;
use crate::protocol::{ContainerPlan, DevicePlan, Failure, Idmap, MountKind, MountPlan};
use podwright_sys::fs::{Node, PROC, SYSFS, clean, is_device, is_of};
use podwright_sys::{Kernel, SysResult, mount};

pub struct Root<'a> {
    child: Child,
    plan: &'a ContainerPlan,
    users: Option<Users<'a>>,
    mount: OwnedFd,
    /// Mounts waiting for the PID namespace; bind sources are open already.
    late: Vec<(&'a MountPlan, Option<OwnedFd>)>,
    /// Null devices to mask files with: private to the container, not the machine's.
    nulls: VecDeque<OwnedFd>,
}

impl<'a> Root<'a> {
    /// Builds the root in the caller's (new) mount namespace. With `users`, what it makes from then on belongs to their root.
    pub fn build(
        kernel: &Kernel,
        child: Child,
        plan: &'a ContainerPlan,
        users: Option<Users<'a>>,
    ) -> Result<Root<'a>, Failure> {
        // Bind sources are cloned before our copies of the host's mounts stop being their peers: so `rshared` can be had.
        let mut binds: VecDeque<Option<OwnedFd>> = VecDeque::with_capacity(plan.mounts.len());
        for mount in &plan.mounts {
            binds.push_back(match &mount.what {
                MountKind::Bind { source, recursive } => Some(kernel.clone_tree(source, *recursive)?),
                MountKind::Fs { .. } => None,
            });
        }
        kernel.propagate_root(mount::SLAVE)?;
        let mount = root_mount(kernel, plan, users)?;
        let nulls = nulls(kernel, &plan.root.dir, plan.masked_paths.len())?;
        if let Some(users) = users {
            kernel.make_files_as(users.host(0), users.host(0))?;
        }
        let mut root = Root { child, plan, users, mount, late: Vec::new(), nulls };
        kernel.attach_at(root.fd(), &plan.root.dir)?;
        for (mount, bind) in plan.mounts.iter().zip(binds) {
            match root.is_late(&mount.target) || is_proc(mount) {
                true => root.late.push((mount, bind)),
                false => root.attach(kernel, mount, bind, None)?,
            }
        }
        if plan.standard_devices {
            standard_devices(kernel, root.fd())?;
        }
        for device in &plan.devices {
            make_device(kernel, root.fd(), device, users)?;
        }
        Ok(root)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Whether this path is on a mount that does not exist yet.
    fn is_late(&self, path: &Path) -> bool {
        self.late.iter().any(|(mount, _)| path.starts_with(&mount.target))
    }

    /// Creates a missing folder (the working directory), unless it is on a later mount.
    pub fn make_folder(&self, kernel: &Kernel, path: &Path) -> Result<(), Failure> {
        if self.is_late(path) {
            return Ok(());
        }
        let made = kernel.make_inside(self.fd(), path, true).map_err(|e| match e.errno() {
            libc::ENOTDIR | libc::EEXIST | libc::ENOENT => {
                refused(format!("mkdir {}: not a directory", path.display()))
            }
            libc::EROFS => refused(format!("mkdir {}: read-only file system", path.display())),
            _ => refused(format!("mkdir {}: {}", path.display(), e.source)),
        })?;
        match is_folder(made.as_fd()) {
            true => Ok(()),
            false => Err(refused(format!("mkdir {}: not a directory", path.display()))),
        }
    }

    /// Does the mounts waiting for the container's PID namespace, that of `process` or else our own; then the masks.
    pub fn complete(&mut self, kernel: &Kernel, process: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        for (mount, bind) in std::mem::take(&mut self.late) {
            self.attach(kernel, mount, bind, process)?;
        }
        for path in &self.plan.readonly_paths {
            self.read_only(kernel, path)?;
        }
        for path in &self.plan.masked_paths {
            self.mask(kernel, path)?;
        }
        Ok(())
    }

    fn attach(
        &self,
        kernel: &Kernel,
        plan: &MountPlan,
        bind: Option<OwnedFd>,
        pids: Option<BorrowedFd<'_>>,
    ) -> Result<(), Failure> {
        let shown = plan.target.display();
        let mount = match (&plan.what, bind) {
            (MountKind::Fs { fstype, options }, _) => {
                let target = self.system_target(kernel, fstype, &plan.target)?;
                let options = owned_options(options, self.users);
                let options: Vec<_> = options.iter().map(|(k, v)| (*k, v.as_deref())).collect();
                match (fstype.as_str(), target, pids) {
                    ("proc", Some(target), Some(pids)) => {
                        let proc = procfs::of(kernel, self.child.forker(), &options, plan.set, pids)?;
                        return Ok(kernel.attach(proc.as_fd(), target.as_fd(), &plan.target)?);
                    }
                    (_, target, _) => {
                        let mount = kernel.new_fs(fstype, &options, plan.set)?;
                        give_to_root(kernel, mount.as_fd(), fstype, self.users)?;
                        if let Some(target) = target {
                            return Ok(kernel.attach(mount.as_fd(), target.as_fd(), &plan.target)?);
                        }
                        mount
                    }
                }
            }
            (MountKind::Bind { source, recursive }, bind) => {
                let tree = match bind {
                    Some(tree) => tree,
                    None => kernel.clone_tree(source, *recursive)?,
                };
                if let (Some(idmap), Some(users)) = (plan.idmap, self.users) {
                    kernel.idmap(tree.as_fd(), idmap == Idmap::Recursive, users.namespace, &plan.target)?;
                }
                // A file has no mounts below it.
                if plan.recursive_attrs || !is_folder(tree.as_fd()) {
                    kernel.set_attrs(tree.as_fd(), true, plan.set, plan.clear, plan.propagation)?;
                } else {
                    kernel.set_attrs(tree.as_fd(), false, plan.set, plan.clear, 0)?;
                    kernel.set_attrs(tree.as_fd(), true, 0, 0, plan.propagation)?;
                }
                if plan.target == Path::new("/proc") && !is_of(tree.as_fd(), PROC) {
                    return Err(refused(format!("{shown:?} cannot be mounted because it is not of type proc")));
                }
                tree
            }
        };
        let target = kernel.make_inside(self.fd(), &plan.target, is_folder(mount.as_fd()))?;
        // Wherever an image's symlinks lead: only permitted mounts cover parts of /proc.
        if is_of(target.as_fd(), PROC) && plan.target != Path::new("/proc") && !may_cover_proc(&plan.target) {
            return Err(refused(format!("{shown:?} cannot be mounted because it is inside /proc")));
        }
        Ok(kernel.attach(mount.as_fd(), target.as_fd(), &plan.target)?)
    }

    /// The target for procfs and sysfs: a folder at exactly this path (CVE-2019-19921, CVE-2023-27561).
    fn system_target(&self, kernel: &Kernel, fstype: &str, path: &Path) -> Result<Option<OwnedFd>, Failure> {
        if !matches!(fstype, "proc" | "sysfs") {
            return Ok(None);
        }
        let other = || refused(format!("filesystem {fstype:?} must be mounted on ordinary directory"));
        let found = match kernel.find_plain(self.fd(), path) {
            Err(e) if e.errno() == libc::ELOOP => return Err(other()),
            found => found?,
        };
        let target = match found {
            Some(target) => target,
            None => kernel.make_inside(self.fd(), path, true)?,
        };
        if is_folder(target.as_fd()) { Ok(Some(target)) } else { Err(other()) }
    }

    /// A path to be masked, if it exists: the path itself, not the target of a symlink, and on the expected filesystem. One missing
    /// in this kernel or image needs no protection.
    fn covered(&self, kernel: &Kernel, path: &Path) -> Result<Option<OwnedFd>, Failure> {
        let found = match kernel.find_plain(self.fd(), path) {
            Err(e) if e.errno() == libc::ELOOP => {
                return Err(refused(format!("{} is to be covered, and is a symlink", path.display())));
            }
            found => found?,
        };
        let Some(target) = found else { return Ok(None) };
        let given = |at: &Path| self.plan.mounts.iter().find(|m| m.target == at);
        let expected = [("/proc", PROC), ("/sys", SYSFS)];
        let expected = expected.iter().find(|(at, _)| path.starts_with(at) && !path.starts_with("/sys/fs"));
        if let Some((at, magic)) = expected
            && given(Path::new(at)).is_some_and(|m| matches!(m.what, MountKind::Fs { .. }))
            && given(path).is_none()
            && !is_of(target.as_fd(), *magic)
        {
            return Err(refused(format!("{} is to be covered, and is not of {at}", path.display())));
        }
        Ok(Some(target))
    }

    fn read_only(&self, kernel: &Kernel, path: &Path) -> Result<(), Failure> {
        let Some(target) = self.covered(kernel, path)? else { return Ok(()) };
        let tree = kernel.clone_tree_of(target.as_fd(), path, true)?;
        kernel.set_attrs(tree.as_fd(), true, mount::ATTR_RDONLY, 0, 0)?;
        Ok(kernel.attach(tree.as_fd(), target.as_fd(), path)?)
    }

    fn mask(&mut self, kernel: &Kernel, path: &Path) -> Result<(), Failure> {
        let Some(target) = self.covered(kernel, path)? else { return Ok(()) };
        let cover = match is_folder(target.as_fd()) {
            true => kernel.new_fs("tmpfs", &[("size", Some("0")), ("nr_inodes", Some("2"))], mount::ATTR_RDONLY)?,
            false => self.nulls.pop_front().ok_or_else(|| refused("more masks than null devices"))?,
        };
        Ok(kernel.attach(cover.as_fd(), target.as_fd(), path)?)
    }
}

fn is_proc(plan: &MountPlan) -> bool {
    matches!(&plan.what, MountKind::Fs { fstype, .. } if fstype == "proc")
}

fn is_folder(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory)
}

/// A filesystem's options, with ids translated to the host.
fn owned_options<'o>(
    options: &'o [(String, Option<String>)],
    users: Option<Users<'_>>,
) -> Vec<(&'o str, Option<Cow<'o, str>>)> {
    let on_host = |key: &str, value: &'o str| match (users, value.parse::<u32>()) {
        (Some(users), Ok(id)) if matches!(key, "uid" | "gid") => Cow::Owned(users.host(id).to_string()),
        _ => Cow::Borrowed(value),
    };
    options.iter().map(|(key, value)| (key.as_str(), value.as_deref().map(|value| on_host(key, value)))).collect()
}

/// The initial files of an in-memory filesystem belong to the host's root: gives them to the root of `users`.
fn give_to_root(kernel: &Kernel, mount: BorrowedFd<'_>, fstype: &str, users: Option<Users<'_>>) -> SysResult<()> {
    let Some(users) = users else { return Ok(()) };
    let names: &[&str] = match fstype {
        "mqueue" => &[""],
        "devpts" => &["", "ptmx"],
        _ => &[],
    };
    names.iter().try_for_each(|name| kernel.chown_in(mount, name, users.host(0), users.host(0)))
}

/// The image's layers are idmapped for `users`, each separately, without changing the disk. Written files belong to them.
fn root_mount(kernel: &Kernel, plan: &ContainerPlan, users: Option<Users<'_>>) -> SysResult<OwnedFd> {
    let root = &plan.root;
    if !root.layers.is_empty() {
        if let Some(users) = users {
            for layer in &root.layers {
                let tree = kernel.clone_tree(layer, false)?;
                kernel.idmap(tree.as_fd(), false, users.namespace, layer)?;
                kernel.attach_at(tree.as_fd(), layer)?;
            }
            for folder in [&root.upper, &root.work] {
                let folder = kernel.open_path(folder)?;
                kernel.chown_in(folder.as_fd(), "", users.host(0), users.host(0))?;
            }
        }
        return kernel.overlay(&root.layers, &root.upper, &root.work, &root.dir);
    }
    let tree = kernel.clone_tree(&root.dir, true)?;
    if let Some(users) = users {
        kernel.idmap(tree.as_fd(), true, users.namespace, &root.dir)?;
    }
    kernel.set_attrs(tree.as_fd(), true, 0, 0, mount::PRIVATE)?;
    Ok(tree)
}

/// This many binds of one new, verified null device. `scratch` is where the root will be mounted over it; it disappears with the
/// host's mounts: before Linux 6.15 a detached mount cannot be cloned, and a separate unmount would wait for all CPUs.
fn nulls(kernel: &Kernel, scratch: &Path, count: usize) -> Result<VecDeque<OwnedFd>, Failure> {
    if count == 0 {
        return Ok(VecDeque::new());
    }
    let tmpfs = null_tmpfs(kernel)?;
    kernel.attach_at(tmpfs.as_fd(), scratch)?;
    let open = || {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let null = rustix::fs::openat(&tmpfs, "null", flags, Mode::empty())?;
        match is_device(null.as_fd(), NULL.0, NULL.1) {
            true => Ok(null),
            false => Err(std::io::Error::other("not the null device")),
        }
    };
    let null = kernel.op("open", |a| a.text("null"), open)?;
    Ok(kernel.clones_of(null.as_fd(), Path::new("null"), count)?.into())
}

fn standard_devices(kernel: &Kernel, root: BorrowedFd<'_>) -> SysResult<()> {
    const NODES: [(&str, u32, u32); 6] =
        [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
    const LINKS: [(&str, &str); 6] = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
        ("core", "/proc/kcore"),
    ];
    let dev = kernel.make_inside(root, Path::new("/dev"), true)?;
    let node = |(name, major, minor)| {
        let (kind, dev) = (FileType::CharacterDevice, makedev(major, minor));
        Node { name, kind, mode: 0o666, dev, owner: (0, 0) }
    };
    kernel.mknod_in(dev.as_fd(), &NODES.map(node))?;
    let links = if PathBuf::from("/proc/kcore").exists() { &LINKS[..] } else { &LINKS[..5] };
    kernel.symlink_in(dev.as_fd(), links)
}

fn make_device(kernel: &Kernel, root: BorrowedFd<'_>, plan: &DevicePlan, users: Option<Users<'_>>) -> SysResult<()> {
    let path = clean(&plan.path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let folder = kernel.make_inside(root, parent, true)?;
    let kind = match plan.kind {
        'b' => FileType::BlockDevice,
        'p' => FileType::Fifo,
        _ => FileType::CharacterDevice,
    };
    let range = users.map(|users| users.range);
    let (dev, owner) = (makedev(plan.major, plan.minor), (host_id(range, plan.uid), host_id(range, plan.gid)));
    kernel.mknod_in(folder.as_fd(), &[Node { name: &name.to_string_lossy(), kind, mode: plan.mode, dev, owner }])
}
