//! What managers of the whole node ask of its Pods' owner.

use std::{collections::HashSet, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, oneshot};

use super::pod::intent::Eviction;

/// Requests to the owner of the Pods.
#[derive(Debug)]
pub enum Order {
    /// Returns the Pods that have not ended.
    Active(oneshot::Sender<Vec<Arc<Pod>>>),
    /// Returns the uids of those that are [about to go](super::storage::is_about_to_go) and have not been removed completely.
    Leaving(oneshot::Sender<HashSet<String>>),
    /// Returns the number of Pods whose status the server does not have yet.
    Unreported(oneshot::Sender<usize>),
    Evict(Eviction),
}

/// Sends an order and waits for its answer; empty when the agent ends, for nothing answers any more.
async fn ask<T: Default>(orders: &mpsc::UnboundedSender<Order>, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> T {
    let (sender, receiver) = oneshot::channel();
    orders.send(order(sender)).ok();
    receiver.await.unwrap_or_default()
}

/// The Pods that have not ended.
pub async fn active(orders: &mpsc::UnboundedSender<Order>) -> Vec<Arc<Pod>> {
    ask(orders, Order::Active).await
}

/// The uids of Pods that are about to go.
pub async fn leaving(orders: &mpsc::UnboundedSender<Order>) -> HashSet<String> {
    ask(orders, Order::Leaving).await
}

/// The number of Pods whose status the server does not have yet.
pub async fn unreported(orders: &mpsc::UnboundedSender<Order>) -> usize {
    ask(orders, Order::Unreported).await
}
