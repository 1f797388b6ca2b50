//! ClusterIPs and NodePorts. An allocation is a key below `/registry/ranges/`, taken and freed in the same store
//! transaction as the Service's own write, so that a crash can neither leak one nor hand one out twice.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use podwright_api::validation::{TOO_MANY, service};
use podwright_api::{Cause, Env, Kind, Object, Status};
use podwright_store::{Entry, Range};

use super::reservation::{Occupied, Reservation, concerns};
use super::resolved_request::{ResolvedRequest, bad_value};
use super::{Server, external_ips, store_error};

/// The prefix of allocations.
pub(super) const ROOT: &str = "/registry/ranges/";

/// Why a Service is refused an address that is taken or reserved.
const TAKEN: &str = "provided IP is already allocated";

/// How many addresses a Service may have: one of each family.
const MAX_ADDRESSES: usize = 2;

/// The most ports of a Service with node ports: deletion frees all in one transaction, whose size every store supports. What could
/// not be deleted is refused.
const MAX_NODE_PORTS: usize = 4000;

/// Above this many, keys are not read one by one.
const FEW: usize = 32;

/// How many random attempts are made before the range is searched.
const BLIND: usize = 32;

fn ip_key(ip: IpAddr) -> String {
    format!("{ROOT}serviceips/{ip}")
}
fn port_key(port: u64) -> String {
    format!("{ROOT}servicenodeports/{port}")
}

/// The Service that has an address: `namespace/name`.
pub(super) async fn holder(server: &Server, ip: IpAddr) -> Result<Option<String>, Status> {
    let entry = server.store.get(&ip_key(ip)).await.map_err(store_error)?;
    Ok(entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()))
}

/// The freed keys that belong to the write's object: keys of others stay, whatever the object says.
pub(super) async fn own(server: &Server, call: &ResolvedRequest, keys: &[String]) -> Result<Vec<String>, Status> {
    // Claimed by `plan` in this form.
    let owner = format!("{}/{}", call.within(), call.name());
    if keys.len() > FEW {
        let range = Range { prefix: ROOT.into(), ..Range::default() };
        let page = server.store.list(range).await.map_err(store_error)?;
        let keys: HashSet<&str> = keys.iter().map(String::as_str).collect();
        let ours = |entry: &Entry| keys.contains(&*entry.key) && entry.value[..] == *owner.as_bytes();
        return Ok(page.entries.into_iter().filter(ours).map(|entry| entry.key.to_string()).collect());
    }
    let mut own = Vec::new();
    for key in keys {
        let entry = server.store.get(key).await.map_err(store_error)?;
        if entry.is_some_and(|entry| entry.value[..] == *owner.as_bytes()) {
            own.push(key.clone());
        }
    }
    Ok(own)
}

/// The claims that a Service's write makes and the keys that it frees. Fills in what was allocated.
pub(super) fn plan(
    server: &Server,
    call: &ResolvedRequest,
    old: Option<&Object>,
    new: &mut Object,
    taken: &Occupied,
) -> Result<(Vec<Reservation>, Vec<String>), Status> {
    if !concerns(call.kind) {
        return Ok((Vec::new(), Vec::new()));
    }
    external_ips::refuse_taken(server, call, old, new)?;
    if let Some(old) = old {
        keep_allocated(new, old);
    }
    // No search for free addresses if validation will refuse the list.
    let families = new.0["spec"]["ipFamilies"].as_array().map_or(0, Vec::len);
    if cluster_ips(new).len().max(families) > MAX_ADDRESSES
        || old.is_some_and(|old| service::changes_cluster_ips(new, old))
    {
        return Ok((Vec::new(), Vec::new()));
    }
    let count = ports_of(new).count();
    if needs_ports(new) && count > MAX_NODE_PORTS && old.is_none_or(|old| ports_of(old).count() < count) {
        let message = format!("Too many: {count}: must have at most {MAX_NODE_PORTS} items");
        let cause = Cause { reason: TOO_MANY.into(), message, field: "spec.ports".into() };
        return Err(call.invalid(new.name(), vec![cause]));
    }
    let held: HashSet<String> = old.map(|old| all_of(call.kind, old)).unwrap_or_default().into_iter().collect();
    let owner = format!("{}/{}", new.namespace().unwrap_or(""), new.name());
    let mut allocator =
        Allocator { server, call, held: &held, taken, owner, reservations: Vec::new(), claimed: HashSet::new() };
    allocator.families(new);
    allocator.addresses(new)?;
    allocator.ports(new)?;
    let reservations = allocator.reservations;
    let wanted: HashSet<String> = all_of(call.kind, new).into_iter().collect();
    let releases = held.into_iter().filter(|key| !wanted.contains(key)).collect();
    Ok((reservations, releases))
}

/// All keys that a Service holds.
pub(super) fn all_of(kind: &Kind, service: &Object) -> Vec<String> {
    if !concerns(kind) {
        return Vec::new();
    }
    let spec = &service.0["spec"];
    let ips = cluster_ips(service).into_iter().filter_map(|ip| ip.parse().ok()).map(ip_key);
    let ports = spec["ports"].as_array().into_iter().flatten().filter_map(|port| port["nodePort"].as_u64());
    let ports = ports.chain(spec["healthCheckNodePort"].as_u64()).filter(|port| *port > 0).map(port_key);
    let mut keys: Vec<String> = ips.chain(ports).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// `spec.clusterIPs`, or `spec.clusterIP` if only that is given. Entries may be `None`.
fn cluster_ips(service: &Object) -> Vec<String> {
    let spec = &service.0["spec"];
    let list: Vec<String> =
        spec["clusterIPs"].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect();
    if !list.is_empty() {
        return list;
    }
    spec["clusterIP"].as_str().filter(|ip| !ip.is_empty()).map(str::to_owned).into_iter().collect()
}

fn type_of(service: &Object) -> &str {
    service.0["spec"]["type"].as_str().unwrap_or("ClusterIP")
}

fn needs_address(service: &Object) -> bool {
    type_of(service) != "ExternalName"
}

fn needs_ports(service: &Object) -> bool {
    match type_of(service) {
        "NodePort" => true,
        "LoadBalancer" => service.0["spec"]["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    }
}

fn ports_of(service: &Object) -> impl Iterator<Item = &Value> {
    service.0["spec"]["ports"].as_array().into_iter().flatten()
}

/// Updates may omit what was allocated, and may change the type without clearing fields of the old one (upstream's
/// `patchAllocatedValues` and `dropTypeDependentFields`).
fn keep_allocated(new: &mut Object, old: &Object) {
    let empty = cluster_ips(new).is_empty();
    if needs_address(new) && needs_address(old) && empty {
        for field in ["clusterIP", "clusterIPs"] {
            new.0["spec"][field] = old.0["spec"][field].clone();
        }
    }
    if !needs_address(new) && cluster_ips(new) == cluster_ips(old) {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            remove(&mut new.0["spec"], field);
        }
    }
    let by_port = |port: &Value| (port["port"].clone(), port["protocol"].clone());
    if needs_ports(new) && needs_ports(old) {
        let mut used: HashSet<Value> = ports_of(new).map(|port| port["nodePort"].clone()).collect();
        let mut had = HashMap::new();
        for was in ports_of(old) {
            had.entry(by_port(was)).or_insert(&was["nodePort"]);
        }
        for port in ports_of_mut(new) {
            let before = had.get(&by_port(port)).filter(|_| port["nodePort"].as_u64().unwrap_or(0) == 0);
            if let Some(before) = before.filter(|before| used.insert((**before).clone())) {
                port["nodePort"] = (*before).clone();
            }
        }
    }
    let same = ports_of(new).map(|p| &p["nodePort"]).eq(ports_of(old).map(|p| &p["nodePort"]));
    if matches!(type_of(new), "ClusterIP" | "ExternalName") && type_of(old) != type_of(new) && same {
        for port in ports_of_mut(new) {
            remove(port, "nodePort");
        }
        if new.0["spec"]["externalTrafficPolicy"] == old.0["spec"]["externalTrafficPolicy"] {
            remove(&mut new.0["spec"], "externalTrafficPolicy");
        }
    }
}

fn ports_of_mut(service: &mut Object) -> impl Iterator<Item = &mut Value> {
    service.0.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten()
}

fn remove(value: &mut Value, field: &str) {
    if let Some(map) = value.as_object_mut() {
        map.shift_remove(field);
    }
}

struct Allocator<'a> {
    server: &'a Server,
    call: &'a ResolvedRequest,
    /// The keys that the Service holds already.
    held: &'a HashSet<String>,
    taken: &'a Occupied,
    owner: String,
    reservations: Vec<Reservation>,
    /// The keys of the claims.
    claimed: HashSet<String>,
}

impl Allocator<'_> {
    fn claim(&mut self, key: String, refusal: Option<Status>) {
        self.claimed.insert(key.clone());
        self.reservations.push(Reservation { key, owner: self.owner.clone(), refusal });
    }

    /// Settles `ipFamilies` and `ipFamilyPolicy`.
    fn families(&self, service: &mut Object) {
        if !needs_address(service) {
            return;
        }
        let given: Vec<&str> =
            cluster_ips(service).iter().filter_map(|ip| ip.parse().ok()).map(|ip: IpAddr| family(ip)).collect();
        let wished = service.0["spec"]["ipFamilies"].as_array().cloned().unwrap_or_default();
        let policy = service.0["spec"]["ipFamilyPolicy"].as_str().map(str::to_owned).unwrap_or_else(|| {
            if given.len() == 2 || wished.len() == 2 { "RequireDualStack".into() } else { "SingleStack".into() }
        });
        let mut families: Vec<Value> = wished;
        for known in given.into_iter().chain(self.server.config.service_cidrs.iter().map(|c| family(c.network()))) {
            let full = families.len() >= if policy == "SingleStack" { 1 } else { 2 };
            if !full && !families.iter().any(|f| f == known) {
                families.push(known.into());
            }
        }
        let spec = &mut service.0["spec"];
        spec["ipFamilies"] = Value::Array(families);
        spec["ipFamilyPolicy"] = policy.into();
    }

    fn addresses(&mut self, service: &mut Object) -> Result<(), Status> {
        if !needs_address(service) {
            return Ok(());
        }
        let mut ips = cluster_ips(service);
        if ips.iter().any(|ip| ip == "None") {
            // Headless; validation reports other errors of the list.
            service.0["spec"]["clusterIP"] = ips[0].clone().into();
            service.0["spec"]["clusterIPs"] = json!(ips);
            return Ok(());
        }
        let families: Vec<String> = service.0["spec"]["ipFamilies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|f| f.as_str().map(str::to_owned))
            .collect();
        for ip in ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()) {
            self.claim_address(service, ip, &ips)?;
        }
        for wanted in families.iter().skip(ips.len()) {
            let Some(range) = self.server.config.service_cidrs.iter().find(|c| family(c.network()) == wanted.as_str())
            else {
                let why = format!("this cluster is not configured for {wanted}");
                let cause = bad_value("spec.ipFamilies", &json!(families), &why);
                return Err(self.call.invalid(service.name(), vec![cause]));
            };
            let ip = self.choose_address(range)?;
            ips.push(ip.to_string());
        }
        service.0["spec"]["clusterIP"] = ips.first().cloned().into();
        service.0["spec"]["clusterIPs"] = json!(ips);
        Ok(())
    }

    /// Claims an address that the Service names.
    fn claim_address(&mut self, service: &Object, ip: IpAddr, all: &[String]) -> Result<(), Status> {
        let invalid = |why: String| {
            let why = format!("failed to allocate IP {ip}: {why}");
            self.call.invalid(service.name(), vec![bad_value("spec.clusterIPs", &json!(all), &why)])
        };
        let key = ip_key(ip);
        if self.held.contains(&key) {
            return Ok(());
        }
        let cidrs = &self.server.config.service_cidrs;
        if !cidrs.iter().any(|cidr| usable(cidr, ip)) {
            let ranges: Vec<String> = cidrs.iter().map(IpNet::to_string).collect();
            return Err(invalid(format!(
                "the provided IP ({ip}) is not in the valid range. The range of valid IPs is {}",
                ranges.join(", ")
            )));
        }
        let refusal = invalid(TAKEN.into());
        if self.server.config.keeps_from(ip, service.namespace(), service.name()) {
            return Err(refusal);
        }
        self.claim(key, Some(refusal));
        Ok(())
    }

    fn choose_address(&mut self, range: &IpNet) -> Result<IpAddr, Status> {
        let hosts = hosts(range);
        // Upstream reserves the lower part, at most 256 addresses, for explicit requests.
        let band = (hosts / 16).clamp(16, 256);
        let config = &self.server.config;
        let chosen = self.choose(hosts, band, |n| {
            let ip = nth(range, n);
            (!config.is_kept(ip)).then(|| ip_key(ip))
        });
        let Some(n) = chosen else {
            return Err(Status::internal("failed to allocate a serviceIP: range is full"));
        };
        let ip = nth(range, n);
        self.claim(ip_key(ip), None);
        Ok(ip)
    }

    fn ports(&mut self, service: &mut Object) -> Result<(), Status> {
        let named: Vec<(String, u64)> = ports_of(service)
            .enumerate()
            .filter_map(|(i, port)| Some((format!("spec.ports[{i}].nodePort"), port["nodePort"].as_u64()?)))
            .filter(|(_, port)| *port > 0)
            .collect();
        for (field, port) in named {
            self.claim_port(service, &field, port)?;
        }
        if !needs_ports(service) {
            return Ok(());
        }
        // By the port's number, the NodePort of each protocol.
        let mut chosen: HashMap<u64, BTreeMap<String, u64>> = HashMap::new();
        let mut ports = service.0.pointer_mut("/spec/ports").map_or(Value::Null, Value::take);
        for port in ports.as_array_mut().into_iter().flatten() {
            if port["nodePort"].as_u64().unwrap_or(0) > 0 {
                continue;
            }
            let (number, protocol) = (port["port"].as_u64().unwrap_or(0), port["protocol"].to_string());
            // TCP and UDP of one port share a NodePort, as upstream has it for DNS.
            let of_number = chosen.entry(number).or_default();
            let shared = of_number.iter().find(|(other, _)| **other != protocol).map(|(_, node_port)| *node_port);
            let node_port = match shared {
                Some(node_port) => node_port,
                None => self.choose_port()?,
            };
            port["nodePort"] = node_port.into();
            chosen.entry(number).or_default().entry(protocol).or_insert(node_port);
        }
        if let Some(place) = service.0.pointer_mut("/spec/ports") {
            *place = ports;
        }
        self.health_check_port(service)
    }

    fn health_check_port(&mut self, service: &mut Object) -> Result<(), Status> {
        let spec = &service.0["spec"];
        if type_of(service) != "LoadBalancer" || spec["externalTrafficPolicy"] != "Local" {
            return Ok(());
        }
        match spec["healthCheckNodePort"].as_u64().filter(|port| *port > 0) {
            Some(port) => self.claim_port(service, "spec.healthCheckNodePort", port),
            None => {
                service.0["spec"]["healthCheckNodePort"] = self.choose_port()?.into();
                Ok(())
            }
        }
    }

    /// Claims a port that the Service names.
    fn claim_port(&mut self, service: &Object, field: &str, port: u64) -> Result<(), Status> {
        let invalid = |why: &str| self.call.invalid(service.name(), vec![bad_value(field, &Value::from(port), why)]);
        let key = port_key(port);
        if self.held.contains(&key) || self.claimed.contains(&key) {
            return Ok(());
        }
        let range = &self.server.config.node_ports;
        if !u16::try_from(port).is_ok_and(|port| range.contains(&port)) {
            let (low, high) = (range.start(), range.end());
            let why = format!("provided port is not in the valid range. The range of valid ports is {low}-{high}");
            return Err(invalid(&why));
        }
        let refusal = invalid("provided port is already allocated");
        self.claim(key, Some(refusal));
        Ok(())
    }

    fn choose_port(&mut self) -> Result<u64, Status> {
        let range = &self.server.config.node_ports;
        let low = u64::from(*range.start());
        let size = (u64::from(*range.end()) + 1).saturating_sub(low);
        // Upstream reserves the lower part, at most 128 ports, for explicit requests.
        let band = (size / 32).clamp(16, 128);
        let Some(n) = self.choose(size, band, |n| Some(port_key(low + n))) else {
            return Err(Status::internal("failed to allocate a nodePort: range is full"));
        };
        self.claim(port_key(low + n), None);
        Ok(low + n)
    }

    /// A number below `size` whose key exists and is not known to be taken; preferably above the band.
    fn choose(&self, size: u64, band: u64, key: impl Fn(u64) -> Option<String>) -> Option<u64> {
        let free = |n: &u64| {
            let Some(key) = key(*n) else { return false };
            !self.taken.keys.contains(&key) && !self.held.contains(&key) && !self.claimed.contains(&key)
        };
        let band = if band < size { band } else { 0 };
        if size == 0 {
            return None;
        }
        if !self.taken.complete {
            let blind = (0..BLIND).map(|_| random(&self.server.env, band, size)).find(free);
            if blind.is_some() {
                return blind;
            }
        }
        let start = random(&self.server.env, band, size);
        (start..size).chain(band..start).chain(0..band).find(free)
    }
}

fn random(env: &Env, from: u64, to: u64) -> u64 {
    from + env.below(to - from)
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// How many addresses of a range are allocated: not the network and broadcast addresses; at most 2^20.
fn hosts(range: &IpNet) -> u64 {
    let bits = u32::from(range.max_prefix_len() - range.prefix_len());
    let all = 1u64 << bits.min(20);
    all.saturating_sub(if range.network().is_ipv4() && bits <= 20 { 2 } else { 1 })
}

/// The nth address of a range.
fn nth(range: &IpNet, n: u64) -> IpAddr {
    match range.network() {
        IpAddr::V4(base) => IpAddr::V4((u32::from(base) + 1 + n as u32).into()),
        IpAddr::V6(base) => IpAddr::V6((u128::from(base) + 1 + u128::from(n)).into()),
    }
}

fn usable(range: &IpNet, ip: IpAddr) -> bool {
    range.contains(&ip) && ip != range.network() && (ip.is_ipv6() || ip != range.broadcast())
}
