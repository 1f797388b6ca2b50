//! DefaultTolerationSeconds: how long a Pod stays on a node that is not ready or not reachable, unless it says so itself.

use super::{operation::Operation, review::Review};
use podwright_api::{Object, Status, pod};

pub use podwright_api::pod::TolerationSeconds;

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is_about("Pod") && matches!(review.operation, Operation::Create | Operation::Update)
}

pub(super) fn mutate(review: &Review<'_>, pod: &mut Object) -> Result<(), Status> {
    if let Some(spec) = pod.0["spec"].as_object_mut() {
        pod::add_default_tolerations(spec, review.server.config.toleration_seconds);
    }
    Ok(())
}
