//! Images for containers: pull policy, permission to use local images, credentials, and upstream's error messages.

use std::{
    collections::{BTreeSet, HashSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Pod, Secret};
use podwright_runtime::{
    Runtime,
    image::{Auth, Grant, Image, ImageError, ImageName, ImageStore, Keyring, Provenance, PullSecret, SecretRef},
};

use super::{Machine, error::Error, file_systems::disks_of, image_gc::ImageGc};
use crate::{
    disk,
    executor::{ActionError, PullProgress, Pulled, Reason},
    labels,
    objects::Held,
    spec::{ContainerRef, PodExt},
    storage::{Thresholds, pressure},
    verification::{self, Step, Verdict},
};

/// An image requested less than this ago is about to be used: kubelet's `imageMinimumGCAge`.
const MIN_AGE: Duration = Duration::from_secs(120);

/// Ensures that the container's image is present and that the Pod may use it, following its pull policy.
///
/// 1. find the image, 2. check whether the Pod may use it, 3. decide, 4. ask the registry, 5. record the credentials it accepted.
///
/// # Errors
///
/// `InvalidImageName`, `ErrImageNeverPull`, or `ErrImagePull` for errors of the registry or the store.
pub async fn pull(
    machine: &Machine,
    pod: &Arc<Pod>,
    part: &ContainerRef<'_>,
    progress: &(dyn Fn(PullProgress) + Send + Sync),
) -> Result<Pulled, ActionError> {
    let name = part.container.image.clone().unwrap_or_default();
    let invalid = |e: ImageError| {
        ActionError::new(Reason::InvalidImageName, format!("Failed to apply default image tag \"{name}\": {e}"))
    };
    let parsed = ImageName::parse(&name).map_err(invalid)?;
    let policy = part.container.image_pull_policy.as_deref().unwrap_or(default_policy(&parsed));
    let pull_error = |e: &ImageError| ActionError::new(Reason::ErrImagePull, e);
    let wanted = name.clone();
    // The Pod's secrets may be read twice: for the local image, and for the registry.
    let progress = &once_left_out(progress);
    let found = in_store(machine, move |store| store.find(&wanted)).await.map_err(|e| pull_error(&e))?;
    let usable = match &found {
        Some((image, provenance)) if policy != "Always" || parsed.is_local_only() => {
            Some(may_use(machine, pod, &parsed, &name, (image, provenance), progress).await)
        }
        _ => None,
    };
    match (verification::step(policy, usable, parsed.is_local_only()), found) {
        (Step::Use, Some((image, _))) => return Ok(ready(&image)),
        (Step::NotPresent, _) => {
            let why = format!("Container image \"{name}\" is not present with pull policy of Never");
            return Err(ActionError::new(Reason::ErrImageNeverPull, why));
        }
        (Step::Use | Step::Pull, _) => {}
    }
    progress(PullProgress::Pulling);
    let started = Instant::now();
    let attempt = machine.image_gc.attempt();
    let (image, grant) = fetch(machine, pod, &parsed, &name, progress).await.map_err(|e| pull_error(&e))?;
    attempt.succeeded();
    note(machine, &image, &name, grant).await;
    let took = started.elapsed();
    Ok(Pulled { pulled: Some((took, took)), ..ready(&image) })
}

fn ready(image: &Image) -> Pulled {
    Pulled { id: image.reference().to_owned(), pulled: None, size: image.size }
}

/// The image that a container's pull resulted in. Its name may refer to another image by now, which the Pod was not checked for.
/// Blocks.
///
/// # Errors
///
/// `CreateContainerError`: it is gone, or cannot be read.
pub fn of(store: &ImageStore, name: &str, id: &str) -> Result<Image, ActionError> {
    let image = match store.resolve(name) {
        Ok(Some(image)) if image.reference() == id => Ok(Some(image)),
        Ok(_) => store.resolve(id),
        Err(e) => Err(e),
    };
    let image = image.map_err(|e| ActionError::new(Reason::CreateContainerError, e))?;
    image.ok_or_else(|| ActionError::new(Reason::CreateContainerError, format!("image \"{name}\" is gone")))
}

/// The image's stop signal.
pub async fn stop_signal(machine: &Machine, name: String) -> Option<String> {
    let image = in_store(machine, move |store| store.resolve(&name)).await.ok()??;
    Some(image.stop_signal()).filter(|signal| !signal.is_empty())
}

/// `:latest` is always pulled.
fn default_policy(name: &ImageName) -> &'static str {
    match (name.digest(), name.tag()) {
        (Some(_), _) => "IfNotPresent",
        (None, None | Some("latest")) => "Always",
        (None, Some(_)) => "IfNotPresent",
    }
}

/// Reads images on a blocking thread: their documents are as large as their authors made them.
async fn in_store<T: Send + 'static>(
    machine: &Machine,
    work: impl FnOnce(ImageStore) -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    let store = machine.images.clone();
    let joined = tokio::task::spawn_blocking(move || work(store)).await;
    joined.map_err(|e| ImageError::Local(format!("image worker: {e}")))?
}

/// Whether the Pod may use a local image. Its Secrets are read only if the record needs them.
async fn may_use(
    machine: &Machine,
    pod: &Pod,
    parsed: &ImageName,
    name: &str,
    (image, provenance): (&Image, &Provenance),
    progress: &(dyn Fn(PullProgress) + Send + Sync),
) -> bool {
    let family = (!ImageName::is_id(name)).then(|| parsed.family());
    let judge = |presented: &[PullSecret]| {
        verification::verdict(&machine.verification, family.as_deref(), provenance, presented)
    };
    let verdict = match judge(&[]) {
        Verdict::Unverified if matches!(provenance, Provenance::Pulled(access) if !access.secrets.is_empty()) => {
            let mut held = machine.objects.hold_for_pull();
            let credentials = credentials(machine, &mut held, pod, parsed, progress).await;
            let presented = in_store(machine, move |store| {
                Ok(credentials.into_iter().map(|(auth, secret)| presented(&store, &auth, &secret)).collect::<Vec<_>>())
            });
            judge(&presented.await.unwrap_or_default())
        }
        verdict => verdict,
    };
    match verdict {
        Verdict::Usable => true,
        Verdict::UsableNoting(secret) => {
            note(machine, image, name, Grant::Secret(secret)).await;
            true
        }
        Verdict::Unverified => false,
    }
}

/// A credential in the form of the records. Without a hash it is identified by its Secret alone.
fn presented(store: &ImageStore, auth: &Auth, secret: &SecretRef) -> PullSecret {
    let credential_hash = store.hash_of(auth).unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to hash a credential: it is identified by its Secret only");
        String::new()
    });
    PullSecret { secret: secret.clone(), credential_hash }
}

/// Records which credential a registry accepted. If that fails, the next Pod asks the registry again.
async fn note(machine: &Machine, image: &Image, name: &str, grant: Grant) {
    let (image, wanted) = (image.clone(), name.to_owned());
    if let Err(error) = in_store(machine, move |store| store.grant(&image, &wanted, &grant)).await {
        tracing::warn!(image = name, %error, "failed to record whose credentials pulled an image: the registry will be asked again");
    }
}

/// Tries all matching credentials, then none; returns the accepted one.
async fn fetch(
    machine: &Machine,
    pod: &Pod,
    parsed: &ImageName,
    name: &str,
    progress: &(dyn Fn(PullProgress) + Send + Sync),
) -> Result<(Image, Grant), ImageError> {
    let mut first = None;
    let tenant = pod.metadata.namespace.as_deref().unwrap_or_default();
    // Until they are not needed any more.
    let mut held = machine.objects.hold_for_pull();
    for (auth, secret) in credentials(machine, &mut held, pod, parsed, progress).await {
        match machine.images.pull_for(tenant, name, &auth, None).await {
            Ok(image) => {
                let accepted = in_store(machine, move |store| Ok(presented(&store, &auth, &secret))).await?;
                return Ok((image, Grant::Secret(accepted)));
            }
            Err(e @ ImageError::Unauthorized(_)) => first = first.or(Some(e)),
            Err(e) => return Err(e),
        }
    }
    match machine.images.pull_for(tenant, name, &Auth::Anonymous, None).await {
        Ok(image) => Ok((image, Grant::Anyone)),
        Err(e @ ImageError::Unauthorized(_)) => Err(first.unwrap_or(e)),
        Err(e) => Err(e),
    }
}

/// What of the Pod's imagePullSecrets, those of its ServiceAccount among them by admission, fits an image. What is missing or
/// damaged, or more than anybody tries, is told and left out, as upstream does with the first. One Secret is in hand at a time.
async fn credentials(
    machine: &Machine,
    held: &mut Held<'_>,
    pod: &Pod,
    image: &ImageName,
    progress: &(dyn Fn(PullProgress) + Send + Sync),
) -> Vec<(Auth, Arc<SecretRef>)> {
    let names: BTreeSet<String> = pod.spec().image_pull_secrets.iter().flatten().map(|r| r.name.clone()).collect();
    let (mut keyring, mut left_out) = (Keyring::of(image.family()), Vec::new());
    for name in names {
        let only = BTreeSet::from([name.clone()]);
        let found = machine.objects.sources(held, pod, &BTreeSet::new(), &only).await.unwrap_or_default();
        let pod = pod.full_name();
        // It may be a megabyte.
        let add = move || {
            let refused = add_or_refuse(&pod, &mut keyring, &name, found.secrets.get(&name).map(|secret| &**secret));
            (keyring, refused)
        };
        let Ok((added, refused)) = disk::work(add).await else { return Vec::new() };
        keyring = added;
        left_out.extend(refused);
    }
    if !left_out.is_empty() {
        progress(PullProgress::LeftOut(left_out));
    }
    keyring.fitting()
}

/// Forwards progress, but reports skipped secrets only once.
fn once_left_out(progress: &(dyn Fn(PullProgress) + Send + Sync)) -> impl Fn(PullProgress) + Send + Sync {
    let told = AtomicBool::new(false);
    move |happened| {
        if !(matches!(happened, PullProgress::LeftOut(_)) && told.swap(true, Ordering::Relaxed)) {
            progress(happened);
        }
    }
}

/// Adds what of a Secret fits; or says that it is left out, to whoever may see the Pod, and nothing of what is in it.
fn add_or_refuse(pod: &str, keyring: &mut Keyring, name: &str, secret: Option<&Secret>) -> Option<String> {
    let (told, why) = match secret.map(|secret| add(keyring, secret)) {
        Some(Ok(())) => return None,
        Some(Err(error)) => (format!("{name}: {}", keyring.refusal(&error)), error.to_string()),
        // As upstream, which knows no other reason.
        None => (name.to_owned(), "not found".to_owned()),
    };
    tracing::warn!(pod, secret = name, why, "ignoring an image pull secret");
    Some(told)
}

fn add(keyring: &mut Keyring, secret: &Secret) -> Result<(), ImageError> {
    let own = |text: &Option<String>| text.clone().unwrap_or_default();
    let meta = &secret.metadata;
    let known = SecretRef { uid: own(&meta.uid), namespace: own(&meta.namespace), name: own(&meta.name) };
    let data = |key: &str| secret.data.as_ref().and_then(|d| d.get(key)).map(|b| b.0.as_slice());
    if let Some(json) = data(".dockerconfigjson") {
        return keyring.add_docker_config_json(json, &known);
    }
    match data(".dockercfg") {
        Some(json) => keyring.add_dockercfg(json, &known),
        None => Err(ImageError::Invalid("it holds no docker config".to_owned())),
    }
}

/// The layers that containers of this node use, even if their images lost their names. The caller holds the
/// [turn](super::image_gc::ImageGc::turn) if it deletes others. If a container's layers are unknown, all are considered in use.
pub async fn layers_in_use(runtime: &Runtime, store: &ImageStore) -> HashSet<PathBuf> {
    let sandboxes = runtime.list().await;
    let mut living = sandboxes.iter().flat_map(|s| &s.containers).filter(|c| c.exit.is_none());
    if !runtime.lost().is_empty() || living.any(|c| !c.labels.contains_key(labels::LAYERS)) {
        let all = std::fs::read_dir(store.root().join("layers")).into_iter().flatten().flatten();
        return all.map(|layer| layer.path().join("fs")).collect();
    }
    let labels = sandboxes.iter().flat_map(|s| &s.containers).filter_map(|c| c.labels.get(labels::LAYERS));
    labels.flat_map(|layers| layers.lines()).map(PathBuf::from).collect()
}

/// Deletes what was still in use when its image was removed and no longer is, and leftovers of failed imports and pulls.
///
/// # Errors
///
/// Part of it remains.
pub async fn collect(runtime: &Runtime, store: &ImageStore, image_gc: &ImageGc) -> Result<(), Error> {
    let turn = image_gc.turn().await;
    if !turn.take() {
        return Ok(());
    }
    collect_now(runtime, store, image_gc).await
}

/// The same in the background: there may be millions of files.
pub fn collect_soon(machine: &Machine) {
    let (runtime, store, image_gc) = (machine.runtime.clone(), machine.images.clone(), machine.image_gc.clone());
    tokio::spawn(async move {
        if let Err(error) = collect(&runtime, &store, &image_gc).await {
            tracing::warn!(%error, "failed to remove the layers of removed images");
        }
    });
}

/// Frees space on a full disk: deletes what belongs to no image, even if nothing was recorded, then unused images until there is
/// enough space.
///
/// # Errors
///
/// Something could not be deleted. Remaining too full is not an error.
pub async fn reclaim(machine: &Machine, thresholds: &Thresholds) -> Result<(), Error> {
    let turn = machine.image_gc.turn().await;
    turn.take();
    collect_now(&machine.runtime, &machine.images, &machine.image_gc).await?;
    let in_use = layers_in_use(&machine.runtime, &machine.images).await;
    let store = machine.images.clone();
    let (pods, images) = (machine.volumes.root().to_owned(), machine.images.root().to_owned());
    let thresholds = thresholds.clone();
    let removal = tokio::task::spawn_blocking(move || {
        store.remove_unused(&in_use, MIN_AGE, || !pressure::images_help(&thresholds, &disks_of(&pods, &images)))
    });
    let removed = removal.await.map_err(|e| Error::Panicked(e.to_string()))??;
    machine.image_gc.may_be(!removed.in_use.is_empty());
    if !removed.names.is_empty() {
        tracing::info!(images = ?removed.names, "removed unused images to free disk space");
    }
    Ok(())
}

/// The caller holds the [turn](super::image_gc::ImageGc::turn).
async fn collect_now(runtime: &Runtime, store: &ImageStore, image_gc: &ImageGc) -> Result<(), Error> {
    let (in_use, store) = (layers_in_use(runtime, store).await, store.clone());
    let collected = tokio::task::spawn_blocking(move || store.collect(&in_use)).await;
    let collected = collected.map_err(|e| Error::Panicked(e.to_string()))?;
    image_gc.may_be(!collected.as_ref().is_ok_and(|removed| removed.in_use.is_empty()));
    collected.map(drop).map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn what_is_left_out_is_told_once_a_pull() {
        let told = std::sync::Mutex::new(Vec::new());
        let all = |happened: PullProgress| {
            let what = match happened {
                PullProgress::Pulling => "pulling".to_owned(),
                PullProgress::LeftOut(secrets) => secrets.join(", "),
            };
            told.lock().unwrap().push(what);
        };
        for _ in 0..2 {
            let progress = once_left_out(&all);
            ["a", "b"].iter().for_each(|name| progress(PullProgress::LeftOut(vec![(*name).to_owned()])));
            progress(PullProgress::Pulling);
        }
        assert_eq!(*told.lock().unwrap(), ["a", "pulling", "a", "pulling"]);
    }

    #[test]
    fn what_is_left_out_of_pull_secrets_is_told_without_what_is_in_it() {
        let secret = |config: String| Secret {
            data: Some([(".dockerconfigjson".to_owned(), ByteString(config.into_bytes()))].into()),
            ..Secret::default()
        };
        let entry = |n: usize| format!(r#""r.io/{}":{{"username":"u","password":"hunter2"}}"#, "x/".repeat(n));
        let all = |many| format!(r#"{{"auths":{{{}}}}}"#, (0..many).map(entry).collect::<Vec<_>>().join(","));
        let image = ImageName::parse(&format!("r.io/{}y:1", "x/".repeat(20))).unwrap();
        let (good, again) = (secret(all(3)), secret(all(1)));
        let damaged = secret(r#"{"auths":{"r.io":{"username":"u","password":["hunter2"]}}}"#.to_owned());
        let long = secret(format!(r#"{{"auths":{{"r.io":{{"registrytoken":"{}"}}}}}}"#, "t".repeat(2 << 20)));
        let empty = Secret::default();
        let secrets = [
            ("good", Some(&good)),
            ("again", Some(&again)),
            ("missing", None),
            ("damaged", Some(&damaged)),
            ("long", Some(&long)),
            ("empty", Some(&empty)),
        ];
        let mut keyring = Keyring::of(image.family());
        let add = |(name, secret)| add_or_refuse("default/pod", &mut keyring, name, secret);
        let left_out: Vec<String> = secrets.into_iter().filter_map(add).collect();
        assert_eq!(keyring.fitting().len(), 4);
        let family = image.family();
        let expected = [
            "missing".to_owned(),
            "damaged: it holds no valid docker config".to_owned(),
            format!("long: more than 1000 credentials for {family}, or 1048576 bytes of them"),
            "empty: it holds no valid docker config".to_owned(),
        ];
        assert_eq!(left_out, expected);
        assert_eq!(
            crate::events::left_out(&["a".to_owned(), "b".to_owned()]),
            "Unable to retrieve some image pull secrets (a, b); attempting to pull the image may not succeed."
        );
    }
}
