//! The checks of the baseline level: no known way for a Pod to reach its host.

use std::collections::HashSet;

use serde_json::Value;

use podwright_api::app_armor::ANNOTATION;
use podwright_api::capabilities::BASELINE;
use podwright_api::sysctls::is_safe;

use super::violation::{Pod, Violation, bad, containers, plural, quoted, setters, sorted, violation};

pub(super) fn app_armor(pod: Pod<'_>) -> Option<Violation> {
    let mut values = Vec::new();
    let mut setters = setters(pod, |context| {
        let of_type = context["appArmorProfile"]["type"].as_str();
        let is_bad = of_type.is_some_and(|of_type| !matches!(of_type, "RuntimeDefault" | "Localhost"));
        values.extend(of_type.filter(|_| is_bad).map(str::to_owned));
        is_bad
    });
    let allowed = |value: &str| matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
    let annotations = pod.annotations().filter(|(key, value)| key.starts_with(ANNOTATION) && !allowed(value));
    let annotations = sorted(annotations.map(|(key, value)| format!("{key}={value:?}")).collect());
    let mut values = sorted(values);
    if !annotations.is_empty() {
        let named = plural(annotations.len(), "annotation");
        setters = if setters.is_empty() { named } else { format!("{setters} and {named}") };
        values.extend(annotations);
    }
    if setters.is_empty() {
        return None;
    }
    let reason = plural(values.len(), "forbidden AppArmor profile");
    violation(reason, format!("{setters} must not set AppArmor profile type to {}", quoted(&values)))
}

pub(super) fn capabilities(pod: Pod<'_>) -> Option<Violation> {
    added(pod, BASELINE).and_then(|detail| violation("non-default capabilities", detail))
}

/// Capabilities that containers add beyond the allowed ones.
pub(super) fn added(pod: Pod<'_>, allowed: &[&str]) -> Option<String> {
    let mut found = Vec::new();
    let bad = bad(pod, |container| {
        let before = found.len();
        let add = container["securityContext"]["capabilities"]["add"].as_array().into_iter().flatten();
        found.extend(add.filter_map(Value::as_str).filter(|capability| !allowed.contains(capability)));
        found.len() > before
    });
    if bad.is_empty() {
        return None;
    }
    let (containers, found) = (containers(&bad), quoted(&sorted(found)));
    Some(format!("{containers} must not include {found} in securityContext.capabilities.add"))
}

pub(super) fn host_namespaces(pod: Pod<'_>) -> Option<Violation> {
    let fields = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| pod.spec[field] == true);
    let shared: Vec<String> = fields.map(|field| format!("{field}=true")).collect();
    if shared.is_empty() { None } else { violation("host namespaces", shared.join(", ")) }
}

pub(super) fn host_paths(pod: Pod<'_>) -> Option<Violation> {
    let volumes = pod.spec["volumes"].as_array().into_iter().flatten();
    let names: Vec<&str> =
        volumes.filter(|volume| volume["hostPath"].is_object()).filter_map(|volume| volume["name"].as_str()).collect();
    match names.is_empty() {
        true => None,
        false => violation("hostPath volumes", format!("{} {}", plural(names.len(), "volume"), quoted(&names))),
    }
}

/// Upstream's `container "a" uses X "b"`, `containers "a", "b" use Xs ...`.
fn uses(containers_: &[&str], what: &str, count: usize, list: &str) -> String {
    let verb = if containers_.len() == 1 { "uses" } else { "use" };
    format!("{} {verb} {} {list}", containers(containers_), plural(count, what))
}

pub(super) fn host_ports(pod: Pod<'_>) -> Option<Violation> {
    let mut found: Vec<String> = Vec::new();
    let bad = bad(pod, |container| {
        let before = found.len();
        let ports = container["ports"].as_array().into_iter().flatten();
        found.extend(ports.filter_map(|port| port["hostPort"].as_i64()).filter(|n| *n != 0).map(|n| n.to_string()));
        found.len() > before
    });
    let found = sorted(found);
    if bad.is_empty() { None } else { violation("hostPort", uses(&bad, "hostPort", found.len(), &found.join(", "))) }
}

pub(super) fn probed_hosts(pod: Pod<'_>) -> Option<Violation> {
    let mut found = Vec::new();
    let bad = bad(pod, |container| {
        let before = found.len();
        let lifecycle = &container["lifecycle"];
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
        for handler in probes.into_iter().chain([&lifecycle["postStart"], &lifecycle["preStop"]]) {
            let hosts = ["httpGet", "tcpSocket"].into_iter().filter_map(|action| handler[action]["host"].as_str());
            found.extend(hosts.filter(|host| !host.is_empty()));
        }
        found.len() > before
    });
    let (bad, found) = (sorted(bad), sorted(found));
    match bad.is_empty() {
        true => None,
        false => {
            let what = "probe or lifecycle host";
            violation(what, uses(&bad, what, found.len(), &quoted(&found)))
        }
    }
}

pub(super) fn privileged(pod: Pod<'_>) -> Option<Violation> {
    let bad = bad(pod, |container| container["securityContext"]["privileged"] == true);
    match bad.is_empty() {
        true => None,
        false => violation("privileged", format!("{} must not set securityContext.privileged=true", containers(&bad))),
    }
}

pub(super) fn proc_mount_0(pod: Pod<'_>) -> Option<Violation> {
    let mut values = Vec::new();
    let bad = bad(pod, |container| {
        let mount = container["securityContext"]["procMount"].as_str().filter(|mount| *mount != "Default");
        values.extend(mount);
        mount.is_some()
    });
    if bad.is_empty() {
        return None;
    }
    let (containers, values) = (containers(&bad), quoted(&sorted(values)));
    violation("procMount", format!("{containers} must not set securityContext.procMount to {values}"))
}
pub(super) fn proc_mount_35(pod: Pod<'_>) -> Option<Violation> {
    // In a user namespace of its own it sees nothing of the host.
    if pod.has_own_users() { None } else { proc_mount_0(pod) }
}

const SE_LINUX_TYPES: &[&str] = &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

pub(super) fn se_linux_0(pod: Pod<'_>) -> Option<Violation> {
    se_linux(pod, &SE_LINUX_TYPES[..4])
}
pub(super) fn se_linux_31(pod: Pod<'_>) -> Option<Violation> {
    se_linux(pod, SE_LINUX_TYPES)
}

fn se_linux(pod: Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let (mut types, mut user, mut role) = (Vec::new(), false, false);
    let setters = setters(pod, |context| {
        let field = |name: &str| context["seLinuxOptions"][name].as_str().unwrap_or("").to_owned();
        let (of_type, has_user, has_role) = (field("type"), !field("user").is_empty(), !field("role").is_empty());
        let bad_type = !allowed.contains(&of_type.as_str());
        if bad_type {
            types.push(of_type);
        }
        user |= has_user;
        role |= has_role;
        bad_type || has_user || has_role
    });
    if setters.is_empty() {
        return None;
    }
    let types = sorted(types);
    let mut what = Vec::new();
    if !types.is_empty() {
        what.push(format!("{} {}", plural(types.len(), "type"), quoted(&types)));
    }
    if user {
        what.push("user may not be set".to_owned());
    }
    if role {
        what.push("role may not be set".to_owned());
    }
    let what = what.join("; ");
    violation("seLinuxOptions", format!("{setters} set forbidden securityContext.seLinuxOptions: {what}"))
}

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// Annotations from before there were fields.
pub(super) fn seccomp_annotations(pod: Pod<'_>) -> Option<Violation> {
    let allowed =
        |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let containers: HashSet<&str> = pod.containers().filter_map(|container| container["name"].as_str()).collect();
    let is_known = |key: &str| {
        let container = key.strip_prefix(SECCOMP_CONTAINER);
        key == SECCOMP_POD || container.is_some_and(|name| containers.contains(name))
    };
    let bad = pod.annotations().filter(|(key, value)| is_known(key) && !allowed(value));
    let bad = sorted(bad.map(|(key, value)| format!("{key}={value:?}")).collect());
    match bad.is_empty() {
        true => None,
        false => {
            violation("seccompProfile", format!("forbidden {} {}", plural(bad.len(), "annotation"), bad.join(", ")))
        }
    }
}

pub(super) fn seccomp(pod: Pod<'_>) -> Option<Violation> {
    let mut values = Vec::new();
    let setters = setters(pod, |context| {
        let of_type = context["seccompProfile"]["type"].as_str();
        let is_bad = of_type.is_some_and(|of_type| !matches!(of_type, "RuntimeDefault" | "Localhost"));
        values.extend(of_type.filter(|_| is_bad).map(str::to_owned));
        is_bad
    });
    match setters.is_empty() {
        true => None,
        false => {
            let values = quoted(&sorted(values));
            let detail = format!("{setters} must not set securityContext.seccompProfile.type to {values}");
            violation("seccompProfile", detail)
        }
    }
}

pub(super) fn sysctls_0(pod: Pod<'_>) -> Option<Violation> {
    sysctls(pod, 0)
}
pub(super) fn sysctls_27(pod: Pod<'_>) -> Option<Violation> {
    sysctls(pod, 27)
}
pub(super) fn sysctls_29(pod: Pod<'_>) -> Option<Violation> {
    sysctls(pod, 29)
}
pub(super) fn sysctls_32(pod: Pod<'_>) -> Option<Violation> {
    sysctls(pod, 32)
}

fn sysctls(pod: Pod<'_>, version: u32) -> Option<Violation> {
    let all = pod.spec["securityContext"]["sysctls"].as_array().into_iter().flatten();
    let bad: Vec<&str> =
        all.filter_map(|sysctl| sysctl["name"].as_str()).filter(|name| !is_safe(name, version)).collect();
    if bad.is_empty() { None } else { violation("forbidden sysctls", bad.join(", ")) }
}

pub(super) fn windows_host_process(pod: Pod<'_>) -> Option<Violation> {
    let setters = setters(pod, |context| context["windowsOptions"]["hostProcess"] == true);
    match setters.is_empty() {
        true => None,
        false => {
            violation("hostProcess", format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"))
        }
    }
}
