//! Builders for test archives, well-formed and hostile.

use tar::{Builder, EntryType, Header};

/// A tar being built.
pub struct Tar(pub Builder<Vec<u8>>);

impl Tar {
    pub fn new() -> Tar {
        Tar(Builder::new(Vec::new()))
    }

    pub fn entry(mut self, path: &str, kind: EntryType, mode: u32, link: &str, data: &[u8]) -> Tar {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(1000);
        header.set_gid(1001);
        header.set_mtime(1_000_000_000);
        header.set_size(data.len() as u64);
        if kind == EntryType::Char || kind == EntryType::Block {
            header.set_device_major(1).and_then(|()| header.set_device_minor(3)).unwrap();
        }
        // Names are written raw: the builder's own setters reject hostile ones.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, data).unwrap();
        self
    }

    pub fn file(self, path: &str, data: &str) -> Tar {
        self.entry(path, EntryType::Regular, 0o644, "", data.as_bytes())
    }

    pub fn dir(self, path: &str, mode: u32) -> Tar {
        self.entry(path, EntryType::Directory, mode, "", b"")
    }

    pub fn symlink(self, path: &str, target: &str) -> Tar {
        self.entry(path, EntryType::Symlink, 0o777, target, b"")
    }

    pub fn hardlink(self, path: &str, target: &str) -> Tar {
        self.entry(path, EntryType::Link, 0o644, target, b"")
    }

    /// The path of the next entry, of any length.
    pub fn path(mut self, path: &str) -> Tar {
        self.0.append_pax_extensions([("path", path.as_bytes())]).unwrap();
        self
    }

    /// The same for its link target.
    pub fn target(mut self, target: &str) -> Tar {
        self.0.append_pax_extensions([("linkpath", target.as_bytes())]).unwrap();
        self
    }

    pub fn xattr(mut self, key: &str, value: &[u8]) -> Tar {
        self.0.append_pax_extensions([(format!("SCHILY.xattr.{key}").as_str(), value)]).unwrap();
        self
    }

    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A GNU sparse file of `size` bytes without data.
pub fn sparse(path: &str, size: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(0);
    header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
    header.as_gnu_mut().unwrap().set_real_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    [header.as_bytes().as_slice(), &[0; 1024]].concat()
}

/// A GNU sparse file with one byte in each of this many disk blocks.
pub fn scattered(path: &str, blocks: u64) -> Vec<u8> {
    let parts: Vec<[u8; 24]> = (0..blocks)
        .map(|block| {
            let mut part = [0; 24];
            part.copy_from_slice(format!("{:011o}\0{:011o}\0", block * 4096, 1).as_bytes());
            part
        })
        .collect();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(blocks);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let (first, rest) = parts.split_at(parts.len().min(4));
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..path.len()].copy_from_slice(path.as_bytes());
    gnu.set_real_size(blocks * 4096);
    gnu.set_is_extended(!rest.is_empty());
    for (slot, part) in gnu.sparse.iter_mut().zip(first) {
        slot.offset.copy_from_slice(&part[..12]);
        slot.numbytes.copy_from_slice(&part[12..]);
    }
    header.set_cksum();
    let mut tar = header.as_bytes().to_vec();
    let more: Vec<_> = rest.chunks(21).collect();
    for (n, chunk) in more.iter().enumerate() {
        let mut block = [0; 512];
        block[..chunk.len() * 24].copy_from_slice(&chunk.concat());
        block[504] = u8::from(n + 1 < more.len());
        tar.extend_from_slice(&block);
    }
    tar.resize(tar.len() + (blocks as usize).next_multiple_of(512), b'x');
    tar.resize(tar.len() + 1024, 0);
    tar
}
