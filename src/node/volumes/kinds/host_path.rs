//! hostPath volumes: checks the path's type, or creates it.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Volume;
use podwright_runtime::sys::shared;

use super::{
    super::error::{Result, VolumeError, call},
    Location, Order, Row, SetUp, never, no_objects, nothing,
};

pub const ROW: Row = Row {
    field: "hostPath",
    is: |volume| volume.host_path.is_some(),
    location: Location::Host(path),
    set_up: SetUp::Once(set_up),
    measured: nothing,
    refers_to: no_objects,
    shows_pod: never,
    read_only: never,
    scratch: false,
    unsupported: &[],
};

fn path(volume: &Volume) -> PathBuf {
    volume.host_path.as_ref().map(|source| PathBuf::from(&source.path)).unwrap_or_default()
}

fn set_up(order: &Order) -> Result<()> {
    let kind = order.volume.host_path.as_ref().and_then(|source| source.type_.as_deref()).unwrap_or_default();
    check(&order.path, kind)
}

/// Checks a host path against its type, in upstream's words; the `OrCreate` types create what is missing.
///
/// # Errors
///
/// It has another type, the type is unknown, or what is missing cannot be created.
pub fn check(path: &Path, kind: &str) -> Result<()> {
    let found = fs::metadata(path).map(|m| m.file_type()).ok();
    let failed = |wanted| Err(VolumeError::HostPathType { path: path.to_owned(), wanted });
    match (kind, found) {
        ("", _) => Ok(()),
        ("DirectoryOrCreate", None) => {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(call("mkdir", path))
        }
        ("FileOrCreate", None) => shared::create(path, 0o644).map(drop).map_err(call("open", path)),
        ("Directory" | "DirectoryOrCreate", Some(t)) if t.is_dir() => Ok(()),
        ("File" | "FileOrCreate", Some(t)) if t.is_file() => Ok(()),
        ("Socket", Some(t)) if t.is_socket() => Ok(()),
        ("CharDevice", Some(t)) if t.is_char_device() => Ok(()),
        ("BlockDevice", Some(t)) if t.is_block_device() => Ok(()),
        ("Directory" | "DirectoryOrCreate", _) => failed("a directory"),
        ("File" | "FileOrCreate", _) => failed("a file"),
        ("Socket", _) => failed("a socket file"),
        ("CharDevice", _) => failed("a character device"),
        ("BlockDevice", _) => failed("a block device"),
        (other, _) => Err(VolumeError::UnknownHostPathType(other.to_owned())),
    }
}
