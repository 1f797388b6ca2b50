//! The caller's terminal: raw mode during a session, and its size.

use std::io;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::json;

/// A terminal in raw mode, restored when dropped.
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
        // The terminal may be gone.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.0).ok();
    }
}

/// Whether standard input is interactive.
pub fn is_interactive() -> bool {
    isatty(io::stdin())
}

/// The size in the form of a `RESIZE` frame.
pub fn size() -> Option<String> {
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some(json!({ "Width": size.ws_col, "Height": size.ws_row }).to_string())
}
