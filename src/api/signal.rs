//! Signals by name, for `lifecycle.stopSignal` and images (`StopSignal`).

/// Linux' numbers; some have several names.
const NAMES: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// glibc's first real-time signal (it reserves two of the kernel's), and the last one.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;
/// How far from both ends real-time signals have names.
const AROUND: i32 = 15;

/// The number of `SIGTERM`, `SIGRTMIN+3`, `SIGRTMAX-14`; `None`: there is no such signal.
pub fn named(name: &str) -> Option<i32> {
    let name = name.strip_prefix("SIG")?;
    if let Some((_, number)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Some(*number);
    }
    let within = |offset: &str, most: i32| match offset.is_empty() {
        true => Some(0),
        // A sign, or leading zeros, would be another spelling.
        false => offset[1..].parse().ok().filter(|n: &i32| *n > 0 && *n <= most && n.to_string() == offset[1..]),
    };
    let (from_min, from_max) = (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX"));
    match (from_min, from_max) {
        (Some(offset), _) if offset.is_empty() || offset.starts_with('+') => Some(RTMIN + within(offset, AROUND)?),
        (_, Some(offset)) if offset.is_empty() || offset.starts_with('-') => Some(RTMAX - within(offset, AROUND - 1)?),
        _ => None,
    }
}

/// The notation of images: in any case, without `SIG`, or as a number.
pub fn of_image(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return Some(number).filter(|number| (1..=RTMAX).contains(number));
    }
    let upper = text.to_ascii_uppercase();
    if upper.starts_with("SIG") { named(&upper) } else { named(&format!("SIG{upper}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_signals_that_there_are() {
        for (name, number) in [
            ("SIGTERM", Some(15)),
            ("SIGCLD", Some(17)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+1", Some(35)),
            ("SIGRTMIN+15", Some(49)),
            ("SIGRTMIN+16", None),
            ("SIGRTMIN+0", None),
            ("SIGRTMIN+-1", None),
            ("SIGRTMIN++1", None),
            ("SIGRTMIN+01", None),
            ("SIGRTMIN-1", None),
            ("SIGRTMIN+2147483647", None),
            ("SIGRTMIN+99999999999", None),
            ("SIGRTMIN+\u{20ac}", None),
            ("SIGRTMAX", Some(64)),
            ("SIGRTMAX-14", Some(50)),
            ("SIGRTMAX-15", None),
            ("SIGRTMAX+1", None),
            ("TERM", None),
            ("SIG", None),
            ("", None),
        ] {
            assert_eq!(named(name), number, "{name}");
        }
    }

    #[test]
    fn images_write_them_as_they_like() {
        for (text, number) in [
            ("15", Some(15)),
            ("64", Some(64)),
            ("quit", Some(3)),
            ("SigRtMin+3", Some(37)),
            ("RTMIN+3", Some(37)),
            ("0", None),
            ("-9", None),
            ("65", None),
            ("99999999999", None),
            ("SIGRTMIN+99999999999", None),
            ("SIGRTMIN+2147483640", None),
            ("SIGNONE", None),
        ] {
            assert_eq!(of_image(text), number, "{text}");
        }
    }
}
