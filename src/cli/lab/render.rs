//! The text of a lab for a terminal: bold and code in colour there, as written elsewhere.

use crate::page::plain;

const BOLD: &str = "\x1b[1m";
const CODE: &str = "\x1b[36m";
const END: &str = "\x1b[0m";

/// How text appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Terminal,
    Plain,
}

/// Renders `**bold**` and `` `code` ``; marks without a partner stay. Control characters of the text are escaped.
pub fn text(text: &str, style: Style) -> String {
    let text = plain(text);
    if style == Style::Plain {
        return text.into_owned();
    }
    text.split_inclusive('\n').map(line).collect()
}

/// One line: no mark goes beyond it, so that a forgotten one spoils no more.
fn line(text: &str) -> String {
    let mut rendered = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['*', '`']) {
        let (before, marked) = rest.split_at(at);
        rendered.push_str(before);
        let (mark, style) = if marked.starts_with("**") { ("**", BOLD) } else { ("`", CODE) };
        let inside = marked.strip_prefix(mark).and_then(|rest| rest.split_once(mark));
        match inside.filter(|(inside, _)| !inside.is_empty()) {
            Some((inside, after)) => {
                rendered.extend([style, inside, END]);
                rest = after;
            }
            None => {
                let (mark, after) = marked.split_at(1);
                rendered.push_str(mark);
                rest = after;
            }
        }
    }
    rendered + rest
}

/// A heading.
pub fn heading(text: &str, style: Style) -> String {
    let text = plain(text);
    match style {
        Style::Terminal => format!("{BOLD}{text}{END}\n"),
        Style::Plain => format!("{text}\n{}\n", "-".repeat(text.chars().count())),
    }
}

/// Commands, indented, as they would be typed.
pub fn commands(script: &str, style: Style) -> String {
    let script = plain(script.trim_end());
    let line = |line: &str| match (line.is_empty(), style) {
        (true, _) => "\n".to_owned(),
        (false, Style::Terminal) => format!("    {CODE}{line}{END}\n"),
        (false, Style::Plain) => format!("    {line}\n"),
    };
    script.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_styles_on_a_terminal_alone() {
        let written = "A **Pod** runs `pause`; 2 * 3 and a lone ` stay.\n";
        assert_eq!(text(written, Style::Plain), written);
        let shown = "A \x1b[1mPod\x1b[0m runs \x1b[36mpause\x1b[0m; 2 * 3 and a lone ` stay.\n";
        assert_eq!(text(written, Style::Terminal), shown);
        // A mark ends with its line.
        assert_eq!(text("**a\nb**", Style::Terminal), "**a\nb**");
        assert_eq!(text("****", Style::Terminal), "****");
    }

    #[test]
    fn a_text_does_not_command_the_terminal() {
        assert_eq!(text("a\x1b[2Jb", Style::Terminal), "a^[[2Jb");
        assert_eq!(heading("a\x07", Style::Plain), "a^G\n---\n");
        assert_eq!(commands("x \x1b]0;t\x07\n\ny\n", Style::Plain), "    x ^[]0;t^G\n\n    y\n");
    }
}
