//! The facts about this machine, from /proc, /sys and the server's directory; nothing is changed, and unreadable files are skipped.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rustix::fs::OFlags;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::facts::{Certificate, Content, File, Host, Swap};
use super::kernel::FILES;
use crate::Session;

/// The largest file that is examined for a certificate, in bytes. Those who may write there must not cause links to be followed, or
/// memory to be exhausted.
const CERTIFICATE: usize = 64 << 10;
/// The server's default directory.
const STATE: &str = "/var/lib/podwright";

pub fn look(state: Option<PathBuf>, session: &Session) -> Host {
    let beside_socket = || session.socket().parent().filter(|dir| dir.join("store.db").exists()).map(Path::to_owned);
    let state = state.or_else(beside_socket).unwrap_or_else(|| STATE.into());
    let read = |path: &&'static str| Some((*path, fs::read_to_string(path).ok()?.trim().to_owned()));
    Host {
        now: Timestamp::now(),
        kernel_files: FILES.iter().filter_map(read).collect(),
        swaps: swaps(),
        files: files(&state, session),
        certificates: certificates(&state),
        processes: processes(),
        state,
    }
}

fn swaps() -> Vec<Swap> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let devices = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let swap = |device: &str| {
        let real = fs::canonicalize(device).unwrap_or_else(|_| device.into());
        let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let uuid = fs::read_to_string(format!("/sys/class/block/{name}/dm/uuid")).unwrap_or_default();
        // Compressed memory is not a disk.
        let in_the_clear = !uuid.starts_with("CRYPT-") && !name.starts_with("zram");
        Swap { device: device.to_owned(), in_the_clear }
    };
    devices.map(swap).collect()
}

fn files(state: &Path, session: &Session) -> Vec<File> {
    let mut all: Vec<(PathBuf, Content)> = vec![(state.to_owned(), Content::Folder)];
    all.extend(["pki", "agent"].map(|dir| (state.join(dir), Content::Folder)));
    for name in
        ["store.db", "store.db-wal", "store.db-shm", "store.db.lock", "admin.kubeconfig", "encryption-config.yaml"]
    {
        all.push((state.join(name), Content::Secret));
    }
    for dir in ["pki", "agent"] {
        let inside = fs::read_dir(state.join(dir)).into_iter().flatten().flatten();
        all.extend(inside.map(|entry| (entry.path(), Content::Secret)));
    }
    all.push((session.socket().to_owned(), Content::Socket));
    if let Ok(program) = std::env::current_exe() {
        all.push((program.with_file_name("podwright-shim"), Content::Program));
        all.push((program, Content::Program));
    }
    let found = |(path, content): (PathBuf, Content)| {
        let meta = fs::metadata(&path).ok()?;
        if content == Content::Socket && !meta.file_type().is_socket() {
            return None;
        }
        Some(File { path, content, mode: meta.mode() & 0o7777, uid: meta.uid() })
    };
    all.into_iter().filter_map(found).collect()
}

/// The beginning of a regular file that is not a link; opening it does not block.
fn start_of(path: &Path) -> io::Result<Vec<u8>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(CERTIFICATE as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn certificates(state: &Path) -> Vec<Certificate> {
    let dirs = [state.join("pki"), state.join("agent")];
    let inside = dirs.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let read = |path: PathBuf| {
        let der = CertificateDer::from_pem_slice(&start_of(&path).ok()?).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let ends = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
        Some(Certificate { name: path.file_name()?.to_string_lossy().into_owned(), ends })
    };
    inside
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "crt"))
        .filter_map(read)
        .collect()
}

fn processes() -> Vec<Vec<String>> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let words = |dir: PathBuf| {
        let bytes = fs::read(dir.join("cmdline")).ok()?;
        let words: Vec<String> = bytes.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
        let program = Path::new(words.first()?).file_name()?;
        let serves = words.get(1).is_some_and(|verb| ["up", "server", "agent"].contains(&verb.as_str()));
        (program == "podwright" && serves).then_some(words)
    };
    all.map(|entry| entry.path()).filter_map(words).collect()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode};

    use super::*;

    #[test]
    fn certificates_are_read_out_of_plain_files_of_a_sane_size_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        fs::create_dir_all(state.join("pki")).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        fs::write(state.join("pki/ca.crt"), &pem).unwrap();
        fs::write(state.join("elsewhere"), &pem).unwrap();
        std::os::unix::fs::symlink(state.join("elsewhere"), state.join("pki/link.crt")).unwrap();
        fs::write(state.join("pki/large.crt"), " ".repeat(CERTIFICATE) + "\n" + &pem).unwrap();
        let fifo = state.join("pki/fifo.crt");
        rustix::fs::mknodat(CWD, fifo, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let state = state.to_owned();
        std::thread::spawn(move || {
            let found: Vec<_> = certificates(&state).into_iter().map(|certificate| certificate.name).collect();
            tell.send(found)
        });
        let found =
            told.recv_timeout(std::time::Duration::from_secs(30)).expect("it waits for nobody who writes to a FIFO");
        assert_eq!(found, ["ca.crt"]);
    }
}
