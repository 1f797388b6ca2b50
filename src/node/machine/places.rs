//! The folders of a node, and where in them a Pod has its logs.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use podwright_runtime::removals::{Owner, Removals};

use super::{
    Machine,
    error::{Error, Result, call},
};
use crate::spec::PodExt;

/// The longest name that Linux's file systems take.
const LONGEST: usize = 255;

/// Where a machine keeps its things and what it says about itself.
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
    /// The node's network namespace, if it is not the process's own.
    pub network: Option<PathBuf>,
}

impl Machine {
    /// By upstream's name, which readers of logs take apart. That of a Pod with a long name no file system takes.
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

/// Whether there can be a Pod's folder of logs.
///
/// # Errors
///
/// Its name is too long.
pub fn check(logs: &Path) -> Result<()> {
    if is_too_long(logs) { Err(Error::NameTooLong(logs.to_owned())) } else { Ok(()) }
}

/// Puts a Pod's logs aside, where there can be any.
///
/// # Errors
///
/// They are still there.
pub fn remove_logs(logs: &Path, removals: &Removals, owner: &Owner) -> Result<()> {
    if is_too_long(logs) { Ok(()) } else { removals.put_aside(logs, owner).map_err(call("rename", logs)) }
}
