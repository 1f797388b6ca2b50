//! Questions and answers on the wire.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::records::{Answer, Data, Part, Question, Table};

/// Seconds that an answer may be kept.
pub const TTL: u32 = 5;
/// The largest datagram we send or ask for: what fits every path without fragments (DNS flag day 2020).
const MAX_DATAGRAM: u16 = 1232;
/// What a client without EDNS can take.
const PLAIN_DATAGRAM: u16 = 512;
/// In the third byte of a message.
const TRUNCATED: u8 = 2;

/// Counts questions.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// What to do about a received message.
pub enum Reply {
    /// Nothing: it is no question.
    Ignore,
    /// Send this.
    Send(Vec<u8>),
    /// Ask an upstream server, with these very bytes.
    Forward(Box<Message>),
    /// Ask an upstream server for the alias' target and put both together.
    ForwardAlias(Box<Message>, String),
}

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// How many bytes the response to `request` may have.
pub fn limit(request: &Message, transport: Transport) -> usize {
    usize::from(match (transport, &request.edns) {
        (Transport::Tcp, _) => u16::MAX,
        (Transport::Udp, Some(edns)) => edns.max_payload().clamp(PLAIN_DATAGRAM, MAX_DATAGRAM),
        (Transport::Udp, None) => PLAIN_DATAGRAM,
    })
}

/// How many records of a kind a message of so many bytes has room for, and one more: then it is marked as cut. The owner is a
/// pointer of two bytes, its type and the like are ten; a name is one byte at least.
fn room(limit: usize, question: Question) -> usize {
    let data = match question {
        Question::A => 4,
        Question::Aaaa => 16,
        Question::Srv => 7,
        _ => 1,
    };
    limit / (12 + data) + 1
}

/// Answers a message from the table as far as that is possible.
pub fn reply(table: &Table, bytes: &[u8], transport: Transport) -> Reply {
    reply_within(table, bytes, |request| limit(request, transport))
}

/// The answer to a message that came by a stream, if it is no longer than a datagram's: longer ones take their turn, as they take
/// their time.
pub fn short_reply(table: &Table, bytes: &[u8]) -> Option<Reply> {
    let reply = reply_within(table, bytes, |_| MAX_DATAGRAM.into());
    let is_cut = matches!(&reply, Reply::Send(bytes) if bytes.get(2).is_some_and(|flags| flags & TRUNCATED != 0));
    (!is_cut).then_some(reply)
}

fn reply_within(table: &Table, bytes: &[u8], limit: impl Fn(&Message) -> usize) -> Reply {
    let Ok(request) = Message::from_vec(bytes) else { return malformed(bytes) };
    if request.metadata.message_type != MessageType::Query {
        return Reply::Ignore;
    }
    let refusal = match (request.metadata.op_code, &request.queries[..]) {
        (OpCode::Query, [query]) if query.query_class == DNSClass::IN => None,
        (OpCode::Query, [_]) => Some(ResponseCode::Refused),
        (OpCode::Query, _) => Some(ResponseCode::FormErr),
        _ => Some(ResponseCode::NotImp),
    };
    if let Some(code) = refusal {
        return Reply::Send(encode(&respond(&request, code), limit(&request)));
    }
    if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        return Reply::Send(encode(&respond(&request, ResponseCode::BADVERS), limit(&request)));
    }
    let query = &request.queries[0];
    let name = query.name.to_lowercase().to_ascii();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let question = question(query.query_type);
    let part = Part { most: room(limit(&request), question), turn: TURN.fetch_add(1, Ordering::Relaxed) };
    match table.answer_in_part(name, question, part) {
        Answer::Foreign => Reply::Forward(Box::new(request)),
        Answer::Alias(target) if matches!(query.query_type, RecordType::A | RecordType::AAAA) => {
            Reply::ForwardAlias(Box::new(request), target)
        }
        answer => Reply::Send(encode(&answered(&request, table, answer), limit(&request))),
    }
}

/// The response that says only `code`.
pub fn respond(request: &Message, code: ResponseCode) -> Message {
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.metadata.response_code = code;
    // Who asks several things at once is told of one: all of them might not fit into an answer.
    response.queries = request.queries.iter().take(1).cloned().collect();
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

fn answered(request: &Message, table: &Table, answer: Answer) -> Message {
    let asked = &request.queries[0];
    let mut response = respond(request, ResponseCode::NoError);
    response.metadata.authoritative = true;
    match answer {
        Answer::Found { answers, additionals } => {
            response.answers = records(asked, table, answers);
            response.additionals = records(asked, table, additionals);
        }
        Answer::Alias(target) => {
            let name = asked.name.to_lowercase().to_ascii();
            let name = name.trim_end_matches('.').to_owned();
            response.answers = records(asked, table, vec![(name, Data::Cname(target))]);
        }
        Answer::NoData | Answer::NoSuchName | Answer::Foreign => {
            if answer == Answer::NoSuchName {
                response.metadata.response_code = ResponseCode::NXDomain;
            }
            response.authorities = records(asked, table, vec![(table.domain().to_owned(), Data::Soa)]);
        }
    }
    response
}

/// What an upstream server says about an alias' target, put behind the alias.
pub fn aliased(request: &Message, target: &str, upstream: Option<&Message>) -> Message {
    let code = upstream.map_or(ResponseCode::ServFail, |m| m.metadata.response_code);
    let mut response = respond(request, code);
    let Some(target) = name(target) else { return response };
    let owner = request.queries[0].name.clone();
    response.answers.push(Record::from_rdata(owner, TTL, RData::CNAME(CNAME(target))));
    response.answers.extend(upstream.into_iter().flat_map(|m| m.answers.iter().cloned()));
    response
}

/// The question for an alias' target.
pub fn alias_question(request: &Message, target: &str) -> Option<Message> {
    let mut question = Message::new(0, MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name(target)?, request.queries[0].query_type));
    Some(question)
}

/// The bytes of a response; what is beyond `limit` is cut and marked so.
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

/// A message that does not parse: told so, if it looks like a question at all.
fn malformed(bytes: &[u8]) -> Reply {
    let (Some(id), Some(flags)) = (bytes.get(..2), bytes.get(2)) else { return Reply::Ignore };
    if bytes.len() < 12 || flags & 0x80 != 0 {
        return Reply::Ignore;
    }
    let id = u16::from_be_bytes([id[0], id[1]]);
    let error = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
    Reply::Send(encode(&error, PLAIN_DATAGRAM.into()))
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

/// Records for the wire. A record of the very name asked for repeats it in the client's own upper and lower case.
fn records(asked: &Query, table: &Table, data: Vec<(String, Data)>) -> Vec<Record> {
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
            Data::Soa => RData::SOA(soa(table.domain())?),
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
