//! A real etcd for one test: on loopback, in its own folder, removed with the test.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// See the module.
pub struct EtcdServer {
    folder: tempfile::TempDir,
    client: String,
    peer: String,
    arguments: Vec<String>,
    process: Option<Child>,
}

/// An authority and a certificate signed by it, in PEM.
pub struct Signed {
    pub authority: String,
    /// For 127.0.0.1, as a server and as a client.
    pub certificate: String,
    pub key: String,
}

impl Signed {
    pub fn new() -> Signed {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut of_authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
        of_authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = of_authority.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(of_authority, key);
        let own = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&own, &issuer).unwrap().pem();
        Signed { authority, certificate, key: own.serialize_pem() }
    }
}

impl EtcdServer {
    /// One that requires client certificates; its files are `ca`, `cert` and `key` in its folder.
    pub fn start_with_tls(signed: &Signed) -> EtcdServer {
        let mut server = EtcdServer::stopped("https", Vec::new());
        let files = [
            ("--trusted-ca-file", "ca", &signed.authority),
            ("--cert-file", "cert", &signed.certificate),
            ("--key-file", "key", &signed.key),
        ];
        for (flag, name, text) in files {
            std::fs::write(server.folder().join(name), text).unwrap();
            server.arguments.extend([flag.to_owned(), server.file(name)]);
        }
        server.arguments.push("--client-cert-auth".to_owned());
        server.spawn();
        server
    }

    /// The path of a file in its folder.
    pub fn file(&self, name: &str) -> String {
        self.folder().join(name).display().to_string()
    }

    /// The output of `etcdctl`.
    pub fn ctl(&self, args: &[&str]) -> String {
        let tls = ["--cacert", &self.file("ca"), "--cert", &self.file("cert"), "--key", &self.file("key")];
        let tls: &[&str] = if self.client.starts_with("https") { &tls } else { &[] };
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.client])
            .args(tls)
            .args(args)
            .output()
            .expect("etcdctl (Debian's etcd-client) is installed");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A running one without TLS.
    pub fn start() -> EtcdServer {
        let mut server = EtcdServer::stopped("http", Vec::new());
        server.spawn();
        server
    }

    /// One that is not running yet.
    fn stopped(scheme: &str, arguments: Vec<String>) -> EtcdServer {
        let folder = tempfile::tempdir().unwrap();
        let url = |scheme: &str| {
            // Free a moment ago.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            format!("{scheme}://127.0.0.1:{port}")
        };
        let (client, peer) = (url(scheme), url("http"));
        EtcdServer { folder, client, peer, arguments, process: None }
    }

    pub fn url(&self) -> &str {
        &self.client
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn log(&self) -> PathBuf {
        self.folder().join("log")
    }

    /// Starts it on its folder's data; it responds when this returns.
    pub fn spawn(&mut self) {
        self.spawn_on("data");
    }

    /// The same on another data folder, such as one restored from a snapshot.
    pub fn spawn_on(&mut self, data: &str) {
        let log = std::fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let process = Command::new("etcd")
            .args(["--name", "m", "--log-level", "warn", "--data-dir"])
            .arg(self.folder().join(data))
            .args(["--listen-client-urls", &self.client, "--advertise-client-urls", &self.client])
            .args(["--listen-peer-urls", &self.peer, "--initial-advertise-peer-urls", &self.peer])
            .args(["--initial-cluster", &format!("m={}", self.peer)])
            // A single member needs no votes.
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("etcd (Debian's etcd-server) is installed");
        self.process = Some(process);
        let until = Instant::now() + Duration::from_secs(60);
        while !self.answers() {
            assert!(Instant::now() < until, "{}", std::fs::read_to_string(self.log()).unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it is healthy; with TLS, whether it listens.
    fn answers(&self) -> bool {
        let Some((scheme, address)) = self.client.split_once("://") else { return false };
        let Ok(mut stream) = TcpStream::connect(address) else { return false };
        if scheme == "https" {
            return true;
        }
        let mut answer = String::new();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let asked = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.contains("\"true\"")
    }

    /// Creates a data folder from a snapshot, as an operator does.
    pub fn restore(&self, snapshot: &Path, data: &str) {
        let (snapshot, data) = (snapshot.to_str().unwrap(), self.file(data));
        let cluster = format!("m={}", self.peer);
        let of_member = ["--name", "m", "--initial-advertise-peer-urls", &self.peer, "--initial-cluster", &cluster];
        self.ctl(&[&["snapshot", "restore", snapshot, "--data-dir", &data], &of_member[..]].concat());
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
