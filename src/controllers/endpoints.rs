//! Endpoints: the predecessor of EndpointSlices, one object for each Service with a selector, with its first address family and at
//! most a thousand addresses.
//!
//! Upstream: `pkg/controller/endpoint`.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    Context, Plan, Row, Writes,
    endpoint_slice::{
        self,
        ports::{self, Groups, Targets},
    },
    meta,
    write::{Guard, Note, Write},
};
use podwright_client::{Key, Typed, reference};

/// The most addresses of all subsets together.
const MOST: usize = 1000;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const HEADLESS: &str = "service.kubernetes.io/headless";

pub const ROW: Row = Row {
    name: "endpoint-controller",
    workers: 5,
    writes: Writes::Of(&["endpoints"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.services);
        watches.on(&informers.endpoints, |_, queue, change| {
            // Others' are ignored; a deleted one may have been ours.
            if change.new.as_ref().is_none_or(|endpoints| is_ours(endpoints)) {
                queue.add(change.key.clone());
            }
        });
        watches.on(&informers.pods, endpoint_slice::wake_services);
        watches.on(&informers.namespaces, endpoint_slice::wake_namespace);
    },
    reconcile,
};

fn is_ours(endpoints: &Endpoints) -> bool {
    endpoints.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == MANAGER)
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let known = informers.endpoints.get(key);
    let mut gone = Plan::default();
    let Some(service) = informers.services.get(key) else {
        let absent = Guard::Absent { resource: Service::resource(), key: key.clone(), uid: None };
        let ours = known.filter(|endpoints| is_ours(endpoints));
        gone.then(ours.iter().map(|endpoints| Write::delete(&**endpoints).guarded(absent.clone())).collect());
        return gone;
    };
    let Some(pods) = endpoint_slice::behind(informers, &service) else { return gone };
    plan(&service, &pods, known.as_deref())
}

/// Plans the Endpoints of a Service, given the Pods that it selects.
pub fn plan(service: &Service, pods: &[Arc<Pod>], known: Option<&Endpoints>) -> Plan {
    let mut subsets = subsets(service, pods);
    let truncated = truncate(&mut subsets);
    let mut new = known.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        subsets: None,
    });
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    new.metadata.labels = Some(labels);
    match truncated {
        true => {
            let annotations = new.metadata.annotations.get_or_insert_default();
            annotations.insert(OVER_CAPACITY.into(), "truncated".into());
        }
        false => {
            if let Some(annotations) = &mut new.metadata.annotations {
                annotations.remove(OVER_CAPACITY);
            }
        }
    }
    new.subsets = (!subsets.is_empty()).then_some(subsets);
    let write = match known {
        Some(old) if *old == new => None,
        Some(old) => Write::change(old, &new),
        None => Some(Write::create(&new)),
    };
    let (reason, way) = match known {
        Some(_) => ("FailedToUpdateEndpoint", "update endpoint"),
        None => ("FailedToCreateEndpoint", "create endpoint for service"),
    };
    let message = format!("Failed to {way} {}: {{}}", Key::of(service));
    let mut plan = Plan::default();
    plan.then(
        write.into_iter().map(|w| w.failed(Note::warning(reference(service), reason, message.clone()))).collect(),
    );
    plan
}

/// Groups addresses by what is served at them: ports with the same addresses form one subset.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    let none = Default::default();
    let spec = service.spec.as_ref().unwrap_or(&none);
    let family = spec.ip_families.iter().flatten().next().map_or("IPv4", String::as_str);
    let all = spec.publish_not_ready_addresses.unwrap_or(false);
    let targets = Targets::of(spec);
    // The addresses, and whether each is ready; those with the same port numbers form one group.
    let mut addresses: Vec<(EndpointAddress, bool)> = Vec::new();
    let mut groups = Groups::default();
    for pod in pods.iter().filter(|pod| !meta::is_finished(pod) && (all || !meta::is_terminating(&pod.metadata))) {
        let Some(ip) = endpoint_slice::addresses(pod, family).into_iter().next() else { continue };
        groups.add(targets.numbers(pod), addresses.len());
        addresses.push((address(service, pod, ip), all || meta::is_ready(pod)));
    }
    let groups = groups.into_all();
    if targets.is_empty() {
        return groups.into_iter().map(|(_, members)| subset(&addresses, members, None)).collect();
    }
    // By port: the groups that have it.
    let mut known: HashMap<(usize, i32), usize> = HashMap::new();
    let mut by_port: Vec<(EndpointPort, Vec<usize>)> = Vec::new();
    for (group, (numbers, _)) in groups.iter().enumerate() {
        for (at, number) in ports::found(numbers) {
            let place = *known.entry((at, number)).or_insert_with(|| {
                by_port.push((port(targets.port(at, number)), Vec::new()));
                by_port.len() - 1
            });
            by_port[place].1.push(group);
        }
    }
    // By set of groups: their common ports.
    let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
    let mut subsets: Vec<EndpointSubset> = Vec::new();
    for (port, of) in by_port {
        match known.get(&of) {
            Some(place) => subsets[*place].ports.get_or_insert_default().push(port),
            None => {
                let members = of.iter().flat_map(|group| groups[*group].1.iter().copied()).collect();
                known.insert(of, subsets.len());
                subsets.push(subset(&addresses, members, Some(vec![port])));
            }
        }
    }
    subsets
}

/// The subset for some of the addresses.
fn subset(
    all: &[(EndpointAddress, bool)],
    mut members: Vec<usize>,
    ports: Option<Vec<EndpointPort>>,
) -> EndpointSubset {
    members.sort_by(|a, b| (&all[*a].0.ip, a).cmp(&(&all[*b].0.ip, b)));
    let those = |ready: bool| {
        let those = members.iter().map(|member| &all[*member]).filter(|(_, is_ready)| *is_ready == ready);
        Some(those.map(|(address, _)| address.clone()).collect()).filter(|those: &Vec<_>| !those.is_empty())
    };
    EndpointSubset { addresses: those(true), not_ready_addresses: those(false), ports }
}

fn port(port: k8s_openapi::api::discovery::v1::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: port.name.filter(|name| !name.is_empty()),
        port: port.port.unwrap_or(0),
        protocol: port.protocol,
        app_protocol: port.app_protocol,
    }
}

fn address(service: &Service, pod: &Pod, ip: String) -> EndpointAddress {
    EndpointAddress {
        ip,
        hostname: endpoint_slice::hostname(service, pod),
        node_name: meta::node_name(pod).map(str::to_owned),
        target_ref: Some(endpoint_slice::target(pod)),
    }
}

/// Truncates the subsets to the limit, unready addresses first, proportionally; returns whether anything was dropped.
fn truncate(subsets: &mut [EndpointSubset]) -> bool {
    let length = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let ready: usize = subsets.iter().map(|subset| length(&subset.addresses)).sum();
    let not_ready: usize = subsets.iter().map(|subset| length(&subset.not_ready_addresses)).sum();
    if ready + not_ready <= MOST {
        return false;
    }
    let cut_ready = ready > MOST;
    let (most, all) = if cut_ready { (MOST, ready) } else { (MOST - ready, not_ready) };
    let mut room = most;
    for subset in subsets {
        if cut_ready {
            subset.not_ready_addresses = None;
        }
        let list = if cut_ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        let share = (length(list) * most).div_ceil(all).min(room);
        if let Some(addresses) = list {
            addresses.truncate(share);
            room -= addresses.len();
        }
        if length(list) == 0 {
            *list = None;
        }
    }
    true
}
