//! Sandboxes, containers and images built from Linux primitives. Independent of Kubernetes; its API is modelled on CRI.
//!
//! Three crates: `sys`, the door to the kernel; `shim`, above it; and this one, which the shim does not use.
//!
//! ```text
//!   Runtime (in the agent, async)                        podwright-shim (one per sandbox, outlives the agent)
//!   ------------------------------                       ------------------------------------------------------
//!   spec.rs         specifications and states    shim/lib.rs       one poll loop: connections, children, stdio
//!   compile.rs      OCI spec -> plan (pure)              shim/protocol.rs  the plan, and what carries it
//!   shim_client.rs  the connection to one shim   <====>  shim/child/       children between clone3 and exec
//!   records.rs      state kept across a crash          shim/stdio.rs     pumps output to logs and attached streams
//!   cgroup.rs       the tree, limits, statistics         shim/writer.rs    threads that may block on a disk
//!   devices.rs      device rules -> eBPF (pure)          shim/pause.rs     the sandbox holder, 1 kB, no libc
//!   sysctl.rs       which sysctls a sandbox may set      sys/              THE door: every system call, every `unsafe`
//!   removals.rs     removed data still on disk; owner.rs records its owner
//!   fair_pool.rs    fair queueing of disk work (`Line` is pure)
//!   app_armor/      the default profile, and the loaded ones
//! ```
//!
//! Reading order: [`spec`], [`Runtime`], then `protocol`, `shim`, `sys`.

#![forbid(unsafe_code)]

pub mod app_armor;
pub mod cgroup;
pub mod compile;
pub mod devices;
pub mod error;
pub mod facts;
pub mod fair_pool;
pub mod image;
pub mod inspect;
mod owner;
pub mod profile;
pub mod projects;
mod records;
pub mod removals;
pub mod runtime;
pub mod seccomp;
mod shim_client;
pub mod spec;
pub mod sysctl;
pub mod usage;

pub use error::{Error, Result};
pub use podwright_journal::{Cause, JournalWriter, Role};
pub use podwright_shim::protocol::{BIRTH, StartFailure};
pub use podwright_shim::{self as shim, protocol};
pub use podwright_sys::{self as sys, kept};
pub use profile::{
    all_capabilities, default_capabilities, default_devices, default_masked_paths, default_mounts,
    default_readonly_paths,
};
pub use runtime::{ExecSession, Quiet, Restless, RunError, Runtime};
pub use seccomp::default_seccomp;
pub use spec::*;

/// The types of OCI runtime specs used by [`ContainerSpec`].
pub use oci_spec::runtime as oci;
