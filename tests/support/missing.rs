//! What a test leaves out where it cannot be tried: it passes there, and `./dev test` lists it at its end.

use std::{fs::File, io::Write};

/// A client is not installed. A failure on machines where `./dev test` installs it.
#[track_caller]
pub fn client(why: &str) {
    assert!(std::env::var_os("PODWRIGHT_TEST_CLIENTS").is_none(), "not left out: {why}");
    here(why);
}

/// This machine lacks what the test needs, or is not to be touched by it.
pub fn here(why: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    eprint!("left out of {line}");
    let Some(list) = std::env::var_os("PODWRIGHT_TEST_LEFT_OUT") else { return };
    let listed = File::options().create(true).append(true).open(&list).and_then(|mut to| to.write_all(line.as_bytes()));
    listed.unwrap_or_else(|why| panic!("{}: {why}", list.display()));
}
