//! Unpacking, as root in a temporary folder: fidelity, whiteouts, lower layers, hostile archives.

#[path = "unpack_tests/archives.rs"]
mod archives;
#[path = "unpack_tests/bounds.rs"]
mod bounds;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tar::{EntryType, Header};

use super::*;
use crate::image::attributes::MAX_XATTRS;
use crate::image::digest::sha256;
use crate::image::limits::Space;
use crate::image::view::{LayerView, find_beneath, is_opaque};
use archives::{Tar, gzip, scattered, sparse};

/// A folder with an `outside` that must stay untouched, and layers beside it.
struct Fixture {
    dir: tempfile::TempDir,
    layers: Vec<PathBuf>,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/precious"), "untouched").unwrap();
        Fixture { dir, layers: Vec::new() }
    }

    /// Unpacks on top of the previous ones.
    fn unpack(&mut self, tar: Tar) -> Result<PathBuf> {
        let root = self.dir.path().join(format!("layer{}", self.layers.len()));
        fs::create_dir(&root).unwrap();
        self.unpack_with(&tar.bytes(), &root, &Options::default())?;
        self.layers.insert(0, root.clone());
        Ok(root)
    }

    fn unpack_with(&self, tar: &[u8], root: &Path, options: &Options) -> Result<Unpacked> {
        unpack(tar, root, &self.layers, options)
    }

    fn allowance(&self, options: &Options) -> Arc<Allowance> {
        allowance(self.dir.path(), options)
    }

    /// As `unpack`, but continues after rejected entries.
    fn unpack_what_goes(&mut self, tar: Tar) {
        let root = self.dir.path().join(format!("layer{}", self.layers.len()));
        fs::create_dir(&root).unwrap();
        let bytes = tar.bytes();
        let mut tar = TarReader::new(&bytes[..]);
        let mut layer = Layer::open(&root, &self.layers, self.allowance(&Options::default())).unwrap();
        while let Some(entry) = tar.next_entry().unwrap() {
            let _ = layer.apply(&entry, &mut tar);
        }
        layer.finish().unwrap();
        self.layers.insert(0, root);
    }

    fn untouched(&self) -> bool {
        let outside = self.dir.path().join("outside");
        fs::read_dir(&outside).unwrap().count() == 1
            && fs::read_to_string(outside.join("precious")).unwrap() == "untouched"
    }
}

fn allowance(dir: &Path, options: &Options) -> Arc<Allowance> {
    Allowance::new(&Arc::new(Space::new(dir.to_owned(), options)), options)
}

fn unpack(tar: &[u8], root: &Path, below: &[PathBuf], options: &Options) -> Result<Unpacked> {
    let allowance = allowance(root, options);
    super::unpack(allowance.packed(tar), root, below, options, &allowance)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn opaque(path: &Path) -> bool {
    let dir = fs::File::open(path).unwrap();
    is_opaque(&find_beneath(&dir, b"").unwrap().unwrap())
}

#[test]
fn attributes_survive() {
    if !is_root() {
        return;
    }
    let mut place = Fixture::new();
    let capability = b"\x01\x00\x00\x02\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let long = format!("d/{}", "n".repeat(97));
    let tar = Tar::new()
        .dir("./", 0o711)
        .dir("d", 0o500)
        .file("d/f", "hello")
        .entry("suid", EntryType::Regular, 0o4755, "", b"x")
        .xattr("security.capability", capability)
        .entry("cap", EntryType::Regular, 0o755, "", b"x")
        .symlink("link", "/absolute/nowhere")
        .hardlink("hard", "d/f")
        .entry("null", EntryType::Char, 0o666, "", b"")
        .entry("pipe", EntryType::Fifo, 0o600, "", b"")
        .file(&long, "long")
        .dir("tmp", 0o1777);
    let root = place.unpack(tar).unwrap();
    let meta = |p: &str| fs::symlink_metadata(root.join(p)).unwrap();
    assert_eq!(meta("").mode() & 0o7777, 0o711);
    assert_eq!((meta("d").mode() & 0o7777, meta("d").mtime()), (0o500, 1_000_000_000));
    let file = meta("d/f");
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777, file.mtime()), (1000, 1001, 0o644, 1_000_000_000));
    assert_eq!(meta("suid").mode() & 0o7777, 0o4755);
    assert_eq!(meta("tmp").mode() & 0o7777, 0o1777);
    assert_eq!(meta("hard").ino(), file.ino());
    assert_eq!((meta("link").uid(), meta("link").mtime()), (1000, 1_000_000_000));
    assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("/absolute/nowhere"));
    assert!(meta("null").file_type().is_char_device() && meta("null").rdev() == rustix::fs::makedev(1, 3));
    assert!(meta("pipe").file_type().is_fifo());
    assert_eq!(fs::read_to_string(root.join(&long)).unwrap(), "long");
    let mut value = [0u8; 64];
    let length = rustix::fs::getxattr(root.join("cap"), "security.capability", &mut value).unwrap();
    assert_eq!(&value[..length], capability);
}

#[test]
fn whiteouts_become_overlay_marks() {
    if !is_root() {
        return;
    }
    let mut place = Fixture::new();
    let tar = Tar::new()
        .file("a/.wh.gone", "")
        .file("b/.wh..wh..opq", "")
        .file("b/new", "n")
        .file(".wh..wh.plnk", "")
        .file("c/.wh.sub", "")
        .file("c/sub/inner", "i")
        .file("d/sub/inner", "i")
        .file("d/.wh.sub", "");
    let root = place.unpack(tar).unwrap();
    let gone = fs::symlink_metadata(root.join("a/gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert!(opaque(&root.join("b")) && !opaque(&root.join("a")));
    assert!(!root.join(".wh..wh.plnk").exists());
    // Replaced in the same layer, in either order: only the new content.
    for dir in ["c/sub", "d/sub"] {
        assert!(opaque(&root.join(dir)), "{dir}");
        assert_eq!(fs::read_to_string(root.join(dir).join("inner")).unwrap(), "i");
    }
    assert!(matches!(place.unpack(Tar::new().file(".wh...", "")), Err(ImageError::Invalid(_))));
}

#[test]
fn lower_layers_are_seen() {
    if !is_root() {
        return;
    }
    let mut place = Fixture::new();
    let lower = Tar::new().dir("usr", 0o755).dir("usr/bin", 0o750).symlink("bin", "/usr/bin").dir("tmp", 0o1777);
    place.unpack(lower.dir("var", 0o700).file("var/old", "old").file("usr/bin/tool", "tool").dir("x", 0o711)).unwrap();
    let upper = Tar::new()
        .file("bin/new", "n")
        .file("tmp/t", "t")
        .hardlink("usr/alias", "usr/bin/tool")
        .file("var/.wh..wh..opq", "")
        .file(".wh.x", "");
    let root = place.unpack(upper).unwrap();
    let mode = |p: &str| fs::symlink_metadata(root.join(p)).unwrap().mode() & 0o7777;
    // Below the lower layer's symlink, with the lower directories' attributes.
    assert_eq!(fs::read_to_string(root.join("usr/bin/new")).unwrap(), "n");
    assert!(!root.join("bin").exists());
    assert_eq!((mode("usr/bin"), mode("tmp"), mode("var")), (0o750, 0o1777, 0o700));
    assert_eq!(fs::read_to_string(root.join("usr/alias")).unwrap(), "tool");
    let top = place.unpack(Tar::new().file("x/y", "y").file("var/z", "z")).unwrap();
    assert_eq!(fs::symlink_metadata(top.join("x")).unwrap().mode() & 0o7777, 0o755, "x was removed in between");

    let view = LayerView::open(&place.layers).unwrap();
    let read = |p: &str| view.read_file(p, 99).unwrap().map(|b| String::from_utf8(b).unwrap());
    assert_eq!(read("/bin/../bin/new").as_deref(), Some("n"));
    assert_eq!(read("var/z").as_deref(), Some("z"));
    assert_eq!((read("var/old"), read("nothing"), read("usr")), (None, None, None));
    let missing = place.unpack(Tar::new().hardlink("l", "var/old")).unwrap_err().to_string();
    assert!(missing.contains("not there"), "{missing}");
}

#[test]
fn entries_replace_each_other() {
    if !is_root() {
        return;
    }
    let mut place = Fixture::new();
    let tar = Tar::new()
        .file("a/deep/er", "1")
        .file("a", "file")
        .symlink("b", "a")
        .file("b", "plain")
        .file("c", "file")
        .file("c/inside", "no");
    let error = place.unpack(tar).unwrap_err().to_string();
    assert!(error.contains("c is not a directory"), "{error}");
    let root = place.dir.path().join("layer0");
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "file");
    assert_eq!(fs::read_to_string(root.join("b")).unwrap(), "plain");
}

#[test]
fn a_stream_may_be_of_any_number_of_gzip_members() {
    let empty = gzip(b"").repeat(50_000);
    let stream = [empty.as_slice(), &gzip(b"data"), &empty].concat();
    let mut out = Vec::new();
    decompress(&stream[..]).unwrap().read_to_end(&mut out).unwrap();
    assert_eq!(out, b"data");
}

#[test]
fn hostile_archives_stay_inside() {
    if !is_root() {
        return;
    }
    let attacks: Vec<(&str, Tar)> = vec![
        ("dotdot", Tar::new().file("../outside/precious", "bad")),
        ("absolute", Tar::new().file("/etc/podwright-test-escape", "fine, inside")),
        ("symlink", Tar::new().symlink("l", "../outside").file("l/precious", "bad")),
        ("absolute symlink", Tar::new().symlink("l", "/").file("l/podwright-test-escape", "bad")),
        ("hardlink out", Tar::new().hardlink("h", "../outside/precious").file("h", "bad")),
        ("hardlink by symlink", Tar::new().symlink("l", "../outside").hardlink("h", "l/precious").file("h", "bad")),
        ("loop", Tar::new().symlink("a", "b").symlink("b", "a").file("a/x", "bad")),
        ("proc", Tar::new().symlink("l", "/proc/self/root").file("l/podwright-test-escape", "bad")),
        ("whiteout out", Tar::new().file("../outside/.wh.precious", "")),
        ("whiteout by symlink", Tar::new().symlink("l", "../outside").file("l/.wh.precious", "")),
        ("opaque by symlink", Tar::new().symlink("l", "../outside").file("l/.wh..wh..opq", "")),
        ("redirect", Tar::new().xattr("trusted.overlay.redirect", b"/../outside").dir("d", 0o755)),
        ("root as file", Tar::new().file(".", "bad").symlink("./", "../outside")),
    ];
    for (what, tar) in attacks {
        let mut place = Fixture::new();
        let _ = place.unpack(tar);
        assert!(place.untouched(), "{what}");
        assert!(!Path::new("/podwright-test-escape").exists() && !Path::new("/etc/podwright-test-escape").exists());
        let mut value = [0u8; 64];
        let dir = place.dir.path().join("layer0/d");
        assert!(rustix::fs::getxattr(&dir, "trusted.overlay.redirect", &mut value).is_err(), "{what}");
    }
}

#[test]
fn digests_cover_the_whole_stream_in_every_compression() {
    if !is_root() {
        return;
    }
    let mut tar = Tar::new().file("f", "data").bytes();
    tar.extend([7u8; 700]);
    let gz = || {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gz, &tar).unwrap();
        gz.finish().unwrap()
    };
    for packed in [tar.clone(), gz(), zstd::encode_all(&tar[..], 1).unwrap()] {
        let root = tempfile::tempdir().unwrap();
        let unpacked = unpack(&packed[..], root.path(), &[], &Options::default()).unwrap();
        assert_eq!(unpacked, Unpacked { diff_id: sha256(&tar), bytes: tar.len() as u64 });
    }
}

#[test]
fn sparse_files_unpack() {
    if !is_root() {
        return;
    }
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("sparse").unwrap();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(6);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.sparse[0].set_offset(1 << 20);
    gnu.sparse[0].set_length(6);
    gnu.set_real_size((1 << 20) + 10);
    header.set_cksum();
    let mut tar = Tar::new();
    tar.0.append(&header, &b"middle"[..]).unwrap();
    let mut place = Fixture::new();
    let root = place.unpack(tar.file("after", "x")).unwrap();
    let content = fs::read(root.join("sparse")).unwrap();
    assert_eq!((content.len(), &content[1 << 20..]), ((1 << 20) + 10, &b"middle\0\0\0\0"[..]));
    assert_eq!(fs::metadata(root.join("after")).unwrap().permissions().mode() & 0o777, 0o644);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever names, links and kinds an archive combines, in two layers, nothing outside changes.
    #[test]
    fn random_archives_stay_inside(
        entries in prop::collection::vec((
            prop::collection::vec(prop::sample::select(vec!["a", "b", "..", ".", "", ".wh.a", ".wh..wh..opq", "outside", "precious"]), 1..5),
            prop::collection::vec(prop::sample::select(vec!["a", "b", "..", "outside", "precious", "", "/"]), 1..5),
            0usize..4,
        ), 1..24),
    ) {
        if is_root() {
            let mut place = Fixture::new();
            let half = entries.len() / 2;
            for part in [&entries[..half], &entries[half..]] {
                let tar = part.iter().fold(Tar::new(), |tar, (path, link, kind)| {
                    let (path, link) = (path.join("/"), link.join("/"));
                    match kind {
                        0 => tar.file(&path, "overwritten"),
                        1 => tar.dir(&path, 0o755),
                        2 => tar.symlink(&path, &link),
                        _ => tar.hardlink(&path, &link),
                    }
                });
                place.unpack_what_goes(tar);
            }
            prop_assert!(place.untouched());
        }
    }
}
