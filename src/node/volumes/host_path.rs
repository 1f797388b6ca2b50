//! hostPath volumes: what must be there, or is made.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt},
    path::Path,
};

use podwright_runtime::sys::shared;

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
