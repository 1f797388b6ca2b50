//! The folders of a node, and the paths of a Pod's logs in them.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::removals::{Owner, Removals};

use super::{
    Machine,
    error::{Error, Result, call},
};
use crate::spec::PodExt;

/// The longest file name on Linux.
const LONGEST: usize = 255;

/// Where a machine keeps its data.
#[derive(Clone, Debug)]
pub struct Places {
    /// `<logs>/<namespace>_<name>_<uid>/<container>/<restart>.log`
    pub logs: PathBuf,
    /// `<journals>/<uid>`, in memory.
    pub journals: PathBuf,
    /// Whether kernel operations are recorded there.
    pub journal: bool,
    /// `Localhost` seccomp profiles.
    pub seccomp: PathBuf,
    /// The node's own resolv.conf.
    pub resolv_conf: PathBuf,
    /// The node's network namespace, if it has its own.
    pub network: Option<PathBuf>,
}

impl Machine {
    /// Has upstream's name, which log readers parse. With a long Pod name no file system accepts it.
    pub fn log_dir(&self, pod: &Pod) -> PathBuf {
        self.places.logs.join(format!("{}_{}_{}", pod.namespace(), pod.name(), pod.uid()))
    }

    pub fn log(&self, pod: &Pod, container: &str, restart: u32) -> PathBuf {
        self.log_dir(pod).join(container).join(format!("{restart}.log"))
    }
}

fn is_too_long(logs: &Path) -> bool {
    logs.file_name().is_some_and(|name| name.len() > LONGEST)
}

/// Checks that a Pod's log folder can exist.
///
/// # Errors
///
/// Its name is too long.
pub fn check(logs: &Path) -> Result<()> {
    if is_too_long(logs) { Err(Error::NameTooLong(logs.to_owned())) } else { Ok(()) }
}

/// Moves a Pod's logs aside, if there can be any.
///
/// # Errors
///
/// They are still there.
pub fn remove_logs(logs: &Path, removals: &Removals, owner: &Owner) -> Result<()> {
    if is_too_long(logs) { Ok(()) } else { removals.put_aside(logs, owner).map_err(call("rename", logs)) }
}
