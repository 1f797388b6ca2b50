//! Tab-separated cells in aligned columns, for `describe`.
//!
//! A column is as wide as its widest cell in consecutive lines that have it; a line's last cell belongs to no column. This is the
//! layout of Go's `text/tabwriter`, which kubectl uses.

use std::{borrow::Cow, fmt};

/// Spaces between two columns.
const GAP: usize = 2;

/// Escapes others' text for a terminal: control characters become `^[`, without effect. Tabs and newlines stay.
pub fn plain(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(harmless) {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            c if harmless(c) => plain.push(c),
            // In caret notation: the letter 64 above; those above 127 by their number.
            c if c.is_ascii() => plain.extend(['^', char::from((c as u8) ^ 0x40)]),
            c => plain.extend(c.escape_unicode()),
        }
    }
    plain.into()
}

#[derive(Default)]
pub struct Page {
    lines: Vec<String>,
}

impl Page {
    /// One line of cells, indented by `level`. A text with several lines becomes several.
    pub fn line(&mut self, level: usize, cells: impl AsRef<str>) {
        for line in cells.as_ref().split('\n') {
            self.lines.push(format!("{}{}", "  ".repeat(level), plain(line)));
        }
    }

    /// `Name:  value`, or nothing for an empty value.
    pub fn optional(&mut self, level: usize, name: &str, value: &str) {
        if !value.is_empty() {
            self.line(level, format!("{name}:\t{value}"));
        }
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<Vec<&str>> = self.lines.iter().map(|l| l.split('\t').collect()).collect();
        let widths = widths(&lines);
        for (line, widths) in lines.iter().zip(&widths) {
            for (cell, width) in line.iter().zip(widths) {
                write!(f, "{cell:width$}")?;
            }
            writeln!(f, "{}", line.last().unwrap_or(&""))?;
        }
        Ok(())
    }
}

/// The width of each cell except each line's last.
fn widths(lines: &[Vec<&str>]) -> Vec<Vec<usize>> {
    let mut widths: Vec<Vec<usize>> = lines.iter().map(|l| vec![0; l.len() - 1]).collect();
    for column in 0..widths.iter().map(Vec::len).max().unwrap_or(0) {
        let mut at = 0;
        while at < lines.len() {
            let block = widths[at..].iter().take_while(|w| w.len() > column).count();
            let cells = lines[at..at + block].iter().map(|line| line[column].chars().count() + GAP);
            let widest = cells.max().unwrap_or(0);
            widths[at..at + block].iter_mut().for_each(|w| w[column] = widest);
            at += block.max(1);
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::{Page, plain};

    #[test]
    fn nobody_else_writes_to_the_terminal() {
        assert_eq!(plain("as it is,\tand\nso on: ü"), "as it is,\tand\nso on: ü");
        assert_eq!(plain("\u{1b}]0;title\u{7}\u{1b}[2J\r\u{7f}\u{9b}1A"), "^[]0;title^G^[[2J^M^?\\u{9b}1A");
        let mut page = Page::default();
        page.line(0, "Message:\t\u{1b}[2Jgone");
        assert_eq!(page.to_string(), "Message:  ^[[2Jgone\n");
    }

    #[test]
    fn columns_line_up_with_their_neighbours_alone() {
        let mut page = Page::default();
        page.line(0, "Name:\tweb");
        page.line(0, "Service Account:\tdefault");
        page.line(0, "Containers:");
        page.line(1, "Image:\tbusybox");
        page.line(1, "Port:\t80/TCP");
        assert_eq!(
            page.to_string(),
            "Name:             web\nService Account:  default\nContainers:\n  Image:  busybox\n  Port:   80/TCP\n"
        );
    }

    #[test]
    fn empty_cells_keep_their_column() {
        let mut page = Page::default();
        page.line(0, "Labels:\ta=b");
        page.line(0, "\tlonger=c");
        assert_eq!(page.to_string(), "Labels:  a=b\n         longer=c\n");
    }
}
