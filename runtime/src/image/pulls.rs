//! Pulls in progress: sharing, per-blob waiting, and fairness.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::future::{BoxFuture, WeakShared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lock::lock;
use super::{Auth, Image, Result};

/// Concurrent pulls of one [tenant](super::ImageStore::pull_for). Further ones wait, without blocking others.
const OF_A_TENANT: usize = 3;

/// Layers unpacked at once, for all tenants: each may need the memory of a decompressor's window. Waiters are served in order, and
/// each tenant unpacks or waits with [one](UNPACKED_OF_A_TENANT).
const UNPACKED_AT_ONCE: usize = 2;
const UNPACKED_OF_A_TENANT: usize = 1;

pub(super) type Outcome = BoxFuture<'static, Result<Image>>;

/// Pulls in progress, by tenant, name and credentials; the blobs they download; and the queues.
pub(super) struct Pulls {
    pub(super) flights: Mutex<HashMap<(String, String, Auth), WeakShared<Outcome>>>,
    downloads: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    pub(super) tenants: TenantSemaphores,
    /// Limits how many layers each tenant may have waiting to be unpacked.
    pub(super) unpackers: TenantSemaphores,
    pub(super) unpacking: Arc<Semaphore>,
}

impl Default for Pulls {
    fn default() -> Pulls {
        Pulls {
            flights: Mutex::default(),
            downloads: Mutex::default(),
            tenants: TenantSemaphores::of(OF_A_TENANT),
            unpackers: TenantSemaphores::of(UNPACKED_OF_A_TENANT),
            unpacking: Arc::new(Semaphore::new(UNPACKED_AT_ONCE)),
        }
    }
}

impl Pulls {
    pub(super) fn download_lock(&self, download: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut downloads = lock(&self.downloads);
        downloads.retain(|_, held| Arc::strong_count(held) > 1);
        downloads.entry(download.to_owned()).or_default().clone()
    }
}

/// A semaphore of this size for each tenant.
pub(super) struct TenantSemaphores {
    most: usize,
    tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl TenantSemaphores {
    fn of(most: usize) -> TenantSemaphores {
        TenantSemaphores { most, tenants: Mutex::default() }
    }

    /// Waits for a permit of the tenant.
    pub(super) async fn take(&self, tenant: &str) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut tenants = lock(&self.tenants);
            tenants.retain(|_, turns| Arc::strong_count(turns) > 1);
            tenants.entry(tenant.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.most))).clone()
        };
        // It is never closed.
        turns.acquire_owned().await.ok()
    }
}
