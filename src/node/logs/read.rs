//! A container's log, read across rotation a piece at a time, of which that is shown which is wanted.

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

/// So much is looked at in one piece: the longest that a CPU is busy for one reader before others have their turns.
const PIECE: usize = 1 << 20;

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
            let files = of_attempt(&self.log);
            let inode = |path: &PathBuf| fs::symlink_metadata(path).map(|m| m.ino()).ok();
            let at = files.iter().position(|path| inode(path) == Some(self.inode));
            // A file that was rotated away entirely is followed by the oldest that is left.
            let Some(next) = files.get(at.map_or(0, |at| at + 1)) else { return Ok(None) };
            self.file = open(next)?;
            self.inode = self.file.metadata()?.ino();
        }
    }
}
