//! Connections that the server cannot open itself: to a port inside a Pod, or from inside the node's network.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use podwright_net::netns::tcp_connect_in;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    Frames, Machine, PodExt,
    ahead::{Input, ahead},
    receive,
};
use podwright_api::{
    Status,
    rpc::PodRef,
    stream::{CLOSE, Frame, STDOUT},
};
use podwright_runtime::Network as SandboxNetwork;

const CHUNK: usize = 32 << 10;

/// Connects to a port inside the Pod: on its loopback, IPv4 first.
///
/// # Errors
///
/// The Pod has no sandbox, or nothing listens.
pub async fn port(machine: &Machine, frames: &mut Frames, pod: &PodRef, port: u16) -> Result<(), Status> {
    let sandbox = machine.newest_sandbox(&pod.uid).await.ok_or_else(|| Status::not_found("pods", "", &pod.name))?;
    let addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    let mut last = None;
    for address in addresses {
        let connected = match sandbox.spec.network {
            SandboxNetwork::New => {
                let netns = machine.runtime.netns(&sandbox.spec.id).await.map_err(Status::internal)?;
                tcp_connect_in(netns.as_fd(), address).await
            }
            _ => machine.network.netns().tcp_connect(address).await,
        };
        match connected {
            Ok(tcp) => return copy(frames, tcp).await,
            Err(error) => last = last.or(Some(error)),
        }
    }
    let why = last.map(|e| e.to_string()).unwrap_or_default();
    Err(Status::internal(format!("failed to connect to localhost:{port} inside the Pod's network: {why}")))
}

/// Connects from inside the node's network. The address the API has for a Pod may be outdated and belong to another one: nothing is
/// sent unless the Pod still has it once the connection is established.
///
/// # Errors
///
/// It is not an address, not the Pod's, or nothing listens there.
pub async fn dial(machine: &Machine, frames: &mut Frames, address: &str, pod: Option<&Pod>) -> Result<(), Status> {
    let parsed: SocketAddr = address.parse().map_err(|e| Status::bad_request(format!("{address}: {e}")))?;
    let check = || match pod.filter(|pod| !machine.has_address(pod, parsed.ip())) {
        Some(pod) => Err(Status::unavailable(format!("{} is no address of pod {}", parsed.ip(), pod.name()))),
        None => Ok(()),
    };
    check()?;
    let connected = machine.network.netns().tcp_connect(parsed).await;
    let connected = connected.map_err(|e| Status::unavailable(e.to_string()))?;
    check()?;
    copy(frames, connected).await
}

/// Copies both ways; each direction ends by itself, the session when the Pod's does, or when the caller leaves: this is noticed
/// whether or not the Pod reads, and also after the caller has finished sending.
async fn copy(frames: &mut Frames, tcp: TcpStream) -> Result<(), Status> {
    let (mut from, mut to) = tcp.into_split();
    let (mut sink, mut source) = super::exec::take(frames).split();
    let (ahead, mut waiting) = ahead();
    let upward = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read,
                () = ahead.beat() => {
                    if sink.send(Frame { channel: STDOUT, payload: Bytes::new() }).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            match read {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    let payload = Bytes::copy_from_slice(&buffer[..count]);
                    if sink.send(Frame { channel: STDOUT, payload }).await.is_err() {
                        return;
                    }
                }
            }
        }
        sink.send(Frame { channel: CLOSE, payload: Bytes::from_static(&[STDOUT]) }).await.ok();
    };
    let hear = async {
        while let Some(frame) = receive(&mut source).await {
            ahead.keep(&mut Some(frame)).await;
        }
    };
    let pour = async {
        let mut open = true;
        while let Some(next) = waiting.recv().await {
            if !open {
                continue;
            }
            open = match &next.input {
                // The other direction is about to report why it accepts no more.
                Input::Piece(bytes) => to.write_all(bytes).await.is_ok(),
                Input::End => {
                    to.shutdown().await.ok();
                    false
                }
            };
        }
    };
    tokio::select! {
        () = upward => {}
        () = hear => {}
        // Never: its input is filled above.
        () = pour => {}
    }
    Ok(())
}
