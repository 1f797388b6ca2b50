//! What somebody else has changed of the node's network is mended by `podwright-net`; here it is told.

use podwright_net::{Network, Repair};
use podwright_runtime::Runtime;
use tokio::sync::mpsc;

use super::messages::split;
use crate::node::executor::Happening;

/// Looks after the network until nobody listens to `happenings` any more.
pub fn start(network: &Network, runtime: &Runtime, happenings: mpsc::UnboundedSender<Happening>) {
    let (tell, mut repairs) = mpsc::unbounded_channel();
    let healing = match network.heal(move |repair| drop(tell.send(repair))) {
        Ok(healing) => healing,
        Err(error) => return tracing::error!(%error, "damage to the node's network will not be mended"),
    };
    let runtime = runtime.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                repair = repairs.recv() => match repair {
                    Some(repair) => told(repair, &runtime, &happenings).await,
                    None => break,
                },
                () = happenings.closed() => break,
            }
        }
        // It waits for a look that is under way.
        tokio::task::spawn_blocking(move || drop(healing)).await.ok();
    });
}

async fn told(repair: Repair, runtime: &Runtime, happenings: &mpsc::UnboundedSender<Happening>) {
    let happening = match repair {
        Repair::Mended(what) => {
            let message = format!("Something outside podwright changed the node's network; restored: {what}");
            Happening::Network { reason: "NetworkRestored", message }
        }
        Repair::Contested(what) => {
            let message =
                format!("Something outside podwright keeps changing the node's network, again and again: {what}");
            Happening::Network { reason: "NetworkContested", message }
        }
        Repair::Failed(why) => {
            let message = format!("The node's network is not as it should be, and could not be restored: {why}");
            Happening::Network { reason: "NetworkNotRestored", message }
        }
        Repair::Lost(uid) => {
            let attempts = runtime.list().await.into_iter().map(|sandbox| split(&sandbox.spec.id));
            let Some(attempt) = attempts.filter(|(of, _)| *of == uid).map(|(_, attempt)| attempt).max() else { return };
            tracing::warn!(uid, "the network of a Pod cannot be restored: it gets another sandbox");
            Happening::SandboxGone { uid, attempt }
        }
    };
    happenings.send(happening).ok();
}
