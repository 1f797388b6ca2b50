//! Translates PodSpecs to the runtime's terms, and nothing else does: a sandbox spec per Pod, an OCI spec per container. Pure.

pub mod env;
pub mod expand;
pub mod files;
pub mod network;
mod security;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use podwright_runtime::{
    CgroupName, ContainerId, ContainerSpec, LogSpec, Network, PidMode, Resources, Rootfs, SandboxSpec, image::Image,
    oci, profile, protocol, sysctl::dotted,
};
use serde_json::{Value, json};

use super::{
    executor::{ActionError, Reason, StartOrder},
    id_pool::IdPool,
    labels, qos,
    spec::{ContainerRef, PodExt, is_privileged},
};
pub use expand::expand;
use expand::{ALL, ONE, POINTER, Room};

/// A host file or folder to mount into a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub source: PathBuf,
    pub destination: String,
    /// OCI mount options: `rbind`, `ro`, `rprivate`, ...
    pub options: Vec<String>,
}

impl Mounted {
    pub fn bind(source: impl Into<PathBuf>, destination: &str, read_only: bool) -> Mounted {
        let mode = if read_only { "ro" } else { "rw" };
        let options = ["rbind", "rprivate", mode].map(str::to_owned).to_vec();
        Mounted { source: source.into(), destination: destination.to_owned(), options }
    }
}

/// A host device for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its path in the container.
    pub path: String,
    /// `st_rdev`.
    pub number: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub read_only: bool,
}

/// The inputs of a translation besides the manifest.
pub struct Context<'a> {
    pub pod: &'a Pod,
    pub part: &'a ContainerRef<'a>,
    pub order: &'a StartOrder,
    pub image: &'a Image,
    /// The manifest's variables; those of the image are added here.
    pub env: env::Env,
    /// Volumes and managed files, in the manifest's order.
    pub mounts: Vec<Mounted>,
    /// Volumes that are block devices.
    pub devices: Vec<Device>,
    pub hostname: &'a str,
    pub log: PathBuf,
    /// The node's memory in bytes.
    pub memory: i64,
    /// Where `Localhost` seccomp profiles are kept.
    pub seccomp_dir: &'a Path,
    /// Its AppArmor profile.
    pub app_armor: Option<String>,
    /// The host ids reserved for Pods with user namespaces.
    pub ids: IdPool,
}

fn create_error(message: impl std::fmt::Display) -> ActionError {
    ActionError::new(Reason::CreateContainerError, message)
}

/// `<uid>_<attempt>`.
pub fn sandbox_id(uid: &str, attempt: u32) -> String {
    format!("{uid}_{attempt}")
}

/// The Pod's uid and the attempt of a sandbox's id; of an id that is not of this form all, and 0.
pub fn split_sandbox_id(id: &str) -> (String, u32) {
    match id.rsplit_once('_') {
        Some((uid, attempt)) => (uid.to_owned(), attempt.parse().unwrap_or(0)),
        None => (id.to_owned(), 0),
    }
}

/// The cgroup of a QoS class.
pub fn class_cgroup(class: qos::Class) -> CgroupName {
    CgroupName::new(&class.as_str().to_lowercase())
}

/// The Pod's sandbox. `node_network` is the node's network namespace if it has its own.
pub fn sandbox(
    pod: &Pod,
    attempt: u32,
    hostname: &str,
    node_network: Option<&Path>,
    pids_max: Option<u64>,
) -> SandboxSpec {
    let spec = pod.spec();
    let class = qos::class(pod);
    SandboxSpec {
        id: sandbox_id(pod.uid(), attempt),
        hostname: if pod.host_network() { String::new() } else { hostname.to_owned() },
        network: match (pod.host_network(), node_network) {
            (false, _) => Network::New,
            (true, None) => Network::Host,
            (true, Some(path)) => Network::Path(path.to_owned()),
        },
        pid: match (spec.host_pid, spec.share_process_namespace) {
            (Some(true), _) => PidMode::Host,
            (_, Some(true)) => PidMode::Sandbox,
            _ => PidMode::Container,
        },
        host_ipc: spec.host_ipc == Some(true),
        users: None,
        sysctls: sysctls(pod),
        cgroup: class_cgroup(class).child(&format!("pod{}", pod.uid())),
        resources: pod_limits(pod, pids_max),
        labels: labels::of_pod(pod, attempt),
        annotation: String::new(),
        owner: pod.namespace().to_owned(),
    }
}

/// The settings of the Pod's own cgroup.
pub fn pod_limits(pod: &Pod, pids_max: Option<u64>) -> Resources {
    Resources {
        cpu_weight: Some(qos::cpu_weight(qos::pod_request(pod, "cpu"))),
        cpu_quota_us: qos::pod_limit(pod, "cpu").and_then(qos::cpu_quota),
        memory_max: qos::pod_limit(pod, "memory").map(|m| (m / 1000) as u64),
        pids_max,
        ..Resources::default()
    }
}

/// containerd's settings for every Pod network namespace: unprivileged ping and low ports; the Pod's own sysctls override them.
const SYSCTLS: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];

/// The groups that exist in a Pod's user namespace.
const OWN_GROUPS: (&str, &str) = ("net.ipv4.ping_group_range", "0 65535");

fn sysctls(pod: &Pod) -> BTreeMap<String, String> {
    let own_groups = pod.has_own_users().then_some(OWN_GROUPS);
    let usual = SYSCTLS.iter().chain(&own_groups).filter(|_| !pod.host_network());
    let usual = usual.map(|(name, value)| (name.to_string(), value.to_string()));
    let asked = pod.spec().security_context.iter().flat_map(|s| s.sysctls.iter().flatten());
    usual.chain(asked.map(|s| (dotted(&s.name).into_owned(), s.value.clone()))).collect()
}

/// One container.
///
/// 1. who it runs as, 2. with which environment, 3. what it executes, 4. what it sees, 5. what it may do, 6. its limits.
///
/// # Errors
///
/// `CreateContainerConfigError` for a user that the manifest forbids, `CreateContainerError` for all other failures.
pub fn container(mut context: Context<'_>) -> Result<ContainerSpec, ActionError> {
    let given = std::mem::take(&mut context.env);
    let Context { pod, part, order, image, .. } = &context;
    let container = &part.container;
    let privileged = is_privileged(container);
    let user = security::user(pod, container, image)?;
    match pod.has_own_users() {
        true => security::check_mapped(&user)?,
        false => security::check_foreign(&user, context.ids, pod, container)?,
    }
    let env = environment(&context, given, &user);
    let args = arguments(container, image, &env)?;
    let variables: Vec<String> = env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    check_size(&args, &variables)?;
    let cwd = container.working_dir.clone().filter(|d| !d.is_empty()).unwrap_or_else(|| image.working_dir());
    let capabilities = security::capabilities(container).map_err(create_error)?;
    let seccomp = security::seccomp(pod, container, &capabilities, context.seccomp_dir)?;
    let (masked, read_only) = security::paths(container);
    let context_of = container.security_context.as_ref();

    let mut spec = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": container.tty == Some(true),
            "user": { "uid": user.uid, "gid": user.gid, "additionalGids": user.groups },
            "args": args,
            "cwd": if cwd.is_empty() { "/" } else { cwd.as_str() },
            "capabilities": security::capability_sets(&capabilities, user.uid == 0),
            "apparmorProfile": context.app_armor,
            "noNewPrivileges": context_of.and_then(|c| c.allow_privilege_escalation) == Some(false),
            "oomScoreAdj": qos::oom_score_adj(pod, container, context.memory),
        },
        "root": { "path": "rootfs", "readonly": context_of.and_then(|c| c.read_only_root_filesystem) == Some(true) },
        "mounts": mounts(&context.mounts, privileged, pod.has_own_users()),
        "linux": {
            "maskedPaths": masked,
            "readonlyPaths": read_only,
            "devices": context.devices.iter().map(block_device).collect::<Vec<_>>(),
            "resources": { "devices": allowed(container, &context.devices)? },
            "seccomp": seccomp,
            "rootfsPropagation": propagation(&context.mounts),
        },
    });
    // Moved, not cloned: there may be megabytes.
    spec["process"]["env"] = Value::from(variables);
    let oci: oci::Spec = serde_json::from_value(spec).map_err(create_error)?;
    Ok(ContainerSpec {
        id: ContainerId::new(sandbox_id(pod.uid(), order.sandbox), part.name(), order.restart),
        pid_of: order
            .target
            .as_ref()
            .map(|(name, restart)| ContainerId::new(sandbox_id(pod.uid(), order.sandbox), name.as_str(), *restart)),
        oci,
        // The store lists the uppermost layer first, the runtime the lowest.
        rootfs: Rootfs::Layers(image.layers.iter().rev().cloned().collect()),
        log: Some(LogSpec::new(context.log.clone())),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        resources: limits(container.resources.as_ref()),
        labels: labels::of_container(pod, part, order, &image.layers),
        annotation: String::new(),
    })
}

fn block_device(device: &Device) -> Value {
    let (major, minor) = (rustix::fs::major(device.number), rustix::fs::minor(device.number));
    json!({
        "path": device.path, "type": "b", "major": major, "minor": minor,
        "fileMode": device.mode, "uid": device.uid, "gid": device.gid,
    })
}

/// A container's device rules: the default ones, and access to its own devices.
fn allowed(container: &Container, given: &[Device]) -> Result<Vec<oci::LinuxDeviceCgroup>, ActionError> {
    let mut rules = devices(container);
    for device in given {
        let rule = json!({
            "allow": true, "type": "b", "access": if device.read_only { "rm" } else { "rwm" },
            "major": rustix::fs::major(device.number), "minor": rustix::fs::minor(device.number),
        });
        rules.push(serde_json::from_value(rule).map_err(create_error)?);
    }
    Ok(rules)
}

/// A container's access to the host's devices.
pub fn devices(container: &Container) -> Vec<oci::LinuxDeviceCgroup> {
    profile::default_devices(is_privileged(container))
}

/// The image's variables, the hostname, then the manifest's; PATH, HOME and TERM if unset.
fn environment(context: &Context<'_>, given: env::Env, user: &security::User) -> env::Env {
    let mut all = env::Env::default();
    for pair in context.image.env() {
        if let Some((name, value)) = pair.split_once('=') {
            all.set(name, value);
        }
    }
    all.set("HOSTNAME", context.hostname);
    for (name, value) in given {
        all.set(name, value);
    }
    let default = |all: &mut env::Env, name: &str, value: &str| {
        if all.get(name).is_none() {
            all.set(name, value);
        }
    };
    default(&mut all, "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    default(&mut all, "HOME", user.home.as_deref().unwrap_or("/"));
    if context.part.container.tty == Some(true) {
        default(&mut all, "TERM", "xterm");
    }
    all
}

/// `command` replaces the image's entrypoint and cmd; `args` alone replaces the cmd.
fn arguments(container: &Container, image: &Image, env: &env::Env) -> Result<Vec<String>, ActionError> {
    let mut room = Room::default();
    let mut expanded = |list: &Option<Vec<String>>| -> Result<Vec<String>, ActionError> {
        let one = |text: &String| {
            let text = expand(text, |name| env.get(name)).map_err(create_error)?;
            room.take(text.len()).map_err(create_error)?;
            Ok(text)
        };
        list.iter().flatten().map(one).collect()
    };
    let (command, args) = (expanded(&container.command)?, expanded(&container.args)?);
    let mut all = match (command.is_empty(), args.is_empty()) {
        (false, _) => command,
        (true, false) => image.entrypoint(),
        (true, true) => [image.entrypoint(), image.cmd()].concat(),
    };
    all.extend(args);
    if all.is_empty() {
        return Err(create_error("no command specified"));
    }
    Ok(all)
}

/// Rejects what exceeds the limits of a process, before it is written anywhere.
fn check_size(args: &[String], variables: &[String]) -> Result<(), ActionError> {
    let sum = |list: &[String]| list.iter().map(|text| text.len() + 1 + POINTER).sum::<usize>();
    let longest = args.iter().chain(variables).map(|text| text.len() + 1).max().unwrap_or(0);
    if longest <= ONE && sum(args) + sum(variables) <= ALL {
        // Escaping increases the size.
        let sent = protocol::fits(&args, 0).and_then(|beside| protocol::fits(&variables, beside));
        return sent.map(drop).map_err(|why| create_error(format!("{why}, args and env")));
    }
    let sizes = format!("{} bytes of args, {} bytes of env, {longest} in one string", sum(args), sum(variables));
    Err(create_error(format!("argument list too long: {sizes}; at most {ALL}, {ONE} in one string")))
}

/// The system's mounts, then the Pod's; the runtime sorts parents before children. With a user namespace, the Pod's files are
/// idmapped: what root owns on the host, root owns in the Pod.
fn mounts(volumes: &[Mounted], privileged: bool, own_users: bool) -> Vec<Value> {
    let system = profile::default_mounts(privileged).into_iter();
    let mut all: Vec<Value> =
        system.filter(|m| !(privileged && m.destination().as_path() == Path::new("/dev"))).map(|m| json!(m)).collect();
    if privileged {
        let options = ["rbind", "rprivate", "rw"];
        all.push(json!({ "destination": "/dev", "type": "bind", "source": "/dev", "options": options }));
    }
    all.extend(volumes.iter().map(|m| {
        let options: Vec<&str> = m.options.iter().map(String::as_str).chain(own_users.then_some("ridmap")).collect();
        json!({ "destination": m.destination, "type": "bind", "source": m.source, "options": options })
    }));
    all
}

/// The root's propagation must allow that of the mounts.
fn propagation(mounts: &[Mounted]) -> Option<&'static str> {
    let any = |option: &str| mounts.iter().any(|m| m.options.iter().any(|o| o == option));
    match () {
        () if any("rshared") => Some("rshared"),
        () if any("rslave") => Some("rslave"),
        () => None,
    }
}

/// Requests and limits as cgroup v2 settings.
pub fn limits(resources: Option<&ResourceRequirements>) -> Resources {
    let limit = |name: &str| resources.and_then(|r| r.limits.as_ref()?.get(name));
    let request = resources.and_then(|r| r.requests.as_ref()?.get("cpu")).or_else(|| limit("cpu"));
    let memory_max = limit("memory").map(|q| qos::units(q) as u64).filter(|m| *m > 0);
    Resources {
        cpu_weight: Some(qos::cpu_weight(request.map_or(0, qos::millis))),
        cpu_quota_us: limit("cpu").map(qos::millis).and_then(qos::cpu_quota),
        memory_max,
        // Swap would soften the limit; a container that exceeds it is killed as a whole, as upstream on v2.
        memory_swap_max: memory_max.map(|_| 0),
        oom_group: memory_max.map(|_| true),
        ..Resources::default()
    }
}
