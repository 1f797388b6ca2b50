//! Whether a Pod exceeds its disk limits: `(Pod, Usage) -> Option<message>`. Pure; order and wording are those of upstream's
//! `localStorageEviction`.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, Volume},
    apimachinery::pkg::api::resource,
};
use podwright_runtime::sys::walk::Measure;

use crate::{
    qos,
    spec::{ContainerRef, PodExt, is_critical},
};
use podwright_api::{Quantity, pod_resources, pod_totals};

const STORAGE: &str = "ephemeral-storage";

/// A Pod's disk usage. In-memory volumes, claims and host folders do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// emptyDirs by their names.
    pub volumes: BTreeMap<String, Measure>,
    pub containers: BTreeMap<String, ContainerUsage>,
    /// ConfigMaps, `/etc/hosts` and the like, termination messages.
    pub rest: Measure,
}

/// A container's disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Its writable layer, and files that it deleted but keeps open, wherever they were.
    pub layer: Measure,
    /// All its log files, including rotated ones and those of earlier runs.
    pub logs: Measure,
}

impl ContainerUsage {
    pub fn total(&self) -> Measure {
        sum([self.layer, self.logs])
    }
}

impl Usage {
    pub fn total(&self) -> Measure {
        let containers = self.containers.values().map(ContainerUsage::total);
        sum(self.volumes.values().copied().chain(containers).chain([self.rest]))
    }
}

fn sum(measures: impl IntoIterator<Item = Measure>) -> Measure {
    measures.into_iter().fold(Measure::default(), |mut sum, measure| {
        sum += measure;
        sum
    })
}

/// The bytes of a measurement. A tree that evades measurement is not legitimate: it counts as infinite.
pub fn bytes(measure: Measure) -> i64 {
    match measure.evades {
        true => i64::MAX,
        false => i64::try_from(measure.bytes).unwrap_or(i64::MAX),
    }
}

/// Why the Pod must be evicted, if it must: an emptyDir above its `sizeLimit`, the total above all containers' limits, or a
/// container above its own.
///
/// Upstream does not enforce init containers' own limits; here they are enforced, as their author intended.
pub fn exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    volume_exceeded(pod, usage).or_else(|| pod_exceeded(pod, usage)).or_else(|| container_exceeded(pod, usage))
}

/// Whether the Pod's disk usage has any limit; others are only measured when the disk is full. Critical ones have none, as
/// upstream.
pub fn is_limited(pod: &Pod) -> bool {
    if is_critical(pod) {
        return false;
    }
    let sized = |volume: &Volume| volume.empty_dir.as_ref().is_some_and(|source| source.size_limit.is_some());
    pod.spec().volumes.iter().flatten().any(sized)
        || pod.parts().iter().any(|part| qos::limit(&part.container, STORAGE).is_some())
}

fn volume_exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    pod.spec().volumes.iter().flatten().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let used = usage.volumes.get(&volume.name)?;
        let over = qos::units(limit) > 0 && bytes(*used) > qos::units(limit);
        over.then(|| format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, shown(limit)))
    })
}

/// A container without a limit adds nothing to that of the Pod, so one limit is enough to bound it, as upstream computes it.
fn pod_exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    pod.spec()
        .containers
        .iter()
        .chain(pod.spec().init_containers.iter().flatten())
        .find_map(|c| qos::limit(c, STORAGE))?;
    if bytes(usage.total()) <= pod_resources::limits(pod).ephemeral_storage {
        return None;
    }
    let spec = serde_json::to_value(pod.spec()).unwrap_or_default();
    let limit = pod_totals::limits(&spec).remove(STORAGE).unwrap_or_default();
    Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
}

fn container_exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    let over = |part: &ContainerRef<'_>| {
        let limit = qos::limit(&part.container, STORAGE).filter(|limit| qos::units(limit) != 0)?;
        let used = usage.containers.get(part.name())?.total();
        let words =
            || format!("Container {} exceeded its local ephemeral storage limit \"{}\". ", part.name(), shown(limit));
        (bytes(used) > qos::units(limit)).then(words)
    };
    pod.parts().iter().find_map(over)
}

/// The canonical form, as upstream prints quantities.
fn shown(quantity: &resource::Quantity) -> String {
    quantity.0.parse::<Quantity>().map_or_else(|_| quantity.0.clone(), |quantity| quantity.to_string())
}
