//! The API's TLS endpoint: its certificates, its TCP listener, and the administrator's kubeconfig.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::paths::Paths;
use crate::{
    api::Env,
    cli,
    server::{
        self,
        listen::Tls,
        pki::{Names, Pki, Renewed, write_private},
    },
};

const PORT: u16 = 6443;
/// How often to check whether a certificate is due, by a clock that may have just been set, and whether files have been changed.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, clap::Args)]
pub struct EndpointArgs {
    /// The address to serve the API on with TLS: ADDR:PORT, :PORT, or none [default: :6443; with --isolated a free port
    /// of 127.0.0.1]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// The IP address on which to advertise the API server to Pods and other machines [default: --listen's, or the
    /// default route's source]
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
}

/// The endpoint, ready to serve.
pub struct Endpoint {
    /// `None`: TLS is disabled.
    pub tls: Option<Tls>,
    /// How others reach it, as far as the process' own network is concerned.
    pub advertised: server::AdvertiseAddress,
    pub keeper: Keeper,
}

/// Renews certificates and kubeconfig, and restores their files, while the server runs.
pub struct Keeper {
    pki: Pki,
    /// Present if TLS is enabled.
    kubeconfig: Option<Kubeconfig>,
}

struct Kubeconfig {
    path: PathBuf,
    url: String,
}

impl Keeper {
    /// Maintains them until `stop`.
    pub async fn run(mut self, env: Env, stop: CancellationToken) {
        let mut told = String::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = stop.cancelled() => return,
            }
            let now = env.now();
            let looked = tokio::task::spawn_blocking(move || {
                let found = self.look(now);
                (self, found)
            });
            let Ok((keeper, found)) = looked.await else {
                return tracing::error!("the task that renews the server's certificates ended");
            };
            self = keeper;
            // A persistent error, such as a full disk, is reported once.
            let trouble = match found {
                Ok(mended) => {
                    for path in mended {
                        tracing::warn!(path, "rewriting a file that was changed by something else");
                    }
                    String::new()
                }
                Err(why) => format!("{why:#}"),
            };
            if trouble != told && !trouble.is_empty() {
                tracing::error!("failed to renew the server's certificates: {trouble}");
            }
            told = trouble;
        }
    }

    /// Returns what was written.
    fn look(&self, now: jiff::Timestamp) -> anyhow::Result<Vec<String>> {
        // With a wrong clock nothing is renewed, but the files are still maintained.
        let renewed = self.pki.renew(now);
        let mut mended = self.pki.mend()?;
        if let Some(Kubeconfig { path, url }) = &self.kubeconfig {
            let wanted = self.pki.kubeconfig(url);
            if !fs::read(path).is_ok_and(|found| found == wanted.as_bytes()) {
                write_private(path, &wanted)?;
                if !matches!(renewed, Ok(Renewed { admin: true, .. })) {
                    mended.push(path.display().to_string());
                }
            }
        }
        renewed.map(|_| mended).context("they cannot be renewed: the cluster's CA")
    }
}

/// Opens the endpoint: 1. listens, 2. reads or creates the certificates, 3. writes the kubeconfig. `in_use`: the store has data, so
/// there has been a CA.
pub async fn open(
    args: &EndpointArgs,
    paths: &Paths,
    isolated: bool,
    config: &mut server::Config,
    in_use: bool,
    env: &Env,
) -> anyhow::Result<Endpoint> {
    let listener = listen(args, paths, isolated).await?;
    let bound = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let own = if bound.is_none_or(|bound| bound.ip().is_loopback()) { Vec::new() } else { own_addresses()? };
    let own = own.into_iter().chain(bound.and_then(named)).chain(args.advertise_address);
    let names = Names::new("cluster.local", config.api_address(), own);
    let pki = Pki::open_of(&paths.pki(), &names, env.now(), in_use)?;
    config.authority = Some(pki.signer());
    config.front_proxy = Some(pki.front_proxy());
    config.listening = bound.into_iter().collect();
    let (Some(listener), Some(bound)) = (listener, bound) else {
        let keeper = Keeper { pki, kubeconfig: None };
        return Ok(Endpoint { tls: None, advertised: server::AdvertiseAddress::default(), keeper });
    };
    let kubeconfig = paths.kubeconfig();
    write_private(&kubeconfig, &pki.kubeconfig(&url(bound)))?;
    tracing::info!("serving on {}; kubeconfig: {}", url(bound), kubeconfig.display());
    let tls = Some(Tls::new(listener, pki.server_config()?));
    let keeper = Keeper { pki, kubeconfig: Some(Kubeconfig { path: kubeconfig, url: url(bound) }) };
    Ok(Endpoint { tls, advertised: advertised(args, bound, config.api_address()), keeper })
}

async fn listen(args: &EndpointArgs, paths: &Paths, isolated: bool) -> anyhow::Result<Option<TcpListener>> {
    let addresses: Vec<SocketAddr> = match args.listen.as_deref() {
        Some("none") => return Ok(None),
        Some(text) => parse(text)?,
        // The port of the last process with this directory, if available, so that its clients still find it.
        None if isolated => {
            let last = fs::read_to_string(paths.kubeconfig()).ok().and_then(|text| port_of(&text)).unwrap_or(0);
            vec![(Ipv4Addr::LOCALHOST, last).into(), (Ipv4Addr::LOCALHOST, 0).into()]
        }
        None => parse(&format!(":{PORT}"))?,
    };
    let bind = || async {
        let mut refused = None;
        for address in &addresses {
            match TcpListener::bind(address).await {
                Ok(listener) => return Ok(listener),
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
    };
    let shown = addresses.first().map(ToString::to_string).unwrap_or_default();
    let listener = bind().await.with_context(|| format!("listening on {shown} (choose with --listen ADDR:PORT)"))?;
    Ok(Some(listener))
}

/// Where to listen, in order of preference: `:6443` means both families, or only IPv4 if IPv6 is unavailable.
fn parse(text: &str) -> anyhow::Result<Vec<SocketAddr>> {
    if let Some(port) = text.strip_prefix(':') {
        let port: u16 = port.parse().with_context(|| format!("--listen {text}"))?;
        return Ok(vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]);
    }
    match text.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => bail!("--listen {text}: expected ADDR:PORT, :PORT or none"),
    }
}

/// The port of the server in a kubeconfig.
fn port_of(kubeconfig: &str) -> Option<u16> {
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: https://"))?;
    line.rsplit(':').next()?.parse().ok()
}

/// The address that it listens on, unless it is unspecified.
fn named(bound: SocketAddr) -> Option<IpAddr> {
    Some(bound.ip()).filter(|ip| !ip.is_unspecified())
}

/// How others reach a listener. Loopback is only reachable from this machine.
fn advertised(args: &EndpointArgs, bound: SocketAddr, service: Option<IpAddr>) -> server::AdvertiseAddress {
    // Of the Service's family, if there is one, as its endpoints are of that family only.
    let v4 = service.is_none_or(|ip| ip.is_ipv4());
    let of_route = || default_source(v4).or_else(|| default_source(!v4));
    let ip = args.advertise_address.or_else(|| named(bound)).or_else(of_route);
    let at = ip.map(|ip| SocketAddr::new(ip, bound.port()));
    server::AdvertiseAddress {
        endpoint: at.filter(|at| !at.ip().is_loopback()),
        url: Some(at.map_or_else(|| url(bound), |at| format!("https://{at}"))),
    }
}

/// The source address of this machine's default route. Nothing is sent.
fn default_source(v4: bool) -> Option<IpAddr> {
    // Documentation addresses, which use the default route.
    let (any, far): (IpAddr, IpAddr) = match v4 {
        true => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        false => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// The URL for clients on this machine.
fn url(bound: SocketAddr) -> String {
    let ip = named(bound).unwrap_or(Ipv4Addr::LOCALHOST.into());
    format!("https://{}", SocketAddr::new(ip, bound.port()))
}

/// The machine's externally reachable addresses.
fn own_addresses() -> anyhow::Result<Vec<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs().context("getifaddrs")?;
    let of = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
    };
    let reachable = |ip: &IpAddr| match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    Ok(interfaces.filter_map(|interface| of(interface.address?)).filter(reachable).collect())
}

/// `podwright kubeconfig`: prints the administrator's kubeconfig.
#[derive(clap::Args)]
pub struct PrintArgs {
    /// The server's state directory [default: that of the server's socket, or /var/lib/podwright]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

pub fn print(args: PrintArgs, global: cli::Global) -> anyhow::Result<()> {
    let beside_socket = || {
        let socket = Path::new(global.server.trim_start_matches("unix://"));
        socket.parent().map(Path::to_owned).filter(|dir| dir.join(super::paths::KUBECONFIG).exists())
    };
    let dir = args.state_dir.or_else(beside_socket).unwrap_or_else(|| super::paths::STATE.into());
    let path = dir.join(super::paths::KUBECONFIG);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("reading {} (does a server run there, with TLS?)", path.display()))?;
    print!("{text}");
    Ok(())
}
