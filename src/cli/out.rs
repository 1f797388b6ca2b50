//! Standard output and standard error: one write a call, and a quiet end when nobody reads any more.
//!
//! What nodes, servers and other users wrote is text for a terminal, in errors and warnings as in tables: [`plain`]. As it is go
//! objects in the formats that programs read, and the streams of containers: [`raw`] and [`fn@bytes`].

use std::{
    fmt,
    io::{self, Write},
};

use super::page::plain;

/// What a shell reports of a program that a broken pipe has ended.
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

/// What programs read: objects as YAML, JSON and what a template makes of them.
pub fn raw(text: fmt::Arguments<'_>) {
    bytes(text.to_string().as_bytes());
}

/// Says something on standard error. (Nobody is left to be told that this fails.)
pub fn complaint(text: fmt::Arguments<'_>) {
    drop(io::stderr().write_all(plain(&text.to_string()).as_bytes()));
}

/// Puts a line in the place of the last one on the terminal that standard error is; none takes it away.
pub fn progress(text: &str) {
    drop(io::stderr().write_all(format!("\r\x1b[K{}", plain(text)).as_bytes()));
}

/// Writes all of it now. `podwright get pods | head -1` ends here.
pub fn bytes(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        if error.kind() != io::ErrorKind::BrokenPipe {
            errln!("error: writing to standard output: {error}");
        }
        std::process::exit(BROKEN_PIPE);
    }
}
