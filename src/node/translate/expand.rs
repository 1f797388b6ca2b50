//! `$(VAR)` expansion as upstream does it: unknown references stay, `$$` escapes. Bounded: values that name each other double.

/// The longest string that execve(2) takes, its end included (`MAX_ARG_STRLEN`).
pub const ONE: usize = 128 << 10;
/// What it takes of arguments and environment in all: never more than three quarters of 8 MiB (execve(2), "Limits on size of
/// arguments and environment").
pub const ALL: usize = 6 << 20;
/// What each string takes beside its bytes: a pointer to it (`bprm_stack_limits` of fs/exec.c).
pub const POINTER: usize = 8;

/// What has been made is more than any process can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("argument list too long: at most {ALL} bytes of args and env, {ONE} in one string")]
pub struct TooLong;

/// What is left of a process's [`ALL`].
#[derive(Debug)]
pub struct Room(usize);

impl Default for Room {
    fn default() -> Room {
        Room(ALL)
    }
}

impl Room {
    /// Takes a string of so many bytes.
    ///
    /// # Errors
    ///
    /// That is more than there is, or than one string may have.
    pub fn take(&mut self, bytes: usize) -> Result<(), TooLong> {
        if bytes > ONE {
            return Err(TooLong);
        }
        self.0 = self.0.checked_sub(bytes + POINTER).ok_or(TooLong)?;
        Ok(())
    }

    /// Takes what a variable needs: its name and its value of so many bytes, `=`, and the end.
    ///
    /// # Errors
    ///
    /// As [`Room::take`].
    pub fn variable(&mut self, name: usize, value: usize) -> Result<(), TooLong> {
        self.take(name.saturating_add(value).saturating_add(2))
    }
}

/// Expands references in `text`; `lookup` gives a variable's value.
///
/// # Errors
///
/// The outcome is longer than one string of a process.
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> Result<String, TooLong> {
    let mut out = String::with_capacity(text.len().min(ONE));
    let mut rest = text;
    // What is not closed is looked for once.
    let mut closes = true;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let reference = rest.strip_prefix('(').filter(|_| closes).map(|opened| opened.split_once(')'));
        closes &= reference != Some(None);
        if let Some(Some((name, after))) = reference {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
        if out.len() > ONE {
            return Err(TooLong);
        }
    }
    out.push_str(rest);
    if out.len() > ONE { Err(TooLong) } else { Ok(out) }
}
