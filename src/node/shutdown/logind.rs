//! What systemd-logind says and grants: a lock that delays a shutdown, and the signal that one begins.
//! <https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html>,
//! <https://systemd.io/INHIBITOR_LOCKS/>.

use std::{io, path::Path, time::Duration};

use futures::StreamExt;
use podwright_api::duration;
use podwright_journal::kept;
use zbus::{Connection, OwnedFd};

/// Where logind's configuration is extended until the next boot: logind.conf(5).
const DROP_IN: &str = "/run/systemd/logind.conf.d/99-podwright.conf";
/// The first line of what is written there.
const HEADER: &str = "# Written by podwright, for its grace periods at shutdown.";
/// How long logind may take to read its configuration anew.
const RELOAD: Duration = Duration::from_secs(5);
/// How long any call may take: a bus that hangs must not hang the agent.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a shutdown cannot be delayed.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    #[error("cannot talk to systemd-logind by D-Bus: {0}")]
    Bus(#[from] zbus::Error),
    #[error("systemd-logind does not answer")]
    Timeout,
    #[error("cannot raise InhibitDelayMaxSec of logind: {DROP_IN}: {0}")]
    Configure(#[source] io::Error),
    #[error(
        "the current value of InhibitDelayMaxSec of logind ({got}) is less than the requested grace periods ({wanted})",
        got = duration::go(*.got), wanted = duration::go(*.wanted)
    )]
    TooShort { got: Duration, wanted: Duration },
    #[error("the connection to systemd-logind has ended")]
    Ended,
}

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Manager {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;

    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;

    #[zbus(property(emits_changed_signal = "false"))]
    fn preparing_for_shutdown(&self) -> zbus::Result<bool>;

    #[zbus(property(emits_changed_signal = "false"), name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> zbus::Result<u64>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Systemd {
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;
}

/// A connection to logind, and the lock that delays shutdowns, where it is taken.
pub struct Logind {
    manager: ManagerProxy<'static>,
    signals: PrepareForShutdownStream,
    lock: Option<OwnedFd>,
}

impl Logind {
    /// Connects to a logind that delays shutdowns by up to `wanted` for who asks for it. `may_configure`: raises logind's own maximum
    /// where it is less, to `more` than that.
    ///
    /// # Errors
    ///
    /// There is no logind, or it does not wait for so long.
    pub async fn connect(wanted: Duration, more: Duration, may_configure: bool) -> Result<Logind, LogindError> {
        tokio::time::timeout(RELOAD + TIMEOUT, Logind::connected(wanted, more, may_configure))
            .await
            .map_err(|_| LogindError::Timeout)?
    }

    async fn connected(wanted: Duration, more: Duration, may_configure: bool) -> Result<Logind, LogindError> {
        let bus = Connection::system().await?;
        let manager = ManagerProxy::new(&bus).await?;
        // Before anything is asked, so that no signal is missed.
        let signals = manager.receive_prepare_for_shutdown().await?;
        let mut got = longest_delay(&manager).await?;
        if got < wanted + more && may_configure {
            configure(Path::new(DROP_IN), wanted + more).map_err(LogindError::Configure)?;
            SystemdProxy::new(&bus).await?.kill_unit("systemd-logind.service", "all", libc::SIGHUP).await?;
            got = reloaded(&manager, wanted + more).await?;
        }
        if got < wanted {
            return Err(LogindError::TooShort { got, wanted });
        }
        Ok(Logind { manager, signals, lock: None })
    }

    /// Takes a lock: shutdowns are delayed until it is released, or the connection ends.
    ///
    /// # Errors
    ///
    /// As [`Logind::connect`].
    pub async fn delay(&mut self) -> Result<(), LogindError> {
        let why = "Pods are ended by their priorities before the machine shuts down";
        let taken = self.manager.inhibit("shutdown", "podwright", why, "delay");
        let taken = tokio::time::timeout(TIMEOUT, taken).await.map_err(|_| LogindError::Timeout)?;
        self.lock = Some(taken?);
        Ok(())
    }

    /// Lets the machine shut down.
    pub fn release(&mut self) {
        self.lock = None;
    }

    /// Whether a shutdown has begun.
    ///
    /// # Errors
    ///
    /// logind does not say.
    pub async fn is_shutting_down(&self) -> Result<bool, LogindError> {
        let told = tokio::time::timeout(TIMEOUT, self.manager.preparing_for_shutdown()).await;
        Ok(told.map_err(|_| LogindError::Timeout)??)
    }

    /// Waits until a shutdown begins (`true`), or is called off.
    ///
    /// # Errors
    ///
    /// The connection has ended: the lock is gone, too.
    pub async fn next(&mut self) -> Result<bool, LogindError> {
        let signal = self.signals.next().await.ok_or(LogindError::Ended)?;
        Ok(signal.args()?.start)
    }
}

async fn longest_delay(manager: &ManagerProxy<'_>) -> Result<Duration, LogindError> {
    Ok(Duration::from_micros(manager.inhibit_delay_max_usec().await?))
}

/// The longest delay once logind has read its configuration anew, or as it is after [`RELOAD`].
async fn reloaded(manager: &ManagerProxy<'_>, wanted: Duration) -> Result<Duration, LogindError> {
    let until = tokio::time::Instant::now() + RELOAD;
    loop {
        let got = longest_delay(manager).await?;
        if got >= wanted || tokio::time::Instant::now() >= until {
            return Ok(got);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Removes what [`Logind::connect`] has written for logind; what somebody else has written there stays.
///
/// # Errors
///
/// It cannot be removed.
pub fn remove_configuration() -> io::Result<()> {
    match std::fs::read_to_string(DROP_IN) {
        Ok(text) if text.starts_with(HEADER) => std::fs::remove_file(DROP_IN),
        _ => Ok(()),
    }
}

/// Writes logind's maximum: whole seconds, and never shorter than `wanted`.
fn configure(path: &Path, wanted: Duration) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let seconds = wanted.as_secs() + u64::from(wanted.subsec_nanos() > 0);
    let text = format!("{HEADER}\n[Login]\nInhibitDelayMaxSec={seconds}\n");
    kept::replace_unsynced(path, text.as_bytes()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_is_written_in_whole_seconds() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("logind.conf.d/99-podwright.conf");
        configure(&file, Duration::from_millis(30_001)).expect("written");
        let text = std::fs::read_to_string(file).expect("read");
        assert!(text.ends_with("[Login]\nInhibitDelayMaxSec=31\n"), "{text}");
    }
}
