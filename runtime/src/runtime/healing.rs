//! What somebody else changes of sandboxes that run is put back: their limits, and the `/dev/shm` that their containers share.

use std::sync::Arc;

use super::{Runtime, Sandbox};
use crate::cgroup;
use crate::kept::{self, Kept};
use crate::spec::{CgroupName, Resources};
use crate::sys::Kernel;
use crate::{Result, Scribe, compile};

impl Runtime {
    /// Brings back mounts of sandboxes, and limits of cgroups, that are not as they were made; what was, in words. It reads a few
    /// small files of each container: to be called now and then.
    pub async fn mend_sandboxes(&self) -> Vec<String> {
        let sandboxes: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        let mended = self.blocking(move |inner| {
            let (kernel, mut mended) = (Kernel::new(&Scribe::none()), Vec::new());
            for sandbox in sandboxes {
                // Whoever changes it just now knows what it shall be; else it is looked at again.
                let Ok(_turn) = sandbox.turn.try_lock() else { continue };
                if let Some(kept) = &mut sandbox.state().shm {
                    match kept.mend(&kernel) {
                        Ok(false) => {}
                        Ok(true) => {
                            mended.push(format!("the mount {} of sandbox {}", kept.path().display(), sandbox.id))
                        }
                        Err(error) => tracing::warn!("the /dev/shm of sandbox {}: {error}", sandbox.id),
                    }
                }
                for (cgroup, wanted) in sandbox.limits() {
                    let path = inner.tree.path(&cgroup);
                    match cgroup::mend(&kernel, &path, &wanted) {
                        Ok(files) if files.is_empty() => {}
                        Ok(files) => {
                            mended.push(format!("{} of cgroup {}", files.join(", "), cgroup.as_path().display()));
                        }
                        Err(error) => tracing::warn!("the limits of sandbox {}: {error}", sandbox.id),
                    }
                }
            }
            Ok(mended)
        });
        mended.await.unwrap_or_default()
    }

    /// Keeps the `/dev/shm` of a sandbox that is ready. One that somebody has taken away while nobody looked is made anew: those
    /// containers that run keep what they have.
    pub(super) fn keep_shm(&self, sandbox: &Sandbox) {
        let spec = sandbox.state().record.spec.clone();
        if !compile::own_shm(&spec) {
            return;
        }
        let (kernel, path) = (Kernel::new(&Scribe::none()), self.0.folders.shm(&spec.id));
        let keep = || -> Result<Option<Kept>> {
            if let Some(kept) = Kept::of(&kernel, &path)? {
                return Ok(Some(kept));
            }
            tracing::warn!("{} is not mounted any more: it is made anew", path.display());
            kept::mount_shm(&kernel, &path, spec.users.map_or(0, |users| users.host))?;
            Ok(Kept::of(&kernel, &path)?)
        };
        match keep() {
            Ok(kept) => sandbox.state().shm = kept,
            Err(error) => tracing::warn!("the /dev/shm of sandbox {}: {error}", spec.id),
        }
    }
}

impl Sandbox {
    /// The cgroups of what runs, with the limits that they were given.
    fn limits(&self) -> Vec<(CgroupName, Resources)> {
        let state = self.state();
        if !state.ready() {
            return Vec::new();
        }
        let spec = &state.record.spec;
        let running = state.containers.values().filter(|container| container.is_running());
        let limited = running.filter_map(|container| {
            let limits = container.record.resources.clone()?;
            Some((spec.cgroup.child(&container.record.id.key()), limits))
        });
        std::iter::once((spec.cgroup.clone(), spec.resources.clone())).chain(limited).collect()
    }
}
