//! One Service with its EndpointSlices into DNS names.
//!
//! <https://github.com/kubernetes/dns/blob/master/docs/specification.md>; where it leaves names open (endpoints without a host
//! name), like CoreDNS.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use podwright_net::dns::{Entry, Names, Srv, reverse_name};

use super::endpoints::{address_of, is_ready};

/// An SRV record's weight is divided among the records of a name.
const WEIGHT: usize = 100;

/// The names of a Service below the cluster's `domain`.
pub fn names(service: &Service, slices: &[impl AsRef<EndpointSlice>], domain: &str) -> Names {
    let mut names = Names::new();
    let (Some(name), Some(namespace)) = (&service.metadata.name, &service.metadata.namespace) else { return names };
    let Some(spec) = &service.spec else { return names };
    let base = format!("{name}.{namespace}.svc.{domain}");
    if spec.type_.as_deref() == Some("ExternalName") {
        external(spec, base, &mut names);
    } else if spec.cluster_ip.as_deref() == Some("None") {
        headless(slices, &base, &mut names);
    } else {
        balanced(spec, base, &mut names);
    }
    names
}

fn external(spec: &ServiceSpec, base: String, names: &mut Names) {
    if let Some(target) = spec.external_name.as_deref().filter(|t| !t.is_empty()) {
        let target = target.trim_end_matches('.').to_ascii_lowercase();
        names.insert(base, Entry { cname: Some(target), ..Entry::default() });
    }
}

/// The ClusterIPs, with or without endpoints.
fn balanced(spec: &ServiceSpec, base: String, names: &mut Names) {
    let addresses: Vec<IpAddr> = spec.cluster_ips.iter().flatten().filter_map(|a| a.parse().ok()).collect();
    if addresses.is_empty() {
        return;
    }
    for address in &addresses {
        names.entry(reverse_name(address)).or_default().pointers.push(base.clone());
    }
    let mut known = HashSet::new();
    for port in spec.ports.iter().flatten() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        add_srv(names, &mut known, &base, port.name.as_deref(), protocol, port.port, base.clone());
    }
    names.entry(base).or_default().addresses = addresses;
    share_weights(names);
}

/// Each ready endpoint under its own name, and all of them under the Service's.
fn headless(slices: &[impl AsRef<EndpointSlice>], base: &str, names: &mut Names) {
    let (mut seen, mut known) = (BTreeSet::new(), HashSet::new());
    for slice in slices.iter().map(AsRef::as_ref) {
        for endpoint in slice.endpoints.iter().filter(|e| is_ready(e)) {
            let Some(address) = address_of(endpoint) else { continue };
            let label = endpoint.hostname.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| dashed(&address));
            let own = format!("{label}.{base}");
            for port in slice.ports.iter().flatten() {
                let protocol = port.protocol.as_deref().unwrap_or("TCP");
                add_srv(names, &mut known, base, port.name.as_deref(), protocol, port.port.unwrap_or(0), own.clone());
            }
            if seen.insert((own.clone(), address)) {
                names.entry(base.to_owned()).or_default().addresses.push(address);
                names.entry(reverse_name(&address)).or_default().pointers.push(own.clone());
                names.entry(own).or_default().addresses.push(address);
            }
        }
    }
    share_weights(names);
}

/// The content of an SRV record: its name, port and target.
type Said = (String, u16, String);

/// `_http._tcp.<base>`, only for named ports. `known`: existing records; a name has as many as there are Pods.
fn add_srv(
    names: &mut Names,
    known: &mut HashSet<Said>,
    base: &str,
    port: Option<&str>,
    protocol: &str,
    number: i32,
    target: String,
) {
    let (Some(port), Ok(number)) = (port.filter(|p| !p.is_empty()), u16::try_from(number)) else { return };
    let name = format!("_{port}._{}.{base}", protocol.to_ascii_lowercase());
    if known.insert((name.clone(), number, target.clone())) {
        let srv = Srv { priority: 0, weight: 0, port: number, target };
        names.entry(name).or_default().services.push(srv);
    }
}

fn share_weights(names: &mut Names) {
    for entry in names.values_mut() {
        let weight = (WEIGHT / entry.services.len().max(1)).max(1) as u16;
        entry.services.iter_mut().for_each(|s| s.weight = weight);
    }
}

/// The generated name of an endpoint: its address with dashes.
fn dashed(address: &IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}
