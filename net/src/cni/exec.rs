//! Runs a plugin: parameters in its environment, its configuration on its stdin, its result on its stdout.
//! <https://www.cni.dev/docs/spec/#section-2-execution-protocol>

use std::{
    io::{Read, Write},
    os::{
        fd::BorrowedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use podwright_journal::JournalWriter;
use serde_json::{Map, Value};

use super::{CniError, result::Failure};
use crate::netlink;

/// How long a plugin may run.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The interval for asking whether it has ended.
const LOOK: Duration = Duration::from_millis(1);
/// How much of its output is read, bytes.
const MOST: u64 = 1 << 20;

/// One call of a plugin.
#[derive(Debug)]
pub struct Call<'a> {
    /// `ADD`, `DEL`, `CHECK`, `GC` or `STATUS`.
    pub command: &'static str,
    pub container: Option<&'a str>,
    /// The path of the Pod's network namespace.
    pub netns: Option<&'a Path>,
    pub interface: Option<&'a str>,
    /// `CNI_ARGS`
    pub arguments: &'a [(String, String)],
}

/// Where plugins are, and where they run.
pub struct Runner<'a> {
    pub folders: &'a [PathBuf],
    /// The node's network namespace.
    pub node: BorrowedFd<'a>,
    pub journal: &'a JournalWriter,
}

impl Runner<'_> {
    /// Runs the plugin `kind`; returns what it prints, null if that is nothing.
    ///
    /// # Errors
    ///
    /// It is not installed, fails, takes longer than [`TIMEOUT`], or prints something else than JSON.
    pub fn run(&self, kind: &str, call: &Call<'_>, given: &Map<String, Value>) -> Result<Value, CniError> {
        let program = self.folders.iter().map(|folder| folder.join(kind)).find(|path| path.is_file());
        let program = program.ok_or_else(|| CniError::NotInstalled(kind.to_owned(), self.path()))?;
        let mut command = self.command(&program, call);
        let input = Value::Object(given.clone()).to_string();
        let failed = |why: String| CniError::Plugin { kind: kind.to_owned(), command: call.command, why };
        let run = || {
            // A child is born in the network namespace of the thread that makes it.
            let spawned =
                netlink::in_netns(self.node, || command.spawn()).map_err(|error| failed(error.to_string()))?;
            let ended = finish(spawned.map_err(|error| failed(error.to_string()))?, input).map_err(&failed)?;
            answer(&ended).map_err(&failed)
        };
        self.journal.call("cni", |a| a.text(call.command).text(kind), run)
    }

    fn path(&self) -> String {
        self.folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
    }

    fn command(&self, program: &Path, call: &Call<'_>) -> Command {
        let mut command = Command::new(program);
        command.env("CNI_COMMAND", call.command).env("CNI_PATH", self.path());
        for (name, value) in [("CNI_CONTAINERID", call.container), ("CNI_IFNAME", call.interface)] {
            command.env(name, value.unwrap_or_default());
        }
        command.env("CNI_NETNS", call.netns.unwrap_or(Path::new("")));
        let arguments = call.arguments.iter().map(|(name, value)| format!("{name}={value}"));
        command.env("CNI_ARGS", arguments.collect::<Vec<_>>().join(";"));
        // A group of its own, to be ended as a whole.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// What a plugin has left behind.
struct Ended {
    status: ExitStatus,
    output: Vec<u8>,
    errors: Vec<u8>,
}

/// The result of a plugin, or why it failed: in its own words where it has some.
fn answer(Ended { status, output, errors }: &Ended) -> Result<Value, String> {
    let text = output.trim_ascii();
    match (status.success(), text.is_empty()) {
        (true, true) => Ok(Value::Null),
        (true, false) => serde_json::from_slice(text).map_err(|error| format!("its result: {error}")),
        (false, _) => Err(match serde_json::from_slice::<Failure>(text) {
            Ok(Failure { code, msg, details }) if details.is_empty() => format!("{msg} (code {code})"),
            Ok(Failure { code, msg, details }) => format!("{msg}: {details} (code {code})"),
            Err(_) => format!("{}: {}", shown(*status), String::from_utf8_lossy(errors).trim()),
        }),
    }
}

/// Feeds a plugin, and waits for its end; one that takes too long is killed, with what it has started.
fn finish(mut child: Child, input: String) -> Result<Ended, String> {
    let deadline = Instant::now() + TIMEOUT;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // Threads of their own: a plugin may print before it reads. A broken pipe says that it has ended, which its status tells better.
    std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    let (output, errors) = (read(stdout), read(stderr));
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(LOOK),
            None => {
                netlink::kill_group(child.id());
                child.wait().map_err(|error| error.to_string())?;
                return Err(format!("it took longer than {} seconds", TIMEOUT.as_secs()));
            }
        }
    };
    // What it has started may hold its pipes open.
    let all = |pipe: Receiver<Vec<u8>>| pipe.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    Ok(Ended { status, output: all(output), errors: all(errors) })
}

/// Reads a pipe to its end, on a thread of its own.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before a failure is all there is.
        pipe.map(|pipe| pipe.take(MOST).read_to_end(&mut bytes));
        sender.send(bytes).ok();
    });
    receiver
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}
