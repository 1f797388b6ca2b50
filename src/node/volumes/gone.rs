//! What Pods that are gone have left on disk. There may be millions of files: so it is put aside at once, under a name that is no
//! Pod's, and removed when there is time.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

/// Before a number and the Pod's uid.
const GONE: &str = ".gone-";

/// Whether this is the name of something that was put aside.
pub fn is_gone(name: &str) -> bool {
    name.starts_with(GONE)
}

/// Puts the folder of a Pod aside: the name that it has there. `None`: there is none.
pub fn put_aside(folder: &Path, uid: &str) -> io::Result<Option<String>> {
    // Static Pods have the same uid each time.
    for n in 0u32.. {
        let name = format!("{GONE}{n}-{uid}");
        match renameat_with(CWD, folder, CWD, folder.with_file_name(&name), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(None),
            moved => return Ok(moved.map(|()| Some(name))?),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// All that was put aside in a folder, by this agent or an earlier one.
pub fn all(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_gone)).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_aside_is_there_until_it_is_removed_and_in_nobodys_way() {
        let pods = tempfile::tempdir().unwrap();
        let folder = pods.path().join("uid");
        assert_eq!(put_aside(&folder, "uid").unwrap(), None);
        for n in 0..3 {
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(n.to_string()), "").unwrap();
            assert_eq!(put_aside(&folder, "uid").unwrap(), Some(format!(".gone-{n}-uid")));
            assert!(!folder.exists());
        }
        fs::create_dir(&folder).unwrap();
        let mut found = all(pods.path());
        found.sort();
        let expected = [0, 1, 2].map(|n| pods.path().join(format!(".gone-{n}-uid")));
        assert_eq!(found, expected);
        assert!(expected.iter().enumerate().all(|(n, aside)| aside.join(n.to_string()).exists()));
        assert!(!is_gone("uid") && !is_gone(".ended"));
    }
}
