//! What a child of the shim does between clone3 and execve. Runs in the child; talks to the shim over one socket.
//!
//! The child says [`READY`] (with the pty's master, if it made one), a container's first process then waits for one byte,
//! and either the socket closes by itself (execve succeeded: it is close-on-exec) or the child sends [`FAILED`] with a
//! [`Failure`] and exits.

use std::convert::Infallible;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, makedev};

use crate::StartFailure;
use crate::plan::{
    ContainerPlan, DevicePlan, ExecPlan, Failure, FailureKind, MountKind, MountPlan, ProcessPlan, SandboxPlan,
};
use crate::sys::credentials::CapSets;
use crate::sys::fs::{Node, clean};
use crate::sys::{self, Kernel, SysResult, io, mount, own, process};

pub const READY: u8 = b'r';
pub const FAILED: u8 = b'f';

/// The pause program, built by build.rs.
pub const PAUSE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));
/// Who `pause` is: upstream's pause image runs as this too.
const PAUSE_USER: u32 = 65535;

/// Everything that a child takes with it.
pub struct Birth<'a> {
    pub kernel: Kernel,
    pub sync: OwnedFd,
    /// stdin, stdout, stderr; without a terminal. A missing one is /dev/null.
    pub stdio: [Option<OwnedFd>; 3],
    pub seccomp: &'a [OwnedFd],
}

/// The life of `pause` until it is executed: its namespaces are new already.
pub fn sandbox(birth: Birth<'_>, plan: &SandboxPlan, net: Option<OwnedFd>, pause: &OwnedFd) -> Infallible {
    let kernel = birth.kernel.clone();
    let prepare = || -> SysResult<()> {
        own::become_child();
        if let Some(net) = net {
            kernel.setns(net.as_fd(), process::NEWNET, "of the node")?;
        }
        if plan.new_net {
            kernel.loopback_up()?;
        }
        if !plan.hostname.is_empty() {
            kernel.sethostname(&plan.hostname)?;
        }
        for (name, value) in &plan.sysctls {
            kernel.write(&Path::new("/proc/sys").join(name.replace('.', "/")), value)?;
        }
        // Its /proc/1/root is within reach of the containers if they share its PID namespace: leave it nothing there.
        if plan.new_pid {
            empty_root(&kernel)?;
        }
        kernel.bound_capabilities(0)?;
        kernel.set_user(PAUSE_USER, PAUSE_USER, &[])?;
        kernel.set_capabilities(&CapSets::default())?;
        kernel.no_new_privs()
    };
    let failure = match prepare() {
        Ok(()) => {
            for number in 0..3 {
                let _ = birth.stdio[0].as_ref().map(|null| io::dup_to(null.as_fd(), number));
            }
            let _ = own::close_on_exec_from(3);
            let error = kernel.execve_fd(pause.as_fd(), "pause");
            Failure::new(FailureKind::Kernel, format!("execveat(pause): {error}"))
        }
        Err(e) => e.into(),
    };
    fail(&birth, &failure)
}

/// A `/` that is one empty read-only tmpfs, in a mount namespace of its own.
fn empty_root(kernel: &Kernel) -> SysResult<()> {
    kernel.unshare(process::NEWNS)?;
    kernel.propagate_root(mount::PRIVATE)?;
    let attrs = mount::ATTR_RDONLY | mount::ATTR_NODEV | mount::ATTR_NOSUID | mount::ATTR_NOEXEC;
    let root = kernel.new_fs("tmpfs", &[("size", Some("4k"))], attrs)?;
    kernel.attach_at(root.as_fd(), Path::new("/proc"))?;
    kernel.pivot_root(root.as_fd())
}

/// The life of a container's first process:
/// 1. join the sandbox's namespaces, 2. build its root and enter it, 3. say that it is ready and wait for the start,
/// 4. take its limits, user and filters, and execute.
pub fn container(birth: Birth<'_>, plan: &ContainerPlan, sandbox: Option<(BorrowedFd<'_>, u64)>) -> Infallible {
    let kernel = birth.kernel.clone();
    let prepare = || -> Result<Option<OwnedFd>, Failure> {
        own::become_child();
        if let Some((pause, namespaces)) = sandbox.filter(|(_, namespaces)| *namespaces != 0) {
            kernel.setns(pause, namespaces, "of pause")?;
        }
        kernel.unshare(process::NEWCGROUP)?;
        adjust_oom_score(&kernel, &plan.process);
        let root = build_root(&kernel, plan)?;
        let _ = kernel.make_inside(root.as_fd(), &plan.process.cwd, true);
        let attrs = [(plan.root.readonly, mount::ATTR_RDONLY), (plan.root.nodev, mount::ATTR_NODEV)];
        let attrs: u64 = attrs.iter().filter(|(wanted, _)| *wanted).map(|(_, attr)| attr).sum();
        if attrs != 0 {
            kernel.set_attrs(root.as_fd(), false, attrs, 0, 0)?;
        }
        kernel.pivot_root(root.as_fd())?;
        Ok(connect_stdio(&kernel, &birth.stdio, &plan.process, true)?)
    };
    match prepare() {
        Ok(master) => {
            let fds: Vec<BorrowedFd<'_>> = master.iter().map(|m| m.as_fd()).collect();
            let _ = io::send(birth.sync.as_fd(), &[READY], &fds);
            drop(fds);
            drop(master);
            kernel.scribe.flush();
            let mut go = [0u8; 1];
            // The shim died, or gave up: nobody will ever start us.
            if io::receive(birth.sync.as_fd(), &mut go, &mut Vec::new()).unwrap_or(0) == 0 {
                process::exit(1);
            }
            let failure = execute(&kernel, &plan.process, birth.seccomp);
            fail(&birth, &failure)
        }
        Err(failure) => fail(&birth, &setup(failure)),
    }
}

/// The life of an exec'd process: join the container's namespaces (its mounts last, and all at once), then execute.
pub fn exec(birth: Birth<'_>, plan: &ExecPlan, target: BorrowedFd<'_>) -> Infallible {
    let kernel = birth.kernel.clone();
    let prepare = || -> Result<Option<OwnedFd>, Failure> {
        own::become_child();
        adjust_oom_score(&kernel, &plan.process);
        let all = process::NEWNS | process::NEWNET | process::NEWIPC | process::NEWUTS | process::NEWCGROUP;
        kernel.setns(target, all, "of the container")?;
        Ok(connect_stdio(&kernel, &birth.stdio, &plan.process, false)?)
    };
    let failure = match prepare() {
        Ok(master) => {
            if let Some(master) = master {
                let _ = io::send(birth.sync.as_fd(), &[READY], &[master.as_fd()]);
            }
            execute(&kernel, &plan.process, birth.seccomp)
        }
        Err(failure) => setup(failure),
    };
    fail(&birth, &failure)
}

fn setup(failure: Failure) -> Failure {
    let message = format!("unable to start container process: error during container init: {}", failure.message);
    Failure::new(FailureKind::Start(StartFailure::Setup), message)
}

fn fail(birth: &Birth<'_>, failure: &Failure) -> ! {
    // First: whoever learns of it may ask how it came.
    birth.kernel.scribe.flush();
    let mut message = vec![FAILED];
    let _ = serde_json::to_writer(&mut message, failure);
    let _ = io::send(birth.sync.as_fd(), &message, &[]);
    process::exit(1)
}

/// Lowering it needs a privilege that an agent in a container may lack; then the journal has the refusal.
fn adjust_oom_score(kernel: &Kernel, plan: &ProcessPlan) {
    let score = plan.oom_score_adj.unwrap_or(0);
    let _ = kernel.write(Path::new("/proc/self/oom_score_adj"), &score.to_string());
}

/// Builds the container's root in the (new) mount namespace and returns the mount.
fn build_root(kernel: &Kernel, plan: &ContainerPlan) -> SysResult<OwnedFd> {
    // Bind sources are cloned before our copies of the host's mounts stop being their peers: so `rshared` can be had.
    let mut binds: Vec<Option<OwnedFd>> = Vec::with_capacity(plan.mounts.len());
    for mount in &plan.mounts {
        binds.push(match &mount.what {
            MountKind::Bind { source, recursive } => Some(kernel.clone_tree(source, *recursive)?),
            MountKind::Fs { .. } => None,
        });
    }
    // Opened, not cloned: before Linux 6.15 what is detached cannot be cloned again.
    let null = kernel.open_path(Path::new("/dev/null"))?;
    kernel.propagate_root(mount::SLAVE)?;
    let root = root_mount(kernel, plan)?;
    kernel.attach_at(root.as_fd(), &plan.root.dir)?;
    for (mount, bind) in plan.mounts.iter().zip(binds) {
        attach(kernel, root.as_fd(), mount, bind)?;
    }
    if plan.standard_devices {
        standard_devices(kernel, root.as_fd())?;
    }
    for device in &plan.devices {
        make_device(kernel, root.as_fd(), device)?;
    }
    for path in &plan.readonly_paths {
        read_only(kernel, root.as_fd(), path)?;
    }
    for path in &plan.masked_paths {
        mask(kernel, root.as_fd(), path, &null)?;
    }
    Ok(root)
}

fn root_mount(kernel: &Kernel, plan: &ContainerPlan) -> SysResult<OwnedFd> {
    let root = &plan.root;
    if !root.layers.is_empty() {
        return kernel.overlay(&root.layers, &root.upper, &root.work, &root.dir);
    }
    let tree = kernel.clone_tree(&root.dir, true)?;
    kernel.set_attrs(tree.as_fd(), true, 0, 0, mount::PRIVATE)?;
    Ok(tree)
}

fn attach(kernel: &Kernel, root: BorrowedFd<'_>, plan: &MountPlan, bind: Option<OwnedFd>) -> SysResult<()> {
    let mount = match (&plan.what, bind) {
        (MountKind::Fs { fstype, options }, _) => {
            let options: Vec<_> = options.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
            kernel.new_fs(fstype, &options, plan.set)?
        }
        (MountKind::Bind { source, recursive }, bind) => {
            let tree = match bind {
                Some(tree) => tree,
                None => kernel.clone_tree(source, *recursive)?,
            };
            // A file has no mounts below it.
            if plan.recursive_attrs || !is_folder(tree.as_fd()) {
                kernel.set_attrs(tree.as_fd(), true, plan.set, plan.clear, plan.propagation)?;
            } else {
                kernel.set_attrs(tree.as_fd(), false, plan.set, plan.clear, 0)?;
                kernel.set_attrs(tree.as_fd(), true, 0, 0, plan.propagation)?;
            }
            tree
        }
    };
    let folder = is_folder(mount.as_fd());
    let target = kernel.make_inside(root, &plan.target, folder)?;
    kernel.attach(mount.as_fd(), target.as_fd(), &plan.target)
}

fn is_folder(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory)
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
    let links = if Path::new("/proc/kcore").exists() { &LINKS[..] } else { &LINKS[..5] };
    kernel.symlink_in(dev.as_fd(), links)
}

fn make_device(kernel: &Kernel, root: BorrowedFd<'_>, plan: &DevicePlan) -> SysResult<()> {
    let path = clean(&plan.path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let folder = kernel.make_inside(root, parent, true)?;
    let kind = match plan.kind {
        'b' => FileType::BlockDevice,
        'p' => FileType::Fifo,
        _ => FileType::CharacterDevice,
    };
    let (dev, owner) = (makedev(plan.major, plan.minor), (plan.uid, plan.gid));
    kernel.mknod_in(folder.as_fd(), &[Node { name: &name.to_string_lossy(), kind, mode: plan.mode, dev, owner }])
}

/// A path that this kernel or image does not have needs no protection.
fn read_only(kernel: &Kernel, root: BorrowedFd<'_>, path: &Path) -> SysResult<()> {
    let Some(target) = kernel.find_inside(root, path)? else { return Ok(()) };
    let tree = kernel.clone_tree_of(target.as_fd(), path, true)?;
    kernel.set_attrs(tree.as_fd(), true, mount::ATTR_RDONLY, 0, 0)?;
    kernel.attach(tree.as_fd(), target.as_fd(), path)
}

fn mask(kernel: &Kernel, root: BorrowedFd<'_>, path: &Path, null: &OwnedFd) -> SysResult<()> {
    let Some(target) = kernel.find_inside(root, path)? else { return Ok(()) };
    let cover = match is_folder(target.as_fd()) {
        true => kernel.new_fs("tmpfs", &[("size", Some("0")), ("nr_inodes", Some("2"))], mount::ATTR_RDONLY)?,
        false => kernel.clone_tree_of(null.as_fd(), Path::new("/dev/null"), false)?,
    };
    kernel.attach(cover.as_fd(), target.as_fd(), path)
}

/// Puts stdin, stdout and stderr in place; with a terminal, makes one and returns its master.
fn connect_stdio(
    kernel: &Kernel,
    stdio: &[Option<OwnedFd>; 3],
    plan: &ProcessPlan,
    console: bool,
) -> SysResult<Option<OwnedFd>> {
    if plan.terminal {
        let (master, slave) = kernel.open_pty()?;
        if let Some(size) = plan.size {
            let _ = sys::tty::resize(slave.as_fd(), size);
        }
        own(slave.as_fd(), plan.uid, None);
        kernel.control_tty(slave.as_fd())?;
        if console {
            let here = rustix::fs::open("/", rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, 0.into());
            if let Ok(root) = here {
                let console = Path::new("/dev/console");
                let target = kernel.make_inside(root.as_fd(), console, false)?;
                let tree = kernel.clone_tree_of(slave.as_fd(), Path::new("the pty"), false)?;
                kernel.attach(tree.as_fd(), target.as_fd(), console)?;
            }
        }
        let slave = slave.as_fd();
        kernel.op("dup2", |a| a.text("the pty to 0, 1, 2"), || (0..3).try_for_each(|n| io::dup_to(slave, n)))?;
        return Ok(Some(master));
    }
    let put = |(number, fd): (i32, &Option<OwnedFd>)| {
        let fd = match fd {
            Some(fd) => fd.try_clone().ok(),
            None => fs::File::options().read(true).write(true).open("/dev/null").ok().map(OwnedFd::from),
        };
        let Some(fd) = fd else { return Ok(()) };
        // /dev/stdout is reopened by programs that run as somebody else.
        own(fd.as_fd(), plan.uid, Some(plan.gid));
        io::dup_to(fd.as_fd(), number)
    };
    kernel.op("dup2", |a| a.text("0, 1, 2"), || (0..).zip(stdio).try_for_each(put))?;
    Ok(None)
}

/// Gives a pipe or terminal to the container's user. /dev/null stays who it is.
fn own(fd: BorrowedFd<'_>, uid: u32, gid: Option<u32>) {
    use rustix::fs::{Gid, Uid, fchown, fstat};
    let pipe_or_pty = fstat(fd).is_ok_and(|s| match FileType::from_raw_mode(s.st_mode) {
        FileType::Fifo | FileType::Socket => true,
        FileType::CharacterDevice => (136..=143).contains(&rustix::fs::major(s.st_rdev)),
        _ => false,
    });
    if pipe_or_pty && uid != 0 {
        let _ = fchown(fd, Some(Uid::from_raw(uid)), gid.map(Gid::from_raw));
    }
}

/// Takes limits, user, capabilities and filters, and executes. Returns only with the failure.
fn execute(kernel: &Kernel, plan: &ProcessPlan, seccomp: &[OwnedFd]) -> Failure {
    match take_identity(kernel, plan, seccomp) {
        Err(failure) => setup(failure),
        Ok(()) => {
            let env = with_home(plan);
            match find_executable(&plan.args[0], &env) {
                Err(failure) => failure,
                Ok(path) => {
                    let _ = own::close_on_exec_from(3);
                    let error = kernel.execve(&path, &plan.args, &env);
                    exec_failure(&plan.args[0], &error)
                }
            }
        }
    }
}

fn take_identity(kernel: &Kernel, plan: &ProcessPlan, seccomp: &[OwnedFd]) -> Result<(), Failure> {
    for &(resource, soft, hard) in &plan.rlimits {
        kernel.set_rlimit(resource, soft, hard)?;
    }
    own::umask(plan.umask.unwrap_or(0o022));
    let enter = || kernel.op("chdir", |a| a.path(&plan.cwd), || std::env::set_current_dir(&plan.cwd));
    let entered = enter();
    // Without no_new_privs a filter takes CAP_SYS_ADMIN to load: so it comes first, and must allow what follows.
    if !plan.no_new_privs {
        load_filters(kernel, plan, seccomp)?;
    }
    kernel.bound_capabilities(plan.caps.bounding)?;
    kernel.set_user(plan.uid, plan.gid, &plan.groups)?;
    // A folder that root may not enter (root-squashed) may still be the user's.
    entered.or_else(|_| enter())?;
    kernel.set_capabilities(&plan.caps)?;
    if plan.no_new_privs {
        kernel.no_new_privs()?;
        load_filters(kernel, plan, seccomp)?;
    }
    Ok(())
}

fn load_filters(kernel: &Kernel, plan: &ProcessPlan, programs: &[OwnedFd]) -> Result<(), Failure> {
    for (program, flags) in programs.iter().zip(&plan.seccomp) {
        kernel.seccomp(program.as_fd(), *flags)?;
    }
    Ok(())
}

/// The environment, with HOME as the image's passwd file has it if the spec does not say.
fn with_home(plan: &ProcessPlan) -> Vec<String> {
    let mut env = plan.env.clone();
    if !env.iter().any(|e| e.starts_with("HOME=")) {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let uid = plan.uid.to_string();
        let home = passwd.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|f| f.get(2) == Some(&&*uid));
        env.push(format!("HOME={}", home.and_then(|f| f.get(5).copied()).filter(|h| !h.is_empty()).unwrap_or("/")));
    }
    env
}

const STARTING: &str = "unable to start container process: error during container init: exec:";

/// As Go's exec.LookPath, which runc uses: what upstream's users see.
fn find_executable(name: &str, env: &[String]) -> Result<PathBuf, Failure> {
    let fail = |kind, why: String| Failure::new(FailureKind::Start(kind), format!("{STARTING} {name:?}: {why}"));
    if name.contains('/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(fail(StartFailure::PermissionDenied, format!("stat {name}: permission denied")))
            }
            Err(_) => Err(fail(StartFailure::NoSuchFile, format!("stat {name}: no such file or directory"))),
            Ok(meta) if meta.is_dir() => Err(fail(StartFailure::PermissionDenied, "is a directory".into())),
            Ok(meta) if meta.permissions().mode() & 0o111 == 0 => {
                Err(fail(StartFailure::PermissionDenied, "permission denied".into()))
            }
            Ok(_) => Ok(path),
        };
    }
    let path = env.iter().rev().find_map(|e| e.strip_prefix("PATH=")).unwrap_or_default();
    path.split(':')
        .map(|folder| Path::new(if folder.is_empty() { "." } else { folder }).join(name))
        .find(|file| fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
        .ok_or_else(|| fail(StartFailure::NotFoundInPath, "executable file not found in $PATH".into()))
}

fn exec_failure(name: &str, error: &std::io::Error) -> Failure {
    let (kind, why) = match error.raw_os_error() {
        Some(libc::ENOENT) => (StartFailure::NoSuchFile, "no such file or directory".to_owned()),
        Some(libc::EACCES | libc::EPERM) => (StartFailure::PermissionDenied, "permission denied".to_owned()),
        Some(libc::ENOEXEC) => (StartFailure::ExecFailed, "exec format error".to_owned()),
        _ => (StartFailure::ExecFailed, error.to_string()),
    };
    Failure::new(FailureKind::Start(kind), format!("{STARTING} {name:?}: {why}"))
}
