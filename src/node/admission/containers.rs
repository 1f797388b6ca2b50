//! How many containers a Pod may have. Pure.
//!
//! Whatever happens to one of them, the status of all is told anew: a Pod of thousands keeps its node, and the server, at work for
//! ever. Upstream bounds the size of the object alone.

use k8s_openapi::api::core::v1::Pod;

use crate::{pod::intent::Failure, spec::PodExt};
use podwright_api::validation::pod::update::MAX_CONTAINERS as MAX;

/// Whether a Pod has too many.
///
/// # Errors
///
/// It has: `TooManyContainers`.
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
