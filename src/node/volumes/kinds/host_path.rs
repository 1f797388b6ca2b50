//! hostPath volumes: what must be there, or is made.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Volume;
use podwright_runtime::sys::shared;

use super::{Location, Order, Row, SetUp, never, no_objects, nothing};

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

fn set_up(order: &Order) -> Result<(), String> {
    let kind = order.volume.host_path.as_ref().and_then(|source| source.type_.as_deref()).unwrap_or_default();
    check(&order.path, kind)
}

/// Checks a host path against its type, in upstream's words; the `OrCreate` types make what is missing.
pub fn check(path: &Path, kind: &str) -> Result<(), String> {
    let found = fs::metadata(path).map(|m| m.file_type()).ok();
    let shown = path.display();
    let failed = |what: &str| Err(format!("hostPath type check failed: {shown} is not {what}"));
    match (kind, found) {
        ("", _) => Ok(()),
        ("DirectoryOrCreate", None) => {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|e| format!("mkdir {shown}: {e}"))
        }
        ("FileOrCreate", None) => shared::create(path, 0o644).map(drop).map_err(|e| format!("open {shown}: {e}")),
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
        (other, _) => Err(format!("{other} is an invalid volume type")),
    }
}
