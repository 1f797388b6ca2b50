//! One record, and its encoding into a slot of fixed size.

use serde::{Deserialize, Serialize};

/// Bytes of one slot in the file.
pub const SLOT: usize = 384;
/// Where the three texts and the error begin: after the checksum, the numbers and the text lengths.
const TEXT: usize = 8 + 5 * 8 + 4 + 1 + 1 + 5 * 2;

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
    /// Its place in the order in which slots were claimed; starts at 0 and never repeats in one journal.
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

impl Record {
    /// The slot's bytes. Texts that do not fit are cut, the arguments and the error last to be granted room.
    pub(crate) fn encode(&self) -> [u8; SLOT] {
        let mut slot = [0u8; SLOT];
        let error = self.error.as_deref();
        let numbers = [self.sequence, self.wall_ns, self.monotonic_ns, self.duration_ns, self.revision];
        for (i, number) in numbers.iter().enumerate() {
            slot[8 + i * 8..16 + i * 8].copy_from_slice(&number.to_le_bytes());
        }
        slot[48..52].copy_from_slice(&self.pid.to_le_bytes());
        slot[52] = self.role as u8;
        slot[53] = error.is_some() as u8;
        let mut at = TEXT;
        let room = SLOT - TEXT;
        let texts = [
            (&*self.call, 32),
            (&*self.subject, 40),
            (&*self.field, 96),
            (error.unwrap_or(""), 96),
            (&*self.args, room),
        ];
        for (i, (text, limit)) in texts.into_iter().enumerate() {
            let text = cut(text, limit.min(SLOT - at));
            slot[54 + i * 2..56 + i * 2].copy_from_slice(&(text.len() as u16).to_le_bytes());
            slot[at..at + text.len()].copy_from_slice(text.as_bytes());
            at += text.len();
        }
        let sum = checksum(&slot[8..]);
        slot[..8].copy_from_slice(&sum.to_le_bytes());
        slot
    }

    /// The record in a slot, or nothing if the slot is empty, torn or not ours.
    pub(crate) fn decode(slot: &[u8; SLOT]) -> Option<Record> {
        let number = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap_or_default());
        if number(0) != checksum(&slot[8..]) {
            return None;
        }
        let mut at = TEXT;
        let mut texts = [const { String::new() }; 5];
        for (i, text) in texts.iter_mut().enumerate() {
            let length = u16::from_le_bytes([slot[54 + i * 2], slot[55 + i * 2]]) as usize;
            *text = String::from_utf8(slot.get(at..at + length)?.to_vec()).ok()?;
            at += length;
        }
        let [call, subject, field, error, args] = texts;
        Some(Record {
            sequence: number(8),
            wall_ns: number(16),
            monotonic_ns: number(24),
            duration_ns: number(32),
            revision: number(40),
            pid: u32::from_le_bytes(slot[48..52].try_into().ok()?),
            role: Role::from(slot[52])?,
            error: (slot[53] == 1).then_some(error),
            call,
            args,
            subject,
            field,
        })
    }
}

/// At most `limit` bytes of `text`, cut between characters; a cut text ends in `~`.
fn cut(text: &str, limit: usize) -> std::borrow::Cow<'_, str> {
    if text.len() <= limit {
        return text.into();
    }
    let mut end = limit.saturating_sub(1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}~", &text[..end]).into()
}

/// FNV-1a over 8-byte words, never 0 so that an empty slot is not a record.
fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for word in bytes.chunks(8) {
        let mut padded = [0u8; 8];
        padded[..word.len()].copy_from_slice(word);
        sum = (sum ^ u64::from_le_bytes(padded)).wrapping_mul(0x0000_0100_0000_01b3);
        sum ^= sum >> 29;
    }
    sum | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_record()(numbers in any::<[u64; 5]>(), pid: u32, role in 1u8..=5, call in ".{0,20}", args in ".{0,500}",
                        error in proptest::option::of(".{0,200}"), subject in "[0-9a-f-]{0,36}", field in ".{0,60}") -> Record {
            let [sequence, wall_ns, monotonic_ns, duration_ns, revision] = numbers;
            let role = Role::from(role).unwrap();
            Record { sequence, wall_ns, monotonic_ns, duration_ns, revision, pid, role, call, args, error, subject, field }
        }
    }

    proptest! {
        #[test]
        fn a_record_comes_back_as_written_or_cut(record in any_record()) {
            let back = Record::decode(&record.encode()).expect("a whole slot");
            prop_assert_eq!(back.sequence, record.sequence);
            prop_assert_eq!(back.subject, record.subject);
            prop_assert_eq!(back.error.is_some(), record.error.is_some());
            prop_assert!(back.args == record.args || record.args.starts_with(back.args.trim_end_matches('~')));
        }

        #[test]
        fn a_damaged_slot_is_no_record(record in any_record(), at in 0usize..SLOT, flip in 1u8..) {
            let mut slot = record.encode();
            slot[at] ^= flip;
            prop_assert_ne!(Record::decode(&slot), Some(record));
        }

        #[test]
        fn noise_is_no_record_and_no_panic(noise in prop::collection::vec(any::<u8>(), SLOT)) {
            prop_assert_eq!(Record::decode(&noise.try_into().unwrap()), None);
        }
    }
}
