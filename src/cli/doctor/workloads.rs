//! Checks of what runs: Pod Security of namespaces, Pods with rights on their node, tokens and limits that nobody thought of.

use super::facts::{Facts, Pod};
use super::server::of;
use super::{Check, Found, pass, warn};

/// Pods of the system may need more.
const SYSTEM: &[&str] = &["kube-system", "kube-public", "kube-node-lease"];
/// So many are named.
const NAMED: usize = 5;

pub const CHECKS: &[Check] = &[
    Check {
        id: "workloads.pod-security",
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
        what: "no Pod is privileged",
        how: "spec of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.privileged),
        remedy: "drop `privileged`, and enforce Pod Security",
    },
    Check {
        id: "workloads.host-path",
        what: "no Pod mounts folders of its node",
        how: "hostPath volumes of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.host_path),
        remedy: "use other volumes, and enforce Pod Security",
    },
    Check {
        id: "workloads.host-namespaces",
        what: "no Pod shares network, processes or IPC with its node",
        how: "hostNetwork, hostPID and hostIPC of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.host_namespaces),
        remedy: "drop them, and enforce Pod Security",
    },
    Check {
        id: "workloads.sysctls",
        what: "no Pod sets sysctls beyond the safe ones",
        how: "securityContext.sysctls of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.unsafe_sysctls),
        remedy: "drop them",
    },
    Check {
        id: "workloads.default-tokens",
        what: "no Pod has a token of the ServiceAccount `default` without asking",
        how: "volumes of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.default_token),
        remedy: "automountServiceAccountToken: false on the ServiceAccount `default`, or a ServiceAccount of its own",
    },
    Check {
        id: "workloads.limits",
        what: "every container has a memory limit",
        how: "resources of all Pods outside the system's namespaces",
        rule: |facts| pods(facts, |pod| pod.unlimited),
        remedy: "set limits, or a LimitRange with defaults",
    },
    Check {
        id: "workloads.users",
        what: "every Pod has users of its own",
        how: "hostUsers of all Pods outside the system's namespaces; who is the same user of the host shares what the kernel counts \
              by user (watches of epoll and inotify, descriptors on their way, pipes)",
        rule: |facts| pods(facts, |pod| pod.shares_users),
        remedy: "hostUsers: false, at least where those who own namespaces do not trust each other",
    },
];

fn pods(facts: &Facts, is: impl Fn(&Pod) -> bool) -> Found {
    of(facts, |cluster| {
        let system = |pod: &&Pod| !SYSTEM.iter().any(|namespace| pod.name.starts_with(&format!("{namespace}/")));
        let found = cluster.pods.iter().filter(system).filter(|pod| is(pod));
        told(found.map(|pod| pod.name.clone()).collect(), "these do")
    })
}

fn told(found: Vec<String>, how: &str) -> Found {
    if found.is_empty() {
        return pass("none does otherwise");
    }
    let more = if found.len() > NAMED { format!(" and {} more", found.len() - NAMED) } else { String::new() };
    warn(format!("{how}: {}{more}", found[..found.len().min(NAMED)].join(", ")))
}
