//! Standard output and standard error: one write per call, and a quiet exit on a broken pipe.
//!
//! Text from nodes, servers and other users is escaped for the terminal, in errors and warnings as in tables: [`plain`].
//! Machine-readable formats of objects, and containers' streams, are unescaped: [`raw`] and [`fn@bytes`].

use std::{
    fmt,
    io::{self, Write},
};

use super::page::plain;

/// A shell's exit code for a program ended by a broken pipe.
const BROKEN_PIPE: i32 = 128 + libc::SIGPIPE;

macro_rules! out {
    ($($arg:tt)*) => { $crate::out::text(format_args!($($arg)*)) };
}

macro_rules! outln {
    ($($arg:tt)*) => { $crate::out::line(format_args!($($arg)*)) };
}

macro_rules! raw {
    ($($arg:tt)*) => { $crate::out::raw(format_args!($($arg)*)) };
}

macro_rules! err {
    ($($arg:tt)*) => { $crate::out::complaint(format_args!($($arg)*)) };
}

macro_rules! errln {
    ($($arg:tt)*) => { $crate::out::complaint(format_args!("{}\n", format_args!($($arg)*))) };
}

pub fn text(text: fmt::Arguments<'_>) {
    bytes(plain(&text.to_string()).as_bytes());
}

pub fn line(text: fmt::Arguments<'_>) {
    bytes(plain(&format!("{text}\n")).as_bytes());
}

/// Machine-readable output: objects as YAML or JSON, and rendered templates.
pub fn raw(text: fmt::Arguments<'_>) {
    bytes(text.to_string().as_bytes());
}

/// Prints a message on standard error. (Errors cannot be reported anywhere.)
pub fn complaint(text: fmt::Arguments<'_>) {
    drop(io::stderr().write_all(plain(&text.to_string()).as_bytes()));
}

/// Replaces the last line on the terminal at standard error; an empty one clears it.
pub fn progress(text: &str) {
    drop(io::stderr().write_all(format!("\r\x1b[K{}", plain(text)).as_bytes()));
}

/// Writes everything immediately. `podwright get pods | head -1` ends here.
pub fn bytes(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        if error.kind() != io::ErrorKind::BrokenPipe {
            errln!("error: writing to standard output: {error}");
        }
        std::process::exit(BROKEN_PIPE);
    }
}
