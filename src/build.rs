//! The build script: has the linker make small programs.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=src/build.rs");
    let out = env::var("OUT_DIR").expect("cargo names a folder for what is made");
    link_small(Path::new(&out));
}

/// What makes the programs smaller, where the linker and the C library have it. So each is tried.
const LINKER: &[&str] = &[
    // One of those functions that came out identical; generic code leaves many.
    "-Wl,--icf=all",
    // Relocations as a bitmap; glibc reads it from 2.36 on.
    "-Wl,-z,pack-relative-relocs",
];

/// Passes on what of `LINKER` makes a program that runs.
fn link_small(out: &Path) {
    let [source, program] = ["empty.rs", "empty"].map(|name| out.join(name));
    fs::write(&source, "fn main() {}").expect("the folder takes files");
    let var = |name| env::var_os(name).unwrap_or_default();
    for flag in LINKER {
        let mut rustc = Command::new(var("RUSTC"));
        rustc.arg(&source).arg("-o").arg(&program).arg(format!("-Clink-arg={flag}")).arg("--target").arg(var("TARGET"));
        if let Some(linker) = env::var_os("RUSTC_LINKER") {
            let mut chosen = OsString::from("-Clinker=");
            chosen.push(linker);
            rustc.arg(chosen);
        }
        let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
        rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
        let works = |command: &mut Command| {
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        if works(&mut rustc) && works(&mut Command::new(&program)) {
            println!("cargo:rustc-link-arg-bins={flag}");
        }
    }
    // It has done its duty.
    fs::remove_file(program).ok();
}
