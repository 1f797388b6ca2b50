//! `port-forward`: forwards local ports to a Pod; one session for each connection.

use std::{net::IpAddr, process::ExitCode, sync::Arc};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{Outcome, Session, error::Failure, exec, pods, stream, target};
use podwright_api::{
    Object, Status,
    rpc::PortForwardOptions,
    stream::{CLOSE, Frame, STATUS, STDIN, STDOUT},
};

const CHUNK: usize = 32 << 10;

#[derive(clap::Args)]
pub struct Args {
    /// POD or TYPE/NAME
    #[arg(value_name = "TYPE/NAME")]
    to: String,
    /// PORT or LOCAL:REMOTE; REMOTE may be a port name; an empty or 0 LOCAL picks a free port
    #[arg(required = true, value_name = "PORT")]
    ports: Vec<String>,
    /// Addresses to listen on; only IP addresses or localhost
    #[arg(long, value_delimiter = ',', default_value = "localhost")]
    address: Vec<String>,
}

/// A local port and its destination.
#[derive(Debug, PartialEq)]
struct Forward {
    local: u16,
    remote: u16,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let (kind, object) = pods::named(session, &args.to).await?;
    let service = (kind.built_in() == "Service").then(|| object.clone());
    let pods = pods::behind(session, kind, object).await?;
    let pod = pods.into_iter().find(|pod| pod.0["status"]["phase"] == "Running");
    let pod = Arc::new(pod.ok_or_else(|| {
        Failure::usage(format!("unable to forward port because pod is not running: {} has no running Pod", args.to))
    })?);
    let mut tasks = JoinSet::new();
    for text in &args.ports {
        let forward = parse(text, service.as_ref(), &pod).map_err(Failure::usage)?;
        for listener in listen(&args.address, forward.local).await? {
            outln!("Forwarding from {} -> {}", listener.local_addr()?, forward.remote);
            tasks.spawn(accept(listener, session.clone(), pod.clone(), forward.remote));
        }
    }
    while tasks.join_next().await.is_some() {}
    Ok(ExitCode::SUCCESS)
}

/// Parses one argument for a Pod, and for the named Service, if any.
fn parse(text: &str, service: Option<&Object>, pod: &Object) -> Result<Forward, String> {
    let (local, remote) = text.split_once(':').map_or((None, text), |(l, r)| (Some(l), r));
    let number = |word: &str| word.parse::<u16>().ok();
    let wanted = match service {
        None => container_port(pod, remote),
        Some(service) => service_port(service, pod, remote),
    };
    let unknown = || format!("error parsing remote port '{remote}' of '{text}': no such port");
    let remote_number = wanted.filter(|port| *port != 0).ok_or_else(unknown)?;
    let local = match local {
        None => number(remote).unwrap_or(remote_number),
        Some("") => 0,
        Some(word) => number(word).ok_or_else(|| format!("error parsing local port '{word}' of '{text}'"))?,
    };
    Ok(Forward { local, remote: remote_number })
}

/// A number, or the number of a container's named port.
fn container_port(pod: &Object, word: &str) -> Option<u16> {
    if let Ok(number) = word.parse() {
        return Some(number);
    }
    let containers = pod.at("spec.containers").and_then(Value::as_array).into_iter().flatten();
    let mut ports = containers.filter_map(|c| c["ports"].as_array()).flatten();
    ports.find(|p| p["name"] == word)?["containerPort"].as_u64()?.try_into().ok()
}

/// The Pod's port for a Service's, which is given by number or name.
fn service_port(service: &Object, pod: &Object, word: &str) -> Option<u16> {
    let mut ports = service.at("spec.ports")?.as_array()?.iter();
    let port = ports.find(|p| p["name"] == word || p["port"].as_u64().is_some_and(|n| n.to_string() == word))?;
    match &port["targetPort"] {
        // Headless Services do not translate ports.
        _ if service.0["spec"]["clusterIP"] == "None" => port["port"].as_u64()?.try_into().ok(),
        Value::String(name) => container_port(pod, name),
        Value::Null => port["port"].as_u64()?.try_into().ok(),
        number => number.as_u64()?.try_into().ok(),
    }
}

/// Listeners on all addresses; `localhost` means both loopbacks, of which one may be missing.
async fn listen(addresses: &[String], port: u16) -> Result<Vec<TcpListener>, Failure> {
    let mut listeners = Vec::new();
    for address in addresses {
        let refused = |e: std::io::Error| Failure::usage(format!("unable to listen on port {port} ({address}): {e}"));
        if address != "localhost" {
            let ip: IpAddr = address.parse().map_err(|_| Failure::usage(format!("{address} is not a valid IP")))?;
            listeners.push(TcpListener::bind((ip, port)).await.map_err(refused)?);
            continue;
        }
        let four = TcpListener::bind(("127.0.0.1", port)).await;
        let chosen = four.as_ref().ok().and_then(|l| l.local_addr().ok()).map_or(port, |a| a.port());
        match (four, TcpListener::bind(("::1", chosen)).await) {
            (Err(why), Err(_)) => return Err(refused(why)),
            (four, six) => listeners.extend([four, six].into_iter().filter_map(Result::ok)),
        }
    }
    Ok(listeners)
}

async fn accept(listener: TcpListener, session: Session, pod: Arc<Object>, port: u16) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((tcp, _)) = listener.accept().await else { continue };
        outln!("Handling connection for {}", listener.local_addr().map_or(port, |a| a.port()));
        let (session, pod) = (session.clone(), pod.clone());
        connections.spawn(async move {
            if let Err(failure) = connection(&session, &pod, port, tcp).await {
                errln!("an error occurred forwarding to {}:", target::display(pods::kind_of("pods"), pod.name()));
                failure.report();
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// One connection with independent directions.
async fn connection(session: &Session, pod: &Object, port: u16, tcp: TcpStream) -> Result<(), Failure> {
    let request = exec::request(session, pod, "portforward", &PortForwardOptions { port })?;
    let (mut sink, mut source) = stream::open(session, request).await?.split();
    let (mut from, mut to) = tcp.into_split();
    let upward = async {
        let mut buffer = vec![0; CHUNK];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let payload = Bytes::copy_from_slice(&buffer[..count]);
            // The other direction is about to report the reason.
            if sink.send(Frame { channel: STDIN, payload }).await.is_err() {
                break;
            }
        }
        sink.send(Frame { channel: CLOSE, payload: Bytes::from_static(&[STDIN]) }).await.ok();
        std::future::pending().await
    };
    let downward = async {
        while let Some(frame) = source.next().await {
            let Frame { channel, payload } = frame?;
            match channel {
                STDOUT => to.write_all(&payload).await?,
                CLOSE => to.shutdown().await?,
                STATUS => return stream::succeeded(serde_json::from_slice(&payload).map_err(Status::internal)?),
                _ => {}
            }
        }
        Ok(())
    };
    tokio::select! {
        () = upward => Ok(()),
        ended = downward => ended,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_are_numbers_names_or_a_services() {
        let ports = json!([{"name": "http", "containerPort": 8080}]);
        let pod = Object(json!({"spec": {"containers": [{"ports": ports}]}}));
        let ports = json!([{"name": "web", "port": 80, "targetPort": "http"}, {"port": 81, "targetPort": 9000}]);
        let service = Object(json!({"spec": {"clusterIP": "10.96.0.1", "ports": ports}}));
        let plain = |text: &str| parse(text, None, &pod).map(|f| (f.local, f.remote)).ok();
        assert_eq!(plain("5000"), Some((5000, 5000)));
        assert_eq!(plain("5000:6000"), Some((5000, 6000)));
        assert_eq!(plain(":6000"), Some((0, 6000)));
        assert_eq!(plain("5000:http"), Some((5000, 8080)));
        assert_eq!(plain("http"), Some((8080, 8080)));
        assert_eq!([plain("nope"), plain("x:80"), plain("80:0"), plain("")], [None; 4]);
        let behind = |text: &str| parse(text, Some(&service), &pod).map(|f| (f.local, f.remote)).ok();
        assert_eq!(behind("80"), Some((80, 8080)));
        assert_eq!(behind("8000:web"), Some((8000, 8080)));
        assert_eq!(behind("8000:81"), Some((8000, 9000)));
        assert_eq!(behind("82"), None);
    }
}
