//! Resource quotas: `status` has the current usage. Admission adds what it admits; usage is reduced here after deletions.
//!
//! Upstream: `pkg/controller/resourcequota`. Each count is from scratch. The informers may not show yet what admission has charged:
//! the server refuses a count that is too low, and the key is retried.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{Pod, ResourceQuota, ResourceQuotaStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use super::{Context, Plan, Row, World, Writes, meta, queue::Queue, write::Write};
use podwright_api::{Kind, Object, quota::Counter};
use podwright_client::{Key, Typed};

/// The delay between counts per Pod of the namespace, up to `MOST`: a large one is not recounted for each Pod while it is emptied,
/// and small ones hardly wait.
const REST: Duration = Duration::from_micros(100);
const MOST: Duration = Duration::from_secs(2);

/// No event reports a Pod that exceeds its grace period.
const AGAIN: Duration = Duration::from_secs(300);

pub const ROW: Row = Row {
    name: "resourcequota-controller",
    workers: 5,
    writes: Writes::Of(&["resourcequotas"]),
    watch: |watches| {
        let informers = &watches.world.informers.clone();
        watches.own(&informers.resource_quotas);
        watches.on(&informers.pods, |world, queue, change| {
            let phase = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone());
            let (old, new) = (change.old.as_deref().map(phase), change.new.as_deref().map(phase));
            // A resized Pod uses less once its node has reduced its resources.
            let shrunk = || match (change.old.as_deref(), change.new.as_deref()) {
                (Some(old), Some(new)) => old.status != new.status && holding(old) != holding(new),
                _ => false,
            };
            if new.is_none() || old.is_some_and(|old| Some(old) != new) || shrunk() {
                wake(world, queue, &change.key.namespace);
            }
        });
        watches.on(&informers.services, |world, queue, change| {
            let ports = |service: &k8s_openapi::api::core::v1::Service| service.spec.as_ref().map(|s| s.type_.clone());
            let (old, new) = (change.old.as_deref().map(ports), change.new.as_deref().map(ports));
            if new.is_none() || old.is_some_and(|old| Some(old) != new) {
                wake(world, queue, &change.key.namespace);
            }
        });
        watches.on_metadata(
            |informer| informer.namespaced,
            |world, queue, change| {
                if change.new.is_none() {
                    wake(world, queue, &change.key.namespace);
                }
            },
        );
    },
    reconcile,
};

/// What a Pod's node has allocated to its containers.
fn holding(pod: &Pod) -> Vec<(Option<&ResourceRequirements>, Option<&BTreeMap<String, Quantity>>)> {
    let status = pod.status.iter();
    let lists = status.flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses)).flatten();
    lists.map(|c| (c.resources.as_ref(), c.allocated_resources.as_ref())).collect()
}

/// Schedules a recount of a namespace's quotas.
fn wake(world: &World, queue: &Queue, namespace: &str) {
    let quotas = world.informers.resource_quotas.list_namespace(namespace);
    let mut keys: Vec<Key> = quotas.iter().map(|quota| Key::of(&**quota)).collect();
    keys.retain(|key| !queue.is_due_within(key, MOST));
    if keys.is_empty() {
        return;
    }
    let pods = world.informers.pods.list_namespace(namespace).len();
    let rest = REST.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX)).min(MOST);
    keys.into_iter().for_each(|key| queue.add_after(key, rest));
}

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let Some(quota) = context.world.informers.resource_quotas.get(key) else { return Plan::default() };
    let Ok(object) = Object::from_typed(&*quota) else { return Plan::default() };
    let mut counter = Counter::new(&object, context.now);
    for (kind, number) in counter.kinds() {
        match number {
            true => counter.add_number(kind, number_of(context.world, kind, &key.namespace)),
            false => {
                for object in objects(context.world, kind, &key.namespace) {
                    counter.add(kind, &object);
                }
            }
        }
    }
    for resource in counter.custom() {
        let number = number_of_custom(context.world, &resource, &key.namespace);
        counter.add_custom(&resource, number);
    }
    plan(&quota, &counter)
}

/// The objects of a kind whose quotas depend on their content.
fn objects(world: &World, kind: &Kind, namespace: &str) -> Vec<Object> {
    fn untyped<K: Typed>(objects: Vec<std::sync::Arc<K>>) -> Vec<Object> {
        objects.iter().filter_map(|object| Object::from_typed(&**object).ok()).collect()
    }
    let informers = &world.informers;
    match kind.built_in() {
        "Pod" => untyped(informers.pods.list_namespace(namespace)),
        "Service" => untyped(informers.services.list_namespace(namespace)),
        _ => untyped(informers.persistent_volume_claims.list_namespace(namespace)),
    }
}

fn number_of(world: &World, kind: &Kind, namespace: &str) -> usize {
    let informer = world.metadata.informer(&kind.api_version(), kind.kind);
    informer.map_or(0, |informer| informer.objects.list_namespace(namespace).len())
}

/// 0 for undefined resources.
fn number_of_custom(world: &World, resource: &str, namespace: &str) -> usize {
    let informers = world.metadata.informers();
    let informer =
        informers.iter().find(|informer| informer.namespaced && informer.resource.trim_end_matches('/') == resource);
    informer.map_or(0, |informer| informer.objects.list_namespace(namespace).len())
}

/// Writes the count, if it has changed and the quota is still the one that was counted for.
pub fn plan(quota: &ResourceQuota, counter: &Counter<'_>) -> Plan {
    let mut plan = Plan::default();
    if meta::is_terminating(&quota.metadata) {
        return plan;
    }
    let used = counter.used().iter().map(|(resource, used)| (resource.clone(), Quantity(used.to_string()))).collect();
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default();
    let mut new = quota.clone();
    new.status = Some(ResourceQuotaStatus { hard: Some(hard), used: Some(used) });
    plan.then(Write::shared_status(quota, &new).into_iter().collect());
    plan.requeue(AGAIN);
    plan
}
