//! Wires: from an informer's changes to the keys of a queue.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{World, aside::Lately, catalog::Section, queue::Queue};
use crate::{
    api::Env,
    client::{Delta, Informer, Key, Partial, Typed},
};

/// What a change of an object of a kind wakes.
type Wake<K> = Box<dyn Fn(&Arc<World>, &Queue, &Delta<K>) + Send + Sync>;

/// What a row's `wire` connects.
pub struct Wires<'a> {
    pub queue: &'a Queue,
    pub world: &'a Arc<World>,
    pub env: &'a Env,
    pub(super) shutdown: &'a CancellationToken,
    pub(super) tasks: &'a mut JoinSet<()>,
}

impl Wires<'_> {
    /// Has `wake` called for every change, first of all for what is known already.
    pub fn on<K: Typed>(
        &mut self,
        informer: &Informer<K>,
        wake: impl Fn(&Arc<World>, &Queue, &Delta<K>) + Send + Sync + 'static,
    ) {
        self.follow(informer.subscribe(), Box::new(wake));
    }

    /// Boxed, so that one task serves all kinds and rows: the program would hold one for each.
    fn follow<K: Typed>(&mut self, mut changes: UnboundedReceiver<Delta<K>>, wake: Wake<K>) {
        let (queue, world, shutdown) = (self.queue.clone(), self.world.clone(), self.shutdown.clone());
        let task = async move {
            let lately = Lately::default();
            loop {
                let change = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    change = changes.recv() => change,
                };
                let Some(change) = change else { return };
                let mut first = Some(change);
                let next = || {
                    let change = first.take().or_else(|| changes.try_recv().ok());
                    change.iter().for_each(|change| wake(&world, &queue, change));
                    change.is_some()
                };
                world.aside.run_some(&lately, next).await;
            }
        };
        self.tasks.spawn(task.boxed());
    }

    /// Has `wake` called for every change of every object of the kinds that are `wanted`, those too that are defined later.
    pub fn on_sections(
        &mut self,
        wanted: fn(&Section) -> bool,
        wake: impl Fn(&Arc<World>, &Queue, &Delta<Partial>) + Clone + Send + Sync + 'static,
    ) {
        let mut sections = self.world.catalog.follow();
        let (queue, world, shutdown) = (self.queue.clone(), self.world.clone(), self.shutdown.clone());
        self.tasks.spawn(async move {
            let mut tasks = JoinSet::new();
            loop {
                let section = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    section = sections.recv() => section,
                };
                let Some(section) = section else { return };
                if !wanted(&section) {
                    continue;
                }
                let (mut changes, queue, world, wake) =
                    (section.objects.subscribe(), queue.clone(), world.clone(), wake.clone());
                drop(section);
                tasks.spawn(async move {
                    let lately = Lately::default();
                    while let Some(change) = changes.recv().await {
                        let mut first = Some(change);
                        let next = || {
                            let change = first.take().or_else(|| changes.try_recv().ok());
                            change.iter().for_each(|change| wake(&world, &queue, change));
                            change.is_some()
                        };
                        world.aside.run_some(&lately, next).await;
                    }
                });
            }
        });
    }

    /// Has `wake` called for every kind that a definition defines, or somebody else serves, as soon as it is followed.
    pub fn on_defined(&mut self, wake: fn(&World, &Queue, &Section)) {
        let mut sections = self.world.catalog.follow();
        let (queue, world, shutdown) = (self.queue.clone(), self.world.clone(), self.shutdown.clone());
        self.tasks.spawn(async move {
            loop {
                let section = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    section = sections.recv() => section,
                };
                match section {
                    Some(section) if section.is_custom() || section.is_elsewhere() => wake(&world, &queue, &section),
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
