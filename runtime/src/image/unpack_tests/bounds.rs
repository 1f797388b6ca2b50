//! What a layer may cost: bytes, entries, looks, attributes and depth.

use super::*;

#[test]
fn bombs_go_off_nowhere() {
    if !is_root() {
        return;
    }
    let options = Options { free_bytes: 1 << 20, max_ratio: 50, max_entries: 300, ..Options::default() };
    let nothing = |files| (0..files).fold(Tar::new(), |tar, number| tar.file(&format!("f{number}"), "")).bytes();
    let (mut deep, mut crowd) = (Tar::new(), Tar::new());
    for number in 0..301 {
        crowd = crowd.hardlink(&format!("h{number}"), "x");
        deep = deep.dir(&format!("d{number}/"), 0o700);
    }
    let padded = [Tar::new().file("a", "a").bytes(), vec![0; 8 << 20]].concat();
    let bombs: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a file of zeros", gzip(&Tar::new().file("zeros", &"\0".repeat(4 << 20)).bytes()), "decompression bomb"),
        ("zeros after the end", gzip(&padded), "decompression bomb"),
        ("files of nothing", gzip(&nothing(200)), ""),
        ("more inodes of nothing than a MiB has", gzip(&nothing(280)), "decompression bomb"),
        ("too many entries", deep.bytes(), "more than 300 entries"),
        ("links to nothing", crowd.bytes(), "not there"),
        ("a sparse file", sparse("hole", 1 << 40), "larger than"),
        ("a few bytes in few blocks", scattered("few", 100), ""),
        ("a byte in each of many blocks", gzip(&scattered("many", 4096)), "decompression bomb"),
        ("zstd", zstd::encode_all(&[0u8; 8 << 20][..], 19).unwrap(), "decompression bomb"),
    ];
    for (what, bytes, expected) in bombs {
        let place = Fixture::new();
        let root = place.dir.path().join("layer0");
        fs::create_dir(&root).unwrap();
        let error = place.unpack_with(&bytes, &root, &options).err().map(|e| e.to_string());
        match expected {
            "" => assert_eq!(error, None, "{what}"),
            expected => assert!(error.as_ref().is_some_and(|e| e.contains(expected)), "{what}: {error:?}"),
        }
        let unpacked: u64 =
            fs::read_dir(&root).unwrap().map(|f| fs::symlink_metadata(f.unwrap().path()).unwrap().blocks() * 512).sum();
        assert!(unpacked <= 2 << 20, "{what}: {unpacked} bytes on the disk");
    }
}

/// A link to a lower layer's file copies it: a few bytes would make any number of copies of a large file.
#[test]
fn copies_of_lower_files_count() {
    if !is_root() {
        return;
    }
    let options = Options { free_bytes: 1 << 20, max_ratio: 2, ..Options::default() };
    let mut place = Fixture::new();
    let lower = place.dir.path().join("layer0");
    fs::create_dir(&lower).unwrap();
    place.unpack_with(&sparse("hole", 64 << 20), &lower, &options).unwrap();
    place.layers.push(lower);
    let root = place.dir.path().join("layer1");
    fs::create_dir(&root).unwrap();
    let error = place.unpack_with(&Tar::new().hardlink("copy", "hole").bytes(), &root, &options).unwrap_err();
    assert!(error.to_string().contains("decompression bomb"), "{error}");
    assert!(!root.join("hole").exists());
}

#[test]
fn paths_that_only_fill_memory_are_refused() {
    if !is_root() {
        return;
    }
    let mut place = Fixture::new();
    let long = "n/".repeat(3000);
    let mut tar = Tar::new();
    tar.0.append_pax_extensions([("path", long.as_bytes())]).unwrap();
    let error = place.unpack(tar.file("x", "")).unwrap_err().to_string();
    assert!(error.contains("a path of 6000 bytes"), "{error}");
}

/// Directories that no entry names are made one by one, and looked for in each layer below: that costs what entries cost.
#[test]
fn looking_for_directories_is_bounded() {
    if !is_root() {
        return;
    }
    let options = Options { max_looks: 1000, ..Options::default() };
    let mut place = Fixture::new();
    let try_on_top = |place: &Fixture, tar: Tar, options: &Options| {
        let root = tempfile::tempdir().unwrap();
        place.unpack_with(&tar.bytes(), root.path(), options).map(drop).map_err(|e| e.to_string())
    };
    let deep = ["d"; 20].join("/");
    for _ in 0..8 {
        place.unpack(Tar::new().file(&format!("{deep}/f"), "")).unwrap();
    }
    // Each is below a directory that all layers have, and in none of them.
    let missing = (0..20).fold(Tar::new(), |tar, n| tar.file(&format!("{deep}/n{n}/f"), ""));
    assert_eq!(try_on_top(&place, missing, &options), Err("more than 1000 looks for directories".into()));
    let maze = format!("{}d", "d/../".repeat(18));
    let walks =
        (0..40).fold(Tar::new().dir("d", 0o755).symlink("s", &maze), |tar, n| tar.file(&format!("s/n{n}/f"), ""));
    assert_eq!(try_on_top(&place, walks, &options), Err("more than 1000 looks for directories".into()));
    // What no layer has at all takes no look at its inside, and what has entries of its own takes none.
    let enough = Options { max_looks: 3000, ..Options::default() };
    let elsewhere = format!("e/{deep}/f");
    assert_eq!(try_on_top(&place, Tar::new().file(&elsewhere, ""), &enough), Ok(()));
    let honest = (0..200).fold(Tar::new(), |tar, n| tar.dir(&format!("e{n}"), 0o755).file(&format!("e{n}/f"), ""));
    assert_eq!(try_on_top(&place, honest, &options), Ok(()));
    let few = Options { max_entries: 20, ..Options::default() };
    assert_eq!(try_on_top(&place, Tar::new().file(&elsewhere, ""), &few), Err("more than 20 entries".into()));
}

#[test]
fn a_frame_that_wants_gigabytes_to_look_back_on_is_refused() {
    // RFC 8878, 3.1.1: magic, a descriptor with nothing in it, the window's exponent, and a last block without content.
    let frame = |log: u8| [0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 1, 0, 0];
    let mut nothing = Vec::new();
    for log in [10, 23, 27] {
        assert_eq!(decompress(&frame(log)[..]).unwrap().read_to_end(&mut nothing).unwrap(), 0, "{log}");
    }
    for log in 28..=31 {
        let error = decompress(&frame(log)[..]).unwrap().read_to_end(&mut nothing).unwrap_err().to_string();
        assert!(error.contains("too much memory"), "{log}: {error}");
    }
}

#[test]
fn bombs_are_bounded() {
    let root = tempfile::tempdir().unwrap();
    let options = Options { max_layer_bytes: 1 << 20, max_entries: 10, ..Options::default() };
    let zeros = vec![0u8; 8 << 20];
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut gz, &Tar::new().entry("z", EntryType::Regular, 0o644, "", &zeros).bytes()).unwrap();
    let error = unpack(&gz.finish().unwrap()[..], root.path(), &[], &options).unwrap_err();
    assert!(matches!(&error, ImageError::Invalid(m) if m.contains("1048576 bytes")), "{error}");
    let many = (0..20).fold(Tar::new(), |tar, i| tar.file(&format!("f{i}"), "")).bytes();
    let error = unpack(&many[..], root.path(), &[], &options).unwrap_err();
    assert!(error.to_string().contains("more than 10 entries"), "{error}");
}

#[test]
fn a_tree_that_is_too_deep_is_refused_however_it_is_reached() {
    if !is_root() {
        return;
    }
    let deep = |parts: usize| vec!["d"; parts].join("/");
    let refused = |tar: Tar| {
        let root = tempfile::tempdir().unwrap();
        unpack(&tar.bytes(), root.path(), &[], &Options::default()).err().map(|error| error.to_string())
    };
    let too_deep = |tar: Tar| refused(tar).is_some_and(|why| why.contains("more than 256 directories deep"));
    assert_eq!(refused(Tar::new().path(&deep(256)).file("x", "")), None);
    assert!(too_deep(Tar::new().path(&deep(257)).file("x", "")));
    assert!(too_deep(Tar::new().path(&deep(300)).dir("x", 0o755)));
    // No path is long: each leads through a link to what is deep already.
    let linked = || Tar::new().path(&deep(200)).dir("x", 0o755).target(&deep(200)).symlink("s", "x");
    assert_eq!(refused(linked().path(&format!("s/{}", deep(50))).file("x", "")), None);
    assert!(too_deep(linked().path(&format!("s/{}", deep(60))).file("x", "")));
    let twice = linked().path(&format!("s/{}", deep(50))).dir("x", 0o755).target(&format!("s/{}", deep(50)));
    assert!(too_deep(twice.symlink("t", "x").path(&format!("t/{}", deep(20))).dir("x", 0o755)));
}

#[test]
fn xattrs_of_a_file_and_of_a_layer_are_bounded() {
    if !is_root() {
        return;
    }
    let value = vec![b'x'; MAX_XATTRS / 2];
    let two = |tar: Tar| tar.xattr("user.a", &value).xattr("user.b", &value);
    let error = Fixture::new().unpack(two(Tar::new()).file("f", "")).unwrap_err();
    let expected = "extended attributes of a file have 65548 bytes, more than 65536";
    assert!(matches!(&error, ImageError::Invalid(why) if why.contains(expected)), "{error}");
    // Symlinks get none: they count before anything is set.
    let each = MAX_XATTRS - "user.a".len();
    let many = |count: usize| {
        let value = vec![b'x'; each];
        let links = (0..count).fold(Tar::new(), |tar, n| tar.xattr("user.a", &value).symlink(&format!("l{n}"), "x"));
        Fixture::new().unpack(links).map(drop).map_err(|e| e.to_string())
    };
    let most = MAX_LAYER_XATTRS / (MAX_XATTRS - PLAIN_XATTRS);
    assert_eq!(many(most), Ok(()));
    let error = many(most + 1).unwrap_err();
    assert!(error.contains("extended attributes of a layer have more than 16777216 bytes"), "{error}");
    let labels = (0..100).fold(Tar::new(), |tar, n| tar.xattr("user.a", &[b'x'; 200]).symlink(&format!("l{n}"), "x"));
    let (place, bytes) = (Fixture::new(), labels.bytes());
    let mut reader = TarReader::new(&bytes[..]);
    let mut layer = Layer::open(place.dir.path(), &[], place.allowance(&Options::default())).unwrap();
    while let Some(entry) = reader.next_entry().unwrap() {
        layer.apply(&entry, &mut reader).unwrap();
    }
    assert_eq!(layer.xattrs, 0, "what is plain comes with its file");
}

/// What a layer below has of them is given to each directory that an upper one makes anew.
#[test]
fn xattrs_of_layers_below_are_held_in_as_much_memory_as_they_need_and_count() {
    if !is_root() {
        return;
    }
    let mut place = Fixture::new();
    let small = (0..50).fold(Tar::new(), |tar, n| tar.xattr(&format!("user.{n}"), b"y"));
    let lower = place.unpack(small.dir("small", 0o755).dir("large", 0o755)).unwrap();
    let found = find_beneath(std::fs::File::open(&lower).unwrap(), b"small").unwrap().unwrap();
    let attributes = Attributes::of(&found).unwrap();
    assert_eq!(attributes.xattrs.iter().filter(|(name, _)| name.starts_with("user.")).count(), 50);
    let held: usize = attributes.xattrs.iter().map(|(_, value)| value.capacity()).sum();
    assert!(held < 4096, "{held} bytes are held");
    let fill = |name: &str, bytes: usize| {
        rustix::fs::setxattr(lower.join("large"), name, &vec![b'x'; bytes], XattrFlags::empty())
    };
    if fill("user.a", 60_000).is_err() {
        eprintln!("this file system takes no large xattrs");
        return;
    }
    let upper = place.dir.path().join("upper");
    fs::create_dir(&upper).unwrap();
    let mut layer = Layer::open(&upper, &place.layers, place.allowance(&Options::default())).unwrap();
    layer.directory(&[b"large".to_vec()]).unwrap();
    assert!((60_000 - PLAIN_XATTRS..61_000).contains(&layer.xattrs), "{}", layer.xattrs);
    fill("user.b", 60_000).unwrap();
    let error = place.unpack(Tar::new().file("large/f", "")).unwrap_err();
    assert!(error.to_string().contains("extended attributes of a file have "), "{error}");
}
