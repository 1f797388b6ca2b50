//! An operator's view of running processes: profiles, pages, and exported traces.

mod asked;
mod clients;
mod collector;
mod hook;
mod profiles;
mod traces;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::TestNode;

/// A response of a server's socket.
struct Answer {
    code: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// An HTTP request: `GET /path`, more headers, a JSON body.
fn ask(node: &TestNode, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = UnixStream::connect(node.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
    let mut request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, head, body: bytes.split_off(end + 4) }
}

fn get(node: &TestNode, path: &str) -> Answer {
    ask(node, &format!("GET {path}"), &[], "")
}
