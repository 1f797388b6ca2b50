//! The node's tmpfs, in which each Pod has its own: data in memory never reaches a disk.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use podwright_runtime::{
    JournalWriter,
    kept::Kept,
    sys::{Kernel, SysResult},
};

use crate::mounts;

pub struct Memory {
    path: PathBuf,
    /// `None`: it has been removed for good.
    kept: Mutex<Option<Kept>>,
    /// Not of a Pod.
    kernel: Kernel,
}

impl Memory {
    /// Mounts a tmpfs on the folder, unless it has one.
    ///
    /// # Errors
    ///
    /// The folder cannot be created or mounted on.
    pub fn open(path: PathBuf) -> io::Result<Memory> {
        let kernel = Kernel::new(&JournalWriter::none());
        mounts::keep_in_memory(&kernel, &path)?;
        kernel.share(&path)?;
        let kept = Kept::of(&kernel, &path)?;
        let kept = kept.ok_or_else(|| io::Error::other(format!("{} is not mounted", path.display())))?;
        Ok(Memory { path, kept: Mutex::new(Some(kept)), kernel })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Restores it; returns whether it was missing.
    ///
    /// # Errors
    ///
    /// It still is.
    pub fn mend(&self) -> SysResult<bool> {
        Ok(self.kept().as_mut().map(|kept| kept.mend(&self.kernel)).transpose()?.unwrap_or(false))
    }

    /// Unmounts it for good.
    ///
    /// # Errors
    ///
    /// It is still mounted.
    pub fn close(&self) -> SysResult<()> {
        let mut kept = self.kept();
        *kept = None;
        self.kernel.unmount_all(&self.path)
    }

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        // Restoring a mount is atomic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
