//! Checks of workloads: Pod Security of namespaces, privileged Pods, unneeded tokens and missing limits.

use super::facts::{Facts, Namespace, Pod};
use super::server::of;
use super::{Check, CheckResult, Verdict, pass, warn};

/// System Pods may need more.
const SYSTEM: &[&str] = &["kube-system", "kube-public", "kube-node-lease"];
/// How many are listed.
const NAMED: usize = 5;

pub const CHECKS: &[Check] = &[
    Check {
        id: "workloads.pod-security",
        cis: &["5.2.1"],
        what: "every namespace enforces a Pod Security level",
        how: "the label pod-security.kubernetes.io/enforce",
        rule: |facts| {
            of(facts, |cluster| {
                let open = cluster.namespaces.iter().filter(|namespace| {
                    !SYSTEM.contains(&&*namespace.name)
                        && matches!(namespace.enforced.as_deref(), None | Some("privileged"))
                });
                told(open.map(|namespace| namespace.name.clone()).collect(), "anything goes in")
            })
        },
        remedy: "label namespaces pod-security.kubernetes.io/enforce=baseline or restricted, or set defaults by \
                 --admission-control-config-file",
    },
    Check {
        id: "workloads.privileged",
        cis: &["5.2.2"],
        what: "no Pod is privileged",
        how: "spec of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.privileged),
        remedy: "drop `privileged`, and enforce Pod Security",
    },
    Check {
        id: "workloads.host-path",
        cis: &["5.2.12"],
        what: "no Pod mounts folders of its node",
        how: "hostPath volumes of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.host_path),
        remedy: "use other volumes, and enforce Pod Security",
    },
    Check {
        id: "workloads.host-namespaces",
        cis: &["5.2.3", "5.2.4", "5.2.5"],
        what: "no Pod shares network, processes or IPC with its node",
        how: "hostNetwork, hostPID and hostIPC of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.host_namespaces),
        remedy: "drop them, and enforce Pod Security",
    },
    Check {
        id: "workloads.capabilities",
        cis: &["5.2.9"],
        what: "no container adds capabilities beyond the baseline's",
        how: "securityContext.capabilities.add of all containers outside the system's namespaces, ephemeral ones too",
        rule: |facts| pods(facts, |pod| pod.added_capabilities),
        remedy: "drop them, and enforce Pod Security",
    },
    Check {
        id: "workloads.seccomp",
        cis: &["5.7.2"],
        what: "no container goes without a seccomp filter",
        how: "seccompProfile of all Pods and containers outside the system's namespaces; who says nothing has RuntimeDefault, \
              privileged ones have none",
        rule: |facts| pods(facts, |pod| pod.unfiltered),
        remedy: "drop `type: Unconfined`, and enforce Pod Security",
    },
    Check {
        id: "workloads.proc-mount",
        cis: &[],
        what: "no container sees all of its node's /proc",
        how: "securityContext.procMount of all containers outside the system's namespaces; with hostUsers: false it shows nothing of \
              the node's",
        rule: |facts| pods(facts, |pod| pod.unmasked && pod.shares_users),
        remedy: "drop `procMount: Unmasked`, or set hostUsers: false",
    },
    Check {
        id: "workloads.system-priorities",
        cis: &[],
        what: "the system's priorities are the system's alone",
        how: "Pods that have system-node-critical or system-cluster-critical; admission policies with a binding that denies them, \
              and ResourceQuotas that leave no Pods for these PriorityClasses",
        rule: system_priorities,
        remedy: "podwright apply -f manifests/system-priorities.yaml",
    },
    Check {
        id: "workloads.sysctls",
        cis: &[],
        what: "no Pod sets sysctls beyond the safe ones",
        how: "securityContext.sysctls of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.unsafe_sysctls),
        remedy: "drop them",
    },
    Check {
        id: "workloads.default-tokens",
        cis: &["5.1.5", "5.1.6"],
        what: "no Pod has a token of the ServiceAccount `default` without asking",
        how: "volumes of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.default_token),
        remedy: "automountServiceAccountToken: false on the ServiceAccount `default`, or a ServiceAccount of its own",
    },
    Check {
        id: "workloads.limits",
        cis: &[],
        what: "every container has a memory limit",
        how: "resources of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.unlimited),
        remedy: "set limits, or a LimitRange with defaults",
    },
    Check {
        id: "workloads.users",
        cis: &[],
        what: "every Pod has users of its own",
        how: "hostUsers of all Pods outside the system's namespaces; who is the same user of the host shares what the kernel counts \
              by user (watches of epoll and inotify, descriptors on their way, pipes)",
        rule: |facts| pods(facts, |pod| pod.shares_users),
        remedy: "hostUsers: false, at least where those who own namespaces do not trust each other",
    },
];

/// Such Pods preempt others.
fn system_priorities(facts: &Facts) -> CheckResult {
    match pods(facts, |pod| pod.system_priority) {
        (Verdict::Pass, _) => of(facts, |cluster| {
            let open =
                |namespace: &&Namespace| !SYSTEM.contains(&&*namespace.name) && !namespace.bars_system_priorities;
            let open = cluster.namespaces.iter().filter(|_| !cluster.bars_system_priorities).filter(open);
            told(open.map(|namespace| namespace.name.clone()).collect(), "Pods may take them in")
        }),
        found => found,
    }
}

fn pods(facts: &Facts, is: impl Fn(&Pod) -> bool) -> CheckResult {
    of(facts, |cluster| {
        let system = |pod: &&Pod| !SYSTEM.iter().any(|namespace| pod.name.starts_with(&format!("{namespace}/")));
        let found = cluster.pods.iter().filter(system).filter(|pod| is(pod));
        told(found.map(|pod| pod.name.clone()).collect(), "these do")
    })
}

fn told(found: Vec<String>, how: &str) -> CheckResult {
    if found.is_empty() {
        return pass("none does otherwise");
    }
    let more = if found.len() > NAMED { format!(" and {} more", found.len() - NAMED) } else { String::new() };
    warn(format!("{how}: {}{more}", found[..found.len().min(NAMED)].join(", ")))
}
