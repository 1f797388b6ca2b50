//! This process's command-line arguments, which every user of the machine can read.

use std::fs::{self, File};
use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::unix::fs::FileExt;

/// The field of `/proc/self/stat`, counted after the program's name, with the arguments' address (field 48 of all).
const ARG_START: usize = 45;

/// Overwrites a secret in the arguments, so that `/proc/PID/cmdline` shows `x` instead. Earlier readers have already seen it. Fails
/// if the memory cannot be written.
pub fn hide_argument(secret: &[u8]) -> IoResult<()> {
    if secret.is_empty() {
        return Ok(());
    }
    let arguments = fs::read("/proc/self/cmdline")?;
    let places: Vec<usize> =
        arguments.windows(secret.len()).enumerate().filter(|(_, part)| *part == secret).map(|(at, _)| at).collect();
    if places.is_empty() {
        return Ok(());
    }
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name is in parentheses, and may contain any characters.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let start: Option<u64> = fields.split(' ').nth(ARG_START).and_then(|field| field.parse().ok());
    let start = start.ok_or_else(|| IoError::new(ErrorKind::InvalidData, "/proc/self/stat has no arg_start"))?;
    // Our own memory, as a file: the stack is writable, and no reference of ours points there.
    let memory = File::options().write(true).open("/proc/self/mem")?;
    let cover = vec![b'x'; secret.len()];
    places.into_iter().try_for_each(|at| memory.write_all_at(&cover, start + at as u64))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SECRET: &str = "abcdef.0123456789abcdef";

    #[test]
    fn a_secret_goes_out_of_the_arguments() {
        if std::env::var_os("HIDES").is_some() {
            hide_argument(SECRET.as_bytes()).unwrap();
            println!("\narguments: {}", fs::read_to_string("/proc/self/cmdline").unwrap());
            return;
        }
        let own = "arguments::tests::a_secret_goes_out_of_the_arguments";
        let words = ["--exact", own, "--nocapture", "--skip", &format!("other={SECRET}"), "--skip", SECRET];
        let child = Command::new(std::env::current_exe().unwrap()).args(words).env("HIDES", "1").output().unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        let told =
            text.lines().find_map(|line| line.strip_prefix("arguments: ")).unwrap_or_else(|| panic!("{child:?}"));
        let hidden = "x".repeat(SECRET.len());
        assert!(told.contains(&format!("other={hidden}\0--skip\0{hidden}\0")) && !told.contains(SECRET), "{told:?}");
    }
}
