//! What containers get unless their spec says otherwise: containerd's capabilities, mounts, masked and read-only paths.

use std::collections::HashSet;
use std::path::PathBuf;

use oci_spec::runtime::{Capability, LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, Mount, MountBuilder};

/// containerd's default capabilities (all five sets but ambient, which stays empty).
pub fn default_capabilities() -> HashSet<Capability> {
    use Capability::*;
    [
        AuditWrite,
        Chown,
        DacOverride,
        Fowner,
        Fsetid,
        Kill,
        Mknod,
        NetBindService,
        NetRaw,
        Setfcap,
        Setgid,
        Setpcap,
        Setuid,
        SysChroot,
    ]
    .into_iter()
    .collect()
}

/// Every capability that this process could hand on: what `privileged` means here.
pub fn all_capabilities() -> HashSet<Capability> {
    let held = crate::compile::bounding_set();
    let all = caps::all().into_iter().filter(|c| held & c.bitmask() != 0);
    all.filter_map(|c| serde_json::from_value(serde_json::Value::String(c.to_string())).ok()).collect()
}

/// The device rules that containers start with, as containerd's: nothing, or everything for `privileged` ones. The runtime
/// always adds what harms nobody (see [`crate::devices`]).
pub fn default_devices(privileged: bool) -> Vec<LinuxDeviceCgroup> {
    let rule = LinuxDeviceCgroupBuilder::default().allow(privileged).access("rwm").build();
    // The invariant: every field of a rule has a default.
    vec![rule.expect("every field has a default")]
}

/// `/proc`, `/dev`, `/dev/pts`, `/dev/mqueue`, `/sys` and `/sys/fs/cgroup` (read-only unless `writable_system`, which
/// privileged containers have). `/dev/shm` is the sandbox's and not among them.
pub fn default_mounts(writable_system: bool) -> Vec<Mount> {
    let system = if writable_system { "rw" } else { "ro" };
    [
        ("/proc", "proc", "proc", "nosuid,noexec,nodev"),
        ("/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
        ("/dev/pts", "devpts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
        ("/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev"),
        ("/sys", "sysfs", "sysfs", &format!("nosuid,noexec,nodev,{system}")),
        ("/sys/fs/cgroup", "cgroup", "cgroup", &format!("nosuid,noexec,nodev,relatime,{system}")),
    ]
    .into_iter()
    .map(|(destination, typ, source, options)| {
        MountBuilder::default()
            .destination(destination)
            .typ(typ)
            .source(PathBuf::from(source))
            .options(options.split(',').map(str::to_owned).collect::<Vec<_>>())
            .build()
            .expect("all required fields are set")
    })
    .collect()
}

/// Hidden, as upstream's `procMount: Default` has it.
pub fn default_masked_paths() -> Vec<String> {
    [
        "/proc/acpi",
        "/proc/asound",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/sys/devices/virtual/powercap",
        "/sys/firmware",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Read-only, as upstream's `procMount: Default` has it.
pub fn default_readonly_paths() -> Vec<String> {
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"].map(str::to_owned).to_vec()
}
