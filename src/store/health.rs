//! Whether a store is writable.

use tokio::sync::watch;

use super::{Error, closed};

/// See the module.
#[derive(Clone, Debug, Default)]
pub enum Health {
    #[default]
    Good,
    /// Not now: it is being recovered.
    Trouble(Error),
    /// Never again.
    Lost(Error),
}

impl Health {
    pub fn trouble(&self) -> Option<Error> {
        match self {
            Health::Good => None,
            Health::Trouble(why) | Health::Lost(why) => Some(why.clone()),
        }
    }
}

/// Resolves when it is `Lost`.
pub async fn lost(health: &watch::Sender<Health>) -> Error {
    let mut health = health.subscribe();
    // The sender is borrowed from its store, and outlives this call.
    match health.wait_for(|health| matches!(health, Health::Lost(_))).await.as_deref() {
        Ok(Health::Lost(why)) => why.clone(),
        _ => closed(),
    }
}
