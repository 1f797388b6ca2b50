//! DefaultStorageClass: a claim without a class gets the default one; the newest if there are several.
//! <https://kubernetes.io/docs/concepts/storage/storage-classes/#default-storageclass>

use super::{operation::Operation, review::Review};
use podwright_api::kinds::storage_class::IS_DEFAULT;
use podwright_api::{Object, Status};

const BETA_IS_DEFAULT: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// How claims named their class before there was a field.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is("PersistentVolumeClaim", Operation::Create)
}

pub(super) fn mutate(review: &Review<'_>, claim: &mut Object) -> Result<(), Status> {
    let names_one = || claim.at("spec.storageClassName").is_some() || claim.annotation(BETA_CLASS).is_some();
    if names_one() {
        return Ok(());
    }
    if let Some(class) = newest(review, "storageclasses", &[IS_DEFAULT, BETA_IS_DEFAULT]) {
        claim.0["spec"]["storageClassName"] = class.name().into();
    }
    Ok(())
}

/// The newest of the classes that one of these annotations marks as the default; ties (the same second) go to the first by name.
pub(super) fn newest(review: &Review<'_>, resource: &str, marks: &[&str]) -> Option<Object> {
    let age = |class: &Object| class.0["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
    let mut classes = review.list(resource, None);
    classes.retain(|class| marks.iter().any(|mark| class.annotation(mark) == Some("true")));
    classes.sort_by(|a, b| age(b).cmp(&age(a)).then_with(|| a.name().cmp(b.name())));
    classes.into_iter().next()
}
