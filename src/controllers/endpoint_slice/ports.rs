//! Resolves a Service's ports in its Pods: a named port may have different numbers in different Pods.
//!
//! Users determine both lists: each Pod's ports are read once, and Pods with the same numbers form one group, so that the work is
//! linear in what is written, not the product of the lists.

use std::collections::HashMap;

use k8s_openapi::{
    api::{
        core::v1::{Pod, ServicePort, ServiceSpec},
        discovery::v1::EndpointPort,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

/// A Service's ports.
pub struct Targets<'a> {
    ports: &'a [ServicePort],
    /// Whether any is found by name.
    named: bool,
}

/// The port numbers for all ports of a Service in a Pod, in order; `None` if the Pod has no port of that name.
pub type Numbers = Vec<Option<i32>>;

fn protocol(protocol: Option<&str>) -> &str {
    protocol.unwrap_or("TCP")
}

impl<'a> Targets<'a> {
    pub fn of(spec: &'a ServiceSpec) -> Targets<'a> {
        let ports = spec.ports.as_deref().unwrap_or_default();
        let named = ports.iter().any(|port| matches!(port.target_port, Some(IntOrString::String(_))));
        Targets { ports, named }
    }

    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// The numbers in one Pod.
    pub fn numbers(&self, pod: &Pod) -> Numbers {
        let known = if self.named { by_name(pod) } else { HashMap::new() };
        let number = |port: &ServicePort| match &port.target_port {
            Some(IntOrString::Int(0)) | None => Some(port.port),
            Some(IntOrString::Int(number)) => Some(*number),
            Some(IntOrString::String(name)) => known.get(&(name.as_str(), protocol(port.protocol.as_deref()))).copied(),
        };
        self.ports.iter().map(number).collect()
    }

    /// One port in the form of EndpointSlices.
    pub fn port(&self, at: usize, number: i32) -> EndpointPort {
        let port = &self.ports[at];
        EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(number),
            protocol: Some(protocol(port.protocol.as_deref()).to_owned()),
            app_protocol: port.app_protocol.clone(),
        }
    }

    /// The ports of a Pod with these numbers.
    pub fn ports(&self, numbers: &Numbers) -> Vec<EndpointPort> {
        found(numbers).map(|(at, number)| self.port(at, number)).collect()
    }
}

/// The ports that a Pod has: the index of the Service's port, and its number.
pub fn found(numbers: &Numbers) -> impl Iterator<Item = (usize, i32)> {
    numbers.iter().enumerate().filter_map(|(at, number)| Some((at, (*number)?)))
}

/// A Pod's ports by name and protocol, the first of each: those of its containers and sidecars.
fn by_name(pod: &Pod) -> HashMap<(&str, &str), i32> {
    let mut known = HashMap::new();
    let Some(spec) = &pod.spec else { return known };
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    for port in spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten()) {
        if let Some(name) = &port.name {
            known.entry((name.as_str(), protocol(port.protocol.as_deref()))).or_insert(port.container_port);
        }
    }
    known
}

/// Groups of items with the same port numbers, in order of first occurrence.
pub struct Groups<T> {
    all: Vec<(Numbers, Vec<T>)>,
    at: HashMap<Numbers, usize>,
}

impl<T> Default for Groups<T> {
    fn default() -> Groups<T> {
        Groups { all: Vec::new(), at: HashMap::new() }
    }
}

impl<T> Groups<T> {
    pub fn add(&mut self, numbers: Numbers, one: T) {
        let at = match self.at.get(&numbers) {
            Some(at) => *at,
            None => {
                self.at.insert(numbers.clone(), self.all.len());
                self.all.push((numbers, Vec::new()));
                self.all.len() - 1
            }
        };
        self.all[at].1.push(one);
    }

    pub fn into_all(self) -> Vec<(Numbers, Vec<T>)> {
        self.all
    }
}

/// Identifies a slice's set of ports.
pub type Signature<'a> = Vec<(Option<&'a str>, Option<i32>, Option<&'a str>, Option<&'a str>)>;

pub fn signature(ports: &[EndpointPort]) -> Signature<'_> {
    ports.iter().map(|p| (p.name.as_deref(), p.port, p.protocol.as_deref(), p.app_protocol.as_deref())).collect()
}
