//! Security contexts: users and groups, capabilities, seccomp, masked paths; the container's settings override the Pod's.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, Read},
    path::Path,
};

use k8s_openapi::api::core::v1::{Container, Pod, SeccompProfile};
use podwright_runtime::{
    image::Image,
    oci::{Capability, LinuxSeccomp},
    profile,
    seccomp::default_seccomp,
};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use serde_json::{Value, json};

use super::create_error;
use crate::{
    executor::{ActionError, Reason},
    id_pool::{IDS_PER_POD, IdPool},
    spec::{PodExt, is_privileged},
};

/// The user of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// The supplementary groups, including the primary one.
    pub groups: Vec<u32>,
    pub home: Option<String>,
}

fn config_error(why: &str, pod: &Pod, container: &Container) -> ActionError {
    let place = format!("(pod: \"{}\", container: {})", pod.full_name(), container.name);
    ActionError::new(Reason::CreateContainerConfigError, format!("{why} {place}"))
}

/// The user, from manifest and image. Like upstream's `verifyRunAsNonRoot`, but checks the process's actual uid, however the image
/// specifies it.
///
/// # Errors
///
/// The image has no such user, a group is out of range, or `runAsNonRoot` forbids it.
pub fn user(pod: &Pod, container: &Container, image: &Image) -> Result<User, ActionError> {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec().security_context.as_ref();
    let run_as_user = own.and_then(|c| c.run_as_user).or(of_pod.and_then(|c| c.run_as_user));
    let run_as_group = own.and_then(|c| c.run_as_group).or(of_pod.and_then(|c| c.run_as_group));
    let non_root = own.and_then(|c| c.run_as_non_root).or(of_pod.and_then(|c| c.run_as_non_root)) == Some(true);
    let refuse = |why: String| Err(config_error(&why, pod, container));

    let image_user = image.user();
    let name = image_user.split(':').next().filter(|u| !u.is_empty()).unwrap_or("0");
    if non_root && run_as_user.is_none() && name.parse::<i64>().is_err() {
        let why = "cannot verify user is non-root";
        return refuse(format!("container has runAsNonRoot and image has non-numeric user ({name}), {why}"));
    }
    let spec = match (run_as_user, run_as_group) {
        (Some(uid), Some(gid)) => format!("{uid}:{gid}"),
        (Some(uid), None) => uid.to_string(),
        (None, Some(gid)) => format!("{name}:{gid}"),
        (None, None) => image_user.clone(),
    };
    let ids = image.resolve_user(&spec).map_err(create_error)?;
    if non_root && ids.uid == 0 {
        return refuse(match run_as_user {
            Some(_) => "container's runAsUser breaks non-root policy".into(),
            None => "container has runAsNonRoot and image will run as root".into(),
        });
    }
    let strict = of_pod.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict");
    let mut groups = if strict { Vec::new() } else { ids.groups };
    for asked in of_pod.iter().flat_map(|c| c.supplemental_groups.iter().flatten().copied().chain(c.fs_group)) {
        let group = u32::try_from(asked).ok().filter(|g| i32::try_from(*g).is_ok());
        groups.push(group.ok_or_else(|| create_error(format!("group {asked} is not in range 0-{}", i32::MAX)))?);
    }
    // As containerd since CVE-2023-25173: a process that changes its primary group, through a set-group-ID program, must not lose
    // access restrictions by group.
    groups.push(ids.gid);
    groups.sort_unstable();
    groups.dedup();
    Ok(User { uid: ids.uid, gid: ids.gid, groups, home: ids.home })
}

/// Checks that all ids of a user are mapped in the Pod's user namespace.
///
/// # Errors
///
/// The first that is not.
pub fn check_mapped(user: &User) -> Result<(), ActionError> {
    let mut ids = [user.uid, user.gid].into_iter().chain(user.groups.iter().copied());
    match ids.find(|id| *id >= IDS_PER_POD) {
        Some(id) => {
            Err(create_error(format!("id {id} is not mapped in the Pod's user namespace of {IDS_PER_POD} ids")))
        }
        None => Ok(()),
    }
}

/// Checks that a user in the host's namespace has no id reserved for Pods with user namespaces. The image's `USER`, or its
/// `/etc/passwd` and `/etc/group`, may specify one; the manifest's ids are checked earlier (`admission::ids`).
///
/// # Errors
///
/// The first reserved id.
pub fn check_foreign(user: &User, pool: IdPool, pod: &Pod, container: &Container) -> Result<(), ActionError> {
    let refuse = |what: &str, id: u32| {
        let why = format!("container and image have {what} {id}: {}", pool.kept());
        Err(config_error(&why, pod, container))
    };
    let taken = |id: &u32| pool.has(i64::from(*id));
    let mut groups = [user.gid].into_iter().chain(user.groups.iter().copied());
    match (taken(&user.uid), groups.find(taken)) {
        (true, _) => refuse("user", user.uid),
        (_, Some(group)) => refuse("group", group),
        (false, None) => Ok(()),
    }
}

/// Linux has no capability of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown capability \"{0}\"")]
pub struct UnknownCapability(pub String);

/// The capabilities of a container: the default set, minus `drop`, plus `add`; all for privileged ones.
///
/// # Errors
///
/// A name that is not a capability.
pub fn capabilities(container: &Container) -> Result<HashSet<Capability>, UnknownCapability> {
    if is_privileged(container) {
        return Ok(profile::all_capabilities());
    }
    let asked = container.security_context.as_ref().and_then(|c| c.capabilities.as_ref());
    let find = |name: &String| -> Result<Capability, UnknownCapability> {
        let upper = name.to_uppercase();
        let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
        serde_json::from_value(Value::String(full)).map_err(|_| UnknownCapability(name.clone()))
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

/// The five sets: root holds them, other users can only gain them through file capabilities.
pub fn capability_sets(capabilities: &HashSet<Capability>, root: bool) -> Value {
    let none = HashSet::new();
    let held = if root { capabilities } else { &none };
    json!({ "bounding": capabilities, "effective": held, "permitted": held, "inheritable": [], "ambient": [] })
}

/// The seccomp filter: the runtime's default unless specified otherwise.
///
/// # Errors
///
/// The host's profile does not exist or is invalid.
pub fn seccomp(
    pod: &Pod,
    container: &Container,
    capabilities: &HashSet<Capability>,
    dir: &Path,
) -> Result<Option<LinuxSeccomp>, ActionError> {
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
            let failed = |e: io::Error| {
                create_error(format!("cannot load seccomp profile \"{}\": {e}", dir.join(name).display()))
            };
            let bytes = read_beneath(dir, name).map_err(failed)?;
            serde_json::from_slice(&bytes).map(Some).map_err(|e| failed(e.into()))
        }
        _ => Ok(Some(default_seccomp(capabilities))),
    }
}

/// Maximum size of a profile.
const LARGEST_PROFILE: u64 = 1 << 20;

/// The content of a file below a folder. Follows no symlinks, and reads only regular files: a name cannot escape.
fn read_beneath(dir: &Path, name: &str) -> io::Result<Vec<u8>> {
    let dir = open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // Without blocking on the other end of a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat2(&dir, name, flags, Mode::empty(), how)?);
    let found = file.metadata()?;
    if !found.is_file() || found.len() > LARGEST_PROFILE {
        return Err(io::Error::other("not a file of at most 1 MiB"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_PROFILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Masked and read-only paths; none for privileged containers and `procMount: Unmasked`.
pub fn paths(container: &Container) -> (Vec<String>, Vec<String>) {
    let unmasked = container.security_context.as_ref().and_then(|c| c.proc_mount.as_deref()) == Some("Unmasked");
    if is_privileged(container) || unmasked {
        return (Vec::new(), Vec::new());
    }
    (profile::default_masked_paths(), profile::default_readonly_paths())
}
