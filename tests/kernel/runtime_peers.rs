//! Authentication between agents and shims.

use std::io::{IoSlice, Read, Write};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use podwright_runtime::protocol::{
    Answer, Call, ContainerSnapshot, Frames, MAX_FRAME, Message, OLDEST, Request, ShimState, VERSION, encode,
};
use podwright_runtime::{Error, Event, Exit, ExitReason, JournalWriter, Runtime, SandboxState};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;

use super::runtime::support::Bed;
use super::sockets::as_nobody;

/// The first bytes of every handshake.
const MAGIC: &[u8] = b"podshim";

fn socket(bed: &Bed) -> PathBuf {
    bed.path("run/s/s")
}

fn connect(bed: &Bed) -> UnixStream {
    let stream = UnixStream::connect(socket(bed)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Whether the shim has closed the connection without a message.
fn is_dropped(mut stream: UnixStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(read) => read == 0,
        Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn state_request() -> Vec<u8> {
    encode(&Request { id: 1, cause: Default::default(), call: Call::State }, 0, VERSION).unwrap()
}

fn send_fds(stream: &UnixStream, bytes: &[u8], count: usize) {
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = vec![null.as_fd(); count];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_get_nowhere_and_harm_nobody() {
    let mut bed = Bed::new("strangers").await;
    bed.sandbox("s").await;
    let id = bed.run("c", "sleep 1000").await;
    let says = |bytes: &[u8]| {
        let mut stream = connect(&bed);
        stream.write_all(bytes).unwrap();
        stream
    };
    // Requests without a handshake, as in earlier releases, garbage, a handshake without the secret.
    let padded = [state_request(), vec![0; 100]].concat();
    let pair = [MAGIC, &[1], &[7; 64]].concat();
    let proof = [MAGIC, &[3], &[7; 64]].concat();
    for (what, bytes) in [("a request", padded), ("zeros", vec![0; 100]), ("another secret", pair), ("a proof", proof)]
    {
        assert!(is_dropped(says(&bytes)), "{what}");
    }
    let mut met = says(&[MAGIC, &[2], &[7; 64]].concat());
    let mut answer = [0; 72];
    met.read_exact(&mut answer).unwrap();
    met.write_all(&answer).unwrap();
    assert!(is_dropped(met), "the shim's own proof, sent back");
    // Descriptors that belong to no frame.
    let hoarder = connect(&bed);
    send_fds(&hoarder, b"p", 8);
    assert!(is_dropped(hoarder));
    // More silent clients than places: they replace each other, and make room for the agent.
    let mut idle: Vec<UnixStream> = (0..40).map(|_| says(&MAGIC[..3])).collect();
    assert_eq!(bed.exec(&id, "echo still here").await.unwrap().stdout, b"still here\n");
    assert!(idle.drain(..30).all(is_dropped), "they have as many of its descriptors as they like");
    bed.forget().await;
    bed.reopen().await;
    assert_eq!(bed.exec(&id, "echo and again").await.unwrap().stdout, b"and again\n");
    drop(idle);
    bed.end().await;
}

/// Whatever the modes of its folder and socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_speaks_to_root_alone() {
    let bed = Bed::new("nobody").await;
    bed.sandbox("s").await;
    let id = bed.run("c", "sleep 1000").await;
    let hello = [MAGIC, &[2], &[7; 64]].concat();
    let say = || {
        let mut stream = connect(&bed);
        stream.write_all(&hello)?;
        let mut answer = Vec::new();
        // After an answer it waits for more.
        let _ = stream.read_exact(answer_of(&mut answer));
        std::io::Result::Ok(answer.iter().any(|byte| *byte != 0))
    };
    let folder = std::fs::metadata(bed.path("run")).unwrap();
    assert_eq!((folder.uid(), folder.mode() & 0o077), (0, 0), "its folder is for everybody");
    for path in ["", "run", "run/s", "run/s/s"] {
        std::fs::set_permissions(bed.path(path), std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    assert!(say().unwrap(), "root is answered");
    assert!(!as_nobody(say).is_ok_and(|answered| answered), "so is everybody else");
    assert_eq!(bed.exec(&id, "echo still here").await.unwrap().stdout, b"still here\n");
    bed.end().await;
}

fn answer_of(answer: &mut Vec<u8>) -> &mut [u8] {
    answer.resize(72, 0);
    answer
}

/// Replaces a shim without connections; `speak` gets the first connection.
fn usurp<T: Send + 'static>(bed: &Bed, speak: impl FnOnce(UnixStream) -> T + Send + 'static) -> mpsc::Receiver<T> {
    std::fs::rename(socket(bed), bed.path("aside")).unwrap();
    let listener = UnixListener::bind(socket(bed)).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = tell.send(speak(stream));
    });
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_listens_in_a_shims_place_is_not_believed() {
    let mut bed = Bed::new("usurper").await;
    bed.sandbox("s").await;
    let id = bed.run("c", "sleep 1000").await;
    bed.forget().await;
    // The shim would restore its name before accepting anyone.
    let shim = rustix::process::Pid::from_raw(bed.processes_of("s")[0] as i32).unwrap();
    bed.signal_shim("s", Signal::STOP);
    let heard = usurp(&bed, move |mut stream| {
        // It answers like a shim: then its containers would seem fine, forever.
        let lie = Message::Reply { id: 1, result: Ok(Answer::State(ShimState { sandbox: 1, ..ShimState::default() })) };
        let mut said = [MAGIC, &[3], &[7; 64]].concat();
        said.extend(encode(&lie, 0, VERSION).unwrap());
        let _ = stream.write_all(&said);
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        rustix::process::kill_process(shim, Signal::CONT).unwrap();
        heard
    });
    bed.reopen().await;
    let heard = heard.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(heard.starts_with(MAGIC) && heard.len() == 72, "{} bytes: {heard:?}", heard.len());
    // The shim itself restores its name as soon as it can, and is trusted.
    assert_eq!(bed.runtime.sandbox("s").await.unwrap().state, SandboxState::Ready);
    assert_eq!(bed.exec(&id, "echo here").await.unwrap().stdout, b"here\n");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_from_before_there_were_secrets_is_spoken_to_as_before() {
    let mut bed = Bed::new("old").await;
    bed.sandbox("s").await;
    let id = bed.run("c", "sleep 1000").await;
    bed.forget().await;
    bed.without_secret("s");
    bed.signal_shim("s", Signal::STOP);
    let known = bed.processes_of("s");
    let heard = usurp(&bed, move |mut stream| {
        let mut frames = Frames::default();
        let mut buffer = [0; 4096];
        let request: Request = loop {
            let read = stream.read(&mut buffer).unwrap();
            frames.bytes.extend_from_slice(&buffer[..read]);
            if let Some((request, _)) = frames.take().unwrap() {
                break request;
            }
        };
        let state = ShimState { sandbox: known[0], ..ShimState::default() };
        let reply = Message::Reply { id: request.id, result: Ok(Answer::State(state)) };
        stream.write_all(&encode(&reply, 0, frames.version).unwrap()).unwrap();
        (format!("{:?}", request.call), stream)
    });
    bed.reopen().await;
    let (call, _stream) = heard.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(call, "State");
    let _ = id;
    drop(_stream);
    bed.end().await;
}

type Connections = Arc<Mutex<Vec<UnixStream>>>;

/// Replaces a shim by one that only knows some protocol versions, like earlier releases: it closes the connection on others'
/// frames. Reports the versions it was asked in, and lives until its connections are taken away.
fn usurp_knowing(bed: &Bed, versions: RangeInclusive<u8>, pause: u32) -> (mpsc::Receiver<u8>, Connections) {
    bed.without_secret("s");
    // It would restore its name.
    bed.signal_shim("s", Signal::STOP);
    std::fs::rename(socket(bed), bed.path("aside")).unwrap();
    let listener = UnixListener::bind(socket(bed)).unwrap();
    let ((tell, told), held) = (mpsc::channel(), Connections::default());
    let kept = held.clone();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut head = [0; 8];
            if stream.read_exact(&mut head).is_err() || tell.send(head[5]).is_err() {
                return;
            }
            if !versions.contains(&head[5]) {
                continue;
            }
            let mut frames = Frames { bytes: head.to_vec(), ..Frames::default() };
            let request: Request = loop {
                if let Some((request, _)) = frames.take().unwrap() {
                    break request;
                }
                let mut buffer = [0; 4096];
                let read = stream.read(&mut buffer).unwrap();
                frames.bytes.extend_from_slice(&buffer[..read]);
            };
            let state = ShimState { sandbox: pause, ..ShimState::default() };
            let reply = Message::Reply { id: request.id, result: Ok(Answer::State(state)) };
            stream.write_all(&encode(&reply, 0, frames.version).unwrap()).unwrap();
            kept.lock().unwrap().push(stream);
        }
    });
    (told, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_of_the_release_before_is_spoken_to_in_its_version() {
    let mut bed = Bed::new("former").await;
    bed.sandbox("s").await;
    bed.run("c", "sleep 1000").await;
    bed.forget().await;
    let pause = bed.processes_of("s")[0];
    let (heard, held) = usurp_knowing(&bed, OLDEST..=OLDEST, pause);
    bed.reopen().await;
    let versions: Vec<u8> = (0..2).map(|_| heard.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
    assert_eq!(versions, [VERSION, OLDEST]);
    assert_eq!(bed.runtime.sandbox("s").await.unwrap().state, SandboxState::Ready);
    // It ends like a shim: without further answers.
    held.lock().unwrap().clear();
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_with_no_version_in_common_is_left_alone_and_said() {
    let mut bed = Bed::new("foreign").await;
    bed.sandbox("s").await;
    bed.run("c", "sleep 1000").await;
    bed.forget().await;
    let known = bed.processes_of("s");
    assert!(!known.is_empty());
    let (heard, _held) = usurp_knowing(&bed, VERSION + 1..=VERSION + 2, 0);
    let Err(why) = Runtime::open(bed.config()).await else { panic!("it is taken over") };
    assert!(matches!(&why, Error::Protocol(_)), "{why}");
    for told in ["the shim of sandbox s ", "from 1 to 2", "untouched", "podwright reset"] {
        assert!(why.to_string().contains(told), "{told}: {why}");
    }
    let versions: Vec<u8> = heard.try_iter().collect();
    assert_eq!(versions, [VERSION, OLDEST]);
    assert_eq!(bed.processes_of("s"), known, "nobody was killed");
    // A runtime opened to remove everything does.
    bed.runtime = Runtime::open_to_remove(bed.config()).await.unwrap();
    bed.end().await;
}

/// Answers one request with a state.
fn tell_state(stream: &mut UnixStream, state: ShimState) {
    let mut frames = Frames::default();
    let request: Request = loop {
        if let Some((request, _)) = frames.take().unwrap() {
            break request;
        }
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap();
        frames.bytes.extend_from_slice(&buffer[..read]);
    };
    let reply = Message::Reply { id: request.id, result: Ok(Answer::State(state)) };
    stream.write_all(&encode(&reply, 0, frames.version).unwrap()).unwrap();
}

/// It is faulty but alive: nothing is killed because of it, and no exit is missed. One that keeps doing it is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_that_tells_more_than_anybody_takes_is_asked_anew_what_it_knows() {
    let mut bed = Bed::new("missed").await;
    bed.sandbox("s").await;
    let id = bed.run("c", "sleep 1000").await;
    bed.forget().await;
    bed.without_secret("s");
    bed.signal_shim("s", Signal::STOP);
    let known = bed.processes_of("s");
    std::fs::rename(socket(&bed), bed.path("aside")).unwrap();
    let listener = UnixListener::bind(socket(&bed)).unwrap();
    let ((say, may_say), pause, key) = (mpsc::channel::<()>(), known[0], id.key());
    let finished = "2026-11-20T17:00:00Z".parse().unwrap();
    let exit = Exit { code: 7, signal: 0, reason: ExitReason::Error, message: String::new(), finished };
    std::thread::spawn(move || {
        for exit in [None, Some(exit)] {
            let (mut stream, _) = listener.accept().unwrap();
            let (key, log) = (key.clone(), None);
            let container =
                ContainerSnapshot { key, pid: pause, started_ns: Some(1), exit, log, stdin: false, terminal: false };
            tell_state(&mut stream, ShimState { sandbox: pause, containers: vec![container], app_armor: true });
            may_say.recv().unwrap();
            let length = (MAX_FRAME as u32 + 1).to_le_bytes();
            let begins = format!("{{\"Exited\":{{\"key\":\"{}", "x".repeat(100));
            stream.write_all(&[&length[..], &[0, VERSION, 0, 0], begins.as_bytes()].concat()).unwrap();
            assert!(is_dropped(stream));
        }
    });
    bed.reopen().await;
    let mut events = bed.runtime.events();
    let mut next = async || tokio::time::timeout(Duration::from_secs(10), events.recv()).await.unwrap().unwrap();
    say.send(()).unwrap();
    let told = next().await;
    assert!(matches!(&told, Event::ContainerExited { id: ended, exit } if *ended == id && exit.code == 7), "{told:?}");
    assert_eq!(bed.runtime.sandbox("s").await.unwrap().state, SandboxState::Ready);
    assert_eq!(bed.processes_of("s"), known, "nobody was killed");
    say.send(()).unwrap();
    let told = next().await;
    assert!(matches!(&told, Event::SandboxGone { id } if id == "s"), "{told:?}");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_holds_nothing_that_nobody_gave_it() {
    let bed = Bed::new("confined").await;
    bed.sandbox_by("s", &JournalWriter::none()).await;
    let shims = bed.processes_of("s");
    let is_shim =
        |pid: &&u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with("shim:"));
    let pid = shims.iter().find(is_shim).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for set in ["CapInh", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert_eq!(std::fs::read(format!("/proc/{pid}/environ")).unwrap(), b"");
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), PathBuf::from("/"));
    // An answer in transit carries the network namespace.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    let mut foreign = foreign_descriptors(*pid);
    while !foreign.is_empty() && std::time::Instant::now() < deadline {
        tokio::task::yield_now().await;
        foreign = foreign_descriptors(*pid);
    }
    assert!(foreign.is_empty(), "{foreign:?}");
    bed.end().await;
}

/// A process's descriptors other than its own and its log. Its null device is on a private mount.
fn foreign_descriptors(pid: u32) -> Vec<String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = open.filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned()));
    let own = |text: &str| {
        let kinds = ["socket:[", "pipe:[", "anon_inode:", "/memfd:"];
        kinds.iter().any(|kind| text.starts_with(kind)) || text.ends_with("/shim.log") || text == "/null"
    };
    targets.filter(|text| !own(text)).collect()
}
