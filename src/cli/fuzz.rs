//! Entry points for `./dev fuzz`: parsers of what containers send to users.

use std::{io, path::Path};

/// Unpacks an archive from a container for `cp`: its part at `prefix` to `to`.
pub fn cp(source: impl io::Read, prefix: &Path, to: &Path) -> io::Result<()> {
    super::cp::unpack(source, prefix, to)
}
