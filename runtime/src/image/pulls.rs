//! Pulls under way: who shares one, who waits for which blob, and whose turn it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::future::{BoxFuture, WeakShared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lock::lock;
use super::{Auth, Image, Result};

/// Pulls at once for one [tenant](super::ImageStore::pull_for). The next ones wait for these, and keep nobody else.
const OF_A_TENANT: usize = 3;

/// Layers that are unpacked at once, for all: each may take the memory of a decompressor's window. Who waits has his turn in the
/// order in which he came, and each tenant unpacks or waits with [one](UNPACKED_OF_A_TENANT).
const UNPACKED_AT_ONCE: usize = 2;
const UNPACKED_OF_A_TENANT: usize = 1;

pub(super) type Outcome = BoxFuture<'static, Result<Image>>;

/// Pulls under way, by tenant, name and credentials; the blobs that they download; and whose turn it is.
pub(super) struct Pulls {
    pub(super) flights: Mutex<HashMap<(String, String, Auth), WeakShared<Outcome>>>,
    downloads: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    pub(super) tenants: TenantSemaphores,
    /// Whose layer may wait to be unpacked, by tenant.
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

/// So many at once for each tenant.
pub(super) struct TenantSemaphores {
    most: usize,
    tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl TenantSemaphores {
    fn of(most: usize) -> TenantSemaphores {
        TenantSemaphores { most, tenants: Mutex::default() }
    }

    /// Waits until it is the tenant's turn, for as long as the permit is kept.
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
