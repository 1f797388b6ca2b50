//! The process that holds one sandbox. All of it is in the library: see `podwright_runtime::shim`.
//!
//! To be linked statically for use (then 170 kB of memory a Pod, `pause` included; nothing of it depends on the host):
//! `cargo rustc --release -p podwright-runtime --bin podwright-shim -- -C target-feature=+crt-static -C relocation-model=static`.
//! A plain `cargo build` gives a dynamic one, which works too.

fn main() -> std::process::ExitCode {
    podwright_runtime::shim::main()
}
