//! Between which numbers the Pods of a workload must be while it goes from one wish to the next.

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, StatefulSet},
        batch::v1::Job,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use podwright::controllers::meta;

/// All that were wished since the last rest count: a controller may act on any of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// So many active Pods at most.
    pub most: i32,
    /// So many ready ones at least.
    pub ready: i32,
    /// What `ready` would be, had the workload been at rest.
    wanted: i32,
    /// The fewest replicas.
    pub fewest: i32,
    /// Whether the wish has changed, or is new.
    pub changed: bool,
    /// Whether the old ones shall be gone before a new one comes.
    pub recreates: bool,
}

impl Bounds {
    fn new(replicas: i32, surge: i32, unavailable: i32) -> Bounds {
        let wanted = (replicas - unavailable).max(0);
        Bounds {
            most: replicas.saturating_add(surge),
            ready: wanted,
            wanted,
            fewest: replicas,
            changed: false,
            recreates: false,
        }
    }

    pub fn of_deployment(deployment: &Deployment) -> Bounds {
        let Some(spec) = &deployment.spec else { return Bounds::new(0, 0, 0) };
        let replicas = spec.replicas.unwrap_or(1);
        let rolling = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
        let Some(rolling) = rolling else {
            return Bounds { recreates: true, ..Bounds::new(replicas, 0, replicas) };
        };
        let count = |value: &Option<IntOrString>, up| match value {
            Some(value) => meta::resolve(value, replicas, up).unwrap_or(0),
            None => 0,
        };
        let (surge, unavailable) = (count(&rolling.max_surge, true), count(&rolling.max_unavailable, false));
        // Both zero (a percentage of few) would let nothing go on: upstream gives up one Pod then.
        Bounds::new(replicas, surge, if surge == 0 { unavailable.max(1) } else { unavailable })
    }

    pub fn of_stateful_set(set: &StatefulSet) -> Bounds {
        let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        Bounds::new(replicas, 0, replicas)
    }

    pub fn of_daemon_set(set: &DaemonSet) -> Bounds {
        let rolling = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref()?.rolling_update.as_ref());
        let surges = match rolling.and_then(|rolling| rolling.max_surge.as_ref()) {
            Some(IntOrString::Int(0)) | None => 0,
            Some(_) => 1,
        };
        // Of each node.
        Bounds::new(1, surges, 1)
    }

    pub fn of_job(job: &Job) -> Bounds {
        let parallelism = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
        Bounds::new(parallelism, 0, parallelism)
    }

    /// Of a workload that has all that it needs.
    pub fn settled(mut self) -> Bounds {
        // A wish that forgoes all of them (Recreate) promises none.
        if self.wanted > 0 {
            self.ready = self.fewest;
        }
        self
    }

    /// Of one that has so many ready ones, and no room for all that it needs.
    pub fn short(mut self, ready: usize) -> Bounds {
        self.ready = self.wanted.min(i32::try_from(ready).unwrap_or(i32::MAX));
        self
    }

    /// Of a workload that has nothing yet.
    pub fn fresh(mut self) -> Bounds {
        (self.ready, self.changed) = (0, true);
        self
    }

    /// Another wish is as good now.
    pub fn widen(&mut self, other: &Bounds) {
        self.changed = true;
        self.most = self.most.max(other.most);
        self.ready = self.ready.min(other.wanted);
        self.fewest = self.fewest.min(other.fewest);
        self.recreates &= other.recreates;
    }

    /// Nobody promises ready Pods any more.
    pub fn relax(&mut self) {
        self.ready = 0;
    }
}
