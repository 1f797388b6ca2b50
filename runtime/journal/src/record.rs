//! One record, and its bytes in the journal: a mark, a length, a checksum, the numbers, the texts.

use serde::{Deserialize, Serialize};

use crate::Cause;

/// What each record begins with; it is how a reader finds the next one behind damage. The digit is the layout's version.
const MARK: [u8; 4] = *b"pwj2";
/// The mark, the length of what follows the checksum (2 bytes), the checksum (8).
const HEAD: usize = MARK.len() + 2 + 8;
/// Four numbers, the process, its role, whether there is an error, the lengths of five texts.
const NUMBERS: usize = 4 * 8 + 4 + 1 + 1 + 5 * 2;
/// The most that each text may take: call, subject, field, error, arguments (an nft transaction is the longest).
const LIMITS: [usize; 5] = [32, 40, 96, 96, 1024];

/// Which process acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Role {
    Agent = 1,
    Shim = 2,
    /// A container's first process, before it executes what the image says.
    Init = 3,
    Net = 4,
    Server = 5,
}

impl Role {
    fn from(byte: u8) -> Option<Role> {
        [Role::Agent, Role::Shim, Role::Init, Role::Net, Role::Server].into_iter().find(|r| *r as u8 == byte)
    }
}

/// One operation, as `trace` tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Where it stands in the journal: rises with the order in which processes wrote, and never repeats.
    pub sequence: u64,
    /// When it began, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// When it began, in nanoseconds since boot; comparable between processes.
    pub monotonic_ns: u64,
    pub duration_ns: u64,
    pub pid: u32,
    pub role: Role,
    /// The system call or operation, as `clone3`.
    pub call: String,
    /// Its arguments as short text.
    pub args: String,
    /// The error as the door words it, or nothing after a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub subject: String,
    pub revision: u64,
    pub field: String,
}

/// A record about to be written.
pub(crate) struct Entry<'a> {
    pub wall_ns: u64,
    pub monotonic_ns: u64,
    pub duration_ns: u64,
    pub pid: u32,
    pub role: Role,
    pub call: &'a str,
    pub args: &'a str,
    pub error: Option<&'a str>,
    pub cause: &'a Cause,
}

impl Entry<'_> {
    /// Appends the record's bytes. A text that is too long is cut between characters, and then ends in `~`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&MARK);
        out.extend_from_slice(&[0; HEAD - MARK.len()]);
        for number in [self.wall_ns, self.monotonic_ns, self.duration_ns, self.cause.revision] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.pid.to_le_bytes());
        out.extend_from_slice(&[self.role as u8, self.error.is_some() as u8]);
        let texts = [self.call, &self.cause.subject, &self.cause.field, self.error.unwrap_or(""), self.args];
        let lengths = out.len();
        out.extend_from_slice(&[0; 5 * 2]);
        for (i, (text, limit)) in texts.into_iter().zip(LIMITS).enumerate() {
            let before = out.len();
            match text.len() <= limit {
                true => out.extend_from_slice(text.as_bytes()),
                false => {
                    out.extend_from_slice(&text.as_bytes()[..boundary(text, limit - 1)]);
                    out.push(b'~');
                }
            }
            let length = (out.len() - before) as u16;
            out[lengths + i * 2..lengths + i * 2 + 2].copy_from_slice(&length.to_le_bytes());
        }
        let body = from + HEAD;
        let length = (out.len() - body) as u16;
        let sum = checksum(&out[body..]);
        out[from + 4..from + 6].copy_from_slice(&length.to_le_bytes());
        out[from + 6..body].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The records among these bytes, which begin at `offset` of the journal. What is torn or not ours is skipped.
pub fn decode_all(bytes: &[u8], offset: u64) -> Vec<Record> {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(found) = bytes[at..].windows(MARK.len()).position(|window| window == MARK) {
        at += found;
        at += match decode(&bytes[at..], offset + at as u64) {
            Some((record, length)) => {
                records.push(record);
                length
            }
            None => MARK.len(),
        };
    }
    records
}

/// The record at the beginning of these bytes, and how many of them it takes.
fn decode(bytes: &[u8], sequence: u64) -> Option<(Record, usize)> {
    let head = bytes.first_chunk::<HEAD>()?;
    let length = u16::from_le_bytes([head[4], head[5]]) as usize;
    let body = bytes.get(HEAD..HEAD + length)?;
    if head[6..] != checksum(body).to_le_bytes() {
        return None;
    }
    let numbers = body.first_chunk::<NUMBERS>()?;
    let number = |i: usize| numbers[i * 8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut at = NUMBERS;
    let mut texts = [const { String::new() }; 5];
    for (i, text) in texts.iter_mut().enumerate() {
        let length = u16::from_le_bytes([numbers[38 + i * 2], numbers[39 + i * 2]]) as usize;
        *text = String::from_utf8(body.get(at..at + length)?.to_vec()).ok()?;
        at += length;
    }
    let [call, subject, field, error, args] = texts;
    let record = Record {
        sequence,
        wall_ns: number(0),
        monotonic_ns: number(1),
        duration_ns: number(2),
        revision: number(3),
        pid: u32::from_le_bytes(*numbers[32..].first_chunk()?),
        role: Role::from(numbers[36])?,
        error: (numbers[37] == 1).then_some(error),
        call,
        args,
        subject,
        field,
    };
    Some((record, HEAD + length))
}

/// The last boundary of a character that is not behind `at`.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

/// FNV-1a over 8-byte words, and over the length.
fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325u64 ^ bytes.len() as u64;
    let mut add = |word: [u8; 8]| {
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        sum ^= sum >> 29;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().copied().for_each(&mut add);
    let mut last = [0u8; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(last);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_record()(numbers in any::<[u64; 4]>(), pid: u32, role in 1u8..=5, call in ".{0,20}", args in ".{0,1500}",
                        error in proptest::option::of(".{0,200}"), subject in "[0-9a-f-]{0,36}", field in ".{0,60}") -> Record {
            let [wall_ns, monotonic_ns, duration_ns, revision] = numbers;
            let role = Role::from(role).unwrap();
            Record { sequence: 0, wall_ns, monotonic_ns, duration_ns, revision, pid, role, call, args, error, subject, field }
        }
    }

    fn encode(record: &Record) -> Vec<u8> {
        let cause = Cause { subject: record.subject.clone(), revision: record.revision, field: record.field.clone() };
        let entry = Entry {
            wall_ns: record.wall_ns,
            monotonic_ns: record.monotonic_ns,
            duration_ns: record.duration_ns,
            pid: record.pid,
            role: record.role,
            call: &record.call,
            args: &record.args,
            error: record.error.as_deref(),
            cause: &cause,
        };
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        bytes
    }

    /// What is expected back of a text.
    fn cut(text: &str, limit: usize) -> String {
        match text.len() <= limit {
            true => text.to_owned(),
            false => format!("{}~", &text[..boundary(text, limit - 1)]),
        }
    }

    proptest! {
        #[test]
        fn a_record_comes_back_as_written_or_cut(record in any_record(), before in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = before.clone();
            bytes.extend(encode(&record));
            let wanted = Record {
                sequence: 1000 + before.len() as u64,
                call: cut(&record.call, 32),
                field: cut(&record.field, 96),
                error: record.error.as_deref().map(|error| cut(error, 96)),
                args: cut(&record.args, 1024),
                ..record
            };
            prop_assert_eq!(decode_all(&bytes, 1000), vec![wanted]);
        }

        #[test]
        fn a_damaged_record_is_none_and_hides_no_other(record in any_record(), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let (mut bytes, other) = (encode(&record), encode(&record));
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let length = bytes.len() as u64;
            bytes.extend(other);
            let found: Vec<u64> = decode_all(&bytes, 0).iter().map(|r| r.sequence).collect();
            prop_assert_eq!(found, vec![length]);
        }

        #[test]
        fn noise_is_no_record_and_no_panic(mut noise in prop::collection::vec(any::<u8>(), 0..500), marks in prop::collection::vec(any::<prop::sample::Index>(), 0..5)) {
            for mark in marks {
                let at = mark.index(noise.len() + 1);
                noise.splice(at..at, MARK);
            }
            prop_assert_eq!(decode_all(&noise, 0), vec![]);
        }
    }
}
