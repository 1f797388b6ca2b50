//! Container logs: reads, filters and follows the shim's CRI files across rotation and restarts.
//!
//! ```text
//!   files.rs  --bytes-->  read.rs  --lines.rs: lines, filtered (pure, by cri.rs)-->  serve.rs  --frames-->  session
//! ```

pub mod cri;
pub mod files;
pub mod lines;
pub mod read;
pub mod serve;
