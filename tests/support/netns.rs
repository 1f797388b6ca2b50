//! Work inside network namespaces: of nodes, of Pods, and of hosts beside a node. Sockets created there stay there.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use nix::sched::{CloneFlags, setns};

use super::{TestNode, eventually, slowness};

/// Runs `work` in a thread that has entered the namespace, of any kind.
pub fn within<T: Send>(netns: &Path, work: impl FnOnce() -> T + Send) -> T {
    let file = File::open(netns).unwrap_or_else(|e| panic!("{}: {e}", netns.display()));
    std::thread::scope(|scope| {
        let inside = scope.spawn(move || {
            setns(&file, CloneFlags::empty()).unwrap();
            work()
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// One line of the response of `address`, requested from a namespace.
pub fn ask(netns: &Path, address: SocketAddr) -> Result<String, String> {
    let patience = Duration::from_secs(2) * slowness();
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"who\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).map(|_| line.trim().to_owned())
    };
    within(netns, ask).map_err(|e: std::io::Error| format!("{address}: {e}"))
}

/// The same by UDP, from a reusable socket.
pub fn ask_udp(socket: &UdpSocket, address: SocketAddr) -> Result<String, String> {
    let ask = || {
        let mut buffer = [0; 200];
        socket.set_read_timeout(Some(Duration::from_millis(500) * slowness()))?;
        socket.send_to(b"who\n", address)?;
        let (count, _) = socket.recv_from(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..count]).trim().to_owned())
    };
    ask().map_err(|e: std::io::Error| format!("{address}: {e}"))
}

/// Answers TCP and UDP clients with its name and the client's address.
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    pub fn start(netns: &Path, name: &str, port: u16) -> Server {
        // Of both families, if available.
        let any = match Path::new("/proc/sys/net/ipv6").exists() {
            true => SocketAddr::from(([0u16; 8], port)),
            false => SocketAddr::from(([0u8; 4], port)),
        };
        let (tcp, udp) = within(netns, || (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap()));
        tcp.set_nonblocking(true).unwrap();
        udp.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (name, also, stop_tcp, stop_udp) = (name.to_owned(), name.to_owned(), stop.clone(), stop.clone());
        let answer_tcp = move || {
            while !stop_tcp.load(Ordering::Relaxed) {
                let Ok((stream, from)) = tcp.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                // The client may have gone.
                let _ = answer(stream, &format!("{name} {}\n", from.ip().to_canonical()));
            }
        };
        let answer_udp = move || {
            let mut buffer = [0; 200];
            while !stop_udp.load(Ordering::Relaxed) {
                if let Ok((_, from)) = udp.recv_from(&mut buffer) {
                    let _ = udp.send_to(format!("{also} {}\n", from.ip().to_canonical()).as_bytes(), from);
                }
            }
        };
        Server { stop, threads: vec![std::thread::spawn(answer_tcp), std::thread::spawn(answer_udp)] }
    }
}

fn answer(mut stream: TcpStream, line: &str) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    BufReader::new(stream.try_clone()?).read_line(&mut String::new())?;
    stream.write_all(line.as_bytes())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A host beside a node, connected by a separate link: 192.168.77.2, the node is 192.168.77.1 there.
pub struct Outside {
    holder: Child,
    pub netns: PathBuf,
}

impl Outside {
    pub const ADDRESS: &str = "192.168.77.2";

    pub fn beside(node: &TestNode) -> Outside {
        let holder = Command::new("unshare").args(["--net", "sleep", "1000"]).stdin(Stdio::null()).spawn().unwrap();
        let netns = PathBuf::from(format!("/proc/{}/ns/net", holder.id()));
        let outside = Outside { holder, netns };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        eventually("it has a namespace of its own", Duration::from_secs(10), || {
            match std::fs::read_link(&outside.netns) {
                Ok(link) if link != own => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        let pid = outside.holder.id().to_string();
        let at_node = [
            vec!["link", "add", "outside", "type", "veth", "peer", "name", "eth0", "netns", &pid],
            vec!["address", "add", "192.168.77.1/24", "dev", "outside"],
            vec!["link", "set", "outside", "up"],
        ];
        let at_host = [
            vec!["address", "add", "192.168.77.2/24", "dev", "eth0"],
            vec!["link", "set", "eth0", "up"],
            vec!["route", "add", "default", "via", "192.168.77.1"],
        ];
        within(&node.netns(), || at_node.iter().for_each(|args| drop(ip(args))));
        within(&outside.netns, || at_host.iter().for_each(|args| drop(ip(args))));
        outside
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// What `ip` says in the caller's namespace.
pub fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An address with a port.
pub fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().unwrap_or_else(|e| panic!("{ip}: {e}")), port)
}
