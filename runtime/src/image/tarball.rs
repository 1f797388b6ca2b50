//! Reads tar archives: ustar, GNU long names and sparse files, pax (binary xattr values too), with bounded metadata.
//!
//! The `tar` crate decodes the headers. Its iterator is not used: it splits pax records at newlines, which breaks file capabilities
//! that contain the byte, and it reads a header's extensions of any length into memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use tar::{EntryType, Header};

use super::ImageError;

const BLOCK: u64 = 512;
/// Maximum bytes of all headers before an entry's own (long names, pax records, including global ones), counting a block for each.
/// Go's reader accepts as much for each.
const MAX_EXTENSIONS: u64 = 1 << 20;
/// The kernel's limits for extended attributes: a name, a value, all names of a file (`XATTR_NAME_MAX`, `XATTR_SIZE_MAX`,
/// `XATTR_LIST_MAX`).
const MAX_XATTR_NAME: usize = 255;
const MAX_XATTR_VALUE: usize = 64 << 10;
const MAX_XATTR_NAMES: usize = 64 << 10;
/// Maximum parts of a sparse map.
const MAX_SPARSE_PARTS: usize = 1 << 20;
/// The usual allocation unit of file systems; few use less.
const DISK_BLOCK: u64 = 4096;
/// The kernel's limit for a path (`PATH_MAX`).
const MAX_PATH: usize = 4096;

pub(super) struct TarReader<R> {
    reader: R,
    /// Bytes until the next header: unread data, and padding.
    left: u64,
    padding: u64,
}

/// One member, with all its extension headers applied.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub kind: Kind,
    pub path: Vec<u8>,
    /// Target of a hard or symbolic link.
    pub link: Vec<u8>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    pub device: (u32, u32),
    pub xattrs: Vec<(String, Vec<u8>)>,
    /// Size of the written file.
    pub size: u64,
    /// Offset and length of each data part of a sparse file.
    sparse: Option<Vec<(u64, u64)>>,
    /// The number of its headers, including extensions.
    pub headers: u64,
}

impl Entry {
    pub(super) fn is_sparse(&self) -> bool {
        self.sparse.is_some()
    }

    /// The disk space of a sparse file's data beyond its size: a part of one byte uses a block.
    pub(super) fn padding(&self) -> u64 {
        let parts = self.sparse.as_deref().unwrap_or_default().iter().filter(|(_, length)| *length > 0);
        // Parts are in order: a part may begin in the block where the previous one ends.
        let (mut filled, mut data, mut next) = (0u64, 0u64, 0u64);
        for (offset, length) in parts {
            let (first, after) = (offset / DISK_BLOCK, offset.saturating_add(*length).div_ceil(DISK_BLOCK));
            filled = filled.saturating_add(after.saturating_sub(first.max(next)));
            (data, next) = (data.saturating_add(*length), after);
        }
        filled.saturating_mul(DISK_BLOCK).saturating_sub(data)
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    File,
    Directory,
    Symlink,
    Hardlink,
    Char,
    Block,
    Fifo,
}

/// What the headers before an entry's own specify.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<(i64, i64)>,
    xattrs: Vec<(String, Vec<u8>)>,
    /// Total length of the xattrs' names, each with a NUL.
    xattr_names: usize,
    headers: u64,
    /// Total bytes of these headers.
    bytes: u64,
}

fn invalid(message: impl Into<String>) -> io::Error {
    ImageError::Invalid(message.into()).into()
}

impl<R: Read> TarReader<R> {
    pub(super) fn new(reader: R) -> TarReader<R> {
        TarReader { reader, left: 0, padding: 0 }
    }

    pub(super) fn into_inner(self) -> R {
        self.reader
    }

    /// The next member; none at the archive's end (a zero block, or end of input). Fails for a damaged archive.
    pub(super) fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut extensions = Extensions::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.read_header()? else { return Ok(None) };
            let size = header.entry_size()?;
            use EntryType::{GNULongLink, GNULongName, XGlobalHeader, XHeader};
            if matches!(header.entry_type(), GNULongName | GNULongLink | XHeader | XGlobalHeader) {
                extensions.count(size)?;
            }
            match header.entry_type() {
                GNULongName => extensions.path = Some(until_nul(self.read_extension(size)?)),
                GNULongLink => extensions.link = Some(until_nul(self.read_extension(size)?)),
                XHeader => extensions.read_pax(&self.read_extension(size)?)?,
                // Defaults for all members; docker and git write comments into it, nothing that matters here.
                XGlobalHeader => self.begin_data(size)?,
                _ => return self.entry(&header, extensions).map(Some),
            }
        }
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let skip = self.left + self.padding;
        let skipped = io::copy(&mut self.reader.by_ref().take(skip), &mut io::sink())?;
        // Some archives lack the last member's padding.
        if skipped < self.left {
            return Err(invalid("unexpected end of the archive"));
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    fn read_header(&mut self) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut filled = 0;
        while filled < block.len() {
            match self.reader.read(&mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(invalid("unexpected end of the archive")),
                n => filled += n,
            }
        }
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum: u32 =
            block.iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { 32 } else { *b as u32 }).sum();
        if header.cksum().ok() != Some(sum) {
            return Err(invalid("not a tar archive, or a damaged one: header checksum mismatch"));
        }
        Ok(Some(header))
    }

    fn begin_data(&mut self, size: u64) -> io::Result<()> {
        let padded = size.checked_next_multiple_of(BLOCK).ok_or_else(|| invalid("entry size overflows"))?;
        (self.left, self.padding) = (size, padded - size);
        Ok(())
    }

    fn read_extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        self.begin_data(size)?;
        let mut bytes = Vec::new();
        self.reader.by_ref().take(size).read_to_end(&mut bytes)?;
        self.left -= bytes.len() as u64;
        Ok(bytes)
    }

    fn entry(&mut self, header: &Header, extensions: Extensions) -> io::Result<Entry> {
        let path = extensions.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = extensions.link.or_else(|| header.link_name_bytes().map(|l| l.into_owned())).unwrap_or_default();
        if path.len().max(link.len()) >= MAX_PATH {
            return Err(invalid(format!("a path of {} bytes", path.len().max(link.len()))));
        }
        let kind = match header.entry_type() {
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Link => Kind::Hardlink,
            EntryType::Char => Kind::Char,
            EntryType::Block => Kind::Block,
            EntryType::Fifo => Kind::Fifo,
            // As in pre-ustar archives.
            EntryType::Regular if path.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
            other => return Err(invalid(format!("unknown entry type {:?}", other.as_byte() as char))),
        };
        // Other types have no data, whatever their size field says.
        use EntryType::{Continuous, GNUSparse, Regular};
        let has_data = matches!(header.entry_type(), Regular | Continuous | GNUSparse);
        let stored = if has_data { extensions.size.map_or_else(|| header.entry_size(), Ok)? } else { 0 };
        let (mut sparse, mut size) = (None, stored);
        if header.entry_type() == EntryType::GNUSparse {
            (sparse, size) = self.read_sparse_map(header, stored).map(|(parts, size)| (Some(parts), size))?;
        }
        self.begin_data(stored)?;
        // Others may leave these fields blank.
        let device = match kind {
            Kind::Char | Kind::Block => (header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0)),
            _ => (0, 0),
        };
        let small = |value: u64, what: &str| {
            u32::try_from(value).map_err(|_| invalid(format!("{}: {what} {value} is out of range", lossy(&path))))
        };
        Ok(Entry {
            kind,
            link,
            mode: header.mode()? & 0o7777,
            uid: extensions.uid.map_or_else(|| small(header.uid()?, "uid"), Ok)?,
            gid: extensions.gid.map_or_else(|| small(header.gid()?, "gid"), Ok)?,
            // Negative times (base-256) decode as huge numbers; they mean "before 1970", which is not needed.
            mtime: extensions
                .mtime
                .unwrap_or_else(|| (header.mtime().unwrap_or(0).min(i64::MAX as u64 >> 8) as i64, 0)),
            device,
            xattrs: extensions.xattrs,
            size,
            sparse,
            path,
            headers: extensions.headers + 1,
        })
    }

    /// GNU's old sparse format: the map in the header and in blocks that follow it.
    fn read_sparse_map(&mut self, header: &Header, stored: u64) -> io::Result<(Vec<(u64, u64)>, u64)> {
        let gnu = header.as_gnu().ok_or_else(|| invalid("sparse entry without a GNU header"))?;
        let mut parts = Vec::new();
        let mut add = |block: &tar::GnuSparseHeader| -> io::Result<()> {
            if !block.is_empty() {
                parts.push((block.offset()?, block.length()?));
            }
            if parts.len() > MAX_SPARSE_PARTS { Err(invalid("sparse map is too long")) } else { Ok(()) }
        };
        gnu.sparse.iter().try_for_each(&mut add)?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = tar::GnuExtSparseHeader::new();
            self.reader.read_exact(block.as_mut_bytes())?;
            block.sparse().iter().try_for_each(&mut add)?;
            more = block.is_extended();
        }
        let size = gnu.real_size()?;
        let mut end = 0;
        for (offset, length) in &parts {
            let after = offset.checked_add(*length).filter(|after| *offset >= end && *after <= size);
            end = after.ok_or_else(|| invalid("sparse map is out of order"))?;
        }
        if parts.iter().map(|(_, length)| length).sum::<u64>() != stored {
            return Err(invalid("sparse map does not match the entry's size"));
        }
        Ok((parts, size))
    }

    /// Writes the current entry's data.
    pub(super) fn copy_data(&mut self, entry: &Entry, out: &mut File) -> io::Result<()> {
        match &entry.sparse {
            None => {
                let copied = io::copy(&mut self.reader.by_ref().take(self.left), out)?;
                self.left -= copied;
            }
            Some(parts) => {
                let mut buffer = [0u8; 1 << 16];
                for (mut offset, mut length) in parts.iter().copied() {
                    while length > 0 {
                        let wanted = length.min(buffer.len() as u64) as usize;
                        self.reader.read_exact(&mut buffer[..wanted])?;
                        out.write_all_at(&buffer[..wanted], offset)?;
                        (offset, length) = (offset + wanted as u64, length - wanted as u64);
                        self.left -= wanted as u64;
                    }
                }
                out.set_len(entry.size)?;
            }
        }
        if self.left > 0 { Err(invalid("unexpected end of the archive")) } else { Ok(()) }
    }
}

impl Extensions {
    /// Counts a header with its data.
    fn count(&mut self, size: u64) -> io::Result<()> {
        self.headers += 1;
        self.bytes = self.bytes.saturating_add(size).saturating_add(BLOCK);
        if self.bytes > MAX_EXTENSIONS {
            let Extensions { headers, bytes, .. } = self;
            let which = format!("an entry's {headers} extended headers have {bytes} bytes");
            return Err(invalid(format!("{which}, more than {MAX_EXTENSIONS}")));
        }
        Ok(())
    }

    fn add_xattr(&mut self, name: &str, value: &[u8]) -> io::Result<()> {
        self.xattr_names += name.len() + 1;
        let bounds = [
            ("a name", name.len(), MAX_XATTR_NAME),
            ("a value", value.len(), MAX_XATTR_VALUE),
            ("names", self.xattr_names, MAX_XATTR_NAMES),
        ];
        if let Some((what, bytes, most)) = bounds.into_iter().find(|(_, bytes, most)| bytes > most) {
            return Err(invalid(format!("extended attributes: {what} of {bytes} bytes, more than {most}")));
        }
        self.xattrs.push((name.to_owned(), value.to_vec()));
        Ok(())
    }

    /// Records are `<length> <key>=<value>\n`, delimited by the length, not by the newline.
    fn read_pax(&mut self, mut records: &[u8]) -> io::Result<()> {
        let malformed = || invalid("malformed pax header");
        while !records.is_empty() && records[0] != 0 {
            let space = records.iter().position(|b| *b == b' ').ok_or_else(malformed)?;
            let length: usize = number(&records[..space]).ok_or_else(malformed)?;
            if length <= space + 1 || length > records.len() || records[length - 1] != b'\n' {
                return Err(malformed());
            }
            let record = &records[space + 1..length - 1];
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(malformed)?;
            self.set(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let bad = || invalid(format!("pax header: bad value of {}", lossy(key)));
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number(value).ok_or_else(bad)?),
            b"uid" => self.uid = Some(number(value).ok_or_else(bad)?),
            b"gid" => self.gid = Some(number(value).ok_or_else(bad)?),
            b"mtime" => self.mtime = Some(time(value).ok_or_else(bad)?),
            _ if key.starts_with(b"GNU.sparse.") => {
                return Err(invalid("sparse files in pax format are not supported"));
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    let name = std::str::from_utf8(name).ok().filter(|n| !n.contains('\0')).ok_or_else(bad)?;
                    self.add_xattr(name, value)?;
                }
            }
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// `seconds[.fraction]`, possibly negative.
fn time(value: &[u8]) -> Option<(i64, i64)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let nanos: i64 = format!("{:0<9.9}", fraction).parse().ok()?;
    match (text.starts_with('-'), nanos) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        _ => Some((seconds, nanos)),
    }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len()));
    bytes
}

pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests;
