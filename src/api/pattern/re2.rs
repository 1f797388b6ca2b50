//! RE2's dialect, which upstream's regular expressions are written in, in the words of the `regex` crate.
//!
//! Both find the same things in linear time, but they do not read the same texts: `[^[\]]+`, `\Q..\E` and `a{,2}` are expressions
//! of RE2 alone, `[a--b]`, `x{1001}` and `\u0041` of the other alone, and `\d`, `\w`, `\b` and `&&` mean something else. So an
//! expression is read here as Go's package `regexp` reads it, refused in its words, and written anew piece by piece: a
//! piece says itself what it means (`(?i:a)`), none depends on a flag before it.
//! <https://github.com/google/re2/wiki/Syntax>

use std::collections::HashMap;
use std::fmt::Write;

mod parts;

use parts::{is_known, perl, range, times};

/// As many times something may be repeated, repetitions within repetitions multiplied.
const MOST_REPEATS: u32 = 1000;
/// How deep groups may lie in groups. (Go allows 1000; nobody who writes expressions comes near.)
const DEEPEST: usize = 200;

/// Those in brackets of their own: `[:alpha:]`.
const POSIX: &[&str] = &[
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];
/// No character from here on has cases.
const CASELESS: u32 = 0x1E944;
/// The most characters, of all brackets together, whose other cases are looked for: a quarter of a second.
const MOST_FOLDED: u64 = 32 * CASELESS as u64;
/// What a category or a script takes when it is compiled, in bytes, and what other sets beyond ASCII do.
const PROPERTY: usize = 20_000;
const WIDE: usize = 2_000;
/// What nothing matches.
const NOTHING: &str = r"[^\x00-\x{10FFFF}]";

/// What is wrong with an expression: Go's words, and the part of it that they are about.
#[derive(Debug, PartialEq)]
pub struct Wrong<'a>(pub &'static str, pub &'a str);

/// An expression as the `regex` crate reads it. Its groups capture nothing.
#[derive(Debug)]
pub struct Rewritten {
    pub text: String,
    /// Of how many characters the other cases are looked for, however small what it compiles to.
    pub folded: u64,
    /// About how many bytes it compiles to at most.
    pub bytes: usize,
}

/// The expression in the words of the `regex` crate.
pub fn rewritten(pattern: &str) -> Result<Rewritten, Wrong<'_>> {
    let mut reader =
        Reader { whole: pattern, rest: pattern, out: String::with_capacity(2 * pattern.len()), ..Reader::default() };
    reader.read()?;
    if reader.folded > MOST_FOLDED {
        return Err(Wrong("expression too large", pattern));
    }
    let once = reader.out.len().saturating_add(reader.wide);
    let bytes = once.saturating_mul(reader.repeats.max(1) as usize);
    Ok(Rewritten { text: reader.out, folded: reader.folded, bytes })
}

/// `(?imsU)`, as they are set where the reader is.
#[derive(Clone, Copy, Default)]
struct Flags {
    folds: bool,
    lines: bool,
    dot_all: bool,
    lazy: bool,
}

/// The last piece that was written, which an operator may repeat.
#[derive(Clone, Copy)]
struct Atom {
    /// Where it begins in what is written.
    at: usize,
    /// How many times something in it is repeated at most.
    repeats: u32,
}

/// A group that is open.
struct Group {
    at: usize,
    /// What holds again behind it.
    flags: Flags,
    repeats: u32,
}

#[derive(Default)]
struct Reader<'a> {
    whole: &'a str,
    rest: &'a str,
    out: String,
    flags: Flags,
    groups: Vec<Group>,
    last: Option<Atom>,
    /// The most repeats of an atom of the group that is open.
    repeats: u32,
    /// The categories and scripts that were named, and what the other dialect calls each.
    properties: HashMap<String, &'static str>,
    /// Of how many characters the other cases are looked for.
    folded: u64,
    /// What sets beyond ASCII take when they are compiled, in bytes.
    wide: usize,
}

type Read<'a, T> = Result<T, Wrong<'a>>;

impl<'a> Reader<'a> {
    fn read(&mut self) -> Read<'a, ()> {
        // Where the last repetition began, if the one before this is one.
        let mut stacked = None;
        while let Some(c) = self.rest.chars().next() {
            let before = self.rest;
            let mut repeated = None;
            match c {
                '(' if before.starts_with("(?") => self.perl_group()?,
                '(' => {
                    self.take(1);
                    self.open(self.flags)?;
                }
                '|' => {
                    self.take(1);
                    self.out.push('|');
                    self.last = None;
                }
                ')' => {
                    self.take(1);
                    self.close()?;
                }
                '^' => self.simple(1, if self.flags.lines { "(?m:^)" } else { r"\A" }),
                '$' => self.simple(1, if self.flags.lines { "(?m:$)" } else { r"\z" }),
                '.' => {
                    self.wide += WIDE;
                    self.simple(1, if self.flags.dot_all { "(?s:.)" } else { "." });
                }
                '[' => self.class()?,
                '*' | '+' | '?' => {
                    self.take(1);
                    self.repeat(before, stacked, &c.to_string(), 1)?;
                    repeated = Some(before);
                }
                '{' => match times(before) {
                    None => {
                        self.take(1);
                        self.literal('{');
                    }
                    Some((times, after)) => {
                        self.rest = after;
                        let Some((least, most)) = times else {
                            return Err(Wrong("invalid repeat count", self.since(before)));
                        };
                        let written = match most {
                            Some(most) => format!("{{{least},{most}}}"),
                            None => format!("{{{least},}}"),
                        };
                        // What is never there counts as nothing, whatever is in it.
                        let count = if most == Some(0) { 0 } else { most.unwrap_or(least).max(1) };
                        self.repeat(before, stacked, &written, count)?;
                        repeated = Some(before);
                    }
                },
                '\\' => self.escape()?,
                c => {
                    self.take(c.len_utf8());
                    self.literal(c);
                }
            }
            stacked = repeated;
        }
        if self.groups.is_empty() { Ok(()) } else { Err(Wrong("missing closing )", self.whole)) }
    }

    fn take(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// What was read since `before` was the rest.
    fn since(&self, before: &'a str) -> &'a str {
        &before[..before.len() - self.rest.len()]
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.take(c.len_utf8());
        Some(c)
    }

    fn atom(&mut self, written: &str) {
        self.last = Some(Atom { at: self.out.len(), repeats: 1 });
        self.repeats = self.repeats.max(1);
        self.out.push_str(written);
    }

    fn simple(&mut self, bytes: usize, written: &str) {
        self.take(bytes);
        self.atom(written);
    }

    fn literal(&mut self, c: char) {
        let mut utf8 = [0; 4];
        let written = regex::escape(c.encode_utf8(&mut utf8));
        match self.flags.folds {
            true => self.atom(&format!("(?i:{written})")),
            false => self.atom(&written),
        }
    }

    /// A set of characters, by the members of a bracket.
    fn set(&mut self, members: &str) {
        match self.flags.folds {
            true => self.atom(&format!("(?i:[{members}])")),
            false => self.atom(&format!("[{members}]")),
        }
    }

    /// Notes that so many characters are among those of a bracket, which takes so many bytes for it.
    fn among(&mut self, characters: u32, bytes: usize) {
        self.wide = self.wide.saturating_add(bytes);
        if self.flags.folds {
            self.folded = self.folded.saturating_add(u64::from(characters.min(CASELESS)));
        }
    }

    fn open(&mut self, flags: Flags) -> Read<'a, ()> {
        if self.groups.len() >= DEEPEST {
            return Err(Wrong("expression nests too deeply", self.whole));
        }
        self.groups.push(Group { at: self.out.len(), flags: self.flags, repeats: self.repeats });
        (self.flags, self.last, self.repeats) = (flags, None, 1);
        self.out.push_str("(?:");
        Ok(())
    }

    fn close(&mut self) -> Read<'a, ()> {
        let Some(group) = self.groups.pop() else { return Err(Wrong("unexpected )", self.whole)) };
        self.out.push(')');
        self.last = Some(Atom { at: group.at, repeats: self.repeats });
        (self.flags, self.repeats) = (group.flags, group.repeats.max(self.repeats));
        Ok(())
    }

    /// Repeats the last atom. `before`: what was left when the operator began; `stacked`: the same of one right before it.
    fn repeat(&mut self, before: &'a str, stacked: Option<&'a str>, operator: &str, times: u32) -> Read<'a, ()> {
        let reversed = self.rest.starts_with('?');
        if reversed {
            self.take(1);
        }
        if let Some(first) = stacked {
            return Err(Wrong("invalid nested repetition operator", self.since(first)));
        }
        let Some(atom) = self.last else {
            return Err(Wrong("missing argument to repetition operator", self.since(before)));
        };
        let repeats = match times {
            0 => 1,
            times => times.saturating_mul(atom.repeats),
        };
        if repeats > MOST_REPEATS {
            return Err(Wrong("invalid repeat count", self.since(before)));
        }
        self.out.insert_str(atom.at, "(?:");
        let lazy = if reversed != self.flags.lazy { "?" } else { "" };
        // In a group of its own, so that no operator after it is taken for a part of it.
        let _ = write!(self.out, "){operator}{lazy}");
        self.last = Some(Atom { repeats, ..atom });
        self.repeats = self.repeats.max(repeats);
        Ok(())
    }

    /// `(?P<name>`, `(?<name>`, `(?i)`, `(?i-s:`
    fn perl_group(&mut self) -> Read<'a, ()> {
        let before = self.rest;
        if let Some(named) = before.strip_prefix("(?P<").or_else(|| before.strip_prefix("(?<")) {
            let Some((name, after)) = named.split_once('>') else {
                return Err(Wrong("invalid named capture", before));
            };
            self.rest = after;
            if name.is_empty() || !name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) {
                return Err(Wrong("invalid named capture", self.since(before)));
            }
            return self.open(self.flags);
        }
        self.take(2);
        let (mut flags, mut on, mut named) = (self.flags, true, false);
        while let Some(c) = self.next() {
            match c {
                'i' => flags.folds = on,
                'm' => flags.lines = on,
                's' => flags.dot_all = on,
                'U' => flags.lazy = on,
                '-' if on => {
                    (on, named) = (false, false);
                    continue;
                }
                ':' | ')' if on || named => {
                    if c == ':' {
                        return self.open(flags);
                    }
                    self.flags = flags;
                    return Ok(());
                }
                _ => return Err(Wrong("invalid or unsupported Perl syntax", self.since(before))),
            }
            named = true;
        }
        Err(Wrong("missing closing )", self.whole))
    }

    fn escape(&mut self) -> Read<'a, ()> {
        let before = self.rest;
        match before[1..].chars().next() {
            Some('A') => self.simple(2, r"\A"),
            Some('z') => self.simple(2, r"\z"),
            Some('b') => self.simple(2, r"(?-u:\b)"),
            Some('B') => self.simple(2, r"(?-u:\B)"),
            Some('C') => return Err(Wrong("invalid escape sequence", &before[..2])),
            Some('Q') => {
                let quoted = &before[2..];
                let (quoted, after) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
                quoted.chars().for_each(|c| self.literal(c));
                self.rest = after;
            }
            Some('p' | 'P') => {
                let members = self.unicode()?;
                self.set(&members);
            }
            Some(c) if perl(c).is_some() => {
                self.take(2);
                self.wide += if c.is_ascii_uppercase() { WIDE } else { 0 };
                self.set(&perl(c).unwrap_or_default());
            }
            _ => match self.character()? {
                Some(c) => self.literal(c),
                None => self.atom(NOTHING),
            },
        }
        Ok(())
    }

    /// A class, up to its bracket.
    fn class(&mut self) -> Read<'a, ()> {
        let whole = self.rest;
        self.take(1);
        let mut members = String::new();
        if self.rest.starts_with('^') {
            self.take(1);
            members.push('^');
            self.wide += WIDE;
        }
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            if self.rest.starts_with("[:")
                && let Some((name, after)) = self.rest[2..].split_once(":]")
            {
                let before = self.rest;
                self.rest = after;
                if !POSIX.contains(&name.strip_prefix('^').unwrap_or(name)) {
                    return Err(Wrong("invalid character class range", self.since(before)));
                }
                if name.starts_with('^') {
                    self.among(CASELESS, WIDE);
                }
                let _ = write!(members, "[:{name}:]");
                continue;
            }
            if self.rest.starts_with(r"\p") || self.rest.starts_with(r"\P") {
                members += &self.unicode()?;
                continue;
            }
            let class = self.rest.strip_prefix('\\').and_then(|rest| rest.chars().next()).and_then(perl);
            if let Some(class) = class {
                if class.starts_with('[') {
                    self.among(CASELESS, WIDE);
                }
                self.take(2);
                members += &class;
                continue;
            }
            let before = self.rest;
            let low = self.member(whole)?;
            let mut high = low;
            if self.rest.starts_with('-') && !self.rest[1..].is_empty() && !self.rest.starts_with("-]") {
                self.take(1);
                high = self.member(whole)?;
                if high < low {
                    return Err(Wrong("invalid character class range", self.since(before)));
                }
            }
            self.among(high.min(CASELESS).saturating_sub(low) + 1, if high < 0x80 { 0 } else { WIDE / 4 });
            range(low, high, &mut members);
        }
        self.take(1);
        match members.as_str() {
            // Of surrogates alone, of which no text has one.
            "" => self.atom(NOTHING),
            "^" => self.atom("(?s:.)"),
            _ => self.set(&members),
        }
        Ok(())
    }

    /// One character of a class. Surrogates are numbers here, as they are to Go.
    fn member(&mut self, whole: &'a str) -> Read<'a, u32> {
        if self.rest.starts_with('\\') {
            return self.code();
        }
        self.next().map(u32::from).ok_or(Wrong("missing closing ]", whole))
    }

    /// An escaped character; `None`: one that no text has.
    fn character(&mut self) -> Read<'a, Option<char>> {
        self.code().map(char::from_u32)
    }

    fn code(&mut self) -> Read<'a, u32> {
        let before = self.rest;
        self.take(1);
        let Some(c) = self.next() else { return Err(Wrong("trailing backslash at end of expression", "")) };
        let octal = |rest: &str| rest.chars().next().and_then(|c| c.to_digit(8));
        let found = match c {
            '1'..='7' if octal(self.rest).is_none() => None,
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    let Some(digit) = octal(self.rest) else { break };
                    code = code * 8 + digit;
                    self.take(1);
                }
                Some(code)
            }
            'x' => self.hexadecimal(),
            'a' => Some(7),
            'f' => Some(12),
            'n' => Some(10),
            'r' => Some(13),
            't' => Some(9),
            'v' => Some(11),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Some(u32::from(c)),
            _ => None,
        };
        found.ok_or_else(|| Wrong("invalid escape sequence", self.since(before)))
    }

    /// `\x7F`, `\x{10FFFF}`
    fn hexadecimal(&mut self) -> Option<u32> {
        let first = self.next()?;
        if first != '{' {
            let second = self.next()?;
            return Some(first.to_digit(16)? * 16 + second.to_digit(16)?);
        }
        let (mut code, mut digits) = (0, 0);
        loop {
            match self.next()? {
                '}' => return (digits > 0).then_some(code),
                c => code = code * 16 + c.to_digit(16)?,
            }
            digits += 1;
            if code > u32::from(char::MAX) {
                return None;
            }
        }
    }

    /// `\pL`, `\p{Greek}`, `\P{^Greek}`: a category or a script.
    fn unicode(&mut self) -> Read<'a, String> {
        let before = self.rest;
        let mut not = before.starts_with(r"\P");
        self.take(2);
        let mut name = match self.next() {
            Some('{') => match self.rest.split_once('}') {
                Some((name, after)) => {
                    self.rest = after;
                    name
                }
                None => return Err(Wrong("invalid character class range", before)),
            },
            _ => &self.since(before)[2..],
        };
        if let Some(rest) = name.strip_prefix('^') {
            (not, name) = (!not, rest);
        }
        let wrong = Err(Wrong("invalid character class range", self.since(before)));
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ' ')) {
            return wrong;
        }
        let name: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
        let of = match self.properties.get(&name) {
            Some(of) => *of,
            // The other names that the crate knows are of properties, which Go does not.
            None => match ["", "gc=", "sc="].into_iter().find(|of| is_known(of, &name)) {
                Some(of) => self.properties.entry(name.clone()).or_insert(of),
                None => return wrong,
            },
        };
        // The crate looks through a property range by range, and some are nearly everything.
        let characters = if not || of.is_empty() { CASELESS } else { CASELESS / 8 };
        self.among(characters, PROPERTY);
        Ok(format!(r"\{}{{{of}{name}}}", if not { 'P' } else { 'p' }))
    }
}

#[cfg(test)]
mod tests;
