//! Translates RE2's dialect, which upstream's regular expressions use, to the `regex` crate's.
//!
//! Both match in linear time, but their syntax differs: `[^[\]]+`, `\Q..\E` and `a{,2}` are valid only in RE2, `[a--b]`, `x{1001}`
//! and `\u0041` only in the crate, and `\d`, `\w`, `\b` and `&&` have different meanings. So an expression is parsed here like in
//! Go's package `regexp`, with its error messages, and rewritten piece by piece: each piece is self-contained (`(?i:a)`), and does
//! not depend on earlier flags. <https://github.com/google/re2/wiki/Syntax>

use std::collections::HashMap;
use std::fmt::Write;

mod parts;

use parts::{is_known, perl, range, times};

/// The maximum of nested repetitions, multiplied.
const MOST_REPEATS: u32 = 1000;
/// The maximum nesting of groups. (Go allows 1000; realistic expressions are far below.)
const DEEPEST: usize = 200;

/// Classes within brackets: `[:alpha:]`.
const POSIX: &[&str] = &[
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];
/// No character from here on has case variants.
const CASELESS: u32 = 0x1E944;
/// The most characters of all brackets together that are case-folded: a quarter of a second.
const MOST_FOLDED: u64 = 32 * CASELESS as u64;
/// The compiled size of a category or script, in bytes, and that of other sets beyond ASCII.
const PROPERTY: usize = 20_000;
const WIDE: usize = 2_000;
/// Matches nothing.
const NOTHING: &str = r"[^\x00-\x{10FFFF}]";

/// What is wrong with an expression: Go's message, and the relevant part.
#[derive(Debug, PartialEq)]
pub struct Wrong<'a>(pub &'static str, pub &'a str);

/// An expression in the `regex` crate's syntax. Its groups do not capture.
#[derive(Debug)]
pub struct Rewritten {
    pub text: String,
    /// The number of case-folded characters, which costs time whatever the compiled size.
    pub folded: u64,
    /// The approximate maximum of its compiled size.
    pub bytes: usize,
}

/// Translates an expression to the `regex` crate's syntax.
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

/// The current flags `(?imsU)`.
#[derive(Clone, Copy, Default)]
struct Flags {
    folds: bool,
    lines: bool,
    dot_all: bool,
    lazy: bool,
}

/// The last written piece, which an operator may repeat.
#[derive(Clone, Copy)]
struct Atom {
    /// Its start in the output.
    at: usize,
    /// The most repetitions of something within it.
    repeats: u32,
}

/// An open group.
struct Group {
    at: usize,
    /// The flags after it.
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
    /// The most repetitions of an atom in the open group.
    repeats: u32,
    /// The categories and scripts that were used, with their names in the crate.
    properties: HashMap<String, &'static str>,
    /// The number of case-folded characters.
    folded: u64,
    /// The compiled size of sets beyond ASCII, in bytes.
    wide: usize,
}

type Read<'a, T> = Result<T, Wrong<'a>>;

impl<'a> Reader<'a> {
    fn read(&mut self) -> Read<'a, ()> {
        // Where the last repetition started, if another precedes this one.
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
                        // Something repeated 0 times counts as nothing, whatever its content.
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

    /// The part that was read since `before`.
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

    /// Writes a set of characters, given the members of a bracket.
    fn set(&mut self, members: &str) {
        match self.flags.folds {
            true => self.atom(&format!("(?i:[{members}])")),
            false => self.atom(&format!("[{members}]")),
        }
    }

    /// Accounts for characters in a bracket, and their size in bytes.
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

    /// Repeats the last atom. `before`: the rest when the operator started; `stacked`: the same for an operator right before it.
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
        // In a group of its own, so that it does not combine with a following operator.
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

    /// A class, up to its closing bracket.
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
            // Only surrogates, which no text contains.
            "" => self.atom(NOTHING),
            "^" => self.atom("(?s:.)"),
            _ => self.set(&members),
        }
        Ok(())
    }

    /// One character of a class. Surrogates are numbers here, as in Go.
    fn member(&mut self, whole: &'a str) -> Read<'a, u32> {
        if self.rest.starts_with('\\') {
            return self.code();
        }
        self.next().map(u32::from).ok_or(Wrong("missing closing ]", whole))
    }

    /// An escaped character; `None` for one that no text contains.
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
            // The crate knows further names of properties, which Go does not.
            None => match ["", "gc=", "sc="].into_iter().find(|of| is_known(of, &name)) {
                Some(of) => self.properties.entry(name.clone()).or_insert(of),
                None => return wrong,
            },
        };
        // The crate processes a property range by range, and some contain nearly everything.
        let characters = if not || of.is_empty() { CASELESS } else { CASELESS / 8 };
        self.among(characters, PROPERTY);
        Ok(format!(r"\{}{{{of}{name}}}", if not { 'P' } else { 'p' }))
    }
}

#[cfg(test)]
mod tests;
