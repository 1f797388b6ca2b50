//! Host ids that a Pod in the host's user namespace may not name: those reserved for Pods with user namespaces. Pure.
//!
//! The kernel accounts some resources per user (pipes, descriptors in flight, epoll watches), and files belong to their owner: a
//! process running with an id from another Pod's range would share both.

use k8s_openapi::api::core::v1::Pod;

use crate::{id_pool::IdPool, pod::intent::Failure, spec::PodExt};

/// Checks that none of the ids named in the Pod's manifest is in the pool. The ids of its images are not known yet (see
/// `translate`).
///
/// # Errors
///
/// Names the first id that is in the pool.
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

/// All manifest fields that name a user or a group.
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
