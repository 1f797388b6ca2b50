//! Restores external changes to running sandboxes: their limits, device filters, sysctls, and the `/dev/shm` shared by their
//! containers. Their records are restored by [`Runtime::mend_records`].

mod devices;
mod sysctls;

use std::sync::{Arc, PoisonError};

use tokio::time::timeout;

use super::recovery::TURN;
use super::{Inner, Runtime, Sandbox};
use crate::cgroup;
use crate::spec::{CgroupName, Resources};
use crate::{JournalWriter, Result, compile};
use podwright_sys::Kernel;
use podwright_sys::kept::{self, Kept};

pub use devices::Held;

/// The checks of each sandbox, run while holding its turn: each returns what it restored, in words.
const LOOKS: &[(&str, fn(&Inner, &Kernel, &Sandbox) -> Result<Vec<String>>)] =
    &[("/dev/shm", shm), ("limits", limits), ("device rules", devices::mend), ("sysctls", sysctls::mend)];

impl Runtime {
    /// Restores externally changed sandboxes and cgroups; returns what was restored, in words. Reads a few small files per
    /// container: meant to be called periodically.
    pub async fn mend_sandboxes(&self) -> Vec<String> {
        let sandboxes: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        let looked = self.blocking(move |inner| {
            let mut mended = inner.mend_classes(&Kernel::new(&JournalWriter::none()));
            let mut busy = Vec::new();
            for sandbox in sandboxes {
                // A concurrent operation on it knows the intended state.
                match sandbox.turn.try_lock() {
                    Ok(_turn) => mended.extend(inner.mend_sandbox(&sandbox)),
                    Err(_) => busy.push(sandbox.clone()),
                }
            }
            Ok((mended, busy))
        });
        let (mut mended, busy) = looked.await.unwrap_or_default();
        let waited = busy.into_iter().map(|sandbox| async move {
            // Slower ones are checked again later.
            let _turn = timeout(TURN, sandbox.turn.lock()).await.ok()?;
            let of = sandbox.clone();
            self.blocking(move |inner| Ok(inner.mend_sandbox(&of))).await.ok()
        });
        mended.extend(futures::future::join_all(waited).await.into_iter().flatten().flatten());
        mended
    }

    /// Keeps the `/dev/shm` of a ready sandbox: what lies over it is taken away. One that was removed while no agent ran is created
    /// anew: running containers keep theirs.
    pub(super) fn keep_shm(&self, sandbox: &Sandbox) {
        let spec = sandbox.state().record.spec.clone();
        if !compile::own_shm(&spec) {
            return;
        }
        let (kernel, path) = (Kernel::new(&JournalWriter::none()), self.0.folders.shm(&spec.id));
        let keep = || -> Result<Option<Kept>> {
            if !kept::uncover_shm(&kernel, &path)? {
                tracing::warn!("{} is no longer mounted: mounting it again", path.display());
                kept::mount_shm(&kernel, &path, spec.users.map_or(0, |users| users.host))?;
            }
            Ok(Kept::of(&kernel, &path)?)
        };
        match keep() {
            Ok(kept) => sandbox.state().shm = kept,
            Err(error) => tracing::warn!("failed to restore the /dev/shm of sandbox {}: {error}", spec.id),
        }
    }
}

impl Sandbox {
    /// The cgroups of everything running, with their limits: the sandbox's own first.
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

impl Inner {
    /// Runs all checks of a sandbox; the caller holds its turn.
    fn mend_sandbox(&self, sandbox: &Sandbox) -> Vec<String> {
        let kernel = Kernel::new(&JournalWriter::none());
        let mut mended = Vec::new();
        for (what, look) in LOOKS {
            match look(self, &kernel, sandbox) {
                Ok(found) => mended.extend(found),
                Err(error) => tracing::warn!("failed to restore the {what} of sandbox {}: {error}", sandbox.id),
            }
        }
        mended
    }

    /// The limits of cgroups outside sandboxes. A removed one was empty, and is created again with its next sandbox.
    fn mend_classes(&self, kernel: &Kernel) -> Vec<String> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut mended = Vec::new();
        for (name, wanted) in made.iter() {
            match mend_cgroup(self, kernel, name, wanted, true) {
                Ok(found) => mended.extend(found),
                Err(error) => tracing::warn!("failed to restore the cgroup {}: {error}", name.as_path().display()),
            }
        }
        mended
    }
}

fn shm(_: &Inner, kernel: &Kernel, sandbox: &Sandbox) -> Result<Vec<String>> {
    let mut state = sandbox.state();
    let Some(kept) = &mut state.shm else { return Ok(Vec::new()) };
    let path = kept.path().display().to_string();
    let mended = kept.mend(kernel)?.then(|| format!("the mount {path} of sandbox {}", sandbox.id));
    Ok(mended.into_iter().collect())
}

fn limits(inner: &Inner, kernel: &Kernel, sandbox: &Sandbox) -> Result<Vec<String>> {
    let mut mended = Vec::new();
    for (at, (cgroup, wanted)) in sandbox.limits().iter().enumerate() {
        if at == 0 {
            // The limits are restored even if these fail.
            let bounds = cgroup::bound(kernel, &inner.tree.path(cgroup)).unwrap_or_else(|error| {
                tracing::warn!("failed to restore the limits of cgroup {}: {error}", cgroup.as_path().display());
                Vec::new()
            });
            mended.extend(bounds.iter().map(|file| format!("{file} of cgroup {}", cgroup.as_path().display())));
        }
        mended.extend(mend_cgroup(inner, kernel, cgroup, wanted, at == 0)?);
    }
    Ok(mended)
}

fn mend_cgroup(
    inner: &Inner,
    kernel: &Kernel,
    name: &CgroupName,
    wanted: &Resources,
    has_children: bool,
) -> Result<Vec<String>> {
    let path = inner.tree.path(name);
    let controllers = if has_children { cgroup::mend_controllers(kernel, &path)? } else { Vec::new() };
    let lost = controllers.into_iter().map(|controller| format!("the controller {controller}"));
    let files: Vec<String> = lost.chain(cgroup::mend(kernel, &path, wanted)?).collect();
    Ok(match files.is_empty() {
        true => Vec::new(),
        false => vec![format!("{} of cgroup {}", files.join(", "), name.as_path().display())],
    })
}
