//! The single stream of changes that the scheduler observes, generated from a table with a row per kind.

use std::task::{Context, Poll, ready};

use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};
use tokio::sync::mpsc::UnboundedReceiver;

use super::Scheduler;
use podwright_client::{Delta, Informers};

/// Generates from the table: the cases of [`News`], their sources, and their handlers.
macro_rules! table {
    ($($kind:ident from $informer:ident => $taken_in:ident;)+) => {
        /// One change of one object.
        pub(super) enum News {
            $($kind(Delta<$kind>),)+
        }

        impl Changes {
            pub fn of(informers: &Informers) -> Changes {
                let sources: Vec<Box<dyn Heard>> =
                    vec![$(Box::new(Source { deltas: informers.$informer.subscribe(), wrap: News::$kind })),+];
                Changes(sources)
            }
        }

        impl Scheduler {
            pub(super) fn hear(&mut self, news: News) {
                match news {
                    $(News::$kind(delta) => self.$taken_in(delta),)+
                }
            }
        }
    };
}

// Kinds that affect decisions on Pods come before Pods.
table! {
    Namespace from namespaces => namespace_changed;
    Service from services => service_changed;
    ReplicaSet from replica_sets => replica_set_changed;
    StatefulSet from stateful_sets => stateful_set_changed;
    PodDisruptionBudget from pod_disruption_budgets => budget_changed;
    StorageClass from storage_classes => class_changed;
    PersistentVolume from persistent_volumes => volume_changed;
    PersistentVolumeClaim from persistent_volume_claims => claim_changed;
    Node from nodes => node_changed;
    Pod from pods => pod_changed;
}

/// All changes; earlier rows have priority.
pub(super) struct Changes(Vec<Box<dyn Heard>>);

impl Changes {
    /// The next one, if available now.
    pub fn known(&mut self) -> Option<News> {
        self.0.iter_mut().find_map(|source| source.known())
    }

    /// The next one; `None` when there will be no more. Cancel-safe.
    pub async fn next(&mut self) -> Option<News> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<News>> {
        let mut ended = true;
        for source in &mut self.0 {
            match source.poll(context) {
                Poll::Ready(Some(news)) => return Poll::Ready(Some(news)),
                Poll::Ready(None) => {}
                Poll::Pending => ended = false,
            }
        }
        if ended { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// The changes of one kind.
trait Heard: Send {
    fn known(&mut self) -> Option<News>;
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<News>>;
}

struct Source<K> {
    deltas: UnboundedReceiver<Delta<K>>,
    wrap: fn(Delta<K>) -> News,
}

impl<K: Send + Sync> Heard for Source<K> {
    fn known(&mut self) -> Option<News> {
        self.deltas.try_recv().ok().map(self.wrap)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<News>> {
        Poll::Ready(ready!(self.deltas.poll_recv(context)).map(self.wrap))
    }
}

#[cfg(test)]
mod tests;
