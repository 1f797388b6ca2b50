//! Checks that files which control a process can only be changed by authorized users.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Maximum number of symlinks followed, as in the kernel.
const LINKS: usize = 40;
/// Descriptors of this process: opened by its parent.
const OWN: [&str; 3] = ["/dev/fd", "/dev/stdin", "/proc/self/fd"];

/// The authorized users: this process's user and root, and the user who became root by sudo.
pub fn deciders() -> Vec<u32> {
    let own = nix::unistd::geteuid().as_raw();
    let asked_by = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok()).filter(|_| own == 0);
    [own, 0].into_iter().chain(asked_by).collect()
}

/// Checks that only `users` can change a file or folder, or replace it, or a folder or symlink on the way to it: sshd's
/// StrictModes. The error names who else can.
pub fn check(path: &Path, users: &[u32]) -> Result<(), String> {
    if OWN.iter().any(|own| path.starts_with(own)) {
        return Ok(());
    }
    let way = way(path)?;
    for folder in &way.folders {
        let found = fs::symlink_metadata(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        let (uid, mode) = (found.uid(), found.mode());
        if !users.contains(&uid) {
            return Err(format!(
                "{} belongs to uid {uid}, who may put other files in the place of those in it",
                folder.display()
            ));
        }
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Err(format!(
                "{} has the mode {:04o}: others may put other files in the place of those in it (chmod go-w it)",
                folder.display(),
                mode & 0o7777
            ));
        }
    }
    let found = fs::symlink_metadata(&way.end).map_err(|why| format!("{}: {why}", way.end.display()))?;
    let (uid, mode) = (found.uid(), found.mode());
    if !users.contains(&uid) {
        return Err(format!("{} belongs to uid {uid}, who may write what is trusted here", way.end.display()));
    }
    if mode & OTHERS_WRITE != 0 {
        let mode = mode & 0o7777;
        return Err(format!(
            "{} has the mode {mode:04o}: others may write what is trusted here (chmod go-w it)",
            way.end.display()
        ));
    }
    Ok(())
}

/// The resolution of a path.
struct Way {
    /// All folders in which a name of it, or of a symlink, is looked up.
    folders: Vec<PathBuf>,
    /// The target, not a symlink.
    end: PathBuf,
}

fn way(path: &Path) -> Result<Way, String> {
    let absolute = std::path::absolute(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let parts = |path: &Path| -> Vec<OsString> {
        let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        names.map(|part| part.as_os_str().to_owned()).collect()
    };
    let (mut folders, mut end, mut links) = (Vec::new(), PathBuf::from("/"), 0);
    let mut left: VecDeque<OsString> = parts(&absolute).into();
    while let Some(name) = left.pop_front() {
        if name == ".." {
            end.pop();
            continue;
        }
        if !folders.contains(&end) {
            folders.push(end.clone());
        }
        let next = end.join(&name);
        let Ok(target) = fs::read_link(&next) else {
            end = next;
            continue;
        };
        links += 1;
        if links > LINKS {
            return Err(format!("{}: too many symbolic links", path.display()));
        }
        if target.is_absolute() {
            end = PathBuf::from("/");
        }
        parts(&target).into_iter().rev().for_each(|part| left.push_front(part));
    }
    Ok(Way { folders, end })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A folder with a file in it, and its owner.
    fn with_file() -> (tempfile::TempDir, PathBuf, u32) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "decides").unwrap();
        set(&file, 0o644);
        let own = nix::unistd::geteuid().as_raw();
        (dir, file, own)
    }

    #[test]
    fn what_others_may_write_is_refused() {
        let (dir, file, own) = with_file();
        let why = |users: &[u32]| check(&file, users).err().unwrap_or_default();
        assert_eq!(why(&[own, 0]), "");
        assert!(why(&[4242]).contains("belongs to uid"), "{}", why(&[4242]));
        for mode in [0o666, 0o664, 0o646] {
            set(&file, mode);
            assert!(why(&[own, 0]).contains("may write what is trusted"), "{mode:o}");
        }
        set(&file, 0o600);
        set(dir.path(), 0o777);
        assert!(why(&[own, 0]).contains("in the place of"));
        set(dir.path(), 0o1777);
        assert_eq!(why(&[own, 0]), "");
        assert!(check(&dir.path().join("missing"), &[own, 0]).is_err());
        assert!(check(dir.path(), &[own, 0]).is_err(), "a folder in which anyone may put files");
    }

    #[test]
    fn every_link_on_the_way_is_somebodys() {
        let (dir, file, own) = with_file();
        let others = dir.path().join("others");
        fs::create_dir(&others).unwrap();
        symlink(&file, others.join("second")).unwrap();
        symlink("others/second", dir.path().join("first")).unwrap();
        let first = dir.path().join("first");
        set(&others, 0o755);
        assert_eq!(check(&first, &[own, 0]), Ok(()));
        set(&others, 0o777);
        let why = check(&first, &[own, 0]).unwrap_err();
        assert!(why.contains("others has the mode 0777"), "{why}");
        set(&others, 0o755);
        symlink("round", dir.path().join("round")).unwrap();
        assert!(check(&dir.path().join("round"), &[own, 0]).unwrap_err().contains("too many"));
        if own == 0 {
            chown(&others, Some(65534), None).unwrap();
            let why = check(&first, &[0]).unwrap_err();
            assert!(why.contains("others belongs to uid 65534, who may put other files"), "{why}");
            chown(&others, Some(0), None).unwrap();
            chown(&file, Some(65534), None).unwrap();
            let why = check(&first, &[0]).unwrap_err();
            assert!(why.contains("file belongs to uid 65534, who may write"), "{why}");
        }
    }
}
