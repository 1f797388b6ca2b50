//! Whether the node's network plugins can attach Pods, where it has plugins: the Node is not ready until they can.

use std::time::Duration;

use podwright_net::Network;
use tokio::sync::watch;

/// The interval for asking them.
const LOOK: Duration = Duration::from_secs(5);

/// Asks the plugins, for as long as this runs; `no_network` gets why Pods cannot be attached.
pub async fn watch(network: Network, no_network: watch::Sender<Option<String>>) {
    while network.has_plugins() {
        let why = network.check_plugins().await.err().map(|error| error.to_string());
        no_network.send_if_modified(|known| {
            if let Some(why) = why.as_ref().filter(|_| *known != why) {
                tracing::warn!(why, "network plugins cannot attach Pods");
            }
            std::mem::replace(known, why.clone()) != why
        });
        tokio::time::sleep(LOOK).await;
    }
}
