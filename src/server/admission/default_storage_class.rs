//! DefaultStorageClass: a claim that names no class is of the default one; of several the newest.
//! <https://kubernetes.io/docs/concepts/storage/storage-classes/#default-storageclass>

use super::{Operation, Review};
use crate::api::kinds::storage_class::IS_DEFAULT;
use crate::api::{Object, Status};

const BETA_IS_DEFAULT: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// How claims named their class before there was a field.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) fn mutate(review: &Review<'_>, claim: &mut Object) -> Result<(), Status> {
    let names_one = || claim.at("spec.storageClassName").is_some() || claim.annotation(BETA_CLASS).is_some();
    if !review.is("PersistentVolumeClaim", Operation::Create) || names_one() {
        return Ok(());
    }
    let is_default = |class: &Object| [IS_DEFAULT, BETA_IS_DEFAULT].iter().any(|a| class.annotation(a) == Some("true"));
    let age = |class: &Object| class.0["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
    let mut classes: Vec<Object> = review.list("storageclasses", None);
    classes.retain(is_default);
    // The newest first; of one second, by name.
    classes.sort_by(|a, b| age(b).cmp(&age(a)).then_with(|| a.name().cmp(b.name())));
    if let Some(class) = classes.first() {
        claim.0["spec"]["storageClassName"] = class.name().into();
    }
    Ok(())
}
