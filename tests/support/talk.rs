//! A client command that runs while the test continues: its output is read as it arrives.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use super::{contains, eventually, node::Answer};

const TIMEOUT: Duration = Duration::from_secs(30);

type Text = Arc<Mutex<Vec<u8>>>;

/// A running command. Dropping it kills it.
pub struct Talk {
    child: Child,
    out: Text,
    err: Text,
    readers: Vec<JoinHandle<()>>,
    input: Option<Box<dyn Write + Send>>,
    terminal: Option<OwnedFd>,
}

fn read(mut from: impl Read + Send + 'static, into: &Text) -> JoinHandle<()> {
    let into = into.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // A terminal whose other side is closed returns an error.
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            into.lock().unwrap().extend_from_slice(&buffer[..count]);
        }
    })
}

/// A shell's background processes ignore ^C, and so do their children.
fn heed_interrupts(command: &mut Command) {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: signal(2) is async-signal-safe, and no handler that runs code is installed.
    unsafe {
        command.pre_exec(|| signal(Signal::SIGINT, SigHandler::SigDfl).map(drop).map_err(std::io::Error::from));
    }
}

impl Talk {
    /// With pipes for all three streams.
    pub fn spawn(mut command: Command) -> Talk {
        heed_interrupts(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (Text::default(), Text::default());
        let readers = vec![read(child.stdout.take().unwrap(), &out), read(child.stderr.take().unwrap(), &err)];
        let input: Option<Box<dyn Write + Send>> = Some(Box::new(child.stdin.take().unwrap()));
        Talk { child, out, err, readers, input, terminal: None }
    }

    /// On its own terminal, columns by rows.
    pub fn on_terminal(command: &Command, size: (u16, u16)) -> Talk {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, winsize(size)).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(path).unwrap();
        // setsid(1) makes it the controlling terminal, so that size changes are signalled.
        let mut inner = Command::new("setsid");
        inner.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        inner.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let child =
            inner.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave).spawn().unwrap();
        let out = Text::default();
        let readers = vec![read(File::from(master.try_clone().unwrap()), &out)];
        let input: Option<Box<dyn Write + Send>> = Some(Box::new(File::from(master.try_clone().unwrap())));
        Talk { child, out, err: Text::default(), readers, input, terminal: Some(master) }
    }

    pub fn resize(&self, size: (u16, u16)) {
        tcsetwinsize(self.terminal.as_ref().unwrap().as_fd(), winsize(size)).unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.out.lock().unwrap()).into_owned()
    }
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.err.lock().unwrap()).into_owned()
    }

    pub fn say(&mut self, text: &str) {
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).unwrap();
    }

    /// Closes its input.
    pub fn hush(&mut self) {
        self.input = None;
    }

    /// Waits until its standard output contains `part`.
    #[track_caller]
    pub fn hear(&self, part: &str) {
        eventually(&format!("it says {part:?}"), TIMEOUT, || {
            contains(&self.out(), part).map_err(|why| format!("{why}\nand on standard error:\n{}", self.err()))
        });
    }

    /// Waits until its standard error contains `part`.
    #[track_caller]
    pub fn hear_error(&self, part: &str) {
        eventually(&format!("it complains {part:?}"), TIMEOUT, || contains(&self.err(), part));
    }

    /// Waits until it exits by itself.
    #[track_caller]
    pub fn end(mut self) -> Answer {
        let status = eventually("it ends", TIMEOUT, || {
            self.child.try_wait().unwrap().ok_or_else(|| format!("{}\n{}", self.out(), self.err()))
        });
        self.input = None;
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        Answer { code: status.code().unwrap_or(-1), out: self.out(), err: self.err() }
    }

    /// Ends it with ^C.
    pub fn interrupt(self) -> Answer {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::SIGINT).unwrap();
        self.end()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn winsize((columns, rows): (u16, u16)) -> Winsize {
    Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}
