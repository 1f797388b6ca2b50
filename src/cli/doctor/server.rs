//! Checks of the API server: authentication, anonymous access, encryption, auditing, and the confinement of its process.

use super::facts::{Cluster, Facts};
use super::{Check, CheckResult, fail, not_applicable, pass, warn};

pub const CHECKS: &[Check] = &[
    Check {
        id: "server.reachable",
        cis: &[],
        what: "the cluster can be looked at",
        how: "the API, by the socket of --server",
        rule: |facts| match &facts.cluster {
            Ok(_) => pass("it answers, and says what is in force"),
            Err(why) => fail(why.message.clone()),
        },
        remedy: "run this as root on the server's machine, with --server where its socket is elsewhere",
    },
    Check {
        id: "server.anonymous",
        cis: &["1.2.1"],
        what: "who shows no credential may do nothing but discover",
        how: "bindings of system:anonymous and system:unauthenticated",
        rule: |facts| {
            of(facts, |cluster| match &*cluster.anonymous_bindings {
                [] => pass("only health, version and what every cluster lets him read"),
                bindings => fail(format!("bound by {}", bindings.join(", "))),
            })
        },
        remedy: "delete these bindings",
    },
    Check {
        id: "server.authorization",
        cis: &["1.2.6", "1.2.7", "1.2.8"],
        what: "every request is authorized, a node's by what its Pods need",
        how: "what the server says of --authorization-mode",
        rule: authorization,
        remedy: "--authorization-mode=Node,RBAC, which is the default",
    },
    Check {
        id: "server.admission",
        cis: &["1.2.12", "1.2.13", "1.2.14"],
        what: "the admission plugins that keep tenants and nodes apart are on",
        how: "what the server says of --disable-admission-plugins",
        rule: admission,
        remedy: "leave --disable-admission-plugins out",
    },
    Check {
        id: "server.token-file",
        cis: &["1.2.2"],
        what: "no fixed tokens",
        how: "what the server says of --token-auth-file",
        rule: |facts| {
            of(facts, |cluster| match cluster.protections.fixed_tokens {
                0 => pass("there are none"),
                count => fail(format!("{count} tokens of a file never end, and cannot be revoked without a restart")),
            })
        },
        remedy: "use client certificates, OpenID Connect or ServiceAccount tokens instead of --token-auth-file",
    },
    Check {
        id: "server.encryption",
        cis: &["1.2.27", "1.2.28"],
        what: "Secrets are encrypted in the store",
        how: "raw values of the store, as the server reads them past the encryption",
        rule: |facts| {
            of(facts, |cluster| {
                let found = &cluster.protections.secrets;
                match (found.configured, &*found.clear) {
                    (true, []) => pass(format!("{} looked at, all encrypted", found.encrypted)),
                    (false, _) => fail("what is written now is not encrypted".to_owned()),
                    (true, clear) => fail(format!("in the clear: {}", clear.join(", "))),
                }
            })
        },
        remedy: "name secrets with a key first in the EncryptionConfiguration, and restart: all is encrypted anew",
    },
    Check {
        id: "server.audit",
        cis: &["1.2.16"],
        what: "there is an audit log",
        how: "what the server says",
        rule: |facts| {
            of(facts, |cluster| match cluster.protections.audit {
                true => pass("it is kept"),
                false => warn("nobody can tell afterwards who did what"),
            })
        },
        remedy: "--audit-policy-file and --audit-log-path",
    },
    Check {
        id: "server.listening",
        cis: &[],
        what: "the API is reached only from where it must be",
        how: "what the server says of --listen",
        rule: listening,
        remedy: "--listen ADDR:PORT with the one address that Pods and nodes need, or a firewall",
    },
    Check {
        id: "server.process",
        cis: &[],
        what: "the server has given up the rights that it does not need",
        how: "its /proc/PID/status: user, capabilities, no_new_privs, seccomp; Landlock by its own word",
        rule: process,
        remedy: "run `podwright server --user podwright` and `podwright agent` as two processes",
    },
    Check {
        id: "server.bootstrap-tokens",
        cis: &[],
        what: "bootstrap tokens end",
        how: "Secrets of type bootstrap.kubernetes.io/token",
        rule: |facts| {
            of(facts, |cluster| {
                let endless = cluster.bootstrap_tokens.iter().filter(|(_, ends)| !ends);
                let endless: Vec<&str> = endless.map(|(name, _)| name.as_str()).collect();
                match endless.is_empty() {
                    true => pass(format!("{} looked at", cluster.bootstrap_tokens.len())),
                    false => warn(format!("for ever: {}", endless.join(", "))),
                }
            })
        },
        remedy: "set `expiration` in the Secret, or delete it once the nodes have joined",
    },
    Check {
        id: "server.endless-tokens",
        cis: &[],
        what: "no tokens of ServiceAccounts that never end",
        how: "Secrets of type kubernetes.io/service-account-token",
        rule: |facts| {
            of(facts, |cluster| match &*cluster.endless_tokens {
                [] => pass("there are none"),
                tokens => warn(tokens.join(", ")),
            })
        },
        remedy: "use `create token` or projected tokens, and delete these Secrets",
    },
    Check {
        id: "server.administrators",
        cis: &["5.1.1"],
        what: "nobody but the administrators' group is cluster-admin",
        how: "ClusterRoleBindings and RoleBindings to cluster-admin",
        rule: |facts| {
            of(facts, |cluster| match &*cluster.administrators {
                [] => pass("system:masters alone"),
                subjects => warn(format!("also {}", subjects.join(", "))),
            })
        },
        remedy: "bind narrower roles",
    },
    Check {
        id: "node.flags",
        cis: &[],
        what: "nodes enforce limits, and allow no unsafe sysctls",
        how: "the command lines of this machine's podwright processes",
        rule: flags,
        remedy: "start the node without --isolated, --allow-missing-cgroup-controllers and --allowed-unsafe-sysctls",
    },
];

/// Evaluates the cluster's facts; if there are none, that is reported elsewhere.
pub fn of(facts: &Facts, rule: impl FnOnce(&Cluster) -> CheckResult) -> CheckResult {
    match &facts.cluster {
        Ok(cluster) => rule(cluster),
        Err(_) => not_applicable("the cluster cannot be looked at"),
    }
}

fn authorization(facts: &Facts) -> CheckResult {
    of(facts, |cluster| {
        let modes: Vec<&str> = cluster.protections.authorization.iter().map(String::as_str).collect();
        let all = modes.join(",");
        match ["Node", "RBAC"].into_iter().find(|mode| !modes.contains(mode)) {
            _ if modes.is_empty() => not_applicable("a server of an earlier version, which does not say"),
            _ if modes.contains(&"AlwaysAllow") => fail(format!("{all}: whoever is recognized may do everything")),
            Some(missing) => warn(format!("{all}, without {missing}")),
            None => pass(all),
        }
    })
}

/// Without these, users get access to others' objects; without other plugins, less is kept in order.
const WALLS: &[&str] = &["NodeRestriction", "PodSecurity", "ServiceAccount", "NamespaceLifecycle"];

fn admission(facts: &Facts) -> CheckResult {
    of(facts, |cluster| {
        let off = &cluster.protections.disabled_admission;
        match (off.iter().any(|name| WALLS.contains(&&**name)), off.is_empty()) {
            (true, _) => fail(format!("off: {}", off.join(", "))),
            (false, false) => warn(format!("off: {}", off.join(", "))),
            (false, true) => pass("all are on"),
        }
    })
}

fn listening(facts: &Facts) -> CheckResult {
    of(facts, |cluster| {
        let all = &cluster.protections.listening;
        let everywhere = |at: &&String| at.parse::<std::net::SocketAddr>().is_ok_and(|at| at.ip().is_unspecified());
        match (all.iter().find(everywhere), all.is_empty()) {
            (Some(at), _) => warn(format!("{at} is all addresses of this machine")),
            (None, true) => pass("on the socket alone"),
            (None, false) => pass(all.join(", ")),
        }
    })
}

fn process(facts: &Facts) -> CheckResult {
    of(facts, |cluster| {
        let process = &cluster.protections.process;
        if process.runs_node {
            return not_applicable("`up` also runs the node, which needs root's rights");
        }
        let mut missing = Vec::new();
        for (has, what) in [
            (process.capabilities == 0, "no capabilities"),
            (process.no_new_privs, "no_new_privs"),
            (process.seccomp == 2, "a seccomp filter"),
        ] {
            missing.extend((!has).then_some(what));
        }
        match (&*missing, process.uid, process.landlock) {
            ([], 1.., true) => pass(format!("uid {}, no capabilities, seccomp, Landlock", process.uid)),
            ([], 1.., false) => warn("the kernel has no Landlock"),
            ([], 0, _) => warn("it runs as root, though without capabilities"),
            (missing, ..) => fail(format!("it lacks {}", missing.join(", "))),
        }
    })
}

fn flags(facts: &Facts) -> CheckResult {
    let host = &facts.host;
    let unsafe_sysctls = host.flags("--allowed-unsafe-sysctls");
    let node = host.processes.iter().any(|words| matches!(words.get(1).map(String::as_str), Some("up" | "agent")));
    let unlimited = host.processes.iter().flatten().any(|word| word == "--allow-missing-cgroup-controllers");
    // It implies the other.
    let isolated =
        host.processes.iter().flatten().any(|word| matches!(word.as_str(), "--isolated" | "--isolated=true"));
    match (node, unsafe_sysctls.is_empty(), unlimited) {
        (false, ..) => not_applicable("no node runs here"),
        _ if isolated => warn("an isolated node goes on where limits cannot be enforced: it is to try things out"),
        (_, false, _) => warn(format!("unsafe sysctls are allowed: {}", unsafe_sysctls.join(", "))),
        (_, _, true) => warn("a node goes on where limits cannot be enforced"),
        _ => pass("neither is loosened"),
    }
}
