//! Watches: maps informers' changes to keys of a queue.

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

/// The context of a row's `watch`.
pub struct Watches<'a> {
    pub queue: &'a Queue,
    pub world: &'a Arc<World>,
    pub env: &'a Env,
    pub(super) shutdown: &'a CancellationToken,
    pub(super) tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    /// Calls `wake` for every change, starting with all existing objects.
    pub fn on<K: Typed>(
        &mut self,
        informer: &Informer<K>,
        wake: impl Fn(&Arc<World>, &Queue, &Delta<K>) + Send + Sync + 'static,
    ) {
        let (queue, world, shutdown) = (self.queue.clone(), self.world.clone(), self.shutdown.clone());
        let followed = follow(informer.subscribe(), Arc::new(wake), queue, world);
        self.tasks.spawn(async move { shutdown.run_until_cancelled(followed).await.unwrap_or_default() }.boxed());
    }

    /// Calls `wake` for every change of every object of the kinds that are `wanted`, including those defined later.
    pub fn on_metadata(
        &mut self,
        wanted: fn(&MetadataInformer) -> bool,
        wake: impl Fn(&Arc<World>, &Queue, &Delta<Partial>) + Send + Sync + 'static,
    ) {
        let wake: Wake<Partial> = Arc::new(wake);
        let informers = self.world.metadata.follow();
        let (queue, world, shutdown) = (self.queue.clone(), self.world.clone(), self.shutdown.clone());
        let begin = move |informer: Arc<MetadataInformer>| {
            let followed = || follow(informer.objects.subscribe(), wake.clone(), queue.clone(), world.clone());
            wanted(&informer).then(followed)
        };
        self.tasks.spawn(each(informers, begin, shutdown));
    }

    /// Calls `wake` for every kind from a CRD or extension API server, once it is followed.
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

    /// Every change of an object wakes its own key; one of its status only, which may be the controller's own, does not cut a
    /// back-off short.
    pub fn own<K: Typed>(&mut self, informer: &Informer<K>) {
        self.on(informer, |_, queue, change| match is_of_status_alone(change) {
            true => queue.add_patiently(change.key.clone()),
            false => queue.add(change.key.clone()),
        });
    }

    /// Every change of a Pod wakes its controlling owner of `kind`, which backs off if its Pods fail too soon.
    pub fn pods_of(&mut self, kind: &'static str) {
        let (world, env) = (self.world, self.env.clone());
        self.on(&world.informers.pods, move |world, queue, change| {
            world.short_lives.observe(change, kind, env.now());
            wake_owners(queue, change, kind);
        });
    }

    /// Every change of an object wakes its controlling owner of `kind`, the old one and the new one.
    pub fn owner<K: Typed>(&mut self, informer: &Informer<K>, kind: &'static str) {
        self.on(informer, move |_, queue, change| wake_owners(queue, change, kind));
    }
}

fn wake_owners<K: Typed>(queue: &Queue, change: &Delta<K>, kind: &str) {
    for object in change.old.iter().chain(&change.new) {
        let meta = object.metadata();
        if let Some(owner) = super::meta::controller(meta).filter(|o| o.kind == kind) {
            queue.add(Key::new(meta.namespace.clone().unwrap_or_default(), owner.name.clone()));
        }
    }
}

/// Whether only the object's status changed, according to its generation.
fn is_of_status_alone<K: Typed>(change: &Delta<K>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return false };
    let (old, new) = (old.metadata(), new.metadata());
    new.generation.is_some()
        && old.generation == new.generation
        && old.uid == new.uid
        && old.labels == new.labels
        && old.annotations == new.annotations
        && old.finalizers == new.finalizers
        && old.owner_references == new.owner_references
        && old.deletion_timestamp == new.deletion_timestamp
}

/// Spawns a task for each item that `of` accepts; they end with this one. Panics in them are reported.
async fn each<T, F: Future<Output = ()> + Send + 'static>(
    mut coming: UnboundedReceiver<T>,
    begin: impl Fn(T) -> Option<F>,
    shutdown: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    loop {
        let next = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(ended) = tasks.join_next() => {
                super::tell_of(ended);
                continue;
            }
            next = coming.recv() => next,
        };
        let Some(next) = next else { break };
        if let Some(task) = begin(next) {
            tasks.spawn(task);
        }
    }
    tasks.shutdown().await;
}

/// Calls `wake` for each change; namespaces take turns.
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
        // Yields to other tasks of its thread.
        tokio::task::coop::consume_budget().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc::unbounded_channel;
    use tracing::{Event, Level, Metadata, Subscriber, span};

    use super::*;

    /// Counts logged errors.
    struct Errors(Arc<AtomicUsize>);

    impl Subscriber for Errors {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::ERROR
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    /// Dropped when it has ended.
    struct Alive(Arc<AtomicUsize>);

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_end_with_what_began_them_and_one_that_panics_is_told_of() {
        let (errors, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let _logged = tracing::subscriber::set_default(Errors(errors.clone()));
        let (sender, coming) = unbounded_channel();
        let (shutdown, running) = (CancellationToken::new(), alive.clone());
        let begin = move |fails: bool| {
            running.fetch_add(1, Ordering::SeqCst);
            let alive = Alive(running.clone());
            Some(async move {
                let _alive = alive;
                assert!(!fails, "this one fails");
                std::future::pending::<()>().await;
            })
        };
        let parent = tokio::spawn(each(coming, begin, shutdown.clone()));
        for fails in [false, true, false] {
            sender.send(fails).expect("it is taken");
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!((alive.load(Ordering::SeqCst), errors.load(Ordering::SeqCst)), (2, 1));
        shutdown.cancel();
        parent.await.expect("the others go on without it");
        assert_eq!(alive.load(Ordering::SeqCst), 0, "none is left when the parent has ended");
    }
}
