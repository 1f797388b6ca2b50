//! Message headers: estimates the cost of reading a message, and matches answers to questions.

use hickory_proto::op::ResponseCode;

/// Maximum size of a supported question: a name of 255, options, a signature.
pub const MAX_QUESTION: usize = 1232;

const LENGTH: usize = 12;
/// In the third byte: response; opcode (four bits; only 0, a query, is supported); recursion desired.
const RESPONSE: u8 = 0x80;
const OP_CODE: u8 = 0x78;
const RECURSION_DESIRED: u8 = 1;
/// In the fourth byte.
const RECURSION_AVAILABLE: u8 = 0x80;

/// How to handle a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Read it: it has one question and little else.
    Read,
    /// Answer with this code, from its header alone.
    Refuse(ResponseCode),
    /// It is not a question.
    Ignore,
}

/// Maximum records in a question besides the one question: none in answer, one in authority (the client's state for IXFR), two
/// additional ones (EDNS and a signature).
const MOST: [u16; 3] = [0, 1, 2];

/// Only checks the header and the length.
pub fn judge(bytes: &[u8]) -> Verdict {
    let Some(header) = bytes.first_chunk::<LENGTH>() else { return Verdict::Ignore };
    if header[2] & RESPONSE != 0 {
        return Verdict::Ignore;
    }
    if header[2] & OP_CODE != 0 {
        return Verdict::Refuse(ResponseCode::NotImp);
    }
    let records = [6, 8, 10].map(|at| number(header, at));
    let is_fair = number(header, 4) == 1 && records.iter().zip(MOST).all(|(count, most)| *count <= most);
    match is_fair && bytes.len() <= MAX_QUESTION {
        true => Verdict::Read,
        false => Verdict::Refuse(ResponseCode::FormErr),
    }
}

/// A response to a message that [`judge`] does not ignore: only the header.
pub fn refusal(bytes: &[u8], code: ResponseCode) -> Vec<u8> {
    let flags = RESPONSE | bytes[2] & (OP_CODE | RECURSION_DESIRED);
    let mut header = vec![bytes[0], bytes[1], flags, RECURSION_AVAILABLE | code.low()];
    header.resize(LENGTH, 0);
    header
}

/// Returns the response if it answers the question that was sent under the id `id`, with the question's letter case. Its contents
/// are not read: that may be expensive, and is up to the client.
pub fn accept(sent: &[u8], id: u16, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let end = question_end(sent)?;
    let (question, answer) = (&sent[LENGTH..end], bytes.get(LENGTH..end)?);
    // Letters may differ in case; label lengths are below all letters. Type and class are four bytes.
    let name = question.len() - 4;
    let same = bytes[..2] == sent[..2]
        && bytes[2] & RESPONSE != 0
        && number(&bytes, 4) == 1
        && answer[..name].eq_ignore_ascii_case(&question[..name])
        && answer[name..] == question[name..];
    bytes[..2].copy_from_slice(&id.to_be_bytes());
    bytes[LENGTH..end].copy_from_slice(question);
    same.then_some(bytes)
}

/// Keeps only a message's answers, at most `most` of them; returns whether some were dropped.
pub fn keep_answers(bytes: &mut [u8], most: u16) -> Option<bool> {
    let header = bytes.first_chunk_mut::<LENGTH>()?;
    let answers = number(header, 6);
    header[6..8].copy_from_slice(&answers.min(most).to_be_bytes());
    header[8..].fill(0);
    Some(answers > most)
}

/// The end of the first question, whose name is uncompressed (ours are).
fn question_end(bytes: &[u8]) -> Option<usize> {
    let mut at = LENGTH;
    loop {
        let label = usize::from(*bytes.get(at)?);
        at += 1 + label;
        if label == 0 {
            break;
        }
    }
    (at + 4 <= bytes.len()).then_some(at + 4)
}

/// The number at `at`, below [`LENGTH`], of a message that has a header.
fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: &[u8] = b"\x03Www\x07eXample\x03org\0\0\x01\0\x01";

    fn message(flags: u8, counts: [u16; 4], rest: &[u8]) -> Vec<u8> {
        [&[1, 2, flags, 0], &counts.map(u16::to_be_bytes).concat()[..], rest].concat()
    }

    #[test]
    fn a_message_is_judged_by_its_header_before_anything_of_it_is_read() {
        use Verdict::{Ignore, Read, Refuse};
        let (formerr, notimp) = (Refuse(ResponseCode::FormErr), Refuse(ResponseCode::NotImp));
        for (flags, counts, length, verdict) in [
            (1, [1, 0, 0, 0], 100, Read),
            (1, [1, 0, 0, 1], MAX_QUESTION, Read),
            (1, [1, 0, 1, 2], 100, Read),
            (1, [1, 0, 0, 0], MAX_QUESTION + 1, formerr),
            (1, [1, 0, 0, 0], 65535, formerr),
            (1, [0, 0, 0, 0], 12, formerr),
            (1, [2, 0, 0, 0], 100, formerr),
            (1, [u16::MAX, 0, 0, 0], 100, formerr),
            (1, [1, 1, 0, 0], 100, formerr),
            (1, [1, 0, 2, 0], 100, formerr),
            (1, [1, 0, 0, 3], 100, formerr),
            (0x28, [1, 0, 9, 0], 100, notimp),
            (0x81, [1, 0, 0, 0], 100, Ignore),
            (1, [1, 0, 0, 0], 11, Ignore),
        ] {
            let mut bytes = message(flags, counts, &[]);
            bytes.resize(length, 0);
            assert_eq!(judge(&bytes), verdict, "{flags:#x} {counts:?} {length}");
        }
        let refused = refusal(&message(0x29, [9; 4], QUESTION), ResponseCode::NotImp);
        assert_eq!(refused, [1, 2, 0xa9, 0x84, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn an_answer_is_to_the_question_or_none() {
        let sent = message(1, [1, 0, 0, 1], &[QUESTION, b"options"].concat());
        let answer = |question: &[u8]| message(0x81, [1, 9, 9, 9], &[question, b"\xc0\x0cwhatever"].concat());
        let lower = QUESTION.to_ascii_lowercase();
        let accepted = accept(&sent, 0x0708, answer(&lower)).unwrap();
        assert_eq!(accepted[..2], [7, 8], "the client's id");
        assert_eq!(accepted[2..], answer(QUESTION)[2..], "the client's letters; nothing else is touched");
        let changed = |at: usize, value: u8| {
            let mut bytes = answer(QUESTION);
            bytes[at] = value;
            accept(&sent, 0x0708, bytes)
        };
        for (at, value) in [(0, 9), (1, 9), (2, 1), (5, 2), (13, b'x'), (LENGTH + QUESTION.len() - 3, 28)] {
            assert_eq!(changed(at, value), None, "{at}");
        }
        for length in 0..LENGTH + QUESTION.len() {
            assert_eq!(accept(&sent, 1, answer(QUESTION)[..length].to_vec()), None, "{length}");
        }
        assert_eq!(accept(&sent[..20], 1, answer(QUESTION)), None);
    }
}
