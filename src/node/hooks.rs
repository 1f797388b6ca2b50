//! Lifecycle hooks: exec, httpGet, sleep (and tcpSocket, which upstream keeps for old manifests).

use std::{net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use super::{
    Shared,
    probes::{self, http},
    spec::PodExt,
};

/// A postStart hook has no limit of its own upstream; a container that hangs in it shall not hang forever.
const POST_START: Duration = Duration::from_secs(3600);

/// Runs a hook; why it failed, in upstream's words.
pub async fn run(
    shared: &Arc<Shared>,
    pod: &Pod,
    container: &Container,
    id: &str,
    ips: &[IpAddr],
    hook: &LifecycleHandler,
    limit: Duration,
) -> Result<(), String> {
    let work = async {
        if let Some(exec) = &hook.exec {
            let command = exec.command.clone().unwrap_or_default();
            let ran = shared.executor.run(pod, id, &command, limit).await?;
            if ran.code != 0 {
                return Err(format!("command '{}' exited with {}: {}", command.join(" "), ran.code, ran.output));
            }
            return Ok(());
        }
        if let Some(get) = &hook.http_get {
            let target = http::Target::of(get, container, ips)?;
            let answer = http::get(shared.executor.as_ref(), &target, "kube-lifecycle").await?;
            return if answer.code < 400 { Ok(()) } else { Err(format!("HTTP hook returned {}", answer.code)) };
        }
        if let Some(sleep) = &hook.sleep {
            tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
            return Ok(());
        }
        if let Some(tcp) = &hook.tcp_socket {
            let address = probes::address(tcp.host.as_deref(), &tcp.port, container, ips)?;
            return shared.executor.connect(address).await.map(drop).map_err(|e| e.to_string());
        }
        Ok(())
    };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(format!("timed out after {limit:?}")))
}

/// Runs the container's postStart hook; the words for its event if it fails.
pub async fn post_start(
    shared: &Arc<Shared>,
    pod: &Pod,
    container: &str,
    id: &str,
    ips: &[IpAddr],
) -> Result<(), String> {
    let Some(part) = pod.part(container) else { return Ok(()) };
    let Some(hook) = part.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
    run(shared, pod, &part.container, id, ips, hook, POST_START)
        .await
        .map_err(|why| format!("PostStartHook failed: {why}"))
}
