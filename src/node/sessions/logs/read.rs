//! The files of a container's log: in their order, from their last lines, a piece at a time.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use podwright_runtime::sys::shared;

use super::Follower;

const CHUNK: usize = 64 << 10;
/// So much is looked at in one piece: the longest that a CPU is busy for one reader before others have their turns.
const PIECE: usize = 1 << 20;

/// The files of one attempt's log, oldest first: `0.log.4` .. `0.log.1`, `0.log`.
pub fn files(log: &Path) -> Vec<PathBuf> {
    let name = log.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut rotated: Vec<(u32, PathBuf)> = siblings(log)
        .filter_map(|path| {
            let number = path.file_name()?.to_str()?.strip_prefix(&name)?.strip_prefix('.')?.parse().ok()?;
            Some((number, path))
        })
        .collect();
    rotated.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    rotated.into_iter().map(|(_, path)| path).chain(is_file(log).then(|| log.to_owned())).collect()
}

/// The plain files beside a path.
fn siblings(path: &Path) -> impl Iterator<Item = PathBuf> {
    let folder = path.parent().and_then(|p| fs::read_dir(p).ok());
    folder.into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| is_file(path))
}

pub(super) fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Opens a log for reading. The shim alone is to write there, but a Pod that was given the host's log folder can put other
/// things in its place.
fn open(path: &Path) -> io::Result<File> {
    shared::open(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// The newest attempt that a container's log folder knows.
pub fn newest_attempt(folder: &Path) -> Option<u32> {
    let number = |path: PathBuf| path.file_name()?.to_str()?.strip_suffix(".log")?.parse::<u32>().ok();
    siblings(&folder.join("x")).filter_map(number).max()
}

/// Where the last `lines` lines begin: the index of a file and an offset in it.
///
/// # Errors
///
/// A file cannot be read.
pub fn tail(files: &[PathBuf], lines: u64) -> io::Result<(usize, u64)> {
    if lines == 0 {
        let last = files.len().saturating_sub(1);
        return Ok((last, files.get(last).map_or(Ok(0), |f| fs::symlink_metadata(f).map(|m| m.len()))?));
    }
    let mut wanted = lines;
    for (index, path) in files.iter().enumerate().rev() {
        let mut file = open(path)?;
        let mut end = file.metadata()?.len();
        // The newline that ends the very last line ends no line before it.
        let mut first = true;
        let mut buffer = vec![0; CHUNK];
        while end > 0 {
            let start = end.saturating_sub(CHUNK as u64);
            let piece = &mut buffer[..(end - start) as usize];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(piece)?;
            for (at, byte) in piece.iter().enumerate().rev() {
                if *byte != b'\n' || std::mem::take(&mut first) {
                    continue;
                }
                wanted -= 1;
                if wanted == 0 {
                    return Ok((index, start + at as u64 + 1));
                }
            }
            end = start;
        }
        if !first {
            wanted -= 1;
        }
        if wanted == 0 {
            return Ok((index, 0));
        }
    }
    Ok((0, 0))
}

/// What a piece of a log comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// This is to be shown.
    Shown(Bytes),
    /// Nothing of it is wanted, and there is more.
    Passed,
    /// All that is written has been read, or all that was wanted.
    End,
}

/// An attempt's log, read and filtered. All of it blocks.
pub struct Scan {
    reader: Reader,
    follower: Follower,
}

impl Scan {
    /// Begins with the `last` lines, or at the beginning. Whoever does not `follow` has what is written by now.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn open(log: &Path, last: Option<u64>, follow: bool, follower: Follower) -> io::Result<Scan> {
        Ok(Scan { reader: Reader::open(log, last, follow)?, follower })
    }

    /// The next piece.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn piece(&mut self) -> io::Result<Piece> {
        let mut looked = 0;
        while looked < PIECE {
            if self.follower.is_full() {
                return Ok(Piece::End);
            }
            let Some(bytes) = self.reader.read()? else { return Ok(Piece::End) };
            looked += bytes.len();
            if let Some(out) = self.follower.take(bytes) {
                return Ok(Piece::Shown(out));
            }
        }
        Ok(Piece::Passed)
    }

    /// Nothing more will be shown.
    pub fn is_full(&self) -> bool {
        self.follower.is_full()
    }
}

/// Reads an attempt's files one after the other; goes on where the writer rotates.
struct Reader {
    log: PathBuf,
    file: File,
    inode: u64,
    /// So many bytes are read, and no more: a writer may be faster than whoever reads.
    left: u64,
    buffer: Vec<u8>,
}

impl Reader {
    /// `follow`: without an end.
    fn open(log: &Path, last: Option<u64>, follow: bool) -> io::Result<Reader> {
        let files = files(log);
        let (index, offset) = match last {
            Some(lines) => tail(&files, lines)?,
            None => (0, 0),
        };
        let path = files.get(index).ok_or(io::ErrorKind::NotFound)?;
        let length = |file: &PathBuf| fs::symlink_metadata(file).map_or(0, |found| found.len());
        let written = files[index..].iter().map(length).sum::<u64>().saturating_sub(offset);
        let mut file = open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        let inode = file.metadata()?.ino();
        let left = if follow { u64::MAX } else { written };
        Ok(Reader { log: log.to_owned(), file, inode, left, buffer: vec![0; CHUNK] })
    }

    /// The next bytes; `None`: all that is written has been read.
    fn read(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            let most = self.buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            if most == 0 {
                return Ok(None);
            }
            let count = self.file.read(&mut self.buffer[..most])?;
            if count > 0 {
                self.left -= count as u64;
                return Ok(Some(&self.buffer[..count]));
            }
            let files = files(&self.log);
            let inode = |path: &PathBuf| fs::symlink_metadata(path).map(|m| m.ino()).ok();
            let at = files.iter().position(|path| inode(path) == Some(self.inode));
            // A file that was rotated away entirely is followed by the oldest that is left.
            let Some(next) = files.get(at.map_or(0, |at| at + 1)) else { return Ok(None) };
            self.file = open(next)?;
            self.inode = self.file.metadata()?.ino();
        }
    }
}
