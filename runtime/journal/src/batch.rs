//! Records buffered and written together: raw and without repetition, so that recording is cheap. Decoding is left to the reader.
//!
//! A batch begins with its head: a mark, its length, a checksum, the process, and the offset of the wall clock from the monotonic
//! one. Entries follow: causes, and records, each belonging to the cause before it. All entries have the same layout.

use std::sync::Arc;

use crate::Cause;
use crate::args::{Args, Telling};
use crate::record::{Record, Role};

/// The start of each batch, by which a reader finds the next one after damage. The digit is the layout's version.
const MARK: [u8; 4] = *b"pwj3";
/// The mark, the length of all that follows it (4 bytes), the checksum of what follows that (8), the process (4), the clocks (8).
const HEAD: usize = SUMMED + 4 + 8;
const SUMMED: usize = MARK.len() + 4 + 8;
/// Before an entry's texts: the role (1 byte), the lengths of three texts (1, 2, 2), two numbers (8 each).
///
/// Of a record: the call, the error, the arguments; its start, its duration. Of a cause, which has no role: the subject, the field
/// and nothing; the revision and 0.
const ENTRY: usize = 1 + 1 + 2 + 2 + 8 + 8;
const CAUSE: u8 = 0;
/// The length that means "no error".
const NONE: u16 = u16::MAX;

/// Maximum text lengths: the call, a cause's subject and field, an error, arguments (an nft transaction is the longest).
const CALL: usize = 32;
const SUBJECT: usize = 40;
const FIELD: usize = 96;
const ERROR: usize = 96;
const ARGS: usize = 1024;
/// Maximum size of a record with its cause.
const LONGEST: usize = 2 * ENTRY + CALL + SUBJECT + FIELD + ERROR + ARGS;

/// Maximum size of a batch. The start of a container is about 6 KiB.
const FULL: usize = 8 << 10;
/// Initial capacity: enough for the start of a sandbox.
const FEW: usize = 1 << 10;

/// An operation that has just ended.
pub struct Event<'a> {
    pub role: Role,
    /// Nanoseconds of the monotonic clock.
    pub began: u64,
    pub ended: u64,
    pub call: &'a str,
    pub args: Telling<'a>,
    pub error: Option<&'a str>,
    pub cause: &'a Arc<Cause>,
}

/// A batch being collected.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// How many of `bytes` are complete entries: rendering arguments could panic.
    whole: usize,
    /// The last record's.
    cause: Option<Arc<Cause>>,
    /// The process id; 0 until the first record. Read then, because a filter may forbid the call later.
    pid: u32,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.whole == 0
    }

    /// Whether one more record might not fit.
    pub fn is_full(&self) -> bool {
        self.whole > FULL - LONGEST
    }

    /// Empties it, and keeps the capacity.
    pub fn clear(&mut self) {
        (self.whole, self.cause) = (0, None);
    }

    pub fn push(&mut self, event: &Event<'_>) {
        if self.pid == 0 {
            self.pid = std::process::id();
        }
        let out = &mut self.bytes;
        out.truncate(self.whole);
        if out.is_empty() {
            out.reserve(FEW);
            out.extend_from_slice(&[0; HEAD]);
        }
        if !self.cause.as_ref().is_some_and(|last| Arc::ptr_eq(last, event.cause)) {
            let at = begin(out);
            let texts = [text(out, &event.cause.subject, SUBJECT), text(out, &event.cause.field, FIELD), 0];
            end(&mut out[at..], CAUSE, texts, [event.cause.revision, 0]);
            self.whole = out.len();
            self.cause = Some(event.cause.clone());
        }
        let at = begin(out);
        let call = text(out, event.call, CALL);
        let error = event.error.map_or(NONE, |error| text(out, error, ERROR));
        let args = told(out, event.args, ARGS);
        let took = event.ended.saturating_sub(event.began);
        end(&mut out[at..], event.role as u8, [call, error, args], [event.began, took]);
        self.whole = out.len();
    }

    /// The bytes to write. `ahead`: by how many nanoseconds the wall clock is ahead of the monotonic one.
    pub fn sealed(&mut self, ahead: u64) -> &[u8] {
        self.bytes.truncate(self.whole);
        let (head, body) = self.bytes.split_at_mut(SUMMED);
        body[..4].copy_from_slice(&self.pid.to_le_bytes());
        body[4..12].copy_from_slice(&ahead.to_le_bytes());
        head[..4].copy_from_slice(&MARK);
        head[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[8..].copy_from_slice(&checksum(body).to_le_bytes());
        &self.bytes
    }
}

/// Reserves space for the fields before an entry's texts. Returns the entry's offset.
fn begin(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; ENTRY]);
    at
}

fn end(entry: &mut [u8], role: u8, lengths: [u16; 3], numbers: [u64; 2]) {
    (entry[0], entry[1]) = (role, lengths[0] as u8);
    entry[2..4].copy_from_slice(&lengths[1].to_le_bytes());
    entry[4..6].copy_from_slice(&lengths[2].to_le_bytes());
    entry[6..14].copy_from_slice(&numbers[0].to_le_bytes());
    entry[14..ENTRY].copy_from_slice(&numbers[1].to_le_bytes());
}

/// Appends a text and returns its length. One that is too long is cut between characters and ends in `~`.
fn text(out: &mut Vec<u8>, text: &str, limit: usize) -> u16 {
    if text.len() > limit {
        return told(out, &|args| args.text(text), limit);
    }
    out.extend_from_slice(text.as_bytes());
    text.len() as u16
}

/// The same for rendered text.
fn told(out: &mut Vec<u8>, tell: Telling<'_>, limit: usize) -> u16 {
    let from = out.len();
    tell(Args::new(out, limit + 1));
    if out.len() - from > limit {
        let within = |at: &usize| out[from + at] & 0b1100_0000 == 0b1000_0000;
        let at = (0..limit).rev().find(|at| !within(at)).unwrap_or(0);
        out.truncate(from + at);
        out.push(b'~');
    }
    (out.len() - from) as u16
}

/// The records among these bytes, which begin at `offset` of the journal. Skips torn or foreign data.
pub fn decode_all(bytes: &[u8], offset: u64) -> Vec<Record> {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(found) = bytes[at..].windows(MARK.len()).position(|window| window == MARK) {
        at += found;
        at += match decode(&bytes[at..], offset + at as u64) {
            Some((batch, length)) => {
                records.extend(batch);
                length
            }
            None => MARK.len(),
        };
    }
    records
}

/// The records of these bytes, if they are exactly one batch.
pub fn decode_whole(bytes: &[u8]) -> Option<Vec<Record>> {
    let (records, length) = decode(bytes.starts_with(&MARK).then_some(bytes)?, 0)?;
    (length == bytes.len()).then_some(records)
}

/// The records of the batch at the beginning of these bytes, and its length.
fn decode(bytes: &[u8], offset: u64) -> Option<(Vec<Record>, usize)> {
    let mut rest = Bytes(bytes.get(MARK.len()..)?);
    let (length, sum) = (u32::from_le_bytes(rest.take()?) as usize, rest.take()?);
    let whole = SUMMED + length;
    let body = bytes.get(SUMMED..whole).filter(|body| body.len() <= FULL && checksum(body).to_le_bytes() == sum)?;
    let mut rest = Bytes(body);
    let (pid, ahead) = (u32::from_le_bytes(rest.take()?), u64::from_le_bytes(rest.take()?));
    let (mut cause, mut records) = (Cause::default(), Vec::new());
    while !rest.0.is_empty() {
        let sequence = offset + (whole - rest.0.len()) as u64;
        let ([role, first], second, third) = (rest.take()?, u16::from_le_bytes(rest.take()?), rest.take()?);
        let numbers = [u64::from_le_bytes(rest.take()?), u64::from_le_bytes(rest.take()?)];
        let texts = [rest.text(first.into())?, rest.text(if second == NONE { 0 } else { second })?];
        let ([one, two], three) = (texts, rest.text(u16::from_le_bytes(third))?);
        if role == CAUSE {
            cause = Cause { subject: one, revision: numbers[0], field: two };
            continue;
        }
        let Cause { subject, revision, field } = cause.clone();
        let ([monotonic_ns, duration_ns], error) = (numbers, (second != NONE).then_some(two));
        let (wall_ns, role, call, args) = (monotonic_ns.wrapping_add(ahead), Role::from(role)?, one, three);
        records.push(Record {
            sequence,
            wall_ns,
            monotonic_ns,
            duration_ns,
            pid,
            role,
            call,
            args,
            error,
            subject,
            revision,
            field,
        });
    }
    Some((records, whole))
}

/// Bytes consumed from the front.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// Replaces invalid UTF-8.
    fn text(&mut self, length: u16) -> Option<String> {
        let (taken, rest) = self.0.split_at_checked(length.into())?;
        self.0 = rest;
        Some(String::from_utf8_lossy(taken).into_owned())
    }
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
        fn any_record()(numbers in any::<[u32; 3]>(), revision: u64, role in 1u8..=5, call in ".{0,20}", args in ".{0,1500}",
                        error in proptest::option::of(".{0,200}"), subject in "[0-9a-f-]{0,36}", field in ".{0,60}") -> Record {
            let [wall_ns, monotonic_ns, duration_ns] = numbers.map(u64::from);
            let role = Role::from(role).unwrap();
            Record { sequence: 0, wall_ns, monotonic_ns, duration_ns, revision, pid: std::process::id(), role, call, args, error, subject, field }
        }
    }

    /// Batches of these records, each as long as possible, with one clock offset each.
    fn encode(records: &[Record]) -> Vec<u8> {
        let (mut all, mut batch) = (Vec::new(), Batch::default());
        for Record { role, monotonic_ns, duration_ns, call, args, error, subject, revision, field, .. } in records {
            let cause = &Arc::new(Cause { subject: subject.clone(), revision: *revision, field: field.clone() });
            let (role, began, error) = (*role, *monotonic_ns, error.as_deref());
            let args: Telling<'_> = &|a| a.text(args);
            for _ in 0..2 {
                if batch.is_full() {
                    all.extend(batch.sealed(1000));
                    assert!(batch.bytes.len() <= FULL);
                    batch.clear();
                }
                batch.push(&Event { role, began, ended: began + duration_ns, call, args, error, cause });
            }
        }
        all.extend(batch.sealed(1000));
        all
    }

    /// The expected result of a text.
    fn cut(text: &str, limit: usize) -> String {
        match text.len() <= limit {
            true => text.to_owned(),
            false => format!("{}~", &text[..(0..limit).rev().find(|at| text.is_char_boundary(*at)).unwrap()]),
        }
    }

    proptest! {
        #[test]
        fn records_come_back_as_written_or_cut(records in prop::collection::vec(any_record(), 1..20), before in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = before.clone();
            bytes.extend(encode(&records));
            let found = decode_all(&bytes, 1000);
            prop_assert!(found.is_sorted_by(|a, b| a.sequence < b.sequence));
            prop_assert!(found[0].sequence >= 1000 + before.len() as u64);
            let wanted: Vec<Record> = records.iter().flat_map(|r| [r, r]).zip(&found).map(|(record, found)| Record {
                sequence: found.sequence,
                wall_ns: record.monotonic_ns + 1000,
                call: cut(&record.call, CALL),
                field: cut(&record.field, FIELD),
                error: record.error.as_deref().map(|error| cut(error, ERROR)),
                args: cut(&record.args, ARGS),
                ..record.clone()
            }).collect();
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn a_damaged_batch_is_none_and_hides_no_other(record in any_record(), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let (mut bytes, other) = (encode(std::slice::from_ref(&record)), encode(std::slice::from_ref(&record)));
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let length = bytes.len() as u64;
            bytes.extend(&other);
            let found: Vec<u64> = decode_all(&bytes, 0).iter().map(|r| r.sequence).collect();
            let wanted: Vec<u64> = decode_all(&other, length).iter().map(|r| r.sequence).collect();
            prop_assert_eq!((found.len(), found), (2, wanted));
        }

        #[test]
        fn noise_is_no_record_and_no_panic(mut noise in prop::collection::vec(any::<u8>(), 0..500), marks in prop::collection::vec(any::<prop::sample::Index>(), 0..5)) {
            for mark in marks {
                let at = mark.index(noise.len() + 1);
                noise.splice(at..at, MARK);
            }
            prop_assert_eq!(decode_all(&noise, 0), vec![]);
        }

        #[test]
        fn entries_of_noise_are_no_panic(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = [&[0; HEAD], &noise[..]].concat();
            let whole = bytes.len();
            let mut batch = Batch { bytes: std::mem::take(&mut bytes), whole, ..Batch::default() };
            let _ = decode_all(batch.sealed(1), 0);
        }
    }

    #[test]
    fn what_panics_while_it_is_told_leaves_nothing() {
        let (mut batch, cause) = (Batch::default(), Arc::default());
        let mut push = |args: Telling<'_>| {
            let event = Event { role: Role::Agent, began: 1, ended: 2, call: "op", args, error: None, cause: &cause };
            batch.push(&event);
        };
        push(&|a| a.text("1"));
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            push(&|a| {
                let _ = a.text("2");
                panic!("on purpose")
            });
        }));
        assert!(told.is_err());
        push(&|a| a.text("3"));
        let args: Vec<String> = decode_all(batch.sealed(1), 0).into_iter().map(|r| r.args).collect();
        assert_eq!(args, ["1", "3"]);
    }
}
