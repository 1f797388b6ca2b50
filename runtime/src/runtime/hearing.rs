//! Events sent by shims, and the cleanup of sandboxes whose shim is gone.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::names::shim;
use super::{Errors, Inner, Runtime, Sandbox};
use crate::shim_client::ShimClient;
use crate::spec::{Event, Exit};
use crate::{Error, JournalWriter};
use podwright_shim::protocol::{Call, Message};
use podwright_sys::Kernel;

/// Minimum interval between queries of a shim whose events were dropped.
const AGAIN: Duration = Duration::from_secs(10);

/// Receives a shim's events until it is gone. (The type is spelled out because reconnecting calls this again.)
pub(super) fn hear(
    inner: Weak<Inner>,
    sandbox: Weak<Sandbox>,
    client: Arc<ShimClient>,
    messages: mpsc::UnboundedReceiver<Message>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        hear_all(&inner, &sandbox, messages).await;
        let (Some(inner), Some(sandbox)) = (inner.upgrade(), sandbox.upgrade()) else { return };
        let runtime = Runtime(inner);
        if !(client.has_missed() && runtime.ask_again(&sandbox).await) {
            runtime.shim_gone(&sandbox).await;
        }
    })
}

async fn hear_all(inner: &Weak<Inner>, sandbox: &Weak<Sandbox>, mut messages: mpsc::UnboundedReceiver<Message>) {
    let mut lost = false;
    while let Some(message) = messages.recv().await {
        let (Some(inner), Some(sandbox)) = (inner.upgrade(), sandbox.upgrade()) else { return };
        match message {
            Message::Exited { key, exit } => inner.exited(&sandbox, &key, exit),
            Message::SandboxGone => {
                sandbox.state().pid = 0;
                lost = true;
                Runtime(inner.clone()).kill_orphans(&sandbox).await;
            }
            Message::Reply { .. } | Message::ExecExited { .. } => {}
        }
        // Reported after the exits of its containers, so that those are already known.
        if lost && sandbox.state().containers.values().all(|c| c.unborn || c.exit.borrow().is_some()) {
            lost = false;
            let _ = inner.events.send(Event::SandboxGone { id: sandbox.id.clone() });
        }
    }
}

impl Inner {
    /// A container was created, and its exit will be reported; it may have exited already.
    pub(super) fn born(&self, sandbox: &Sandbox, key: &str, pid: u32) {
        let mut state = sandbox.state();
        let Some(container) = state.containers.get_mut(key) else { return };
        (container.pid, container.unborn) = (pid, false);
        let exit = container.exit.borrow().clone();
        if let Some(exit) = exit.filter(|_| !container.leaving) {
            let _ = self.events.send(Event::ContainerExited { id: container.record.id.clone(), exit });
        }
    }

    /// A container has exited; reported once.
    fn exited(&self, sandbox: &Sandbox, key: &str, exit: Exit) {
        let mut state = sandbox.state();
        let Some(container) = state.containers.get_mut(key) else { return };
        let is_first = container.exit.send_replace(Some(exit.clone())).is_none();
        if is_first && !container.leaving && !container.unborn {
            let _ = self.events.send(Event::ContainerExited { id: container.record.id.clone(), exit });
        }
    }
}

impl Runtime {
    /// A shim is alive but its events overflowed: queries its whole state. Returns whether it responds, and does not overflow again
    /// at once.
    async fn ask_again(&self, sandbox: &Arc<Sandbox>) -> bool {
        {
            let mut state = sandbox.state();
            let is_again = state.asked_again.is_some_and(|at| at.elapsed() < AGAIN);
            if state.record.stopped || is_again {
                return false;
            }
            state.asked_again = Some(Instant::now());
        }
        tracing::warn!("requesting the full state of the shim of sandbox {} again", sandbox.id);
        let known = match self.connect(sandbox, None, JournalWriter::none().cause(), || Call::State, &[]).await {
            Ok((answer, fds)) => self.adopt(sandbox, answer, fds),
            Err(e) => {
                tracing::warn!("sandbox {}: {e}", sandbox.id);
                return false;
            }
        };
        for container in known.containers {
            if let Some(exit) = container.exit {
                self.0.exited(sandbox, &container.key, exit);
            }
        }
        // Without its `pause` nothing may go on.
        known.sandbox != 0
    }

    /// Containers do not outlive their sandbox's `pause`: running ones are killed, and the shim reports their exits.
    pub(super) async fn kill_orphans(&self, sandbox: &Sandbox) {
        let (stopped, spec) = {
            let state = sandbox.state();
            (state.record.stopped, state.record.spec.clone())
        };
        if stopped {
            return;
        }
        tracing::warn!("the pause process of sandbox {} is gone", sandbox.id);
        let killed = self.blocking(move |inner| {
            inner.tree.kill(&Kernel::new(&JournalWriter::none()), &spec.cgroup).map_err(Error::from)
        });
        if let Err(e) = killed.await {
            tracing::warn!("sandbox {}: {e}", sandbox.id);
        }
    }

    /// The connection to a shim has ended. Unless that was requested, its processes are killed and their exits recorded.
    async fn shim_gone(&self, sandbox: &Arc<Sandbox>) {
        let (stopped, spec) = {
            let mut state = sandbox.state();
            state.pid = 0;
            state.netns = None;
            (state.record.stopped, state.record.spec.clone())
        };
        if stopped {
            return;
        }
        tracing::warn!("the shim of sandbox {} is gone", sandbox.id);
        let killed = self.blocking(move |inner| {
            let (mut errors, kernel) = (Errors::default(), Kernel::new(&JournalWriter::none()));
            // One that hangs was disconnected, and still holds its resources.
            errors.note(inner.tree.kill(&kernel, &shim(&spec.id)));
            errors.note(inner.tree.kill(&kernel, &spec.cgroup));
            errors.result()
        });
        if let Err(e) = killed.await {
            tracing::warn!("sandbox {}: {e}", sandbox.id);
        }
        self.mark_unknown(sandbox);
        let _ = self.0.events.send(Event::SandboxGone { id: sandbox.id.clone() });
    }
}
