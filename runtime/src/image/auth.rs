//! Registry credentials: what a pull presents, and docker configs decoded into a keyring.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::{ImageError, Result};

/// The Secret containing a credential.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// What a pull presents to the registry.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub enum Auth {
    #[default]
    Anonymous,
    /// User and password: sent as HTTP basic auth to the registry or its token server, as the registry requests.
    Basic { username: String, password: String },
    /// An OAuth2 refresh token that the registry's token server exchanges for an access token.
    IdentityToken(String),
    /// A bearer token sent to the registry as is.
    RegistryToken(String),
}

impl Auth {
    fn bytes(&self) -> usize {
        match self {
            Auth::Anonymous => 0,
            Auth::Basic { username, password } => username.len() + password.len(),
            Auth::IdentityToken(token) | Auth::RegistryToken(token) => token.len(),
        }
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Auth::Anonymous => f.write_str("Anonymous"),
            Auth::Basic { username, .. } => write!(f, "Basic({username})"),
            Auth::IdentityToken(_) => f.write_str("IdentityToken"),
            Auth::RegistryToken(_) => f.write_str("RegistryToken"),
        }
    }
}

/// Maximum number of matching locations for one image: each would be tried. A Secret has room for tens of thousands.
const MOST: usize = 1000;
/// Maximum size of all of them: a token has a few thousand bytes, a Secret room for a million, and each container that pulls has a
/// copy.
const MOST_BYTES: usize = 1 << 20;

/// The credentials for one image, by registry location, matched like the kubelet does (`pkg/credentialprovider/keyring.go`). Those
/// for other images are parsed, but not kept.
#[derive(Debug, Clone)]
pub struct Keyring {
    /// `registry/repository`.
    family: String,
    /// Location without a scheme (`host[:port][/path]`, globs in the host's labels) -> credentials in insertion order, each with
    /// its Secret.
    entries: BTreeMap<String, Vec<(Auth, Arc<SecretRef>)>>,
    /// Their number and total bytes.
    count: usize,
    bytes: usize,
}

/// A docker config's map of locations; keeps only what may match this image, reading entry by entry.
#[derive(Clone, Copy)]
struct Auths<'a>(&'a str);

/// A docker config containing this map.
struct Config<'a>(Auths<'a>);

impl<'de> DeserializeSeed<'de> for Auths<'_> {
    type Value = BTreeMap<String, Auth>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Auths<'_> {
    type Value = BTreeMap<String, Auth>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of registry locations")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some((location, entry)) = map.next_entry::<String, Entry>()? {
            let auth = entry.credentials().map_err(|why| A::Error::custom(format!("{location}: {why}")))?;
            if !may_be_for(&location_key(&location), self.0) {
                continue;
            }
            match auth {
                Some(auth) => kept.insert(location, auth),
                None => kept.remove(&location),
            };
            if kept.len() > MOST {
                return Err(A::Error::custom(too_many(self.0)));
            }
        }
        Ok(kept)
    }
}

impl<'de> Visitor<'de> for Config<'_> {
    type Value = BTreeMap<String, Auth>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a docker config")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut auths = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "auths" => auths = map.next_value_seed(self.0)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(auths)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    /// base64 of `username:password`; takes precedence over the two.
    auth: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl Keyring {
    /// For an image (see `ImageName::family`).
    pub fn of(family: String) -> Keyring {
        Keyring { family, entries: BTreeMap::new(), count: 0, bytes: 0 }
    }

    /// Adds a Secret's `.dockerconfigjson` (type `kubernetes.io/dockerconfigjson`). Fails, adding nothing, if it is damaged.
    pub fn add_docker_config_json(&mut self, json: &[u8], secret: &SecretRef) -> Result<()> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let read = deserializer.deserialize_map(Config(Auths(&self.family)));
        let read = read.and_then(|auths| deserializer.end().map(|()| auths));
        self.add_all(read.map_err(|e| bad(".dockerconfigjson", e))?, secret)
    }

    /// Adds a Secret's legacy `.dockercfg` (type `kubernetes.io/dockercfg`): only the `auths` map. Fails, adding nothing, if it is
    /// damaged.
    pub fn add_dockercfg(&mut self, json: &[u8], secret: &SecretRef) -> Result<()> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let read = Auths(&self.family).deserialize(&mut deserializer);
        let read = read.and_then(|auths| deserializer.end().map(|()| auths));
        self.add_all(read.map_err(|e| bad(".dockercfg", e))?, secret)
    }

    fn add_all(&mut self, auths: BTreeMap<String, Auth>, secret: &SecretRef) -> Result<()> {
        let bytes: usize = auths.values().map(Auth::bytes).sum();
        if self.count + auths.len() > MOST || self.bytes + bytes > MOST_BYTES {
            return Err(ImageError::Invalid(format!("docker config: {}", too_many(&self.family))));
        }
        self.count += auths.len();
        self.bytes += bytes;
        let secret = Arc::new(secret.clone());
        for (location, auth) in auths {
            self.entries.entry(location_key(&location)).or_default().push((auth, secret.clone()));
        }
        Ok(())
    }

    /// Why a Secret was rejected, without details: the parser's message may quote its contents.
    pub fn refusal(&self, error: &ImageError) -> String {
        let many = too_many(&self.family);
        if error.to_string().contains(&many) { many } else { "it holds no valid docker config".to_owned() }
    }

    /// Every matching credential, most specific location first; empty means: pull anonymously.
    pub fn fitting(&self) -> Vec<(Auth, Arc<SecretRef>)> {
        // Reverse order puts `host/path` before `host`, like upstream's reversed index.
        let fits: Vec<(Auth, Arc<SecretRef>)> = self
            .entries
            .iter()
            .rev()
            .filter(|(location, _)| location_matches(location, &self.family))
            .flat_map(|(_, auths)| auths.clone())
            .collect();
        if fits.is_empty() {
            return self.entries.get(HUB).cloned().unwrap_or_default();
        }
        fits
    }
}

/// The location of docker's hub credentials: used for its images if there are no others.
const HUB: &str = "index.docker.io";

fn may_be_for(location: &str, family: &str) -> bool {
    let is_hubs = || matches!(family.split('/').next(), Some("docker.io" | HUB));
    location_matches(location, family) || (location == HUB && is_hubs())
}

fn too_many(family: &str) -> String {
    format!("more than {MOST} credentials for {family}, or {MOST_BYTES} bytes of them")
}

impl Entry {
    fn credentials(self) -> Result<Option<Auth>, String> {
        if let Some(token) = self.identitytoken.filter(|t| !t.is_empty()) {
            return Ok(Some(Auth::IdentityToken(token)));
        }
        if let Some(token) = self.registrytoken.filter(|t| !t.is_empty()) {
            return Ok(Some(Auth::RegistryToken(token)));
        }
        if let Some(auth) = self.auth.as_deref().map(str::trim).filter(|a| !a.is_empty()) {
            let bytes = STANDARD.decode(auth).or_else(|_| STANDARD_NO_PAD.decode(auth)).map_err(|e| e.to_string())?;
            let text = String::from_utf8(bytes).map_err(|_| "auth is not UTF-8".to_owned())?;
            let (username, password) = text.split_once(':').ok_or("auth is not user:password in base64")?;
            // Some tools pad the pair with NULs.
            let password = password.trim_matches('\0').to_owned();
            return Ok(Some(Auth::Basic { username: username.to_owned(), password }));
        }
        match (self.username, self.password) {
            (Some(username), Some(password)) => Ok(Some(Auth::Basic { username, password })),
            _ => Ok(None),
        }
    }
}

fn bad(what: &str, error: impl fmt::Display) -> ImageError {
    ImageError::Invalid(format!("docker config {what}: {error}"))
}

/// Strips the scheme and docker's legacy `/v1/`, `/v2/`: `https://index.docker.io/v1/` -> `index.docker.io`.
fn location_key(location: &str) -> String {
    let bare = location.strip_prefix("https://").or_else(|| location.strip_prefix("http://")).unwrap_or(location);
    let (host, path) = bare.find('/').map_or((bare, ""), |at| bare.split_at(at));
    let path = match path {
        "/v1" | "/v2" => "",
        _ if path.starts_with("/v1/") || path.starts_with("/v2/") => &path[3..],
        _ => path,
    };
    if path.len() <= 1 { host.to_owned() } else { format!("{host}{path}") }
}

/// Same port, same number of host labels with each glob matching, and a path prefix.
fn location_matches(location: &str, family: &str) -> bool {
    let split = |url: &str| {
        let (host, path) = url.find('/').map_or((url, ""), |at| url.split_at(at));
        let (host, port) = host.rsplit_once(':').map_or((host, ""), |(h, p)| (h, p));
        (host.to_owned(), port.to_owned(), path.to_owned())
    };
    let (want_host, want_port, want_path) = split(location);
    let (host, port, path) = split(family);
    let labels = |h: &str| h.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (want, have) = (labels(&want_host), labels(&host));
    want_port == port
        && path.starts_with(&want_path)
        && want.len() == have.len()
        && want.iter().zip(&have).all(|(glob, label)| glob_matches(glob.as_bytes(), label.as_bytes()))
}

/// `*` and `?` as in a shell, within one host label. The number of steps is at most the product of both lengths: only the last `*`
/// is backtracked.
fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // The position after the last `*`, and where in the text its remainder was last tried.
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match glob.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, from));
            }
            Some(&wanted) if wanted == b'?' || wanted == text[from] => (at, from) = (at + 1, from + 1),
            _ => {
                let Some((after, tried)) = star else { return false };
                star = Some((after, tried + 1));
                (at, from) = (after, tried + 1);
            }
        }
    }
    glob[at..].iter().all(|rest| *rest == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(family: &str) -> Keyring {
        Keyring::of(family.to_owned())
    }

    fn users(keyring: &Keyring) -> Vec<String> {
        let user = |(auth, _): &(Auth, Arc<SecretRef>)| match auth {
            Auth::Basic { username, password } => format!("{username}/{password}"),
            other => format!("{other:?}"),
        };
        keyring.fitting().iter().map(user).collect()
    }

    #[test]
    fn matching_is_upstreams() {
        let auth = |pair: &str| STANDARD.encode(pair);
        let json = format!(
            r#"{{"auths":{{
                "https://index.docker.io/v1/":{{"auth":"{}"}},
                "quay.io":{{"username":"q","password":"1"}},
                "quay.io/team":{{"username":"team","password":"2"}},
                "*.example.com:5000":{{"username":"glob","password":"3"}},
                "ghcr.io":{{"auth":"","identitytoken":"t0"}},
                "http://127.0.0.1:5000/v2/":{{"auth":"{}"}},
                "empty.io":{{}}
            }}}}"#,
            auth("hub:pass:word"),
            auth("local:x").trim_end_matches('='),
        );
        for (family, expected) in [
            ("docker.io/library/nginx", vec!["hub/pass:word"]),
            ("quay.io/other/app", vec!["q/1"]),
            ("quay.io/team/app", vec!["team/2", "q/1"]),
            ("a.example.com:5000/x", vec!["glob/3"]),
            ("a.example.com/x", vec![]),
            ("a.b.example.com:5000/x", vec![]),
            ("ghcr.io/x/y", vec!["IdentityToken"]),
            ("127.0.0.1:5000/x", vec!["local/x"]),
            ("empty.io/x", vec![]),
            ("evilquay.io/x", vec![]),
        ] {
            let mut keyring = of(family);
            keyring.add_docker_config_json(json.as_bytes(), &SecretRef::default()).unwrap();
            assert_eq!(users(&keyring), expected, "{family}");
        }
    }

    #[test]
    fn globs_match_as_in_a_shell_and_many_stars_take_no_longer() {
        for (glob, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("*b*", "abc", true),
            ("a?c*", "abc", true),
            ("**a", "bba", true),
            ("a*b*c", "axbxbxc", true),
        ] {
            assert_eq!(glob_matches(glob.as_bytes(), text.as_bytes()), expected, "{glob} {text}");
        }
        // 2^60 steps with full backtracking.
        assert!(!glob_matches(format!("{}b", "*a".repeat(60)).as_bytes(), "a".repeat(250).as_bytes()));
    }

    #[test]
    fn legacy_dockercfg_is_the_bare_map() {
        let mut keyring = of("r.io/x");
        let json = br#"{"r.io":{"username":"u","password":"p","email":"e"}}"#;
        keyring.add_dockercfg(json, &SecretRef::default()).unwrap();
        assert_eq!(users(&keyring), ["u/p"]);
    }

    /// A Secret has room for tens of thousands, and each pull reads all of its Pod's.
    #[test]
    fn what_is_for_other_images_is_not_kept() {
        let entry = |location: String| format!(r#""{location}":{{"username":"u","password":"p"}}"#);
        let others = (0..20_000).map(|n| entry(format!("r{n}.io")));
        let json = |entries: &mut dyn Iterator<Item = String>| {
            format!(r#"{{"HttpHeaders":{{}},"auths":{{{}}}}}"#, entries.collect::<Vec<_>>().join(","))
        };
        let mut keyring = of("r7.io/team/app");
        let secret = |name: &str| SecretRef { name: name.into(), ..SecretRef::default() };
        let all = json(&mut others.chain(["r7.io/team", "index.docker.io", "r7.io/else"].map(|l| entry(l.into()))));
        for name in ["a", "b"] {
            keyring.add_docker_config_json(all.as_bytes(), &secret(name)).unwrap();
        }
        let kept: Vec<&str> = keyring.entries.keys().map(String::as_str).collect();
        assert_eq!(kept, ["r7.io", "r7.io/team"]);
        let found = keyring.fitting();
        assert_eq!(found.iter().map(|(_, secret)| secret.name.as_str()).collect::<Vec<_>>(), ["a", "b", "a", "b"]);
        assert!(Arc::ptr_eq(&found[0].1, &found[2].1), "a Secret is named once");
    }

    /// As many as a Secret has room for may match, through different globs.
    #[test]
    fn an_image_has_no_more_credentials_than_are_worth_a_try() {
        let entries = |from: usize, to: usize| {
            let entry = |n: usize| format!(r#""{}.io":{{"username":"u{n}","password":"p"}}"#, "*".repeat(n + 1));
            format!("{{{}}}", (from..to).map(entry).collect::<Vec<_>>().join(","))
        };
        let mut keyring = of("r.io/x");
        let mut add = |from, to| {
            let added = keyring.add_dockercfg(entries(from, to).as_bytes(), &SecretRef::default());
            (
                added.map_err(|e| e.to_string().contains("more than 1000 credentials for r.io/x")),
                keyring.fitting().len(),
            )
        };
        assert_eq!(add(0, 1001), (Err(true), 0));
        assert_eq!(add(0, 600), (Ok(()), 600));
        assert_eq!(add(600, 1001), (Err(true), 600));
        assert_eq!(add(600, 1000), (Ok(()), 1000));
        // A few may be as long.
        let long = |count: usize| {
            let entry =
                |n: usize| format!(r#""r.io/{}":{{"registrytoken":"{}"}}"#, "x/".repeat(n), "t".repeat(200 << 10));
            of("r.io/x/x/x/x/x/x/x").add_dockercfg(
                format!("{{{}}}", (0..count).map(entry).collect::<Vec<_>>().join(",")).as_bytes(),
                &SecretRef::default(),
            )
        };
        assert!(long(5).is_ok());
        assert!(long(6).unwrap_err().to_string().contains("or 1048576 bytes of them"));
    }

    #[test]
    fn damaged_configs_are_named() {
        for bad in [&br#"{"auths":{"r.io":{"auth":"%%"}}}"#[..], br#"{"auths":{"r.io":{"auth":"bm9jb2xvbg=="}}}"#, b"["]
        {
            let error = of("other.io/x").add_docker_config_json(bad, &SecretRef::default()).unwrap_err();
            assert!(error.to_string().starts_with("docker config "), "{error}");
        }
    }

    #[test]
    fn secrets_do_not_leak_into_debug() {
        let auth = Auth::Basic { username: "u".into(), password: "hunter2".into() };
        assert!(!format!("{auth:?}").contains("hunter2"));
    }
}
