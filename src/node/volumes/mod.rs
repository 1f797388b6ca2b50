//! Volumes: from `spec.volumes` to folders on the host, and from `volumeMounts` to bind mounts.
//!
//! ```text
//!   <state>/pods/<uid>/volumes/<name>                 emptyDir, configMap; of a claim a link to where its volume is
//!   <run>/volumes/<uid>/<name>                        secret, projected, downwardAPI: one tmpfs a node
//!   <state>/pods/<uid>/subpaths/<container>/<index>   what a subPath resolved to, bound there
//! ```

pub mod atomic;
pub mod claims;
mod host_path;
pub mod ownership;
pub mod payload;
mod subpath;
mod tokens;

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume, VolumeMount};
use podwright_runtime::sys::tree::remove_all;

use super::{
    executor::Trouble,
    mounts,
    objects::Objects,
    qos,
    spec::{Part, PodExt},
    translate::{
        Device, Mounted,
        env::{Env, Facts, Sources},
        expand,
    },
};
use crate::api::{Env as World, persistent_volume};
use atomic::{File, Payload};
pub use tokens::Tokens;

pub struct Volumes {
    /// `<state>/pods`
    pods: PathBuf,
    /// `<run>/volumes`, a tmpfs.
    memory: PathBuf,
    objects: Arc<Objects>,
    tokens: Tokens,
    world: World,
    /// Held while a Pod takes a volume that may be for one alone.
    taking: Mutex<()>,
}

fn mount_error(volume: &str, why: impl std::fmt::Display) -> Trouble {
    Trouble::new("FailedMount", format!("MountVolume.SetUp failed for volume \"{volume}\" : {why}"))
}

impl Volumes {
    /// `memory` becomes a tmpfs, unless it is one already.
    pub fn open(
        pods: PathBuf,
        memory: PathBuf,
        objects: Arc<Objects>,
        tokens: Tokens,
        world: World,
    ) -> io::Result<Volumes> {
        fs::create_dir_all(&pods)?;
        mounts::keep_in_memory(&memory)?;
        Ok(Volumes { pods, memory, objects, tokens, world, taking: Mutex::default() })
    }

    pub fn folder(&self, pod: &Pod) -> PathBuf {
        self.pods.join(pod.uid())
    }

    /// The folder of all Pods' folders.
    pub fn root(&self) -> &Path {
        &self.pods
    }

    /// Where a volume of the Pod is on the host.
    fn path(&self, pod: &Pod, volume: &Volume) -> PathBuf {
        if let Some(host) = &volume.host_path {
            return PathBuf::from(&host.path);
        }
        if volume.secret.is_some() || volume.projected.is_some() || volume.downward_api.is_some() {
            return self.memory.join(pod.uid()).join(&volume.name);
        }
        let own = self.folder(pod).join("volumes").join(&volume.name);
        fs::read_link(&own).unwrap_or(own)
    }

    /// Makes all volumes of the Pod. What exists already stays as it is.
    pub async fn prepare(&self, pod: &Arc<Pod>, facts: &Facts) -> Result<(), Trouble> {
        for volume in pod.spec().volumes.iter().flatten() {
            match persistent_volume::used(pod, volume) {
                Some(used) => self.prepare_claim(pod, volume, &used).await?,
                None => self.prepare_one(pod, volume, facts).await.map_err(|why| mount_error(&volume.name, why))?,
            }
        }
        Ok(())
    }

    /// Makes the link to where the volume of a claim is.
    ///
    /// 1. see that the claim has one, 2. see what it is here, 3. see that it is there, 4. give it to the Pod's group, 5. link.
    async fn prepare_claim(&self, pod: &Pod, volume: &Volume, used: &persistent_volume::Used) -> Result<(), Trouble> {
        let link = self.folder(pod).join("volumes").join(&volume.name);
        if fs::metadata(&link).is_ok() {
            return Ok(());
        }
        let unprocessed = |why: String| claims::unprocessed(&volume.name, why);
        let claim = self.objects.claim(pod, &used.name).await.map_err(unprocessed)?;
        let name = claims::bound(pod, used, &claim).map_err(unprocessed)?;
        let (found, node) = self.objects.volume(name, pod.spec().node_name.as_deref()).await.map_err(unprocessed)?;
        let place = claims::place(pod, volume, &claim, &found, node.as_ref())?;
        place.check()?;
        let failed = |why: io::Error| mount_error(&place.volume, format!("{}: {why}", place.path.display()));
        let is_taken = || match claims::is_taken(&self.pods, &self.folder(pod), &place.path) {
            true if place.alone => {
                let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
                Err(unprocessed(why.to_owned()))
            }
            taken => Ok(taken),
        };
        // As upstream: whoever has it first says whose it is, unless for reading alone.
        if !is_taken()? && !is_read_only(volume) {
            self.own(pod, &place).await.map_err(failed)?;
        }
        // What a panic left behind is sound: a link is made at once or not at all.
        let _taking = self.taking.lock().unwrap_or_else(|p| p.into_inner());
        is_taken()?;
        // One to what is not there any more, as after a boot, is made anew.
        fs::remove_file(&link).ok();
        fs::create_dir_all(link.parent().unwrap_or(&link)).and_then(|()| symlink(&place.path, &link)).map_err(failed)
    }

    /// Gives a volume to the group that the Pod names. Paths of the host stay as they are.
    async fn own(&self, pod: &Pod, place: &claims::Place) -> io::Result<()> {
        let Some(group) = fs_group(pod).filter(|_| place.kind == claims::Kind::Local && !place.block) else {
            return Ok(());
        };
        let context = pod.spec().security_context.as_ref();
        let on_mismatch = context.and_then(|c| c.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
        let path = place.path.clone();
        let given = tokio::task::spawn_blocking(move || ownership::give(&path, group, on_mismatch));
        given.await.map_err(io::Error::other)?
    }

    /// The devices of one container that are volumes of the Pod.
    pub fn devices(&self, pod: &Pod, part: &Part<'_>) -> Result<Vec<Device>, Trouble> {
        let mut devices = Vec::new();
        for wanted in part.container.volume_devices.iter().flatten() {
            let volume = pod.spec().volumes.iter().flatten().find(|volume| volume.name == wanted.name);
            let found = volume.map(|volume| (fs::metadata(self.path(pod, volume)), is_read_only(volume)));
            let found = found.and_then(|(found, read_only)| Some((found.ok()?, read_only)));
            let Some((found, read_only)) = found.filter(|(found, _)| claims::is_block_device(found.file_type())) else {
                let why = format!("cannot find volume \"{}\" to map into container \"{}\"", wanted.name, part.name());
                return Err(Trouble::new("CreateContainerConfigError", why));
            };
            devices.push(Device {
                path: wanted.device_path.clone(),
                number: found.rdev(),
                mode: found.mode() & 0o7777,
                uid: found.uid(),
                gid: found.gid(),
                read_only,
            });
        }
        Ok(devices)
    }

    async fn prepare_one(&self, pod: &Arc<Pod>, volume: &Volume, facts: &Facts) -> Result<(), String> {
        let path = self.path(pod, volume);
        let fs_group = fs_group(pod);
        if let Some(source) = &volume.empty_dir {
            return empty_dir(&path, source, pod, fs_group).map_err(|e| format!("{}: {e}", path.display()));
        }
        if let Some(source) = &volume.host_path {
            return host_path::check(&path, source.type_.as_deref().unwrap_or_default());
        }
        if let Some(payload) = self.payload(pod, volume, facts).await? {
            self.show(&path, payload, fs_group)?;
            return Ok(());
        }
        Err("this kind of volume is not supported by this node".to_owned())
    }

    fn show(&self, path: &Path, payload: Payload, fs_group: Option<u32>) -> Result<bool, String> {
        atomic::write(path, &payload, fs_group, self.world.now()).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Brings the volumes that show API objects up to date. An object that has gone leaves its files as they are.
    pub async fn refresh(&self, pod: &Arc<Pod>, facts: &Facts) -> Result<(), Trouble> {
        for volume in pod.spec().volumes.iter().flatten() {
            match self.payload(pod, volume, facts).await {
                Ok(Some(payload)) => {
                    let path = self.path(pod, volume);
                    self.show(&path, payload, fs_group(pod)).map_err(|why| mount_error(&volume.name, why))?;
                }
                Ok(None) => {}
                Err(why) => return Err(mount_error(&volume.name, why)),
            }
        }
        Ok(())
    }

    /// The files of a volume that is made of API objects; `None` for the other kinds.
    async fn payload(&self, pod: &Arc<Pod>, volume: &Volume, facts: &Facts) -> Result<Option<Payload>, String> {
        if let Some(s) = &volume.config_map {
            let sources = self.objects.sources(pod, &BTreeSet::from([s.name.clone()]), &BTreeSet::new()).await?;
            return payload::config_map(&sources, &s.name, s.items.as_deref(), s.default_mode, s.optional).map(Some);
        }
        if let Some(s) = &volume.secret {
            let name = s.secret_name.clone().unwrap_or_default();
            let sources = self.objects.sources(pod, &BTreeSet::new(), &BTreeSet::from([name.clone()])).await?;
            return payload::secret(&sources, &name, s.items.as_deref(), s.default_mode, s.optional).map(Some);
        }
        if let Some(s) = &volume.downward_api {
            return payload::downward(pod, facts, s.items.as_deref(), s.default_mode).map(Some);
        }
        let Some(projected) = &volume.projected else { return Ok(None) };
        let mut all = Payload::new();
        for source in projected.sources.iter().flatten() {
            let maps = source.config_map.iter().map(|s| s.name.clone()).collect();
            let secrets = source.secret.iter().map(|s| s.name.clone()).collect();
            let sources = match source.config_map.is_some() || source.secret.is_some() {
                true => self.objects.sources(pod, &maps, &secrets).await?,
                false => Sources::default(),
            };
            all.extend(payload::projection(pod, &sources, facts, source, projected.default_mode)?);
            if let Some(token) = &source.service_account_token {
                let user = common_user(pod);
                let private = user.is_some() || fs_group(pod).is_some();
                let mode = if private { 0o600 } else { projected.default_mode.unwrap_or(0o644) as u32 };
                let data = self.tokens.get(pod, token).await?.into_bytes();
                all.insert(PathBuf::from(&token.path), File { data, mode, uid: user });
            }
        }
        Ok(Some(all))
    }

    /// The bind mounts of one container, in the manifest's order. `env` is for `subPathExpr`.
    pub fn mounts(&self, pod: &Pod, part: &Part<'_>, env: &Env) -> Result<Vec<Mounted>, Trouble> {
        let mut mounts = Vec::new();
        for (index, mount) in part.container.volume_mounts.iter().flatten().enumerate() {
            let find = |v: &&Volume| v.name == mount.name;
            let Some(volume) = pod.spec().volumes.iter().flatten().find(find) else {
                let why = format!("cannot find volume \"{}\" to mount into container \"{}\"", mount.name, part.name());
                return Err(Trouble::new("CreateContainerConfigError", why));
            };
            let mut source = self.path(pod, volume);
            if let Some(sub) = sub_path(mount, env)? {
                let target = self.folder(pod).join("subpaths").join(part.name()).join(index.to_string());
                let bound = subpath::open_beneath(&source, &sub).and_then(|held| subpath::bind(&held, &target));
                bound.map_err(|e| {
                    let why = format!(
                        "failed to prepare subPath for volumeMount \"{}\" of container \"{}\": {e}",
                        mount.name,
                        part.name()
                    );
                    Trouble::new("CreateContainerConfigError", why)
                })?;
                source = target;
            }
            mounts.push(Mounted { source, destination: absolute(&mount.mount_path), options: options(mount, volume) });
        }
        Ok(mounts)
    }

    /// Takes away what is mounted for the Pod; its folders stay. All errors, in words.
    pub fn release(&self, pod: &Pod) -> Result<(), String> {
        let mut errors = Vec::new();
        let mut unmount = |path: PathBuf| {
            if let Err(e) = mounts::unmount(&path) {
                errors.push(format!("umount {}: {e}", path.display()));
            }
        };
        mounts::below(&self.folder(pod)).into_iter().rev().for_each(&mut unmount);
        for entry in fs::read_dir(self.folder(pod).join("volumes")).into_iter().flatten().flatten() {
            // Of a claim: whoever waits for its volume may have it now.
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                fs::remove_file(entry.path())
                    .unwrap_or_else(|e| errors.push(format!("{}: {e}", entry.path().display())));
            }
        }
        if let Err(e) = remove_dir(&self.memory.join(pod.uid())) {
            errors.push(e);
        }
        self.tokens.forget(pod.uid());
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    }

    /// Removes everything that the Pod has on disk.
    pub fn remove(&self, pod: &Pod) -> Result<(), String> {
        let released = self.release(pod);
        // While something is still mounted below it, its content is not ours to delete.
        if !mounts::below(&self.folder(pod)).is_empty() {
            return released;
        }
        released.and(remove_dir(&self.folder(pod)))
    }

    /// Takes the node's tmpfs away.
    pub fn close(&self) -> Result<(), String> {
        mounts::unmount(&self.memory).map_err(|e| format!("umount {}: {e}", self.memory.display()))
    }

    /// The uids that have folders here.
    pub fn owners(&self) -> BTreeSet<String> {
        let names = |dir: &Path| -> Vec<String> {
            fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
        };
        names(&self.pods).into_iter().chain(names(&self.memory)).collect()
    }

    /// The Pods whose tokens are old enough to be renewed.
    pub fn stale_tokens(&self) -> BTreeSet<String> {
        self.tokens.stale()
    }
}

fn remove_dir(path: &Path) -> Result<(), String> {
    remove_all(path).map_err(|e| format!("remove {}: {e}", path.display()))
}

fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec().security_context.as_ref().and_then(|c| c.fs_group).and_then(|g| u32::try_from(g).ok())
}

/// Whether a Pod uses its claim for reading alone.
fn is_read_only(volume: &Volume) -> bool {
    volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true))
}

/// The user that all containers run as, where the manifest says so for each.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|c| c.run_as_user);
    let parts = pod.parts();
    let mut users = parts.iter().map(|p| p.container.security_context.as_ref().and_then(|c| c.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then(|| u32::try_from(first).ok())?
}

fn empty_dir(path: &Path, source: &EmptyDirVolumeSource, pod: &Pod, fs_group: Option<u32>) -> io::Result<()> {
    let fresh = !path.exists();
    fs::create_dir_all(path)?;
    let medium = source.medium.as_deref().unwrap_or_default();
    if medium == "Memory" && !mounts::is_mount(path) {
        let limit = source.size_limit.as_ref().map(qos::units).filter(|l| *l > 0);
        let limit = limit.or(qos::pod_limit(pod, "memory").map(|m| m / 1000));
        let size = limit.map_or_else(
            || c"mode=0777".to_owned(),
            |l| {
                // The invariant: digits hold no NUL.
                std::ffi::CString::new(format!("mode=0777,size={l}")).expect("digits")
            },
        );
        rustix::mount::mount("tmpfs", path, "tmpfs", rustix::mount::MountFlags::empty(), Some(size.as_c_str()))?;
    } else if !medium.is_empty() && medium != "Memory" {
        return Err(io::Error::new(io::ErrorKind::Unsupported, format!("unknown storage medium \"{medium}\"")));
    } else if !fresh {
        return Ok(());
    }
    let mut mode = 0o777;
    if let Some(group) = fs_group {
        chown(path, None, Some(group))?;
        mode |= 0o2000;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn sub_path(mount: &VolumeMount, env: &Env) -> Result<Option<String>, Trouble> {
    if let Some(expression) = mount.sub_path_expr.as_deref().filter(|s| !s.is_empty()) {
        let missing = std::cell::Cell::new(false);
        let expanded = expand(expression, |name| {
            missing.set(missing.get() || env.get(name).is_none());
            env.get(name).map(str::to_owned)
        });
        return match missing.get() {
            true => Err(Trouble::new("CreateContainerConfigError", format!("missing value for \"{expression}\""))),
            false => Ok(Some(expanded)),
        };
    }
    Ok(mount.sub_path.clone().filter(|s| !s.is_empty()))
}

/// A mount path without a leading slash is meant from the root.
fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn options(mount: &VolumeMount, volume: &Volume) -> Vec<String> {
    let managed = volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some();
    let read_only = managed || is_read_only(volume) || mount.read_only == Some(true);
    let recursive = matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"));
    let mode = match (read_only, recursive) {
        (true, true) => "rro",
        (true, false) => "ro",
        (false, _) => "rw",
    };
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => "rslave",
        Some("Bidirectional") => "rshared",
        _ => "rprivate",
    };
    ["rbind", propagation, mode].map(str::to_owned).to_vec()
}
