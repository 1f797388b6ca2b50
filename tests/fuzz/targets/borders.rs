//! Borders of privilege that are more than one parser: a shim and who speaks to it, forwarded ports, a registry's answers.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use podwright::server::fuzz::{self, Forward};
use podwright_journal::decode_all;
use podwright_runtime::image::fuzz as registry;
use podwright_runtime::shim::fuzz as shim;
use serde_json::Value;

use super::wire::{masked, spdy_streams};
use super::{Target, parts};

pub const TARGETS: &[Target] = &[
    Target::bytes("shim_greeting", shim_greeting, || {
        vec![greeting(1), greeting(2), [greeting(2), greeting(3)].concat()]
    }),
    Target::bytes("shim_connection", shim_connection, || {
        let state = shim::frame(&serde_json::json!({"id": 1, "call": "State"}), 1).unwrap();
        vec![[&[1][..], &piece(1, &state)].concat(), [&[0][..], &piece(3, &greeting(2)), &piece(0, &state)].concat()]
    }),
    Target::json("shim_requests", shim_requests, REQUESTS),
    Target::bytes("shim_child", shim_child, || {
        let failed = b"f{\"kind\":\"Kernel\",\"message\":\"no\"}";
        let said =
            [piece(1, b"b\x01\0\0\0"), piece(2, b"b\x01\0\0\0"), piece(0, failed), piece(0, b""), piece(8, b"p123")];
        vec![said.concat()]
    }),
    Target::bytes("forward_channels", forward_channels, || {
        let messages = [&b"\x00hi"[..], b"\x02there", b"\x01no", b"\xffno"];
        let texts =
            messages.map(|message| [&[b'0' + message[0] % 8][..], STANDARD.encode(message).as_bytes()].concat());
        vec![
            messages.iter().flat_map(|message| masked(0x82, message)).collect(),
            texts.iter().flat_map(|text| masked(0x81, text)).chain(masked(0x88, &[3, 232])).collect(),
        ]
    }),
    Target::bytes("forward_streams", forward_streams, || {
        let pair = |id: &str, port: &str| {
            let of = |kind| {
                [("streamtype", kind), ("port", port), ("requestid", id)].map(|(k, v)| (k.to_owned(), v.to_owned()))
            };
            spdy_streams(&[of("error").to_vec(), of("data").to_vec()], b"hi")
        };
        // The last one hangs up before its other half: it once was waited for for ever.
        let half = spdy_streams(&[vec![("streamtype".to_owned(), "error".to_owned())]], b"");
        let streams = [pair("0", "80"), pair("1", "none"), half];
        let messages = streams.iter().flat_map(|bytes| bytes.chunks(100).flat_map(|piece| masked(0x82, piece)));
        let tunnelled: Vec<u8> = messages.collect();
        streams.into_iter().chain([tunnelled]).collect()
    }),
    Target::text("registry_answers", registry_answers, ANSWERS),
];

/// Pieces of input, each with a number of descriptors: that, the length as two bytes, the bytes.
fn piece(fds: u8, bytes: &[u8]) -> Vec<u8> {
    [&[fds][..], &(bytes.len() as u16).to_le_bytes(), bytes].concat()
}

fn pieces(mut bytes: &[u8]) -> Vec<(&[u8], usize)> {
    let mut pieces = Vec::new();
    while let [fds, low, high, rest @ ..] = bytes {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        pieces.push((&rest[..length], usize::from(*fds % 9)));
        bytes = &rest[length..];
    }
    pieces
}

/// A message of the handshake, of that kind.
fn greeting(kind: u8) -> Vec<u8> {
    let mut message = vec![7; 72];
    message[..8].copy_from_slice(&[b'p', b'o', b'd', b's', b'h', b'i', b'm', kind]);
    message
}

fn shim_greeting(bytes: &[u8]) {
    assert!(!shim::greet(bytes, true).unwrap(), "nobody is believed who does not know the secret");
    let first = bytes.get(..72).is_some_and(|message| message.starts_with(b"podshim\x01"));
    assert_eq!(shim::greet(bytes, false).unwrap(), first, "the first one brings the secret");
}

fn shim_connection(bytes: &[u8]) {
    let [flags, rest @ ..] = bytes else { return };
    let told = shim::serve(&pieces(rest), flags & 1 == 1).unwrap();
    assert!(flags & 1 == 1 || told.replies.is_empty());
}

const REQUESTS: &[&str] = &[
    r#"[{"id":1,"call":"State"},{"id":2,"call":{"Signal":{"key":"running","signal":0}}},{"id":3,"call":{"Start":{"key":"created"}}},
    {"id":4,"call":{"Kill":{"key":"created"}}},{"id":5,"call":{"Remove":{"key":"running"}}},{"id":6,"call":{"Resize":{"key":"running","columns":80,"rows":24}}},
    {"fds":3,"id":7,"call":{"Attach":{"key":"running","stdin":true}}},{"id":8,"call":{"ExecSignal":{"exec":9,"signal":9}}},
    {"fds":2,"id":9,"call":{"Exec":{"exec":9,"key":"running","process":{"args":["sh"],"terminal":false},"stdin":true,"stdout":true,"stderr":false,"timeout_ms":1000}}},
    {"id":10,"call":{"Sandbox":{"id":"s","hostname":"h","new_net":true}}}]"#,
    r#"[{"id":1,"call":{"Create":{"key":"c","cgroup":"/x","exit_file":"/x","log":null,"stdin":true,"stdin_once":true,"pid":"Container","pid_of":"running",
    "root":{"layers":["/l"],"upper":"/u","work":"/w","dir":"/d","readonly":false},"mounts":[],"devices":[],"standard_devices":true,"masked_paths":[],"readonly_paths":[],
    "process":{"args":["sh"],"env":["A=b"],"cwd":"/"}}}},{"id":2,"call":"Shutdown"},{"id":3,"call":"State"}]"#,
];

/// Requests of an agent; a field `fds` says how many descriptors come with one.
fn shim_requests(value: Value) {
    let Value::Array(requests) = value else { return };
    let mut asked: Vec<u64> = Vec::new();
    let frames: Vec<(Vec<u8>, usize)> = requests
        .iter()
        .map(|request| {
            asked.extend(request["id"].as_u64());
            let fds = request["fds"].as_u64().map_or(0, |fds| (fds % 9) as usize);
            (shim::frame(request, fds).unwrap(), fds)
        })
        .collect();
    let frames: Vec<(&[u8], usize)> = frames.iter().map(|(frame, fds)| (&frame[..], *fds)).collect();
    for id in shim::serve(&frames, true).unwrap().replies {
        let at =
            asked.iter().position(|known| *known == id).expect("an answer is to a question, and to each one alone");
        asked.swap_remove(at);
    }
}

/// What may be said by who traces a child: it neither ends a birth nor fills the journal.
fn shim_child(bytes: &[u8]) {
    const MOST: u64 = 256 << 10;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let heard = shim::listen(&pieces(bytes), &journal).unwrap();
    assert!(!heard.closed, "it is open");
    let written = std::fs::read(&journal).unwrap_or_default();
    assert!(written.len() as u64 <= MOST, "{} bytes of records", written.len());
    decode_all(&written, 0);
}

fn forwarded(by: Forward<'_>, wanted: &[u16], bytes: &[u8]) -> Vec<(u16, usize)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let heard = runtime.block_on(fuzz::forward(by, wanted.to_vec(), bytes));
    let length: usize = heard.iter().map(|(_, length)| length).sum();
    assert!(length <= bytes.len(), "{by:?}: {length} bytes");
    heard
}

fn forward_channels(bytes: &[u8]) {
    for protocol in ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", "portforward.k8s.io"] {
        let mut wanted = vec![80, 8080, 80];
        for (port, _) in forwarded(Forward::Channels(protocol), &wanted.clone(), bytes) {
            let at = wanted.iter().position(|known| *known == port).expect("a port that was asked for, once each time");
            wanted.swap_remove(at);
        }
    }
}

fn forward_streams(bytes: &[u8]) {
    for by in [Forward::Streams, Forward::Tunnel] {
        let connections = forwarded(by, &[], bytes).len();
        // Each takes two streams, and the shortest frame that opens one is 18 bytes long.
        assert!(connections <= bytes.len() / 36, "{by:?}: {connections} connections");
    }
}

/// A challenge, where a redirect leads, a body, and a code.
const ANSWERS: &[&str] = &[
    "Bearer realm=\"https://auth.example/token\",service=\"reg,x\",scope=\"repository:a:pull\"\0https://cdn.example/x?y\0{\"token\":\"abc\",\"access_token\":\"d\"}\x00200",
    "Basic realm=\"x\"\0//127.0.0.1/\0{\"errors\":[{\"code\":\"DENIED\",\"message\":\"no\\u001b[2J\"}]}\x00403",
    "bearer x=\"y\", REALM=\"https://[::ffff:169.254.169.254]/\"\0../../x\0{\"access_token\":\"e\"}\x00404",
    concat!(
        "\0\0{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{\"mediaType\":\"c\",\"size\":1,",
        "\"digest\":\"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"},\"layers\":[]}\x00500"
    ),
    concat!(
        "\0\0{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":\"m\",\"size\":1,\"platform\":{\"architecture\":\"amd64\",\"os\":\"linux\"},",
        "\"digest\":\"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}]}\x00429"
    ),
];

fn registry_answers(text: &str) {
    let [challenge, location, body, code] = parts::<4>(text);
    for host in [registry::realm(challenge.as_bytes()), registry::redirect(location)].into_iter().flatten() {
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            let address = address.to_canonical();
            let inside = address.is_loopback() || address.is_unspecified() || address.is_multicast();
            let link = matches!(address, IpAddr::V4(v4) if v4.is_link_local());
            assert!(!inside && !link, "a registry leads to {host}");
        }
    }
    if let Some(token) = registry::token(body.as_bytes()) {
        HeaderValue::from_str(&format!("Bearer {token}")).expect("a token can stand in a header");
    }
    if let Some(told) = code.parse().ok().and_then(|code| registry::refused(code, body.as_bytes())) {
        assert!(told.chars().count() < 1000 && !told.chars().any(char::is_control), "{told:?}");
    }
    if let Ok((_, digests)) = registry::document(body.as_bytes()) {
        assert!(digests.iter().all(|digest| digest.starts_with("sha256:") && !digest.contains('/')), "{digests:?}");
    }
}
