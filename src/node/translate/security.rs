//! Security contexts: users and groups, capabilities, seccomp, masked paths; the container's word goes before the Pod's.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, SeccompProfile};
use podwright_runtime::image::Image;
use serde_json::{Value, json};

use super::{create_error, seccomp};
use crate::node::{executor::Trouble, spec::PodExt};

/// Who a container runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: Option<String>,
}

pub fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|c| c.privileged) == Some(true)
}

/// The user, by manifest and image; refused where `runAsNonRoot` forbids it.
pub fn user(pod: &Pod, container: &Container, image: &Image) -> Result<User, Trouble> {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec().security_context.as_ref();
    let run_as_user = own.and_then(|c| c.run_as_user).or(of_pod.and_then(|c| c.run_as_user));
    let run_as_group = own.and_then(|c| c.run_as_group).or(of_pod.and_then(|c| c.run_as_group));
    let non_root = own.and_then(|c| c.run_as_non_root).or(of_pod.and_then(|c| c.run_as_non_root)) == Some(true);
    if non_root {
        check_non_root(pod, container, run_as_user, &image.user())?;
    }
    let image_user = image.user();
    let spec = match (run_as_user, run_as_group) {
        (Some(uid), Some(gid)) => format!("{uid}:{gid}"),
        (Some(uid), None) => uid.to_string(),
        (None, Some(gid)) => {
            let name = image_user.split(':').next().filter(|u| !u.is_empty()).unwrap_or("0");
            format!("{name}:{gid}")
        }
        (None, None) => image_user,
    };
    let ids = image.resolve_user(&spec).map_err(create_error)?;
    let strict = of_pod.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict");
    let mut groups = if strict { Vec::new() } else { ids.groups };
    let asked = of_pod.iter().flat_map(|c| c.supplemental_groups.iter().flatten().copied().chain(c.fs_group));
    groups.extend(asked.filter_map(|g| u32::try_from(g).ok()));
    groups.sort_unstable();
    groups.dedup();
    Ok(User { uid: ids.uid, gid: ids.gid, groups, home: ids.home })
}

/// Upstream's `verifyRunAsNonRoot`.
fn check_non_root(pod: &Pod, container: &Container, uid: Option<i64>, image_user: &str) -> Result<(), Trouble> {
    let place = format!("(pod: \"{}\", container: {})", pod.full_name(), container.name);
    let refuse = |why: String| Err(Trouble::new("CreateContainerConfigError", why));
    if let Some(uid) = uid {
        return if uid == 0 { refuse(format!("container's runAsUser breaks non-root policy {place}")) } else { Ok(()) };
    }
    match image_user.split(':').next().unwrap_or_default() {
        "" | "0" => refuse(format!("container has runAsNonRoot and image will run as root {place}")),
        name if name.parse::<u32>().is_err() => refuse(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {place}"
        )),
        _ => Ok(()),
    }
}

/// What containers may do unless they say otherwise: containerd's default set.
const DEFAULT: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// All capabilities, in the kernel's order.
const ALL: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// The capabilities of a container: the default set, less `drop`, plus `add`.
pub fn capabilities(container: &Container) -> Result<Vec<&'static str>, String> {
    if is_privileged(container) {
        return Ok(ALL.to_vec());
    }
    let asked = container.security_context.as_ref().and_then(|c| c.capabilities.as_ref());
    let find = |name: &String| {
        let upper = name.to_uppercase();
        let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
        ALL.iter().find(|c| **c == full).copied().ok_or_else(|| format!("unknown capability \"{name}\""))
    };
    let is_all = |name: &&String| name.eq_ignore_ascii_case("ALL");
    let (add, drop) = (asked.and_then(|a| a.add.as_ref()), asked.and_then(|a| a.drop.as_ref()));
    let mut set: Vec<&'static str> = DEFAULT.to_vec();
    if add.iter().flat_map(|a| a.iter()).any(|n| is_all(&n)) {
        set = ALL.to_vec();
    }
    if drop.iter().flat_map(|d| d.iter()).any(|n| is_all(&n)) {
        set.clear();
    }
    for name in drop.into_iter().flatten().filter(|n| !is_all(n)) {
        let dropped = find(name)?;
        set.retain(|c| *c != dropped);
    }
    for name in add.into_iter().flatten().filter(|n| !is_all(n)) {
        let added = find(name)?;
        if !set.contains(&added) {
            set.push(added);
        }
    }
    Ok(set)
}

/// The five sets: root holds them, others may only gain them by a file's capabilities.
pub fn capability_sets(capabilities: &[&str], root: bool) -> Value {
    let held: &[&str] = if root { capabilities } else { &[] };
    json!({
        "bounding": capabilities,
        "effective": held,
        "permitted": held,
        "inheritable": [],
        "ambient": [],
    })
}

/// The seccomp filter: the runtime's default unless somebody says otherwise.
pub fn seccomp(pod: &Pod, container: &Container, capabilities: &[&str], dir: &Path) -> Result<Option<Value>, Trouble> {
    if is_privileged(container) {
        return Ok(None);
    }
    let own = container.security_context.as_ref().and_then(|c| c.seccomp_profile.as_ref());
    let profile: Option<&SeccompProfile> =
        own.or_else(|| pod.spec().security_context.as_ref().and_then(|c| c.seccomp_profile.as_ref()));
    match profile.map(|p| p.type_.as_str()) {
        Some("Unconfined") => Ok(None),
        Some("Localhost") => {
            let name = profile.and_then(|p| p.localhost_profile.as_deref()).unwrap_or_default();
            let path = dir.join(name);
            let read = || -> Result<Value, String> {
                let bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
                serde_json::from_slice(&bytes).map_err(|e| e.to_string())
            };
            let failed = |e| create_error(format!("cannot load seccomp profile \"{}\": {e}", path.display()));
            read().map(Some).map_err(failed)
        }
        _ => Ok(Some(seccomp::default_profile(capabilities))),
    }
}

const MASKED: [&str; 11] = [
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
    "/sys/firmware",
];
const MASKED_TOO: &str = "/sys/devices/virtual/powercap";
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Masked and read-only paths; none for privileged containers and `procMount: Unmasked`.
pub fn paths(container: &Container) -> (Vec<&'static str>, Vec<&'static str>) {
    let unmasked = container.security_context.as_ref().and_then(|c| c.proc_mount.as_deref()) == Some("Unmasked");
    if is_privileged(container) || unmasked {
        return (Vec::new(), Vec::new());
    }
    (MASKED.into_iter().chain([MASKED_TOO]).collect(), READ_ONLY.to_vec())
}
