//! The node's tmpfs, in which each Pod has one of its own: what is in memory never comes to a disk.

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
    /// `None`: it has been taken away for good.
    kept: Mutex<Option<Kept>>,
    /// It is no Pod's.
    kernel: Kernel,
}

impl Memory {
    /// The folder becomes a tmpfs, unless it is one already.
    ///
    /// # Errors
    ///
    /// It cannot be made, or nothing be mounted there.
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

    /// Brings it back; whether it was gone.
    ///
    /// # Errors
    ///
    /// It still is.
    pub fn mend(&self) -> SysResult<bool> {
        Ok(self.kept().as_mut().map(|kept| kept.mend(&self.kernel)).transpose()?.unwrap_or(false))
    }

    /// Takes it away, and nobody brings it back.
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
        // A mount is brought back in one step.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
