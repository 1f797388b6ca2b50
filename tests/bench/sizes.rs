//! How large the binaries are, without debug information.

use std::{path::Path, process::Command};

use crate::report;

pub fn binaries() {
    let dir = tempfile::tempdir().unwrap();
    let main = Path::new(env!("CARGO_BIN_EXE_podwright"));
    let mut total = 0;
    for binary in [main.to_owned(), main.with_file_name("podwright-shim")] {
        let stripped = dir.path().join(binary.file_name().unwrap());
        let done = Command::new("strip").arg("-o").arg(&stripped).arg(&binary).status();
        if done.is_ok_and(|s| s.success()) {
            total += std::fs::metadata(&stripped).unwrap().len();
        }
    }
    let mib = total as f64 / f64::from(1 << 20);
    report("binaries, stripped", format!("{mib:.1} MiB"), "<= 45 MiB together", mib <= 45.0);
}
