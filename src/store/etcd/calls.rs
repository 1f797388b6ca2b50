//! Calls to etcd: to one of its members at a time, with a deadline, and to another one on failure.
//!
//! Reads are retried until they succeed or the time is up. Writes are sent once: after an error it is unknown whether they
//! happened, unless there was no connection to send them on.

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

/// The time limit of one attempt. (A member without quorum reports so after 7 s.)
const ATTEMPT: Duration = Duration::from_secs(8);
/// How long a call is retried.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The delay between two attempts, which doubles.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// As in etcd's own clients: requests bound the size of responses.
const LARGEST: usize = i32::MAX as usize;

/// The etcd cluster, and how to connect to it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The URLs of its members.
    pub servers: Vec<String>,
    /// The prefix of every key in the store.
    pub root: String,
    /// Its replacement in etcd.
    pub prefix: String,
    /// For `https` URLs.
    pub tls: Option<Tls>,
    /// A directory for backups in progress.
    pub scratch: PathBuf,
    /// How long to wait for changes up to a revision before a marker is written to force one.
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
    /// The revision was compacted.
    Compacted,
    /// The revision has not happened yet.
    Future,
    /// Another member may respond, or this one later. `is_unsent`: it was not received.
    Transient {
        why: String,
        is_unsent: bool,
    },
    Other(Error),
}

impl Failure {
    /// As a store error, without further detail.
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
            // Too many requests, no leader, a connection lost or closed during the call.
            _ => Failure::Transient { why: format!("etcd: {}", reason(status)), is_unsent: is_unsent(status) },
        }
    }
}

/// The message of a status, with its causes.
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

/// All members, one of which is used.
pub struct Calls {
    members: Vec<Member>,
    current: AtomicUsize,
    /// The id of the first cluster that responded: members must not belong to another.
    cluster: OnceLock<u64>,
}

impl Calls {
    /// Does not connect yet.
    pub async fn new(config: &Config) -> Result<Calls, Error> {
        check(config)?;
        let tls = config.tls.as_ref().map(dial::connector).transpose()?;
        // A member without quorum returns an error instead of blocking.
        let options = ConnectOptions::new().with_require_leader(true);
        let mut members = Vec::with_capacity(config.servers.len());
        for url in &config.servers {
            let client = Client::from_channel(dial::channel(url, tls.as_ref())?, Some(options.clone())).await;
            let client = client.map_err(|why| Error::Io(format!("etcd: {url}: {why}")))?;
            members.push(Member { url: url.clone(), client });
        }
        Ok(Calls { members, current: AtomicUsize::new(0), cluster: OnceLock::new() })
    }

    /// The current member: its index and client.
    fn member(&self) -> (usize, &Member) {
        let current = self.current.load(Relaxed) % self.members.len();
        (current, &self.members[current])
    }

    /// The client of the current member, for long-running calls.
    pub fn client(&self) -> Client {
        self.member().1.client.clone()
    }

    /// Switches to another member, unless that just happened concurrently.
    fn rotate(&self, from: usize) {
        let next = (from + 1) % self.members.len();
        let _ = self.current.compare_exchange(from, next, Relaxed, Relaxed);
    }

    /// For a watch, a call without an end; `rotate` reports the member as unusable.
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

    /// A call that must not be repeated.
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

    /// Whether a response is from the expected cluster.
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

/// The member that was called.
pub struct Rotate<'a> {
    calls: &'a Calls,
    number: usize,
}

impl Rotate<'_> {
    /// Stops using it for now.
    pub fn rotate(self) {
        self.calls.rotate(self.number);
    }

    pub fn url(&self) -> &str {
        &self.calls.members[self.number].url
    }
}

/// The KV client, for responses of any size.
pub fn keys_of(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(LARGEST)
}

/// Whether there are URLs, with the required settings.
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
