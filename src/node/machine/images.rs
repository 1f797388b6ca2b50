//! Images for containers: pull policy, credentials, and upstream's words when something is wrong.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Pod, Secret};
use podwright_runtime::image::{Auth, Image, ImageError, ImageName, Keyring};

use super::{Machine, storage};
use crate::node::{
    executor::{PullNews, Pulled, Trouble},
    labels,
    spec::{Part, PodExt},
    storage::{Thresholds, pressure},
};

/// An image that was asked for less than this ago is about to be used: kubelet's `imageMinimumGCAge`.
const MIN_AGE: Duration = Duration::from_secs(120);

/// Makes sure that the container's image is present, as its pull policy says.
pub async fn pull(
    machine: &Machine,
    pod: &Arc<Pod>,
    part: &Part<'_>,
    news: &(dyn Fn(PullNews) + Send + Sync),
) -> Result<Pulled, Trouble> {
    let name = part.container.image.clone().unwrap_or_default();
    let invalid =
        |e: ImageError| Trouble::new("InvalidImageName", format!("Failed to apply default image tag \"{name}\": {e}"));
    let parsed = ImageName::parse(&name).map_err(invalid)?;
    let policy = part.container.image_pull_policy.as_deref().unwrap_or(default_policy(&parsed));
    let pull_error = |e: &ImageError| Trouble::new("ErrImagePull", e);
    let store = machine.images.clone();
    let wanted = name.clone();
    let present = tokio::task::spawn_blocking(move || store.resolve(&wanted))
        .await
        .map_err(|e| Trouble::new("ErrImagePull", e))?
        .map_err(|e| pull_error(&e))?;
    match (policy, present) {
        // A name that no registry has is never asked for.
        ("IfNotPresent" | "Never", Some(image)) => return Ok(ready(&image)),
        (_, Some(image)) if parsed.is_local_only() => return Ok(ready(&image)),
        ("Never", None) => {
            let why = format!("Container image \"{name}\" is not present with pull policy of Never");
            return Err(Trouble::new("ErrImageNeverPull", why));
        }
        _ => {}
    }
    news(PullNews::Pulling);
    let started = Instant::now();
    let attempt = machine.leftovers.attempt();
    let image = fetch(machine, pod, &parsed, &name).await.map_err(|e| pull_error(&e))?;
    attempt.succeeded();
    let took = started.elapsed();
    Ok(Pulled { pulled: Some((took, took)), ..ready(&image) })
}

fn ready(image: &Image) -> Pulled {
    Pulled { id: image.reference().to_owned(), pulled: None, size: image.size }
}

/// `:latest` is always asked for again.
fn default_policy(name: &ImageName) -> &'static str {
    match (name.digest(), name.tag()) {
        (Some(_), _) => "IfNotPresent",
        (None, None | Some("latest")) => "Always",
        (None, Some(_)) => "IfNotPresent",
    }
}

/// Tries all credentials that fit, then none.
async fn fetch(machine: &Machine, pod: &Pod, parsed: &ImageName, name: &str) -> Result<Image, ImageError> {
    let keyring = keyring(machine, pod).await;
    let mut tries = keyring.lookup(&parsed.family());
    tries.push(Auth::Anonymous);
    let mut first = None;
    let tenant = pod.metadata.namespace.as_deref().unwrap_or_default();
    for auth in tries {
        match machine.images.pull_for(tenant, name, &auth, None).await {
            Ok(image) => return Ok(image),
            Err(e @ ImageError::Unauthorized(_)) => first = first.or(Some(e)),
            Err(e) => return Err(e),
        }
    }
    Err(first.unwrap_or_else(|| ImageError::Unauthorized(format!("{name}: unauthorized"))))
}

/// The credentials of the Pod's imagePullSecrets. What is missing or damaged is said once and left out, as upstream.
async fn keyring(machine: &Machine, pod: &Pod) -> Keyring {
    let mut keyring = Keyring::default();
    let names = pod.spec().image_pull_secrets.iter().flatten().map(|r| r.name.clone()).collect();
    let sources = machine.objects.sources(pod, &Default::default(), &names).await.unwrap_or_default();
    for name in &names {
        let added = match sources.secrets.get(name) {
            Some(secret) => add(&mut keyring, secret),
            None => Err("not found".to_owned()),
        };
        if let Err(why) = added {
            tracing::warn!(pod = %pod.full_name(), secret = name, why, "an image pull secret is not used");
        }
    }
    keyring
}

fn add(keyring: &mut Keyring, secret: &Secret) -> Result<(), String> {
    let data = |key: &str| secret.data.as_ref().and_then(|d| d.get(key)).map(|b| b.0.as_slice());
    if let Some(json) = data(".dockerconfigjson") {
        return keyring.add_docker_config_json(json).map_err(|e| e.to_string());
    }
    match data(".dockercfg") {
        Some(json) => keyring.add_dockercfg(json).map_err(|e| e.to_string()),
        None => Err("it holds no docker config".to_owned()),
    }
}

/// The layers that containers of this node stand on, whatever has become of their images' names. Who deletes others has his
/// [turn](super::leftovers::Leftovers::turn).
pub async fn layers_in_use(machine: &Machine) -> HashSet<PathBuf> {
    let sandboxes = machine.runtime.list().await;
    let labels = sandboxes.iter().flat_map(|s| &s.containers).filter_map(|c| c.labels.get(labels::LAYERS));
    labels.flat_map(|layers| layers.lines()).map(PathBuf::from).collect()
}

/// Deletes what was still in use when its image was removed, as far as it no longer is, and what belongs to no image because
/// its import or pull failed.
pub async fn collect(machine: &Machine) -> Result<(), String> {
    let turn = machine.leftovers.turn().await;
    if !turn.take() {
        return Ok(());
    }
    collect_now(machine).await
}

/// Makes room on a disk that is too full: deletes what belongs to no image, whether or not any is known of, then images that no
/// container stands on, until there is enough.
pub async fn reclaim(machine: &Machine, thresholds: &Thresholds) -> Result<(), String> {
    let turn = machine.leftovers.turn().await;
    turn.take();
    collect_now(machine).await?;
    let (store, in_use) = (machine.images.clone(), layers_in_use(machine).await);
    let (pods, images) = (machine.volumes.root().to_owned(), machine.images.root().to_owned());
    let thresholds = thresholds.clone();
    let removal = tokio::task::spawn_blocking(move || {
        store
            .remove_unused(&in_use, MIN_AGE, || !pressure::images_help(&thresholds, &storage::disks_of(&pods, &images)))
    });
    let removed = removal.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    machine.leftovers.may_be(!removed.in_use.is_empty());
    if !removed.names.is_empty() {
        tracing::info!(images = ?removed.names, "removed images that nobody uses: the disk is too full");
    }
    Ok(())
}

/// Of who has the [turn](super::leftovers::Leftovers::turn).
async fn collect_now(machine: &Machine) -> Result<(), String> {
    let (store, in_use) = (machine.images.clone(), layers_in_use(machine).await);
    let collected = tokio::task::spawn_blocking(move || store.collect(&in_use)).await.map_err(|e| e.to_string())?;
    machine.leftovers.may_be(!collected.as_ref().is_ok_and(|removed| removed.in_use.is_empty()));
    collected.map(drop).map_err(|e| e.to_string())
}
