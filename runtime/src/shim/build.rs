//! Builds `pause` (a program of about a kilobyte) so that the shim can embed it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=pause.rs");
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("pause");
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-name", "pause", "--crate-type", "bin", "pause.rs"]);
    command.args(["-C", "panic=abort", "-C", "opt-level=s", "-C", "strip=symbols", "-C", "relocation-model=static"]);
    for link in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-n", "-Wl,-z,norelro"]
    {
        command.args(["-C", &format!("link-arg={link}")]);
    }
    command.args(["--target", &env::var("TARGET").expect("cargo sets TARGET")]).arg("-o").arg(&out);
    let status = command.status().expect("rustc runs");
    assert!(status.success(), "pause did not build");
}
