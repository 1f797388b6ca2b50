//! Measures how long Services take to load and to change: for benchmarks, on the real kernel, in a new namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_journal::JournalWriter;

use super::{Backends, Dataplane, Empty, NodeFacts, Protocol, Service, ServicePort};
use crate::{Family, NodeNetns, Result, netlink};

/// Times for one size.
#[derive(Clone, Debug)]
pub struct Speed {
    pub services: u32,
    /// Loading all Services, with three endpoints each, into empty tables.
    pub load: Duration,
    /// The duration of each change of one endpoint, sorted.
    pub changes: Vec<Duration>,
}

impl Speed {
    pub fn p50(&self) -> Duration {
        self.percentile(50)
    }
    pub fn p99(&self) -> Duration {
        self.percentile(99)
    }
    fn percentile(&self, percent: usize) -> Duration {
        let last = self.changes.len().saturating_sub(1);
        self.changes.get(last * percent / 100).copied().unwrap_or_default()
    }
}

/// Loads `services` Services, then changes one endpoint of one of them `changes` times: gone, back, gone.
pub fn measure(services: u32, changes: u32) -> Result<Speed> {
    let netns = NodeNetns::from_fd(netlink::new_netns()?)?;
    let mut dataplane = Dataplane::new(&netns, &[Family::V4], &JournalWriter::none())?;
    dataplane.load(NodeFacts::default(), &BTreeMap::new())?;
    let started = Instant::now();
    let all = (0..services).map(|n| (format!("default/service-{n}"), Some(service(n, 3))));
    dataplane.apply(all.collect())?;
    let load = started.elapsed();
    let mut times = Vec::new();
    for round in 0..changes {
        let n = round % services.max(1);
        let count = if (round / services.max(1)).is_multiple_of(2) { 2 } else { 3 };
        let started = Instant::now();
        dataplane.apply(vec![(format!("default/service-{n}"), Some(service(n, count)))])?;
        times.push(started.elapsed());
    }
    times.sort();
    Ok(Speed { services, load, changes: times })
}

fn service(n: u32, endpoints: u32) -> Arc<Service> {
    let endpoint = |e: u32| SocketAddr::new(Ipv4Addr::from(0x0a80_0000 + n * 4 + e).into(), 8080);
    let backends = Backends { endpoints: (0..endpoints).map(endpoint).collect(), empty: Empty::Refuse };
    let port = ServicePort {
        name: "http".to_owned(),
        family: Family::V4,
        protocol: Protocol::Tcp,
        port: 80,
        cluster_ips: vec![IpAddr::from(Ipv4Addr::from(0x0a60_0000 + n))],
        external_ips: Vec::new(),
        host_ips: Vec::new(),
        node_port: None,
        internal: backends,
        external: None,
        outside: None,
        affinity: None,
        source_ranges: Vec::new(),
    };
    Arc::new(Service { ports: vec![port], ..Service::default() })
}
