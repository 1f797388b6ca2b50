//! The Pod's desired state from its source: the API, or the folder of static manifests.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::resize::allocation::Allocation;

#[derive(Clone, Debug)]
pub struct Wanted {
    /// With the allocated resources.
    pub pod: Arc<Pod>,
    /// With the requested resources.
    pub wish: Arc<Pod>,
    pub allocated: Allocation,
    /// It is gone from its source.
    pub gone: bool,
}
