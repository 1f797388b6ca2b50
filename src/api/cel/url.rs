//! URLs as Go parses them: their parts are not normalized.

use std::collections::BTreeMap;

/// A URL with a scheme, or an absolute path; its parts as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub scheme: String,
    /// Including its port.
    pub host: String,
    pub path: String,
    query: String,
}

impl Url {
    pub fn parse(text: &str) -> Option<Url> {
        if text.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return None;
        }
        let (rest, query) = text.split_once('?').unwrap_or((text, ""));
        let (scheme, rest) = match rest.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) {
            Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
            None if rest.starts_with('/') => (String::new(), rest),
            None => return None,
        };
        let (authority, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(rest) => rest.find('/').map_or((rest, ""), |at| rest.split_at(at)),
            None if rest.starts_with('/') => ("", rest),
            None => return None,
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let bad_port = |port: &str| !port.bytes().all(|b| b.is_ascii_digit());
        let port = host.rsplit_once(':').filter(|(before, _)| !before.starts_with('[') || before.ends_with(']'));
        if port.is_some_and(|(_, port)| bad_port(port)) || host.contains(['<', '>', '"', '{', '}', '^', '`', '|', '\\'])
        {
            return None;
        }
        let escaped = |text: &str| {
            let parts = text.split('%').skip(1);
            { parts }.all(|part| part.len() >= 2 && part.bytes().take(2).all(|b| b.is_ascii_hexdigit()))
        };
        (escaped(path) && escaped(host)).then(|| Url {
            scheme,
            host: host.into(),
            path: path.into(),
            query: query.into(),
        })
    }

    /// The total length of its parts.
    pub fn length(&self) -> usize {
        self.scheme.len() + self.host.len() + self.path.len() + self.query.len()
    }

    /// The maximum number of pairs in its query.
    pub fn pairs(&self) -> usize {
        self.query.bytes().filter(|b| *b == b'&').count() + 1
    }

    /// The host name, without brackets, and its port.
    pub fn split(&self) -> (&str, &str) {
        let (name, port) = match self.host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((name, port)) => (name, port),
            None => (self.host.as_str(), ""),
        };
        (name.trim_start_matches('[').trim_end_matches(']'), port)
    }

    pub fn query(&self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            all.entry(unescaped(key)).or_default().push(unescaped(value));
        }
        all
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let digits = (byte == b'%').then(|| bytes.clone().take(2).collect::<Vec<u8>>());
        let decoded = digits.and_then(|two| u8::from_str_radix(std::str::from_utf8(&two).ok()?, 16).ok());
        match (byte, decoded) {
            (_, Some(decoded)) => {
                out.push(decoded);
                bytes.nth(1);
            }
            (b'+', None) => out.push(b' '),
            (other, None) => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
