//! Security contexts, of the Pod and of containers.

use std::collections::HashSet;

use crate::sysctls;

use super::super::{At, Errors, names};
use super::Scope;
use super::paths::descending;

fn id(at: &At<'_>, errs: &mut Errors) {
    if let Some(n) = at.int().filter(|n| !(0..=i64::from(i32::MAX)).contains(n)) {
        errs.invalid(&at.path, n, names::between(0, i32::MAX.into()));
    }
}

pub fn pod(scope: &Scope<'_>, errs: &mut Errors) {
    let spec = scope.spec;
    let context = spec.get("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(&context.get(field), errs);
    }
    for group in context.get("supplementalGroups").items() {
        id(&group, errs);
    }
    if spec.get("shareProcessNamespace").bool() && spec.get("hostPID").bool() {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errs.invalid(context.path("shareProcessNamespace"), true, why);
    }
    sysctls(scope, &context.get("sysctls"), errs);
    for (field, supported) in [
        ("fsGroupChangePolicy", &["OnRootMismatch", "Always"]),
        ("supplementalGroupsPolicy", &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &["MountOption", "Recursive"]),
    ] {
        let at = context.get(field);
        if at.is_set() {
            errs.one_of(&at, supported);
        }
    }
    profiles(&context, errs);
    if spec.get("hostUsers").value == false {
        for field in ["hostNetwork", "hostIPC", "hostPID"] {
            if spec.get(field).bool() {
                errs.forbidden(spec.path(field), "when `hostUsers` is false");
            }
        }
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            let devices = spec.get(list).items().map(|container| container.get("volumeDevices"));
            for devices in devices.filter(|devices| !devices.is_empty()) {
                errs.forbidden(devices.path.clone(), "when `hostUsers` is false");
            }
        }
    }
}

/// The longest name of an AppArmor profile.
const LONGEST_PROFILE: usize = 4095;

fn sysctls(scope: &Scope<'_>, list: &At<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for sysctl in list.items() {
        let name = sysctl.get("name");
        let segment = |s: &str| {
            let ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            let bytes = s.as_bytes();
            ends(bytes.first())
                && ends(bytes.last())
                && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
        };
        if name.is_empty() {
            errs.required(&name.path, "");
            continue;
        }
        if name.len() > 253 || !name.str().split(['.', '/']).all(segment) {
            let why = "must have at most 253 characters and match regex \
                       ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errs.invalid(&name.path, name.str(), why);
        } else if seen.contains(&name.str()) {
            errs.duplicate(&name.path, name.str());
        }
        seen.insert(name.str());
        // With host namespaces these sysctls are the host's.
        let dotted = sysctls::dotted(name.str());
        if scope.host_network() && dotted.starts_with("net.") {
            errs.invalid(&name.path, name.str(), "may not be specified when 'hostNetwork' is true");
        }
        let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."].iter().any(|p| dotted.starts_with(p));
        if ipc && scope.spec.get("hostIPC").bool() {
            errs.invalid(&name.path, name.str(), "may not be specified when 'hostIPC' is true");
        }
    }
}

fn profiles(context: &At<'_>, errs: &mut Errors) {
    for (field, called) in [("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")] {
        let at = context.get(field);
        if !at.is_set() {
            continue;
        }
        let (kind, local) = (at.get("type"), at.get("localhostProfile"));
        errs.one_of(&kind, &["Localhost", "RuntimeDefault", "Unconfined"]);
        match (kind.str(), local.is_set()) {
            ("Localhost", false) => {
                errs.required(&local.path, &format!("must be set when {called} type is Localhost"));
            }
            ("Localhost", true) if field == "seccompProfile" => descending(&local, errs),
            ("Localhost", true) => profile_name(&local, errs),
            (_, true) => {
                let why = format!("can only be set when {called} type is Localhost");
                errs.invalid(&local.path, local.str(), why);
            }
            (_, false) => {}
        }
    }
}

/// The name of an AppArmor profile must not be a path.
fn profile_name(local: &At<'_>, errs: &mut Errors) {
    if local.str().trim() != local.str() {
        errs.invalid(&local.path, local.str(), "must not be padded with whitespace");
    } else if local.is_empty() {
        errs.required(&local.path, "must be set when AppArmor type is Localhost");
    }
    if local.str().len() > LONGEST_PROFILE {
        errs.too_long(&local.path, LONGEST_PROFILE);
    }
}

pub fn container(scope: &Scope<'_>, container: &At<'_>, errs: &mut Errors) {
    let context = container.get("securityContext");
    if !context.is_set() {
        return;
    }
    for field in ["runAsUser", "runAsGroup"] {
        id(&context.get(field), errs);
    }
    let proc_mount = context.get("procMount");
    if proc_mount.is_set() {
        errs.one_of(&proc_mount, &["Default", "Unmasked"]);
        if proc_mount.str() == "Unmasked" && scope.spec.get("hostUsers").value != false {
            errs.invalid(&proc_mount.path, proc_mount.str(), "`hostUsers` must be false to use `Unmasked`");
        }
    }
    profiles(&context, errs);
    if context.get("allowPrivilegeEscalation").value == false {
        if context.get("privileged").bool() {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errs.invalid_value(&context.path, context.value, why);
        }
        // Upstream's spelling; manifests name capabilities without the prefix.
        if context.get("capabilities").get("add").items().any(|c| c.str() == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errs.invalid_value(&context.path, context.value, why);
        }
    }
}
