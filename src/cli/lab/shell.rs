//! Runs a lab's commands in a shell, with bounded time and output.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// The most output that is kept of a command; more is read and dropped.
const MOST_OUTPUT: usize = 256 << 10;
/// How long the output may stay open after the command's end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where commands run: a folder and an environment.
#[derive(Clone)]
pub struct Shell {
    pub folder: PathBuf,
    pub environment: Vec<(&'static str, OsString)>,
}

/// What a command left.
pub struct Output {
    /// None: a signal ended it.
    pub code: Option<i32>,
    /// Standard output and standard error, in the order written.
    pub text: String,
}

impl Shell {
    /// A command with this environment. Of the caller's own settings of podwright only those of the program itself stay.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let own = ["PODWRIGHT_SHIM", "PODWRIGHT_LOG"];
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("PODWRIGHT_") && !own.contains(&name)) {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.folder).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a script until it ends. The first command that fails ends it.
    pub async fn run(&self, script: &str, limit: Duration) -> anyhow::Result<Output> {
        let mut running = self.start(script)?;
        match tokio::time::timeout(limit, running.ended()).await {
            Ok(ended) => {
                let (status, text) = ended?;
                Ok(Output { code: status.code(), text })
            }
            Err(_) => {
                let text = running.stop().await?;
                anyhow::bail!("`{}` did not end within {limit:?}\n{text}", first_line(script));
            }
        }
    }

    /// Starts a script.
    pub fn start(&self, script: &str) -> anyhow::Result<Running> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = self.command("sh");
        command.args(["-e", "-c", script]).stdin(Stdio::null());
        command.stdout(writer.try_clone()?).stderr(writer).process_group(0);
        let child = command.spawn()?;
        // Its ends of the pipe go with it, or nobody would see the end of the output.
        drop(command);
        let output = Arc::default();
        let reader = tokio::spawn(collect(pipe::Receiver::from_owned_fd(reader.into())?, Arc::clone(&output)));
        Ok(Running { child, reader, output })
    }
}

async fn collect(mut reader: pipe::Receiver, output: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = reader.read(&mut buffer).await {
        let mut kept = lock(&output);
        let room = MOST_OUTPUT - kept.len();
        kept.extend_from_slice(&buffer[..count.min(room)]);
    }
}

/// Whoever held it only appended.
fn lock(output: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

fn first_line(script: &str) -> &str {
    script.trim().lines().next().unwrap_or_default()
}

/// A script that runs, with what it starts in a process group of its own. Dropping it ends them.
pub struct Running {
    child: Child,
    reader: JoinHandle<()>,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Running {
    async fn ended(&mut self) -> anyhow::Result<(ExitStatus, String)> {
        let status = self.child.wait().await?;
        // What it left in the background may hold the other end for long.
        tokio::time::timeout(LAST_WORDS, &mut self.reader).await.ok();
        Ok((status, String::from_utf8_lossy(&lock(&self.output)).into_owned()))
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Whether it has printed nothing yet.
    pub fn is_silent(&self) -> bool {
        lock(&self.output).is_empty()
    }

    /// Ends it; returns its output.
    pub async fn stop(mut self) -> anyhow::Result<String> {
        self.kill();
        Ok(self.ended().await?.1)
    }

    /// The group's leader has not been waited for, so that its number is nobody else's.
    fn kill(&self) {
        let leader = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(leader) = leader {
            // It may have ended already.
            kill_process_group(leader, Signal::KILL).ok();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        self.reader.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell() -> Shell {
        Shell { folder: "/".into(), environment: vec![("GREETING", "hello".into())] }
    }

    #[tokio::test]
    async fn output_is_one_stream_and_the_first_failure_ends_it() {
        let output = shell().run("echo $GREETING; pwd >&2; false; echo never", LIMIT).await.unwrap();
        assert_eq!((output.code, output.text.as_str()), (Some(1), "hello\n/\n"));
    }

    #[tokio::test]
    async fn what_does_not_end_is_ended_with_all_it_started() {
        let script = "echo one; sh -c 'sleep 1000; echo two'; sleep 1000";
        let why = shell().run(script, Duration::from_millis(200)).await.err().expect("refused").to_string();
        assert!(why.contains("did not end within 200ms") && why.ends_with("one\n"), "{why}");
    }

    #[tokio::test]
    async fn what_is_left_in_the_background_holds_up_nobody() {
        let output = shell().run("sleep 10 & echo started", LIMIT).await.unwrap();
        assert_eq!(output.text, "started\n");
    }

    #[tokio::test]
    async fn output_without_end_takes_bounded_memory() {
        let output = shell().run("head -c 3000000 /dev/zero", LIMIT).await.unwrap();
        assert_eq!(output.text.len(), MOST_OUTPUT);
    }
}
