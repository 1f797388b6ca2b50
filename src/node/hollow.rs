//! An executor without a kernel below it: every Pod runs at once and stops when asked. One process can run thousands of nodes.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Pod;
use tokio::{net::TcpStream, sync::mpsc};

use super::{
    executor::{
        ActionError, Executor, ExecutorError, PullProgress, Pulled, Ran, RecoveredPod, Resized, Running, RuntimeEvent,
        StartOrder, Started,
    },
    pod::observed::{Attempt, Exit},
    spec::{ContainerRef, PodExt},
    translate::sandbox_id,
    usage::{hollow::Pretence, meter::Sample},
};
use podwright_api::Env;

pub struct Hollow {
    env: Env,
    ranges: Vec<IpNet>,
    /// Pod uid -> its addresses.
    addresses: Mutex<HashMap<String, Vec<IpAddr>>>,
    pretence: Mutex<Pretence>,
}

impl Hollow {
    pub fn new(env: Env, ranges: Vec<IpNet>) -> Hollow {
        Hollow { env, ranges, addresses: Mutex::default(), pretence: Mutex::default() }
    }

    fn allocate(&self, uid: &str) -> Vec<IpAddr> {
        let mut taken = self.addresses.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(known) = taken.get(uid) {
            return known.clone();
        }
        let free = |range: &IpNet| range.hosts().skip(1).find(|ip| !taken.values().flatten().any(|t| t == ip));
        let addresses: Vec<IpAddr> = self.ranges.iter().filter_map(free).collect();
        taken.insert(uid.to_owned(), addresses.clone());
        addresses
    }

    fn release(&self, uid: &str) {
        self.addresses.lock().unwrap_or_else(|p| p.into_inner()).remove(uid);
    }
}

#[async_trait]
impl Executor for Hollow {
    async fn find(&self) -> Vec<RecoveredPod> {
        Vec::new()
    }
    fn runtime_events(&self) -> mpsc::UnboundedReceiver<RuntimeEvent> {
        // No event ever occurs; the dropped sender closes the channel.
        mpsc::unbounded_channel().1
    }
    async fn sweep(&self, _living: Vec<String>) -> Vec<String> {
        Vec::new()
    }
    async fn mount_volume(&self, _pod: &Arc<Pod>, _volume: &str) -> Result<(), ActionError> {
        Ok(())
    }
    async fn refresh_volumes(&self, _pod: &Arc<Pod>, _volumes: &[String]) -> Vec<ActionError> {
        Vec::new()
    }
    async fn release_volumes(&self, _pod: &Pod) -> Result<(), ExecutorError> {
        Ok(())
    }
    async fn start_sandbox(&self, pod: &Arc<Pod>, _attempt: u32, _history: &str) -> Result<Vec<IpAddr>, ActionError> {
        Ok(self.allocate(pod.uid()))
    }
    async fn stop_sandbox(&self, pod: &Pod, _attempt: u32) -> Result<(), ExecutorError> {
        self.release(pod.uid());
        Ok(())
    }
    async fn remove_sandbox(&self, pod: &Pod, _attempt: u32) -> Result<(), ExecutorError> {
        self.release(pod.uid());
        Ok(())
    }
    async fn remove(&self, pod: &Pod, _attempt: u32) -> Result<(), ExecutorError> {
        self.release(pod.uid());
        Ok(())
    }
    async fn pull(
        &self,
        _pod: &Arc<Pod>,
        part: &ContainerRef<'_>,
        _progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Pulled, ActionError> {
        Ok(Pulled { id: part.container.image.clone().unwrap_or_default(), pulled: None, size: 0 })
    }
    async fn start(&self, pod: &Arc<Pod>, part: &ContainerRef<'_>, order: StartOrder) -> Result<Started, ActionError> {
        let id = format!("{}/{}.{}", sandbox_id(pod.uid(), order.sandbox), part.name(), order.restart);
        Ok(Started { id, at: self.env.now() })
    }
    async fn resize(&self, pod: &Arc<Pod>, _sandbox: u32, containers: Vec<Running>) -> Resized {
        let given = |name: &str| pod.part(name).and_then(|part| part.container.resources.clone()).unwrap_or_default();
        Resized { has: containers.into_iter().map(|c| (c.id, given(&c.container))).collect(), result: Ok(()) }
    }
    async fn usage(&self, pods: &[Arc<Pod>]) -> Sample {
        self.pretence.lock().unwrap_or_else(|p| p.into_inner()).sample(pods, tokio::time::Instant::now())
    }
    async fn stop(
        &self,
        _pod: &Pod,
        _id: &str,
        _signal: Option<&str>,
        _grace: Duration,
    ) -> Result<Option<Exit>, ExecutorError> {
        let finished_at = self.env.now();
        Ok(Some(Exit { code: 0, reason: "Completed".into(), message: None, finished_at }))
    }
    async fn forget(&self, _pod: &Pod, _attempt: &Attempt) {}
    async fn run(&self, _pod: &Pod, _id: &str, _command: &[String], _timeout: Duration) -> Result<Ran, ExecutorError> {
        Ok(Ran::default())
    }
    async fn connect(&self, _address: SocketAddr) -> io::Result<TcpStream> {
        Err(io::Error::from(io::ErrorKind::ConnectionRefused))
    }
    fn shortcomings(&self, _pod: &Pod) -> Vec<String> {
        Vec::new()
    }
}
