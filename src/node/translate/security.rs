//! Security contexts: users and groups, capabilities, seccomp, masked paths; the container's word goes before the Pod's.

use std::{collections::HashSet, path::Path};

use k8s_openapi::api::core::v1::{Container, Pod, SeccompProfile};
use podwright_runtime::{
    image::Image,
    oci::{Capability, LinuxSeccomp},
    profile,
    seccomp::default_seccomp,
};
use serde_json::{Value, json};

use super::create_error;
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

/// The capabilities of a container: the default set, less `drop`, plus `add`; all that there are for privileged ones.
pub fn capabilities(container: &Container) -> Result<HashSet<Capability>, String> {
    if is_privileged(container) {
        return Ok(profile::all_capabilities());
    }
    let asked = container.security_context.as_ref().and_then(|c| c.capabilities.as_ref());
    let find = |name: &String| -> Result<Capability, String> {
        let upper = name.to_uppercase();
        let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
        serde_json::from_value(Value::String(full)).map_err(|_| format!("unknown capability \"{name}\""))
    };
    let is_all = |name: &&String| name.eq_ignore_ascii_case("ALL");
    let (add, drop) = (asked.and_then(|a| a.add.as_ref()), asked.and_then(|a| a.drop.as_ref()));
    let mut set = profile::default_capabilities();
    if add.into_iter().flatten().any(|n| is_all(&n)) {
        set = profile::all_capabilities();
    }
    if drop.into_iter().flatten().any(|n| is_all(&n)) {
        set.clear();
    }
    for name in drop.into_iter().flatten().filter(|n| !is_all(n)) {
        set.remove(&find(name)?);
    }
    for name in add.into_iter().flatten().filter(|n| !is_all(n)) {
        set.insert(find(name)?);
    }
    Ok(set)
}

/// The five sets: root holds them, others may only gain them by a file's capabilities.
pub fn capability_sets(capabilities: &HashSet<Capability>, root: bool) -> Value {
    let none = HashSet::new();
    let held = if root { capabilities } else { &none };
    json!({ "bounding": capabilities, "effective": held, "permitted": held, "inheritable": [], "ambient": [] })
}

/// The seccomp filter: the runtime's default unless somebody says otherwise.
pub fn seccomp(
    pod: &Pod,
    container: &Container,
    capabilities: &HashSet<Capability>,
    dir: &Path,
) -> Result<Option<LinuxSeccomp>, Trouble> {
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
            let read = || -> Result<LinuxSeccomp, String> {
                let bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
                serde_json::from_slice(&bytes).map_err(|e| e.to_string())
            };
            let failed = |e| create_error(format!("cannot load seccomp profile \"{}\": {e}", path.display()));
            read().map(Some).map_err(failed)
        }
        _ => Ok(Some(default_seccomp(capabilities))),
    }
}

/// Masked and read-only paths; none for privileged containers and `procMount: Unmasked`.
pub fn paths(container: &Container) -> (Vec<String>, Vec<String>) {
    let unmasked = container.security_context.as_ref().and_then(|c| c.proc_mount.as_deref()) == Some("Unmasked");
    if is_privileged(container) || unmasked {
        return (Vec::new(), Vec::new());
    }
    (profile::default_masked_paths(), profile::default_readonly_paths())
}
