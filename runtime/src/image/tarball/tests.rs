//! Archives as they are read: numbers, times and what extends a header.

use super::*;

#[test]
fn pax_values_may_hold_newlines() {
    let mut ext = Extensions::default();
    let value = b"\x01\n\nb=\x00";
    let mut records = format!("{} SCHILY.xattr.user.x=", 3 + 20 + value.len() + 1).into_bytes();
    records.extend_from_slice(value);
    records.extend_from_slice(b"\n15 path=a/b/cd\n20 mtime=1700000.25\n");
    ext.read_pax(&records).unwrap();
    assert_eq!(ext.xattrs, [("user.x".to_owned(), value.to_vec())]);
    assert_eq!(ext.path.as_deref(), Some(&b"a/b/cd"[..]));
    assert_eq!(ext.mtime, Some((1700000, 250_000_000)));
}

#[test]
fn times_before_1970_and_fractions() {
    for (text, expected) in [("5", (5, 0)), ("5.5", (5, 500_000_000)), ("-1.25", (-2, 750_000_000)), ("-3", (-3, 0))] {
        assert_eq!(time(text.as_bytes()), Some(expected), "{text}");
    }
    assert_eq!(time(b"1.x"), None);
}

/// A header and its data.
fn block(kind: EntryType, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_path("x").unwrap();
    header.set_cksum();
    let padding = data.len().next_multiple_of(BLOCK as usize) - data.len();
    [header.as_bytes(), data, &vec![0; padding]].concat()
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (1..9).map(|digits| rest + digits).find(|l| l.to_string().len() + rest == *l).unwrap();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

#[test]
fn headers_before_an_entry_share_one_budget() {
    let third = vec![b'a'; MAX_EXTENSIONS as usize / 3];
    let comment = record("comment", &third);
    let kinds = [
        (EntryType::XHeader, &comment),
        (EntryType::XGlobalHeader, &comment),
        (EntryType::GNULongName, &third),
        (EntryType::GNULongLink, &third),
    ];
    let file = block(EntryType::Regular, b"");
    for (kind, data) in kinds {
        let two = [block(kind, data), block(kind, data)].concat();
        let refused = TarReader::new(&[two.as_slice(), &block(kind, data), &file].concat()[..]).next_entry();
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("an entry's 3 extended headers have 10"), "{kind:?}: {error}");
        // Each entry has a budget of its own, and its headers count.
        let pax = [block(EntryType::XHeader, &comment), block(EntryType::XHeader, &comment), file.clone()].concat();
        let twice = [pax.clone(), pax].concat();
        let mut reader = TarReader::new(&twice[..]);
        for _ in 0..2 {
            assert_eq!(reader.next_entry().unwrap().unwrap().headers, 3);
        }
    }
    let empty = vec![block(EntryType::XGlobalHeader, b""); (MAX_EXTENSIONS / BLOCK) as usize + 1].concat();
    assert!(TarReader::new(&empty[..]).next_entry().is_err(), "any number of empty headers");
}

#[test]
fn xattrs_that_no_file_can_have_are_refused() {
    let read = |key: &str, value: &[u8], times: usize| {
        let records = record(&format!("SCHILY.xattr.{key}"), value).repeat(times);
        Extensions::default().read_pax(&records).map_err(|e| e.to_string())
    };
    assert_eq!(read("user.a", &[0; MAX_XATTR_VALUE], 3), Ok(()));
    let refused = [("user.a", MAX_XATTR_VALUE + 1, 1), (&"n".repeat(256), 1, 1), (&"n".repeat(200), 0, 400)];
    for (key, bytes, times) in refused {
        let error = read(key, &vec![0; bytes], times).unwrap_err();
        assert!(error.starts_with("extended attributes: "), "{error}");
    }
}

#[test]
fn noise_is_refused_and_never_panics() {
    let read = |bytes: &[u8]| {
        let mut reader = TarReader::new(bytes);
        while let Ok(Some(_)) = reader.next_entry() {}
    };
    proptest::proptest!(|(flips in proptest::collection::vec((0usize..2048, 0u8..=255), 0..12))| {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(5);
        builder.append_data(&mut header, "x".repeat(200), &b"hello"[..]).unwrap();
        let mut bytes = builder.into_inner().unwrap();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        // Mend the first checksum, so that the parser gets past it.
        let mut first = Header::new_old();
        first.as_mut_bytes().copy_from_slice(&bytes[..512]);
        first.set_cksum();
        bytes[..512].copy_from_slice(first.as_bytes());
        read(&bytes);
    });
}
