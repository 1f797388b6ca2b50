//! Lifecycle hooks: exec, httpGet, sleep (and tcpSocket, which upstream keeps for old manifests).

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use super::{
    Shared,
    executor::ExecutorError,
    probes::{address::address, attempt::Attempt, error::ProbeError, http},
    spec::PodExt,
};

/// Upstream has no limit for postStart hooks; this keeps a container from hanging in one forever.
const POST_START: Duration = Duration::from_secs(3600);

/// Why a hook failed, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// Its command could not be run or did not finish.
    #[error(transparent)]
    Run(#[from] ExecutorError),
    #[error("command '{command}' exited with {code}: {output}")]
    Exited { command: String, code: i32, output: String },
    /// The target is unknown or did not respond.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("HTTP hook returned {0}")]
    Status(u16),
    #[error(transparent)]
    Connect(#[from] io::Error),
    #[error("timed out after {0:?}")]
    TimedOut(Duration),
    /// The Pod's grace period expired.
    #[error("the grace period is over")]
    GraceOver,
}

/// Runs a hook.
///
/// # Errors
///
/// It failed, or did not end within `limit`.
pub async fn run(
    shared: &Arc<Shared>,
    pod: &Pod,
    container: &Container,
    id: &str,
    ips: &[IpAddr],
    hook: &LifecycleHandler,
    limit: Duration,
) -> Result<(), HookError> {
    let work = async {
        if let Some(exec) = &hook.exec {
            let command = exec.command.clone().unwrap_or_default();
            let ran = shared.executor.run(pod, id, &command, limit).await?;
            if ran.code != 0 {
                return Err(HookError::Exited { command: command.join(" "), code: ran.code, output: ran.output });
            }
            return Ok(());
        }
        if let Some(get) = &hook.http_get {
            let target = http::Target::of(get, container, ips)?;
            let answer = http::get(shared.executor.as_ref(), &target, "kube-lifecycle", &Attempt::default()).await?;
            return if answer.code < 400 { Ok(()) } else { Err(HookError::Status(answer.code)) };
        }
        if let Some(sleep) = &hook.sleep {
            tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
            return Ok(());
        }
        if let Some(tcp) = &hook.tcp_socket {
            let address = address(tcp.host.as_deref(), &tcp.port, container, ips)?;
            shared.executor.connect(address).await?;
        }
        Ok(())
    };
    tokio::time::timeout(limit, work).await.unwrap_or(Err(HookError::TimedOut(limit)))
}

/// Runs the container's postStart hook, if it has one.
///
/// # Errors
///
/// As [`run`].
pub async fn post_start(
    shared: &Arc<Shared>,
    pod: &Pod,
    container: &str,
    id: &str,
    ips: &[IpAddr],
) -> Result<(), HookError> {
    let Some(part) = pod.part(container) else { return Ok(()) };
    let Some(hook) = part.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
    run(shared, pod, &part.container, id, ips, hook, POST_START).await
}
