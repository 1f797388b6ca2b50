//! Debian's docker-registry on a loopback port, images to push into it, and an intercepting relay.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::{Value, json};
use sha2::Digest;

/// `secret` for `user`, in htpasswd's bcrypt format.
const HTPASSWD: &str = "user:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

/// A running registry; ends with its folder when dropped.
pub struct Registry {
    child: Child,
    pub addr: String,
    dir: tempfile::TempDir,
    basic: bool,
}

/// How clients are authenticated.
#[derive(Clone, Copy, Default)]
struct Door<'a> {
    basic: bool,
    /// TLS with a certificate for this name.
    tls: Option<&'a str>,
}

impl Registry {
    pub fn start() -> Registry {
        Registry::start_with(false)
    }

    /// With `basic`, it only accepts `user` with the password `secret`.
    pub fn start_with(basic: bool) -> Registry {
        Registry::start_behind(Door { basic, tls: None })
    }

    /// Only TLS, with a certificate for `name` from the authority in `ca()`.
    pub fn start_tls(name: &str) -> Registry {
        Registry::start_behind(Door { basic: false, tls: Some(name) })
    }

    fn start_behind(door: Door<'_>) -> Registry {
        for _ in 0..10 {
            if let Some(registry) = Registry::try_start(door) {
                return registry;
            }
        }
        panic!("docker-registry did not start in 10 tries")
    }

    fn try_start(Door { basic, tls }: Door<'_>) -> Option<Registry> {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        if let Some(name) = tls {
            certify(dir.path(), name);
        }
        // The port may be taken before the registry uses it: then retry with another one.
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let auth = match basic {
            true => format!("auth: {{htpasswd: {{realm: test, path: {}}}}}", path("htpasswd")),
            false => String::new(),
        };
        fs::write(dir.path().join("htpasswd"), HTPASSWD).unwrap();
        let storage = format!("storage: {{filesystem: {{rootdirectory: {}}}}}", path("data"));
        let tls = match tls {
            Some(_) => format!(", tls: {{certificate: {}, key: {}}}", path("cert.pem"), path("key.pem")),
            None => String::new(),
        };
        let config = format!("version: 0.1\n{storage}\nhttp: {{addr: \"{addr}\"{tls}}}\n{auth}\n");
        fs::write(dir.path().join("config.yml"), config).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("docker-registry")
            .args(["serve", &path("config.yml")])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("docker-registry (Debian package) is installed");
        let mut registry = Registry { child, addr, dir, basic };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(&registry.addr).is_err() {
            if registry.child.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "registry does not answer; its log: {}", registry.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(registry)
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// The number of GETs below `part` (such as `/blobs/`) the registry has served.
    pub fn gets(&self, part: &str) -> usize {
        self.log().lines().filter(|l| l.contains("\"GET /v2/") && l.contains(part)).count()
    }

    /// The file with a blob's bytes.
    pub fn blob_file(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.dir.path().join("data/docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }

    /// Pushes a tag of a layout; returns the full name for pulling.
    pub fn push(&self, layout: &Layout, tag: &str, name: &str) -> String {
        let full = format!("{}/{name}", self.addr);
        let source = format!("oci:{}:{tag}", layout.dir.path().display());
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["copy", "--all", "--insecure-policy", "--dest-tls-verify=false"]);
        if self.basic {
            skopeo.args(["--dest-creds", "user:secret"]);
        }
        run(skopeo.args([&source, &format!("docker://{full}")]));
        full
    }

    /// The stored manifest of a tag.
    pub fn manifest(&self, name: &str, tag: &str) -> Value {
        serde_json::from_slice(&fs::read(self.blob_file(&self.manifest_digest(name, tag))).unwrap()).unwrap()
    }

    /// Its digest.
    pub fn manifest_digest(&self, name: &str, tag: &str) -> String {
        let tags = self.dir.path().join("data/docker/registry/v2/repositories").join(name).join("_manifests/tags");
        fs::read_to_string(tags.join(tag).join("current/link")).unwrap()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates an authority (`ca.pem`) and a certificate (`cert.pem`, `key.pem`) from it, for a name or an address of loopback.
pub fn certify(dir: &Path, name: &str) {
    let script = "
        new='openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        $new -x509 -keyout ca.key -out ca.pem -subj /CN=authority -days 2
        $new -keyout key.pem -out request.pem -subj /CN=registry
        echo subjectAltName=DNS:$0,IP:127.0.0.1 > names
        openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -days 2 -out cert.pem";
    run(Command::new("sh").args(["-e", "-c", script, name]).current_dir(dir));
}

pub fn digest(bytes: &[u8]) -> String {
    let hex: String = sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// A tar of the given files (by the system's tar); names ending in `/` are folders.
pub fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        if name.ends_with('/') {
            fs::create_dir_all(&path).unwrap();
        } else {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
        }
    }
    let fixed = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-c", "."];
    let output = Command::new("tar").arg("-C").arg(dir.path()).args(fixed).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// An OCI layout in a folder.
pub struct Layout {
    pub dir: tempfile::TempDir,
    index: Vec<Value>,
}

impl Layout {
    pub fn new() -> Layout {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        fs::write(dir.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Layout { dir, index: Vec::new() }
    }

    fn blob(&self, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        fs::write(self.dir.path().join("blobs").join(digest.replace(':', "/")), bytes).unwrap();
        json!({"digest": digest, "size": bytes.len()})
    }

    fn described(&self, bytes: &[u8], media_type: &str) -> Value {
        let mut descriptor = self.blob(bytes);
        descriptor["mediaType"] = json!(format!("application/vnd.oci.image.{media_type}"));
        descriptor
    }

    /// Adds an image; returns its descriptor, including its platform.
    pub fn image(&self, architecture: &str, layers: &[Vec<u8>], config: Value) -> Value {
        let diff_ids: Vec<String> = layers.iter().map(|l| digest(l)).collect();
        let layers = layers.iter().map(|l| self.described(l, "layer.v1.tar")).collect();
        self.image_of(architecture, diff_ids, layers, config)
    }

    /// Like `image`, with gzip-compressed layers.
    pub fn packed_image(&self, architecture: &str, layers: &[Vec<u8>], config: Value) -> Value {
        let diff_ids: Vec<String> = layers.iter().map(|l| digest(l)).collect();
        let layers = layers.iter().map(|l| self.described(&gzip(l), "layer.v1.tar+gzip")).collect();
        self.image_of(architecture, diff_ids, layers, config)
    }

    fn image_of(&self, architecture: &str, diff_ids: Vec<String>, layers: Vec<Value>, config: Value) -> Value {
        let config = json!({
            "architecture": architecture, "os": "linux", "created": "2024-01-02T03:04:05Z",
            "config": config, "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.described(config.to_string().as_bytes(), "config.v1+json"),
            "layers": layers,
        });
        let mut descriptor = self.described(manifest.to_string().as_bytes(), "manifest.v1+json");
        descriptor["platform"] = json!({"architecture": architecture, "os": "linux"});
        descriptor
    }

    pub fn multi_arch(&self, images: &[Value]) -> Value {
        let media_type = "application/vnd.oci.image.index.v1+json";
        let index = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": images});
        self.described(index.to_string().as_bytes(), "index.v1+json")
    }

    /// Names a descriptor.
    pub fn tag(&mut self, mut descriptor: Value, tag: &str) {
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        self.index.push(descriptor);
        let index = json!({"schemaVersion": 2, "manifests": self.index});
        fs::write(self.dir.path().join("index.json"), index.to_string()).unwrap();
    }
}

/// An image of two layers: the upper one hides a file of the lower one.
pub fn two_layers() -> (Vec<Vec<u8>>, Value) {
    let lower = tar(&[
        ("etc/passwd", b"root:x:0:0::/root:/bin/sh\nweb:x:101:102::/srv:/bin/sh\n"),
        ("etc/group", b"web:x:102:\ntls:x:300:web\n"),
        ("etc/old", b"lower"),
        ("data/hidden", b"lower"),
        ("hello", b"lower"),
    ]);
    let upper = tar(&[("etc/.wh.old", b""), ("data/.wh..wh..opq", b""), ("data/new", b"upper"), ("hello", b"upper")]);
    let config = json!({
        "Entrypoint": ["/bin/serve"], "Cmd": ["--fast"], "Env": ["A=1", "PATH=/bin"], "User": "web",
        "WorkingDir": "/srv", "StopSignal": "SIGQUIT", "Volumes": {"/b": {}, "/a": {}},
    });
    (vec![lower, upper], config)
}

/// Incompressible bytes, so that a blob has a predictable size.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).take(length.div_ceil(8)).flatten().take(length).collect()
}

/// How a relay handles requests to a registry.
#[derive(Default)]
pub struct Rules {
    /// Issues tokens at `/token` and only accepts requests with one.
    pub tokens: bool,
    /// Cuts the first connection on which a blob's response reaches this size.
    pub cut_after: Mutex<Option<u64>>,
    /// Stops sending a blob's response after this many bytes, and keeps the connection.
    pub stall_after: Option<u64>,
}

/// A TCP relay in front of a registry: sees each request's head, one request per connection.
pub struct Relay {
    pub addr: String,
    pub requests: Arc<Mutex<Vec<String>>>,
    /// Bytes of responses relayed.
    pub relayed: Arc<AtomicU64>,
}

impl Relay {
    /// Its threads end with the test process.
    pub fn start(registry: &Registry, rules: Rules) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let relayed = Arc::new(AtomicU64::new(0));
        let relay = Relay { addr: addr.to_string(), requests: requests.clone(), relayed: relayed.clone() };
        let (upstream, rules) = (registry.addr.clone(), Arc::new(rules));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (upstream, rules) = (upstream.clone(), rules.clone());
                let (requests, relayed) = (requests.clone(), relayed.clone());
                std::thread::spawn(move || serve(stream, addr, &upstream, &rules, &requests, &relayed));
            }
        });
        relay
    }

    pub fn seen(&self, what: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|r| r.contains(what)).count()
    }
}

fn serve(
    mut client: TcpStream,
    own: SocketAddr,
    upstream: &str,
    rules: &Rules,
    requests: &Mutex<Vec<String>>,
    relayed: &AtomicU64,
) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.to_lowercase().split_once("content-length: ").and_then(|(_, l)| l.lines().next()?.parse().ok());
    let mut body = vec![0u8; length.unwrap_or(0)];
    std::io::Read::read_exact(&mut reader, &mut body).ok()?;
    requests.lock().unwrap().push(format!("{head}{}", String::from_utf8_lossy(&body)));
    if rules.tokens
        && let Some(answer) = token_answer(&head, &String::from_utf8_lossy(&body), own)
    {
        return client.write_all(answer.as_bytes()).ok();
    }
    let mut server = TcpStream::connect(upstream).ok()?;
    let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    server.write_all(head.as_bytes()).ok()?;
    let blob = head.contains("/blobs/");
    let cut = if blob { *rules.cut_after.lock().unwrap() } else { None };
    let limit = cut.or(rules.stall_after.filter(|_| blob)).unwrap_or(u64::MAX);
    let mut answer = std::io::Read::take(&mut server, limit);
    let mut buffer = [0u8; 1 << 14];
    let mut sent = 0;
    loop {
        let read = std::io::Read::read(&mut answer, &mut buffer).ok()?;
        if read == 0 {
            break;
        }
        client.write_all(&buffer[..read]).ok()?;
        relayed.fetch_add(read as u64, Ordering::SeqCst);
        sent += read as u64;
    }
    match (sent == limit, cut) {
        (true, Some(_)) => *rules.cut_after.lock().unwrap() = None,
        // Stalled: until the other side gives up.
        (true, None) => drop(reader.read_line(&mut String::new())),
        _ => {}
    }
    Some(())
}

/// The token server's response, or the refusal of requests without a token; none: pass it on.
fn token_answer(head: &str, body: &str, own: SocketAddr) -> Option<String> {
    let reply = |status: &str, more: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n{body}", body.len())
    };
    let right = base64::engine::general_purpose::STANDARD.encode("user:secret");
    if head.starts_with("GET /token") {
        let granted = head.contains(&format!("Basic {right}")) && head.contains("scope=repository%3A");
        return Some(match granted {
            true => reply("200 OK", "", r#"{"token":"let-me-in"}"#),
            false => reply("401 Unauthorized", "", r#"{"details":"incorrect username or password"}"#),
        });
    }
    if head.starts_with("POST /token") {
        let granted = body.contains("grant_type=refresh_token") && body.contains("refresh_token=identity%2B1");
        return Some(match granted {
            true => reply("200 OK", "", r#"{"access_token":"let-me-in"}"#),
            false => reply("401 Unauthorized", "", "{}"),
        });
    }
    if head.contains("Bearer let-me-in") {
        return None;
    }
    let challenge = format!("Www-Authenticate: Bearer realm=\"http://{own}/token\",service=\"test\"\r\n");
    Some(reply(
        "401 Unauthorized",
        &challenge,
        r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#,
    ))
}

/// Everything below a folder, as sorted relative paths.
pub fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        // One that was removed meanwhile is empty.
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let relative = entry.path().strip_prefix(dir).unwrap().display().to_string();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            }
            found.push(relative);
        }
    }
    found.sort();
    found
}

/// A fake registry's response: pieces in sequence, with a delay in between; the last one forever if `endless`.
#[derive(Clone, Default)]
pub struct Lie {
    pub pieces: Vec<Vec<u8>>,
    pub moment: Duration,
    pub endless: bool,
}

impl Lie {
    /// A complete response.
    pub fn answer(status: &str, headers: &str, body: &[u8]) -> Lie {
        let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        Lie { pieces: vec![[head.as_bytes(), body].concat()], ..Lie::default() }
    }

    /// A success that never ends.
    pub fn endless(piece: &[u8], moment: Duration) -> Lie {
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec();
        Lie { pieces: vec![head, piece.to_vec()], moment, endless: true }
    }
}

/// A registry with arbitrary responses.
pub struct Liar {
    pub addr: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Liar {
    /// `say` gets the head of a request. Its threads end with the test process.
    pub fn start(say: impl Fn(&str) -> Lie + Send + Sync + 'static) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (heard, say) = (requests.clone(), Arc::new(say));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (heard, say) = (heard.clone(), say.clone());
                std::thread::spawn(move || lie(stream, &heard, &*say));
            }
        });
        Liar { addr, requests }
    }

    pub fn seen(&self, what: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|r| r.to_lowercase().contains(&what.to_lowercase())).count()
    }
}

fn lie(mut client: TcpStream, heard: &Mutex<Vec<String>>, say: &dyn Fn(&str) -> Lie) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    heard.lock().unwrap().push(head.clone());
    let Lie { pieces, moment, endless } = say(&head);
    for piece in &pieces {
        client.write_all(piece).ok()?;
        std::thread::sleep(moment);
    }
    if !endless {
        return Some(());
    }
    loop {
        client.write_all(pieces.last()?).ok()?;
        std::thread::sleep(moment);
    }
}
