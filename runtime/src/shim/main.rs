//! The process that holds one sandbox. Implemented in the library: see `podwright_shim`.
//!
//! Link it statically for production (170 kB of memory per Pod, including `pause`, and independent of the host): `cargo rustc
//! --release -p podwright-shim --bin podwright-shim -- -C target-feature=+crt-static -C relocation-model=static`. A plain `cargo
//! build` gives a dynamic one, which works too.

#![forbid(unsafe_code)]

/// Overwrites freed memory: arguments and environments pass through many buffers and copies, and must not remain readable in the
/// memory of a later child.
#[global_allocator]
static ALLOCATOR: zeroizing_alloc::ZeroAlloc<std::alloc::System> = zeroizing_alloc::ZeroAlloc(std::alloc::System);

fn main() -> std::process::ExitCode {
    podwright_shim::main()
}
