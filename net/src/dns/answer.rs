//! DNS wire format: questions and answers.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::header::{self, Verdict};
use super::records::{Answer, AnswerLimits, Data, Question, Table};

/// Seconds that an answer may be cached.
pub const TTL: u32 = 5;
/// The largest datagram we send or request: fits every path without fragmentation (DNS flag day 2020).
pub const MAX_DATAGRAM: u16 = 1232;
/// The limit of a client without EDNS.
const PLAIN_DATAGRAM: u16 = 512;
/// Maximum records taken from an answer about an alias' target: each may be expensive to read.
const ALIASED: u16 = 256;
/// In the third byte of a message.
const TRUNCATED: u8 = 2;

/// Counts questions.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// How to handle a question.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// Send this.
    Send(Vec<u8>),
    /// Forward the unchanged question to an upstream server.
    Forward,
    /// Ask an upstream server for the alias' target and combine both.
    ForwardAlias(String),
}

/// The table's result for a question.
pub struct Lookup {
    answer: Answer,
    /// The table's domain.
    domain: String,
}

/// How a message arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// Maximum size of the response to `request`.
pub fn limit(request: &Message, transport: Transport) -> usize {
    usize::from(match (transport, &request.edns) {
        (Transport::Tcp, _) => u16::MAX,
        (Transport::Udp, Some(edns)) => edns.max_payload().clamp(PLAIN_DATAGRAM, MAX_DATAGRAM),
        (Transport::Udp, None) => PLAIN_DATAGRAM,
    })
}

/// How many records of a type fit into a message of this size, plus one: then it is marked as truncated. The owner is a pointer of
/// two bytes, the fixed fields are ten; a name is at least one byte.
fn room(limit: usize, question: Question) -> usize {
    let data = match question {
        Question::A => 4,
        Question::Aaaa => 16,
        Question::Srv => 7,
        _ => 1,
    };
    limit / (12 + data) + 1
}

/// Parses a question. For an invalid message, or a question answered without the table, `Err` with the answer, if any.
///
/// Only the header is read of a message that might be expensive: a name of 255 bytes costs as much each time a two-byte pointer
/// repeats it.
pub fn read(bytes: &[u8]) -> Result<Message, Option<Vec<u8>>> {
    match header::judge(bytes) {
        Verdict::Read => {}
        Verdict::Refuse(code) => return Err(Some(header::refusal(bytes, code))),
        Verdict::Ignore => return Err(None),
    }
    let Ok(request) = Message::from_vec(bytes) else {
        return Err(Some(header::refusal(bytes, ResponseCode::FormErr)));
    };
    let refusal = match &request.queries[..] {
        [query] if query.query_class != DNSClass::IN => Some(ResponseCode::Refused),
        [_] if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) => Some(ResponseCode::BADVERS),
        [_] => None,
        _ => Some(ResponseCode::FormErr),
    };
    match refusal {
        Some(code) => Err(Some(encode(&respond(&request, code), PLAIN_DATAGRAM.into()))),
        None => Ok(request),
    }
}

/// Looks up a question that was [`read`], limited to what fits into its answer: the only use of the table.
pub fn look_up(table: &Table, request: &Message, limit: usize) -> Lookup {
    let query = &request.queries[0];
    let name = query.name.to_lowercase().to_ascii();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let question = question(query.query_type);
    let part = AnswerLimits { most: room(limit, question), turn: TURN.fetch_add(1, Ordering::Relaxed) };
    Lookup { answer: table.answer_in_part(name, question, part), domain: table.domain().to_owned() }
}

/// How to handle a question with this result.
pub fn reply(request: &Message, found: Lookup, limit: usize) -> Reply {
    match found.answer {
        Answer::Foreign => Reply::Forward,
        Answer::Alias(target) if matches!(request.queries[0].query_type, RecordType::A | RecordType::AAAA) => {
            Reply::ForwardAlias(target)
        }
        answer => Reply::Send(encode(&answered(request, &found.domain, answer), limit)),
    }
}

/// Whether a reply omits part of the answer.
pub fn is_cut(reply: &Reply) -> bool {
    matches!(reply, Reply::Send(bytes) if bytes.get(2).is_some_and(|flags| flags & TRUNCATED != 0))
}

/// A response with only `code`.
pub fn respond(request: &Message, code: ResponseCode) -> Message {
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.metadata.response_code = code;
    response.queries.clone_from(&request.queries);
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_DATAGRAM);
        if u16::from(code) > 15 {
            edns.set_rcode_high((u16::from(code) >> 4) as u8);
        }
        response.set_edns(edns);
    }
    response
}

fn answered(request: &Message, domain: &str, answer: Answer) -> Message {
    let asked = &request.queries[0];
    let mut response = respond(request, ResponseCode::NoError);
    response.metadata.authoritative = true;
    match answer {
        Answer::Found { answers, additionals } => {
            response.answers = records(asked, domain, answers);
            response.additionals = records(asked, domain, additionals);
        }
        Answer::Alias(target) => {
            let name = asked.name.to_lowercase().to_ascii();
            let name = name.trim_end_matches('.').to_owned();
            response.answers = records(asked, domain, vec![(name, Data::Cname(target))]);
        }
        Answer::NoData | Answer::NoSuchName | Answer::Foreign => {
            if answer == Answer::NoSuchName {
                response.metadata.response_code = ResponseCode::NXDomain;
            }
            response.authorities = records(asked, domain, vec![(domain.to_owned(), Data::Soa)]);
        }
    }
    response
}

/// Appends an upstream server's answer about an alias' target to the alias.
pub fn aliased(request: &Message, target: &str, upstream: Option<&Message>) -> Message {
    let code = upstream.map_or(ResponseCode::ServFail, |m| m.metadata.response_code);
    let mut response = respond(request, code);
    let Some(target) = name(target) else { return response };
    let owner = request.queries[0].name.clone();
    response.metadata.truncation = upstream.is_some_and(|m| m.metadata.truncation);
    response.answers.push(Record::from_rdata(owner, TTL, RData::CNAME(CNAME(target))));
    response.answers.extend(upstream.into_iter().flat_map(|m| m.answers.iter().cloned()));
    response
}

/// Reads the answers in an upstream server's message, at most [`ALIASED`] of them, and nothing after them.
pub fn read_answers(bytes: &[u8]) -> Option<Message> {
    let mut bytes = bytes.to_vec();
    let is_cut = header::keep_answers(&mut bytes, ALIASED)?;
    let mut message = Message::from_vec(&bytes).ok()?;
    message.metadata.truncation |= is_cut;
    Some(message)
}

/// An upstream server's message unchanged, unless it exceeds the client's limit.
pub fn forwarded(request: &Message, response: Vec<u8>, limit: usize) -> Vec<u8> {
    if response.len() <= limit { response } else { encode(&emptied(request), limit) }
}

/// A truncated answer without records, which makes the client retry by TCP; `None`: it is not a question.
pub fn cut(question: &[u8]) -> Option<Vec<u8>> {
    read(question).ok().map(|request| encode(&emptied(&request), PLAIN_DATAGRAM.into()))
}

fn emptied(request: &Message) -> Message {
    let mut cut = respond(request, ResponseCode::NoError);
    cut.metadata.truncation = true;
    cut
}

/// The question for an alias' target.
pub fn alias_question(request: &Message, target: &str) -> Option<Message> {
    let mut question = Message::new(0, MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name(target)?, request.queries[0].query_type));
    Some(question)
}

/// Encodes a response; truncates it at `limit` and marks it so.
pub fn encode(response: &Message, limit: usize) -> Vec<u8> {
    let bytes = response.to_vec().unwrap_or_default();
    if bytes.len() <= limit {
        return bytes;
    }
    let mut cut = response.clone();
    cut.additionals.clear();
    loop {
        let bytes = cut.to_vec().unwrap_or_default();
        if bytes.len() <= limit || cut.answers.is_empty() {
            return bytes;
        }
        cut.metadata.truncation = true;
        let fitting = cut.answers.len() * limit / bytes.len();
        cut.answers.truncate(fitting.min(cut.answers.len() - 1));
    }
}

fn question(kind: RecordType) -> Question {
    match kind {
        RecordType::A => Question::A,
        RecordType::AAAA => Question::Aaaa,
        RecordType::SRV => Question::Srv,
        RecordType::PTR => Question::Ptr,
        RecordType::CNAME => Question::Cname,
        RecordType::SOA => Question::Soa,
        RecordType::NS => Question::Ns,
        _ => Question::Other,
    }
}

/// Records for the wire. A record of the requested name repeats it in the client's own letter case.
fn records(asked: &Query, domain: &str, data: Vec<(String, Data)>) -> Vec<Record> {
    let asked_name = asked.name.to_lowercase().to_ascii();
    let asked_name = asked_name.trim_end_matches('.');
    let record = |(owner, data): (String, Data)| {
        let owner = if owner == asked_name { asked.name.clone() } else { name(&owner)? };
        let data = match data {
            Data::Address(IpAddr::V4(a)) => RData::A(A(a)),
            Data::Address(IpAddr::V6(a)) => RData::AAAA(AAAA(a)),
            Data::Srv(s) => RData::SRV(SRV::new(s.priority, s.weight, s.port, name(&s.target)?)),
            Data::Ptr(target) => RData::PTR(PTR(name(&target)?)),
            Data::Cname(target) => RData::CNAME(CNAME(name(&target)?)),
            Data::Ns(target) => RData::NS(NS(name(&target)?)),
            Data::Soa => RData::SOA(soa(domain)?),
        };
        Some(Record::from_rdata(owner, TTL, data))
    };
    data.into_iter().filter_map(record).collect()
}

fn soa(domain: &str) -> Option<SOA> {
    let (server, mailbox) = (name(&format!("ns.dns.{domain}"))?, name(&format!("hostmaster.{domain}"))?);
    Some(SOA::new(server, mailbox, 1, 7200, 1800, 86400, TTL))
}

fn name(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name of 126 labels, including the final empty one.
    fn long_name() -> Vec<u8> {
        [&b"\x01a".repeat(126)[..], &[0]].concat()
    }

    /// An upstream server's message with this many records, whose names are pointers to one long name.
    fn dear(answers: u16, authorities: u16) -> Vec<u8> {
        let mut bytes = vec![0, 7, 0x81, 0x80, 0, 1];
        bytes.extend([answers, authorities, 0].map(u16::to_be_bytes).concat());
        bytes.extend(long_name());
        bytes.extend([0, 1, 0, 1]);
        for _ in 0..answers + authorities {
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 80]);
        }
        bytes
    }

    #[test]
    fn of_an_answer_about_an_alias_so_much_is_read_as_costs_little() {
        let read = |answers, authorities| {
            let message = read_answers(&dear(answers, authorities)).unwrap();
            (message.answers.len(), message.authorities.len(), message.metadata.truncation)
        };
        assert_eq!(read(3, 0), (3, 0, false));
        assert_eq!(read(256, 1000), (256, 0, false));
        assert_eq!(read(4000, 0), (256, 0, true));
        assert!(read_answers(&[0; 11]).is_none());
        let upstream = read_answers(&dear(4000, 0));
        let request = Message::from_vec(&dear(0, 0)).unwrap();
        assert!(aliased(&request, "www.example.org", upstream.as_ref()).metadata.truncation);
    }

    #[test]
    fn an_upstream_server_does_not_send_more_than_the_client_takes() {
        let request = Message::from_vec(&dear(0, 0)).unwrap();
        let small = dear(4, 0);
        assert_eq!(forwarded(&request, small.clone(), 512), small, "as it came");
        let cut = Message::from_vec(&forwarded(&request, dear(100, 0), 512)).unwrap();
        assert_eq!((cut.answers.len(), cut.metadata.truncation, cut.metadata.id), (0, true, 7));
        assert_eq!(cut.queries, request.queries);
        assert_eq!(forwarded(&request, dear(100, 0), 65535).len(), dear(100, 0).len());
    }
}
