//! The same attacks repeated from Pods with user namespaces (`hostUsers: false`); most with capabilities that are only valid
//! inside. And attacks using those capabilities.

use serde_json::{Value, json};

use super::{Attack, POD, Pod, Try, agent_reads, beyond, escapes, hostile_images, images, profiles, volumes, world};

/// The users of an attack's Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// As the entry says.
    Entrys,
    /// Of its own.
    Own,
    /// A user namespace, with containers that have [`MORE`].
    OwnWithMore,
}

/// Capabilities that would allow much on the host if they were valid there.
const MORE: [&str; 4] = ["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "MKNOD"];

/// Entries that are not repeated, and why.
const NOT_AGAIN: &[(&str, &str)] = &[
    ("host-pid", "no: excluded by `hostPID`"),
    ("stdin-link-agent", "no: excluded by `hostPID`"),
    ("probe-output", "no: whose it is makes no difference"),
    ("process-bomb-exec", "no: whose it is makes no difference"),
    ("volume-of-another", "no: made by requests"),
    ("layer-traversal", "no: no Pod"),
    ("image-bomb", "no: no Pod"),
    ("digest-mismatch", "no: no Pod"),
    ("archive-link-manifest", "no: no Pod"),
    ("archive-link-config", "no: no Pod"),
    ("private-image", "no: whose it is makes no difference"),
    ("private-image-by-id", "no: whose it is makes no difference"),
    ("documents-as-layers", "no: whose it is makes no difference"),
    ("passwd-huge", "no: whose it is makes no difference"),
    ("environment-of-another", "no: whose it is makes no difference"),
    ("log-path", "no: made by requests"),
    ("log-link", "no: made on the node's side"),
    ("log-fifo", "no: made on the node's side"),
    ("own-profile-neighbour", "no: whose it is, is what it is about"),
    ("own-profile-namespaces", "no: on another node, which has none; `own-profile-owner` is about them"),
    ("own-profile-owner", "no: it has such users"),
    ("own-profile-mounts", "no: whose it is makes no difference"),
    ("informational-answers", "no: no Pod runs"),
    ("digest-path", "no: no Pod runs"),
];

/// Entries that are repeated without [`MORE`], and why.
const WITHOUT_MORE: &[(&str, &str)] = &[
    ("trace-exec", "yes; with SYS_PTRACE it is `exec-descriptors`"),
    ("release-agent", "yes; with capabilities it is `own-users-mounts`"),
    ("system-calls", "yes; RuntimeDefault allows more to who has capabilities"),
    ("system-calls-exec", "yes; RuntimeDefault allows more to who has capabilities"),
    ("own-profile-logs", "yes; with SYS_ADMIN these calls are given"),
    ("own-profile-allows", "yes; with SYS_ADMIN these calls are given"),
    ("own-profile-restricted", "yes"),
    ("own-profile-keyrings", "yes"),
    ("own-profile-cgroups", "yes"),
    ("own-profile-descriptors", "yes"),
    ("join-pause", "yes; with capabilities `pause` is its own to trace"),
    ("join-pause-same-user", "yes; with capabilities `pause` is its own to trace"),
];

/// How an entry is repeated, and its wording in the README. `None`: its table is not repeated.
pub fn again(attack: &Attack) -> Option<(Option<Users>, &'static str)> {
    let tables = [
        escapes::ATTACKS,
        volumes::ATTACKS,
        agent_reads::ATTACKS,
        images::ATTACKS,
        hostile_images::ATTACKS,
        profiles::ATTACKS,
        beyond::ATTACKS,
    ];
    if !tables.into_iter().flatten().any(|of_them| of_them.id == attack.id) {
        return None;
    }
    let told = |table: &[(&str, &'static str)]| table.iter().find(|(id, _)| *id == attack.id).map(|(_, why)| *why);
    if let Some(why) = told(NOT_AGAIN) {
        return Some((None, why));
    }
    if let Some(why) = told(WITHOUT_MORE) {
        return Some((Some(Users::Own), why));
    }
    match &attack.attempt {
        // Pod Security does not admit more capabilities.
        Try::Pod(pod) if pod.namespace != world::OPEN => Some((Some(Users::Own), "yes")),
        _ => Some((Some(Users::OwnWithMore), "yes, with more capabilities")),
    }
}

/// Sets the users of a Pod that does not specify them.
pub fn give(spec: &mut Value, users: Users, namespace: &str) {
    if users == Users::Entrys {
        return;
    }
    spec["hostUsers"] = json!(false);
    if users == Users::Own || namespace != world::OPEN {
        return;
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if container["securityContext"].is_null() {
                container["securityContext"] = json!({});
            }
            container["securityContext"]["capabilities"]["add"] = json!(MORE);
        }
    }
}

/// As root of a user namespace, with [`MORE`].
const MIGHTY: Pod = Pod {
    spec: "hostUsers: false",
    container: "securityContext: {seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}, capabilities: {add: [SYS_ADMIN, NET_ADMIN, SYS_PTRACE, MKNOD, SYS_RESOURCE, SYS_TIME, SYS_BOOT, SYS_MODULE, SYSLOG, DAC_READ_SEARCH, BPF, PERFMON]}}",
    ..POD
};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "own-users-mounts",
        class: "user namespace",
        cves: &["CVE-2022-0492", "CVE-2022-0185"],
        how: "with users of its own, SYS_ADMIN and no seccomp profile: makes all mounts writable, takes away masks, mounts procfs, sysfs and cgroups anew, and writes a `release_agent`, `core_pattern`, `sysrq-trigger` and its own limits",
        held: "mounts are locked, as another user namespace made them; what is the host's asks for capabilities over the host",
        attempt: Try::Pod(Pod {
            script: "
for try in 'mount -o remount,rw,bind /proc/sys' 'umount /proc/sys' 'umount /proc/kcore' 'umount /proc' 'umount -l /proc' 'mount -o remount,rw,bind /sys' 'mount -o remount,rw,bind /sys/fs/cgroup' 'umount /sys/fs/cgroup' 'umount /sys/firmware' 'umount /etc/hosts' 'mount -t cgroup -o release_agent=/x none /mnt'; do
  if $try 2>/tmp/why; then echo \"BREACH: $try\"; else echo \"held: $try: $(tail -n 1 /tmp/why)\"; fi
done
mkdir -p /tmp/p /tmp/s /tmp/c /tmp/1
mount -t proc proc /tmp/p; mount -t sysfs sysfs /tmp/s; mount -t cgroup2 cgroup /tmp/c; mount -t cgroup -o memory cgroup /tmp/1
attack writable /tmp/p/sys/kernel /tmp/p/sys/vm /tmp/p/sys/fs /tmp/p/sysrq-trigger /tmp/s /proc/sys /proc/sysrq-trigger /sys
for file in /tmp/c/memory.max /tmp/c/pids.max /tmp/c/cpu.max /tmp/1/release_agent /tmp/1/notify_on_release; do
  # To what it is: whatever is let through changes nothing.
  if cat $file >/tmp/is 2>/tmp/why && cat /tmp/is 2>/tmp/why >$file; then echo \"BREACH: $file is written\"; else echo \"held: $file: $(tail -n 1 /tmp/why)\"; fi
done
attack empty /tmp/p/kcore /proc/kcore /proc/keys",
            ..MIGHTY
        }),
    },
    Attack {
        id: "own-users-host",
        class: "user namespace",
        cves: &["CVE-2022-0185"],
        how: "with users of its own, all capabilities that could be of use and no seccomp profile: nodes of devices, files by their number, modules, kernel log, accounting, swap, ports of the machine, priorities and limits beyond its own, and every way up from its root",
        held: "the kernel asks for capabilities over its own user namespace",
        attempt: Try::Pod(Pod {
            script: "attack devices; attack mighty; attack climb @CANARY@; attack chroot @CANARY@",
            ..MIGHTY
        }),
    },
];
