//! The desired replicas of controllers of any kind, including custom resources: those without an informer are requested from the
//! server through the `scale` subresource, once for each state of the object.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::{
    Resource,
    api::apps::v1::{Deployment, ReplicaSet},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use super::{Context, World, meta, metadata_informers::MetadataInformer};
use podwright_api::{Object, Request, Status, Verb, kinds, request::Body};
use podwright_client::{Delta, Key, Partial, Typed};

/// The most scales that are cached; beyond that the cache starts over.
const MOST: usize = 4096;

/// The scales returned by the server, by the uid of the scaled object.
#[derive(Default)]
pub struct Scales(Mutex<HashMap<String, Known>>);

#[derive(Clone, Copy)]
struct Known {
    revision: u64,
    replicas: i32,
}

/// The scale of a controller.
#[derive(Clone, Debug)]
pub enum Scale {
    /// This object wants this many replicas.
    Of { uid: String, replicas: i32 },
    /// There is no such controller.
    Gone,
    /// Not known yet: this must be requested first.
    Ask(Box<Request>),
    /// Controllers of this kind have no scale.
    Never(String),
    /// The server does not return it, for this reason.
    Untold(String),
}

impl Scales {
    /// The scale of the object `uid`, according to the response, which is cached.
    fn told(&self, uid: &str, answer: Result<&Body, &Status>) -> Scale {
        let bytes = match answer {
            Ok(Body::Object { bytes, .. }) => bytes,
            Ok(_) => return Scale::Untold("the server has answered with no scale".into()),
            Err(status) => return Scale::Untold(status.message.clone()),
        };
        let scale = match Object::from_slice(bytes) {
            Ok(scale) if scale.uid() == uid => scale,
            // Another object of the same name.
            Ok(_) => return Scale::Gone,
            Err(status) => return Scale::Untold(status.message),
        };
        let replicas = scale.0["spec"]["replicas"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
        if let Ok(revision) = scale.resource_version().parse() {
            let mut known = self.lock();
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(uid.to_owned(), Known { revision, replicas });
        }
        Scale::Of { uid: uid.to_owned(), replicas }
    }

    fn known(&self, uid: &str, revision: &str) -> Option<i32> {
        let known = self.lock().get(uid).copied()?;
        revision.parse::<u64>().is_ok_and(|revision| known.revision >= revision).then_some(known.replicas)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The scale of a Pod's controller; for a ReplicaSet that of its Deployment.
pub fn of(context: &Context<'_>, owner: &OwnerReference, namespace: &str) -> Scale {
    let world = context.world;
    let key = Key::new(namespace, &owner.name);
    if owner.kind == ReplicaSet::KIND && owner.api_version == ReplicaSet::API_VERSION {
        let set = world.informers.replica_sets.get(&key).filter(|set| set.metadata.uid.as_ref() == Some(&owner.uid));
        return set.map_or(Scale::Gone, |set| of_set(world, &set));
    }
    asked(context, owner, &key)
}

fn of_set(world: &World, set: &Arc<ReplicaSet>) -> Scale {
    let above = meta::controller(&set.metadata).filter(|above| above.kind == Deployment::KIND);
    let deployment = above.and_then(|above| {
        let key = Key::new(meta::namespace(&set.metadata), &above.name);
        world.informers.deployments.get(&key).filter(|found| found.metadata.uid.as_ref() == Some(&above.uid))
    });
    match deployment {
        Some(deployment) => Scale::Of {
            uid: deployment.metadata.uid.clone().unwrap_or_default(),
            replicas: super::deployment::replicas(&deployment),
        },
        None => {
            Scale::Of { uid: set.metadata.uid.clone().unwrap_or_default(), replicas: super::replica_set::replicas(set) }
        }
    }
}

fn asked(context: &Context<'_>, owner: &OwnerReference, key: &Key) -> Scale {
    let world = context.world;
    let Some(informer) = world.metadata.informer(&owner.api_version, &owner.kind) else { return Scale::Gone };
    let Some(object) = informer.objects.get(key).filter(|o| o.metadata.uid.as_ref() == Some(&owner.uid)) else {
        return Scale::Gone;
    };
    if !has_scale(world, &informer) {
        let resource = informer.resource.trim_end_matches('/');
        return Scale::Never(format!("{resource} does not implement the scale subresource"));
    }
    let revision = object.metadata.resource_version.as_deref().unwrap_or_default();
    if let Some(replicas) = world.scales.known(&owner.uid, revision) {
        return Scale::Of { uid: owner.uid.clone(), replicas };
    }
    let question = Request {
        verb: Verb::Get,
        resource: informer.resource.clone(),
        namespace: key.namespace().map(str::to_owned),
        name: Some(key.name.clone()),
        subresource: Some("scale".into()),
        ..Request::default()
    };
    match context.live_reads.to(question) {
        Err(question) => Scale::Ask(Box::new(question)),
        Ok(answer) => world.scales.told(&owner.uid, answer),
    }
}

fn has_scale(world: &World, informer: &MetadataInformer) -> bool {
    match informer.is_custom() {
        true => world.metadata.definitions().iter().any(|found| found.scales && found.resource() == informer.resource),
        false => kinds::lookup(&informer.resource).is_some_and(|kind| kind.scale.is_some()),
    }
}

/// Whether an informer's objects have scales that are requested.
pub fn are_asked(informer: &MetadataInformer) -> bool {
    let known = [Deployment::resource(), ReplicaSet::resource()].contains(&informer.resource);
    let scaled = kinds::lookup(&informer.resource).is_some_and(|kind| kind.scale.is_some());
    informer.namespaced && !known && (informer.is_custom() || scaled)
}

/// Whether a change of such an object can affect its scale: a changed spec has another generation, and a created, deleted or
/// replaced object always does.
pub fn may_differ(change: &Delta<Partial>) -> bool {
    let wish = |object: &Arc<Partial>| (object.metadata.uid.clone(), object.metadata.generation);
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => wish(old) != wish(new) || new.metadata.generation.is_none(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_scale_that_is_told_is_remembered_for_its_state_of_the_object() {
        let meta = json!({ "name": "x", "uid": "u", "resourceVersion": "7" });
        let scale = Object(json!({ "metadata": meta, "spec": { "replicas": 3 } }));
        let body = Body::Object { bytes: scale.to_vec().into(), created: false };
        let scales = Scales::default();
        assert!(matches!(scales.told("u", Ok(&body)), Scale::Of { uid, replicas: 3 } if uid == "u"));
        assert_eq!(["6", "7", "8"].map(|revision| scales.known("u", revision)), [Some(3), Some(3), None]);
        assert!(matches!(scales.told("v", Ok(&body)), Scale::Gone), "the scale of a namesake");
        assert_eq!(scales.known("v", "7"), None);
        let busy = Status::internal("busy");
        assert!(matches!(scales.told("u", Err(&busy)), Scale::Untold(why) if why.contains("busy")));
    }
}
