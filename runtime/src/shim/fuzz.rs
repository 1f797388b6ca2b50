//! Entry points for `./dev fuzz`: the trust boundaries of a shim, with harmless code behind them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::LazyLock;

use podwright_journal::{JournalWriter, Role};

use super::container::{Container, Phase, Said, Sync};
use super::fork;
use super::peer::Peer;
use super::{Sandbox, Shim, Writer};
use crate::handshake::{self, LENGTH, Secret};
use crate::protocol::PidMode;
use crate::protocol::{
    Call, ContainerPlan, Frames, Message, ProcessPlan, Request, RootPlan, SandboxPlan, VERSION, encode,
};
use podwright_sys::io::{self, MAX_FDS, PollFd};

/// The result of a message sequence.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub births: usize,
    pub failures: usize,
    /// Whether the shim considered the socket closed while it was open.
    pub closed: bool,
}

/// Handles messages that a child of a shim, or its tracer, sends over its socket, each with a number of descriptors. Records go to
/// `journal`.
pub fn listen(messages: &[(&[u8], usize)], journal: &Path) -> std::io::Result<Heard> {
    let journal = JournalWriter::open(journal, Role::Shim)?;
    let (ours, theirs) = io::message_pair()?;
    io::set_nonblocking(ours.as_fd())?;
    io::tell_senders(ours.as_fd())?;
    let (mut sync, mut heard) = (Sync::new(ours), Heard::default());
    let (watched, given) = io::pipe()?;
    io::set_nonblocking(watched.as_fd())?;
    for (message, fds) in messages {
        let fds = vec![given.as_fd(); (*fds).min(MAX_FDS)];
        // The socket itself rejects longer messages.
        if io::send(theirs.as_fd(), message, &fds).is_err() {
            continue;
        }
        loop {
            match sync.listen(&journal) {
                Said::Nothing => break,
                Said::Recorded => {}
                Said::Born(newborn) => {
                    assert!(
                        message.len() == 5 && newborn.sender == std::process::id(),
                        "the kernel's word alone counts"
                    );
                    heard.births += 1;
                }
                Said::Failed(_) => heard.failures += 1,
                Said::Closed => {
                    heard.closed = true;
                    break;
                }
            }
        }
    }
    drop((sync, theirs, given));
    assert!(io::read_some(watched.as_fd(), &mut [0]).is_some_and(|read| read == 0), "no descriptor is kept");
    journal.flush();
    Ok(heard)
}

/// Handles input that a peer sends to a shim before authentication; returns whether it then counts as the agent. `paired`: it has
/// its secret.
pub fn greet(said: &[u8], paired: bool) -> std::io::Result<bool> {
    let (agent, opening) = handshake::Agent::begin(secret()?, true)?;
    let mut kept = None;
    if paired {
        handshake::Shim::New.take(&opening, &mut kept)?;
    }
    let mut shim = handshake::Shim::New;
    for message in said.chunks_exact(LENGTH) {
        let Some(message) = message.first_chunk() else { break };
        assert!(agent.answer(message).is_err(), "nobody listens in the shim's place");
        if shim.take(message, &mut kept).is_err() || shim == handshake::Shim::Proven {
            break;
        }
    }
    Ok(shim == handshake::Shim::Proven)
}

fn secret() -> std::io::Result<Secret> {
    Secret::make()
}

/// The shim's responses.
#[derive(Debug, Default)]
pub struct Answered {
    /// The ids of answered requests.
    pub replies: Vec<u64>,
    /// Whether the connection survived.
    pub alive: bool,
}

/// Handles bytes arriving on a connection to a shim, in pieces, each with a number of descriptors; `proven`: from an authenticated
/// agent. The shim has a sandbox and two containers, all with the same dead process: signals reach no one. Requests that would
/// start a process, or name a file, are made ineffective.
pub fn serve(pieces: &[(&[u8], usize)], proven: bool) -> std::io::Result<Answered> {
    let folder = tempfile::tempdir()?;
    let mut shim = shim(folder.path())?;
    let (mut agent, theirs) = UnixStream::pair()?;
    agent.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    shim.peers.insert(1, Peer::new(theirs.into()));
    let mut answers = Frames::default();
    if proven {
        let (begun, opening) = handshake::Agent::begin(secret()?, true)?;
        step(&mut shim, &agent, &opening, &[], folder.path());
        let mut proof = [0; LENGTH];
        std::io::Read::read_exact(&mut agent, &mut proof)?;
        begun.answer(&proof)?;
    } else {
        shim.secret = Some(secret()?);
    }
    let (watched, given) = io::pipe()?;
    io::set_nonblocking(watched.as_fd())?;
    let mut answered = Answered::default();
    for (bytes, fds) in pieces {
        let fds = vec![given.as_fd(); (*fds).min(MAX_FDS)];
        if !step(&mut shim, &agent, bytes, &fds, folder.path()) {
            break;
        }
        let mut buffer = vec![0; 64 << 10];
        while let Ok(got @ 1..) = io::receive(agent.as_fd(), &mut buffer, &mut answers.fds) {
            answers.bytes.extend_from_slice(&buffer[..got]);
        }
        assert!(proven || answers.bytes.len() <= LENGTH, "who has proven nothing is told nothing");
        while proven && let Some((message, _)) = answers.take::<Message>()? {
            if let Message::Reply { id, .. } = message {
                answered.replies.push(id);
            }
        }
    }
    answered.alive = shim.peers.contains_key(&1);
    drop((shim, given));
    assert!(io::read_some(watched.as_fd(), &mut [0]).is_some_and(|read| read == 0), "no descriptor is kept");
    Ok(answered)
}

/// A request's wire format.
pub fn frame(request: &serde_json::Value, fds: usize) -> std::io::Result<Vec<u8>> {
    encode(request, fds, VERSION)
}

/// One round of the shim's loop with this input; `false` when it has closed the connection.
fn step(shim: &mut Shim, agent: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>], folder: &Path) -> bool {
    // Descriptors need at least one byte.
    if bytes.is_empty() || io::send(agent.as_fd(), bytes, fds).is_err() {
        return shim.peers.contains_key(&1);
    }
    while let Some(peer) = shim.peers.get(&1) {
        let mut set = [peer.interest()];
        if io::poll(&mut set, 0).is_err() || !set[0].readable() {
            return true;
        }
        shim.serve_by(1, &set[0], |shim, id, mut request, fds| {
            defuse(&mut request, folder);
            shim.handle(id, request, fds);
        });
        shim.settle();
    }
    false
}

/// Makes what a request names ineffective. (There is a sandbox, so none is created.)
fn defuse(request: &mut Request, folder: &Path) {
    if let Call::Create(plan) = &mut request.call {
        // Not a cgroup: clone3(2) fails there.
        plan.cgroup = folder.to_owned();
        plan.exit_file = folder.join("exit");
        if let Some(log) = &mut plan.log {
            log.path = folder.join("log");
        }
    }
}

fn shim(folder: &Path) -> std::io::Result<Shim> {
    let null: OwnedFd = std::fs::File::options().read(true).write(true).open("/dev/null")?.into();
    let nobody = || NOBODY.1.try_clone();
    let sandbox = Sandbox {
        plan: SandboxPlan { cgroup: folder.to_owned(), ..SandboxPlan::default() },
        pid: NOBODY.0,
        pidfd: nobody()?,
        users: None,
        journal: JournalWriter::none(),
        sync: None,
        requester: None,
        alive: true,
    };
    let (ours, theirs) = io::message_pair()?;
    io::set_nonblocking(ours.as_fd())?;
    let container = |key: &str, phase: Phase, sync: Option<Sync>| -> std::io::Result<Option<Container>> {
        let plan = ContainerPlan {
            key: key.to_owned(),
            cgroup: folder.to_owned(),
            exit_file: folder.join("exit"),
            log: None,
            stdin: true,
            stdin_once: false,
            pid: PidMode::Container,
            pid_of: None,
            root: RootPlan {
                layers: Vec::new(),
                upper: folder.to_owned(),
                work: folder.to_owned(),
                dir: folder.to_owned(),
                readonly: false,
                nodev: false,
            },
            mounts: Vec::new(),
            devices: Vec::new(),
            standard_devices: false,
            masked_paths: Vec::new(),
            readonly_paths: Vec::new(),
            process: ProcessPlan { args: vec!["x".to_owned()], ..ProcessPlan::default() },
        };
        Ok(Some(Container {
            plan,
            journal: JournalWriter::none(),
            pid: NOBODY.0,
            pidfd: nobody()?,
            born: true,
            sync,
            phase,
            stdio: super::stdio::Stdio::default(),
            started_ns: None,
            failure: None,
            ended: None,
            drain_until: 0,
            committing: false,
            exit: None,
            pending_exit: None,
            starter: None,
            remover: None,
            birth_deadline: None,
        }))
    };
    let containers =
        vec![container("running", Phase::Running, None)?, container("created", Phase::Created, Some(Sync::new(ours)))?];
    Ok(Shim {
        journal: JournalWriter::none(),
        // Threads of tests do all sorts of things.
        forker: None,
        listener: theirs,
        name: super::name::Name::default(),
        signals: null.try_clone()?,
        peers: std::collections::BTreeMap::new(),
        next_peer: 1,
        secret: None,
        sandbox: Some(sandbox),
        pause: null.try_clone()?,
        null,
        containers,
        execs: Vec::new(),
        strays: Vec::new(),
        logs: Writer::new(),
        exits: Writer::new(),
        buffer: vec![0; 16 << 10].into(),
        shutdown: Vec::new(),
        stopping: false,
    })
}

/// A process that has exited, in its own session, and was not waited for: its pid cannot be reused.
static NOBODY: LazyLock<(u32, OwnedFd)> = LazyLock::new(|| {
    // The invariant: a process of a test may have a child.
    let (pid, pidfd) = fork::nobody().expect("a child");
    // It is dead when its pidfd can be read.
    while io::poll(&mut [PollFd::new(pidfd.as_fd(), libc::POLLIN)], -1).is_ok_and(|ready| ready == 0) {}
    (pid, pidfd)
});
