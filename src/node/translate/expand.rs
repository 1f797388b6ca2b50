//! `$(VAR)` expansion as upstream: unknown references stay, `$$` escapes. Bounded, as values that refer to each other double in
//! size.

/// The longest string accepted by execve(2), including the terminator (`MAX_ARG_STRLEN`).
pub const ONE: usize = 128 << 10;
/// Its limit for arguments and environment together: never more than three quarters of 8 MiB (execve(2), "Limits on size of
/// arguments and environment").
pub const ALL: usize = 6 << 20;
/// The overhead of each string: a pointer to it (`bprm_stack_limits` of fs/exec.c).
pub const POINTER: usize = 8;

/// The result exceeds the limits of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("argument list too long: at most {ALL} bytes of args and env, {ONE} in one string")]
pub struct TooLong;

/// The remainder of a process's [`ALL`].
#[derive(Debug)]
pub struct Room(usize);

impl Default for Room {
    fn default() -> Room {
        Room(ALL)
    }
}

impl Room {
    /// Reserves a string of this length.
    ///
    /// # Errors
    ///
    /// It exceeds the remainder or the limit of one string.
    pub fn take(&mut self, bytes: usize) -> Result<(), TooLong> {
        if bytes > ONE {
            return Err(TooLong);
        }
        self.0 = self.0.checked_sub(bytes + POINTER).ok_or(TooLong)?;
        Ok(())
    }

    /// Reserves a variable: its name, `=`, a value of this length, and the terminator.
    ///
    /// # Errors
    ///
    /// As [`Room::take`].
    pub fn variable(&mut self, name: usize, value: usize) -> Result<(), TooLong> {
        self.take(name.saturating_add(value).saturating_add(2))
    }
}

/// Expands references in `text`; `lookup` returns a variable's value.
///
/// # Errors
///
/// The result is longer than one string of a process may be.
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> Result<String, TooLong> {
    let mut out = String::with_capacity(text.len().min(ONE));
    let mut rest = text;
    // A missing closing parenthesis is searched for only once.
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
