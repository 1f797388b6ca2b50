//! The garbage collector: deletes dependents when their owners are gone, for all kinds.
//!
//! Upstream: `pkg/controller/garbagecollector`. The key is an object's uid. An object whose owners are all gone is deleted; in a
//! foreground deletion the owner waits for its dependents; in an orphaning one their references are removed. A dependent's
//! reference must match in kind, namespace, name and uid; one that only matches in uid does not count. Each kind has its own
//! informer: a dependent may appear before its owner, or an owner's deletion before an older dependent. So the server is asked
//! before anything is deleted for lack of an owner, and before the deletion of an owner that had to wait for its dependents.

use std::time::Duration;

use serde_json::json;

use super::{
    Context, MetadataInformers, Plan, Row, World, Writes,
    coordinates::Coordinates,
    meta,
    metadata_informers::{Item, MetadataInformer, elsewhere::is_others},
    queue::Queue,
    write::{Guard, Note, Write},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use podwright_client::{Delta, Key, Partial};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Whose turn it is where others say what there is. No namespace has such a name.
const OTHERS: &str = "/others";
/// How many dependents are let go at a time, and how many owners they may have together: each is written with all but one of its own.
const ORPHANED: usize = 500;
const OWNERS: usize = 16_000;

pub const ROW: Row = Row {
    name: "generic-garbage-collector",
    workers: 20,
    writes: Writes::AnySeenByMetadata,
    watch: |watches| {
        // Owners of the kind could not be judged before it was known.
        watches.on_defined(|world, queue, defined| {
            let names_it = |owner: &OwnerReference| defined.is_of(&owner.api_version, &owner.kind);
            for informer in world.metadata.informers().iter() {
                let named = informer.objects.list().into_iter().filter(|object| owners(object).iter().any(names_it));
                named.for_each(|object| queue.add(key(&object, informer.is_elsewhere())));
            }
        });
        watches
            .on_metadata(|informer| !informer.is_elsewhere(), |world, queue, change| wake(world, queue, change, false));
        watches.on_metadata(MetadataInformer::is_elsewhere, |world, queue, change| wake(world, queue, change, true));
    },
    reconcile,
};

/// Wants what a change of an object concerns to be looked at.
fn wake(world: &World, queue: &Queue, change: &Delta<Partial>, is_elsewhere: bool) {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    let Some(object) = new.or(old) else { return };
    if old.zip(new).is_some_and(|(old, new)| same(old, new)) {
        return;
    }
    // Most objects have neither owners nor finalizers: nothing to collect.
    if new.is_some_and(|new| !owners(new).is_empty() || waits(new) || orphans(new)) {
        queue.add(key(object, is_elsewhere));
    }
    if new.is_none_or(waits) {
        for dependent in world.metadata.dependents(object.metadata.uid.as_deref().unwrap_or_default()) {
            queue.add(key_of(&world.metadata, &dependent));
        }
    }
    // An owner may be waiting for this one to go, or to disown it. One that begins to wait later is woken by that: a
    // ReplicaSet of thousands is not to be looked through for each Pod that leaves it.
    for owner in old.map(owners).unwrap_or_default() {
        let owner = world.metadata.by_uid(&owner.uid);
        if let Some(owner) = owner.filter(|owner| waits(&owner.object) || orphans(&owner.object)) {
            queue.add(key_of(&world.metadata, &owner));
        }
    }
}

/// An object's key: its uid tells which it is, its namespace whose turn it is. In which namespaces others have objects is their word
/// alone, and there may be none such: these have one turn together.
fn key(object: &Partial, is_elsewhere: bool) -> Key {
    let ObjectMeta { namespace, uid, .. } = &object.metadata;
    let namespace = if is_elsewhere { OTHERS } else { namespace.as_deref().unwrap_or_default() };
    Key::new(namespace, uid.as_deref().unwrap_or_default())
}

fn key_of(metadata: &MetadataInformers, item: &Item) -> Key {
    key(&item.object, metadata.is_elsewhere(&item.resource))
}

fn same(old: &Partial, new: &Partial) -> bool {
    let (old, new) = (&old.metadata, &new.metadata);
    old.uid == new.uid
        && old.owner_references == new.owner_references
        && old.finalizers == new.finalizers
        && old.deletion_timestamp.is_some() == new.deletion_timestamp.is_some()
}

fn owners(object: &Partial) -> &[OwnerReference] {
    object.metadata.owner_references.as_deref().unwrap_or_default()
}

fn holds(object: &Partial, finalizer: &str) -> bool {
    meta::is_terminating(&object.metadata) && object.metadata.finalizers.iter().flatten().any(|f| f == finalizer)
}

/// Whether it is being deleted in the foreground, after its dependents.
fn waits(object: &Partial) -> bool {
    holds(object, FOREGROUND)
}

fn orphans(object: &Partial) -> bool {
    holds(object, ORPHAN)
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let metadata = &context.world.metadata;
    let Some(item) = metadata.by_uid(&key.name) else { return Plan::default() };
    let Some(itself) = metadata.coordinates(&item) else { return Plan::default() };
    let judged: Vec<Owner> = owners(&item.object).iter().map(|owner| judge(metadata, &item, owner)).collect();
    // In this order: an informer that is up to date now shows all its dependents a moment later.
    let all = unseen(metadata, &item, &itself);
    let mut plan = plan(&item, &itself, &judged, &metadata.dependents(&key.name), all, context.left_off);
    plan.notes = misplaced(metadata, &item, &judged);
    plan
}

/// Events for references to existing owners in a namespace where they cannot own this object.
fn misplaced(metadata: &MetadataInformers, item: &Item, judged: &[Owner]) -> Vec<Note> {
    let meta = &item.object.metadata;
    let suspect = |judged: &Owner| matches!(judged, Owner::Gone(_)) || meta.namespace.is_none();
    let suspects = owners(&item.object).iter().zip(judged).filter(|(_, judged)| suspect(judged));
    let elsewhere = suspects.filter(|(owner, _)| {
        let found = metadata.by_uid(&owner.uid);
        found.and_then(|found| found.object.metadata.namespace.clone()).is_some_and(|at| at != meta::namespace(meta))
    });
    let told = elsewhere.map(|(owner, _)| {
        let OwnerReference { api_version, kind, name, uid, .. } = owner;
        let namespace = meta::namespace(meta);
        let message = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in \
             namespace {namespace:?}"
        );
        Note::warning(metadata.reference(item), "OwnerRefInvalidNamespace", message)
    });
    told.collect()
}

/// What to ask the server before deleting an object that waited for its dependents. Everything written before the deletion has a
/// lower revision, of any kind.
fn unseen(metadata: &MetadataInformers, item: &Item, itself: &Coordinates) -> Vec<Guard> {
    let meta = &item.object.metadata;
    if !waits(&item.object) && !orphans(&item.object) {
        return Vec::new();
    }
    // Other servers have their own revisions: then all of their resources are asked.
    let own = meta.resource_version.as_deref().filter(|_| !metadata.is_elsewhere(&item.resource));
    let revision = own.and_then(|revision| revision.parse().ok()).unwrap_or(u64::MAX);
    let resources = metadata.behind(revision, meta.namespace.is_some());
    let childless = Guard::Childless { owner: Box::new(itself.clone()), blocking: waits(&item.object), resources };
    let defined = metadata.defined(revision).map(|resources| Guard::Defined { resources });
    defined.into_iter().chain([childless]).collect()
}

/// Plans an object, given its identity in references, the state of its owners, its potential dependents, the guards that ensure
/// that these are complete, and where its last plan stopped.
pub fn plan(
    item: &Item,
    itself: &Coordinates,
    owners: &[Owner],
    dependents: &[Item],
    all: Vec<Guard>,
    left_off: Option<&Item>,
) -> Plan {
    let is_own = |dependent: &&Item| itself.owns(&dependent.object.metadata);
    let dependents: Vec<Item> = dependents.iter().filter(is_own).cloned().collect();
    match &*item.object {
        object if orphans(object) => orphan(item, itself, &dependents, all, left_off),
        object if waits(object) => wait(item, itself, &dependents, all),
        object if meta::is_terminating(&object.metadata) => Plan::default(),
        _ => collect(item, owners, &dependents),
    }
}

/// The state of an owner.
#[derive(Clone, Debug, PartialEq)]
pub enum Owner {
    /// It exists, or its state is unknown: then nothing is deleted.
    Solid,
    /// It is being deleted and waits for this dependent.
    Waiting,
    /// No informer has it; the guard verifies that.
    Gone(Guard),
}

fn judge(metadata: &MetadataInformers, item: &Item, owner: &OwnerReference) -> Owner {
    let Some(informer) = metadata.informer(&owner.api_version, &owner.kind) else { return Owner::Solid };
    let namespace = match (informer.namespaced, item.object.metadata.namespace.is_some()) {
        (true, true) => meta::namespace(&item.object.metadata),
        // No namespaced object can own a cluster-scoped one: such a reference is an error, not a reason to delete.
        (true, false) => return Owner::Solid,
        (false, _) => "",
    };
    let key = Key::new(namespace, &owner.name);
    match informer.objects.get(&key).filter(|found| found.metadata.uid.as_ref() == Some(&owner.uid)) {
        Some(found) if waits(&found) => Owner::Waiting,
        Some(_) => Owner::Solid,
        None => Owner::Gone(Guard::Absent { resource: informer.resource.clone(), key, uid: Some(owner.uid.clone()) }),
    }
}

/// Plans an object by its owners. Nothing happens while it has none, or only existing ones.
fn collect(item: &Item, judged: &[Owner], dependents: &[Item]) -> Plan {
    let mut plan = Plan::default();
    let pairs = owners(&item.object).iter().zip(judged);
    let solid: Vec<&OwnerReference> =
        pairs.filter(|(_, judged)| matches!(judged, Owner::Solid)).map(|(owner, _)| owner).collect();
    if solid.len() == judged.len() {
        return plan;
    }
    let awaited = judged.contains(&Owner::Waiting) && !dependents.is_empty();
    let mut write = if !solid.is_empty() {
        leave(item, &solid)
    } else if awaited && blocks(&item.object) && dependents.iter().any(|dependent| waits(&dependent.object)) {
        // Its dependents wait, perhaps for it: such a cycle would never end. It is deleted once that is detected.
        unblock(item)
    } else {
        let mut write = remove(item);
        write.request.options.propagation_policy = Some(policy(&item.object, awaited).into());
        write
    };
    let guard = |owner: &Owner| match owner {
        Owner::Gone(guard) => Some(guard.clone()),
        Owner::Solid | Owner::Waiting => None,
    };
    write.guards = judged.iter().filter_map(guard).collect();
    plan.then(vec![write]);
    plan
}

/// The propagation policy: foreground if its owner waits for it and it has dependents; otherwise according to its finalizers.
fn policy(object: &Partial, awaited: bool) -> &'static str {
    let wishes = |finalizer: &str| object.metadata.finalizers.iter().flatten().any(|f| f == finalizer);
    match awaited {
        true => "Foreground",
        false if wishes(ORPHAN) => "Orphan",
        false if wishes(FOREGROUND) => "Foreground",
        false => "Background",
    }
}

/// Whether the deletion of some owner waits for it.
fn blocks(object: &Partial) -> bool {
    owners(object).iter().any(|owner| owner.block_owner_deletion == Some(true))
}

/// Whether an object is the cluster's, and served here: what other servers serve does not hold up its deletion, for nobody has checked
/// whose deletion its writers may block.
fn is_of_cluster(item: &Item, itself: &Coordinates) -> bool {
    itself.namespace.is_none() && !is_others(&item.resource)
}

/// A foreground deletion ends when no dependent blocks it any more.
fn wait(item: &Item, itself: &Coordinates, dependents: &[Item], all: Vec<Guard>) -> Plan {
    let mut plan = Plan::default();
    let may_block = |dependent: &Item| !(is_of_cluster(item, itself) && is_others(&dependent.resource));
    if !dependents.iter().any(|dependent| may_block(dependent) && itself.waits_for(&dependent.object.metadata)) {
        plan.then(vec![drop_finalizer(item, FOREGROUND, all)]);
    }
    plan
}

/// An orphaning deletion ends when all references are removed: in batches, each dependent keeping its other owners. It proceeds in
/// rounds: failed ones are retried after all others.
fn orphan(item: &Item, itself: &Coordinates, dependents: &[Item], all: Vec<Guard>, left_off: Option<&Item>) -> Plan {
    let mut left: Vec<&Item> =
        dependents.iter().filter(|d| left_off.is_none_or(|last| place(d) > place(last))).collect();
    let in_round = left.len();
    if in_round > ORPHANED {
        left.select_nth_unstable_by_key(ORPHANED, |&dependent| place(dependent));
        left.truncate(ORPHANED);
    }
    left.sort_unstable_by_key(|&dependent| place(dependent));
    let mut owners_of_all = 0;
    let few = |dependent: &&Item| {
        let is_first = owners_of_all == 0;
        owners_of_all += owners(&dependent.object).len();
        is_first || owners_of_all <= OWNERS
    };
    let now: Vec<&Item> = left.into_iter().take_while(few).collect();
    let mut plan = Plan::default();
    plan.then(now.iter().map(|dependent| disown(dependent, itself)).collect());
    if now.len() == dependents.len() {
        plan.then(vec![drop_finalizer(item, ORPHAN, all)]);
    } else if now.len() == in_round {
        plan.requeue_after = Some(Duration::ZERO);
    } else {
        plan.left_off = now.last().copied().cloned();
    }
    plan
}

/// The order in which dependents are orphaned.
fn place(item: &Item) -> (&str, &str, &str, &str) {
    let ObjectMeta { uid, namespace, name, .. } = &item.object.metadata;
    let [uid, namespace, name] = [uid, namespace, name].map(|part| part.as_deref().unwrap_or_default());
    (uid, &item.resource, namespace, name)
}

fn remove(item: &Item) -> Write {
    let meta = &item.object.metadata;
    let mut write = Write::remove(item.resource.clone(), &Key::of(&*item.object), meta.uid.clone());
    if let Some(preconditions) = &mut write.request.options.preconditions {
        preconditions.resource_version = meta.resource_version.clone();
    }
    write
}

/// Removes an owner reference from an object.
fn disown(item: &Item, owner: &Coordinates) -> Write {
    let is_other = |other: &&OwnerReference| !owner.is_named(other, &item.object.metadata);
    leave(item, &owners(&item.object).iter().filter(is_other).collect::<Vec<_>>())
}

/// Sets an object's owner references to these, if it has not changed.
fn leave(item: &Item, rest: &[&OwnerReference]) -> Write {
    edit(item, "ownerReferences", json!(rest))
}

/// Lets its owners be deleted before it.
fn unblock(item: &Item) -> Write {
    let mut all = owners(&item.object).to_vec();
    all.iter_mut().for_each(|owner| owner.block_owner_deletion = Some(false));
    edit(item, "ownerReferences", json!(all))
}

fn drop_finalizer(item: &Item, finalizer: &str, guards: Vec<Guard>) -> Write {
    let rest: Vec<&String> = item.object.metadata.finalizers.iter().flatten().filter(|f| *f != finalizer).collect();
    Write { guards, ..edit(item, "finalizers", json!(rest)) }
}

fn edit(item: &Item, field: &str, value: serde_json::Value) -> Write {
    let meta = &item.object.metadata;
    let patch = json!({ "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version, field: value } });
    Write::patch(item.resource.clone(), &Key::of(&*item.object), patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::account;

    #[test]
    fn what_others_say_to_be_in_many_namespaces_has_one_turn() {
        let key = |namespace: Option<&str>, uid: &str, is_elsewhere: bool| {
            let meta = ObjectMeta {
                namespace: namespace.map(str::to_owned),
                uid: Some(uid.to_owned()),
                ..ObjectMeta::default()
            };
            key(&Partial { metadata: meta }, is_elsewhere)
        };
        let of_others = [key(Some("a"), "1", true), key(Some("b"), "2", true), key(None, "3", true)];
        assert!(of_others.iter().all(|key| account(key) == OTHERS), "{of_others:?}");
        let own = [key(Some("a"), "1", false), key(Some("b"), "2", false), key(None, "3", false)];
        assert_eq!(own.each_ref().map(account), ["a", "b", "3"]);
        assert_eq!(of_others.map(|key| key.name), own.map(|key| key.name), "each is looked at for itself");
    }
}
