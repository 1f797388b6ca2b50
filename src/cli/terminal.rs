//! The caller's terminal: raw while a session has it, and its size.

use std::io;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::json;

/// A terminal in raw mode; what it was before comes back when this is dropped.
pub struct Raw(Termios);

impl Raw {
    pub fn enter() -> io::Result<Raw> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has vanished needs no mending.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.0).ok();
    }
}

/// Whether somebody types at standard input.
pub fn is_interactive() -> bool {
    isatty(io::stdin())
}

/// The size as a `RESIZE` frame carries it.
pub fn size() -> Option<String> {
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some(json!({ "Width": size.ws_col, "Height": size.ws_row }).to_string())
}
