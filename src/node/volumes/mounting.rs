//! From `volumeMounts` to bind mounts, and from `volumeDevices` to devices.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Pod, Volume, VolumeMount};
use podwright_runtime::{JournalWriter, sys::Kernel};

use super::{
    DEEPEST, Volumes,
    kinds::{Measured, is_read_only, measured},
    subpath,
};
use crate::{
    executor::{ActionError, Reason},
    spec::{ContainerRef, PodExt},
    translate::{Device, Mounted, env::Env, expand},
};

impl Volumes {
    /// The devices of one container that are volumes of the Pod.
    ///
    /// # Errors
    ///
    /// `CreateContainerConfigError`: one is not a volume of the Pod, or not a block device.
    pub fn devices(&self, pod: &Pod, part: &ContainerRef<'_>) -> Result<Vec<Device>, ActionError> {
        let mut devices = Vec::new();
        for wanted in part.container.volume_devices.iter().flatten() {
            let volume = pod.spec().volumes.iter().flatten().find(|volume| volume.name == wanted.name);
            let found = volume.map(|volume| (fs::metadata(self.path(pod, volume)), is_read_only(volume)));
            let found = found.and_then(|(found, read_only)| Some((found.ok()?, read_only)));
            let Some((found, read_only)) = found.filter(|(found, _)| found.file_type().is_block_device()) else {
                let why = format!("cannot find volume \"{}\" to map into container \"{}\"", wanted.name, part.name());
                return Err(ActionError::new(Reason::CreateContainerConfigError, why));
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

    /// The bind mounts of one container, in the manifest's order. `env` is for `subPathExpr`; those created here are recorded in
    /// `journal`. Blocks.
    ///
    /// # Errors
    ///
    /// `CreateContainerConfigError`: one is not a volume of the Pod, or its `subPath` cannot be resolved in it.
    pub fn mounts(
        &self,
        pod: &Pod,
        part: &ContainerRef<'_>,
        env: &Env,
        journal: &JournalWriter,
    ) -> Result<Vec<Mounted>, ActionError> {
        let mut mounts = Vec::new();
        for (index, mount) in part.container.volume_mounts.iter().flatten().enumerate() {
            let find = |v: &&Volume| v.name == mount.name;
            let Some(volume) = pod.spec().volumes.iter().flatten().find(find) else {
                let why = format!("cannot find volume \"{}\" to mount into container \"{}\"", mount.name, part.name());
                return Err(ActionError::new(Reason::CreateContainerConfigError, why));
            };
            let mut source = self.path(pod, volume);
            if let Some(sub) = sub_path(mount, env)? {
                let depth = Path::new(&sub).iter().count();
                if depth > DEEPEST {
                    let why = format!(
                        "subPath for volumeMount \"{}\" of container \"{}\": {depth} elements, more than {DEEPEST}",
                        mount.name,
                        part.name()
                    );
                    return Err(ActionError::new(Reason::CreateContainerConfigError, why));
                }
                let target = self.sub_path(pod, part, index);
                let kernel = Kernel::new(&journal.at(&format!("{}.volumeMounts[{index}].subPath", part.path())));
                subpath::bind(&kernel, &source, &sub, &target).map_err(|e| {
                    let why = format!(
                        "failed to prepare subPath for volumeMount \"{}\" of container \"{}\": {e}",
                        mount.name,
                        part.name()
                    );
                    ActionError::new(Reason::CreateContainerConfigError, why)
                })?;
                source = target;
            }
            mounts.push(Mounted { source, destination: absolute(&mount.mount_path), options: options(mount, volume) });
        }
        Ok(mounts)
    }

    /// Where parts of a Pod's volumes that count as its disk usage may be bound for one container: a file there may have been
    /// unlinked since.
    pub fn sub_paths(&self, pod: &Pod, part: &ContainerRef<'_>) -> impl Iterator<Item = PathBuf> {
        let on_disk = |name: &str| {
            let mut found = pod.spec().volumes.iter().flatten().filter(|volume| volume.name == name);
            found.any(|volume| measured(volume) == Measured::Disk)
        };
        let mounts = part.container.volume_mounts.iter().flatten().enumerate();
        mounts.filter(move |(_, mount)| on_disk(&mount.name)).map(|(index, _)| self.sub_path(pod, part, index))
    }

    fn sub_path(&self, pod: &Pod, part: &ContainerRef<'_>, index: usize) -> PathBuf {
        self.folder(pod).join("subpaths").join(part.name()).join(index.to_string())
    }
}

fn sub_path(mount: &VolumeMount, env: &Env) -> Result<Option<String>, ActionError> {
    if let Some(expression) = mount.sub_path_expr.as_deref().filter(|s| !s.is_empty()) {
        let missing = std::cell::Cell::new(false);
        let expanded = expand(expression, |name| {
            missing.set(missing.get() || env.get(name).is_none());
            env.get(name)
        });
        let expanded = expanded.map_err(|why| ActionError::new(Reason::CreateContainerConfigError, why))?;
        return match missing.get() {
            true => {
                Err(ActionError::new(Reason::CreateContainerConfigError, format!("missing value for \"{expression}\"")))
            }
            false => Ok(Some(expanded)),
        };
    }
    Ok(mount.sub_path.clone().filter(|s| !s.is_empty()))
}

/// A mount path without a leading slash is relative to the root.
fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn options(mount: &VolumeMount, volume: &Volume) -> Vec<String> {
    let read_only = is_read_only(volume) || mount.read_only == Some(true);
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
