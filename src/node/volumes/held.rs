//! Mounts and links of Pods' volumes, besides files of API objects: in-memory mounts, and links to claims' volumes. Removed ones
//! are restored, mounts with their contents.

use std::{
    collections::BTreeMap,
    fs, io,
    os::{fd::BorrowedFd, unix::fs::symlink},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use podwright_runtime::{kept::Kept, sys::Kernel};

/// By path. Cheap to clone.
#[derive(Clone, Default)]
pub struct HeldVolumes(Arc<Mutex<BTreeMap<PathBuf, Held>>>);

enum Held {
    /// `ours`: this agent has mounted it itself. `kernel`: for whom it comes back.
    Mount { kept: Kept, ours: bool, kernel: Kernel },
    /// Its target.
    Link(PathBuf),
}

impl HeldVolumes {
    /// This folder is a mount that is to stay: what was mounted just now, or else what is there. (What an earlier agent has left may
    /// be something else by now, that somebody has mounted over it: only what is as it says is kept.)
    ///
    /// # Errors
    ///
    /// No descriptor of it is to be had.
    pub fn mount(
        &self,
        kernel: &Kernel,
        path: &Path,
        mounted: Option<BorrowedFd<'_>>,
        is_as_it_says: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let mut all = self.lock();
        if all.contains_key(path) {
            return Ok(());
        }
        let kept = match mounted {
            Some(mount) => Some(Kept::of_mount(kernel, path, mount)?),
            None => Kept::of(kernel, path)?.filter(|_| is_as_it_says()),
        };
        let ours = mounted.is_some();
        all.extend(kept.map(|kept| (path.to_owned(), Held::Mount { kept, ours, kernel: kernel.clone() })));
        Ok(())
    }

    /// Creates a link to keep in place, replacing an existing one.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn lead(&self, link: &Path, to: &Path) -> io::Result<()> {
        lead(link, to)?;
        self.link(link, to);
        Ok(())
    }

    /// Keeps this link in place.
    pub fn link(&self, path: &Path, to: &Path) {
        self.lock().insert(path.to_owned(), Held::Link(to.to_owned()));
    }

    /// Stops keeping what is below this folder.
    pub fn forget(&self, folder: &Path) {
        self.lock().retain(|path, _| !path.starts_with(folder));
    }

    /// The same; returns the mounts among it that are ours.
    pub fn take_mounts(&self, folder: &Path) -> Vec<Kept> {
        let mut all = self.lock();
        let paths: Vec<PathBuf> = all.keys().filter(|path| path.starts_with(folder)).cloned().collect();
        let taken = paths.iter().filter_map(|path| match all.remove(path)? {
            Held::Mount { kept, ours: true, .. } => Some(kept),
            Held::Mount { .. } | Held::Link(_) => None,
        });
        taken.collect()
    }

    /// Restores missing mounts, and missing or changed links; returns them in words. External mounts over a volume stay.
    pub fn mend(&self) -> Vec<String> {
        // Locked throughout, so that what is being dropped is not restored.
        let mut all = self.lock();
        let mut mended = Vec::new();
        for (path, held) in all.iter_mut() {
            match held.mend(path) {
                Ok(None) => {}
                Ok(Some(what)) => mended.push(format!("{what} {}", path.display())),
                Err(error) => tracing::warn!("{}: {error}", path.display()),
            }
        }
        mended
    }

    /// The same for this path; returns whether it was missing.
    ///
    /// # Errors
    ///
    /// It still is.
    pub fn mend_at(&self, path: &Path) -> io::Result<bool> {
        self.lock().get_mut(path).map_or(Ok(false), |held| held.mend(path).map(|mended| mended.is_some()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Held>> {
        // Each change is atomic.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Held {
    fn mend(&mut self, path: &Path) -> io::Result<Option<&'static str>> {
        match self {
            Held::Mount { kept, kernel, .. } => Ok(kept.mend_gone(kernel)?.then_some("the volume in memory at")),
            Held::Link(to) if fs::read_link(path).is_ok_and(|found| found == *to) => Ok(None),
            Held::Link(to) => lead(path, to).map(|()| Some("the link to a claim's volume at")),
        }
    }
}

fn lead(link: &Path, to: &Path) -> io::Result<()> {
    fs::remove_file(link).ok();
    fs::create_dir_all(link.parent().unwrap_or(link))?;
    symlink(to, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_are_gone_or_lead_elsewhere_come_back_until_they_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let (held, link) = (HeldVolumes::default(), folder.path().join("volumes/data"));
        let leads = || fs::read_link(&link).ok();
        held.link(&link, Path::new("/there"));
        let damage: [&dyn Fn(); 3] = [&|| {}, &|| fs::remove_file(&link).unwrap(), &|| {
            fs::remove_file(&link).unwrap();
            symlink("/elsewhere", &link).unwrap();
        }];
        for damage in damage {
            damage();
            assert_eq!(held.mend().len(), 1);
            assert_eq!(leads().as_deref(), Some(Path::new("/there")));
            assert_eq!(held.mend(), [""; 0]);
        }
        held.forget(folder.path());
        fs::remove_file(&link).unwrap();
        assert_eq!((held.mend().len(), leads()), (0, None));
    }
}
