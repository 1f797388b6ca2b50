//! The process that holds one sandbox. All of it is in the library: see `podwright_shim`.
//!
//! To be linked statically for use (then 170 kB of memory a Pod, `pause` included; nothing of it depends on the host):
//! `cargo rustc --release -p podwright-shim --bin podwright-shim -- -C target-feature=+crt-static -C relocation-model=static`.
//! A plain `cargo build` gives a dynamic one, which works too.

#![forbid(unsafe_code)]

/// Overwrites what it frees: arguments and environments come through buffers and copies of many kinds, and none of them may be left
/// for whoever reads the memory of a later child.
#[global_allocator]
static ALLOCATOR: zeroizing_alloc::ZeroAlloc<std::alloc::System> = zeroizing_alloc::ZeroAlloc(std::alloc::System);

fn main() -> std::process::ExitCode {
    podwright_shim::main()
}
