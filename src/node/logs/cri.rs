//! Lines of CRI logs: `2026-11-20T17:00:00.123456789Z stdout F text`. Pure.

/// One line written by the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub time: &'a str,
    /// `stdout` or `stderr`.
    pub stream: &'a str,
    /// Whether the container's own line continues in the next one.
    pub partial: bool,
    text: &'a [u8],
}

impl<'a> Line<'a> {
    /// The container's output, with its newline unless the line continues.
    pub fn content(&self) -> &'a [u8] {
        match self.partial {
            true => self.text.strip_suffix(b"\n").unwrap_or(self.text),
            false => self.text,
        }
    }
}

/// Parses one line with its newline; `None` for anything else.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = std::str::from_utf8(parts.next()?).ok()?;
    let partial = match parts.next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    let text = parts.next()?;
    text.ends_with(b"\n").then_some(Line { time, stream, partial, text })
}
