//! The mirror: EndpointSlices for user-written Endpoints of Services without a selector.
//!
//! Upstream: `pkg/controller/endpointslicemirroring`. There is one slice for each set of ports and each address family.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    Context, Plan, Row, Writes,
    endpoint_slice::ports::{Signature, signature},
    meta,
    write::{Note, Write},
};
use podwright_client::{Informers, Key, reference};

/// The most mirrored addresses of a subset.
const MOST: usize = 1000;
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Endpoints were once used for leader election.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub const ROW: Row = Row {
    name: "endpoint-slice-mirroring-controller",
    workers: 2,
    writes: Writes::Of(&["endpointslices.discovery.k8s.io"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.endpoints);
        watches.own(&informers.services);
        watches.on(&informers.endpoint_slices, |_, queue, change| {
            for slice in change.old.iter().chain(&change.new).filter(|slice| is_ours(slice)) {
                let service = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
                queue.add(Key::new(&change.key.namespace, service.cloned().unwrap_or_default()));
            }
        });
    },
    reconcile: |context: &Context<'_>, key: &Key| {
        let informers = &context.world.informers;
        let mut slices = informers.endpoint_slices.indexed(Informers::BY_SERVICE, &key.to_string());
        slices.retain(|slice| is_ours(slice) && !meta::is_terminating(&slice.metadata));
        plan(informers.services.get(key).as_deref(), informers.endpoints.get(key).as_deref(), &slices)
    },
};

fn is_ours(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == MANAGER)
}

/// Whether these Endpoints are user-written, for a Service without a selector.
fn is_mirrored(service: Option<&Service>, endpoints: &Endpoints) -> bool {
    let skipped =
        endpoints.metadata.labels.as_ref().and_then(|labels| labels.get(SKIP)).is_some_and(|skip| skip == "true");
    let selects = |service: &Service| {
        service.spec.as_ref().and_then(|spec| spec.selector.as_ref()).is_some_and(|selector| !selector.is_empty())
    };
    let leads = meta::annotation(&endpoints.metadata, LEADER).is_some();
    !skipped && !leads && !meta::is_terminating(&endpoints.metadata) && service.is_some_and(|service| !selects(service))
}

/// Plans the slices that mirror these Endpoints; `slices` are the existing ones.
pub fn plan(service: Option<&Service>, endpoints: Option<&Endpoints>, slices: &[Arc<EndpointSlice>]) -> Plan {
    let mut plan = Plan::default();
    let mirrored = endpoints.filter(|endpoints| is_mirrored(service, endpoints));
    let wanted = mirrored.map(|endpoints| wanted(endpoints, &mut plan)).unwrap_or_default();
    let mut rest: HashMap<(&str, Signature<'_>), VecDeque<&Arc<EndpointSlice>>> = HashMap::new();
    for slice in slices {
        rest.entry(identity(slice)).or_default().push_back(slice);
    }
    let mut writes = Vec::new();
    for wanted in &wanted {
        match rest.get_mut(&identity(wanted)).and_then(VecDeque::pop_front) {
            Some(old) => {
                let mut new = EndpointSlice::clone(old);
                new.endpoints = wanted.endpoints.clone();
                new.metadata.labels = wanted.metadata.labels.clone();
                new.metadata.annotations = wanted.metadata.annotations.clone();
                writes.extend(Write::change(&**old, &new));
            }
            None => writes.push(Write::create(wanted)),
        }
    }
    let left = |slice: &&Arc<EndpointSlice>| {
        rest.get(&identity(slice)).is_some_and(|left| left.iter().any(|it| Arc::ptr_eq(it, slice)))
    };
    writes.extend(slices.iter().filter(left).map(|slice| Write::delete(&**slice)));
    if writes.is_empty() {
        plan.notes.clear();
    }
    plan.then(writes);
    plan
}

/// Identifies a slice among those of the same Endpoints.
fn identity(slice: &EndpointSlice) -> (&str, Signature<'_>) {
    (&slice.address_type, signature(slice.ports.as_deref().unwrap_or_default()))
}

/// The desired slices: one for each family and list of ports.
fn wanted(endpoints: &Endpoints, plan: &mut Plan) -> Vec<EndpointSlice> {
    let mut slices: Vec<EndpointSlice> = Vec::new();
    let mut known: HashMap<(Signature<'_>, &str), usize> = HashMap::new();
    let subsets: Vec<_> = endpoints.subsets.iter().flatten().map(|subset| (ports(subset), subset)).collect();
    for (ports, subset) in &subsets {
        // By family: the subset's slice.
        let mut own: HashMap<&str, usize> = HashMap::new();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let all = ready.chain(subset.not_ready_addresses.iter().flatten().map(|address| (address, false)));
        let mut skipped = 0;
        for (n, (address, ready)) in all.enumerate() {
            let family = match address.ip.parse::<IpAddr>() {
                Ok(ip) if n < MOST => {
                    if ip.is_ipv4() {
                        "IPv4"
                    } else {
                        "IPv6"
                    }
                }
                _ => {
                    skipped += 1;
                    continue;
                }
            };
            let at = *own.entry(family).or_insert_with(|| {
                *known.entry((signature(ports), family)).or_insert_with(|| {
                    slices.push(blank(endpoints, family, ports.clone()));
                    slices.len() - 1
                })
            });
            if slices[at].endpoints.len() >= MOST {
                skipped += 1;
                continue;
            }
            slices[at].endpoints.push(endpoint(address, ready));
        }
        if skipped > 0 {
            let message = format!(
                "Error creating EndpointSlice mirroring for some Endpoints: {skipped} addresses were not mirrored: not \
                 valid, or more than {MOST} of one subset"
            );
            plan.notes.push(Note::warning(reference(endpoints), "InvalidIPAddress", message));
        }
    }
    slices
}

fn ports(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let port = |port: &k8s_openapi::api::core::v1::EndpointPort| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
        app_protocol: port.app_protocol.clone(),
    };
    subset.ports.iter().flatten().map(port).collect()
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn blank(endpoints: &Endpoints, family: &str, ports: Vec<EndpointPort>) -> EndpointSlice {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.into(), meta::name(&endpoints.metadata).to_owned());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    let mut annotations: BTreeMap<String, String> = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", meta::name(&endpoints.metadata))),
            namespace: endpoints.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            owner_references: Some(vec![meta::owner_reference(endpoints)]),
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        endpoints: Vec::new(),
        ports: Some(ports),
    }
}
