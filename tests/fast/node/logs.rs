//! CRI logs: lines, rotation, tails, filters.

use std::{fs, os::unix::fs::symlink, path::Path};

use bytes::BytesMut;
use podwright::{
    api::rpc::{LogOptions, LogStream},
    node::logs::{
        cri,
        files::{Folder, newest_attempt, of_attempt, tail},
        lines::{Filter, Follower},
        read::{Piece, Scan},
    },
};

fn line(second: u32, tag: &str, text: &str) -> String {
    format!("2026-11-20T17:00:{second:02}.000000001Z stdout {tag} {text}\n")
}

#[test]
fn lines_parse() {
    let text = line(1, "F", "hello world");
    let parsed = cri::parse(text.as_bytes()).unwrap();
    assert_eq!((parsed.stream, parsed.partial, parsed.content()), ("stdout", false, &b"hello world\n"[..]));
    let text = line(1, "P", "half");
    assert_eq!(cri::parse(text.as_bytes()).unwrap().content(), b"half");
    for bad in ["", "x", "t stdout X y\n", "t stdout F no newline"] {
        assert_eq!(cri::parse(bad.as_bytes()), None, "{bad}");
    }
}

fn write(folder: &Path, name: &str, seconds: std::ops::Range<u32>) {
    let text: String = seconds.map(|s| line(s, "F", &format!("line {s}"))).collect();
    fs::write(folder.join(name), text).unwrap();
}

#[test]
fn tails_reach_across_rotation() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "0.log.2", 0..3);
    write(folder.path(), "0.log.1", 3..6);
    write(folder.path(), "0.log", 6..8);
    fs::write(folder.path().join("3.log"), "").unwrap();
    let log = folder.path().join("0.log");
    let files = of_attempt(&log);
    let names: Vec<String> = files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["0.log.2", "0.log.1", "0.log"]);
    assert_eq!(newest_attempt(folder.path()), Some(3));
    let length = line(0, "F", "line 0").len() as u64;
    for (lines, expected) in [
        (0, (2, 2 * length)),
        (1, (2, length)),
        (2, (2, 0)),
        (3, (1, 2 * length)),
        (5, (1, 0)),
        (8, (0, 0)),
        (99, (0, 0)),
    ] {
        assert_eq!(tail(&files, lines).unwrap(), expected, "tail {lines}");
    }
}

#[test]
fn filters_by_time_and_size() {
    let now = "2026-11-20T17:00:10Z".parse().unwrap();
    let take = |options: LogOptions| {
        let mut filter = Filter::of(&options, now).unwrap();
        let mut out = BytesMut::new();
        for second in 1..5 {
            filter.take(line(second, "F", &second.to_string()).as_bytes(), &mut out);
        }
        String::from_utf8(out.to_vec()).unwrap()
    };
    assert_eq!(take(LogOptions::default()), "1\n2\n3\n4\n");
    assert_eq!(take(LogOptions { since_seconds: Some(7), ..LogOptions::default() }), "3\n4\n");
    let since_time = Some("2026-11-20T17:00:04Z".to_owned());
    assert_eq!(take(LogOptions { since_time, ..LogOptions::default() }), "4\n");
    assert_eq!(take(LogOptions { limit_bytes: Some(3), ..LogOptions::default() }), "1\n2");
    let stamped = take(LogOptions { timestamps: true, since_seconds: Some(6), ..LogOptions::default() });
    assert_eq!(stamped, "2026-11-20T17:00:04.000000001Z 4\n");
    assert!(Filter::of(&LogOptions { since_time: Some("x".into()), ..LogOptions::default() }, now).is_err());
}

#[test]
fn one_stream_is_told_without_the_other() {
    let take = |stream| {
        let options = LogOptions { stream, limit_bytes: Some(6), ..LogOptions::default() };
        let mut filter = Filter::of(&options, "2026-11-20T17:00:10Z".parse().unwrap()).unwrap();
        let mut out = BytesMut::new();
        for (second, stream) in [(1, "stdout"), (2, "stderr"), (3, "stdout"), (4, "stderr"), (5, "other")] {
            filter.take(line(second, "F", &second.to_string()).replace("stdout", stream).as_bytes(), &mut out);
        }
        String::from_utf8(out.to_vec()).unwrap()
    };
    assert_eq!(take(None), "1\n2\n3\n");
    assert_eq!(take(Some(LogStream::Stdout)), "1\n3\n");
    assert_eq!(take(Some(LogStream::Stderr)), "2\n4\n");
}

/// A line that was cut has one time, and one that nobody ended has no end.
#[test]
fn a_line_in_parts_is_one_line() {
    let options = LogOptions { timestamps: true, ..LogOptions::default() };
    let mut filter = Filter::of(&options, "2026-11-20T17:00:10Z".parse().unwrap()).unwrap();
    let mut out = BytesMut::new();
    for (second, tag, text) in [(1, "P", "be"), (2, "F", "gin"), (3, "P", "e"), (4, "P", "nd")] {
        filter.take(line(second, tag, text).as_bytes(), &mut out);
    }
    let text = String::from_utf8(out.to_vec()).unwrap();
    assert_eq!(text, "2026-11-20T17:00:01.000000001Z begin\n2026-11-20T17:00:03.000000001Z end");
}

#[test]
fn what_is_no_plain_file_of_the_folder_is_no_log() {
    let root = tempfile::tempdir().unwrap();
    let (logs, secret) = (root.path().join("logs"), root.path().join("secret"));
    let own = logs.join("ns_web_u1/c");
    fs::create_dir_all(&own).unwrap();
    write(root.path(), "secret", 0..3);
    for name in ["0.log", "0.log.1", "7.log"] {
        symlink(&secret, own.join(name)).unwrap();
    }
    let fifo = own.join("8.log");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir(own.join("9.log")).unwrap();
    write(&own, "3.log", 3..6);
    let folder = Folder::open(&logs, Path::new("ns_web_u1/c")).unwrap();
    assert_eq!(newest_attempt(&folder.path()), Some(3));
    assert!(of_attempt(&folder.path().join("0.log")).is_empty());
    assert_eq!(of_attempt(&folder.path().join("3.log")).len(), 1);
    // A file that appears between stat and open is neither followed nor waited for.
    for path in [own.join("0.log"), fifo] {
        assert!(tail(&[path], 1).is_err());
    }
    // The folder is held open: a link in its place redirects nothing.
    fs::rename(&own, logs.join("ns_web_u1/moved")).unwrap();
    symlink(root.path(), &own).unwrap();
    assert_eq!(newest_attempt(&folder.path()), Some(3));
    fs::create_dir(logs.join("real")).unwrap();
    symlink("real", logs.join("link")).unwrap();
    for below in ["ns_web_u1/c", "link", "ns_web_u1/../ns_web_u1/c", "..", "../secret", "/"] {
        assert!(Folder::open(&logs, Path::new(below)).is_err(), "{below}");
    }
}

#[test]
fn a_line_without_end_is_left_out_and_takes_no_room() {
    let mut follower = Follower::new(Filter::default());
    assert_eq!(follower.take(line(1, "F", "a").as_bytes()).unwrap(), "a\n");
    let split = line(2, "F", "split");
    let (head, rest) = split.split_at(40);
    assert_eq!(follower.take(head.as_bytes()), None);
    assert_eq!(follower.take(rest.as_bytes()).unwrap(), "split\n");
    assert_eq!(follower.take(line(3, "F", "endless").trim_end().as_bytes()), None);
    for _ in 0..64 {
        assert_eq!(follower.take(&[b'x'; 64 << 10]), None);
    }
    assert_eq!(follower.take(b"the end\n"), None);
    assert_eq!(follower.take(line(4, "F", "b").as_bytes()).unwrap(), "b\n");
}

/// Nobody is kept waiting for a reader who wants nothing of a long log, nor for one whose log is written as fast as it is read.
#[test]
fn a_log_is_read_a_piece_at_a_time_and_as_far_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("0.log");
    let text = line(1, "F", &"x".repeat(1000)).repeat(4000);
    fs::write(&log, &text).unwrap();
    let now = "2026-11-20T17:00:10Z".parse().unwrap();
    let scan = |since: &str, follow: bool| {
        let options = LogOptions { since_time: Some(since.to_owned()), ..LogOptions::default() };
        let follower = Follower::new(Filter::of(&options, now).unwrap());
        Scan::open(&log, None, follow, follower).unwrap()
    };
    let mut nothing = scan("2030-01-01T00:00:00Z", true);
    let passed = std::iter::from_fn(|| Some(nothing.piece().unwrap())).take_while(|piece| *piece == Piece::Passed);
    assert_eq!(passed.count(), text.len() >> 20, "a piece is a MiB");
    let (mut all, mut shown) = (scan("2020-01-01T00:00:00Z", false), 0);
    while let Piece::Shown(out) = all.piece().unwrap() {
        shown += out.len();
        let mut file = fs::File::options().append(true).open(&log).unwrap();
        std::io::Write::write_all(&mut file, &text.as_bytes()[..text.len() / 4]).unwrap();
    }
    assert_eq!(shown, 4000 * 1001, "what was written when it was opened");
}
