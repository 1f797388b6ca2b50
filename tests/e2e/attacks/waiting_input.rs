//! By users of the API: input that nobody reads, in messages that come with much else.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::memory::Peak;
use super::sessions::WEBSOCKET;
use super::world::{EDIT, World};
use super::{Attack, TIMEOUT, Target, Try, Verdict, verdict};
use crate::support::{TestNode, eventually, tls};

pub const ATTACKS: &[Attack] = &[Attack {
    id: "forward-byte-by-byte",
    class: "exhaustion",
    cves: &[],
    how: "`edit` forwards a port of a Pod that reads nothing, fills all that is on the way, and sends by turns 1,000 bytes for the port and 65,000 for a channel that there is not; the memory of the server's process",
    held: "of a message its own bytes are kept, and not the buffer that it was read into",
    attempt: Try::Code(forward),
}];

/// More than what is honestly kept for a few sessions, and much less than the buffers that the messages came in.
const MOST: u64 = 32;

type Socket = StreamOwned<ClientConnection, TcpStream>;

/// A node of its own, with a Pod that reads nothing: memory that another one has had before, and uses again, would hide how much is
/// kept.
struct Mute {
    node: TestNode,
    address: String,
    tls: Arc<ClientConfig>,
    _tokens: tempfile::TempDir,
}

const OBJECTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: edit}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: edna}]
---
apiVersion: v1
kind: Pod
metadata: {name: mute}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'for p in 7001 7002; do (sleep 1000 | nc -l -p $p | sleep 1000) & done; sleep 1000']
";

impl Mute {
    fn start() -> Mute {
        let tokens = tempfile::tempdir().unwrap();
        let file = tokens.path().join("tokens");
        fs::write(&file, format!("{EDIT},edna,1\n")).unwrap();
        let node = TestNode::start(&["--token-auth-file", file.to_str().unwrap()]);
        let (address, tls) = tls::client(&node, false);
        node.import_busybox();
        node.apply(OBJECTS);
        node.wait("condition=Ready", &["pod/mute"], TIMEOUT);
        Mute { node, address, tls, _tokens: tokens }
    }

    /// A WebSocket for a session with the Pod. The beginning of the answer where there is none.
    fn open(&self, session: &str) -> Result<Socket, String> {
        let mut socket = tls::dial(&self.address, &self.tls);
        let path = format!("/api/v1/namespaces/default/pods/mute/{session}");
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {EDIT}\r\n{WEBSOCKET}\r\n");
        socket.write_all(head.as_bytes()).map_err(|e| e.to_string())?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).map_err(|e| e.to_string())?;
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if answer.contains(" 101 ") { Ok(socket) } else { Err(answer) }
    }
}

/// A binary message of a channel, below 64 KiB, in one frame that is masked by zeros (RFC 6455, 5.2).
fn message(channel: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 1).expect("it is short");
    let mut frame = vec![0x82];
    if length < 126 {
        frame.push(0x80 | length as u8);
    } else {
        frame.push(0x80 | 126);
        frame.extend(length.to_be_bytes());
    }
    frame.extend([0; 4]);
    frame.push(channel);
    frame.extend(payload);
    frame
}

/// Bytes for the port that the kernel of a Pod's network has, sent or not read (proc_pid_net(5)). `None`: nobody listens there.
fn queued(netns: &Path) -> Option<u64> {
    let port = format!(":{PORT:04X}");
    let (mut listens, mut bytes) = (false, 0);
    for file in ["../net/tcp", "../net/tcp6"] {
        for line in fs::read_to_string(netns.with_file_name(file)).ok()?.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, local, remote, state, queues, ..] = words[..] else { continue };
            listens |= local.ends_with(&port);
            if state == "01" && (local.ends_with(&port) || remote.ends_with(&port)) {
                let number = |hex| u64::from_str_radix(hex, 16).unwrap_or(0);
                bytes += queues.split_once(':').map_or(0, |(sent, unread)| number(sent) + number(unread));
            }
        }
    }
    listens.then_some(bytes)
}

const PORT: u16 = 7001;

fn forward(_: &World, _: &Target) -> Verdict {
    let mute = Mute::start();
    let netns = mute.node.netns_of("mute");
    eventually("it listens", TIMEOUT, || queued(&netns).ok_or_else(String::new));
    match forwarded(&mute, &netns) {
        Ok((true, grown, seen)) => verdict(grown < MOST, seen),
        // Nothing has waited in the server then.
        Ok((false, _, seen)) => Verdict::Untried(format!("the port's window is not full: {seen}")),
        Err(why) => Verdict::Untried(why),
    }
}

/// Whether the server has given the port up at last, as it took nothing; and the growth of memory.
fn forwarded(mute: &Mute, netns: &Path) -> Result<(bool, u64, String), String> {
    // Others are held up: then more is kept for a while than a window has, and the port is given up.
    let mut socket = mute.open("portforward?ports=7001,7002")?;
    socket.sock.set_read_timeout(Some(Duration::from_millis(1))).map_err(|e| e.to_string())?;
    fill(&mut socket, netns)?;
    let both = [message(0, &[b'x'; 1000]), message(250, &[b'j'; 65_000])].concat();
    let peak = Peak::of(mute.node.pid());
    let mut heard = Vec::new();
    for round in 0..100 {
        let times = if round < 64 { 32 } else { 1 };
        (0..times).try_for_each(|_| socket.write_all(&both)).map_err(|e| e.to_string())?;
        // Until there is no more for now.
        let _ = socket.read_to_end(&mut heard);
        if String::from_utf8_lossy(&heard).contains("took nothing") {
            return Ok((true, peak.grown(), peak.seen()));
        }
        // It may take nothing for some seconds.
        std::thread::sleep(Duration::from_millis(if times == 1 { 200 } else { 0 }));
    }
    Ok((false, peak.grown(), peak.seen()))
}

/// Fills the kernel's buffers, however large they are, and most of what the node keeps for a port.
fn fill(socket: &mut Socket, netns: &Path) -> Result<(), String> {
    const BATCH: usize = 16;
    // Of the mebibyte that the node keeps, beside what it has got until it is seen that the kernel takes no more.
    const KEPT: usize = 40;
    let piece = message(0, &[b'z'; 8000]);
    let mut send = |pieces: usize| (0..pieces).try_for_each(|_| socket.write_all(&piece)).map_err(|e| e.to_string());
    let (mut before, mut unchanged) = (None, 0);
    for _ in 0..400 {
        send(BATCH)?;
        std::thread::sleep(Duration::from_millis(100));
        let now = queued(netns).filter(|bytes| *bytes > 0);
        unchanged = if now.is_some() && now == before { unchanged + 1 } else { 0 };
        before = now;
        if unchanged == 4 {
            return send(KEPT);
        }
    }
    Err(format!("the kernel takes more and more: {before:?}"))
}
