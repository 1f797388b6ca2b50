//! Compiles an OCI runtime spec to the plan that a shim executes. Pure: all errors of a spec are found here.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Capability, LinuxDevice, LinuxDeviceType, Mount, PosixRlimitType, Process, Spec};

use crate::app_armor::is_name;
use crate::spec::{ContainerId, ContainerSpec, IdRange, Network, PidMode, Rootfs, SandboxSpec};
use crate::{Error, Result};
use podwright_shim::child::may_cover_proc;
use podwright_shim::protocol::{ContainerPlan, DevicePlan, Idmap, MountKind, MountPlan, ProcessPlan, RootPlan};
use podwright_sys::credentials::CapSets;
use podwright_sys::fs::clean;
use podwright_sys::mount::*;

/// The paths of a container on the host.
#[derive(Clone, Debug)]
pub struct Places {
    /// Its folder: the writable layer, the mount point, the exit record.
    pub folder: PathBuf,
    /// Its cgroup, absolute.
    pub cgroup: PathBuf,
    /// The sandbox's `/dev/shm`.
    pub shm: PathBuf,
    /// The capabilities that the agent can pass on, as a bit mask.
    pub bounding: u64,
    /// Device rules are not enforced for the container as they should be: it must not create or find device nodes of its own.
    pub unguarded: bool,
}

/// The plan for a container. Fails if its spec is invalid.
pub fn container(spec: &ContainerSpec, sandbox: &SandboxSpec, places: &Places) -> Result<ContainerPlan> {
    let oci = &spec.oci;
    let process = oci.process().as_ref().ok_or_else(|| invalid("no process"))?;
    let mut mounts = oci.mounts().iter().flatten().map(mount).collect::<Result<Vec<_>>>()?;
    add_dev(&mut mounts)?;
    add_shm(&mut mounts, places);
    // Parents before children, otherwise in the given order (as in containerd).
    mounts.sort_by_key(|m| m.target.components().count());
    if mounts.iter().any(|m| m.target.to_string_lossy().contains('\0')) {
        return Err(invalid("mounts: a destination must not contain a NUL character"));
    }
    let dev = mounts.iter().find(|m| m.target == Path::new("/dev"));
    let standard_devices = dev.is_some_and(|m| matches!(m.what, MountKind::Fs { .. }));
    let linux = oci.linux().as_ref();
    let paths = |all: Option<&Vec<String>>| all.into_iter().flatten().map(|p| clean(Path::new(p))).collect();
    let devices: Vec<DevicePlan> = linux.and_then(|l| l.devices().as_ref()).into_iter().flatten().map(device).collect();
    let process = self::process(process, sandbox, bounding(places.bounding, places.unguarded))?;
    if let Some(range) = sandbox.users {
        can_be_had_by(range, &mounts, &devices)?;
    }
    Ok(ContainerPlan {
        key: spec.id.key(),
        cgroup: places.cgroup.clone(),
        exit_file: places.folder.join("exit.json"),
        log: spec.log.clone(),
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        pid: sandbox.pid,
        pid_of: spec.pid_of.as_ref().map(ContainerId::key),
        root: root(spec, oci, places)?,
        mounts,
        devices,
        standard_devices,
        masked_paths: paths(linux.and_then(|l| l.masked_paths().as_ref())),
        readonly_paths: paths(linux.and_then(|l| l.readonly_paths().as_ref())),
        process,
    })
}

fn invalid(why: impl std::fmt::Display) -> Error {
    Error::Invalid(why.to_string())
}

fn root(spec: &ContainerSpec, oci: &Spec, places: &Places) -> Result<RootPlan> {
    let readonly = oci.root().as_ref().and_then(|r| r.readonly()).unwrap_or(false);
    let inside = |name: &str| places.folder.join(name);
    let plan = |layers: Vec<PathBuf>, dir| {
        let (upper, work) = (inside("upper"), inside("work"));
        RootPlan { layers, upper, work, dir, readonly, nodev: places.unguarded }
    };
    match &spec.rootfs {
        Rootfs::Layers(layers) if layers.is_empty() => Err(invalid("an image without layers")),
        Rootfs::Layers(layers) => Ok(plan(layers.clone(), inside("rootfs"))),
        Rootfs::Dir(dir) => Ok(plan(Vec::new(), dir.clone())),
    }
}

/// Fails for a user namespace of a sandbox that shares namespaces with the host, or that would map the host's root, or -1.
pub fn own_users(sandbox: &SandboxSpec) -> Result<()> {
    let Some(IdRange { host, size }) = sandbox.users else { return Ok(()) };
    let last = u64::from(host) + u64::from(size);
    if host == 0 || size == 0 || last > u64::from(u32::MAX) {
        return Err(invalid(format!("users: {size} ids from {host} on are no range of the host's users but its root")));
    }
    let shared = [
        (sandbox.network != Network::New, "network"),
        (sandbox.pid == PidMode::Host, "PID"),
        (sandbox.host_ipc, "IPC"),
    ];
    match shared.iter().find(|(shared, _)| *shared) {
        Some((_, namespace)) => {
            Err(invalid(format!("users: a sandbox in the host's {namespace} namespace has the host's users")))
        }
        None => Ok(()),
    }
}

fn is_one_of(range: IdRange, id: u32, field: &str) -> Result<()> {
    match id < range.size {
        true => Ok(()),
        false => Err(invalid(format!("{field}: {id} is none of the sandbox's ids, which are 0 to {}", range.size - 1))),
    }
}

/// Rejects what a container in a user namespace cannot have.
fn can_be_had_by(range: IdRange, mounts: &[MountPlan], devices: &[DevicePlan]) -> Result<()> {
    for mount in mounts {
        let target = mount.target.display();
        if mount.propagation == SHARED {
            return Err(invalid(format!(
                "mount {target}: what is mounted in a user namespace does not get to the host"
            )));
        }
        let MountKind::Fs { fstype, options } = &mount.what else { continue };
        if !matches!(fstype.as_str(), "proc" | "sysfs" | "cgroup2" | "tmpfs" | "devpts" | "mqueue") {
            return Err(invalid(format!("mount {target}: no {fstype} in a user namespace")));
        }
        for (key, value) in options.iter().filter(|(key, _)| matches!(key.as_str(), "uid" | "gid")) {
            let id = value.as_deref().and_then(|value| value.parse().ok());
            let id = id.ok_or_else(|| invalid(format!("mount {target}: {key}={value:?} is no id")))?;
            is_one_of(range, id, &format!("mount {target}: {key}"))?;
        }
    }
    for device in devices {
        let field = format!("device {}", device.path.display());
        [device.uid, device.gid].into_iter().try_for_each(|id| is_one_of(range, id, &field))?;
    }
    Ok(())
}

/// A container without `/dev` gets one; its own `/dev` gets terminals and message queues.
fn add_dev(mounts: &mut Vec<MountPlan>) -> Result<()> {
    let given = mounts.iter().find(|m| m.target == Path::new("/dev"));
    if given.is_some_and(|m| matches!(m.what, MountKind::Bind { .. })) {
        return Ok(());
    }
    for standard in crate::profile::default_mounts(false).iter().filter(|m| m.destination().starts_with("/dev")) {
        if !mounts.iter().any(|m| m.target == *standard.destination()) {
            mounts.push(mount(standard)?);
        }
    }
    Ok(())
}

/// A container without its own `/dev/shm` gets the sandbox's.
fn add_shm(mounts: &mut Vec<MountPlan>, places: &Places) {
    if mounts.iter().any(|m| m.target == Path::new("/dev/shm")) {
        return;
    }
    mounts.push(MountPlan {
        target: "/dev/shm".into(),
        what: MountKind::Bind { source: places.shm.clone(), recursive: false },
        set: 0,
        clear: 0,
        recursive_attrs: false,
        propagation: PRIVATE,
        idmap: None,
    });
}

/// Mount options that are attributes: name, bits to set, bits to clear. With an `r` prefix they are recursive.
const ATTRIBUTES: [(&str, u64, u64); 15] = [
    ("ro", ATTR_RDONLY, 0),
    ("rw", 0, ATTR_RDONLY),
    ("nosuid", ATTR_NOSUID, 0),
    ("suid", 0, ATTR_NOSUID),
    ("nodev", ATTR_NODEV, 0),
    ("dev", 0, ATTR_NODEV),
    ("noexec", ATTR_NOEXEC, 0),
    ("exec", 0, ATTR_NOEXEC),
    ("noatime", ATTR_NOATIME, ATTR_ATIME),
    ("relatime", 0, ATTR_ATIME),
    ("strictatime", ATTR_STRICTATIME, ATTR_ATIME),
    ("nodiratime", ATTR_NODIRATIME, 0),
    ("diratime", 0, ATTR_NODIRATIME),
    ("nosymfollow", ATTR_NOSYMFOLLOW, 0),
    ("symfollow", 0, ATTR_NOSYMFOLLOW),
];

const PROPAGATIONS: [(&str, u64); 8] = [
    ("private", PRIVATE),
    ("rprivate", PRIVATE),
    ("slave", SLAVE),
    ("rslave", SLAVE),
    ("shared", SHARED),
    ("rshared", SHARED),
    ("unbindable", UNBINDABLE),
    ("runbindable", UNBINDABLE),
];

/// Compiles one mount. Options that are not attributes, propagation or bind belong to the filesystem.
pub fn mount(mount: &Mount) -> Result<MountPlan> {
    let target = clean(mount.destination());
    if !mount.destination().is_absolute() || target == Path::new("/") {
        return Err(invalid(format!("mount destination {:?}", mount.destination())));
    }
    if target.starts_with("/proc") && target != Path::new("/proc") && !may_cover_proc(&target) {
        return Err(invalid(format!("{target:?} cannot be mounted because it is inside /proc")));
    }
    let (mut set, mut clear, mut recursive_attrs, mut propagation) = (0, 0, false, PRIVATE);
    let (mut bind, mut recursive) = (mount.typ().as_deref() == Some("bind"), false);
    let (mut options, mut idmap) = (Vec::new(), None);
    for option in mount.options().iter().flatten() {
        let attribute = |name: &str| ATTRIBUTES.iter().find(|(n, ..)| *n == name);
        let recursively = option.strip_prefix('r').and_then(attribute);
        if let Some((_, on, off)) = attribute(option).or(recursively) {
            recursive_attrs |= attribute(option).is_none();
            set = (set & !off) | on;
            clear = (clear & !on) | off;
        } else if let Some((_, kind)) = PROPAGATIONS.iter().find(|(name, _)| name == option) {
            propagation = *kind;
        } else if option == "bind" || option == "rbind" {
            bind = true;
            recursive = option == "rbind";
        } else if option == "idmap" || option == "ridmap" {
            idmap = Some(if option == "idmap" { Idmap::Single } else { Idmap::Recursive });
        } else if !matches!(option.as_str(), "defaults" | "async" | "nouser") {
            let (key, value) = option.split_once('=').map_or((option.as_str(), None), |(k, v)| (k, Some(v)));
            options.push((key.to_owned(), value.map(str::to_owned)));
        }
    }
    if target == Path::new("/proc") && !bind && mount.typ().as_deref() != Some("proc") {
        return Err(invalid(format!("{target:?} cannot be mounted because it is not of type proc")));
    }
    let what = match (bind, mount.source()) {
        (true, Some(source)) if source.is_absolute() => MountKind::Bind { source: source.clone(), recursive },
        (true, source) => return Err(invalid(format!("bind mount source {source:?}"))),
        (false, _) => {
            let fstype = match mount.typ().as_deref() {
                Some("cgroup") => "cgroup2",
                Some("none" | "") | None => return Err(invalid(format!("mount {} has no type", target.display()))),
                Some(fstype) => fstype,
            };
            MountKind::Fs { fstype: fstype.to_owned(), options }
        }
    };
    if idmap.is_some() && !matches!(what, MountKind::Bind { .. }) {
        return Err(invalid(format!("mount {} is no bind mount, so it cannot be idmapped", target.display())));
    }
    Ok(MountPlan { target, what, set, clear, recursive_attrs, propagation, idmap })
}

fn device(device: &LinuxDevice) -> DevicePlan {
    DevicePlan {
        path: device.path().clone(),
        kind: match device.typ() {
            LinuxDeviceType::B => 'b',
            LinuxDeviceType::P => 'p',
            _ => 'c',
        },
        major: device.major() as u32,
        minor: device.minor() as u32,
        mode: device.file_mode().unwrap_or(0o666),
        uid: device.uid().unwrap_or(0),
        gid: device.gid().unwrap_or(0),
    }
}

/// containerd's default, if the image has no PATH.
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The plan for a process: a container's first one, or an exec.
pub fn process(process: &Process, sandbox: &SandboxSpec, bounding: u64) -> Result<ProcessPlan> {
    let args = process.args().clone().unwrap_or_default();
    if args.first().is_none_or(|a| a.is_empty()) {
        return Err(invalid("no command specified"));
    }
    let mut env = process.env().clone().unwrap_or_default();
    let terminal = process.terminal().unwrap_or(false);
    let mut default = |variable: String| {
        let name = variable.split_inclusive('=').next().unwrap_or_default();
        if !env.iter().any(|e| e.starts_with(name)) {
            env.push(variable);
        }
    };
    default(DEFAULT_PATH.into());
    if !sandbox.hostname.is_empty() {
        default(format!("HOSTNAME={}", sandbox.hostname));
    }
    if terminal {
        default("TERM=xterm".into());
    }
    without_nul(&args, &env, process.cwd())?;
    let user = process.user();
    if [user.uid(), user.gid()].iter().chain(user.additional_gids().iter().flatten()).any(|id| *id == u32::MAX) {
        return Err(invalid("process.user: 4294967295 is no id: to the kernel it is -1"));
    }
    if let Some(range) = sandbox.users {
        let ids = [user.uid(), user.gid()].into_iter().chain(user.additional_gids().iter().flatten().copied());
        ids.into_iter().try_for_each(|id| is_one_of(range, id, "process.user"))?;
    }
    let cwd = process.cwd();
    Ok(ProcessPlan {
        args,
        env,
        cwd: if cwd.as_os_str().is_empty() { "/".into() } else { clean(cwd) },
        uid: user.uid(),
        gid: user.gid(),
        groups: user.additional_gids().clone().unwrap_or_default(),
        umask: user.umask(),
        caps: capabilities(process, bounding),
        no_new_privs: process.no_new_privileges().unwrap_or(false),
        app_armor: app_armor(process)?,
        rlimits: process.rlimits().iter().flatten().map(|l| (rlimit(l.typ()), l.soft(), l.hard())).collect(),
        oom_score_adj: process.oom_score_adj(),
        terminal,
        size: process.console_size().as_ref().map(|s| (s.width() as u16, s.height() as u16)),
        seccomp: Vec::new(),
        birth_ms: crate::BIRTH.as_millis() as u64,
    })
}

/// The requested profile. Fails for text that the kernel would parse as more than one profile's name.
fn app_armor(process: &Process) -> Result<Option<String>> {
    match process.apparmor_profile().as_deref() {
        None | Some("") => Ok(None),
        Some(name) if is_name(name) => Ok(Some(name.to_owned())),
        Some(name) => Err(invalid(format!("process.apparmorProfile: {name:?} is no name of a profile"))),
    }
}

/// Rejects NUL, which ends a string for the kernel. The error only names the position: values may be secret.
fn without_nul(args: &[String], env: &[String], cwd: &Path) -> Result<()> {
    let has_nul = |text: &str| text.contains('\0');
    let in_args = || args.iter().position(|arg| has_nul(arg)).map(|at| format!("process.args[{at}]"));
    let in_env = || {
        let variable = env.iter().find(|variable| has_nul(variable))?;
        Some(format!("process.env, variable {:?}", variable.split('=').next().unwrap_or_default()))
    };
    let in_cwd = || has_nul(&cwd.to_string_lossy()).then(|| "process.cwd".to_owned());
    match in_args().or_else(in_env).or_else(in_cwd) {
        Some(field) => Err(invalid(format!("{field}: must not contain a NUL character"))),
        None => Ok(()),
    }
}

/// The requested capabilities that are available. A user other than root keeps effective and permitted ones only as ambient ones:
/// execve removes the rest.
fn capabilities(process: &Process, bounding: u64) -> CapSets {
    let Some(caps) = process.capabilities() else { return CapSets::default() };
    let set =
        |set: &Option<HashSet<Capability>>| set.iter().flatten().map(mask).fold(0, |all, cap| all | cap) & bounding;
    let (permitted, inheritable) = (set(caps.permitted()), set(caps.inheritable()));
    CapSets {
        bounding: set(caps.bounding()),
        effective: set(caps.effective()) & permitted,
        permitted,
        inheritable,
        ambient: set(caps.ambient()) & permitted & inheritable,
    }
}

fn mask(capability: &Capability) -> u64 {
    let name = serde_json::to_value(capability).ok();
    let known = name.as_ref().and_then(|n| n.as_str()).and_then(|n| n.parse::<caps::Capability>().ok());
    known.map_or(0, |c| c.bitmask())
}

/// What the agent may pass on to the processes of a container; `unguarded` as in [`Places`].
pub fn bounding(own: u64, unguarded: bool) -> u64 {
    if unguarded { own & !caps::Capability::CAP_MKNOD.bitmask() } else { own }
}

fn rlimit(kind: PosixRlimitType) -> u32 {
    use PosixRlimitType::*;
    match kind {
        RlimitCpu => libc::RLIMIT_CPU,
        RlimitFsize => libc::RLIMIT_FSIZE,
        RlimitData => libc::RLIMIT_DATA,
        RlimitStack => libc::RLIMIT_STACK,
        RlimitCore => libc::RLIMIT_CORE,
        RlimitRss => libc::RLIMIT_RSS,
        RlimitNproc => libc::RLIMIT_NPROC,
        RlimitNofile => libc::RLIMIT_NOFILE,
        RlimitMemlock => libc::RLIMIT_MEMLOCK,
        RlimitAs => libc::RLIMIT_AS,
        RlimitLocks => libc::RLIMIT_LOCKS,
        RlimitSigpending => libc::RLIMIT_SIGPENDING,
        RlimitMsgqueue => libc::RLIMIT_MSGQUEUE,
        RlimitNice => libc::RLIMIT_NICE,
        RlimitRtprio => libc::RLIMIT_RTPRIO,
        RlimitRttime => libc::RLIMIT_RTTIME,
    }
}

/// Whether this sandbox has its own `/dev/shm`.
pub fn own_shm(spec: &SandboxSpec) -> bool {
    !spec.host_ipc
}

/// Whether this sandbox has its own PID namespace.
pub fn own_pid(spec: &SandboxSpec) -> bool {
    spec.pid == PidMode::Sandbox
}

#[cfg(test)]
mod tests {
    use super::*;
    use oci_spec::runtime::MountBuilder;

    fn plan(typ: &str, source: &str, options: &str) -> Result<MountPlan> {
        let options: Vec<String> = options.split(',').map(str::to_owned).collect();
        mount(
            &MountBuilder::default()
                .destination("/a/../b")
                .typ(typ)
                .source(PathBuf::from(source))
                .options(options)
                .build()
                .unwrap(),
        )
    }

    #[test]
    fn mount_options_are_sorted_into_attributes_propagation_and_data() {
        let tmpfs = plan("tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=64k").unwrap();
        assert_eq!((tmpfs.set, tmpfs.clear), (ATTR_NOSUID | ATTR_STRICTATIME, ATTR_ATIME));
        let options = vec![("mode".into(), Some("755".into())), ("size".into(), Some("64k".into()))];
        assert_eq!(tmpfs.what, MountKind::Fs { fstype: "tmpfs".into(), options });
        assert_eq!(tmpfs.target, Path::new("/b"));

        let bind = plan("bind", "/x", "rbind,rro,rslave").unwrap();
        assert_eq!(bind.what, MountKind::Bind { source: "/x".into(), recursive: true });
        assert!(bind.recursive_attrs && bind.set == ATTR_RDONLY && bind.propagation == SLAVE);
        assert_eq!(plan("bind", "/x", "rbind,ridmap").unwrap().idmap, Some(Idmap::Recursive));
        assert!(plan("tmpfs", "tmpfs", "idmap").is_err());
        assert!(plan("bind", "x", "rbind").is_err());
        assert!(plan("", "x", "ro").is_err());
    }

    #[test]
    fn capabilities_are_cut_to_what_can_be_had() {
        use oci_spec::runtime::{LinuxCapabilitiesBuilder, ProcessBuilder};
        let two: HashSet<Capability> = [Capability::Chown, Capability::SysAdmin].into();
        let caps =
            LinuxCapabilitiesBuilder::default().bounding(two.clone()).effective(two.clone()).permitted(two.clone());
        let caps = caps.inheritable(HashSet::new()).ambient(two).build().unwrap();
        let process = ProcessBuilder::default().args(vec!["x".to_owned()]).cwd("/").capabilities(caps).build().unwrap();
        let sandbox = SandboxSpec::new("s", crate::CgroupName::new("s"));
        let sets = super::process(&process, &sandbox, 1).unwrap().caps;
        assert_eq!(sets, CapSets { bounding: 1, effective: 1, permitted: 1, inheritable: 0, ambient: 0 });
    }

    #[test]
    fn a_nul_is_refused_by_its_field_and_its_value_not_told() {
        use oci_spec::runtime::ProcessBuilder;
        let sandbox = SandboxSpec::new("s", crate::CgroupName::new("s"));
        for (args, env, cwd, field) in [
            (["sh", "a\0b"], "A=1", "/", "process.args[1]"),
            (["sh", ""], "A\n=hid\0den", "/", r#"process.env, variable "A\n""#),
            (["sh", ""], "A=1", "/w\0x", "process.cwd"),
        ] {
            let process = ProcessBuilder::default().args(args.map(str::to_owned)).env(vec![env.to_owned()]).cwd(cwd);
            let refused = super::process(&process.build().unwrap(), &sandbox, 0).unwrap_err().to_string();
            assert_eq!(refused, format!("invalid spec: {field}: must not contain a NUL character"));
        }
    }
}
