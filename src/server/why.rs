//! Who may ask for the way of a packet, and what of it is shown to whom.
//!
//! The way leads through the policies of both ends, so who asks may inspect both of them and list the policies of both namespaces.
//! Whoever may not do so in all namespaces, and inspect nodes, names Pods and Services: addresses may be anybody's, and so may the
//! endpoints of a Service be. What is behind these is shown only for Pods of the named namespaces.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use podwright_api::rpc::{PacketOptions, PeerRef};
use podwright_api::{Kind, Object, Status, kinds};

use super::Server;
use super::authorize::attributes::Attributes;
use super::resolved_request::ResolvedRequest;

/// How many Pods of a namespace are looked at for their addresses.
const PODS: usize = 4096;
/// The protocols that have ports.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

impl Server {
    /// Checks who asks, and fills in what the node is to know. `asked` is as the client has written it.
    pub(super) async fn may_follow(
        &self,
        call: &ResolvedRequest,
        asked: PacketOptions,
    ) -> Result<PacketOptions, Status> {
        let PacketOptions { incoming, peer, port, protocol, to, .. } = asked;
        if port == 0 {
            return Err(Status::bad_request("packet.port: a port from 1 to 65535 is needed"));
        }
        if !PROTOCOLS.contains(&protocol.as_str()) {
            let why = format!("packet.protocol: {protocol:?} is none of {}", PROTOCOLS.join(", "));
            return Err(Status::bad_request(why));
        }
        let is_node = call.kind.built_in() == "Node";
        if to.is_some() && !is_node {
            return Err(Status::bad_request("packet.to: the address of a Pod is its own"));
        }
        let sees_all = self.may_see_all(call).await;
        let mut namespaces = BTreeSet::new();
        if is_node {
            sees_all.clone()?;
        } else {
            self.may_list_policies(call, call.within()).await?;
            namespaces.insert(call.within().to_owned());
        }
        let mut addresses = match &peer {
            PeerRef::Pod { namespace, name } => {
                self.may_get(call, "pods", "inspect", namespace, name).await?;
                self.may_list_policies(call, namespace).await?;
                self.addresses_of("pods", call, namespace, name).await?
            }
            PeerRef::Service { namespace, name } => {
                self.may_get(call, "services", "", namespace, name).await?;
                self.may_list_policies(call, namespace).await?;
                // All of its endpoints are Pods that may be inspected, whatever they are called.
                if self.may_get(call, "pods", "inspect", namespace, "").await.is_ok() {
                    namespaces.insert(namespace.clone());
                }
                self.addresses_of("services", call, namespace, name).await?
            }
            PeerRef::Node { name } => {
                sees_all.clone()?;
                self.addresses_of("nodes", call, "", name).await?
            }
            PeerRef::Address(address) => {
                sees_all.clone()?;
                vec![*address]
            }
        };
        addresses.dedup();
        if addresses.is_empty() {
            return Err(Status::bad_request("packet.peer: it has no address yet"));
        }
        let visible = match sees_all {
            Ok(()) => None,
            Err(_) => {
                let mut visible: BTreeSet<IpAddr> = addresses.iter().copied().collect();
                for namespace in &namespaces {
                    // The rights to one Pod are none to the others.
                    if self.may_get(call, "pods", "inspect", namespace, "").await.is_ok() {
                        visible.extend(self.pods_of(call, namespace).await?);
                    }
                }
                Some(visible.into_iter().collect())
            }
        };
        Ok(PacketOptions { incoming, peer, port, protocol, to, addresses, visible })
    }

    /// Whether all that any packet may meet is shown to whoever asks.
    async fn may_see_all(&self, call: &ResolvedRequest) -> Result<(), Status> {
        self.may_get(call, "nodes", "inspect", "", "").await?;
        self.may_get(call, "pods", "inspect", "", "").await?;
        self.may_list_policies(call, "").await
    }

    async fn may_list_policies(&self, call: &ResolvedRequest, namespace: &str) -> Result<(), Status> {
        let group = "networking.k8s.io";
        let asked = Attributes { namespace, ..Attributes::new(&call.user, "list", group, "networkpolicies") };
        self.authorize(&asked).await
    }

    async fn may_get(
        &self,
        call: &ResolvedRequest,
        resource: &str,
        subresource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Status> {
        let asked = Attributes { subresource, namespace, name, ..Attributes::new(&call.user, "get", "", resource) };
        self.authorize(&asked).await
    }

    /// The addresses of a Pod, Service or Node.
    async fn addresses_of(
        &self,
        plural: &str,
        call: &ResolvedRequest,
        namespace: &str,
        name: &str,
    ) -> Result<Vec<IpAddr>, Status> {
        let kind = row(plural)?;
        let missing = || Status::not_found(plural, "", name);
        let item = self.cache.resource(kind).get(&kind.key(Some(namespace), name)).ok_or_else(missing)?;
        self.look(&call.user, &item, |object| addresses(plural, object)).await
    }

    /// The addresses of a namespace's Pods.
    async fn pods_of(&self, call: &ResolvedRequest, namespace: &str) -> Result<Vec<IpAddr>, Status> {
        let kind = row("pods")?;
        let resource = self.cache.resource(kind);
        let items: Vec<_> = {
            let read = resource.read();
            let within = read.items.values().filter(|item| item.namespace(kind) == namespace);
            within.take(PODS).cloned().collect()
        };
        let mut all = Vec::new();
        for item in items {
            // One of the node's own network has the node's addresses.
            let of = |pod: &Object| match pod.0["spec"]["hostNetwork"] == true {
                true => Vec::new(),
                false => addresses("pods", pod),
            };
            all.extend(self.look(&call.user, &item, of).await?);
        }
        Ok(all)
    }
}

fn row(plural: &str) -> Result<&'static Kind, Status> {
    kinds::lookup(plural).ok_or_else(|| Status::internal("a kind that is always there is missing"))
}

fn addresses(plural: &str, object: &Object) -> Vec<IpAddr> {
    let (list, field) = match plural {
        "pods" => (&object.0["status"]["podIPs"], Some("ip")),
        "services" => (&object.0["spec"]["clusterIPs"], None),
        _ => (&object.0["status"]["addresses"], Some("address")),
    };
    let parse = |entry: &Value| field.map_or(entry, |field| &entry[field]).as_str().and_then(|ip| ip.parse().ok());
    list.as_array().into_iter().flatten().filter_map(parse).collect()
}
