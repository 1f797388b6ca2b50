//! Images from files: a root filesystem's tar (`import`), OCI layouts and docker-save archives (`load`).

use std::io::Read;

use super::{Image, ImageError, ImageStore, ImportOptions, Result};

impl ImageStore {
    /// Makes an image of one layer out of a root filesystem's tar (plain, gzip or zstd). Blocks: call it where that is
    /// allowed (`spawn_blocking`).
    pub fn import(&self, _tar: impl Read, name: &str, _options: &ImportOptions) -> Result<Image> {
        Err(ImageError::Unsupported(format!("import {name}: not built in yet")))
    }

    /// Loads every image of an OCI layout's tar or a docker-save archive (plain, gzip or zstd), under the names that it
    /// gives them; `name` is for archives that give none. Blocks, as `import` does.
    pub fn load(&self, _archive: impl Read, _name: Option<&str>) -> Result<Vec<Image>> {
        Err(ImageError::Unsupported("load: not built in yet".into()))
    }
}
