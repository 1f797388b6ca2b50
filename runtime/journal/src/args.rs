//! Arguments as text, written directly to their destination: without allocation, and while recording without formatting.

use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Renders an operation's arguments: takes [`Args`], appends text, and returns it.
pub type Telling<'f> = &'f dyn for<'a> Fn(Args<'a>) -> Args<'a>;

/// The arguments of an operation, while they are rendered.
pub struct Args<'a> {
    out: &'a mut Vec<u8>,
    /// Remaining capacity in bytes.
    room: usize,
}

impl<'a> Args<'a> {
    /// Appends to `out`, at most `room` bytes.
    pub(crate) fn new(out: &'a mut Vec<u8>, room: usize) -> Args<'a> {
        Args { out, room }
    }

    /// Everything that `tell` renders: for an error.
    pub fn worded(tell: Telling<'_>) -> String {
        let mut bytes = Vec::new();
        tell(Args::new(&mut bytes, usize::MAX));
        String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    pub fn text(self, text: &str) -> Args<'a> {
        self.bytes(text.as_bytes())
    }

    /// A path; the reader replaces bytes that are not UTF-8.
    pub fn path(self, path: &Path) -> Args<'a> {
        self.bytes(path.as_os_str().as_bytes())
    }

    pub fn number(self, number: impl Into<u64>) -> Args<'a> {
        self.digits(number.into(), 10)
    }

    /// Hexadecimal, without a prefix.
    pub fn hex(self, number: u64) -> Args<'a> {
        self.digits(number, 16)
    }

    pub fn octal(self, number: impl Into<u64>) -> Args<'a> {
        self.digits(number.into(), 8)
    }

    /// All items, separated by commas.
    pub fn list<T>(self, items: impl IntoIterator<Item = T>, each: impl Fn(Args<'a>, T) -> Args<'a>) -> Args<'a> {
        let with_comma = |args: Args<'a>, (i, item)| each(args.text(if i == 0 { "" } else { ", " }), item);
        items.into_iter().enumerate().fold(self, with_comma)
    }

    /// Text that needs the formatter.
    pub fn format(mut self, words: fmt::Arguments<'_>) -> Args<'a> {
        // Never fails: what does not fit is left out.
        let _ = self.write_fmt(words);
        self
    }

    fn digits(self, mut number: u64, base: u64) -> Args<'a> {
        let mut digits = [0; 22];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(number % base) as usize];
            number /= base;
            if number == 0 {
                return self.bytes(&digits[at..]);
            }
        }
    }

    fn bytes(mut self, bytes: &[u8]) -> Args<'a> {
        self.push(bytes);
        self
    }

    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room)];
        self.room -= bytes.len();
        self.out.extend_from_slice(bytes);
    }
}

impl Write for Args<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsStr;

    proptest! {
        #[test]
        fn numbers_are_those_of_the_formatter(number: u64, small in 0u64..20) {
            for number in [number, small, u64::MAX] {
                let told = Args::worded(&|a| a.number(number).text(" ").hex(number).text(" ").octal(number));
                prop_assert_eq!(told, format!("{number} {number:x} {number:o}"));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut out = b"before".to_vec();
        let _ = Args::new(&mut out, 8).text("123").format(format_args!("{}", 45)).path(Path::new("/abc")).number(6u8);
        assert_eq!(out, b"before12345/ab");
    }

    #[test]
    fn a_path_of_any_bytes_is_told() {
        let path = Path::new(OsStr::from_bytes(b"/a\xff/b"));
        assert_eq!(Args::worded(&|a| a.path(path)), "/a\u{fffd}/b");
    }
}
