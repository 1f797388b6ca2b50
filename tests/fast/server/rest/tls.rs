//! The TLS listener and the certificates: who is recognized, and what is kept over a restart.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use podwright::server::listen::{Tls, bind, serve};
use podwright::server::pki::{Names, Pki, Renewed};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use super::super::Api;

fn names() -> Names {
    Names::new("cluster.local", Some([10, 96, 0, 1].into()), [IpAddr::from([192, 0, 2, 7])])
}

/// A value of the kubeconfig, decoded.
fn field(kubeconfig: &str, name: &str) -> Vec<u8> {
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: "))).unwrap();
    STANDARD.decode(line).unwrap()
}

pub async fn handshake(address: SocketAddr, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// What a GET of a path answers: the status line's code; an error where the handshake fails.
async fn get(address: SocketAddr, kubeconfig: &str, with_certificate: bool, path: &str) -> std::io::Result<u16> {
    let config = client(kubeconfig, with_certificate);
    let mut stream = handshake(address, config).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap())
}

/// How a kubeconfig's user speaks TLS.
pub fn client(kubeconfig: &str, with_certificate: bool) -> ClientConfig {
    let builder = trusting(kubeconfig);
    match with_certificate {
        true => showing(builder, &field(kubeconfig, "client-certificate-data"), &field(kubeconfig, "client-key-data")),
        false => builder.with_no_client_auth(),
    }
}

/// The same with another certificate than the kubeconfig's.
pub fn client_with(kubeconfig: &str, certificate: &str, key: &str) -> ClientConfig {
    showing(trusting(kubeconfig), certificate.as_bytes(), key.as_bytes())
}

/// Who trusts the kubeconfig's CA.
fn trusting(kubeconfig: &str) -> Trusting {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&field(kubeconfig, "certificate-authority-data")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    builder.with_root_certificates(roots)
}

type Trusting = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn showing(builder: Trusting, certificate: &[u8], key: &[u8]) -> ClientConfig {
    let certificate = CertificateDer::from_pem_slice(certificate).unwrap();
    builder.with_client_auth_cert(vec![certificate], PrivateKeyDer::from_pem_slice(key).unwrap()).unwrap()
}

pub fn open(dir: &Path, now: Timestamp) -> Pki {
    Pki::open(&dir.join("pki"), &names(), now).unwrap()
}

#[tokio::test]
async fn the_administrators_certificate_opens_the_door_and_no_other_does() {
    let dir = tempfile::tempdir().unwrap();
    let pki = open(dir.path(), Timestamp::now());
    let stranger = tempfile::tempdir().unwrap();
    let stranger = open(stranger.path(), Timestamp::now()).kubeconfig("https://127.0.0.1:1");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Tls::new(listener, pki.server_config().unwrap());
    let socket = bind(&dir.path().join("api.sock")).unwrap();
    let server = Api::new().await.0;
    let serving = tokio::spawn(serve(server, socket, Some(tls), std::future::pending()));

    let ours = pki.kubeconfig(&format!("https://{address}"));
    for (with_certificate, path, code) in [
        (true, "/api/v1/namespaces", 200),
        (true, "/metrics", 200),
        (false, "/api/v1/namespaces", 403),
        (false, "/healthz", 200),
        (false, "/rpc", 401),
    ] {
        assert_eq!(get(address, &ours, with_certificate, path).await.unwrap(), code, "{path}");
    }
    // Another cluster's administrator, who trusts this one's CA: the handshake fails.
    let authority = ours.lines().find(|line| line.contains("certificate-authority-data")).unwrap();
    let own = stranger.lines().find(|line| line.contains("certificate-authority-data")).unwrap();
    assert!(get(address, &stranger.replace(own, authority), true, "/healthz").await.is_err());
    assert!(get(address, &stranger, false, "/healthz").await.is_err(), "a client that does not know our CA refuses us");
    serving.abort();
}

/// Ten authorities of one name may have signed each other in hundreds of thousands of orders.
#[tokio::test]
async fn a_client_that_shows_a_long_chain_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    let pki = open(dir.path(), Timestamp::now());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Tls::new(listener, pki.server_config().unwrap());
    let socket = bind(&dir.path().join("api.sock")).unwrap();
    let serving = tokio::spawn(serve(Api::new().await.0, socket, Some(tls), std::future::pending()));

    let certificate = |is_ca: rcgen::IsCa, key: &rcgen::KeyPair| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "same");
        params.is_ca = is_ca;
        params.self_signed(key).unwrap().der().clone()
    };
    let authority = || {
        let key = rcgen::KeyPair::generate().unwrap();
        certificate(rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained), &key)
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let mut shown = vec![certificate(rcgen::IsCa::NoCa, &key)];
    shown.extend((0..10).map(|_| authority()));
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = trusting(&pki.kubeconfig("https://x")).with_client_auth_cert(shown, key).unwrap();
    let begun = std::time::Instant::now();
    let mut stream = handshake(address, config).await.expect("a client is done before its certificate is read");
    let refused = stream.read(&mut [0; 1]).await.unwrap_err().to_string();
    assert!(begun.elapsed() < std::time::Duration::from_secs(1), "{:?}", begun.elapsed());
    // What is not verified after all is told apart: that would be an authority that nobody knows.
    assert!(refused.contains("CertificateUnknown"), "{refused}");
    serving.abort();
}

/// A stream that sends each byte by itself.
struct Drops(TcpStream);

impl AsyncRead for Drops {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Drops {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, &buf[..buf.len().min(1)])
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_handshake_begins_with_a_whole_message_in_few_records() {
    let dir = tempfile::tempdir().unwrap();
    let pki = open(dir.path(), Timestamp::now());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Tls::new(listener, pki.server_config().unwrap());
    let socket = bind(&dir.path().join("api.sock")).unwrap();
    let serving = tokio::spawn(serve(Api::new().await.0, socket, Some(tls), std::future::pending()));

    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client(&pki.kubeconfig("https://x"), true)));
    let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
    let mut stream = connector.connect(name, Drops(stream)).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("ok"), "{answer}");

    // A message of 64 bytes, each in a record of its own.
    let mut stream = TcpStream::connect(address).await.unwrap();
    for byte in [1, 0, 0, 60].into_iter().chain([7; 60]) {
        if stream.write_all(&[22, 3, 1, 0, 1, byte]).await.is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    // It is reset, or ends: no alert is made of what is not read.
    let ended = tokio::time::timeout(std::time::Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok() && answer.is_empty(), "{answer:?}");
    serving.abort();
}

/// A clock that stands.
#[derive(Debug)]
struct At(Timestamp);

impl rustls::time_provider::TimeProvider for At {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        let since = std::time::Duration::from_secs(self.0.as_second().try_into().unwrap());
        Some(rustls::pki_types::UnixTime::since_unix_epoch(since))
    }
}

#[tokio::test]
async fn a_certificate_that_is_due_is_exchanged_while_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let pki = open(dir.path(), now);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Tls::new(listener, pki.server_config().unwrap());
    let socket = bind(&dir.path().join("api.sock")).unwrap();
    let serving = tokio::spawn(serve(Api::new().await.0, socket, Some(tls), std::future::pending()));
    let kubeconfig = pki.kubeconfig("https://x");
    let shown = async |now: Timestamp| {
        let mut config = client(&kubeconfig, false);
        config.time_provider = Arc::new(At(now));
        let stream = handshake(address, config).await?;
        let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        Ok::<_, std::io::Error>((stream, certificate))
    };
    let (mut old, first) = shown(now).await.unwrap();
    assert_eq!(pki.renew(now + SignedDuration::from_hours(24)).unwrap(), Renewed::default());
    assert_eq!(shown(now).await.unwrap().1, first);

    let late = now + SignedDuration::from_hours(366 * 24);
    assert!(shown(late).await.is_err(), "it has ended");
    assert_eq!(pki.renew(late).unwrap(), Renewed { serving: true, admin: true, front_proxy: true });
    assert_ne!(shown(late).await.unwrap().1, first);
    assert_ne!(pki.kubeconfig("https://x"), kubeconfig, "the administrator's is another, too");
    // Who was connected goes on.
    old.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    old.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("ok"), "{answer}");
    serving.abort();
}

#[test]
fn certificates_are_kept_until_they_are_due_or_lack_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let read = |file: &str| std::fs::read_to_string(dir.path().join("pki").join(file)).unwrap();
    let files = ["ca.crt", "front-proxy-ca.crt", "server.crt", "front-proxy-client.crt", "admin.crt", "admin.key"];
    let now = Timestamp::now();
    open(dir.path(), now);
    let first = files.map(read);
    open(dir.path(), now + SignedDuration::from_hours(24));
    assert_eq!(files.map(read), first, "kept");

    let late = now + SignedDuration::from_hours(340 * 24);
    open(dir.path(), late);
    let second = files.map(read);
    let same = |i: usize| first[i] == second[i];
    let kept = [same(0), same(1), same(2), same(3), same(4)];
    assert_eq!(kept, [true, true, false, false, false], "the CAs last; what they signed is due");

    let more = Names::new("cluster.local", None, [IpAddr::from([192, 0, 2, 8])]);
    Pki::open(&dir.path().join("pki"), &more, late).unwrap();
    assert!(read("server.crt") != second[2] && read("admin.crt") == second[4], "a name more needs another certificate");

    // Another CA, which an administrator has asked for so.
    std::fs::remove_dir_all(dir.path().join("pki")).unwrap();
    open(dir.path(), late);
    assert!(read("ca.crt") != first[0] && read("admin.crt") != second[4], "a new CA signs anew");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(dir.path().join("pki/ca.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// All nodes and administrators trust the CA: whatever has become of its files, another one is not made in its place.
#[test]
fn a_ca_that_is_damaged_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (now, pki) = (Timestamp::now(), dir.path().join("pki"));
    let authority = open(dir.path(), now).authority().to_owned();
    let other = tempfile::tempdir().unwrap();
    open(other.path(), now);
    for name in ["ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key"] {
        let file = name.split_once('.').unwrap().0;
        let others_key = std::fs::read(other.path().join(format!("pki/{file}.key"))).unwrap();
        let path = pki.join(name);
        let sound = std::fs::read(&path).unwrap();
        for damage in [Some(&b""[..]), Some(b"-----BEGIN"), Some(&sound[..sound.len() / 2]), Some(&others_key), None] {
            match damage {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let refused =
                Pki::open(&pki, &names(), now).err().unwrap_or_else(|| panic!("{name} {damage:?}")).to_string();
            assert!(refused.contains(&format!("put {file}.crt and {file}.key back")), "{refused}");
            assert_eq!(std::fs::read(&path).ok().as_deref(), damage, "{name} is left as it is");
        }
        std::fs::write(&path, sound).unwrap();
        assert_eq!(open(dir.path(), now).authority(), authority);
    }
}

/// A first start that was interrupted while it made the CA is none that has lost one: it has left a mark.
#[test]
fn a_ca_that_was_not_finished_is_made_anew_and_one_that_is_lost_is_not() {
    for (files, in_use, is_made) in [
        (&[][..], false, true),
        (&["ca.new"][..], false, true),
        (&["ca.new", "ca.key"], false, true),
        (&["ca.key"], false, false),
        (&["ca.crt"], false, false),
        (&["admin.crt"], false, false),
        (&["admin.key"], false, false),
        (&["server.crt"], false, false),
        (&["server.key"], false, false),
        // A store that has data.
        (&[], true, false),
        // What an operator puts there who wants another one.
        (&["ca.new"], true, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        std::fs::create_dir(&pki).unwrap();
        files.iter().for_each(|file| std::fs::write(pki.join(file), "").unwrap());
        let opened = Pki::open_of(&pki, &names(), Timestamp::now(), in_use).map_err(|why| why.to_string());
        assert_eq!(opened.is_ok(), is_made, "{files:?} {in_use}: {:?}", opened.err());
        match opened {
            Ok(_) => assert!(!pki.join("ca.new").exists(), "the mark goes"),
            Err(why) => assert!(why.contains("missing") && why.contains("from a backup"), "{why}"),
        }
    }
}

/// Without its files the server could not start again, and nobody could get at it.
#[test]
fn files_that_somebody_else_changes_are_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let (now, folder) = (Timestamp::now(), dir.path().join("pki"));
    let pki = open(dir.path(), now);
    let files =
        ["ca.crt", "ca.key", "server.crt", "server.key", "admin.crt", "admin.key"].map(|name| folder.join(name));
    let read = || files.each_ref().map(|path| std::fs::read(path).unwrap_or_default());
    let own = read();
    for path in &files {
        for damage in [None, Some(""), Some("garbage")] {
            match damage {
                None => std::fs::remove_file(path).unwrap(),
                Some(text) => std::fs::write(path, text).unwrap(),
            }
            // What is due is told by what is held, not by what somebody has put there.
            assert_eq!(pki.renew(now).unwrap(), Renewed::default());
            assert_eq!(pki.mend().unwrap(), [path.display().to_string()]);
            assert_eq!(read(), own);
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(pki.mend().unwrap().len(), 10);
    assert_eq!(read(), own);
    assert_eq!(pki.mend().unwrap(), [""; 0]);
    // And so after they were exchanged.
    assert_eq!(
        pki.renew(now + SignedDuration::from_hours(340 * 24)).unwrap(),
        Renewed { serving: true, admin: true, front_proxy: true }
    );
    let second = read();
    std::fs::write(&files[2], "").unwrap();
    pki.mend().unwrap();
    assert_eq!(read(), second);
    assert_ne!(second[2], own[2]);
}

#[test]
fn a_clock_that_was_far_ahead_costs_no_ca_and_what_was_signed_then_is_signed_again() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let years = |n: i64| now + SignedDuration::from_hours(n * 366 * 24);
    let pki = open(dir.path(), now);
    let refused = Pki::open(&dir.path().join("pki"), &names(), years(100)).err().unwrap().to_string();
    assert!(refused.contains("set the clock"), "{refused}");
    assert!(pki.renew(years(100)).unwrap_err().to_string().contains("clock"));
    // Before the CA begins nobody would take what it signs.
    let refused = Pki::open(&dir.path().join("pki"), &names(), years(-10)).err().unwrap().to_string();
    assert!(refused.contains("it begins on") && refused.contains("set the clock"), "{refused}");
    assert!(pki.renew(years(-10)).unwrap_err().to_string().contains("it begins on"));
    assert_eq!(pki.renew(now).unwrap(), Renewed::default(), "nothing has become of it");
    // Within the CA's life: certificates are renewed, which nobody takes while the clock is right.
    open(dir.path(), years(3));
    let again = open(dir.path(), now);
    assert_eq!(again.authority(), pki.authority());
    let certificate = field(&again.kubeconfig("https://x"), "client-certificate-data");
    let pair =
        podwright::server::pki::Pair { certificate: String::from_utf8(certificate).unwrap(), key: String::new() };
    assert!(pair.validity().unwrap().0 <= now, "it has begun");
}
