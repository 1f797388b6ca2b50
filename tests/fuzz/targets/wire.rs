//! Bytes of connections: frames, messages, records, names on the wire.

use std::net::IpAddr;
use std::sync::LazyLock;

use bytes::BytesMut;
use podwright::api::stream::{CLOSE, Frame, FrameCodec, RESIZE, STDIN};
use podwright::node::probes::grpc;
use podwright_journal::{JournalWriter, Role, decode_all};
use podwright_net::dns::answer::{self, Reply, Transport};
use podwright_net::dns::{Entry, Names, Table};
use podwright_net::message::{Writer, address, attribute, attributes, messages, u32_at};
use podwright_runtime::protocol::{Frames, Message, Request, VERSION, encode};
use tokio_util::codec::{Decoder, Encoder};

use super::Target;

pub const TARGETS: &[Target] = &[
    Target::bytes("stream_frames", stream_frames, || {
        vec![b"\x01\0\0\0\x03abc\x02\0\0\0\0".to_vec(), b"\0\xff\xff\xff\xff".to_vec()]
    }),
    Target::bytes("shim_request", shim::<Request>, || {
        vec![
            shim_frame(r#"{"id":1,"cause":{},"call":"State"}"#),
            shim_frame(r#"{"id":2,"call":{"Signal":{"key":"c","signal":9}}}"#),
        ]
    }),
    Target::bytes("shim_message", shim::<Message>, || vec![shim_frame(r#"{"Reply":{"id":1,"result":{"Ok":"Done"}}}"#)]),
    Target::bytes("journal", journal, journal_seeds),
    Target::bytes("dns", dns, dns_seeds),
    Target::bytes("netlink", netlink, netlink_seeds),
    Target::bytes("grpc_health", grpc_health, || vec![vec![0, 0, 0, 0, 2, 8, 1], vec![0; 5]]),
    Target::bytes("spdy", spdy_client, spdy_seeds),
    Target::bytes("websocket", websocket, || {
        let messages = [&b"\x00hi"[..], b"\x04{\"Width\":80,\"Height\":24}", b"\xff\x00", b"\x02no"];
        let whole: Vec<u8> = messages.iter().flat_map(|message| masked(0x82, message)).collect();
        let cut = [masked(0x02, b"\x00a"), masked(0x89, b"ping"), masked(0x80, b"b"), masked(0x88, &[3, 232])].concat();
        vec![whole, cut, masked(0x81, "\0é".as_bytes())]
    }),
];

fn stream_frames(bytes: &[u8]) {
    let (mut buffer, mut written) = (BytesMut::from(bytes), BytesMut::new());
    let mut read = 0;
    while let Ok(Some(frame)) = FrameCodec.decode(&mut buffer) {
        let Frame { channel, payload } = frame.clone();
        read += 5 + payload.len();
        assert!(bytes.len() >= read, "no byte comes from nowhere");
        FrameCodec.encode(frame, &mut written).expect("what was read can be written");
        assert_eq!(written[written.len() - payload.len() - 5], channel);
    }
    assert_eq!(written, bytes[..read], "written as it was read");
}

fn shim_frame(json: &str) -> Vec<u8> {
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    encode(&value, 0, VERSION).unwrap()
}

fn shim<T: serde::de::DeserializeOwned>(bytes: &[u8]) {
    let mut frames = Frames { bytes: bytes.to_vec(), ..Frames::default() };
    let mut left = bytes.len();
    while let Ok(Some((_, fds))) = frames.take::<T>() {
        assert!(fds.is_empty() && frames.bytes.len() < left, "each frame takes its bytes");
        left = frames.bytes.len();
    }
}

fn journal(bytes: &[u8]) {
    let records = decode_all(bytes, 7);
    assert!(records.iter().all(|record| record.sequence >= 7), "a record's place is its number");
    assert!(records.windows(2).all(|two| two[0].sequence < two[1].sequence));
}

/// A journal as it is written.
fn journal_seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let journal = JournalWriter::open(&path, Role::Agent).unwrap();
    for call in ["mount", "clone3"] {
        journal.note(call, |a| a.text("/a -> /b"));
    }
    journal.flush();
    vec![std::fs::read(path).unwrap()]
}

fn dns(bytes: &[u8]) {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        let mut table =
            Table::new("cluster.local", vec!["10.96.0.0/16".parse().unwrap()], vec![[10, 96, 0, 10].into()]);
        let many = Entry { addresses: (1..=250).map(|i| IpAddr::from([10, 244, 1, i])).collect(), ..Entry::default() };
        let alias = Entry { cname: Some("www.example.org".into()), ..Entry::default() };
        let names = [("a.default.svc.cluster.local".into(), many), ("x.default.svc.cluster.local".into(), alias)];
        table.set("default", Names::from(names));
        table
    });
    let sound = |answer: &[u8], most: usize| {
        assert!(answer.len() <= most, "{} bytes, not {most}", answer.len());
        assert_eq!(answer[..2], bytes[..2], "an answer has its question's number");
        assert!(answer[2] & 0x80 != 0, "an answer is none that is answered");
    };
    let request = match answer::read(bytes) {
        Ok(request) => request,
        Err(refusal) => return refusal.iter().for_each(|answer| sound(answer, 512)),
    };
    for (transport, most) in [(Transport::Udp, 1232), (Transport::Tcp, usize::from(u16::MAX))] {
        let limit = answer::limit(&request, transport);
        assert!(limit <= most);
        if let Reply::Send(answer) = answer::reply(&request, answer::look_up(&TABLE, &request, limit), limit) {
            sound(&answer, limit);
        }
    }
}

/// Questions for the names of the table, by type.
fn dns_seeds() -> Vec<Vec<u8>> {
    let question = |name: &str, kind: u16, edns: bool| {
        let mut out = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)];
        for label in name.split('.') {
            out.push(label.len() as u8);
            out.extend_from_slice(label.as_bytes());
        }
        out.push(0);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0, 1]);
        if edns {
            out.extend_from_slice(&[0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
        }
        out
    };
    let name = "a.default.svc.cluster.local";
    let mut all: Vec<_> = [1, 28, 33, 255].into_iter().map(|kind| question(name, kind, kind == 1)).collect();
    all.push(question("x.default.svc.cluster.local", 1, false));
    all.push(question("1.1.244.10.in-addr.arpa", 12, true));
    all.push(question("example.org", 1, false));
    // More questions than there is room for in an answer.
    let mut many = question(name, 1, false);
    let asked = many[12..].to_vec();
    many[5] = 80;
    (1..80).for_each(|_| many.extend_from_slice(&asked));
    all.push(many);
    all
}

fn netlink(bytes: &[u8]) {
    let mut length = 0;
    for message in messages(bytes) {
        length += message.payload.len() + 16;
        nested(message.payload, 4);
        nested(message.payload.get(4..).unwrap_or_default(), 4);
        u32_at(message.payload, 3);
    }
    assert!(length <= bytes.len());
}

fn nested(payload: &[u8], depth: u8) {
    for (kind, value) in attributes(payload) {
        assert!(attribute(payload, kind).is_some());
        address(value);
        if depth > 0 {
            nested(value, depth - 1);
        }
    }
}

fn netlink_seeds() -> Vec<Vec<u8>> {
    let mut writer = Writer::new();
    writer.message(1, 2, &[0; 4]).str(1, "name").be32(2, 7);
    let nest = writer.open(3);
    writer.attr(1, &[10, 0, 0, 1]).close(nest);
    writer.message(4, 0, &[]).attr(5, &[0; 16]);
    vec![writer.finish(1).0]
}

fn grpc_health(bytes: &[u8]) {
    if let Some(status) = grpc::status(bytes) {
        assert!(bytes.len() >= 5 && status <= 255);
    }
}

fn spdy_client(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (streams, length) = runtime.block_on(podwright::server::fuzz::spdy(bytes));
    assert!(streams <= bytes.len() / 18 && length <= bytes.len(), "{streams} streams, {length} bytes");
}

/// Only the channels that a client may write to reach the node, and no more than was sent.
fn websocket(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for protocol in ["v5.channel.k8s.io", "base64.channel.k8s.io"] {
        let heard = runtime.block_on(podwright::server::fuzz::websocket(protocol, bytes));
        assert!(heard.iter().all(|frame| matches!(frame.channel, STDIN | RESIZE | CLOSE)));
        assert!(heard.iter().map(|frame| frame.payload.len() + 1).sum::<usize>() <= bytes.len());
    }
}

/// A short frame as a client sends it, masked with zeros (RFC 6455, section 5.2).
pub(super) fn masked(head: u8, payload: &[u8]) -> Vec<u8> {
    [&[head, 0x80 | payload.len() as u8, 0, 0, 0, 0][..], payload].concat()
}

/// A stream with plain headers in stored (uncompressed) blocks, data on it, a ping, a goodbye.
fn spdy_seeds() -> Vec<Vec<u8>> {
    let of = |level| {
        let streams = [vec![("streamtype".to_owned(), "stdin".to_owned())]];
        [spdy(&streams, b"hi", level), spdy_frame(6, &[0, 0, 0, 1]), spdy_frame(7, &[0; 8])].concat()
    };
    vec![of(flate2::Compression::none()), of(flate2::Compression::fast())]
}

fn spdy_frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[0x80, 3, 0, kind, 0, 0, 0, payload.len() as u8][..], payload].concat()
}

/// Streams with these headers, one after the other, and bytes by the last of them, which end it.
pub(super) fn spdy_streams(streams: &[Vec<(String, String)>], bytes: &[u8]) -> Vec<u8> {
    spdy(streams, bytes, flate2::Compression::fast())
}

fn spdy(streams: &[Vec<(String, String)>], bytes: &[u8], level: flate2::Compression) -> Vec<u8> {
    use std::io::Write;
    // One dictionary for all headers of a connection.
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
    let mut sent = Vec::new();
    for (number, headers) in streams.iter().enumerate() {
        let mut block = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend_from_slice(&(text.len() as u32).to_be_bytes());
            block.extend_from_slice(text.as_bytes());
        }
        let before = zlib.get_ref().len();
        zlib.write_all(&block).unwrap();
        zlib.flush().unwrap();
        let id = [0, 0, 0, 2 * number as u8 + 1];
        sent.extend(spdy_frame(1, &[&id[..], &[0; 6], &zlib.get_ref()[before..]].concat()));
    }
    sent.extend([0, 0, 0, 2 * streams.len() as u8 - 1, 1, 0, 0, bytes.len() as u8]);
    sent.extend_from_slice(bytes);
    sent
}
