//! Sandboxes, containers and images out of Linux primitives. Knows no Kubernetes word; its API has the shape of CRI.
//!
//! ```text
//!   Runtime (in the agent, async)                     podwright-shim (one per sandbox, outlives the agent)
//!   ------------------------------                    ------------------------------------------------------
//!   spec.rs     what is asked for, and the states     shim/mod.rs     one poll loop: connections, children, stdio
//!   compile.rs  OCI spec -> plan (pure)               shim/child/     children between clone3 and exec
//!   protocol.rs the plan: what the shim executes      shim/stdio.rs   pumps output to logs and attached streams
//!   shim_client.rs the connection to one shim  <===>  shim/writer.rs  threads that may wait for a disk
//!   records.rs  what is known after a crash           pause.rs        the sandbox holder, 1 kB, no libc
//!   cgroup.rs   the tree, limits, statistics          sys/            THE door: every system call, every `unsafe`
//!   devices.rs  device rules -> eBPF (pure)
//!   sysctl.rs   which sysctls a sandbox may set (pure)
//!   removals.rs what is gone, and still on disk
//!   fair_pool.rs who is next with work on a disk (`Line` is pure)
//!   app_armor/  the default profile, and which ones the machine has
//! ```
//!
//! Order of reading: [`spec`], [`Runtime`], then `protocol`, `shim`, `sys`.

pub mod app_armor;
pub mod cgroup;
pub mod compile;
pub mod devices;
pub mod error;
pub mod facts;
pub mod fair_pool;
mod handshake;
pub mod image;
pub mod inspect;
pub mod kept;
pub mod profile;
pub mod projects;
pub mod protocol;
#[cfg(test)]
mod recorded;
mod records;
pub mod removals;
pub mod runtime;
pub mod seccomp;
pub mod shim;
mod shim_client;
pub mod spec;
pub mod sys;
pub mod sysctl;
pub mod usage;

pub use error::{Error, Result, StartFailure};
pub use podwright_journal::{Cause, JournalWriter, Role};
pub use profile::{
    all_capabilities, default_capabilities, default_devices, default_masked_paths, default_mounts,
    default_readonly_paths,
};
pub use runtime::{ExecSession, Quiet, Restless, Runtime};
pub use seccomp::default_seccomp;
pub use spec::*;

/// The words of OCI runtime specs, as [`ContainerSpec`] takes them.
pub use oci_spec::runtime as oci;
