//! Disk usage of Pods for the endpoints: measured on demand, each Pod at most once per period, one at a time.
//!
//! A measurement may walk millions of files, and a volume's file system may hang: no caller waits longer than [`TIMEOUT`], and only
//! one measurement runs at a time. What is not known yet is left out.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::Semaphore, time::Instant};

use super::facts::{Stored, VolumeFacts};
use crate::{
    machine::{Machine, storage},
    spec::PodExt,
    storage::{MOST, REST},
    volumes::kinds::{Measured, measured},
};
use podwright_api::persistent_volume;

/// How long a measurement is good for: kubelet's `volumeStatsAggPeriod`.
pub const PERIOD: Duration = Duration::from_secs(60);
/// How long a caller waits for Pods without any measurement.
const TIMEOUT: Duration = Duration::from_millis(300);

#[derive(Default)]
pub struct Disk {
    known: Mutex<HashMap<String, Known>>,
}

struct Known {
    stored: Arc<Stored>,
    due: Instant,
}

/// Held while measuring.
pub type Turn = Arc<Semaphore>;

impl Disk {
    /// What is known of these Pods; measures outdated ones in the background.
    pub async fn of(
        self: &Arc<Self>,
        machine: &Arc<Machine>,
        turn: &Turn,
        pods: &[Arc<Pod>],
    ) -> HashMap<String, Arc<Stored>> {
        let now = Instant::now();
        self.lock().retain(|uid, _| pods.iter().any(|pod| pod.uid() == uid));
        let is_due = |pod: &&Arc<Pod>| self.lock().get(pod.uid()).is_none_or(|known| known.due <= now);
        let due: Vec<Arc<Pod>> = pods.iter().filter(is_due).cloned().collect();
        let unknown = due.iter().any(|pod| !self.lock().contains_key(pod.uid()));
        // A run in progress has most of them already.
        if let (false, Ok(turn)) = (due.is_empty(), turn.clone().try_acquire_owned()) {
            let (disk, machine) = (self.clone(), machine.clone());
            let work = tokio::spawn(async move {
                let _turn = turn;
                for pod in due {
                    disk.measure(&machine, &pod).await;
                }
            });
            if unknown {
                // Continues after the caller stops waiting.
                let _ = tokio::time::timeout(TIMEOUT, work).await;
            }
        }
        self.lock().iter().map(|(uid, known)| (uid.clone(), known.stored.clone())).collect()
    }

    async fn measure(&self, machine: &Arc<Machine>, pod: &Arc<Pod>) {
        let begin = Instant::now();
        let usage = storage::usage(machine, pod, MOST, false).await;
        let own = own_file_systems(pod);
        let names: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
        let spaces = storage::spaces(machine, pod, &names).await;
        let claim = |name: &str| own.iter().find(|(own, _)| own == name).and_then(|(_, claim)| claim.clone());
        let volumes =
            spaces.into_iter().map(|(name, space)| VolumeFacts { claim: claim(&name), name, space }).collect();
        let cost = usage.as_ref().map_or(Duration::ZERO, |usage| usage.total().cost);
        let stored = Arc::new(Stored { at: machine.env.now(), usage, volumes });
        let due = begin + PERIOD.max(cost * REST);
        self.lock().insert(pod.uid().to_owned(), Known { stored, due });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        // Each change is a single insertion or removal.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Pod's volumes with file systems of their own, and their claims: claims and in-memory volumes.
fn own_file_systems(pod: &Pod) -> Vec<(String, Option<String>)> {
    let volumes = pod.spec().volumes.iter().flatten().filter_map(|volume| {
        let claim = || persistent_volume::used(pod, volume).map(|used| used.name);
        (measured(volume) == Measured::FileSystem).then(|| (volume.name.clone(), claim()))
    });
    volumes.collect()
}
