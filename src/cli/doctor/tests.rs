//! Tests of the checks' rules without a host: each passes in a good environment, and fails after one change.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::facts::{Certificate, Cluster, Content, Facts, File, Host, Namespace, Node, Pod, Swap};
use super::{Verdict, checks, judge};
use podwright_api::Status;
use podwright_api::protections::{AtRest, Process, Protections};

/// A host and a cluster with all protections.
fn good() -> Facts {
    let file = |path: &str, content, mode| File { path: path.into(), content, mode, uid: 0 };
    let kernel_files = [
        ("/proc/sys/user/max_user_namespaces", "65536"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/seccomp/actions_avail", "kill_process errno allow"),
        ("/sys/kernel/security/lsm", "landlock,yama,apparmor"),
        ("/sys/module/apparmor/parameters/enabled", "Y"),
        ("/sys/kernel/security/apparmor/profiles", "man (enforce)\npodwright-default (enforce)"),
        ("/sys/fs/cgroup/cgroup.controllers", "cpu io memory pids"),
        ("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate,memory_recursiveprot 0 0"),
        ("/proc/sys/kernel/yama/ptrace_scope", "1"),
        ("/proc/sys/kernel/core_pattern", "core"),
        ("/proc/sys/kernel/kptr_restrict", "1"),
        ("/proc/sys/kernel/dmesg_restrict", "1"),
        ("/proc/sys/kernel/unprivileged_bpf_disabled", "2"),
        ("/proc/sys/kernel/randomize_va_space", "2"),
        ("/proc/sys/fs/protected_symlinks", "1"),
        ("/proc/sys/fs/protected_hardlinks", "1"),
        ("/proc/sys/fs/protected_fifos", "1"),
        ("/proc/sys/fs/protected_regular", "2"),
        ("/proc/sys/fs/suid_dumpable", "0"),
    ];
    let now = Timestamp::UNIX_EPOCH;
    let process = Process { uid: 0, runs_node: true, ..Process::default() };
    let protections = Protections {
        secrets: AtRest { configured: true, encrypted: 3, clear: Vec::new() },
        audit: true,
        authorization: vec!["Node".into(), "RBAC".into()],
        listening: vec!["127.0.0.1:6443".into()],
        process,
        ..Protections::default()
    };
    let host = Host {
        now,
        kernel_files: kernel_files.map(|(path, text)| (path, text.to_owned())).into(),
        swaps: vec![Swap { device: "/dev/dm-0".into(), in_the_clear: false }],
        state: "/s".into(),
        files: vec![
            file("/s", Content::Folder, 0o700),
            file("/s/store.db", Content::Secret, 0o600),
            file("/s/api.sock", Content::Socket, 0o600),
            file("/usr/bin/podwright", Content::Program, 0o755),
        ],
        certificates: vec![Certificate { name: "ca.crt".into(), ends: now + SignedDuration::from_hours(24 * 300) }],
        processes: vec![vec!["podwright".into(), "up".into()]],
    };
    let namespaces = vec![
        Namespace { name: "kube-system".into(), ..Namespace::default() },
        Namespace { name: "default".into(), enforced: Some("restricted".into()), ..Namespace::default() },
    ];
    let pods = vec![Pod { name: "default/p".into(), ..Pod::default() }];
    let nodes = vec![Node {
        name: "n1".into(),
        user_namespaces: true,
        disk_usage: "project quotas".into(),
        conflicting_tables: Some((false, String::new())),
    }];
    let bootstrap_tokens = vec![("kube-system/t".into(), true)];
    let cluster = Cluster {
        protections,
        nodes,
        namespaces,
        pods,
        bootstrap_tokens,
        bars_system_priorities: true,
        ..Cluster::default()
    };
    Facts { host, cluster: Ok(cluster) }
}

fn verdict(facts: &Facts, id: &str) -> (Verdict, String) {
    let line = judge(facts).into_iter().find(|line| line.id == id).unwrap_or_else(|| panic!("no check {id}"));
    (line.verdict, line.why)
}

#[test]
fn where_all_is_well_nothing_is_complained_about() {
    for line in judge(&good()) {
        let wanted = match line.id {
            "server.process" => Verdict::NotApplicable,
            _ => Verdict::Pass,
        };
        assert_eq!(line.verdict, wanted, "{}: {}", line.id, line.why);
        assert_eq!(line.remedy.is_empty(), wanted != Verdict::Warn);
    }
}

/// A node that cannot tell must not count as one without such tables.
#[test]
fn tables_that_a_node_cannot_read_are_a_warning() {
    for (status, wanted) in [("False", false), ("True", true), ("Unknown", true)] {
        let condition = json!({ "type": "ConflictingTables", "status": status, "message": "m" });
        let node = json!({ "metadata": { "name": "n" }, "status": { "conditions": [condition] } });
        let node = super::cluster::node(serde_json::from_value(node).unwrap());
        assert_eq!(node.conflicting_tables, Some((wanted, "m".to_owned())), "{status}");
    }
}

type Break = fn(&mut Host, &mut Cluster);

/// What breaks each check, and with which result.
const BREAKS: &[(&str, Verdict, Break)] = &[
    ("kernel.user-namespaces", Verdict::Warn, |host, _| set(host, "/proc/sys/user/max_user_namespaces", "0")),
    ("kernel.user-namespaces", Verdict::Warn, |_, cluster| cluster.nodes[0].user_namespaces = false),
    ("kernel.project-quotas", Verdict::Warn, |_, cluster| cluster.nodes[0].disk_usage = "walking: no quotas".into()),
    ("kernel.project-quotas", Verdict::Warn, |_, cluster| cluster.nodes[0].disk_usage = String::new()),
    ("kernel.conflicting-tables", Verdict::Warn, |_, cluster| {
        cluster.nodes[0].conflicting_tables = Some((true, "inet t, chain c".into()));
    }),
    ("kernel.conflicting-tables", Verdict::NotApplicable, |_, cluster| cluster.nodes[0].conflicting_tables = None),
    ("kernel.unprivileged-userns", Verdict::Warn, |host, _| {
        set(host, "/proc/sys/kernel/unprivileged_userns_clone", "1")
    }),
    ("kernel.seccomp", Verdict::Fail, |host, _| host.kernel_files.clear()),
    ("kernel.landlock", Verdict::Warn, |host, _| set(host, "/sys/kernel/security/lsm", "yama")),
    ("kernel.mandatory-access", Verdict::Warn, |host, _| host.kernel_files.clear()),
    ("kernel.mandatory-access", Verdict::Warn, |host, _| {
        set(host, "/sys/kernel/security/apparmor/profiles", "podwright-default (complain)");
    }),
    ("kernel.mandatory-access", Verdict::Warn, |host, _| {
        host.kernel_files.remove("/sys/kernel/security/apparmor/profiles");
    }),
    ("kernel.mandatory-access", Verdict::Warn, |host, _| {
        host.kernel_files.remove("/sys/module/apparmor/parameters/enabled");
        set(host, "/sys/fs/selinux/enforce", "1");
    }),
    ("kernel.cgroup-delegation", Verdict::Warn, |host, _| {
        set(host, "/proc/self/mounts", "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0");
    }),
    ("kernel.cgroup-delegation", Verdict::NotApplicable, |host, _| {
        set(host, "/proc/self/mounts", "proc /proc proc rw 0 0")
    }),
    ("kernel.cgroup-limits", Verdict::Warn, |host, _| set(host, "/sys/fs/cgroup/cgroup.controllers", "cpu io")),
    ("kernel.ptrace", Verdict::Warn, |host, _| set(host, "/proc/sys/kernel/yama/ptrace_scope", "0")),
    ("kernel.core-pattern", Verdict::Warn, |host, _| set(host, "/proc/sys/kernel/core_pattern", "|/bin/handler %P")),
    ("kernel.protected-links", Verdict::Warn, |host, _| set(host, "/proc/sys/fs/protected_fifos", "0")),
    ("kernel.pointers", Verdict::Warn, |host, _| set(host, "/proc/sys/kernel/dmesg_restrict", "0")),
    ("kernel.unprivileged-bpf", Verdict::Warn, |host, _| set(host, "/proc/sys/kernel/unprivileged_bpf_disabled", "0")),
    ("kernel.aslr", Verdict::Fail, |host, _| set(host, "/proc/sys/kernel/randomize_va_space", "0")),
    ("kernel.suid-dumps", Verdict::Fail, |host, _| set(host, "/proc/sys/fs/suid_dumpable", "1")),
    ("kernel.swap", Verdict::Warn, |host, _| host.swaps[0].in_the_clear = true),
    ("files.folders", Verdict::Fail, |host, _| host.files[0].mode = 0o755),
    ("files.secrets", Verdict::Fail, |host, _| host.files[1].mode = 0o644),
    ("files.secrets", Verdict::Fail, |host, _| host.files[1].uid = 1000),
    ("files.socket", Verdict::Fail, |host, _| host.files[2].mode = 0o666),
    ("files.programs", Verdict::Fail, |host, _| host.files[3].mode = 0o775),
    ("files.programs", Verdict::Fail, |host, _| host.files[3].uid = 1000),
    ("files.certificates", Verdict::Fail, |host, _| host.certificates[0].ends = Timestamp::UNIX_EPOCH),
    ("files.certificates", Verdict::Warn, |host, _| {
        host.certificates[0].ends = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24);
    }),
    ("server.anonymous", Verdict::Fail, |_, cluster| cluster.anonymous_bindings = vec!["open".into()]),
    ("server.authorization", Verdict::Fail, |_, cluster| {
        cluster.protections.authorization.push("AlwaysAllow".into());
    }),
    ("server.authorization", Verdict::Warn, |_, cluster| cluster.protections.authorization = vec!["RBAC".into()]),
    ("server.authorization", Verdict::NotApplicable, |_, cluster| cluster.protections.authorization.clear()),
    ("server.admission", Verdict::Fail, |_, cluster| {
        cluster.protections.disabled_admission = vec!["LimitRanger".into(), "NodeRestriction".into()];
    }),
    ("server.admission", Verdict::Warn, |_, cluster| {
        cluster.protections.disabled_admission = vec!["LimitRanger".into()];
    }),
    ("server.token-file", Verdict::Fail, |_, cluster| cluster.protections.fixed_tokens = 1),
    ("server.encryption", Verdict::Fail, |_, cluster| cluster.protections.secrets.configured = false),
    ("server.encryption", Verdict::Fail, |_, cluster| {
        cluster.protections.secrets.clear = vec!["/registry/secrets/a/b".into()]
    }),
    ("server.audit", Verdict::Warn, |_, cluster| cluster.protections.audit = false),
    ("server.listening", Verdict::Warn, |_, cluster| cluster.protections.listening = vec!["[::]:6443".into()]),
    ("server.process", Verdict::Fail, |_, cluster| cluster.protections.process.runs_node = false),
    ("server.process", Verdict::Warn, |_, cluster| {
        cluster.protections.process =
            Process { uid: 991, no_new_privs: true, seccomp: 2, landlock: false, ..Process::default() };
    }),
    ("server.bootstrap-tokens", Verdict::Warn, |_, cluster| cluster.bootstrap_tokens[0].1 = false),
    ("server.endless-tokens", Verdict::Warn, |_, cluster| cluster.endless_tokens = vec!["default/t".into()]),
    ("server.administrators", Verdict::Warn, |_, cluster| cluster.administrators = vec!["User eve".into()]),
    ("node.flags", Verdict::Warn, |host, _| {
        host.processes[0].push("--allowed-unsafe-sysctls=net.core.somaxconn".into())
    }),
    ("node.flags", Verdict::Warn, |host, _| host.processes[0].push("--allow-missing-cgroup-controllers".into())),
    ("node.flags", Verdict::Warn, |host, _| host.processes[0].push("--isolated".into())),
    ("workloads.pod-security", Verdict::Warn, |_, cluster| cluster.namespaces[1].enforced = None),
    ("workloads.pod-security", Verdict::Warn, |_, cluster| cluster.namespaces[1].enforced = Some("privileged".into())),
    ("workloads.privileged", Verdict::Warn, |_, cluster| cluster.pods[0].privileged = true),
    ("workloads.host-path", Verdict::Warn, |_, cluster| cluster.pods[0].host_path = true),
    ("workloads.host-namespaces", Verdict::Warn, |_, cluster| cluster.pods[0].host_namespaces = true),
    ("workloads.capabilities", Verdict::Warn, |_, cluster| cluster.pods[0].added_capabilities = true),
    ("workloads.seccomp", Verdict::Warn, |_, cluster| cluster.pods[0].unfiltered = true),
    ("workloads.proc-mount", Verdict::Warn, |_, cluster| {
        (cluster.pods[0].unmasked, cluster.pods[0].shares_users) = (true, true);
    }),
    ("workloads.system-priorities", Verdict::Warn, |_, cluster| cluster.pods[0].system_priority = true),
    ("workloads.system-priorities", Verdict::Warn, |_, cluster| cluster.bars_system_priorities = false),
    ("workloads.sysctls", Verdict::Warn, |_, cluster| cluster.pods[0].unsafe_sysctls = true),
    ("workloads.default-tokens", Verdict::Warn, |_, cluster| cluster.pods[0].default_token = true),
    ("workloads.limits", Verdict::Warn, |_, cluster| cluster.pods[0].unlimited = true),
    ("workloads.users", Verdict::Warn, |_, cluster| cluster.pods[0].shares_users = true),
];

fn set(host: &mut Host, path: &'static str, text: &str) {
    host.kernel_files.insert(path, text.to_owned());
}

#[test]
fn one_thing_that_is_wrong_is_found() {
    for (id, wanted, breaks) in BREAKS {
        let mut facts = good();
        let Ok(cluster) = &mut facts.cluster else { unreachable!() };
        breaks(&mut facts.host, cluster);
        let (found, why) = verdict(&facts, id);
        assert_eq!(found, *wanted, "{id}: {why}");
    }
    let unbroken: Vec<&str> =
        checks().map(|check| check.id).filter(|id| !BREAKS.iter().any(|(broken, ..)| broken == id)).collect();
    assert_eq!(unbroken, ["server.reachable"], "checks that nothing breaks");
}

#[test]
fn who_is_not_answered_is_told_so_and_nothing_is_guessed() {
    let facts = Facts { cluster: Err(Status::unavailable("nobody listens")), ..good() };
    assert_eq!(verdict(&facts, "server.reachable"), (Verdict::Fail, "nobody listens".into()));
    assert_eq!(verdict(&facts, "server.encryption").0, Verdict::NotApplicable);
    assert_eq!(verdict(&facts, "kernel.seccomp").0, Verdict::Pass);
}

#[test]
fn a_server_that_has_dropped_its_rights_passes() {
    let mut facts = good();
    let Ok(cluster) = &mut facts.cluster else { unreachable!() };
    cluster.protections.process =
        Process { uid: 991, no_new_privs: true, seccomp: 2, landlock: true, ..Process::default() };
    assert_eq!(verdict(&facts, "server.process").0, Verdict::Pass);
    let Ok(cluster) = &mut facts.cluster else { unreachable!() };
    cluster.protections.process.uid = 0;
    assert_eq!(verdict(&facts, "server.process").0, Verdict::Warn);
}

/// A quota in each namespace is equivalent to the policy for all.
#[test]
fn a_namespace_bars_priorities_by_itself() {
    let mut facts = good();
    let Ok(cluster) = &mut facts.cluster else { unreachable!() };
    (cluster.bars_system_priorities, cluster.namespaces[1].bars_system_priorities) = (false, true);
    assert_eq!(verdict(&facts, "workloads.system-priorities").0, Verdict::Pass);
}

#[test]
fn the_benchmarks_numbers_are_numbers_each_said_once() {
    let mut numbers: Vec<&str> = checks().flat_map(|check| check.cis).copied().collect();
    for number in &numbers {
        let parts: Vec<u8> = number.split('.').map(|part| part.parse().expect("a number")).collect();
        assert!(parts.len() == 3 && matches!(parts[0], 1..=5), "{number}");
    }
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}

#[test]
fn ids_are_named_once() {
    let mut ids: Vec<&str> = checks().map(|check| check.id).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}
