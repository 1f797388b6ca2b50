//! Standard output: one write a call, and a quiet end when nobody reads any more.

use std::{
    fmt,
    io::{self, Write},
};

/// What a shell reports of a program that a broken pipe has ended.
const BROKEN_PIPE: i32 = 128 + libc::SIGPIPE;

macro_rules! out {
    ($($arg:tt)*) => { $crate::cli::out::text(format_args!($($arg)*)) };
}

macro_rules! outln {
    ($($arg:tt)*) => { $crate::cli::out::line(format_args!($($arg)*)) };
}

pub fn text(text: fmt::Arguments<'_>) {
    bytes(text.to_string().as_bytes());
}

pub fn line(text: fmt::Arguments<'_>) {
    bytes(format!("{text}\n").as_bytes());
}

/// Writes all of it now. `podwright get pods | head -1` ends here.
pub fn bytes(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        if error.kind() != io::ErrorKind::BrokenPipe {
            eprintln!("error: writing to standard output: {error}");
        }
        std::process::exit(BROKEN_PIPE);
    }
}
