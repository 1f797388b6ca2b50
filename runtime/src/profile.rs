//! Defaults for containers: containerd's capabilities, mounts, masked and read-only paths.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use oci_spec::runtime::{Capability, LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, Mount, MountBuilder};

/// containerd's default capabilities (in all five sets except ambient, which stays empty).
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

/// Every capability that this process can pass on: the meaning of `privileged` here.
pub fn all_capabilities() -> HashSet<Capability> {
    let held = bounding_set();
    let all = caps::all().into_iter().filter(|c| held & c.bitmask() != 0);
    all.filter_map(|c| serde_json::from_value(serde_json::Value::String(c.to_string())).ok()).collect()
}

/// The capabilities that this process can pass on.
pub fn bounding_set() -> u64 {
    caps::read(None, caps::CapSet::Bounding).unwrap_or_default().iter().fold(0, |all, c| all | c.bitmask())
}

/// The initial device rules, as containerd's: nothing, or everything for `privileged` containers. The runtime always adds harmless
/// devices (see [`crate::devices`]).
pub fn default_devices(privileged: bool) -> Vec<LinuxDeviceCgroup> {
    let rule = LinuxDeviceCgroupBuilder::default().allow(privileged).access("rwm").build();
    // Invariant: every field of a rule has a default.
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

/// Hidden, as for upstream's `procMount: Default`, plus kernel memory that uid 0 can read without capabilities, including each
/// processor's thermal counters.
pub fn default_masked_paths() -> Vec<String> {
    MASKED.iter().map(|path| path.to_string()).chain(thermal_counters().iter().cloned()).collect()
}

const MASKED: [&str; 17] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// `/sys/devices/system/cpu/cpu<N>/thermal_throttle`: reveals other tenants' computations. The machine's processors are listed
/// once.
fn thermal_counters() -> &'static [String] {
    static COUNTERS: LazyLock<Vec<String>> =
        LazyLock::new(|| thermal_counters_below(Path::new("/sys/devices/system/cpu")));
    &COUNTERS
}

fn thermal_counters_below(cpus: &Path) -> Vec<String> {
    let is_cpu = |name: &str| name.strip_prefix("cpu").is_some_and(|n| n.parse::<u32>().is_ok());
    let entries = std::fs::read_dir(cpus).into_iter().flatten().flatten();
    let cpus =
        entries.filter(|e| e.file_name().to_str().is_some_and(is_cpu)).map(|e| e.path().join("thermal_throttle"));
    let mut paths: Vec<String> =
        cpus.filter(|path| path.is_dir()).map(|path| path.to_string_lossy().into_owned()).collect();
    paths.sort();
    paths
}

/// Read-only, as for upstream's `procMount: Default`; plus the machine's pressure files, where a writer could monitor other
/// tenants.
pub fn default_readonly_paths() -> Vec<String> {
    const PATHS: [&str; 6] =
        ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/sys", "/proc/sysrq-trigger"];
    PATHS.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thermal_counters_are_those_of_processors() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["cpu0/thermal_throttle", "cpu12/thermal_throttle", "cpu3", "cpufreq/thermal_throttle", "cpu"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let found = thermal_counters_below(dir.path());
        let names: Vec<_> = found.iter().map(|p| p.strip_prefix(dir.path().to_str().unwrap()).unwrap()).collect();
        assert_eq!(names, ["/cpu0/thermal_throttle", "/cpu12/thermal_throttle"]);
        assert_eq!(thermal_counters_below(Path::new("/nowhere")), Vec::<String>::new());
        assert!(MASKED.iter().all(|path| default_masked_paths().contains(&path.to_string())));
    }
}
