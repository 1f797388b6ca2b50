//! A container's log file: lines in CRI's format, appended by the writer thread, rotated by size.

use std::ffi::{OsStr, OsString};
use std::io::Error as IoError;
use std::os::fd::{AsFd, OwnedFd};

use super::writer::{Job, Work, Writer};
use crate::protocol::LogSpec;
use podwright_sys::{beneath, shared};

/// Longer lines are split into parts marked `P`, as in containerd.
const MAX_LINE: usize = 16 << 10;
/// While more than this is pending, the container's output is not read.
const MAX_PENDING: usize = 64 << 10;

pub struct Log {
    spec: LogSpec,
    file: OwnedFd,
    size: u64,
    pending: Vec<u8>,
    busy: bool,
    /// Unfinished lines of stdout and stderr.
    partial: [Vec<u8>; 2],
}

impl Log {
    pub fn open(spec: LogSpec) -> Result<Log, IoError> {
        let (file, size) = open(&LogLocation::of(&spec)?, "")?;
        Ok(Log { spec, file, size, pending: Vec::new(), busy: false, partial: Default::default() })
    }

    pub fn full(&self) -> bool {
        self.pending.len() > MAX_PENDING
    }

    /// Whether nothing is pending.
    pub fn idle(&self) -> bool {
        !self.busy && self.pending.is_empty()
    }

    /// Adds output of a stream (0 stdout, 1 stderr) at `now` (nanoseconds since 1970).
    pub fn take(&mut self, stream: usize, bytes: &[u8], now: u64) {
        format(&mut self.partial[stream], &mut self.pending, stream, bytes, now);
    }

    /// The stream has ended. An unfinished line stays unfinished, as in containerd: readers get no newline that was not written.
    pub fn end(&mut self, stream: usize, now: u64) {
        let rest = std::mem::take(&mut self.partial[stream]);
        if !rest.is_empty() {
            line(&mut self.pending, stream, b'P', &rest, now);
        }
    }

    /// Passes pending lines to the writer, one job at a time.
    pub fn flush(&mut self, slot: usize, writer: &mut Writer) {
        if self.busy || self.pending.is_empty() {
            return;
        }
        if self.is_gone() {
            // If that fails, the next lines try again.
            let _ = self.reopen();
        }
        if self.size >= self.spec.max_bytes && self.rotate().is_err() {
            // Files must not exceed their size: the lines are lost.
            self.pending.clear();
            return;
        }
        let Ok(file) = self.file.try_clone() else { return };
        let bytes = std::mem::take(&mut self.pending);
        self.size += bytes.len() as u64;
        self.busy = writer.submit(Job { slot, work: Work::Append { file, bytes }, errno: 0 }).is_ok();
    }

    /// Whether the file was deleted: later writes would be invisible.
    fn is_gone(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|file| file.st_nlink == 0)
    }

    /// Replaces a deleted file.
    fn reopen(&mut self) -> Result<(), IoError> {
        (self.file, self.size) = open(&LogLocation::of(&self.spec)?, "")?;
        Ok(())
    }

    /// The writer has finished our job (a full disk loses lines, never the container).
    pub fn flushed(&mut self) {
        self.busy = false;
    }

    /// Renames `log.3` to `log.4` .. `log` to `log.1`, overwriting the oldest; creates a new `log`. If that fails (a full disk),
    /// nothing is renamed: otherwise the current file would end up invisible and uncounted.
    fn rotate(&mut self) -> Result<(), IoError> {
        let place = LogLocation::of(&self.spec)?;
        let fresh = open(&place, ".next")?;
        for n in (0..self.spec.max_files.saturating_sub(1)).rev() {
            let _ = place.rename(&suffix(n), &suffix(n + 1));
        }
        place.rename(".next", "")?;
        (self.file, self.size) = fresh;
        Ok(())
    }
}

/// A log's location: an open folder, and a name in it. A Pod with the log folder mounted may have replaced files, and folders by
/// symlinks: so each step opens its folder anew, following none, and stays in it.
struct LogLocation<'a> {
    folder: OwnedFd,
    name: &'a OsStr,
}

impl<'a> LogLocation<'a> {
    /// Creates the folder if it is missing.
    fn of(spec: &'a LogSpec) -> Result<LogLocation<'a>, IoError> {
        let (Some(folder), Some(name)) = (spec.path.parent(), spec.path.file_name()) else {
            return Err(IoError::from_raw_os_error(libc::EINVAL));
        };
        Ok(LogLocation { folder: beneath::plain_folder(folder)?, name })
    }

    fn named(&self, suffix: &str) -> OsString {
        let mut name = self.name.to_owned();
        name.push(suffix);
        name
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), IoError> {
        Ok(rustix::fs::renameat(&self.folder, self.named(from), &self.folder, self.named(to))?)
    }
}

fn open(place: &LogLocation<'_>, suffix: &str) -> Result<(OwnedFd, u64), IoError> {
    let file = shared::append(place.folder.as_fd(), &place.named(suffix), 0o640)?;
    let size = file.metadata()?.len();
    Ok((file.into(), size))
}

/// The suffix of a log's name: empty for the current file.
fn suffix(n: u32) -> String {
    if n == 0 { String::new() } else { format!(".{n}") }
}

/// Splits `bytes` into lines. An unterminated rest stays in `partial`.
fn format(partial: &mut Vec<u8>, out: &mut Vec<u8>, stream: usize, mut bytes: &[u8], now: u64) {
    while !bytes.is_empty() {
        let room = MAX_LINE - partial.len();
        let end = bytes.iter().take(room).position(|b| *b == b'\n');
        let (piece, tag, used) = match end {
            Some(end) => (&bytes[..end], b'F', end + 1),
            // A line of exactly MAX_LINE bytes is not split: check whether its newline follows.
            None if bytes.len() > room && bytes[room] == b'\n' => (&bytes[..room], b'F', room + 1),
            None if bytes.len() > room => (&bytes[..room], b'P', room),
            None => {
                partial.extend_from_slice(bytes);
                return;
            }
        };
        if partial.is_empty() {
            line(out, stream, tag, piece, now);
        } else {
            partial.extend_from_slice(piece);
            line(out, stream, tag, partial, now);
            *partial = Vec::new();
        }
        bytes = &bytes[used..];
    }
}

fn line(out: &mut Vec<u8>, stream: usize, tag: u8, text: &[u8], now: u64) {
    out.reserve(text.len() + 48);
    timestamp(out, now);
    out.extend_from_slice([&b" stdout "[..], &b" stderr "[..]][stream]);
    out.extend_from_slice(&[tag, b' ']);
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// RFC 3339 in UTC with nanoseconds: `2026-11-20T17:06:56.000000001Z`.
fn timestamp(out: &mut Vec<u8>, now: u64) {
    let (seconds, nanos) = (now / 1_000_000_000, now % 1_000_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1970 to a date, by 400-year eras beginning on 1 March (Howard Hinnant's algorithm).
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    for (value, digits, after) in [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (second / 3600, 2, b':'),
        (second / 60 % 60, 2, b':'),
        (second % 60, 2, b'.'),
        (nanos, 9, b'Z'),
    ] {
        let at = out.len();
        out.resize(at + digits, b'0');
        let mut rest = value;
        for digit in out[at..].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.push(after);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use proptest::prelude::*;

    fn rotated(spec: &LogSpec, n: u32) -> PathBuf {
        PathBuf::from(format!("{}{}", spec.path.display(), suffix(n)))
    }

    proptest! {
        #[test]
        fn timestamps_are_those_of_the_calendar(ns in 0u64..8_000_000_000_000_000_000) {
            let mut out = Vec::new();
            timestamp(&mut out, ns);
            let text = String::from_utf8(out).unwrap();
            let parsed: jiff::Timestamp = text.parse().unwrap();
            prop_assert_eq!(parsed.as_nanosecond(), ns as i128);
            prop_assert_eq!(text.len(), 30);
        }

        #[test]
        fn lines_come_back_whole_however_they_were_chopped(
            lines in prop::collection::vec((0usize..40_000, any::<bool>()), 0..4), steps in prop::collection::vec(1usize..20_000, 1..20)
        ) {
            let mut said = Vec::new();
            for (i, (length, _)) in lines.iter().enumerate() {
                said.extend(std::iter::repeat_n(b'a' + i as u8, *length));
                said.push(b'\n');
            }
            let (mut partial, mut out, mut at) = (Vec::new(), Vec::new(), 0);
            for step in steps.iter().cycle() {
                if at == said.len() { break }
                let end = (at + step).min(said.len());
                format(&mut partial, &mut out, 1, &said[at..end], 0);
                at = end;
            }
            prop_assert!(partial.is_empty());
            let mut back = Vec::new();
            for line in out.split_inclusive(|b| *b == b'\n') {
                let text = &line[38..];
                prop_assert_eq!(&line[30..38], &b" stderr "[..]);
                prop_assert!(text.len() <= MAX_LINE + 3);
                back.extend_from_slice(&text[2..text.len() - 1]);
                if text[0] == b'F' { back.push(b'\n') }
            }
            prop_assert_eq!(back, said);
        }
    }

    #[test]
    fn a_last_line_without_an_end_is_given_none() {
        let dir = tempfile::tempdir().unwrap();
        let spec = LogSpec { path: dir.path().join("0.log"), max_bytes: 200, max_files: 3 };
        let mut log = Log::open(spec).unwrap();
        log.take(0, b"one\ntwo", 0);
        log.end(0, 0);
        log.end(1, 0);
        let text = String::from_utf8(log.pending).unwrap();
        let told: Vec<&str> = text.lines().map(|line| &line[31..]).collect();
        assert_eq!(told, ["stdout F one", "stdout P two"]);
    }

    #[test]
    fn a_log_that_cannot_be_rotated_grows_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let spec = LogSpec { path: dir.path().join("0.log"), max_bytes: 200, max_files: 3 };
        let mut log = Log::open(spec.clone()).unwrap();
        // Prevents the creation of a new file.
        fs::create_dir(dir.path().join("0.log.next")).unwrap();
        let mut writer = Writer::new();
        for n in 0..1000 {
            log.take(0, format!("line {n}\n").as_bytes(), n);
            log.flush(0, &mut writer);
            log.flushed();
        }
        assert!(log.idle() && log.size < 300, "{}", log.size);
        assert!(!rotated(&spec, 1).exists());
        fs::remove_dir(dir.path().join("0.log.next")).unwrap();
        log.take(0, b"later\n", 1);
        log.flush(0, &mut writer);
        assert!(log.size < 60 && rotated(&spec, 1).exists());
    }

    #[test]
    fn a_log_that_somebody_deletes_is_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let spec = LogSpec { path: dir.path().join("c/0.log"), max_bytes: 200, max_files: 3 };
        let mut log = Log::open(spec.clone()).unwrap();
        let mut writer = Writer::new();
        let mut say = |log: &mut Log, line: &str| {
            log.take(0, line.as_bytes(), 1);
            log.flush(0, &mut writer);
            while writer.take().is_none() {
                std::thread::yield_now();
            }
            log.flushed();
        };
        say(&mut log, "one\n");
        fs::remove_file(&spec.path).unwrap();
        say(&mut log, "two\n");
        assert!(fs::read_to_string(&spec.path).unwrap().ends_with("two\n"));
        assert_eq!(log.size, fs::metadata(&spec.path).unwrap().len(), "its size counts from nothing");
        fs::remove_dir_all(dir.path().join("c")).unwrap();
        say(&mut log, "three\n");
        assert!(fs::read_to_string(&spec.path).unwrap().ends_with("three\n"), "its folder too");
    }

    #[test]
    fn a_link_in_the_place_of_its_folder_leads_it_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, elsewhere) = (dir.path().join("pod/c"), dir.path().join("elsewhere"));
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("0.log.1"), "precious").unwrap();
        let spec = LogSpec { path: folder.join("0.log"), max_bytes: 20, max_files: 3 };
        let mut log = Log::open(spec.clone()).unwrap();
        for linked in [folder.clone(), dir.path().join("pod")] {
            let aside = dir.path().join("aside");
            fs::rename(&linked, &aside).unwrap();
            std::os::unix::fs::symlink(&elsewhere, &linked).unwrap();
            fs::create_dir_all(elsewhere.join("c")).unwrap();
            assert_eq!(log.rotate().map_err(|e| e.raw_os_error()), Err(Some(libc::ELOOP)));
            assert_eq!(log.reopen().map_err(|e| e.raw_os_error()), Err(Some(libc::ELOOP)));
            assert_eq!(Log::open(spec.clone()).map(drop).map_err(|e| e.raw_os_error()), Err(Some(libc::ELOOP)));
            fs::remove_file(&linked).unwrap();
            fs::rename(&aside, &linked).unwrap();
        }
        let left: Vec<_> = fs::read_dir(&elsewhere).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert_eq!(fs::read_dir(elsewhere.join("c")).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(elsewhere.join("0.log.1")).unwrap(), "precious");
        log.rotate().unwrap();
        assert!(rotated(&spec, 1).exists());
    }

    #[test]
    fn rotation_keeps_so_many_files_and_every_recent_line() {
        let dir = tempfile::tempdir().unwrap();
        let spec = LogSpec { path: dir.path().join("c/0.log"), max_bytes: 200, max_files: 3 };
        let mut log = Log::open(spec.clone()).unwrap();
        for n in 0..40 {
            log.take(0, format!("line {n}\n").as_bytes(), n);
            // Acts like the writer, at once.
            if log.size >= spec.max_bytes {
                log.rotate().unwrap();
            }
            let bytes = std::mem::take(&mut log.pending);
            log.size += bytes.len() as u64;
            podwright_sys::io::write_fully(std::os::fd::AsFd::as_fd(&log.file), &bytes).unwrap();
        }
        let names = (0..4).map(|n| rotated(&spec, n));
        let texts: Vec<String> = names.filter_map(|n| fs::read_to_string(n).ok()).collect();
        assert_eq!(texts.len(), 3);
        let lines: Vec<String> = texts.iter().rev().flat_map(|t| t.lines().map(|l| l[40..].to_owned())).collect();
        let first: usize = lines[0].strip_prefix("line ").unwrap().parse().unwrap();
        assert_eq!(lines, (first..40).map(|n| format!("line {n}")).collect::<Vec<_>>());
    }
}
