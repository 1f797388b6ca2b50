//! ControllerRevisions: the history of a Pod template, for StatefulSets and DaemonSets; and their belongings.
//!
//! Upstream: `pkg/controller/history`. A revision's data is the strategic merge patch that restores its template: `kubectl rollout
//! undo` sends it unchanged.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::ControllerRevision,
        core::v1::{Pod, PodTemplateSpec},
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use serde_json::json;

use super::{
    Plan,
    deployment::revision::{hash, without_hash},
    meta,
    write::Write,
};
use podwright_api::selector::LabelSelector;
use podwright_client::{Informers, Typed};

/// The Pod label with its revision: a StatefulSet's by name, a DaemonSet's by hash.
pub const REVISION: &str = "controller-revision-hash";
/// The longest name that leaves room for a dash and a hash.
const LONGEST_PREFIX: usize = 223;
const PATCH: &str = "$patch";

/// The content of a template's revision.
pub struct Wanted<'a, K> {
    pub owner: &'a K,
    pub template: &'a PodTemplateSpec,
    /// The revision's label with its hash.
    pub label: &'a str,
    /// How often another object already had the name.
    pub collisions: Option<i32>,
}

/// The state of an owner's history.
pub enum Current {
    /// The revision of the current template, and the write that makes it the newest.
    Is(Box<ControllerRevision>, Option<Write>),
    /// Another object has its name: the next attempt needs a different one.
    Collision,
}

/// The Pods and ControllerRevisions of an owner.
pub struct Belongings {
    pub pods: Vec<Arc<Pod>>,
    pub revisions: Vec<Arc<ControllerRevision>>,
}

/// The objects that `owner` selects, Pods only if `fits` accepts them. An error contains the writes that must come first: adoption
/// and release precede counting.
pub fn belongings<K: Typed>(
    informers: &Informers,
    owner: &K,
    selector: &LabelSelector,
    fits: impl Fn(&Pod) -> bool,
) -> Result<Belongings, Plan> {
    let meta = owner.metadata();
    // Its own, and orphans.
    let owners = [meta.uid.clone().unwrap_or_default(), format!("{}/", meta::namespace(meta))];
    let pods = owners.iter().flat_map(|owner| informers.pods.indexed(Informers::BY_OWNER, owner));
    let pods = meta::claim_all(owner, pods, |pod| meta::matches(selector, &pod.metadata) && fits(pod));
    let revisions = &informers.controller_revisions;
    let revisions = owners.iter().flat_map(|owner| revisions.indexed(Informers::BY_OWNER, owner));
    let revisions = meta::claim_all(owner, revisions, |revision| meta::matches(selector, &revision.metadata));
    match (pods, revisions) {
        (Ok(pods), Ok(revisions)) => Ok(Belongings { pods, revisions }),
        (pods, revisions) => {
            let mut first = Plan::default();
            first.then(pods.err().into_iter().chain(revisions.err()).flatten().collect());
            Err(first)
        }
    }
}

/// Finds the revision of the current template, or creates one. `revisions` are the owner's; `taken` tells whether any has that
/// name.
pub fn current<K: Typed>(
    wanted: &Wanted<'_, K>,
    revisions: &[Arc<ControllerRevision>],
    taken: &dyn Fn(&str) -> bool,
) -> Current {
    let last = revisions.iter().map(|known| known.revision).max().unwrap_or(0);
    let equal = revisions.iter().filter(|known| has(known, wanted.template)).max_by_key(|known| order(known));
    let Some(known) = equal else {
        let new = create(wanted, last.saturating_add(1));
        return match taken(meta::name(&new.metadata)) {
            true => Current::Collision,
            false => {
                let write = Write::create(&new);
                Current::Is(Box::new(new), Some(write))
            }
        };
    };
    let mut new = ControllerRevision::clone(known);
    if known.revision < last {
        // A rollback makes an old revision the newest.
        new.revision = last.saturating_add(1);
    }
    let write = Write::change(&**known, &new);
    Current::Is(Box::new(new), write)
}

/// Whether a revision has this template.
pub fn has(revision: &ControllerRevision, wanted: &PodTemplateSpec) -> bool {
    template(revision).is_some_and(|template| without_hash(&template) == without_hash(wanted))
}

/// The template in a revision.
pub fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.get("spec")?.get("template")?.clone();
    template.as_object_mut()?.shift_remove(PATCH);
    // Via text, as a decoder for that exists already.
    serde_json::from_str(&template.to_string()).ok()
}

/// From the oldest to the newest.
fn order(revision: &ControllerRevision) -> (i64, jiff::Timestamp, Option<String>) {
    (revision.revision, meta::created(&revision.metadata), revision.metadata.name.clone())
}

fn create<K: Typed>(wanted: &Wanted<'_, K>, number: i64) -> ControllerRevision {
    let (owner, hash) = (wanted.owner.metadata(), hash(wanted.template, wanted.collisions));
    let labels = wanted.template.metadata.as_ref().and_then(|meta| meta.labels.clone());
    let mut labels = labels.unwrap_or_default();
    labels.insert(wanted.label.to_owned(), hash.clone());
    let mut data = json!({ "spec": { "template": wanted.template } });
    data["spec"]["template"][PATCH] = "replace".into();
    let prefix: String = meta::name(owner).chars().take(LONGEST_PREFIX).collect();
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: owner.namespace.clone(),
            labels: Some(labels),
            annotations: owner.annotations.clone(),
            owner_references: Some(vec![meta::owner_reference(wanted.owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
}

/// Deletes the oldest unused revisions beyond the limit.
pub fn expired(revisions: &[Arc<ControllerRevision>], limit: Option<i32>, alive: &BTreeSet<&str>) -> Vec<Write> {
    let dead = |revision: &&Arc<ControllerRevision>| {
        !alive.contains(meta::name(&revision.metadata)) && !meta::is_terminating(&revision.metadata)
    };
    let mut dead: Vec<&Arc<ControllerRevision>> = revisions.iter().filter(dead).collect();
    dead.sort_by_key(|revision| order(revision));
    let surplus = dead.len().saturating_sub(usize::try_from(limit.unwrap_or(10)).unwrap_or(0));
    dead.into_iter().take(surplus).map(|revision| Write::delete(&**revision)).collect()
}
