//! The name of this machine's node: what its flags say, and, kept in its state, what it was when it ran.
//!
//! Links and objects of the cluster are found again by that name, also by who removes them and is given no flags.

use std::{io, path::PathBuf};

use anyhow::{Context, ensure};

use super::paths::Paths;
use crate::{api::validation::names::dns1123_subdomain, server::pki::write_private};

/// In the state folder.
pub const FILE: &str = "node-name";

/// The name that is given, by `--node-name`, else the host name.
///
/// # Errors
/// The host has none.
pub fn of_flags(given: Option<&str>) -> anyhow::Result<String> {
    match given {
        Some(name) => Ok(name.to_owned()),
        None => {
            let host = nix::unistd::gethostname().context("gethostname")?;
            Ok(host.to_string_lossy().to_lowercase())
        }
    }
}

/// Keeps the name of a node that is about to run.
///
/// # Errors
/// It cannot be written.
pub fn keep(paths: &Paths, name: &str) -> anyhow::Result<()> {
    if kept(paths).ok().flatten().as_deref() == Some(name) {
        return Ok(());
    }
    write_private(&file(paths), &format!("{name}\n"))
}

/// The name of the node that ran here last: as it was kept; of one that has kept none, as the flags say.
///
/// # Errors
/// It cannot be read, or the flags name another one.
pub fn of_last(given: Option<&str>, paths: &Paths) -> anyhow::Result<String> {
    let Some(kept) = kept(paths)? else { return of_flags(given) };
    if let Some(given) = given {
        ensure!(given == kept, "--node-name {given}: the node of {} is {kept}", paths.state.display());
    }
    Ok(kept)
}

fn kept(paths: &Paths) -> anyhow::Result<Option<String>> {
    let file = file(paths);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(why).with_context(|| file.display().to_string()),
    };
    let name = text.trim_end();
    let damaged = || format!("{} is damaged: remove it, and give --node-name", file.display());
    ensure!(dns1123_subdomain(name).is_empty(), damaged());
    Ok(Some(name.to_owned()))
}

fn file(paths: &Paths) -> PathBuf {
    paths.state.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_a_node_had_counts_for_who_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_owned();
        let paths = Paths {
            run: state.clone(),
            logs: state.clone(),
            manifests: state.clone(),
            cgroup_root: PathBuf::new(),
            state,
        };
        let last = |given: Option<&str>| of_last(given, &paths).map_err(|why| why.to_string());
        let flags = Some("b");
        assert_eq!(last(flags).as_deref(), Ok("b"), "an older one kept none");
        for name in ["first", "a.example"] {
            keep(&paths, name).unwrap();
            assert_eq!(last(None).as_deref(), Ok(name));
            assert_eq!(last(Some(name)).as_deref(), Ok(name));
        }
        assert!(last(flags).unwrap_err().ends_with("is a.example"), "{:?}", last(flags));
        for damage in ["", "\0\0", "../etc", "a\nb"] {
            std::fs::write(dir.path().join(FILE), damage).unwrap();
            assert!(last(flags).unwrap_err().contains("is damaged: remove it"), "{damage:?}");
        }
        keep(&paths, "b").unwrap();
        assert_eq!(last(None).as_deref(), Ok("b"), "the next start mends it");
    }
}
