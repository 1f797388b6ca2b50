//! Reports repairs: `podwright-net` restores the node's network after external changes, `podwright-runtime` sandboxes, and
//! [`Volumes`] volumes. Also reports what cannot be repaired: missing image layers below a container.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use podwright_net::{Network, Repair};
use podwright_runtime::{JournalWriter, Runtime};
use tokio::sync::mpsc;

use crate::{
    disk,
    executor::RuntimeEvent,
    labels,
    translate::{sandbox_id, split_sandbox_id},
    volumes::Volumes,
};

/// How often limits and mounts are checked: a few small files per container.
const GLANCE: Duration = Duration::from_secs(2);
/// Delay before restarting the network's repair after it ended or failed to start.
const AGAIN: Duration = Duration::from_secs(5);
/// The same repair is not reported again for this long.
const TOLD: Duration = Duration::from_secs(60);
/// This many undone repairs within that time mean that something contests them, which is reported.
const CONTESTED: u32 = 5;

/// Runs the network's repair until the receiver of `runtime_events` is dropped.
pub fn start(network: &Network, runtime: &Runtime, runtime_events: mpsc::UnboundedSender<RuntimeEvent>) {
    let (network, runtime) = (network.clone(), runtime.clone());
    tokio::spawn(async move {
        loop {
            match network_healed(&network, &runtime, &runtime_events).await {
                Ok(()) if runtime_events.is_closed() => return,
                Ok(()) => tracing::error!("the repair of the node's network ended: restarting it"),
                Err(error) => tracing::error!(%error, "failed to watch the node's network: retrying"),
            }
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                () = runtime_events.closed() => return,
            }
        }
    });
}

/// Runs the network's repair until its thread ends, or the receiver of `runtime_events` is dropped.
async fn network_healed(
    network: &Network,
    runtime: &Runtime,
    runtime_events: &mpsc::UnboundedSender<RuntimeEvent>,
) -> podwright_net::Result<()> {
    let (tell, mut repairs) = mpsc::unbounded_channel();
    let healing = network.heal(move |repair| drop(tell.send(repair)))?;
    loop {
        tokio::select! {
            repair = repairs.recv() => match repair {
                Some(repair) => told(repair, runtime, runtime_events).await,
                None => break,
            },
            () = runtime_events.closed() => break,
        }
    }
    // Waits for a check in progress.
    tokio::task::spawn_blocking(move || drop(healing)).await.ok();
    Ok(())
}

async fn told(repair: Repair, runtime: &Runtime, runtime_events: &mpsc::UnboundedSender<RuntimeEvent>) {
    let event = match repair {
        // The cause is unknown: what is missing after a restart may never have been created by an earlier agent.
        Repair::Mended(what) => {
            let message = format!("The node's network was not as it should be; restored: {what}");
            RuntimeEvent::Damage { reason: "NetworkRestored", message }
        }
        Repair::Contested(what) => {
            let message =
                format!("Something outside podwright keeps changing the node's network, again and again: {what}");
            RuntimeEvent::Damage { reason: "NetworkContested", message }
        }
        Repair::Failed(why) => {
            let message = format!("The node's network is not as it should be, and could not be restored: {why}");
            RuntimeEvent::Damage { reason: "NetworkNotRestored", message }
        }
        Repair::Lost(uid) => {
            // Takes as long as its processes need to exit: other repairs are reported meanwhile.
            let (runtime, runtime_events) = (runtime.clone(), runtime_events.clone());
            tokio::spawn(async move { end(uid, &runtime, &runtime_events).await });
            return;
        }
    };
    runtime_events.send(event).ok();
}

/// Stops the sandbox of a Pod whose network is lost, so that it does not run on beside its replacement.
async fn end(uid: String, runtime: &Runtime, runtime_events: &mpsc::UnboundedSender<RuntimeEvent>) {
    let attempts = runtime.list().await.into_iter().map(|sandbox| split_sandbox_id(&sandbox.spec.id));
    let Some(attempt) = attempts.filter(|(of, _)| *of == uid).map(|(_, attempt)| attempt).max() else { return };
    tracing::warn!(uid, "failed to restore the network of a Pod: replacing its sandbox");
    if let Err(error) = runtime.stop_sandbox(&sandbox_id(&uid, attempt), &JournalWriter::none()).await {
        tracing::warn!(uid, %error, "failed to stop a sandbox without a network");
    }
    runtime_events.send(RuntimeEvent::SandboxGone { uid, attempt }).ok();
}

/// Checks limits and mounts until the receiver of `runtime_events` is dropped.
pub fn look_after(runtime: &Runtime, volumes: &Arc<Volumes>, runtime_events: mpsc::UnboundedSender<RuntimeEvent>) {
    let (runtime, volumes, mut repairs) = (runtime.clone(), volumes.clone(), Repairs::default());
    for (id, why) in runtime.lost() {
        let message = format!("Sandbox {id} runs on, and cannot be taken over: {why}. Delete its Pod to end it");
        runtime_events.send(RuntimeEvent::Damage { reason: "SandboxLost", message }).ok();
    }
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(GLANCE) => {}
                () = runtime_events.closed() => return,
            }
            let (of_volumes, of_sandboxes) = tokio::join!(volumes.mend(), runtime.mend_sandboxes());
            let mended = of_volumes.into_iter().chain(of_sandboxes).map(Found::Restored);
            let found: Vec<Found> = mended.chain(lost_layers(&runtime).await).collect();
            for event in found.into_iter().filter_map(|what| repairs.note(what, Instant::now())) {
                runtime_events.send(event).ok();
            }
        }
    });
}

/// Missing layers with containers on them. Their processes keep open files; nothing can be restored below a mounted overlay. The
/// next start pulls the image again.
async fn lost_layers(runtime: &Runtime) -> Vec<Found> {
    let mut users: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    for (id, noted) in runtime.running() {
        for layer in noted.get(labels::LAYERS).map(String::as_str).unwrap_or_default().lines() {
            users.entry(layer.into()).or_default().insert(id.to_string());
        }
    }
    let lost = move || users.into_iter().filter(|(layer, _)| !layer.is_dir()).collect::<Vec<_>>();
    let lost = disk::work(lost).await.unwrap_or_default();
    let words = |users: BTreeSet<String>| users.into_iter().collect::<Vec<_>>().join(", ");
    lost.into_iter().map(|(layer, users)| Found::Lost(format!("{}, of {}", layer.display(), words(users)))).collect()
}

/// What a check found, in words.
enum Found {
    /// It was restored.
    Restored(String),
    /// A layer, and its containers.
    Lost(String),
}

/// Recent findings, and how often each occurred since it was reported.
#[derive(Default)]
struct Repairs(BTreeMap<String, (Instant, u32)>);

impl Repairs {
    /// Records a finding; returns the event to report: for its first occurrence, or that its repair keeps being undone.
    fn note(&mut self, found: Found, now: Instant) -> Option<RuntimeEvent> {
        self.0.retain(|_, (told, _)| now.duration_since(*told) < TOLD);
        let (what, is_restored) = match found {
            Found::Restored(what) => (what, true),
            Found::Lost(what) => (what, false),
        };
        let (_, times) = self.0.entry(what.clone()).or_insert((now, 0));
        *times += 1;
        match *times {
            1 if !is_restored => Some(RuntimeEvent::Damage {
                reason: "ImageDamaged",
                message: format!(
                    "A layer that containers stand on is gone; they have what they have open, and are whole again once they are \
                     started anew: {what}"
                ),
            }),
            1 => Some(RuntimeEvent::Damage {
                reason: "NodeRestored",
                message: format!("What podwright looks after was not as it should be; restored: {what}"),
            }),
            CONTESTED if is_restored => Some(RuntimeEvent::Damage {
                reason: "NodeContested",
                message: format!("Something outside podwright keeps undoing what is restored, again and again: {what}"),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_is_told_once_and_once_more_where_somebody_undoes_it() {
        let (mut repairs, begun) = (Repairs::default(), Instant::now());
        let mut told = |seconds: u64, what: &str| match repairs
            .note(Found::Restored(what.to_owned()), begun + Duration::from_secs(seconds))
        {
            Some(RuntimeEvent::Damage { reason, message }) => {
                assert!(message.ends_with(what), "{message}");
                Some(reason)
            }
            _ => None,
        };
        let reasons: Vec<_> = (0..11).map(|n| told(n * 5, "memory.max of cgroup a")).collect();
        let mut expected = vec![None; 11];
        (expected[0], expected[CONTESTED as usize - 1]) = (Some("NodeRestored"), Some("NodeContested"));
        assert_eq!(reasons, expected);
        assert_eq!(told(55, "memory.max of cgroup b"), Some("NodeRestored"), "another one is another matter");
        assert_eq!(told(61, "memory.max of cgroup a"), Some("NodeRestored"), "and so is one a minute later");
    }
}
