//! The API server: one pipeline for every request, generic over kind.

use std::sync::Arc;

use crate::api::{Env, Request, Response, Status, WatchEvent};
use crate::store::Store;

/// Events of one watch, in order. The sender ends it when the watch is over; an `Error` event says why.
pub type Watch = tokio::sync::mpsc::Receiver<WatchEvent>;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where ClusterIPs come from, in order of preference (dual-stack: two).
    pub service_cidrs: Vec<ipnet::IpNet>,
    /// Where NodePorts come from.
    pub node_ports: std::ops::RangeInclusive<u16>,
}

impl Default for Config {
    fn default() -> Config {
        // The invariant: a literal that parses.
        Config { service_cidrs: vec!["10.96.0.0/16".parse().expect("a valid CIDR")], node_ports: 30000..=32767 }
    }
}

/// An API server over a store. Share it with `Arc`.
pub struct Server {
    #[allow(dead_code)]
    store: Arc<dyn Store>,
}

impl Server {
    /// Opens the server: warms the watch cache and creates what must always exist (namespaces, the `kubernetes` Service).
    pub async fn open(store: Arc<dyn Store>, _env: Env, _config: Config) -> Result<Arc<Server>, Status> {
        Ok(Arc::new(Server { store }))
    }
    /// Everything but watch.
    pub async fn handle(&self, _request: Request) -> Result<Response, Status> {
        Err(Status::unavailable("the pipeline has not landed"))
    }
    pub async fn watch(&self, _request: Request) -> Result<Watch, Status> {
        Err(Status::unavailable("the pipeline has not landed"))
    }
}
