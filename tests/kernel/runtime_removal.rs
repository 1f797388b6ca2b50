//! After a failed removal: a container whose exit is reported.

use std::{
    sync::mpsc::{Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::Pid,
};
use podwright_runtime::{Error, Event, JournalWriter};

use super::runtime::support::Bed;

/// A process whose exit its parent does not see: a tracer is notified first.
struct Held {
    let_go: Sender<()>,
    tracer: JoinHandle<WaitStatus>,
}

impl Held {
    fn new(pid: u32) -> Held {
        let (tell, told) = channel();
        let (let_go, may_go) = channel();
        // A single thread: only it is the tracer.
        let tracer = std::thread::spawn(move || {
            // SAFETY: the call accesses no memory of ours.
            let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
            assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
            tell.send(()).unwrap();
            may_go.recv().unwrap();
            waitpid(Pid::from_raw(pid.try_into().unwrap()), None).unwrap()
        });
        told.recv().unwrap();
        Held { let_go, tracer }
    }

    fn let_go(self) -> WaitStatus {
        self.let_go.send(()).unwrap();
        self.tracer.join().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_could_not_be_removed_is_heard_of_when_it_ends() {
    let bed = Bed::new("leaving").await;
    bed.sandbox("s").await;
    let id = bed.run("long", "exec sleep 1000").await;
    let mut events = bed.runtime.events();
    let held = Held::new(bed.status(&id).await.pid);
    let error = bed.runtime.remove_container(&id, &JournalWriter::none()).await.unwrap_err();
    assert!(matches!(error, Error::Timeout(..)), "{error}");
    assert!(matches!(held.let_go(), WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGKILL, _)));
    let event = tokio::time::timeout(Duration::from_secs(20), events.recv()).await.expect("its end is told").unwrap();
    assert!(
        matches!(&event, Event::ContainerExited { id: ended, exit } if *ended == id && exit.signal == 9),
        "{event:?}"
    );
    // A properly removed one has no exit event.
    let other = bed.run("other", "exec sleep 1000").await;
    for id in [&id, &other] {
        bed.runtime.remove_container(id, &JournalWriter::none()).await.unwrap();
    }
    assert!(bed.runtime.sandbox("s").await.unwrap().containers.is_empty());
    assert!(events.try_recv().is_err());
    bed.end().await;
}
