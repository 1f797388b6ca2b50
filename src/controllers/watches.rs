//! Watches: from an informer's changes to the keys of a queue.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{World, aside::Lately, fair_queue::FairQueue, metadata_informers::MetadataInformer, queue::Queue};
use podwright_api::Env;
use podwright_client::{Delta, Informer, Key, Partial, Typed};

/// What a change of an object of a kind wakes.
type Wake<K> = Arc<dyn Fn(&Arc<World>, &Queue, &Delta<K>) + Send + Sync>;

/// What a row's `watch` connects.
pub struct Watches<'a> {
    pub queue: &'a Queue,
    pub world: &'a Arc<World>,
    pub env: &'a Env,
    pub(super) shutdown: &'a CancellationToken,
    pub(super) tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    /// Has `wake` called for every change, first of all for what is known already.
    pub fn on<K: Typed>(
        &mut self,
        informer: &Informer<K>,
        wake: impl Fn(&Arc<World>, &Queue, &Delta<K>) + Send + Sync + 'static,
    ) {
        let (queue, world, shutdown) = (self.queue.clone(), self.world.clone(), self.shutdown.clone());
        let followed = follow(informer.subscribe(), Arc::new(wake), queue, world);
        self.tasks.spawn(async move { shutdown.run_until_cancelled(followed).await.unwrap_or_default() }.boxed());
    }

    /// Has `wake` called for every change of every object of the kinds that are `wanted`, those too that are defined later.
    pub fn on_metadata(
        &mut self,
        wanted: fn(&MetadataInformer) -> bool,
        wake: impl Fn(&Arc<World>, &Queue, &Delta<Partial>) + Send + Sync + 'static,
    ) {
        let wake: Wake<Partial> = Arc::new(wake);
        let mut informers = self.world.metadata.follow();
        let (queue, world, shutdown) = (self.queue.clone(), self.world.clone(), self.shutdown.clone());
        self.tasks.spawn(async move {
            let mut tasks = JoinSet::new();
            loop {
                let informer = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    informer = informers.recv() => informer,
                };
                let Some(informer) = informer else { return };
                if !wanted(&informer) {
                    continue;
                }
                tasks.spawn(follow(informer.objects.subscribe(), wake.clone(), queue.clone(), world.clone()));
            }
        });
    }

    /// Has `wake` called for every kind that a definition defines, or somebody else serves, as soon as it is followed.
    pub fn on_defined(&mut self, wake: fn(&World, &Queue, &MetadataInformer)) {
        let mut informers = self.world.metadata.follow();
        let (queue, world, shutdown) = (self.queue.clone(), self.world.clone(), self.shutdown.clone());
        self.tasks.spawn(async move {
            loop {
                let informer = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    informer = informers.recv() => informer,
                };
                match informer {
                    Some(informer) if informer.is_custom() || informer.is_elsewhere() => {
                        wake(&world, &queue, &informer)
                    }
                    Some(_) => {}
                    None => return,
                }
            }
        });
    }

    /// Every change of an object wakes its own key.
    pub fn own<K: Typed>(&mut self, informer: &Informer<K>) {
        self.on(informer, |_, queue, change| queue.add(change.key.clone()));
    }

    /// Every change of an object wakes its controlling owner of `kind`, the old one and the new one.
    pub fn owner<K: Typed>(&mut self, informer: &Informer<K>, kind: &'static str) {
        self.on(informer, move |_, queue, change| {
            for object in change.old.iter().chain(&change.new) {
                let meta = object.metadata();
                if let Some(owner) = super::meta::controller(meta).filter(|o| o.kind == kind) {
                    queue.add(Key::new(meta.namespace.clone().unwrap_or_default(), owner.name.clone()));
                }
            }
        });
    }
}

/// Calls `wake` for each change; each namespace's have their turn.
async fn follow<K: Typed>(mut changes: UnboundedReceiver<Delta<K>>, wake: Wake<K>, queue: Queue, world: Arc<World>) {
    let (lately, mut waiting) = (Lately::default(), FairQueue::default());
    loop {
        while let Ok(change) = changes.try_recv() {
            waiting.push(&change.key.namespace.clone(), change);
        }
        if waiting.is_empty() {
            let Some(change) = changes.recv().await else { return };
            waiting.push(&change.key.namespace.clone(), change);
            continue;
        }
        world.aside.run_some(&lately, &mut waiting, |change| wake(&world, &queue, &change)).await;
        // Others of its thread have their turn, too.
        tokio::task::coop::consume_budget().await;
    }
}
