//! Runs a plugin: parameters in its environment, its configuration on its stdin, its result on its stdout.
//! <https://www.cni.dev/docs/spec/#section-2-execution-protocol>

use std::{
    io::{Read, Write},
    os::{
        fd::BorrowedFd,
        unix::process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use podwright_journal::JournalWriter;
use serde_json::{Map, Value};

use super::{CniError, result::Failure};
use crate::netlink;

/// How long a plugin may run.
const TIMEOUT: Duration = Duration::from_secs(60);
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
            let spawned = netlink::in_netns(self.node, || command.spawn()).map_err(|error| failed(error.to_string()))?;
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
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
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

/// Feeds a plugin, and waits for its end; one that takes too long is killed.
fn finish(mut child: Child, input: String) -> Result<Ended, String> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // Threads of their own: a plugin may print before it reads. A broken pipe says that it has ended, which its status tells better.
    std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let done = pipe.map_or(Ok(0), |pipe| pipe.take(MOST).read_to_end(&mut bytes));
            sender.send(done.map(|_| bytes)).ok();
        });
        receiver
    };
    let output = read(stdout.map(|pipe| Box::new(pipe) as _));
    let errors = read(stderr.map(|pipe| Box::new(pipe) as _));
    let printed = output.recv_timeout(TIMEOUT);
    if !matches!(printed, Ok(Ok(_))) {
        child.kill().ok();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match printed {
        Ok(Ok(output)) => {
            let errors = errors.recv_timeout(Duration::from_secs(1)).ok().and_then(Result::ok).unwrap_or_default();
            Ok(Ended { status, output, errors })
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(RecvTimeoutError::Timeout) => Err(format!("it took longer than {} seconds", TIMEOUT.as_secs())),
        Err(RecvTimeoutError::Disconnected) => Err("its output cannot be read".to_owned()),
    }
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}
