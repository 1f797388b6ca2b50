//! Live sandboxes that cannot be taken over: their records are damaged beyond repair, or their shim does not respond. They run on
//! until they are removed.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use super::names::PAUSE;
use super::{Errors, Inner, Runtime};
use crate::records::remove_folder;
use crate::removals::LOOK;
use crate::spec::{CgroupName, IdRange};
use crate::{JournalWriter, Result, cgroup};
use podwright_sys::{Kernel, process};

/// Why a sandbox is lost, and its exclusive resources, as far as known.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    pub cgroup: Option<CgroupName>,
    /// Its users' ids, if it has a user namespace; `None`: unknown.
    users: Option<Option<IdRange>>,
    why: String,
}

impl Inner {
    pub(super) fn lost(&self) -> MutexGuard<'_, BTreeMap<String, Lost>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime {
    /// The ids of running sandboxes that are in no list, with the reasons. Only [`Runtime::remove_sandbox`] removes them.
    pub fn lost(&self) -> BTreeMap<String, String> {
        self.0.lost().iter().map(|(id, lost)| (id.clone(), lost.why.clone())).collect()
    }

    /// The host ids of lost sandboxes with user namespaces, as far as known.
    pub fn lost_users(&self) -> Vec<(String, Option<IdRange>)> {
        self.0.lost().iter().filter_map(|(id, lost)| Some((id.clone(), lost.users?))).collect()
    }

    /// Marks a live sandbox as lost.
    pub(super) async fn lose(&self, id: &str, cgroup: Option<CgroupName>, why: &str) {
        tracing::error!("sandbox {id} keeps running but cannot be adopted: {why}");
        let of = id.to_owned();
        let found = self.blocking(move |inner| {
            let cgroup = cgroup.or_else(|| inner.cgroup_held_by(&of));
            let pause = cgroup.as_ref().map(|cgroup| cgroup::procs(&inner.tree.path(&cgroup.child(PAUSE))));
            let users = pause.into_iter().flatten().find_map(|pid| process::users_of(pid).ok());
            Ok((cgroup, users))
        });
        let (cgroup, users) = found.await.unwrap_or_default();
        self.0.lost().insert(id.to_owned(), Lost { cgroup, users, why: why.to_owned() });
    }

    /// Removes a lost sandbox with everything running in it.
    pub(super) async fn clear_lost(&self, id: &str, journal: &JournalWriter) -> Result<()> {
        let Some(lost) = self.0.lost().get(id).cloned() else { return Ok(()) };
        let (of, kernel) = (id.to_owned(), Kernel::new(journal));
        let removed = self.blocking(move |inner| {
            let mut errors = Errors::default();
            errors.note(inner.sweep_shim(&of, &kernel));
            if let Some(cgroup) = &lost.cgroup {
                errors.note(inner.tree.remove(&kernel, cgroup));
            }
            errors.note(remove_folder(&inner.folders.run(&of)));
            errors.result()?;
            inner.folders.forget_unrecorded(&of, lost.users, Instant::now() + LOOK)
        });
        removed.await?;
        self.0.lost().remove(id);
        Ok(())
    }
}
