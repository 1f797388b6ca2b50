//! EndpointSlices: the Pods behind a Service, at most a hundred per slice.
//!
//! Upstream: `staging/src/k8s.io/endpointslice/reconciler.go`. Services without a selector are ignored. A new Service does not
//! adopt the slices of a deleted one of the same name: the garbage collector would delete them.

mod hints;
pub(super) mod ports;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, ObjectReference, Pod, Service, ServiceSpec},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use super::{
    Context, Plan, Row, World, Writes, meta,
    queue::Queue,
    write::{BURST_BYTES, Note, Write},
};
use podwright_client::{Delta, Informers, Key, reference};
use ports::{Groups, Signature, Targets, signature};

/// The most endpoints in a slice.
const MOST: usize = 100;
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";
/// The label on a namespace whose administrator allows static Pods as endpoints of Services.
pub const STATIC_ENDPOINTS: &str = "podwright/static-endpoints";

pub const ROW: Row = Row {
    name: "endpoint-slice-controller",
    workers: 5,
    writes: Writes::Of(&["endpointslices.discovery.k8s.io"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.services);
        watches.on(&informers.endpoint_slices, |_, queue, change| {
            for slice in change.old.iter().chain(&change.new).filter(|slice| is_ours(slice)) {
                let service = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
                queue.add(Key::new(&change.key.namespace, service.cloned().unwrap_or_default()));
            }
        });
        watches.on(&informers.pods, wake_services);
        watches.on(&informers.namespaces, wake_namespace);
        watches.on(&informers.nodes, |world, queue, change| {
            let facts = |node: &Option<Arc<Node>>| node.as_ref().map(|node| zone(node));
            if facts(&change.old) == facts(&change.new) {
                return;
            }
            let mut pods: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
            for pod in world.informers.pods.indexed(Informers::BY_NODE, &change.key.name) {
                pods.entry(meta::namespace(&pod.metadata).to_owned()).or_default().push(pod);
            }
            pods.iter().for_each(|(namespace, pods)| wake_selecting(world, queue, namespace, pods));
        });
    },
    reconcile,
};

/// Wakes the Services that select a changed Pod, if the change can affect an endpoint.
pub(super) fn wake_services(world: &Arc<World>, queue: &Queue, change: &Delta<Pod>) {
    let pods: Vec<Arc<Pod>> = change.old.iter().chain(&change.new).cloned().collect();
    if let [old, new] = pods.as_slice()
        && same_endpoint(old, new)
    {
        return;
    }
    wake_selecting(world, queue, &change.key.namespace, &pods);
}

/// A namespace's label may include or exclude static Pods.
pub(super) fn wake_namespace(world: &Arc<World>, queue: &Queue, change: &Delta<Namespace>) {
    let lets = |namespace: &Option<Arc<Namespace>>| namespace.as_deref().is_some_and(lets_static_pods);
    if lets(&change.old) != lets(&change.new) {
        world
            .informers
            .services
            .list_namespace(&change.key.name)
            .iter()
            .for_each(|service| queue.add(Key::of(&**service)));
    }
}

fn lets_static_pods(namespace: &Namespace) -> bool {
    namespace
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(STATIC_ENDPOINTS))
        .is_some_and(|label| label == "true")
}

/// Wakes the Services of a namespace that select any of its `pods`.
fn wake_selecting(world: &World, queue: &Queue, namespace: &str, pods: &[Arc<Pod>]) {
    for service in world.informers.services.list_namespace(namespace) {
        let Some(selector) = service.spec.as_ref().and_then(selector) else { continue };
        if pods.iter().any(|pod| meta::has_labels(&pod.metadata, selector)) {
            queue.add(Key::of(&*service));
        }
    }
}

/// Whether a change of a Pod affects no endpoint.
fn same_endpoint(old: &Pod, new: &Pod) -> bool {
    let facts = |pod: &Pod| {
        let addresses = pod.status.as_ref().and_then(|status| status.pod_ips.clone());
        let done = meta::is_finished(pod);
        (meta::is_ready(pod), meta::is_terminating(&pod.metadata), done, addresses, pod.metadata.uid.clone())
    };
    old.metadata.labels == new.metadata.labels
        && facts(old) == facts(new)
        && meta::node_name(old) == meta::node_name(new)
}

fn is_ours(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == MANAGER)
}

/// The Service's selector; `None` if somebody else manages its endpoints.
fn selector(spec: &ServiceSpec) -> Option<&BTreeMap<String, String>> {
    spec.selector.as_ref().filter(|map| !map.is_empty() && spec.type_.as_deref() != Some("ExternalName"))
}

/// The Pods behind a Service; `None` if its endpoints are not, or no longer, managed here.
///
/// Mirrors of static Pods are excluded unless the namespace allows them: any node can create one in any namespace with any labels,
/// and so attract the traffic of any Service. (Upstream includes them.)
pub(super) fn behind(informers: &Informers, service: &Service) -> Option<Vec<Arc<Pod>>> {
    let selector = service.spec.as_ref().and_then(selector).filter(|_| !meta::is_terminating(&service.metadata))?;
    let mut pods = informers.pods.list_namespace(meta::namespace(&service.metadata));
    let namespace = informers.namespaces.get(&Key::new("", meta::namespace(&service.metadata)));
    let with_static = namespace.is_some_and(|namespace| lets_static_pods(&namespace));
    pods.retain(|pod| meta::has_labels(&pod.metadata, selector) && (with_static || !meta::is_mirror(pod)));
    Some(pods)
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let informers = &context.world.informers;
    let Some(service) = informers.services.get(key) else { return Plan::default() };
    let Some(pods) = behind(informers, &service) else { return Plan::default() };
    let mut slices = informers.endpoint_slices.indexed(Informers::BY_SERVICE, &key.to_string());
    slices.retain(|slice| is_ours(slice) && !meta::is_terminating(&slice.metadata));
    plan(&service, &pods, &slices, |name| informers.nodes.get(&Key::new("", name)))
}

fn zone(node: &Node) -> Option<String> {
    node.metadata.labels.as_ref()?.get("topology.kubernetes.io/zone").cloned()
}

fn is_owned(slice: &EndpointSlice, service: &Service) -> bool {
    let is_it = |owner: &OwnerReference| {
        Some(&owner.uid) == service.metadata.uid.as_ref() && owner.kind == "Service" && owner.api_version == "v1"
    };
    slice.metadata.owner_references.iter().flatten().any(is_it)
}

/// Plans a Service's slices, given the Pods that it selects, its managed slices, and the known nodes.
pub fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    slices: &[Arc<EndpointSlice>],
    node_of: impl Fn(&str) -> Option<Arc<Node>>,
) -> Plan {
    let none = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&none);
    let families = match &spec.ip_families {
        Some(families) if !families.is_empty() => families.clone(),
        _ => vec!["IPv4".to_owned()],
    };
    let (slices, foreign): (Vec<&EndpointSlice>, Vec<&EndpointSlice>) =
        slices.iter().map(|slice| &**slice).partition(|slice| is_owned(slice, service));
    let mut burst = Burst::default();
    for slice in slices.iter().filter(|slice| !families.contains(&slice.address_type)) {
        burst.add(|| Some(Write::delete(*slice)));
    }
    for family in &families {
        let old: Vec<&EndpointSlice> = slices.iter().copied().filter(|slice| slice.address_type == *family).collect();
        let wanted = endpoints(service, spec, pods, family, &node_of);
        slice_up(service, family, wanted, &old, &mut burst);
    }
    let note = Note::warning(
        reference(service),
        "FailedToUpdateEndpointSlices",
        format!("Error updating Endpoint Slices for Service {}: {{}}", Key::of(service)),
    );
    let told = |writes: Vec<Write>| writes.into_iter().map(|write| write.failed(note.clone())).collect();
    let mut plan = Plan::default();
    plan.then(told(burst.writes));
    if burst.is_cut {
        plan.requeue(Duration::ZERO);
    } else {
        // The Service's own slices are complete before foreign ones are deleted.
        plan.then(told(foreign.into_iter().map(Write::delete).collect()));
    }
    if !plan.is_empty() {
        plan.notes.extend(hints::unserved(service));
    }
    plan
}

/// The writes of one plan: each slice repeats all labels of its Service, and there may be as many slices as Pods.
#[derive(Default)]
struct Burst {
    writes: Vec<Write>,
    bytes: usize,
    /// The next plan continues.
    is_cut: bool,
}

impl Burst {
    /// Adds one more, if there is room for it.
    fn add(&mut self, write: impl FnOnce() -> Option<Write>) {
        if self.bytes >= BURST_BYTES {
            self.is_cut = true;
        } else if let Some(write) = write() {
            self.bytes += write.size();
            self.writes.push(write);
        }
    }
}

/// Endpoints by the ports that they serve: a named targetPort may have different numbers in different Pods.
type Wanted = Vec<(Vec<EndpointPort>, Vec<Endpoint>)>;

fn endpoints(
    service: &Service,
    spec: &ServiceSpec,
    pods: &[Arc<Pod>],
    family: &str,
    node_of: impl Fn(&str) -> Option<Arc<Node>>,
) -> Wanted {
    let targets = Targets::of(spec);
    let mut wanted = Groups::default();
    for pod in pods.iter().filter(|pod| !meta::is_finished(pod)) {
        let addresses = addresses(pod, family);
        if addresses.is_empty() {
            continue;
        }
        let node = meta::node_name(pod).and_then(&node_of);
        // The state of a Pod on a deleted node is unknown; it is removed soon.
        if node.is_none() && spec.publish_not_ready_addresses != Some(true) {
            continue;
        }
        wanted.add(targets.numbers(pod), endpoint(service, spec, pod, addresses, node.as_deref()));
    }
    wanted.into_all().into_iter().map(|(numbers, endpoints)| (targets.ports(&numbers), endpoints)).collect()
}

/// The Pod's addresses of one family.
pub(super) fn addresses(pod: &Pod, family: &str) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let mut all: Vec<&str> = all.filter(|ip| !ip.is_empty()).collect();
    if all.is_empty() {
        all.extend(status.pod_ip.as_deref().filter(|ip| !ip.is_empty()));
    }
    all.into_iter().filter(|ip| ip.contains(':') == (family == "IPv6")).map(str::to_owned).collect()
}

/// The hostname that a Pod requests below the Service's name.
pub(super) fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref().filter(|spec| spec.subdomain == service.metadata.name)?;
    spec.hostname.clone().filter(|name| !name.is_empty())
}

/// The target of an endpoint.
pub(super) fn target(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

fn endpoint(service: &Service, spec: &ServiceSpec, pod: &Pod, addresses: Vec<String>, node: Option<&Node>) -> Endpoint {
    let serving = meta::is_ready(pod);
    let terminating = meta::is_terminating(&pod.metadata);
    let ready = spec.publish_not_ready_addresses.unwrap_or(false) || (serving && !terminating);
    let endpoint = Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(service, pod),
        node_name: meta::node_name(pod).map(str::to_owned),
        target_ref: Some(target(pod)),
        zone: node.and_then(zone),
        ..Endpoint::default()
    };
    Endpoint { hints: hints::hints(spec.traffic_distribution.as_deref(), &endpoint), ..endpoint }
}

/// A slice in its current state (`None`: new) and its desired state, except for labels.
struct Slice<'a> {
    old: Option<&'a EndpointSlice>,
    new: EndpointSlice,
}

impl Slice<'_> {
    fn changed(&self) -> bool {
        self.old.is_none_or(|old| old.endpoints != self.new.endpoints)
    }
    fn room(&self) -> usize {
        MOST.saturating_sub(self.new.endpoints.len())
    }
}

/// Distributes the endpoints over the existing slices and, if these are full, new ones, with as few changes as possible.
fn slice_up(service: &Service, family: &str, wanted: Wanted, old: &[&EndpointSlice], burst: &mut Burst) {
    let emptied = |old: &EndpointSlice| {
        let mut new = old.clone();
        new.endpoints.clear();
        new.metadata.labels = None;
        new
    };
    // Slices are indexed by their ports: there may be as many ports as Pods.
    let mut with_ports: HashMap<Signature<'_>, Vec<usize>> = HashMap::new();
    for (at, old) in old.iter().enumerate() {
        with_ports.entry(signature(old.ports.as_deref().unwrap_or_default())).or_default().push(at);
    }
    let mut kept: Vec<Slice<'_>> = old.iter().map(|old| Slice { old: Some(*old), new: emptied(old) }).collect();
    let mut made = Vec::new();
    for (ports, endpoints) in wanted {
        let same = with_ports.get(&signature(&ports)).map(Vec::as_slice).unwrap_or_default();
        let rest = stay(&mut kept, same, endpoints);
        let rest = fill(&mut kept, same, rest);
        let new = rest.chunks(MOST).map(|chunk| blank(service, family, &ports, chunk.to_vec()));
        made.extend(new.map(|new| Slice { old: None, new }));
    }
    let mut slices = kept;
    slices.append(&mut made);
    let (labels, mut stays) = (labels(service), 0);
    if slices.iter().all(|slice| slice.new.endpoints.is_empty()) {
        // A Service without endpoints has one empty slice to show that.
        if slices.is_empty() {
            slices.push(Slice { old: None, new: blank(service, family, &[], Vec::new()) });
        }
        slices.sort_by_key(|slice| std::cmp::Reverse(slice.old.map(|old| old.endpoints.len())));
        stays = 1;
    }
    for (n, slice) in slices.iter().enumerate() {
        burst.add(|| write(slice, n < stays, &labels));
    }
}

/// Leaves endpoints in their existing slices; returns the others.
fn stay(slices: &mut [Slice<'_>], those: &[usize], endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    let uid = |endpoint: &Endpoint| endpoint.target_ref.as_ref().and_then(|target| target.uid.clone());
    let order: Vec<Option<String>> = endpoints.iter().map(uid).collect();
    let mut wanted: HashMap<Option<String>, Endpoint> = endpoints.into_iter().map(|e| (uid(&e), e)).collect();
    for at in those {
        let slice = &mut slices[*at];
        let old = slice.old.iter().flat_map(|old| &old.endpoints);
        let staying: Vec<Endpoint> = old.filter_map(|endpoint| wanted.remove(&uid(endpoint))).collect();
        slice.new.endpoints = staying;
    }
    order.iter().filter_map(|uid| wanted.remove(uid)).collect()
}

/// Places endpoints: first in slices that change anyway, then all the rest in the fullest slice with enough room. Returns those
/// that need new slices.
fn fill(slices: &mut [Slice<'_>], those: &[usize], mut endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    for at in those {
        let slice = &mut slices[*at];
        if !slice.changed() {
            continue;
        }
        let rest = endpoints.split_off(slice.room().min(endpoints.len()));
        slice.new.endpoints.append(&mut endpoints);
        endpoints = rest;
    }
    if !endpoints.is_empty() {
        let fits = those.iter().filter(|at| slices[**at].room() >= endpoints.len());
        if let Some(at) = fits.min_by_key(|at| slices[**at].room()) {
            slices[*at].new.endpoints.append(&mut endpoints);
        }
    }
    endpoints
}

fn blank(service: &Service, family: &str, ports: &[EndpointPort], endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", meta::name(&service.metadata))),
            namespace: service.metadata.namespace.clone(),
            owner_references: Some(vec![meta::owner_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        endpoints,
        ports: Some(ports.to_vec()),
    }
}

/// The Service's own labels and ours.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    for reserved in [SERVICE_NAME, MANAGED_BY, HEADLESS] {
        labels.remove(reserved);
    }
    labels.insert(SERVICE_NAME.into(), meta::name(&service.metadata).to_owned());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels
}

/// The write for one slice; an empty one is deleted unless `keep` is set.
fn write(slice: &Slice<'_>, keep: bool, labels: &BTreeMap<String, String>) -> Option<Write> {
    if let Some(old) = slice.old {
        if slice.new.endpoints.is_empty() && !keep {
            return Some(Write::delete(old));
        }
        // Most of thousands of endpoints are unchanged: comparing them costs less than serializing them.
        if !slice.changed() && old.metadata.labels.as_ref() == Some(labels) {
            return None;
        }
    }
    let mut new = slice.new.clone();
    new.metadata.labels = Some(labels.clone());
    match slice.old {
        None => Some(Write::create(&new)),
        Some(old) => Write::change(old, &new),
    }
}
