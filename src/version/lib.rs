//! Which podwright this is: its number, and the commit that it is built from.

#![forbid(unsafe_code)]

/// The number of the release, as `0.2.0`.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");
/// The commit; `unknown` where nobody can tell.
pub const COMMIT: &str = env!("BUILT_COMMIT");
/// Whether there are changes beside the commit: `clean`, `dirty`, `archive` (a tarball of it), `unknown`.
pub const TREE: &str = env!("BUILT_TREE");
/// When the commit was made, by RFC 3339; the epoch where nobody can tell.
pub const DATE: &str = env!("BUILT_DATE");
/// The program and its commit, as people read it.
pub const PROGRAM: &str = concat!("podwright ", env!("CARGO_PKG_VERSION"), " (commit ", env!("BUILT_COMMIT"), ")");
