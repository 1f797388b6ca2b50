//! StorageObjectInUseProtection: claims and volumes get the finalizer that keeps them while in use.
//! <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection>

use serde_json::Value;

use super::{operation::Operation, review::Review};
use podwright_api::{Object, Status};

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is("PersistentVolumeClaim", Operation::Create) || review.is("PersistentVolume", Operation::Create)
}

pub(super) fn mutate(review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
    let finalizer = match review.call.kind.built_in() {
        "PersistentVolume" => "kubernetes.io/pv-protection",
        _ => "kubernetes.io/pvc-protection",
    };
    if !object.finalizers().contains(&finalizer) {
        let known = object.finalizers().into_iter().map(Value::from);
        let all: Vec<Value> = known.chain([finalizer.into()]).collect();
        object.set_meta("finalizers", Value::Array(all));
    }
    Ok(())
}
