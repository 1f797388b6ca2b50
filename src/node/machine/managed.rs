//! The files that the agent makes for containers, which own them: hosts, resolv.conf, hostname and the termination log.

use std::{
    collections::BTreeSet,
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::sys::shared;

use super::{
    Machine,
    error::{Error, Result},
};
use crate::{
    disk,
    executor::{ActionError, Reason, StartOrder},
    spec::{ContainerRef, PodExt},
    translate::{Mounted, files},
};

/// No honest file of a host's names and servers is longer.
const MOST: usize = 1 << 20;

/// One of them.
struct Managed {
    destination: String,
    source: PathBuf,
    text: String,
    /// Any user of the container may write to it.
    open: bool,
}

/// Writes these files for one start of a container; how they are mounted.
///
/// # Errors
///
/// `CreateContainerError`: one cannot be written, or what it is made of cannot be read.
pub async fn files(
    machine: &Machine,
    pod: &Pod,
    part: &ContainerRef<'_>,
    order: &StartOrder,
) -> std::result::Result<Vec<Mounted>, ActionError> {
    let failed = |why: Error| ActionError::new(Reason::CreateContainerError, why);
    let (resolv_conf, etc_hosts) = (machine.places.resolv_conf.clone(), pod.host_network());
    let read = move || {
        Ok::<_, Error>((
            of_host(&resolv_conf)?,
            if etc_hosts { of_host(Path::new("/etc/hosts"))? } else { String::new() },
        ))
    };
    let (resolv_conf, etc_hosts) = disk::work(read).await.map_err(Error::Panicked).flatten().map_err(failed)?;
    let files = planned(machine, pod, part, order, &resolv_conf, &etc_hosts);
    let mounts = files.iter().map(|file| Mounted::bind(file.source.clone(), &file.destination, false)).collect();
    let written = disk::work(move || files.iter().try_for_each(Managed::write)).await;
    written.map_err(Error::Panicked).flatten().map_err(failed)?;
    Ok(mounts)
}

/// A file of the host as it is now: a Pod gets the servers of the day it starts. Empty where it was taken away.
fn of_host(path: &Path) -> Result<String> {
    match shared::read_linked(path, MOST) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(Error::File { path: path.to_owned(), source }),
        Ok(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
}

/// What is to be written, but for what the container mounts in its place.
fn planned(
    machine: &Machine,
    pod: &Pod,
    part: &ContainerRef<'_>,
    order: &StartOrder,
    resolv_conf: &str,
    etc_hosts: &str,
) -> Vec<Managed> {
    let folder = machine.volumes.folder(pod);
    let hosts = match pod.host_network() {
        true => files::host_hosts(pod, etc_hosts),
        false => files::hosts(pod, &machine.names.domain, &order.ips),
    };
    let message = folder.join("containers").join(part.name()).join(format!("{}.termination", order.restart));
    let message_path = part.container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
    let file = |destination: &str, source: PathBuf, text: String, open: bool| Managed {
        destination: destination.to_owned(),
        source,
        text,
        open,
    };
    let mut files = vec![
        file("/etc/hosts", folder.join("hosts"), hosts, false),
        file(
            "/etc/resolv.conf",
            folder.join("resolv.conf"),
            files::resolv_conf(pod, &machine.names, resolv_conf),
            false,
        ),
        file(
            "/etc/hostname",
            folder.join("hostname"),
            format!("{}\n", files::hostname(pod, &machine.names.domain)),
            false,
        ),
        file(message_path, message, String::new(), true),
    ];
    let mounts = part.container.volume_mounts.iter().flatten();
    let taken: BTreeSet<&str> = mounts.map(|mount| mount.mount_path.trim_end_matches('/')).collect();
    files.retain(|file| !taken.contains(file.destination.as_str()));
    files
}

impl Managed {
    /// Running containers have the file mounted: it changes in place, where it does not say so already.
    fn write(&self) -> Result<()> {
        let write = || -> io::Result<()> {
            if let Some(folder) = self.source.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let file = shared::write(&self.source, self.text.as_bytes())?;
            if self.open { file.set_permissions(Permissions::from_mode(0o666)) } else { Ok(()) }
        };
        write().map_err(|source| Error::File { path: self.source.clone(), source })
    }
}
