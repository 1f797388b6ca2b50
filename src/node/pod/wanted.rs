//! What the Pod's sources say of it: the API, or the folder of static manifests.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::resize::allocation::Allocation;

#[derive(Clone, Debug)]
pub struct Wanted {
    /// With the resources that are allocated to it.
    pub pod: Arc<Pod>,
    /// With those that it wishes.
    pub wish: Arc<Pod>,
    pub allocated: Allocation,
    /// Its source does not know it any more.
    pub gone: bool,
}
