//! `healthCheckNodePort`: tells a load balancer in front of the nodes whether this one has endpoints of a Service, by HTTP.
//!
//! Upstream: `pkg/proxy/healthcheck/service_health.go`. Whoever reaches the node may ask: requests are not read further than their
//! end, and there are so many at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use podwright_client::Key;
use podwright_net::{Network, NodeNetns};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::endpoints::{address_of, is_ready};
use super::notices::Notice;
use super::objects::Objects;
use super::owner::Owner;

/// Requests at once, of all Services.
const AT_ONCE: usize = 256;
/// The longest head of a request, and how long it may take with its answer.
const LONGEST: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(5);
/// After an accept that failed, such as for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// The port on which a node says how many endpoints of the Service it has, and how many it has; `None`: the Service wants none.
pub fn health_check(service: &Service, slices: &[impl AsRef<EndpointSlice>], node: &str) -> Option<(u16, usize)> {
    let spec = service.spec.as_ref()?;
    let is_local = spec.external_traffic_policy.as_deref() == Some("Local");
    let is_balanced = spec.type_.as_deref() == Some("LoadBalancer");
    let port = u16::try_from(spec.health_check_node_port.filter(|_| is_local && is_balanced)?)
        .ok()
        .filter(|port| *port > 0)?;
    let endpoints = slices.iter().flat_map(|slice| &slice.as_ref().endpoints);
    let here = endpoints.filter(|endpoint| endpoint.node_name.as_deref() == Some(node) && is_ready(endpoint));
    Some((port, here.filter_map(address_of).collect::<BTreeSet<IpAddr>>().len()))
}

/// The listeners of this node.
pub struct HealthChecks {
    netns: NodeNetns,
    addresses: Vec<IpAddr>,
    checks: BTreeMap<Key, Check>,
    /// Those whose port was not to be had: it may be only for a moment.
    failed: BTreeSet<Key>,
    places: Arc<Semaphore>,
}

/// The listeners of one Service; they end when it is dropped, a moment later.
struct Check {
    port: u16,
    endpoints: Arc<AtomicUsize>,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Check {
    /// Gives the port back.
    async fn end(self) {
        for task in self.tasks {
            task.abort();
            // Only that it has ended counts.
            task.await.ok();
        }
    }
}

impl HealthChecks {
    pub fn new(network: &Network) -> HealthChecks {
        let (netns, addresses) = (network.netns().clone(), network.addresses().to_vec());
        HealthChecks {
            netns,
            addresses,
            checks: BTreeMap::new(),
            failed: BTreeSet::new(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Follows these Services; returns those whose port cannot be had.
    pub async fn update(&mut self, objects: &impl Objects, services: BTreeSet<Key>, node: &str) -> Vec<Notice> {
        let (mut notices, mut new) = (Vec::new(), Vec::new());
        let failed = std::mem::take(&mut self.failed);
        for key in services.into_iter().chain(failed.iter().cloned()).collect::<BTreeSet<Key>>() {
            let wanted = objects.service(&key).and_then(|service| health_check(&service, &objects.slices(&key), node));
            match (wanted, self.checks.get(&key)) {
                (Some((port, count)), Some(check)) if check.port == port => {
                    check.endpoints.store(count, Ordering::Relaxed)
                }
                (wanted, _) => {
                    // Another one may want the port.
                    if let Some(check) = self.checks.remove(&key) {
                        check.end().await;
                    }
                    new.extend(wanted.map(|wanted| (key, wanted)));
                }
            }
        }
        for (key, (port, count)) in new {
            match self.listen(&key, port, count).await {
                Ok(check) => drop(self.checks.insert(key, check)),
                Err(error) => {
                    if !failed.contains(&key) {
                        let message = format!("node {node} failed to start healthcheck on port {port}: {error}");
                        let about = Owner::Service(key.clone());
                        notices.push(Notice::new(about, "FailedToStartServiceHealthcheck", message));
                    }
                    self.failed.insert(key);
                }
            }
        }
        notices
    }

    async fn listen(&self, key: &Key, port: u16, count: usize) -> podwright_net::Result<Check> {
        let endpoints = Arc::new(AtomicUsize::new(count));
        let mut check = Check { port, endpoints: endpoints.clone(), tasks: Vec::new() };
        for address in &self.addresses {
            let listener = self.netns.tcp_listen(SocketAddr::new(*address, port)).await?;
            let serving = serve(listener, key.clone(), endpoints.clone(), self.places.clone());
            check.tasks.push(AbortOnDropHandle::new(tokio::spawn(serving)));
        }
        Ok(check)
    }
}

async fn serve(listener: TcpListener, key: Key, endpoints: Arc<AtomicUsize>, places: Arc<Semaphore>) {
    loop {
        let Ok((caller, _)) = listener.accept().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        // Without a place the connection ends at once.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let answer = answer(&key, endpoints.load(Ordering::Relaxed));
        tokio::spawn(async move {
            // A caller that goes away hears nothing.
            let _ = tokio::time::timeout(TIMEOUT, respond(caller, answer)).await;
            drop(place);
        });
    }
}

async fn respond(mut caller: TcpStream, answer: String) -> io::Result<()> {
    let (mut head, mut length) = ([0; LONGEST], 0);
    while !head[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        match caller.read(&mut head[length..]).await? {
            0 => return Ok(()),
            more => length += more,
        }
    }
    caller.write_all(answer.as_bytes()).await?;
    caller.shutdown().await
}

/// Upstream's answer, word for word.
fn answer(key: &Key, endpoints: usize) -> String {
    let status = if endpoints > 0 { "200 OK" } else { "503 Service Unavailable" };
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{}\",\n\t\t\"name\": \"{}\"\n\t}},\n\t\"localEndpoints\": {endpoints},\n\t\
         \"serviceProxyHealthy\": true\n}}",
        key.namespace, key.name
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {endpoints}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_asks_hears_how_many_endpoints_there_are() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (endpoints, places) = (Arc::new(AtomicUsize::new(2)), Arc::new(Semaphore::new(1)));
        tokio::spawn(serve(listener, Key::new("a", "web"), endpoints.clone(), places));
        let ask = async |request: &str| {
            let mut caller = TcpStream::connect(at).await.unwrap();
            caller.write_all(request.as_bytes()).await.unwrap();
            let mut heard = String::new();
            // One that is cut off hears nothing.
            let _ = caller.read_to_string(&mut heard).await;
            heard
        };
        let heard = ask("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(heard.starts_with("HTTP/1.1 200 OK\r\n") && heard.contains("X-Load-Balancing-Endpoint-Weight: 2\r\n"));
        assert!(heard.ends_with("\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"), "{heard}");
        endpoints.store(0, Ordering::Relaxed);
        while !ask("GET / HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.1 503 ") {}
        // One that never ends its request takes the only place, until it goes.
        let mut silent = TcpStream::connect(at).await.unwrap();
        silent.write_all(b"GET /").await.unwrap();
        while !ask("GET / HTTP/1.0\r\n\r\n").await.is_empty() {}
        drop(silent);
        while ask("GET / HTTP/1.0\r\n\r\n").await.is_empty() {}
        // Nor is more read than a head.
        let long = format!("GET /{} HTTP/1.0\r\n\r\n", "x".repeat(LONGEST));
        assert_eq!(ask(&long).await, "");
    }
}
