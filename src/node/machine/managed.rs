//! The files that the agent writes for containers: hosts, resolv.conf, hostname and the termination log. The containers own them.

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
    error::{Error, Result},
    places::Places,
};
use crate::{
    executor::{ActionError, Reason, StartOrder},
    spec::{ContainerRef, PodExt},
    translate::{
        Mounted,
        files::{self, Names},
    },
};

/// Legitimate hosts and resolv.conf files are smaller.
const MOST: usize = 1 << 20;

/// One of them.
struct Managed {
    destination: String,
    source: PathBuf,
    text: String,
    /// Writable for any user of the container.
    open: bool,
}

/// Writes these files into the Pod's folder for one start of a container; returns their mounts. Blocks.
///
/// # Errors
///
/// `CreateContainerError`: a file cannot be written, or its source cannot be read.
pub fn files(
    places: &Places,
    names: &Names,
    folder: &Path,
    pod: &Pod,
    part: &ContainerRef<'_>,
    order: &StartOrder,
) -> std::result::Result<Vec<Mounted>, ActionError> {
    let failed = |why: Error| ActionError::new(Reason::CreateContainerError, why);
    let resolv_conf = of_host(&places.resolv_conf).map_err(failed)?;
    let hosts = match pod.host_network() {
        true => files::host_hosts(pod, &of_host(Path::new("/etc/hosts")).map_err(failed)?),
        false => files::hosts(pod, &names.domain, &order.ips),
    };
    let files = planned(names, folder, pod, part, order, &resolv_conf, hosts);
    files.iter().try_for_each(Managed::write).map_err(failed)?;
    Ok(files.iter().map(|file| Mounted::bind(file.source.clone(), &file.destination, false)).collect())
}

/// The current content of a host's file: a Pod gets the DNS servers at its start. Empty if the file is missing.
fn of_host(path: &Path) -> Result<String> {
    match shared::read_linked(path, MOST) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(Error::File { path: path.to_owned(), source }),
        Ok(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
}

/// The files to write, except those the container mounts something over.
fn planned(
    names: &Names,
    folder: &Path,
    pod: &Pod,
    part: &ContainerRef<'_>,
    order: &StartOrder,
    resolv_conf: &str,
    hosts: String,
) -> Vec<Managed> {
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
        file("/etc/resolv.conf", folder.join("resolv.conf"), files::resolv_conf(pod, names, resolv_conf), false),
        file("/etc/hostname", folder.join("hostname"), format!("{}\n", files::hostname(pod, &names.domain)), false),
        file(message_path, message, String::new(), true),
    ];
    let mounts = part.container.volume_mounts.iter().flatten();
    let taken: BTreeSet<&str> = mounts.map(|mount| mount.mount_path.trim_end_matches('/')).collect();
    files.retain(|file| !taken.contains(file.destination.as_str()));
    files
}

impl Managed {
    /// Running containers have the file mounted: it is updated in place, and only if its content differs.
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
