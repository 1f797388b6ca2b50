//! Reads and filters a container's log across rotation, one piece at a time.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    files::{CHUNK, of_attempt, open, tail},
    lines::Follower,
};

/// Bytes read per piece: bounds how long one reader occupies a CPU before others get their turn.
const PIECE: usize = 1 << 20;

/// The result of reading one piece.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Output to show.
    Shown(Bytes),
    /// Nothing in it is wanted, but there is more.
    Passed,
    /// Everything written, or everything wanted, has been read.
    End,
}

/// Reads and filters one attempt's log. All methods block.
pub struct Scan {
    reader: Reader,
    follower: Follower,
}

impl Scan {
    /// Starts at the `last` lines, or at the beginning. Without `follow`, reads only what is written by now.
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

    /// Whether the output limit has been reached.
    pub fn is_full(&self) -> bool {
        self.follower.is_full()
    }
}

/// Reads an attempt's files in order and follows rotation.
struct Reader {
    log: PathBuf,
    file: File,
    inode: u64,
    /// The remaining bytes to read: a writer may be faster than the reader.
    left: u64,
    buffer: Vec<u8>,
}

impl Reader {
    /// `follow`: without a limit.
    fn open(log: &Path, last: Option<u64>, follow: bool) -> io::Result<Reader> {
        let files = of_attempt(log);
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

    /// The next bytes; `None`: everything written has been read.
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
            let files = of_attempt(&self.log);
            let inode = |path: &PathBuf| fs::symlink_metadata(path).map(|m| m.ino()).ok();
            let at = files.iter().position(|path| inode(path) == Some(self.inode));
            // If the current file was rotated away entirely, continues with the oldest remaining one.
            let Some(next) = files.get(at.map_or(0, |at| at + 1)) else { return Ok(None) };
            self.file = open(next)?;
            self.inode = self.file.metadata()?.ino();
        }
    }
}
