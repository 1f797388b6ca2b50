//! Log output on standard error: an event stays on one line, and does not affect the terminal, whatever images and manifests
//! contribute to it.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

/// Writes one event at a time.
pub struct Lines {
    /// Whether the log's own colours are kept.
    pub colours: bool,
}

impl Write for Lines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(line(&String::from_utf8_lossy(event), self.colours).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An event with control characters escaped, except for its final newline, tabs and, if enabled, colours.
fn line(event: &str, colours: bool) -> String {
    let (event, end) = event.strip_suffix('\n').map_or((event, ""), |event| (event, "\n"));
    let mut line = String::with_capacity(event.len() + 1);
    let mut rest = event.chars();
    while let Some(c) = rest.next() {
        let colour = if colours && c == '\x1b' { colour(rest.as_str()) } else { None };
        if let Some(colour) = colour {
            line.push(c);
            line.push_str(colour);
            rest = rest.as_str()[colour.len()..].chars();
        } else if c.is_control() && c != '\t' {
            // Writing into a String does not fail.
            let _ = write!(line, "{}", c.escape_default());
        } else {
            line.push(c);
        }
    }
    line + end
}

/// A colour sequence after an escape character: `[1;32m`.
fn colour(text: &str) -> Option<&str> {
    let parameters = text.strip_prefix('[')?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters[end..].starts_with('m').then(|| &text[..end + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_stays_one_line_and_harmless() {
        let forged = "pulled x\n2026-01-01 ERROR all is lost\r\0\u{9b}2J\x1b]0;title\x07\tend\n";
        let shown = "pulled x\\n2026-01-01 ERROR all is lost\\r\\u{0}\\u{9b}2J\\u{1b}]0;title\\u{7}\tend\n";
        assert_eq!(line(forged, false), shown);
        assert_eq!(line(forged, true), shown);
    }

    #[test]
    fn colours_are_for_terminals() {
        let event = "\x1b[2m10:00\x1b[0m \x1b[1;32mINFO\x1b[0m done \x1b[2J \x1b[\n";
        let shown = "\x1b[2m10:00\x1b[0m \x1b[1;32mINFO\x1b[0m done \\u{1b}[2J \\u{1b}[\n";
        assert_eq!(line(event, true), shown);
        assert_eq!(line("\x1b[2m\n", false), "\\u{1b}[2m\n");
    }
}
