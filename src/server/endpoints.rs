//! How this server is reached: the endpoints of the Service `kubernetes`, for Pods, and `kube-public/cluster-info`, for joining
//! machines.
//!
//! Like upstream's reconciler for a single server: the objects name this server only, and changes by others are soon reverted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use podwright_api::cluster_info as info;
use podwright_api::{Object, Request, Status, User, Verb, kinds};

use super::Server;
use super::large::Weighed;

/// How often the objects are checked.
const EVERY: Duration = Duration::from_secs(10);
const NAME: &str = "kubernetes";

/// How others reach this server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertiseAddress {
    /// By Pods: the destination of the Service `kubernetes`. `None`: not at all.
    pub endpoint: Option<SocketAddr>,
    /// By machines: `https://HOST:PORT`. `None`: not at all.
    pub url: Option<String>,
}

impl Server {
    /// Publishes these addresses from now on.
    pub fn advertise(&self, advertised: AdvertiseAddress) {
        self.advertised.send_replace(Some(advertised));
    }

    /// Starts the loop that maintains the objects; it does nothing before [`Server::advertise`].
    pub(super) fn start_endpoints(self: &Arc<Server>) {
        let (weak, mut advertised) = (Arc::downgrade(self), self.advertised.subscribe());
        self.tasks.add(tokio::spawn(async move {
            loop {
                let now = advertised.borrow_and_update().clone();
                let told = now.is_some();
                if let (Some(now), Some(server)) = (now, weak.upgrade())
                    && let Err(why) = server.tell(&now).await
                {
                    tracing::warn!("failed to write the endpoints of the Service {NAME}: {why}");
                }
                let changed = async {
                    match told {
                        true => tokio::time::timeout(EVERY, advertised.changed()).await.unwrap_or(Ok(())),
                        false => advertised.changed().await,
                    }
                };
                // The server owns the sender.
                if changed.await.is_err() {
                    return;
                }
            }
        }));
    }

    async fn tell(&self, advertised: &AdvertiseAddress) -> Result<(), Status> {
        self.keep("endpoints", "default", NAME, advertised.endpoint.map(endpoints)).await?;
        self.keep("endpointslices", "default", NAME, advertised.endpoint.map(slice)).await?;
        let (Some(url), Some(authority)) = (&advertised.url, &self.config.authority) else { return Ok(()) };
        let told = cluster_info(url, authority.certificate());
        self.keep("configmaps", info::NAMESPACE, info::NAME, Some(told)).await
    }

    /// Sets the fields of `wanted`, including labels, in an object; `None` deletes it.
    pub(super) async fn keep(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        wanted: Option<Value>,
    ) -> Result<(), Status> {
        let kind = kinds::lookup(resource).ok_or_else(|| Status::internal(format!("no kind {resource}")))?;
        let find = || self.cache.resource(kind).get(&kind.key(Some(namespace), name));
        let request = Request {
            resource: kind.resource(),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            user: User::system("system:apiserver"),
            ..Request::default()
        };
        let Some(wanted) = wanted else {
            return match find() {
                Some(_) => self.handle(Request { verb: Verb::Delete, ..request }).await.map(drop),
                None => Ok(()),
            };
        };
        let Some(item) = find() else { return self.ensure(resource, Some(namespace), name, wanted).await };
        let held = item.decode(Weighed::own())?.object;
        if held.0["addressType"] != wanted["addressType"] {
            // It is immutable, so it is recreated.
            self.handle(Request { verb: Verb::Delete, ..request }).await?;
            self.cache.fresh().await?;
            return self.ensure(resource, Some(namespace), name, wanted).await;
        }
        let new = with(&held, wanted);
        if new == held {
            return Ok(());
        }
        match self.handle(Request { verb: Verb::Update, body: Some(new.0), ..request }).await {
            // Retried at the next check.
            Err(why) if !why.is_conflict() && !why.is_not_found() => Err(why),
            _ => Ok(()),
        }
    }
}

/// The object with the fields, labels and data of `wanted`.
fn with(held: &Object, wanted: Value) -> Object {
    let mut new = held.clone();
    let Value::Object(fields) = wanted else { return new };
    for (field, value) in fields {
        match field.as_str() {
            "metadata" => {
                for (label, value) in value["labels"].as_object().into_iter().flatten() {
                    new.0["metadata"]["labels"][label] = value.clone();
                }
            }
            // The bootstrap signer adds signatures.
            "data" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    new.0["data"][key] = value.clone();
                }
            }
            _ => new.0[&field] = value,
        }
    }
    new
}

fn ports(at: SocketAddr) -> Value {
    json!([{"name": "https", "port": at.port(), "protocol": "TCP"}])
}

fn endpoints(at: SocketAddr) -> Value {
    json!({
        // Not mirrored: the EndpointSlice is written here too.
        "metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": at.ip()}], "ports": ports(at)}],
    })
}

fn slice(at: SocketAddr) -> Value {
    json!({
        "metadata": {"labels": {"kubernetes.io/service-name": NAME}},
        "addressType": if at.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [at.ip()], "conditions": {"ready": true}}],
        "ports": ports(at),
    })
}

/// As kubeadm creates it: a kubeconfig with the server and its CA, without a user.
fn cluster_info(url: &str, ca: &str) -> Value {
    let kubeconfig = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: {url}\n  name: \"\"\n\
         contexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n",
        STANDARD.encode(ca)
    );
    json!({"data": {info::KUBECONFIG: kubeconfig}})
}
