//! PersistentVolumeClaimResize: a claim grows only where its class allows volume expansion.

use super::{operation::Operation, review::Review};
use podwright_api::{Object, Quantity, Status};

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is("PersistentVolumeClaim", Operation::Update)
}

pub(super) fn validate(review: &Review<'_>, new: &Object) -> Result<(), Status> {
    let Some(old) = review.old else { return Ok(()) };
    let size = |claim: &Object| Quantity::from_json(&claim.0["spec"]["resources"]["requests"]["storage"]);
    if size(new) <= size(old) {
        return Ok(());
    }
    if old.0["status"]["phase"] != "Bound" {
        return Err(review.forbidden(new, "Only bound persistent volume claims can be expanded"));
    }
    let class = new.0["spec"]["storageClassName"].as_str().unwrap_or("");
    let grows = review.get("storageclasses", None, class).is_some_and(|class| class.0["allowVolumeExpansion"] == true);
    match grows {
        true => Ok(()),
        false => {
            let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                       support resize";
            Err(review.forbidden(new, why))
        }
    }
}
