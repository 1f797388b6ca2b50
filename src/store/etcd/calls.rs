//! Calls to etcd: to one of its members at a time, with a deadline, and to another one where that fails.
//!
//! What only reads is tried again until there is an answer, or the time is up. What writes is sent once: after an error nobody knows
//! whether it has happened, unless there was no connection to send it by.

use std::{
    error::Error as _,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, KvClient, ResponseHeader, WatchClient};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::dial::{self, Tls};
use crate::Error;

/// How long one attempt may take. (A member that has lost the others answers so after 7 s.)
const ATTEMPT: Duration = Duration::from_secs(8);
/// For how long a call is tried again.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What lies between two attempts: it doubles.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// As etcd's own clients: the answer's size is bounded by what is asked for.
const LARGEST: usize = i32::MAX as usize;

/// Which etcd, and how it is reached.
#[derive(Clone, Debug)]
pub struct Config {
    /// URLs of its members.
    pub servers: Vec<String>,
    /// What every key of the store begins with.
    pub root: String,
    /// What stands in its place in etcd.
    pub prefix: String,
    /// For URLs of `https`.
    pub tls: Option<Tls>,
    /// A folder for a backup while it is read.
    pub scratch: PathBuf,
    /// How long the changes up to a revision may take to come by themselves, before a marker is written to see them by.
    pub grace: Duration,
}

impl Default for Config {
    fn default() -> Config {
        let (servers, root, prefix, tls) = Default::default();
        Config { servers, root, prefix, tls, scratch: std::env::temp_dir(), grace: Duration::from_millis(30) }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub enum Failure {
    /// The revision is older than what etcd has kept.
    Compacted,
    /// The revision has not happened yet.
    Future,
    /// Another member may answer, or this one later. `is_unsent`: it has not been heard.
    Transient {
        why: String,
        is_unsent: bool,
    },
    Other(Error),
}

impl Failure {
    /// As the store's error, where there is nothing more to say.
    pub fn error(self) -> Error {
        match self {
            Failure::Compacted => Error::Io("etcd: the revision has been compacted".to_owned()),
            Failure::Future => Error::Io("etcd: the revision is in the future".to_owned()),
            Failure::Transient { why, .. } => Error::Unavailable(why),
            Failure::Other(error) => error,
        }
    }
}

impl From<etcd_client::Error> for Failure {
    fn from(error: etcd_client::Error) -> Failure {
        let etcd_client::Error::GRpcStatus(status) = &error else {
            return Failure::Transient { why: format!("etcd: {error}"), is_unsent: false };
        };
        let (code, said) = (status.code(), status.message());
        let why = format!("etcd: {said}");
        let large = ["request is too large", "too many operations in txn", "larger than max"];
        match code {
            Code::OutOfRange if said.contains("compacted") => Failure::Compacted,
            Code::OutOfRange if said.contains("future revision") => Failure::Future,
            _ if large.iter().any(|text| said.contains(text)) => Failure::Other(Error::TooLarge(why)),
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented => Failure::Other(Error::Io(why)),
            Code::ResourceExhausted if said.contains("database space exceeded") => {
                Failure::Other(Error::Io(format!("{why} (compact and defragment it, then disarm its alarm)")))
            }
            // Too many requests, no leader, a lost connection, one that is gone in the middle of it.
            _ => Failure::Transient { why: format!("etcd: {}", reason(status)), is_unsent: is_unsent(status) },
        }
    }
}

/// What a status says, with what has caused it.
fn reason(status: &tonic::Status) -> String {
    let (mut text, mut source) = (status.message().to_owned(), status.source());
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

/// Whether there was not even a connection.
fn is_unsent(status: &tonic::Status) -> bool {
    let mut source = status.source();
    while let Some(cause) = source {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// One member.
struct Member {
    url: String,
    client: Client,
}

/// All members, one of which is asked.
pub struct Calls {
    members: Vec<Member>,
    current: AtomicUsize,
    /// The cluster that has answered first: another one is no other member.
    cluster: OnceLock<u64>,
}

impl Calls {
    /// Connects to nobody yet.
    pub async fn new(config: &Config) -> Result<Calls, Error> {
        check(config)?;
        let tls = config.tls.as_ref().map(dial::connector).transpose()?;
        // A member that has lost the others says so, instead of keeping silent.
        let options = ConnectOptions::new().with_require_leader(true);
        let mut members = Vec::with_capacity(config.servers.len());
        for url in &config.servers {
            let client = Client::from_channel(dial::channel(url, tls.as_ref())?, Some(options.clone())).await;
            let client = client.map_err(|why| Error::Io(format!("etcd: {url}: {why}")))?;
            members.push(Member { url: url.clone(), client });
        }
        Ok(Calls { members, current: AtomicUsize::new(0), cluster: OnceLock::new() })
    }

    /// The member to ask: its number, and the way to it.
    fn member(&self) -> (usize, &Member) {
        let current = self.current.load(Relaxed) % self.members.len();
        (current, &self.members[current])
    }

    /// The way to the member to ask, for calls that go on for long.
    pub fn client(&self) -> Client {
        self.member().1.client.clone()
    }

    /// Asks another one from now on, unless somebody else has just had that idea.
    fn rotate(&self, from: usize) {
        let next = (from + 1) % self.members.len();
        let _ = self.current.compare_exchange(from, next, Relaxed, Relaxed);
    }

    /// For a watch, which is a call without an end; `rotate` says that it was none to go on with.
    pub fn watcher(&self) -> (WatchClient, Rotate<'_>) {
        let (number, member) = self.member();
        (member.client.watch_client().max_decoding_message_size(LARGEST), Rotate { calls: self, number })
    }

    /// One attempt at the current member.
    async fn attempt<T, F>(&self, call: &impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let (number, member) = self.member();
        let failure = match timeout(ATTEMPT, call(member.client.clone())).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => Failure::from(error),
            Err(_) => {
                Failure::Transient { why: format!("etcd: no answer within {} s", ATTEMPT.as_secs()), is_unsent: false }
            }
        };
        Err(match failure {
            Failure::Transient { why, is_unsent } => {
                self.rotate(number);
                Failure::Transient { why: format!("{}: {why}", member.url), is_unsent }
            }
            lasting => lasting,
        })
    }

    async fn until_answered<T, F>(&self, call: impl Fn(Client) -> F, is_repeatable: bool) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let (until, mut pause) = (Instant::now() + TIMEOUT, RETRY.0);
        loop {
            match self.attempt(&call).await {
                Err(Failure::Transient { is_unsent, .. })
                    if (is_repeatable || is_unsent) && Instant::now() + pause < until =>
                {
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
                answer => return answer,
            }
        }
    }

    /// A call that changes nothing.
    pub async fn read<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.until_answered(call, true).await
    }

    /// A call that must not be made twice.
    pub async fn write<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.until_answered(call, false).await.map_err(|failure| match failure {
            Failure::Transient { why, is_unsent: false } => {
                Failure::Transient { why: format!("{why} (it may have been written)"), is_unsent: false }
            }
            other => other,
        })
    }

    /// Whether an answer is of the cluster that it should be of.
    pub fn check(&self, header: Option<&ResponseHeader>) -> Result<u64, Error> {
        let header = header.ok_or_else(|| Error::Io("etcd: an answer without a header".to_owned()))?;
        let wanted = *self.cluster.get_or_init(|| header.cluster_id());
        if header.cluster_id() != wanted {
            let found = header.cluster_id();
            return Err(Error::Damaged(format!("etcd: the cluster is {found:x}, and was {wanted:x}")));
        }
        u64::try_from(header.revision()).map_err(|_| Error::Io("etcd: a negative revision".to_owned()))
    }
}

/// The member that something was asked of.
pub struct Rotate<'a> {
    calls: &'a Calls,
    number: usize,
}

impl Rotate<'_> {
    /// It is asked no more for now.
    pub fn rotate(self) {
        self.calls.rotate(self.number);
    }

    pub fn url(&self) -> &str {
        &self.calls.members[self.number].url
    }
}

/// The calls about keys, for answers of any size.
pub fn keys_of(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(LARGEST)
}

/// Whether there are URLs, and what goes with them.
fn check(config: &Config) -> Result<(), Error> {
    if config.servers.is_empty() {
        return Err(Error::Io("etcd: no server is named".to_owned()));
    }
    for url in &config.servers {
        let wrong = match config.tls {
            Some(_) if !url.starts_with("https://") => "certificates are for URLs that begin with https://",
            None if url.starts_with("https://") => "an authority to check the server's certificate by is missing",
            None if !url.starts_with("http://") => "a URL begins with http:// or https://",
            _ => continue,
        };
        return Err(Error::Io(format!("etcd: {url}: {wrong}")));
    }
    Ok(())
}
