//! Ways in for `./dev fuzz`: parsers of what containers send to a person.

use std::{io, path::Path};

/// What `cp` makes of the archive that a container sends: `prefix` of it to `to`.
pub fn cp(source: impl io::Read, prefix: &Path, to: &Path) -> io::Result<()> {
    super::cp::unpack(source, prefix, to)
}
