//! The environment of a container: service links, envFrom, env, in upstream's order and with its errors. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, ResourceFieldSelector, Secret, Service},
};

use super::expand::{Room, TooLong, expand};
use crate::{
    executor::{ActionError, Reason},
    qos::{limit, millis, request, units},
    spec::PodExt,
};

/// The existing objects that a Pod refers to.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub secrets: BTreeMap<String, Arc<Secret>>,
    /// Services of the Pod's namespace, and `default/kubernetes`.
    pub services: Vec<Arc<Service>>,
}

/// Node properties that a manifest does not contain.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub host_ips: Vec<IpAddr>,
    pub pod_ips: Vec<IpAddr>,
    /// The node's allocatable resources: milli-CPUs, bytes.
    pub cpu_millis: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
}

/// Variables in order; a later one of the same name replaces the earlier one in place.
#[derive(Clone, Debug, Default)]
pub struct Env {
    all: Vec<(Arc<str>, String)>,
    /// The index of each.
    places: HashMap<Arc<str>, usize>,
}

impl Env {
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.places.get(&name) {
            Some(place) => self.all[*place].1 = value,
            None => {
                self.places.insert(name.clone(), self.all.len());
                self.all.push((name, value));
            }
        }
    }
    pub fn get(&self, name: &str) -> Option<&str> {
        self.places.get(name).map(|place| self.all[*place].1.as_str())
    }
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all.iter().map(|(name, value)| (&**name, value.as_str()))
    }
}

impl IntoIterator for Env {
    type Item = (Arc<str>, String);
    type IntoIter = std::vec::IntoIter<(Arc<str>, String)>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.into_iter()
    }
}

fn config_error(message: impl std::fmt::Display) -> ActionError {
    ActionError::new(Reason::CreateContainerConfigError, message)
}

/// The variables of the manifest. Service links come first and are overridden by the rest. Stops at the limits of execve(2), to
/// bound the work.
///
/// # Errors
///
/// `CreateContainerConfigError` for what does not exist, `CreateContainerError` beyond the limits of a process.
pub fn env(pod: &Pod, container: &Container, sources: &Sources, facts: &Facts) -> Result<Env, ActionError> {
    let mut room = Room::default();
    let services = service_links(pod, &sources.services, &mut room).map_err(too_long)?;
    let mut env = Env::default();
    env_from(container, sources, &mut env, &mut room)?;
    for var in container.env.iter().flatten() {
        let value = match &var.value_from {
            None => {
                let lookup = |name: &str| env.get(name).or_else(|| services.get(name));
                Some(expand(var.value.as_deref().unwrap_or_default(), lookup).map_err(too_long)?)
            }
            Some(source) => value_from(pod, container, source, sources, facts)?,
        };
        if let Some(value) = value {
            room.variable(var.name.len(), value.len()).map_err(too_long)?;
            env.set(var.name.clone(), value);
        }
    }
    let mut all = services;
    for (name, value) in env {
        all.set(name, value);
    }
    Ok(all)
}

fn too_long(why: TooLong) -> ActionError {
    ActionError::new(Reason::CreateContainerError, why)
}

fn env_from(container: &Container, sources: &Sources, env: &mut Env, room: &mut Room) -> Result<(), ActionError> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(map) = &from.config_map_ref {
            match sources.config_maps.get(&map.name) {
                Some(object) => {
                    for (key, value) in object.data.iter().flatten() {
                        room.variable(prefix.len() + key.len(), value.len()).map_err(too_long)?;
                        env.set(format!("{prefix}{key}"), value.clone());
                    }
                }
                None if map.optional == Some(true) => {}
                None => return Err(config_error(format!("configmap \"{}\" not found", map.name))),
            }
        }
        if let Some(secret) = &from.secret_ref {
            match sources.secrets.get(&secret.name) {
                Some(object) => {
                    for (key, value) in object.data.iter().flatten() {
                        room.variable(prefix.len() + key.len(), value.0.len()).map_err(too_long)?;
                        env.set(format!("{prefix}{key}"), text(value));
                    }
                }
                None if secret.optional == Some(true) => {}
                None => return Err(config_error(format!("secret \"{}\" not found", secret.name))),
            }
        }
    }
    Ok(())
}

fn text(bytes: &ByteString) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}

/// One variable's value from a reference; `None`: optional and missing.
fn value_from(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    sources: &Sources,
    facts: &Facts,
) -> Result<Option<String>, ActionError> {
    let namespace = pod.namespace();
    if let Some(selector) = &source.field_ref {
        return field(pod, facts, &selector.field_path).map(Some).map_err(config_error);
    }
    if let Some(selector) = &source.resource_field_ref {
        return resource(pod, Some(container), facts, selector).map(Some).map_err(config_error);
    }
    if let Some(selector) = &source.config_map_key_ref {
        let optional = selector.optional == Some(true);
        let Some(map) = sources.config_maps.get(&selector.name) else {
            return missing(optional, format!("configmap \"{}\" not found", selector.name));
        };
        return match map.data.as_ref().and_then(|data| data.get(&selector.key)) {
            Some(value) => Ok(Some(value.clone())),
            None => {
                let (key, name) = (&selector.key, &selector.name);
                missing(optional, format!("couldn't find key {key} in ConfigMap {namespace}/{name}"))
            }
        };
    }
    if let Some(selector) = &source.secret_key_ref {
        let optional = selector.optional == Some(true);
        let Some(secret) = sources.secrets.get(&selector.name) else {
            return missing(optional, format!("secret \"{}\" not found", selector.name));
        };
        return match secret.data.as_ref().and_then(|data| data.get(&selector.key)) {
            Some(value) => Ok(Some(text(value))),
            None => {
                let (key, name) = (&selector.key, &selector.name);
                missing(optional, format!("couldn't find key {key} in Secret {namespace}/{name}"))
            }
        };
    }
    Ok(None)
}

fn missing(optional: bool, message: String) -> Result<Option<String>, ActionError> {
    if optional { Ok(None) } else { Err(config_error(message)) }
}

/// Why the downward API cannot provide a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    #[error("unsupported fieldPath: {0}")]
    UnsupportedField(String),
    #[error("a resourceFieldRef in a volume needs a containerName")]
    NoContainerName,
    #[error("a resource is limits.* or requests.*")]
    NotAResource,
    /// Neither a limit nor a request.
    #[error("unsupported container resource : {0}")]
    UnsupportedResource(String),
}

/// A downward API field for variables and files.
///
/// # Errors
///
/// [`FieldError::UnsupportedField`].
pub fn field(pod: &Pod, facts: &Facts, path: &str) -> Result<String, FieldError> {
    let unsupported = || FieldError::UnsupportedField(path.to_owned());
    let meta = &pod.metadata;
    let join = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
    let first = |ips: &[IpAddr]| ips.first().map(IpAddr::to_string).unwrap_or_default();
    let pod_ips = if pod.host_network() { &facts.host_ips } else { &facts.pod_ips };
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(unsupported()),
        };
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => pod.uid().to_owned(),
        "metadata.labels" => lines(&meta.labels),
        "metadata.annotations" => lines(&meta.annotations),
        "spec.nodeName" => pod.spec().node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(&facts.host_ips),
        "status.hostIPs" => join(&facts.host_ips),
        "status.podIP" => first(pod_ips),
        "status.podIPs" => join(pod_ips),
        _ => return Err(unsupported()),
    })
}

/// A map in the downward API's format: `key="value"` lines, sorted.
fn lines(map: &Option<BTreeMap<String, String>>) -> String {
    map.iter().flatten().map(|(k, v)| format!("{k}={v:?}")).collect::<Vec<_>>().join("\n")
}

/// A resource of a container, in units of the divisor, rounded up; limits default to the node's allocatable.
///
/// # Errors
///
/// Neither `container` nor the selector names a container, or it is neither a limit nor a request.
pub fn resource(
    pod: &Pod,
    container: Option<&Container>,
    facts: &Facts,
    selector: &ResourceFieldSelector,
) -> Result<String, FieldError> {
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty()).and_then(|n| pod.part(n));
    let container = match (&named, container) {
        (Some(part), _) => part.container.as_ref(),
        (None, Some(container)) => container,
        (None, None) => return Err(FieldError::NoContainerName),
    };
    let (kind, resource) = selector.resource.split_once('.').ok_or(FieldError::NotAResource)?;
    let set = match kind {
        "limits" => limit(container, resource),
        "requests" => request(container, resource),
        _ => return Err(FieldError::UnsupportedResource(selector.resource.clone())),
    };
    let default = if kind == "limits" { allocatable(facts, resource) } else { 0 };
    let (value, divisor) = match resource {
        "cpu" => (set.map_or(default, millis), selector.divisor.as_ref().map_or(1000, millis)),
        _ => (set.map_or(default, units), selector.divisor.as_ref().map_or(1, units)),
    };
    let divisor = match divisor {
        // An empty divisor decodes as "0" and means one unit.
        0 if resource == "cpu" => 1000,
        0 => 1,
        other => other,
    };
    Ok((value.div_euclid(divisor) + i64::from(value.rem_euclid(divisor) != 0)).to_string())
}

fn allocatable(facts: &Facts, resource: &str) -> i64 {
    match resource {
        "cpu" => facts.cpu_millis,
        "memory" => facts.memory,
        "ephemeral-storage" => facts.ephemeral_storage,
        _ => 0,
    }
}

/// The variables by which a Pod finds Services, in the style of Docker links.
fn service_links(pod: &Pod, services: &[Arc<Service>], room: &mut Room) -> Result<Env, TooLong> {
    let mut env = Env::default();
    let links = pod.spec().enable_service_links.unwrap_or(true);
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let master = name == "kubernetes" && namespace == "default";
        if !master && (!links || namespace != pod.namespace()) {
            continue;
        }
        link(&mut env, name, service, room)?;
    }
    Ok(env)
}

fn link(env: &mut Env, name: &str, service: &Service, room: &mut Room) -> Result<(), TooLong> {
    let Some(spec) = &service.spec else { return Ok(()) };
    let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { return Ok(()) };
    let mut set = |name: String, value: &str| {
        room.variable(name.len(), value.len())?;
        env.set(name, value);
        Ok(())
    };
    let name = name.to_uppercase().replace('-', "_");
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first() else { return Ok(()) };
    set(format!("{name}_SERVICE_HOST"), ip)?;
    set(format!("{name}_SERVICE_PORT"), &first.port.to_string())?;
    for port in ports.iter().filter(|p| p.name.as_deref().is_some_and(|n| !n.is_empty())) {
        let port_name = port.name.as_deref().unwrap_or_default().to_uppercase().replace('-', "_");
        set(format!("{name}_SERVICE_PORT_{port_name}"), &port.port.to_string())?;
    }
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let lower = protocol.to_lowercase();
        let url = format!("{lower}://{host}:{}", port.port);
        if index == 0 {
            set(format!("{name}_PORT"), &url)?;
        }
        let prefix = format!("{name}_PORT_{}_{protocol}", port.port);
        set(prefix.clone(), &url)?;
        set(format!("{prefix}_PROTO"), &lower)?;
        set(format!("{prefix}_PORT"), &port.port.to_string())?;
        set(format!("{prefix}_ADDR"), ip)?;
    }
    Ok(())
}
