//! Field selectors; the object's kind determines the valid fields.

use std::fmt;

use super::{MOST_REQUIREMENTS, once_each, too_many};
use crate::kinds::Kind;
use crate::status::Status;

/// A field selector: `(path, equal?, value)`, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector(pub Vec<(String, bool, String)>);

impl FieldSelector {
    /// Parses `spec.nodeName=a,status.phase!=Running`; `\\`, `\,` and `\=` are escapes in values.
    pub fn parse(text: &str) -> Result<FieldSelector, Status> {
        let mut all = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let misread = || Status::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'"));
            let at = term.find('=').ok_or_else(misread)?;
            let (left, equal, right) = if at > 0 && term.as_bytes()[at - 1] == b'!' {
                (&term[..at - 1], false, &term[at + 1..])
            } else {
                let right = &term[at + 1..];
                (&term[..at], true, right.strip_prefix('=').unwrap_or(right))
            };
            let value = unescape(right).ok_or_else(misread)?;
            all.push((left.to_owned(), equal, value));
        }
        once_each(&mut all);
        if all.len() > MOST_REQUIREMENTS {
            return Err(too_many(MOST_REQUIREMENTS, "requirements"));
        }
        Ok(FieldSelector(all))
    }

    /// Refuses fields that are not selectable for the kind.
    pub fn check(&self, kind: &Kind) -> Result<(), Status> {
        match self.0.iter().find(|(path, ..)| !kind.is_selectable(path)) {
            Some((path, ..)) => Err(Status::bad_request(format!("field label not supported: {path}"))),
            None => Ok(()),
        }
    }

    /// Whether it matches; `get` returns a field's value, "" if unset.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|(path, equal, value)| (get(path) == value) == *equal)
    }

    /// Whether it matches an object of `kind`.
    pub fn matches_object(&self, kind: &Kind, object: &crate::Object) -> bool {
        self.0.iter().all(|(path, equal, value)| (kind.field(object, path) == *value) == *equal)
    }

    /// The value that `path` must have, if any: for index lookups.
    pub fn exact(&self, path: &str) -> Option<&str> {
        self.0.iter().find(|(p, equal, _)| *equal && p == path).map(|(.., value)| value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (path, equal, value)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let operator = if *equal { "=" } else { "!=" };
            let value = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            write!(f, "{comma}{path}{operator}{value}")?;
        }
        Ok(())
    }
}

/// Splits at unescaped commas.
fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut out, mut from, mut escaped) = (Vec::new(), 0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                out.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[from..]);
    out
}

/// `None`: an unescaped `=`, or a backslash before anything else.
fn unescape(value: &str) -> Option<String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                c @ ('\\' | ',' | '=') => out.push(c),
                _ => return None,
            },
            '=' | ',' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}
