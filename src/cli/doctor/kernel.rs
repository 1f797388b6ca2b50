//! Checks of the kernel: its features for isolating Pods, and this host's settings.

use super::facts::{Facts, Host, Node};
use super::{Check, CheckResult, fail, not_applicable, pass, warn};
use podwright_api::protections::PROJECT_QUOTAS;

const USERNS_MAX: &str = "/proc/sys/user/max_user_namespaces";
const USERNS_CLONE: &str = "/proc/sys/kernel/unprivileged_userns_clone";
const SECCOMP: &str = "/proc/sys/kernel/seccomp/actions_avail";
const LSM: &str = "/sys/kernel/security/lsm";
const APPARMOR: &str = "/sys/module/apparmor/parameters/enabled";
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
/// The runtime's default AppArmor profile of containers.
const DEFAULT_PROFILE: &str = "podwright-default (enforce)";
const SELINUX: &str = "/sys/fs/selinux/enforce";
const CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";
const MOUNTS: &str = "/proc/self/mounts";
const PTRACE: &str = "/proc/sys/kernel/yama/ptrace_scope";
const CORE: &str = "/proc/sys/kernel/core_pattern";
const KPTR: &str = "/proc/sys/kernel/kptr_restrict";
const DMESG: &str = "/proc/sys/kernel/dmesg_restrict";
const BPF: &str = "/proc/sys/kernel/unprivileged_bpf_disabled";
const ASLR: &str = "/proc/sys/kernel/randomize_va_space";
const SYMLINKS: &str = "/proc/sys/fs/protected_symlinks";
const HARDLINKS: &str = "/proc/sys/fs/protected_hardlinks";
const FIFOS: &str = "/proc/sys/fs/protected_fifos";
const REGULAR: &str = "/proc/sys/fs/protected_regular";
const SUID_DUMP: &str = "/proc/sys/fs/suid_dumpable";

/// The files that these checks read.
pub const FILES: &[&str] = &[
    USERNS_MAX,
    USERNS_CLONE,
    SECCOMP,
    LSM,
    APPARMOR,
    PROFILES,
    SELINUX,
    CONTROLLERS,
    MOUNTS,
    PTRACE,
    CORE,
    KPTR,
    DMESG,
    BPF,
    ASLR,
    SYMLINKS,
    HARDLINKS,
    FIFOS,
    REGULAR,
    SUID_DUMP,
];

/// The minimum value of each of these.
const AT_LEAST: &[(&str, i64)] = &[(SYMLINKS, 1), (HARDLINKS, 1), (FIFOS, 1), (REGULAR, 1)];

pub const CHECKS: &[Check] = &[
    Check {
        id: "kernel.user-namespaces",
        cis: &[],
        what: "Pods can have user namespaces (hostUsers: false)",
        how: "what the Nodes say (status.runtimeHandlers), user.max_user_namespaces",
        rule: user_namespaces,
        remedy: "run Linux 6.3 or later, and set user.max_user_namespaces above 0",
    },
    Check {
        id: "kernel.unprivileged-userns",
        cis: &[],
        what: "unprivileged users cannot create user namespaces",
        how: USERNS_CLONE,
        rule: |facts| match facts.host.text(USERNS_CLONE) {
            "" => not_applicable("the kernel has no such switch; Pods are kept from it by seccomp"),
            "0" => pass("unprivileged_userns_clone is 0"),
            _ => warn("unprivileged_userns_clone is 1; Pods are kept from it by seccomp RuntimeDefault alone"),
        },
        remedy: "sysctl kernel.unprivileged_userns_clone=0, if nothing on the host needs it",
    },
    Check {
        id: "kernel.seccomp",
        cis: &[],
        what: "system calls of Pods can be filtered",
        how: SECCOMP,
        rule: |facts| match facts.host.text(SECCOMP) {
            "" => fail("the kernel has no seccomp filters"),
            actions if actions.contains("errno") => pass("seccomp filters are there"),
            actions => fail(format!("the kernel's filters can only {actions}")),
        },
        remedy: "run a kernel with CONFIG_SECCOMP_FILTER",
    },
    Check {
        id: "kernel.landlock",
        cis: &[],
        what: "the server can be confined to its folders",
        how: LSM,
        rule: |facts| security_module(&facts.host, "landlock"),
        remedy: "run Linux 5.13 or later with landlock in its lsm= list",
    },
    Check {
        id: "kernel.mandatory-access",
        cis: &[],
        what: "AppArmor or SELinux confines containers",
        how: "/sys/module/apparmor/parameters/enabled, /sys/kernel/security/apparmor/profiles, /sys/fs/selinux/enforce",
        rule: mandatory_access,
        remedy: "boot with AppArmor (lsm=, apparmor=1), install Debian's package apparmor, and restart the agent; \
                 or give Pods `hostUsers: false`. Those that ask for a profile or a label that is not to be had are refused",
    },
    Check {
        id: "kernel.cgroup-limits",
        cis: &[],
        what: "limits of CPU, memory and processes can be enforced",
        how: CONTROLLERS,
        rule: controllers,
        remedy: "boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)",
    },
    Check {
        id: "kernel.cgroup-delegation",
        cis: &[],
        what: "no process is moved from one Pod's cgroup into another's",
        how: MOUNTS,
        rule: cgroup_delegation,
        remedy: "mount cgroup2 with nsdelegate, as systemd does (mount -o remount,nsdelegate)",
    },
    Check {
        id: "kernel.project-quotas",
        cis: &[],
        what: "file systems count what Pods have on disk",
        how: "what the Nodes say (metadata.annotations, podwright/disk-usage)",
        rule: project_quotas,
        remedy: "keep the state folder on XFS mounted with prjquota, or on ext4 after tune2fs -O project,quota -Q prjquota",
    },
    Check {
        id: "kernel.conflicting-tables",
        cis: &[],
        what: "no table of another program drops traffic of Pods",
        how: "what the Nodes say (status.conditions, ConflictingTables)",
        rule: conflicting_tables,
        remedy: "have that program accept what comes from and goes to links pw* (Docker: rules in DOCKER-USER, with -i pw+ and -o pw+; \
                 firewalld: the Pods' range in the zone trusted), or end it",
    },
    Check {
        id: "kernel.ptrace",
        cis: &[],
        what: "processes cannot trace others of their user",
        how: PTRACE,
        rule: |facts| match facts.host.number(PTRACE) {
            None => warn("the kernel has no Yama"),
            Some(0) => warn("kernel.yama.ptrace_scope is 0"),
            Some(scope) => pass(format!("kernel.yama.ptrace_scope is {scope}")),
        },
        remedy: "sysctl kernel.yama.ptrace_scope=1",
    },
    Check {
        id: "kernel.core-pattern",
        cis: &[],
        what: "no program of the host's reads cores of containers",
        how: CORE,
        rule: |facts| match facts.host.text(CORE) {
            text if text.starts_with('|') => warn(format!(
                "cores go to {}, as root of the host",
                text.trim_start_matches('|').split(' ').next().unwrap_or("")
            )),
            text => pass(format!("cores go to files ({text})")),
        },
        remedy: "sysctl kernel.core_pattern=core, or trust the handler with what containers crash with",
    },
    Check {
        id: "kernel.protected-links",
        cis: &[],
        what: "links, fifos and files of others in shared folders are not followed",
        how: "fs.protected_symlinks, _hardlinks, _fifos, _regular",
        rule: |facts| {
            let low = |(path, least): &&(&str, i64)| facts.host.number(path).is_none_or(|value| value < *least);
            let names: Vec<&str> =
                AT_LEAST.iter().filter(low).filter_map(|(path, _)| path.rsplit('/').next()).collect();
            if names.is_empty() { pass("all four are on") } else { warn(format!("off: {}", names.join(", "))) }
        },
        remedy: "set these sysctls of fs to 1",
    },
    Check {
        id: "kernel.pointers",
        cis: &[],
        what: "the kernel tells no addresses, and its log to root alone",
        how: "kernel.kptr_restrict, kernel.dmesg_restrict",
        rule: |facts| match (facts.host.number(KPTR), facts.host.number(DMESG)) {
            (Some(1..), Some(1..)) => pass("both are restricted"),
            (pointers, log) => {
                let shown = |value: Option<i64>| value.map_or("missing".to_owned(), |value| value.to_string());
                warn(format!("kptr_restrict is {}, dmesg_restrict is {}", shown(pointers), shown(log)))
            }
        },
        remedy: "sysctl kernel.kptr_restrict=1 kernel.dmesg_restrict=1",
    },
    Check {
        id: "kernel.unprivileged-bpf",
        cis: &[],
        what: "unprivileged users cannot load BPF programs",
        how: BPF,
        rule: |facts| match facts.host.number(BPF) {
            None => not_applicable("the kernel has no such switch"),
            Some(0) => warn("kernel.unprivileged_bpf_disabled is 0"),
            Some(value) => pass(format!("kernel.unprivileged_bpf_disabled is {value}")),
        },
        remedy: "sysctl kernel.unprivileged_bpf_disabled=1",
    },
    Check {
        id: "kernel.aslr",
        cis: &[],
        what: "addresses of processes are random",
        how: ASLR,
        rule: |facts| match facts.host.number(ASLR) {
            Some(2) => pass("kernel.randomize_va_space is 2"),
            value => {
                fail(format!("kernel.randomize_va_space is {}", value.map_or("missing".into(), |v| v.to_string())))
            }
        },
        remedy: "sysctl kernel.randomize_va_space=2",
    },
    Check {
        id: "kernel.suid-dumps",
        cis: &[],
        what: "programs that gained rights leave no cores for others",
        how: SUID_DUMP,
        rule: |facts| match facts.host.number(SUID_DUMP) {
            Some(1) => fail("fs.suid_dumpable is 1"),
            _ => pass("fs.suid_dumpable is not 1"),
        },
        remedy: "sysctl fs.suid_dumpable=0",
    },
    Check {
        id: "kernel.swap",
        cis: &[],
        what: "memory with Secrets does not reach a disk in the clear",
        how: "/proc/swaps, /sys/class/block/*/dm/uuid",
        rule: |facts| {
            let clear = facts.host.swaps.iter().filter(|swap| swap.in_the_clear);
            let clear: Vec<&str> = clear.map(|swap| swap.device.as_str()).collect();
            match (clear.is_empty(), facts.host.swaps.is_empty()) {
                (true, true) => pass("there is no swap"),
                (true, false) => pass("swap is encrypted or in memory"),
                _ => warn(format!("swap in the clear: {}", clear.join(", "))),
            }
        },
        remedy: "encrypt the swap device (cryptsetup with a random key), or swapoff",
    },
];

/// Podwright does not set SELinux labels: the host's apply to its own processes.
fn mandatory_access(facts: &Facts) -> CheckResult {
    let host = &facts.host;
    match (host.text(APPARMOR), host.text(SELINUX)) {
        ("Y", _) if host.text(PROFILES).lines().any(|line| line == DEFAULT_PROFILE) => pass(
            "containers run under AppArmor's podwright-default, but for privileged ones and those that ask for another",
        ),
        ("Y", _) if host.kernel_files.contains_key(PROFILES) => warn(
            "AppArmor is enabled, but podwright-default is not loaded: containers have no profile unless they name one",
        ),
        ("Y", _) => {
            warn("AppArmor is enabled, but its profiles cannot be read: is securityfs mounted, and are you root?")
        }
        (_, "1") => warn("SELinux is enforcing, but containers get no label of their own"),
        (_, "0") => warn("SELinux is permissive, and containers get no label of their own"),
        _ => warn("the host has neither"),
    }
}

fn user_namespaces(facts: &Facts) -> CheckResult {
    match facts.host.number(USERNS_MAX) {
        None => return warn("the kernel has no user namespaces"),
        Some(0) => return warn("user.max_user_namespaces is 0"),
        Some(_) => {}
    }
    let Ok(cluster) = &facts.cluster else { return not_applicable("the cluster cannot be asked") };
    let without = cluster.nodes.iter().filter(|node| !node.user_namespaces);
    let without: Vec<&str> = without.map(|node| node.name.as_str()).collect();
    match (cluster.nodes.len(), without.is_empty()) {
        (0, _) => not_applicable("there is no Node"),
        (_, true) => pass("all Nodes give them"),
        (_, false) => warn(format!("Nodes without: {}", without.join(", "))),
    }
}

fn project_quotas(facts: &Facts) -> CheckResult {
    let Ok(cluster) = &facts.cluster else { return not_applicable("the cluster cannot be asked") };
    let walking = cluster.nodes.iter().filter(|node| node.disk_usage != PROJECT_QUOTAS);
    let why = |node: &Node| match node.disk_usage.as_str() {
        "" => format!("{} does not say", node.name),
        usage => format!("{} by {usage}", node.name),
    };
    let walking: Vec<String> = walking.map(why).collect();
    match (cluster.nodes.len(), walking.is_empty()) {
        (0, _) => not_applicable("there is no Node"),
        (_, true) => pass("all Nodes count by project quotas for Pods with hostUsers: false, and walk for others"),
        (_, false) => warn(format!("what Pods have on disk is measured: {}", walking.join("; "))),
    }
}

fn conflicting_tables(facts: &Facts) -> CheckResult {
    let Ok(cluster) = &facts.cluster else { return not_applicable("the cluster cannot be asked") };
    let found = cluster.nodes.iter().filter_map(|node| Some((node, node.conflicting_tables.as_ref()?)));
    let (said, conflicts) = found.fold((0, Vec::new()), |(said, mut conflicts), (node, (is_conflict, which))| {
        conflicts.extend(is_conflict.then(|| format!("{}: {which}", node.name)));
        (said + 1, conflicts)
    });
    match (said, conflicts.is_empty()) {
        (0, _) => not_applicable("no Node says"),
        (_, true) => pass(format!("none does, on {said} of {} Nodes", cluster.nodes.len())),
        (_, false) => warn(conflicts.join("; ")),
    }
}

fn security_module(host: &Host, name: &str) -> CheckResult {
    match host.text(LSM) {
        "" => not_applicable("securityfs is not mounted, so it cannot be seen; see server.process"),
        modules if modules.split(',').any(|module| module == name) => pass(format!("{name} is active")),
        modules => warn(format!("not among the active modules ({modules})")),
    }
}

fn controllers(facts: &Facts) -> CheckResult {
    let have: Vec<&str> = facts.host.text(CONTROLLERS).split_whitespace().collect();
    let missing: Vec<&str> = ["cpu", "memory", "pids"].into_iter().filter(|name| !have.contains(name)).collect();
    match missing.is_empty() {
        true => pass("cpu, memory and pids are there"),
        // An operator must accept that with a flag.
        false => {
            warn(format!("cgroup v2 controllers are missing: {}; limits of Pods are not enforced", missing.join(", ")))
        }
    }
}

/// Without it, a process with another cgroup's `cgroup.procs` open can move its own processes there, out of their limits
/// (cgroups(7)).
fn cgroup_delegation(facts: &Facts) -> CheckResult {
    let mounts = facts.host.text(MOUNTS).lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, fstype, options) = (fields.next()?, fields.next()?, fields.next()?);
        (fstype == "cgroup2").then_some((at, options))
    });
    let mut mounts = mounts.peekable();
    if mounts.peek().is_none() {
        return not_applicable("no cgroup2 is seen to be mounted");
    }
    let bare: Vec<&str> =
        mounts.filter(|(_, options)| !options.split(',').any(|o| o == "nsdelegate")).map(|m| m.0).collect();
    match bare.is_empty() {
        true => pass("cgroup2 is mounted with nsdelegate"),
        false => warn(format!("mounted without nsdelegate: {}", bare.join(", "))),
    }
}
