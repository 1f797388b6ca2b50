//! What must always exist: the initial namespaces, the default roles, the system's PriorityClasses, and the Services `kubernetes`
//! and `kube-dns`.

use std::net::IpAddr;

use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::api::{Request, Status, User, Verb};

use super::{Config, Server};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The classes of Pods that a cluster cannot do without: name, value, description.
const PRIORITY_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

/// Which address of the service range the cluster's DNS has, as kubeadm has it.
const DNS_HOST: u32 = 10;

impl Config {
    /// The cluster's DNS address.
    pub fn dns_address(&self) -> Option<IpAddr> {
        self.host(DNS_HOST)
    }
    /// The address of the `kubernetes` Service.
    pub fn api_address(&self) -> Option<IpAddr> {
        self.host(1)
    }

    /// The nth address of the first service range.
    fn host(&self, n: u32) -> Option<IpAddr> {
        let cidr = self.service_cidrs.first()?;
        Some(match cidr.network() {
            IpAddr::V4(base) => IpAddr::V4((u32::from(base) + n).into()),
            IpAddr::V6(base) => IpAddr::V6((u128::from(base) + u128::from(n)).into()),
        })
    }
}

impl Server {
    /// Creates what is missing; does nothing to what exists.
    pub(super) async fn create_initial_objects(&self) -> Result<(), Status> {
        // What does not build on each other is written together: one fsync.
        let namespaces = NAMESPACES.map(|name| self.ensure("namespaces", None, name, json!({})));
        let classes = PRIORITY_CLASSES.map(|(name, value, description)| {
            let class = json!({"value": value, "description": description});
            self.ensure("priorityclasses.scheduling.k8s.io", None, name, class)
        });
        let (namespaces, classes) = (try_join_all(namespaces), try_join_all(classes));
        tokio::try_join!(namespaces, classes, self.ensure_default_roles())?;
        let address = |ip: Option<IpAddr>| ip.map_or(Value::Null, |ip| Value::from(ip.to_string()));
        let kubernetes = json!({
            "metadata": {"labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "clusterIP": address(self.config.api_address()),
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            },
        });
        let kubernetes = self.ensure("services", Some("default"), "kubernetes", kubernetes);
        // Without a selector: each node's agent serves it on the node itself.
        let dns = json!({
            "metadata": {"labels": {
                "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
            }},
            "spec": {
                "clusterIP": address(self.config.dns_address()),
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
                ],
            },
        });
        let dns = self.ensure("services", Some("kube-system"), "kube-dns", dns);
        tokio::try_join!(kubernetes, dns).map(drop)
    }

    /// Creates an object on the server's own behalf, if there is none of its name.
    pub(super) async fn ensure(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
        mut object: Value,
    ) -> Result<(), Status> {
        let kind =
            crate::api::kinds::lookup(resource).ok_or_else(|| Status::internal(format!("no kind {resource}")))?;
        if self.cache.shelf(kind).get(&kind.key(namespace, name)).is_some() {
            return Ok(());
        }
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.into();
        object["metadata"]["name"] = name.into();
        let request = Request {
            verb: Verb::Create,
            resource: resource.into(),
            namespace: namespace.map(str::to_owned),
            body: Some(object),
            user: User::system("system:apiserver"),
            ..Request::default()
        };
        // Boxed: a create may ensure what it needs.
        match Box::pin(self.handle(request)).await {
            Err(status) if !status.is_already_exists() => Err(status),
            _ => Ok(()),
        }
    }
}
