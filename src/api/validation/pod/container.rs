//! Containers: regular, init, sidecar and ephemeral ones.

use std::collections::HashSet;

use super::super::{At, Errors, names};
use super::paths::{descending, no_backsteps};
use super::{Scope, env, handlers, resources, security};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Regular,
    Init,
    Sidecar,
    Ephemeral,
}

/// The names of the containers so far.
type Names<'a> = HashSet<&'a str>;

/// All containers of a spec.
pub fn all(scope: &Scope<'_>, errs: &mut Errors) {
    let spec = scope.spec;
    let mut seen = Names::new();
    let regular = spec.get("containers");
    if regular.is_empty() {
        errs.required(&regular.path, "");
    }
    for container in regular.items() {
        one(scope, &container, Role::Regular, &mut seen, errs);
        if container.get("restartPolicy").is_set() {
            errs.forbidden(container.path("restartPolicy"), "may not be set for non-init containers");
        }
    }
    host_ports(scope, &regular, errs);
    for container in spec.get("initContainers").items() {
        init(scope, &container, &mut seen, errs);
    }
    ports_of_all(spec, errs);
    let targets = seen.clone();
    for container in spec.get("ephemeralContainers").items() {
        one(scope, &container, Role::Ephemeral, &mut seen, errs);
        ephemeral(&targets, &container, errs);
    }
}

fn init<'a>(scope: &Scope<'_>, container: &At<'a>, seen: &mut Names<'a>, errs: &mut Errors) {
    let policy = container.get("restartPolicy");
    let sidecar = policy.str() == "Always";
    if policy.is_set() && !sidecar {
        errs.not_supported(&policy.path, policy.str(), &["Always"]);
    }
    one(scope, container, if sidecar { Role::Sidecar } else { Role::Init }, seen, errs);
    if !sidecar {
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if container.get(field).is_set() {
                let why = "may not be set for init containers without restartPolicy=Always";
                errs.forbidden(container.path(field), why);
            }
        }
    }
    host_ports_of(container, &mut HashSet::new(), errs);
}

fn ephemeral(targets: &Names<'_>, container: &At<'_>, errs: &mut Errors) {
    let target = container.get("targetContainerName");
    if !target.is_empty() && !targets.contains(target.str()) {
        errs.not_found(&target.path, target.str());
    }
    for field in ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources", "resizePolicy"]
    {
        let at = container.get(field);
        if at.is_set() && !at.is_empty() {
            errs.forbidden(&at.path, "cannot be set for an Ephemeral Container");
        }
    }
    for mount in container.get("volumeMounts").items() {
        for field in ["subPath", "subPathExpr"] {
            if !mount.get(field).is_empty() {
                errs.forbidden(mount.path(field), "cannot be set for an Ephemeral Container");
            }
        }
    }
}

fn one<'a>(scope: &Scope<'_>, container: &At<'a>, role: Role, seen: &mut Names<'a>, errs: &mut Errors) {
    let name = container.get("name");
    if name.is_empty() {
        errs.required(&name.path, "");
    } else {
        errs.invalid_each(&name.path, name.str(), names::dns1123_label(name.str()));
        if !seen.insert(name.str()) {
            errs.duplicate(&name.path, name.str());
        }
    }
    image(&container.get("image"), errs);
    errs.one_of(&container.get("terminationMessagePolicy"), &["File", "FallbackToLogsOnError"]);
    errs.one_of(&container.get("imagePullPolicy"), &["Always", "IfNotPresent", "Never"]);
    ports(&container.get("ports"), errs);
    env::all(container, errs);
    mounts(scope, container, errs);
    devices(scope, container, errs);
    resources::of_container(&container.get("resources"), errs);
    resize_policy(scope, container, errs);
    if !matches!(role, Role::Init | Role::Ephemeral) {
        handlers::container(scope, container, errs);
    }
    security::container(scope, container, errs);
}

fn image(image: &At<'_>, errs: &mut Errors) {
    if image.is_empty() {
        errs.required(&image.path, "");
    } else if image.str().trim() != image.str() {
        errs.invalid(&image.path, image.str(), "must not have leading or trailing whitespace");
    }
}

fn ports(ports: &At<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if !name.is_empty() {
            let wrong = names::port_name(name.str());
            if !wrong.is_empty() {
                errs.invalid_each(&name.path, name.str(), wrong);
            } else if seen.contains(&name.str()) {
                errs.duplicate(&name.path, name.str());
            } else {
                seen.insert(name.str());
            }
        }
        match port.get("containerPort").int().unwrap_or(0) {
            0 => errs.required(port.path("containerPort"), ""),
            n => port_number(port.path("containerPort"), n, errs),
        }
        if let n @ (1.. | ..=-1) = port.get("hostPort").int().unwrap_or(0) {
            port_number(port.path("hostPort"), n, errs);
        }
        errs.one_of(&port.get("protocol"), PROTOCOLS);
        let ip = port.get("hostIP");
        if !ip.is_empty() {
            errs.invalid_each(&ip.path, ip.str(), names::ip(ip.str()));
        }
    }
}

/// The most ports of a Pod, in all its containers. Upstream has no limit; but Services look them up by name.
const MAX_PORTS: usize = 1024;

fn ports_of_all(spec: &At<'_>, errs: &mut Errors) {
    let containers = ["containers", "initContainers"].into_iter().flat_map(|list| spec.get(list).items());
    let all: usize = containers.map(|container| container.get("ports").len()).sum();
    if all > MAX_PORTS {
        errs.too_many(spec.path("containers[*].ports"), all, MAX_PORTS);
    }
}

fn port_number(path: String, n: i64, errs: &mut Errors) {
    for why in names::port_number(n) {
        errs.invalid(path.clone(), n, why);
    }
}

/// Host ports are unique in the Pod, and with host networking they equal the container's.
fn host_ports(scope: &Scope<'_>, containers: &At<'_>, errs: &mut Errors) {
    let mut seen = HashSet::new();
    for container in containers.items() {
        host_ports_of(&container, &mut seen, errs);
        if !scope.host_network() {
            continue;
        }
        for port in container.get("ports").items() {
            let (host, own) = (port.get("hostPort").int().unwrap_or(0), port.get("containerPort").int().unwrap_or(0));
            if (scope.is_pod || host != 0) && host != own {
                let why = "must match `containerPort` when `hostNetwork` is true";
                errs.invalid(port.path("hostPort"), host, why);
            }
        }
    }
}

fn host_ports_of(container: &At<'_>, seen: &mut HashSet<String>, errs: &mut Errors) {
    for port in container.get("ports").items() {
        let number = port.get("hostPort").int().unwrap_or(0);
        if number == 0 {
            continue;
        }
        let all = format!("{}/{}/{number}", port.get("protocol").str(), port.get("hostIP").str());
        if seen.contains(&all) {
            errs.duplicate(port.path("hostPort"), all);
        } else {
            seen.insert(all);
        }
    }
}

fn mounts(scope: &Scope<'_>, container: &At<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    let devices = container.get("volumeDevices");
    let of_devices = |field: &str| -> HashSet<&str> { devices.items().map(|d| d.get(field).str()).collect() };
    let (device_names, device_paths) = (of_devices("name"), of_devices("devicePath"));
    for mount in container.get("volumeMounts").items() {
        let (name, path) = (mount.get("name"), mount.get("mountPath"));
        if name.is_empty() {
            errs.required(&name.path, "");
        } else if scope.volume_source(name.str()).is_none() {
            errs.not_found(&name.path, name.str());
        }
        if !name.is_empty() && device_names.contains(name.str()) {
            errs.invalid(&name.path, name.str(), "must not already exist in volumeDevices");
        }
        if path.is_empty() {
            errs.required(&path.path, "");
        } else {
            if seen.contains(&path.str()) {
                errs.invalid(&path.path, path.str(), "must be unique");
            }
            if device_paths.contains(path.str()) {
                errs.invalid(&path.path, path.str(), "must not already exist as a path in volumeDevices");
            }
            seen.insert(path.str());
        }
        sub_path(&mount, errs);
        propagation(container, &mount, errs);
    }
}

fn sub_path(mount: &At<'_>, errs: &mut Errors) {
    let (plain, expression) = (mount.get("subPath"), mount.get("subPathExpr"));
    descending(&plain, errs);
    descending(&expression, errs);
    if !plain.is_empty() && !expression.is_empty() {
        errs.invalid(&expression.path, expression.str(), "subPathExpr and subPath are mutually exclusive");
    }
}

fn propagation(container: &At<'_>, mount: &At<'_>, errs: &mut Errors) {
    let at = mount.get("mountPropagation");
    if at.is_set() {
        errs.one_of(&at, &["Bidirectional", "HostToContainer", "None"]);
        if at.str() == "Bidirectional" && !container.get("securityContext").get("privileged").bool() {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            errs.forbidden(&at.path, why);
        }
    }
    let recursive = mount.get("recursiveReadOnly");
    if !recursive.is_set() {
        return;
    }
    errs.one_of(&recursive, &["Disabled", "Enabled", "IfPossible"]);
    if matches!(recursive.str(), "Enabled" | "IfPossible") {
        if !mount.get("readOnly").bool() {
            errs.forbidden(&recursive.path, "may only be specified when readOnly is true");
        }
        if !matches!(at.str(), "" | "None") {
            errs.forbidden(&recursive.path, "may only be specified when mountPropagation is None or not specified");
        }
    }
}

fn devices(scope: &Scope<'_>, container: &At<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for device in container.get("volumeDevices").items() {
        let (name, path) = (device.get("name"), device.get("devicePath"));
        if name.is_empty() {
            errs.required(&name.path, "");
        } else {
            match scope.volume_source(name.str()) {
                None => errs.not_found(&name.path, name.str()),
                Some("persistentVolumeClaim" | "ephemeral") => {}
                Some(_) => {
                    let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                    errs.invalid(&name.path, name.str(), why);
                }
            }
        }
        if path.is_empty() {
            errs.required(&path.path, "");
        } else {
            no_backsteps(&path, errs);
            if seen.contains(&path.str()) {
                errs.invalid(&path.path, path.str(), "must be unique");
            } else {
                seen.insert(path.str());
            }
        }
    }
}

fn resize_policy(scope: &Scope<'_>, container: &At<'_>, errs: &mut Errors) {
    let policies = &container.get("resizePolicy");
    let own = container.get("restartPolicy");
    let restart = if own.is_empty() { scope.spec.get("restartPolicy") } else { own };
    let mut seen: HashSet<&str> = HashSet::new();
    for policy in policies.items() {
        let name = policy.get("resourceName");
        if seen.contains(&name.str()) {
            errs.duplicate(&policies.path, name.str());
        }
        seen.insert(name.str());
        errs.one_of(&name, &["cpu", "memory"]);
        let how = policy.get("restartPolicy");
        errs.one_of(&how, &["NotRequired", "RestartContainer"]);
        if restart.str() == "Never" && how.str() == "RestartContainer" {
            errs.invalid(&policies.path, how.str(), "must be 'NotRequired' when `restartPolicy` is 'Never'");
        }
    }
}
