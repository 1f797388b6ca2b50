//! Somebody who listens on all ports and opens connections when asked to, in the network namespace of a Pod, a node or a host.
//!
//! TCP and UDP are answered with the name of who answers and his port. An association of SCTP is not: that its first packet has come
//! is noted in a book that all share.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{policy::Protocol, sctp, world::PORTS};
use crate::support::netns::within;

/// For how long nobody must have answered until those who have not are taken to be silent. Whoever should answer is asked again.
const QUIET: Duration = Duration::from_millis(150);
/// How many TCP connections one opens at once: a process may have a thousand files open, and all stations are one.
const AT_ONCE: usize = 42;
/// Where datagrams are sent from, one port after the other: one that has been used lately may have a connection that is tracked still.
const SOURCES: std::ops::Range<u16> = 20_000..30_000;

/// Which associations have come, and to whom.
pub type Book = Arc<Mutex<BTreeMap<u32, String>>>;

/// A connection to be opened.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pub protocol: Protocol,
    pub address: SocketAddr,
    pub by_service: bool,
}

/// Dropping it ends who listens.
pub struct Station {
    netns: PathBuf,
    book: Book,
    source: AtomicU16,
    stop: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Station {
    /// Listens when this returns.
    pub fn start(netns: PathBuf, name: &str, families: &[IpAddr], book: &Book) -> Station {
        let ears = within(&netns, || Ears::open(families));
        let stop = Arc::new(AtomicBool::new(false));
        let (name, stopped, also) = (name.to_owned(), stop.clone(), book.clone());
        let listener = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                ears.listen(&name, &also);
            }
        });
        Station { netns, book: book.clone(), source: AtomicU16::new(0), stop, listener: Some(listener) }
    }

    /// Opens them all; what each was answered, if it was.
    pub fn ask(&self, questions: &[Question]) -> Vec<Option<String>> {
        within(&self.netns, || Asked::new(questions, self).answers())
    }

    fn source(&self) -> u16 {
        SOURCES.start + self.source.fetch_add(1, Ordering::Relaxed) % SOURCES.len() as u16
    }

    /// A socket on a port that was not used lately; others in the same namespace may have the next one.
    fn datagrams(&self, is_ipv4: bool) -> UdpSocket {
        let any = if is_ipv4 { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = (0..10).find_map(|_| UdpSocket::bind((any, self.source())).ok()).expect("not all ports are taken");
        socket.set_nonblocking(true).unwrap();
        socket
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

pub fn answer(name: &str, port: u16) -> String {
    format!("{name} {port}")
}

/// All that one listens with.
struct Ears {
    tcp: Vec<(u16, TcpListener)>,
    udp: Vec<(u16, UdpSocket)>,
    /// With whether it is of IPv4.
    sctp: Vec<(bool, OwnedFd)>,
}

impl Ears {
    fn open(families: &[IpAddr]) -> Ears {
        // One that is of IPv6 hears IPv4 too.
        let any = match families.iter().any(IpAddr::is_ipv6) {
            true => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        };
        let tcp = PORTS.map(|port| (port, TcpListener::bind((any, port)).unwrap()));
        let udp = PORTS.map(|port| (port, UdpSocket::bind((any, port)).unwrap()));
        tcp.iter().for_each(|(_, socket)| socket.set_nonblocking(true).unwrap());
        udp.iter().for_each(|(_, socket)| socket.set_nonblocking(true).unwrap());
        let sctp = families.iter().map(|family| (family.is_ipv4(), sctp::socket(*family).unwrap())).collect();
        Ears { tcp: tcp.into(), udp: udp.into(), sctp }
    }

    /// Answers who is there, or waits a moment for somebody.
    fn listen(&self, name: &str, book: &Book) {
        let all = self.tcp.iter().map(|(_, it)| it.as_fd()).chain(self.udp.iter().map(|(_, it)| it.as_fd()));
        wait(all.chain(self.sctp.iter().map(|(_, it)| it.as_fd())), Duration::from_millis(50));
        for (port, socket) in &self.tcp {
            while let Ok((mut stream, _)) = socket.accept() {
                // Who asks may have gone.
                let _ = stream.write_all(answer(name, *port).as_bytes());
            }
        }
        for (port, socket) in &self.udp {
            let mut buffer = [0; 4];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&[&buffer, answer(name, *port).as_bytes()].concat(), from);
            }
        }
        for (is_ipv4, socket) in &self.sctp {
            while let Some((tag, port)) = sctp::receive(socket, *is_ipv4) {
                book.lock().unwrap().insert(tag, answer(name, port));
            }
        }
    }
}

fn wait<'a>(all: impl Iterator<Item = std::os::fd::BorrowedFd<'a>>, most: Duration) {
    let mut all: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let most = PollTimeout::try_from(most).expect("it is short");
    // A signal ends it early, which does no harm.
    let _ = poll(&mut all, most);
}

/// Questions that are being asked.
struct Asked<'a> {
    questions: &'a [Question],
    station: &'a Station,
    answers: Vec<Option<String>>,
    /// By whether it is of IPv4, and whether to Services: of one socket no two datagrams are of one connection in the end.
    udp: BTreeMap<(bool, bool), UdpSocket>,
    /// Those of SCTP that nobody has noted yet, by their tags.
    tags: BTreeMap<u32, usize>,
    heard: Instant,
}

impl Asked<'_> {
    fn new<'a>(questions: &'a [Question], station: &'a Station) -> Asked<'a> {
        let answers = vec![None; questions.len()];
        Asked { questions, station, answers, udp: BTreeMap::new(), tags: BTreeMap::new(), heard: Instant::now() }
    }

    fn answers(mut self) -> Vec<Option<String>> {
        self.send_datagrams();
        self.send_associations();
        let of_tcp = |at: &usize| self.questions[*at].protocol == Protocol::Tcp;
        let tcp: Vec<usize> = (0..self.questions.len()).filter(of_tcp).collect();
        self.heard = Instant::now();
        for some in tcp.chunks(AT_ONCE) {
            let mut open = connections(some, self.questions);
            self.heard = Instant::now();
            while !open.is_empty() && !self.is_quiet() {
                self.gather(&mut open);
            }
        }
        while (self.open(Protocol::Udp) || !self.tags.is_empty()) && !self.is_quiet() {
            self.gather(&mut Vec::new());
        }
        self.answers
    }

    fn is_quiet(&self) -> bool {
        self.heard.elapsed() > QUIET
    }

    /// Notes what is answered within a moment.
    fn gather(&mut self, tcp: &mut Vec<(usize, TcpStream)>) {
        let sockets = tcp.iter().map(|(_, it)| it.as_fd()).chain(self.udp.values().map(AsFd::as_fd));
        wait(sockets, Duration::from_millis(5));
        tcp.retain_mut(|(at, stream)| self.read(*at, stream));
        self.read_datagrams();
        self.read_book();
    }

    fn open(&self, protocol: Protocol) -> bool {
        self.questions.iter().zip(&self.answers).any(|(it, answer)| it.protocol == protocol && answer.is_none())
    }

    fn note(&mut self, at: usize, answer: &[u8]) {
        self.answers[at] = Some(String::from_utf8_lossy(answer).into_owned());
        self.heard = Instant::now();
    }

    /// Whether it is still to be waited for.
    fn read(&mut self, at: usize, stream: &mut TcpStream) -> bool {
        let mut buffer = [0; 64];
        match stream.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return true,
            Ok(count @ 1..) => self.note(at, &buffer[..count]),
            // Refused, or ended without a word: no answer, and none will come.
            Ok(0) | Err(_) => {}
        }
        false
    }

    fn send_datagrams(&mut self) {
        for (at, question) in self.questions.iter().enumerate().filter(|(_, it)| it.protocol == Protocol::Udp) {
            let key = (question.address.is_ipv4(), question.by_service);
            let socket = self.udp.entry(key).or_insert_with(|| self.station.datagrams(key.0));
            // What the node itself forbids fails here, and is as silent as the rest.
            let _ = socket.send_to(&(at as u32).to_be_bytes(), question.address);
        }
    }

    fn read_datagrams(&mut self) {
        let mut come = Vec::new();
        for socket in self.udp.values() {
            let mut buffer = [0; 64];
            while let Ok((count @ 5.., _)) = socket.recv_from(&mut buffer) {
                let at = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
                come.push((at as usize, buffer[4..count].to_vec()));
            }
        }
        come.into_iter().for_each(|(at, answer)| self.note(at, &answer));
    }

    fn send_associations(&mut self) {
        static TAGS: AtomicU32 = AtomicU32::new(1);
        let mut sockets = BTreeMap::new();
        for (at, question) in self.questions.iter().enumerate().filter(|(_, it)| it.protocol == Protocol::Sctp) {
            let tag = TAGS.fetch_add(1, Ordering::Relaxed);
            let address = question.address;
            let socket = sockets.entry(address.is_ipv4()).or_insert_with(|| sctp::socket(address.ip()).unwrap());
            let _ = sctp::send(socket, self.station.source(), address, tag);
            self.tags.insert(tag, at);
        }
    }

    fn read_book(&mut self) {
        let mut book = self.station.book.lock().unwrap();
        let come: Vec<(usize, String)> =
            self.tags.iter().filter_map(|(tag, at)| Some((*at, book.remove(tag)?))).collect();
        drop(book);
        self.tags.retain(|_, at| !come.iter().any(|(come, _)| come == at));
        come.into_iter().for_each(|(at, answer)| self.note(at, answer.as_bytes()));
    }
}

/// Connections that are being opened. Each ends without a trace in anybody's tables.
fn connections(some: &[usize], questions: &[Question]) -> Vec<(usize, TcpStream)> {
    let open = |at: &usize| {
        let address = questions[*at].address;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Some((*at, TcpStream::from(socket))),
            Err(_) => None,
        }
    };
    some.iter().filter_map(open).collect()
}
