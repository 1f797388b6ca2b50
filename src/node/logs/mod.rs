//! Container logs: CRI files that the shim writes, across rotation and restarts, as whoever asks for them wants them.
//!
//! ```text
//!   files.rs  --bytes-->  read.rs  --lines.rs: lines, filtered (pure, by cri.rs)-->  serve.rs  --frames-->  session
//! ```

pub mod cri;
pub mod files;
pub mod lines;
pub mod read;
pub mod serve;
