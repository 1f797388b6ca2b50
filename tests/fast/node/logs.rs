//! CRI logs: lines, rotation, tails, filters.

use std::{fs, path::Path};

use bytes::BytesMut;
use podwright::{
    api::rpc::LogOptions,
    node::sessions::{
        cri,
        logs::{Filter, files, newest_attempt, tail},
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
    let files = files(&log);
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
