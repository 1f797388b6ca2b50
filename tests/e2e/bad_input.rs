//! Bad input to a server's TLS listener: each gets the right status, and none occupies memory for long.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::support::{TestNode, contains, eventually, tls};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TIMEOUT: Duration = Duration::from_secs(60);

struct Server {
    node: TestNode,
    address: String,
    admin: Arc<ClientConfig>,
    /// Without a certificate: a valid one counts, whatever token is sent.
    nobody: Arc<ClientConfig>,
}

impl Server {
    fn start() -> Server {
        Server::with(&[])
    }

    fn with(args: &[&str]) -> Server {
        let node = TestNode::server(&[&["--listen", "127.0.0.1:0"], args].concat());
        let ((address, admin), (_, nobody)) = (tls::client(&node, true), tls::client(&node, false));
        Server { node, address, admin, nobody }
    }

    /// Its response to these bytes until it closes the connection.
    fn says(&self, sent: &[u8]) -> String {
        let has_token = sent.windows(14).any(|part| part == b"Authorization:");
        let mut stream = tls::dial(&self.address, if has_token { &self.nobody } else { &self.admin });
        // It may close before everything is sent, or reset what it did not read.
        let _ = stream.write_all(sent).and_then(|()| stream.flush());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The code and text of the response to one request, which ends its connection.
    fn answers(&self, line: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let length = body.len();
        let head =
            format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
        let told = self.says(&[head.as_bytes(), body].concat());
        let code = told.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        (code, told)
    }

    /// Resident memory in MiB, now.
    fn rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.node.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
    }
}

/// The input: request line, headers, body; the expected code, and a part of the response.
type Case = (&'static str, &'static str, &'static [u8], u16, &'static str);

const JSON: &str = "Content-Type: application/json\r\n";
const GZIP: &str = "Content-Type: application/json\r\nContent-Encoding: gzip\r\n";
const FORGED: &str = "Authorization: Bearer eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMuY2x1c3Rlci5sb2NhbCJ9.AAAA\r\n";

const CASES: &[Case] = &[
    ("POST", JSON, b"{\"metadata\": {\"name\": \"a\"", 400, "json parse error"),
    ("POST", JSON, b"{\"metadata\": {\"name\": 5}}", 400, "metadata.name"),
    ("POST", JSON, b"{\"metadata\": {\"name\": \"a\"}, \"data\": {\"a\": [1]}}", 400, "data"),
    ("POST", JSON, b"{\"metadata\": {\"name\": \"\xff\"}}", 400, "BadRequest"),
    ("POST", "Content-Type: application/yaml\r\n", b"a: [b", 400, "error converting YAML to JSON"),
    (
        "POST",
        "Content-Type: application/vnd.kubernetes.protobuf\r\n",
        b"k8s\0\x12\xff\xff\xff\xff\x0f",
        400,
        "protobuf error",
    ),
    ("POST", "Content-Type: application/vnd.kubernetes.protobuf\r\n", b"plain", 400, "protobuf"),
    ("POST", GZIP, b"\x1f\x8b\x08\0rubbish", 400, "BadRequest"),
    ("POST", "Content-Type: text/html\r\n", b"<p>", 415, "UnsupportedMediaType"),
    ("PATCH /a", JSON, b"{}", 415, "UnsupportedMediaType"),
    ("GET", "Accept: text/html\r\n", b"", 406, "NotAcceptable"),
    ("GET", FORGED, b"", 401, "Unauthorized"),
    ("GET", "Authorization: Bearer nonsense\r\n", b"", 401, "Unauthorized"),
    ("GET ?limit=many", "", b"", 400, "limit"),
    ("GET ?limit=99999999999999999999", "", b"", 400, "limit"),
    ("GET ?continue=garbage", "", b"", 400, "continue key is not valid"),
    ("GET ?continue=eyJydiI6LTEsInN0YXJ0IjoiIn0", "", b"", 400, "continue key is not valid"),
    ("GET ?resourceVersion=-1", "", b"", 400, "Invalid value"),
    ("GET ?watch=true&resourceVersion=x", "", b"", 400, "Invalid value"),
    ("GET ?timeoutSeconds=soon&watch=true", "", b"", 400, "timeoutSeconds"),
    ("GET ?labelSelector=a+in+(b", "", b"", 400, "unable to parse requirement"),
    ("GET ?fieldSelector=spec.nothing%3Da", "", b"", 400, "field"),
    ("GET ?limit=-1", "", b"", 200, "ConfigMapList"),
    ("GET ?pretty=%FF%00&limit=1", "", b"", 200, "ConfigMapList"),
    ("DELETE /a?gracePeriodSeconds=never", "", b"", 400, "gracePeriodSeconds"),
    ("BREW", "", b"", 405, "MethodNotAllowed"),
];

#[test]
fn bad_requests_get_the_right_status() {
    let server = Server::start();
    let mut wrong = Vec::new();
    for (line, headers, body, code, words) in CASES {
        let (method, rest) = line.split_once(' ').unwrap_or((line, ""));
        let told = server.answers(&format!("{method} {MAPS}{rest}"), headers, body);
        if told.0 != *code || !told.1.contains(words) {
            wrong.push(format!(
                "{line} {headers:?} {:?}: {code} {words:?}, not {}",
                String::from_utf8_lossy(body),
                told.1
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Deep nesting gets a clear response, in every format.
    let deep = |open: &str, close: &str| [open.repeat(100_000), close.repeat(100_000)].concat().into_bytes();
    let protobuf = (0..200).fold(vec![0x0a, 0], |inner, _| {
        let length = inner.len();
        [&[0x0a, (length & 0x7f) as u8 | 0x80, (length >> 7) as u8][..], &inner].concat()
    });
    for (media, body) in [
        ("application/json", deep("[", "]")),
        ("application/json", deep("{\"a\":", "1")),
        ("application/yaml", deep("[", "]")),
        ("application/yaml", deep("- ", "")),
        ("application/vnd.kubernetes.protobuf", [b"k8s\0", &protobuf[..]].concat()),
    ] {
        let told = server.answers(&format!("POST {MAPS}"), &format!("Content-Type: {media}\r\n"), &body);
        assert_eq!(told.0, 400, "{media}: {}", told.1);
    }
    let (code, told) = server.answers(&format!("POST {MAPS}"), JSON, &vec![b' '; 10 << 20]);
    assert!(code == 413 || code == 0, "it may be reset while it is sent: {told}");
    assert_eq!(server.answers("GET /healthz", "", b"").0, 200, "it goes on");
}

/// Ambiguous request boundaries enable smuggling: such a request is refused, or is the last of its connection.
#[test]
fn nothing_is_smuggled_behind_a_request() {
    let server = Server::start();
    let head = format!("POST {MAPS} HTTP/1.1\r\nHost: x\r\n{JSON}");
    let behind = "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for framing in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "Content-Length: 2, 3\r\n\r\n{}",
        "Content-Length: +2\r\n\r\n{}",
        "Content-Length: -1\r\n\r\n{}",
        "Content-Length : 2\r\n\r\n{}",
        "Content-Length: 99999999999999999999\r\n\r\n{}",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: x\r\nTransfer-Encoding: y\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{}\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        "X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    ] {
        let told = server.says(format!("{head}{framing}{behind}").as_bytes());
        assert!(told.starts_with("HTTP/1.1 4"), "{framing:?}: {told}");
        assert!(!told.contains("gitVersion"), "{framing:?}: {told}");
    }
    let one_behind_the_other = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n{behind}");
    contains(&server.says(one_behind_the_other.as_bytes()), "gitVersion").unwrap();
}

/// Many clients sending garbage, concurrently for a while.
#[test]
fn a_flood_of_rubbish_leaves_no_memory_behind() {
    const CLIENTS: usize = 8;
    const EACH: usize = 12;
    let server = Server::start();
    let deep = "[".repeat(200_000).into_bytes();
    let wide = format!("{{\"data\": {{{}\"z\": 1}}}}", "\"a\": \"b\", ".repeat(20_000)).into_bytes();
    let text = format!("{{\"metadata\": {{\"name\": \"{}\"}}}}", "x".repeat(1 << 20)).into_bytes();
    let flood = || {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (server, bodies) = (&server, [&deep, &wide, &text]);
                scope.spawn(move || {
                    for turn in 0..EACH {
                        let body = bodies[(client + turn) % bodies.len()];
                        let (code, told) = server.answers(&format!("POST {MAPS}"), JSON, body);
                        assert!(matches!(code, 400 | 413 | 422 | 429), "{code}: {}", &told[..told.len().min(300)]);
                    }
                });
            }
        });
    };
    flood();
    let before = server.rss();
    flood();
    eventually("it has no more memory than after the first flood", TIMEOUT, || match server.rss() {
        now if now <= before + 32 => Ok(()),
        now => Err(format!("{before} MiB before, {now} MiB now")),
    });
}

/// A client refused while still sending may continue for a moment, but not for long.
#[test]
fn who_is_answered_early_may_finish_what_he_says() {
    const LARGEST: usize = 3 << 20;
    let server = Server::start();
    let length = LARGEST + 1;
    let head = format!("POST {MAPS} HTTP/1.1\r\nHost: x\r\n{JSON}Content-Length: {length}\r\n\r\n");
    let mut stream = tls::dial(&server.address, &server.admin);
    stream.write_all(head.as_bytes()).and_then(|()| stream.flush()).unwrap();
    let mut code = [0; 12];
    stream.read_exact(&mut code).unwrap();
    assert_eq!(code, *b"HTTP/1.1 413", "{}", String::from_utf8_lossy(&code));
    let piece = vec![b' '; 64 << 10];
    let all = (0..length / piece.len()).try_for_each(|_| stream.write_all(&piece).and_then(|()| stream.flush()));
    all.expect("it goes on taking what was announced");
    stream.read_to_end(&mut Vec::new()).expect("the answer has an end");
    let endless = (0..1024).try_for_each(|_| stream.write_all(&piece).and_then(|()| stream.flush()));
    assert!(endless.is_err(), "it takes in 64 MiB after its last word");
}

/// Unfinished bodies: their memory per user is limited; the user gets an error, and others are served.
#[test]
fn bodies_that_wait_take_so_much_memory_and_no_more() {
    const CLIENTS: usize = 60;
    const BODY: usize = 3 << 20;
    const HIS: &str = "Content-Type: application/json\r\nAuthorization: Bearer his\r\n";
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), "his,jane,1\n").unwrap();
    let server = Server::with(&["--token-auth-file", tokens.path().to_str().unwrap()]);
    server.node.ok(&["create", "clusterrolebinding", "jane", "--clusterrole=edit", "--user=jane"]);
    let before = server.rss();
    let head = format!("POST {MAPS} HTTP/1.1\r\nHost: x\r\n{HIS}Content-Length: {BODY}\r\n\r\n");
    let mut waiting = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = tls::dial(&server.address, &server.nobody);
        // All but the last byte; a refused client is disconnected, now or a little later.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b' '; BODY - 1]));
        let _ = stream.flush();
        waiting.push(stream);
    }
    // It may still be reading. A refused client gets the response although it has not sent everything.
    eventually("he has no more room", TIMEOUT, || {
        match server.answers(&format!("POST {MAPS}"), HIS, &vec![b' '; 3 << 20]) {
            (429, _) => Ok(()),
            (400, told) => Err(told),
            (code, told) => panic!("{code}: {told:?}"),
        }
    });
    let most = server.rss();
    assert!(most < before + 150, "{before} MiB before, {most} MiB with {CLIENTS} bodies of 3 MiB on their way");
    let (code, told) = server.answers(&format!("POST {MAPS}"), JSON, &vec![b' '; 2 << 20]);
    assert_eq!(code, 400, "another is served: {told}");
    assert_eq!(server.answers("GET /healthz", "", b"").0, 200, "who sends no body is served");
    drop(waiting);
    eventually("there is room again", TIMEOUT, || {
        let (code, told) = server.answers(&format!("POST {MAPS}"), HIS, b"{");
        if code == 400 { Ok(()) } else { Err(told) }
    });
    eventually("the memory is given back", TIMEOUT, || match server.rss() {
        now if now <= before + 100 => Ok(()),
        now => Err(format!("{before} MiB before, {now} MiB now")),
    });
}
