//! What policies are compiled from: the informers, and what they tell. Who the Pods of other nodes and the Namespaces are is followed
//! only once there is a policy.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use podwright_api::namespace_identity::NamespaceIdentity;
use podwright_client::{Client, Delta, Informer};
use tokio::sync::{mpsc, oneshot};

use super::pod::PodView;
use super::policies::Policies;

/// The informers that policies are compiled from.
#[derive(Clone)]
pub struct PolicySources {
    client: Client,
    /// This node, whose own Pods nobody has to tell of.
    node: String,
    pub policies: Informer<NetworkPolicy>,
}

impl PolicySources {
    /// Must be called inside a tokio runtime.
    pub fn start(client: Client, node: &str) -> PolicySources {
        PolicySources { policies: Informer::builder(client.clone()).start(), client, node: node.to_owned() }
    }
}

/// What has happened to them.
pub struct PolicyEvents {
    sources: PolicySources,
    policies: mpsc::UnboundedReceiver<Delta<NetworkPolicy>>,
    peers: Option<Peers>,
}

/// Whom policies may name.
struct Peers {
    namespaces: mpsc::UnboundedReceiver<Delta<NamespaceIdentity>>,
    pods: mpsc::UnboundedReceiver<Delta<PodView>>,
    /// They end when dropped.
    _informers: (Informer<NamespaceIdentity>, Informer<PodView>),
    /// `None`: both are complete.
    complete: Option<oneshot::Receiver<()>>,
}

impl PolicyEvents {
    pub fn of(sources: &PolicySources) -> PolicyEvents {
        PolicyEvents { sources: sources.clone(), policies: sources.policies.subscribe(), peers: None }
    }

    /// Notes all that has happened.
    pub fn drain(&mut self, policies: &mut Policies) {
        while let Ok(delta) = self.policies.try_recv() {
            note_policy(&delta, policies);
        }
        if let Some(peers) = &mut self.peers {
            while let Ok(delta) = peers.namespaces.try_recv() {
                note_namespace(&delta, policies);
            }
            while let Ok(delta) = peers.pods.try_recv() {
                policies.set_peer(&delta.key, delta.new);
            }
            if peers.complete.as_mut().is_some_and(|complete| complete.try_recv().is_ok()) {
                peers.complete = None;
            }
        } else if !policies.is_empty() {
            self.peers = Some(Peers::follow(&self.sources));
        }
    }

    /// Whether all is known that policies are compiled from.
    pub fn is_complete(&self) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.complete.is_none())
    }

    /// Waits until something happens, and notes it.
    pub async fn next(&mut self, policies: &mut Policies) {
        let Some(peers) = &mut self.peers else {
            match self.policies.recv().await {
                Some(delta) => note_policy(&delta, policies),
                None => std::future::pending().await,
            }
            return;
        };
        let complete = async {
            match &mut peers.complete {
                Some(complete) => complete.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(delta) = self.policies.recv() => note_policy(&delta, policies),
            Some(delta) = peers.namespaces.recv() => note_namespace(&delta, policies),
            Some(delta) = peers.pods.recv() => policies.set_peer(&delta.key, delta.new),
            _ = complete => peers.complete = None,
            else => std::future::pending().await,
        }
    }
}

impl Peers {
    fn follow(PolicySources { client, node, .. }: &PolicySources) -> Peers {
        let namespaces: Informer<NamespaceIdentity> = Informer::builder(client.clone()).start();
        let pods = Informer::<PodView>::builder(client.clone()).fields(format!("nodeName!={node}")).start();
        let (sender, complete) = oneshot::channel();
        let (of_namespaces, of_pods) = (namespaces.clone(), pods.clone());
        let (namespace_events, pod_events) = (namespaces.subscribe(), pods.subscribe());
        tokio::spawn(async move {
            of_namespaces.synced().await;
            of_pods.synced().await;
            sender.send(()).ok();
        });
        Peers {
            namespaces: namespace_events,
            pods: pod_events,
            _informers: (namespaces, pods),
            complete: Some(complete),
        }
    }
}

fn note_policy(delta: &Delta<NetworkPolicy>, policies: &mut Policies) {
    match &delta.undecodable {
        Some(object) => policies.set_undecodable(&delta.key, &object.why),
        None => policies.set_policy(&delta.key, delta.new.as_deref()),
    }
}

fn note_namespace(delta: &Delta<NamespaceIdentity>, policies: &mut Policies) {
    let labels = delta.new.as_ref().map(|namespace| namespace.metadata.labels.clone().unwrap_or_default());
    policies.set_namespace(&delta.key.name, labels.map(BTreeMap::from_iter));
}
