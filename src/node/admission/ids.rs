//! Ids of the host that no Pod with the host's users may name: those of Pods that have users of their own. Pure.
//!
//! The kernel counts by user what it gives (pipes, descriptors on their way, watches of epoll), and files are their owner's: who
//! ran as a user of another Pod's range would have a share of both.

use k8s_openapi::api::core::v1::Pod;

use crate::{id_pool::IdPool, pod::intent::Failure, spec::PodExt};

/// Whether the ids that the Pod's manifest names are none of the pool's. Those of its images are not known yet (`translate`).
///
/// # Errors
///
/// The first that is.
pub fn admit(pod: &Pod, pool: IdPool) -> Result<(), Failure> {
    if pod.has_own_users() {
        return Ok(());
    }
    match named(pod).into_iter().find(|(_, id)| pool.has(*id)) {
        None => Ok(()),
        Some((field, id)) => {
            let message = format!("forbidden id: {field}: Invalid value: {id}: {}", pool.kept());
            Err(Failure { reason: "IDForbidden".to_owned(), message })
        }
    }
}

/// Each field of the manifest that names a user or a group.
fn named(pod: &Pod) -> Vec<(String, i64)> {
    let mut all = Vec::new();
    let mut note = |path: String, id: Option<i64>| all.extend(id.map(|id| (path, id)));
    if let Some(context) = &pod.spec().security_context {
        let path = |field: &str| format!("spec.securityContext.{field}");
        note(path("runAsUser"), context.run_as_user);
        note(path("runAsGroup"), context.run_as_group);
        note(path("fsGroup"), context.fs_group);
        for (n, group) in context.supplemental_groups.iter().flatten().enumerate() {
            note(path(&format!("supplementalGroups[{n}]")), Some(*group));
        }
    }
    for part in pod.parts() {
        if let Some(context) = &part.container.security_context {
            note(format!("{}.securityContext.runAsUser", part.path()), context.run_as_user);
            note(format!("{}.securityContext.runAsGroup", part.path()), context.run_as_group);
        }
    }
    all
}
