//! Keeps a process' files private: directories and files that others may access are restricted at the start, and those that others
//! may have written are refused.

use std::{
    fs::{self, File, Metadata, Permissions},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use podwright_runtime::sys::trusted::{check as check_trusted, deciders};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, open, openat2},
    io::Errno,
};

use super::{folder::MARK, paths::Paths};

/// Mode bits for others, which must not be set.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// The user of a process, and so the owner of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// This process' own.
    pub fn here() -> Owner {
        Owner { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() }
    }
}

/// Makes a directory private; it must belong to this process' user, or to `owner`, whom it runs for.
///
/// Fails if it, or a directory above it, belongs to somebody else, who could place trusted files there: a key, a store, the
/// manifest of a privileged Pod.
pub fn folder(path: &Path, owner: Owner) -> anyhow::Result<()> {
    trusted(path, owner)?.settle(None)
}

/// Only checks, without changes.
pub fn check_folder(path: &Path, owner: Owner) -> anyhow::Result<()> {
    trusted(path, owner).map(drop)
}

/// Refuses a file or directory in a flag that affects authorization, if others than this process' user, or `owner`, whom it runs
/// for, can change it.
pub fn named(flag: &str, path: &Path, owner: Owner) -> anyhow::Result<()> {
    let users: Vec<u32> = deciders().into_iter().chain([owner.uid]).collect();
    check_trusted(path, &users).map_err(|why| anyhow!("{flag} {}: {why}", path.display()))
}

fn trusted(path: &Path, owner: Owner) -> anyhow::Result<Opened> {
    let opened = Opened::folder(path)?;
    let ours = [Owner::here().uid, owner.uid];
    opened.check(&ours)?;
    // Like sshd's StrictModes: those who may rename a directory in the path can replace it.
    let real = path.canonicalize().with_context(|| path.display().to_string())?;
    let trusted: Vec<u32> = ours.into_iter().chain(deciders()).collect();
    real.ancestors().skip(1).try_for_each(|above| Opened::folder(above)?.check_above(&trusted))?;
    Ok(opened)
}

/// Like [`folder`], and gives it to `owner`.
pub fn give(path: &Path, owner: Owner) -> anyhow::Result<()> {
    folder(path, owner)?;
    Opened::folder(path)?.settle(Some(owner))
}

/// The control plane's existing files below its directories.
pub fn server_files(paths: &Paths) -> Vec<PathBuf> {
    let store = paths.store();
    let beside = |tail: &str| {
        let mut name = store.as_os_str().to_owned();
        name.push(tail);
        PathBuf::from(name)
    };
    let mut all = vec![paths.state.join(MARK), paths.kubeconfig(), paths.encryption(), paths.socket()];
    all.extend(["", "-wal", "-shm", ".lock", ".backup", ".draft"].map(beside));
    all.extend([paths.pki(), paths.membership()].into_iter().filter(|dir| dir.exists()));
    all.extend([paths.pki(), paths.membership()].iter().flat_map(|dir| entries(dir)));
    all.retain(|path| path.symlink_metadata().is_ok());
    all
}

/// Makes the control plane's files private, and gives them to `owner`, if set.
///
/// Fails if one of them is a link, or has other hard links. The directories may belong to an unprivileged server, and root must not
/// be led to others' files.
pub fn tighten(paths: &Paths, owner: Option<Owner>) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for path in server_files(paths) {
        all.extend(Opened::below([&paths.state, &paths.run], &path)?);
    }
    for opened in &all {
        let names = all.iter().filter(|other| other.inode() == opened.inode()).count() as u64;
        if opened.found.is_file() && opened.found.nlink() > names {
            bail!("{} has another name elsewhere (a hard link): copy it, and remove the link", opened.path.display());
        }
    }
    all.iter().try_for_each(|opened| opened.settle(owner))
}

/// An open file or directory: later changes of its path do not matter.
struct Opened {
    path: PathBuf,
    place: File,
    found: Metadata,
}

impl Opened {
    fn new(path: &Path, place: OwnedFd) -> anyhow::Result<Opened> {
        let place = File::from(place);
        let found = place.metadata().with_context(|| path.display().to_string())?;
        Ok(Opened { path: path.to_owned(), place, found })
    }

    fn folder(path: &Path) -> anyhow::Result<Opened> {
        let place = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        Opened::new(path, place.with_context(|| path.display().to_string())?)
    }

    /// Whether only these users may write in it.
    fn check(&self, users: &[u32]) -> anyhow::Result<()> {
        let (shown, uid) = (self.path.display(), self.found.uid());
        if !users.contains(&uid) {
            bail!(
                "{shown} belongs to uid {uid}, not to uid {}, which runs this: who owns it may change what is trusted here (give \
                 another folder, or this one to that user: chown -R, if you trust what is in it)",
                users[0]
            );
        }
        if self.found.mode() & OTHERS_WRITE != 0 {
            bail!(
                "{shown} has the mode {:04o}: others may write what is trusted here (chmod 0700 it)",
                self.found.mode() & 0o7777
            );
        }
        Ok(())
    }

    /// Whether only these users may rename entries in it: others may write in a directory with the sticky bit, like `/tmp`.
    fn check_above(&self, users: &[u32]) -> anyhow::Result<()> {
        let (shown, mode, uid) = (self.path.display(), self.found.mode(), self.found.uid());
        if !users.contains(&uid) {
            bail!("{shown} belongs to uid {uid}, who may put other folders in the place of those in it");
        }
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            bail!(
                "{shown} has the mode {:04o}: others may put other folders in the place of those in it",
                mode & 0o7777
            );
        }
        Ok(())
    }

    /// A file below one of the directories, without following links; `None`: it is gone.
    fn below(folders: [&Path; 2], path: &Path) -> anyhow::Result<Option<Opened>> {
        let shown = path.display();
        let place = folders.into_iter().find_map(|folder| Some((folder, path.strip_prefix(folder).ok()?)));
        let (folder, name) = place.with_context(|| format!("{shown} lies in no folder of the server's"))?;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = match openat2(&Opened::folder(folder)?.place, name, flags, Mode::empty(), how) {
            Ok(place) => Opened::new(path, place)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => bail!("{shown} is a symbolic link, or lies behind one: put the file itself there"),
            Err(why) => return Err(why).with_context(|| shown.to_string()),
        };
        let kind = opened.found.file_type();
        if !(kind.is_file() || kind.is_dir() || kind.is_socket()) {
            bail!("{shown} is neither a file nor a folder nor a socket");
        }
        Ok(Some(opened))
    }

    fn inode(&self) -> (u64, u64) {
        (self.found.dev(), self.found.ino())
    }

    /// The open file as a path: fchmod(2) and fchown(2) refuse O_PATH descriptors.
    fn held(&self) -> String {
        format!("/proc/self/fd/{}", self.place.as_raw_fd())
    }

    fn settle(&self, owner: Option<Owner>) -> anyhow::Result<()> {
        let (shown, mode) = (self.path.display(), self.found.mode() & 0o7777);
        if mode & OTHERS != 0 {
            let closed = Permissions::from_mode(mode & !OTHERS);
            fs::set_permissions(self.held(), closed).with_context(|| format!("chmod {shown}"))?;
            tracing::warn!(
                "{shown} was accessible to others (mode {mode:04o}): changed its mode to {:04o}",
                mode & !OTHERS
            );
        }
        let differs = |owner: &Owner| (self.found.uid(), self.found.gid()) != (owner.uid, owner.gid);
        if let Some(owner) = owner.filter(differs)
            && Owner::here().uid == 0
        {
            chown(self.held(), Some(owner.uid), Some(owner.gid)).with_context(|| format!("chown {shown}"))?;
        }
        Ok(())
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    fn below(state: &Path) -> Paths {
        Paths {
            run: state.to_owned(),
            logs: state.join("log"),
            manifests: state.join("manifests"),
            cgroup_root: "/podwright-test".into(),
            state: state.to_owned(),
        }
    }

    #[test]
    fn what_others_could_read_they_cannot_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir_all(state.join("pki")).unwrap();
        let names =
            ["store.db", "store.db-wal", "store.db.lock", "admin.kubeconfig", "pki/ca.key", "encryption-config.yaml"];
        for name in names {
            fs::write(state.join(name), "secret").unwrap();
            fs::set_permissions(state.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(&state, Permissions::from_mode(0o755)).unwrap();
        let paths = below(&state);
        folder(&state, Owner::here()).unwrap();
        tighten(&paths, None).unwrap();
        assert_eq!((mode(&state), mode(&state.join("pki"))), (0o700, 0o700));
        for name in names {
            assert_eq!(mode(&state.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o1777, 0o770] {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            let why = folder(dir.path(), Owner::here()).unwrap_err().to_string();
            assert!(why.contains("others may write"), "{mode:o}: {why}");
        }
    }

    /// Root is told to use a directory created by another user, perhaps with the manifest of a static Pod in it.
    #[test]
    fn what_is_somebody_elses_is_refused() {
        if Owner::here().uid != 0 {
            return;
        }
        let other = Owner { uid: 65534, gid: 65534 };
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, Permissions::from_mode(0o755)).unwrap();
        let own = |path: &Path, owner: Owner| chown(path, Some(owner.uid), Some(owner.gid)).unwrap();

        own(&state, other);
        let why = folder(&state, Owner::here()).unwrap_err().to_string();
        assert!(why.contains("belongs to uid 65534"), "{why}");
        assert_eq!(mode(&state), 0o755, "it is left as it is");
        // A server running as that user may own it.
        folder(&state, other).unwrap();

        own(&state, Owner::here());
        own(dir.path(), other);
        let why = folder(&state, Owner::here()).unwrap_err().to_string();
        assert!(why.contains("in the place of"), "{why}");
        own(dir.path(), Owner::here());
        for (above, refused) in [(0o777, true), (0o1777, false), (0o755, false)] {
            fs::set_permissions(dir.path(), Permissions::from_mode(above)).unwrap();
            assert_eq!(folder(&state, Owner::here()).is_err(), refused, "{above:o}");
        }
    }

    #[test]
    fn what_a_flag_names_is_the_deciders_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens.csv");
        fs::write(&file, "t,eve,1,\"system:masters\"").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        named("--token-auth-file", &file, Owner::here()).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        let why = named("--token-auth-file", &file, Owner::here()).unwrap_err().to_string();
        assert!(why.starts_with("--token-auth-file /") && why.contains("has the mode 0666"), "{why}");
        if Owner::here().uid == 0 {
            fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
            chown(&file, Some(65534), None).unwrap();
            assert!(named("--token-auth-file", &file, Owner::here()).is_err());
            named("--token-auth-file", &file, Owner { uid: 65534, gid: 65534 }).unwrap();
        }
    }

    /// An unprivileged server owns its directory, and may have created a link there to others' files.
    #[test]
    fn a_link_leads_root_to_no_file_of_others() {
        type Plant = fn(&Path, &Path);
        let plants: [(&str, Plant); 4] = [
            ("pki/x", |canary, state| std::os::unix::fs::symlink(canary, state.join("pki/x")).unwrap()),
            ("store.db", |canary, state| std::os::unix::fs::symlink(canary, state.join("store.db")).unwrap()),
            ("agent", |canary, state| {
                std::os::unix::fs::symlink(canary.parent().unwrap(), state.join("agent")).unwrap();
            }),
            ("pki/y", |canary, state| fs::hard_link(canary, state.join("pki/y")).unwrap()),
        ];
        for (name, plant) in plants {
            let dir = tempfile::tempdir().unwrap();
            let (state, canary) = (dir.path().join("state"), dir.path().join("others/canary"));
            fs::create_dir_all(state.join("pki")).unwrap();
            fs::create_dir_all(canary.parent().unwrap()).unwrap();
            fs::write(&canary, "not yours").unwrap();
            for path in [&canary, canary.parent().unwrap()] {
                fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
            }
            plant(&canary, &state);
            let why = tighten(&below(&state), Some(Owner { uid: 65534, gid: 65534 })).unwrap_err().to_string();
            assert!(why.contains(name) && why.contains("link"), "{name}: {why}");
            assert_eq!((mode(&canary), mode(canary.parent().unwrap())), (0o755, 0o755), "{name}");
            assert_eq!(canary.metadata().unwrap().uid(), Owner::here().uid, "{name}");
        }
    }

    #[test]
    fn a_draft_that_is_linked_to_the_store_itself_is_the_stores() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("store.db"), "").unwrap();
        fs::hard_link(dir.path().join("store.db"), dir.path().join("store.db.draft")).unwrap();
        tighten(&below(dir.path()), None).unwrap();
        assert_eq!(mode(&dir.path().join("store.db")), 0o600);
    }
}
