//! String formats that upstream validates; others are only documentation.

use base64::Engine;

use crate::cel::times;
use crate::cel::url::Url;
use crate::pattern;

/// A format: its name and its test.
type Format = (&'static str, fn(&str) -> bool);

const FORMATS: &[Format] = &[
    ("bsonobjectid", |s| s.len() == 24 && s.bytes().all(|b| b.is_ascii_hexdigit())),
    ("uri", |s| Url::parse(s).is_some()),
    ("email", |s| {
        s.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty() && !s.contains(' '))
    }),
    ("hostname", is_hostname),
    ("ipv4", |s| s.parse::<std::net::Ipv4Addr>().is_ok()),
    ("ipv6", |s| s.parse::<std::net::Ipv6Addr>().is_ok()),
    ("cidr", |s| s.contains('/') && s.parse::<ipnet::IpNet>().is_ok()),
    ("mac", |s| matches(s, r"^([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}$")),
    ("uuid", |s| matches(s, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")),
    ("uuid3", |s| matches(s, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$")),
    ("uuid4", |s| matches(s, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")),
    ("uuid5", |s| matches(s, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")),
    ("isbn", |s| is_isbn(s, 10) || is_isbn(s, 13)),
    ("isbn10", |s| is_isbn(s, 10)),
    ("isbn13", |s| is_isbn(s, 13)),
    ("creditcard", |s| (13..=19).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit())),
    ("ssn", |s| matches(s, r"^\d{3}[- ]?\d{2}[- ]?\d{4}$")),
    ("hexcolor", |s| matches(s, r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$")),
    ("rgbcolor", |s| matches(s, r"^rgb\(\s*\d{1,3}\s*,\s*\d{1,3}\s*,\s*\d{1,3}\s*\)$")),
    ("byte", |s| base64::engine::general_purpose::STANDARD.decode(s).is_ok()),
    ("date", |s| s.len() == 10 && s.parse::<jiff::civil::Date>().is_ok()),
    ("duration", |s| times::span(s).is_some()),
    ("datetime", |s| times::parse(s).is_some()),
    ("date-time", |s| times::parse(s).is_some()),
    ("k8s-short-name", |s| crate::validation::names::dns1123_label(s).is_empty()),
    ("k8s-long-name", |s| crate::validation::names::dns1123_subdomain(s).is_empty()),
];

fn matches(text: &str, of: &str) -> bool {
    pattern::compiled(of).is_ok_and(|regex| regex.is_match(text))
}

fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.trim_end_matches('.').split('.').all(is_label)
}

fn is_isbn(text: &str, digits: usize) -> bool {
    let bare: Vec<u8> = text.bytes().filter(|b| !matches!(b, b'-' | b' ')).collect();
    let value = |(i, b): (usize, &u8)| match b {
        b'0'..=b'9' => Some(u32::from(b - b'0')),
        b'X' | b'x' if digits == 10 && i == 9 => Some(10),
        _ => None,
    };
    let Some(values) = bare.iter().enumerate().map(value).collect::<Option<Vec<u32>>>() else { return false };
    let weighed = |weight: fn(usize) -> u32| values.iter().enumerate().map(|(i, v)| v * weight(i)).sum::<u32>();
    values.len() == digits
        && match digits {
            10 => weighed(|i| 10 - i as u32) % 11 == 0,
            _ => weighed(|i| if i % 2 == 0 { 1 } else { 3 }) % 10 == 0,
        }
}

/// Whether a string matches a format; `true` for formats that are not validated.
pub fn is_of(format: &str, text: &str) -> bool {
    FORMATS.iter().find(|(name, _)| *name == format).is_none_or(|(_, is)| is(text))
}
