//! The image of all labs: the host's static busybox, and nothing else.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

pub const IMAGE: &str = "localhost/busybox:1";

const INSTALL: &str =
    "labs run the host's static busybox in their Pods; on Debian and Ubuntu: apt install busybox-static";
const FOLDERS: &[(&str, u32)] =
    &[("bin", 0o755), ("etc", 0o755), ("root", 0o755), ("tmp", 0o1777), ("var", 0o755), ("www", 0o755)];
const FILES: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
];

/// The program of this name, as a shell finds it.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Writes a root file system for `image import`.
pub fn write_archive(to: &Path) -> anyhow::Result<()> {
    let busybox = on_path("busybox").with_context(|| format!("busybox is not installed: {INSTALL}"))?;
    let program = std::fs::read(&busybox).with_context(|| busybox.display().to_string())?;
    anyhow::ensure!(!needs_interpreter(&program), "{} is linked dynamically: {INSTALL}", busybox.display());
    let list = std::process::Command::new(&busybox).arg("--list").output()?;
    anyhow::ensure!(list.status.success(), "{} --list: {}", busybox.display(), list.status);
    let applets = String::from_utf8(list.stdout)?;
    let file = std::io::BufWriter::new(std::fs::File::create(to)?);
    archive(&program, applets.lines().filter(|applet| *applet != "busybox"), file)
        .with_context(|| to.display().to_string())
}

fn archive<'a>(program: &[u8], applets: impl Iterator<Item = &'a str>, to: impl Write) -> anyhow::Result<()> {
    let mut archive = tar::Builder::new(to);
    let header = |kind: tar::EntryType, mode: u32, size: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header
    };
    for (folder, mode) in FOLDERS {
        archive.append_data(&mut header(tar::EntryType::Directory, *mode, 0), folder, &[][..])?;
    }
    archive.append_data(&mut header(tar::EntryType::Regular, 0o755, program.len()), "bin/busybox", program)?;
    for applet in applets {
        let path = Path::new("bin").join(applet);
        archive.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), path, "busybox")?;
    }
    for (file, text) in FILES {
        archive.append_data(&mut header(tar::EntryType::Regular, 0o644, text.len()), file, text.as_bytes())?;
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

/// Whether a 64-bit ELF program has a PT_INTERP segment (elf(5)): in a Pod there is no dynamic linker.
fn needs_interpreter(program: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = program.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let segments = || Some((number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?));
    let Some((first, size, count)) = segments() else { return false };
    (0..count).any(|n| {
        let at = size.checked_mul(n).and_then(|offset| offset.checked_add(first));
        at.and_then(|at| number(at, 4)).is_some_and(|kind| kind == PT_INTERP as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_the_program_and_a_link_per_applet() {
        let mut bytes = Vec::new();
        archive(b"program", ["sh", "["].into_iter(), &mut bytes).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let shown = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let link = entry.link_name().unwrap().map(|to| format!(" -> {}", to.display())).unwrap_or_default();
            format!("{:o} {}{link}", entry.header().mode().unwrap(), entry.path().unwrap().display())
        });
        let shown: Vec<String> = shown.collect();
        let links = ["755 bin/busybox", "777 bin/sh -> busybox", "777 bin/[ -> busybox"];
        assert_eq!(shown[..2], ["755 bin", "755 etc"]);
        assert_eq!(shown[6..9], links);
        assert_eq!(shown.len(), 11);
    }

    #[test]
    fn a_program_with_a_dynamic_linker_is_known() {
        // The tests themselves are linked dynamically.
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(needs_interpreter(&own));
        assert!(!needs_interpreter(b"#!/bin/sh\n") && !needs_interpreter(&own[..100]));
    }
}
