//! What must always exist: the initial namespaces, the default roles, the APIServices of built-in groups, the system's
//! PriorityClasses, and the Services `kubernetes` and `kube-dns`. And what a cluster starts with: the StorageClass `local`, which
//! may be deleted.

use std::net::IpAddr;

use futures::future::try_join_all;
use ipnet::IpNet;
use serde_json::{Value, json};

use podwright_api::kinds::storage_class::IS_DEFAULT;
use podwright_api::persistent_volume::local;
use podwright_api::request::PatchType;
use podwright_api::{Object, Options, Request, Status, User, Verb};

use super::{Config, Server, allocate};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The PriorityClasses of critical Pods: name, value, description.
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

/// Annotation on the namespace `kube-system`: the StorageClass of the built-in provisioner was created once.
const LOCAL_CLASS: &str = "podwright.dev/local-storage-class";

/// The index of the cluster DNS address within the service range, as with kubeadm.
const DNS_HOST: u32 = 10;

/// Where nodes answer DNS by default: in the first service range only, as with kubeadm. (A Pod's resolver reads at most three name
/// servers, some of which are the Pod's own.) `None`: the range has no such address.
pub fn default_dns_address(ranges: &[IpNet]) -> Option<IpAddr> {
    let range = ranges.first()?;
    Some(host(range, DNS_HOST)).filter(|ip| range.contains(ip))
}

impl Config {
    /// The cluster's DNS address.
    pub fn dns_address(&self) -> Option<IpAddr> {
        self.service_cidrs.first().map(|range| host(range, DNS_HOST))
    }
    /// The address of the `kubernetes` Service.
    pub fn api_address(&self) -> Option<IpAddr> {
        self.service_cidrs.first().map(|range| host(range, 1))
    }

    /// Whether an address is reserved and not available to a Service: the API's is for `default/kubernetes` only, those of DNS are
    /// for `kube-system`, whatever the Service is called (charts of CoreDNS bring their own). They stay reserved while unused, so
    /// that such a Service can be deleted and recreated.
    pub(super) fn keeps_from(&self, ip: IpAddr, namespace: Option<&str>, name: &str) -> bool {
        if self.api_address() == Some(ip) {
            return (namespace, name) != (Some("default"), "kubernetes");
        }
        self.is_kept(ip) && namespace != Some("kube-system")
    }

    /// Whether an address is never allocated automatically: the nodes of a dual-stack cluster may answer DNS in both families.
    pub(super) fn is_kept(&self, ip: IpAddr) -> bool {
        let of_dns = || self.service_cidrs.iter().any(|range| host(range, DNS_HOST) == ip);
        self.api_address() == Some(ip) || of_dns() || self.cluster_dns.contains(&ip)
    }
}

/// The nth address of a range.
fn host(range: &IpNet, n: u32) -> IpAddr {
    match range.network() {
        // Past the end of the address space the result is outside the range.
        IpAddr::V4(base) => IpAddr::V4(u32::from(base).wrapping_add(n).into()),
        IpAddr::V6(base) => IpAddr::V6(u128::from(base).wrapping_add(u128::from(n)).into()),
    }
}

impl Server {
    /// Creates what is missing; leaves existing objects alone.
    pub(super) async fn create_initial_objects(&self) -> Result<(), Status> {
        // Independent objects are written together: one fsync.
        let namespaces = NAMESPACES.map(|name| self.ensure("namespaces", None, name, json!({})));
        let classes = PRIORITY_CLASSES.map(|(name, value, description)| {
            let class = json!({"value": value, "description": description});
            self.ensure("priorityclasses.scheduling.k8s.io", None, name, class)
        });
        let (namespaces, classes) = (try_join_all(namespaces), try_join_all(classes));
        tokio::try_join!(namespaces, classes, self.ensure_default_roles(), self.register_own_groups())?;
        let address = |ip: Option<IpAddr>| ip.map_or(Value::Null, |ip| Value::from(ip.to_string()));
        let kubernetes = json!({
            "metadata": {"labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "clusterIP": address(self.config.api_address()),
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            },
        });
        let kubernetes = self.ensure("services", Some("default"), "kubernetes", kubernetes);
        // Without a selector: each node's agent serves DNS on the node itself.
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
        let dns = self.ensure_dns(dns);
        tokio::try_join!(kubernetes, dns)?;
        if self.config.local_storage_class { self.begin_with_local_class().await } else { Ok(()) }
    }

    /// Creates the Service kube-dns, unless another one in its namespace has its address: an operator's own.
    async fn ensure_dns(&self, service: Value) -> Result<(), Status> {
        let make = || self.ensure("services", Some("kube-system"), "kube-dns", service.clone());
        let Err(status) = make().await else { return Ok(()) };
        if status.reason != "Invalid" {
            return Err(status);
        }
        let holder = match self.config.dns_address() {
            Some(ip) => allocate::holder(self, ip).await?,
            None => None,
        };
        let Some(holder) = holder else {
            // It was freed meanwhile, or the failure has another cause.
            return make().await;
        };
        tracing::warn!(%status, holder, "not creating the Service kube-dns again");
        Ok(())
    }

    /// Creates the StorageClass `local`, once in a cluster's life: changes and deletion by an operator persist. It is the default
    /// class, unless one exists already.
    async fn begin_with_local_class(&self) -> Result<(), Status> {
        let (namespaces, classes) = ("namespaces", "storageclasses.storage.k8s.io");
        let kind = |name| podwright_api::kinds::lookup(name).ok_or_else(|| Status::internal(format!("no kind {name}")));
        let system = kind(namespaces)?;
        let had = self.cache.resource(system).get(&system.key(None, "kube-system"));
        if had.is_some_and(|item| annotation(&item.bytes, LOCAL_CLASS).is_some()) {
            return Ok(());
        }
        let default = {
            let kind = kind(classes)?;
            let resource = self.cache.resource(kind);
            let state = resource.read();
            !state
                .range(&kind.key(None, ""), None)
                .any(|item| annotation(&item.bytes, IS_DEFAULT) == Some("true".into()))
        };
        let class = json!({
            "metadata": {"annotations": {IS_DEFAULT: default.to_string()}},
            "provisioner": local::PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
        });
        self.ensure(classes, None, local::CLASS_NAME, class).await?;
        // Last: after a crash before this, the existing class is found.
        let mark = Request {
            verb: Verb::Patch,
            resource: namespaces.into(),
            name: Some("kube-system".into()),
            body: Some(json!({"metadata": {"annotations": {LOCAL_CLASS: "created"}}})),
            options: Options { patch_type: Some(PatchType::Merge), ..Options::default() },
            user: User::system("system:apiserver"),
            ..Request::default()
        };
        Box::pin(self.handle(mark)).await.map(drop)
    }

    /// Creates an object on the server's own behalf, unless it exists.
    pub(super) async fn ensure(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
        mut object: Value,
    ) -> Result<(), Status> {
        let kind =
            podwright_api::kinds::lookup(resource).ok_or_else(|| Status::internal(format!("no kind {resource}")))?;
        if self.cache.resource(kind).get(&kind.key(namespace, name)).is_some() {
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

/// An annotation of a stored object.
fn annotation(bytes: &[u8], name: &str) -> Option<String> {
    Object::from_slice(bytes).ok()?.annotation(name).map(str::to_owned)
}
