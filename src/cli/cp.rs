//! `cp`: copies files and directories to and from containers, with `tar` on both ends.

use std::{
    cell::Cell,
    ffi::OsString,
    io,
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{
    Outcome, Session,
    error::Failure,
    exec, pods,
    stream::{self, Ends, Frames, Input},
};
use podwright_api::{
    Object,
    stream::{CLOSE, Frame, STDERR, STDIN, STDOUT},
};

/// Frames buffered for the slower end.
const BACKLOG: usize = 16;

#[derive(clap::Args)]
pub struct Args {
    /// The source: a local path, or [NAMESPACE/]POD:PATH
    #[arg(value_name = "FROM")]
    from: String,
    /// The destination: a local path, or [NAMESPACE/]POD:PATH
    #[arg(value_name = "TO")]
    to: String,
    /// Container name; if omitted, the default container or the first one in the Pod
    #[arg(long, short = 'c', value_name = "NAME")]
    container: Option<String>,
}

/// One end of a copy.
#[derive(Debug, PartialEq)]
enum End {
    Here(PathBuf),
    There { namespace: Option<String>, pod: String, path: String },
}

/// `[NAMESPACE/]POD:PATH`, or a local path.
fn end(word: &str) -> Result<End, String> {
    let Some((place, path)) = word.split_once(':').filter(|_| !word.starts_with(['/', '.'])) else {
        return Ok(End::Here(word.into()));
    };
    let (namespace, pod) = place.split_once('/').map_or((None, place), |(ns, pod)| (Some(ns.to_owned()), pod));
    if pod.is_empty() || pod.contains('/') || path.is_empty() {
        return Err(format!("filespec must match the canonical format: [[namespace/]pod:]file/path: {word}"));
    }
    Ok(End::There { namespace, pod: pod.to_owned(), path: path.to_owned() })
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let (from, to) = (end(&args.from).map_err(Failure::usage)?, end(&args.to).map_err(Failure::usage)?);
    let container = args.container.unwrap_or_default();
    match (from, to) {
        (End::Here(from), End::There { namespace, pod, path }) => {
            let there = There::find(session, namespace, &pod, container).await?;
            there.upload(from, &path).await?;
        }
        (End::There { namespace, pod, path }, End::Here(to)) => {
            let there = There::find(session, namespace, &pod, container).await?;
            there.download(&path, to).await?;
        }
        _ => return Err(Failure::usage("one of src or dest must be a local file specification")),
    }
    Ok(ExitCode::SUCCESS)
}

/// A container to copy to or from.
struct There {
    session: Session,
    pod: Object,
    container: String,
}

impl There {
    async fn find(
        session: &Session,
        namespace: Option<String>,
        pod: &str,
        container: String,
    ) -> Result<There, Failure> {
        let mut session = session.clone();
        session.namespace = namespace.unwrap_or(session.namespace);
        let pod = pods::one(&session, pod).await?;
        Ok(There { session, pod, container })
    }

    async fn run(&self, command: &[&str], stdin: bool) -> Result<Frames, Failure> {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let options = exec::options(self.container.clone(), command, Ends { stdin, tty: false });
        Ok(stream::open(&self.session, exec::request(&self.session, &self.pod, "exec", &options)?).await?)
    }

    async fn has_folder(&self, path: &str) -> Result<bool, Failure> {
        let status =
            stream::exchange(self.run(&["test", "-d", path], false).await?, stream::no_input(), |_, _| {}).await?;
        Ok(status.status == "Success")
    }

    /// Like `cp`: into an existing directory, otherwise under the new name.
    async fn upload(&self, from: PathBuf, path: &str) -> Result<(), Failure> {
        let missing =
            |e: io::Error| Failure::usage(format!("{} doesn't exist in local filesystem: {e}", from.display()));
        std::fs::symlink_metadata(&from).map_err(missing)?;
        let mut target = PathBuf::from(path);
        if path.ends_with('/') || self.has_folder(path).await? {
            target.push(from.canonicalize()?.file_name().unwrap_or_default());
        }
        let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
        let name = target.file_name().map(OsString::from).unwrap_or_default();
        let (sender, input): (_, Input) = mpsc::channel(BACKLOG);
        let packing = tokio::task::spawn_blocking(move || pack(&from, Path::new(&name), sender));
        let frames = self.run(&["tar", "-xmf", "-", "-C", &folder.to_string_lossy()], true).await?;
        let status = stream::exchange(frames, input, complain).await?;
        packing.await.map_err(anyhow::Error::from)??;
        stream::exit(status).map(drop)
    }

    async fn download(&self, path: &str, mut to: PathBuf) -> Result<(), Failure> {
        let base = Path::new(path.trim_end_matches('/')).file_name().map(OsString::from).unwrap_or_default();
        if to.is_dir() && !base.is_empty() {
            to.push(&base);
        }
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Bytes>(BACKLOG);
        let prefix = relative(Path::new(path));
        let unpacking =
            tokio::task::spawn_blocking(move || unpack(Reader { receiver, rest: Bytes::new() }, &prefix, &to));
        let frames = self.run(&["tar", "cf", "-", path], false).await?;
        let status = stream::exchange(frames, stream::no_input(), |channel, bytes| match channel {
            // A failed writer has its own error, reported below.
            STDOUT => drop(sender.send(Bytes::copy_from_slice(bytes))),
            _ => complain(channel, bytes),
        })
        .await?;
        drop(sender);
        unpacking.await.map_err(anyhow::Error::from)??;
        stream::exit(status).map(drop)
    }
}

/// Errors of the remote tar, except that it removes leading slashes, which is intended.
fn complain(channel: u8, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if channel == STDERR && !text.to_lowercase().contains("removing leading") {
        err!("{text}");
    }
}

/// A path without parts that leave the directory: `/a/../b` is `b`.
fn relative(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            _ => {}
        }
    }
    clean
}

/// Writes the file or directory `from` as an archive with the name `name` into frames.
fn pack(from: &Path, name: &Path, sender: mpsc::Sender<io::Result<Frame>>) -> io::Result<()> {
    let mut tar = tar::Builder::new(io::BufWriter::with_capacity(64 << 10, Writer(&sender)));
    tar.follow_symlinks(false);
    let packed = match from.is_dir() {
        true => tar.append_dir_all(name, from),
        false => tar.append_path_with_name(from.canonicalize()?, name),
    };
    let packed = packed.and_then(|()| tar.into_inner()).and_then(|mut writer| io::Write::flush(&mut writer));
    let last = match &packed {
        Ok(()) => Ok(Frame { channel: CLOSE, payload: Bytes::from_static(&[STDIN]) }),
        // The remote end must not take a truncated archive for a complete one.
        Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
    };
    sender.blocking_send(last).ok();
    packed
}

struct Writer<'a>(&'a mpsc::Sender<io::Result<Frame>>);

impl io::Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let frame = Frame { channel: STDIN, payload: Bytes::copy_from_slice(bytes) };
        self.0.blocking_send(Ok(frame)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes received from the remote end.
struct Reader {
    receiver: std::sync::mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.recv() {
                Ok(bytes) => self.rest = bytes,
                Err(_) => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// Unpacks the part of an archive at `prefix` to `to`. The archive comes from a container, so it is not trusted: entries are only
/// written below `to`, links are skipped like kubectl does, and existing links are not followed. Its names are escaped for the
/// terminal.
pub(super) fn unpack(source: impl io::Read, prefix: &Path, to: &Path) -> io::Result<()> {
    let left = Cell::new(MAX_EXTENSIONS);
    let mut archive = tar::Archive::new(Bounded { source, left: &left });
    for entry in archive.entries()? {
        let mut entry = entry?;
        // The entry's data follows; after it come headers again.
        left.set(u64::MAX);
        unpack_entry(&mut entry, prefix, to)?;
        io::copy(&mut entry, &mut io::sink())?;
        left.set(MAX_EXTENSIONS);
    }
    left.set(u64::MAX);
    // The remote tar may send more than the archive needs.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map(drop)
}

/// The limit of the headers before an entry (long names, pax records), as in Go's reader: they are read into memory.
const MAX_EXTENSIONS: u64 = 1 << 20;

/// A reader with a limit, beyond which it fails.
struct Bounded<'a, R> {
    source: R,
    left: &'a Cell<u64>,
}

impl<R: io::Read> io::Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        let left = self.left.get().checked_sub(count as u64);
        self.left.set(left.ok_or_else(|| io::Error::other("the archive's headers are too long"))?);
        Ok(count)
    }
}

fn unpack_entry(entry: &mut tar::Entry<'_, impl io::Read>, prefix: &Path, to: &Path) -> io::Result<()> {
    let path = relative(&entry.path()?);
    let Ok(inside) = path.strip_prefix(prefix) else {
        errln!("warning: skipping {path:?}: it is not below {}", prefix.display());
        return Ok(());
    };
    let target = if inside.as_os_str().is_empty() { to.to_owned() } else { to.join(inside) };
    let through_link = target.ancestors().take_while(|a| *a != to).any(Path::is_symlink);
    if through_link {
        errln!("warning: skipping {path:?}: a link is in its way");
        return Ok(());
    }
    match entry.header().entry_type() {
        tar::EntryType::Directory => std::fs::create_dir_all(&target)?,
        tar::EntryType::Regular | tar::EntryType::Continuous => {
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder)?;
            }
            io::copy(entry, &mut std::fs::File::create(&target)?)?;
        }
        _ => errln!("warning: skipping {path:?}: neither a file nor a folder"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart() {
        let there = |namespace: Option<&str>, pod: &str, path: &str| End::There {
            namespace: namespace.map(str::to_owned),
            pod: pod.into(),
            path: path.into(),
        };
        assert_eq!(end("web:/tmp/a:b"), Ok(there(None, "web", "/tmp/a:b")));
        assert_eq!(end("lab/web:tmp"), Ok(there(Some("lab"), "web", "tmp")));
        assert_eq!(end("/tmp/a:b"), Ok(End::Here("/tmp/a:b".into())));
        assert_eq!(end("./web:x"), Ok(End::Here("./web:x".into())));
        assert_eq!(end("file"), Ok(End::Here("file".into())));
        assert!(end("web:").is_err() && end(":x").is_err() && end("a/b/c:x").is_err());
    }

    /// An archive with these entries: path, type, content or link target.
    fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, of_type, text) in entries {
            let mut header = tar::Header::new_gnu();
            // `set_path` refuses what an attacker would write.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*of_type);
            header.set_mode(0o644);
            let is_link = *of_type == tar::EntryType::Symlink;
            if is_link {
                header.set_link_name(text).expect("a link's target");
            }
            let text = if is_link { "" } else { text };
            header.set_size(text.len() as u64);
            header.set_cksum();
            tar.append(&header, text.as_bytes()).expect("an entry");
        }
        tar.into_inner().expect("an archive")
    }

    #[test]
    fn a_name_without_end_is_not_taken_into_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        // A GNU long name that claims a gigabyte, and delivers as much as is read.
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_size(1 << 30);
        header.set_cksum();
        let read = Cell::new(0);
        struct Counted<'a, R>(R, &'a Cell<usize>);
        impl<R: io::Read> io::Read for Counted<'_, R> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let count = self.0.read(buffer)?;
                self.1.set(self.1.get() + count);
                Ok(count)
            }
        }
        let endless = io::Read::chain(io::Cursor::new(header.as_bytes().to_vec()), io::repeat(b'a'));
        let why = unpack(Counted(endless, &read), Path::new("x"), folder.path()).expect_err("it is refused");
        assert!(why.to_string().contains("headers are too long"), "{why}");
        assert!(read.get() < 4 << 20, "{} bytes were read", read.get());
    }

    #[test]
    fn nothing_lands_outside() {
        use tar::EntryType::{Directory, Regular, Symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let (to, outside) = (folder.path().join("to"), folder.path().join("outside"));
        let entries = [
            ("tmp/up/", Directory, ""),
            ("tmp/up/good", Regular, "good"),
            ("tmp/up/../../../outside", Regular, "bad"),
            ("tmp/other", Regular, "bad"),
            ("tmp/up/link", Symlink, "/etc/passwd"),
        ];
        unpack(&archive(&entries)[..], Path::new("tmp/up"), &to).expect("it unpacks");
        assert_eq!(std::fs::read_to_string(to.join("good")).expect("a file"), "good");
        assert!(!outside.exists() && !to.join("other").exists() && !to.join("link").is_symlink());

        std::os::unix::fs::symlink(&outside, to.join("trap")).expect("a link");
        let entries = [("tmp/up/trap", Regular, "bad"), ("tmp/up/after", Regular, "good")];
        unpack(&archive(&entries)[..], Path::new("tmp/up"), &to).expect("it unpacks");
        assert!(!outside.exists() && to.join("after").exists());
    }

    #[test]
    fn one_file_gets_the_name_that_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("down");
        let one = archive(&[("tmp/word", tar::EntryType::Regular, "hello")]);
        unpack(&one[..], Path::new("tmp/word"), &to).expect("it unpacks");
        assert_eq!(std::fs::read_to_string(to).expect("a file"), "hello");
    }
}
