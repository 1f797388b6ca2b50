//! The labels by which a restarted agent recognizes sandboxes and containers.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use podwright_runtime::Labels;

use super::{
    backoff::Backoff,
    executor::StartOrder,
    spec::{ContainerRef, PodExt},
};

pub const NAME: &str = "io.kubernetes.pod.name";
pub const NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER: &str = "io.kubernetes.container.name";
pub const ATTEMPT: &str = "podwright.sandbox.attempt";
pub const IMAGE: &str = "podwright.container.image";
pub const IMAGE_ID: &str = "podwright.container.image-id";
/// The container's image layers, one per line: the image may lose its names meanwhile.
pub const LAYERS: &str = "podwright.container.layers";
/// The CPU and memory its cgroup was set to, as `resources` in JSON.
pub const RESOURCES: &str = "podwright.container.resources";
pub const BACKOFF: &str = "podwright.container.backoff";
/// `true` if the container is being stopped in order to be restarted, regardless of its restart policy.
pub const RENEWS: &str = "podwright.container.renews";
/// Present if the log can replace a termination message.
pub const FALLBACK: &str = "podwright.container.message-from-log";
/// On a sandbox: the final states of the previous sandbox's containers, as JSON.
pub const HISTORY: &str = "podwright.sandbox.history";

pub fn of_pod(pod: &Pod, attempt: u32) -> Labels {
    Labels::from([
        (NAME.to_owned(), pod.name().to_owned()),
        (NAMESPACE.to_owned(), pod.namespace().to_owned()),
        (UID.to_owned(), pod.uid().to_owned()),
        (ATTEMPT.to_owned(), attempt.to_string()),
    ])
}

pub fn of_resources(resources: Option<&ResourceRequirements>) -> String {
    serde_json::to_string(&resources.cloned().unwrap_or_default()).unwrap_or_default()
}

pub fn of_container(pod: &Pod, part: &ContainerRef<'_>, order: &StartOrder, layers: &[PathBuf]) -> Labels {
    let mut labels = of_pod(pod, order.sandbox);
    let backoff = Backoff::to_label(order.backoff);
    let image = part.container.image.clone().unwrap_or_default();
    let layers: Vec<String> = layers.iter().map(|layer| layer.display().to_string()).collect();
    labels.extend([
        (CONTAINER.to_owned(), part.name().to_owned()),
        (IMAGE.to_owned(), image),
        (IMAGE_ID.to_owned(), order.image_id.clone()),
        (BACKOFF.to_owned(), backoff),
        (LAYERS.to_owned(), layers.join("\n")),
        (RESOURCES.to_owned(), of_resources(part.container.resources.as_ref())),
    ]);
    if part.container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError") {
        labels.insert(FALLBACK.to_owned(), "true".to_owned());
    }
    labels
}
