//! Limits how many containers a Pod may have. Pure.
//!
//! Any change to one container rewrites the status of all of them: a Pod with thousands keeps its node and the server permanently
//! busy. Upstream bounds only the size of the object.

use k8s_openapi::api::core::v1::Pod;

use crate::{pod::intent::Failure, spec::PodExt};
use podwright_api::validation::pod::update::MAX_CONTAINERS as MAX;

/// Checks the number of containers.
///
/// # Errors
///
/// The Pod has too many: `TooManyContainers`.
pub fn check(pod: &Pod) -> Result<(), Failure> {
    let spec = pod.spec();
    let (init, ephemeral) = (spec.init_containers.iter().flatten(), spec.ephemeral_containers.iter().flatten());
    match spec.containers.len() + init.count() + ephemeral.count() {
        wanted if wanted > MAX => {
            let message = format!(
                "spec.initContainers, spec.containers and spec.ephemeralContainers: {wanted}, more than {MAX} in one Pod"
            );
            Err(Failure { reason: "TooManyContainers".to_owned(), message })
        }
        _ => Ok(()),
    }
}
