//! The API server: one pipeline for every request, generic over kind.
//!
//! A request is resolved ([`resolved_request`]) and authorized ([`authorize`]), then its verb's file runs it ([`pipeline`]). A
//! write passes admission ([`admission`]), decoding, defaulting and validation (`api`), and ends in one store transaction
//! ([`transact`]). Reads and watches are served from the watch cache ([`cache`]), metrics from what nodes report ([`usage`]).
//! [`aggregator`] covers what others serve. Faces ([`rpc`], [`rest`]) are codecs onto [`Server::handle`] and [`Server::watch`];
//! the [`audit`] log records what passes there. [`limits`] bound concurrent work, [`large`] requests run beside the others, and
//! [`encryption`] sits between all of it and the store.
//!
//! # What is in one server's memory
//!
//! Several servers may share a store. All authoritative state is in it: objects, allocations, quota charges, Leases, token keys. A
//! write compares what it depends on there, so it detects another server's concurrent write; a read waits until the cache shows
//! everything acknowledged to anybody ([`cache`]). A server's memory holds only the following. (An agent knows one server today;
//! what is said of agents describes their behaviour with several.)
//!
//! | what | its contract with several servers |
//! |---|---|
//! | [`cache`], the indexes of [`authorize`], [`admission`]'s programs | follows the store: always the state of some revision, and of the newest for readers that wait for it |
//! | [`admission`]'s locks, [`behind`] | avoids futile attempts and decides nothing: the transaction does |
//! | [`limits`], [`sessions`], [`answers`], [`large`] | limits of this process; several servers multiply them |
//! | [`usage`]: the nodes' last reports | the agent reports to every server, as it has a connection to each; a server without a report answers that there are no metrics, never old ones |
//! | [`streams`]: sessions, and nodes' subscriptions | an id belongs to the server that issued it, for one dial within seconds; the agent subscribes with every server, and dials back where it was asked |
//! | [`trace`]: the writes of recent objects | what this server has accepted, by revision: the complete history is that of all servers, merged by revision |
//! | [`tokens`]' verified ones, [`aggregator`]'s discovery | cached for seconds to minutes, then refreshed |
//! | [`component_status`], [`slis`], [`metrics`], [`audit`] | of this process, and reported as such |

#![forbid(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

use podwright_api::kinds::registry::Kinds;
use podwright_api::{Env, Status, WatchEvent};
use podwright_store::Store;

mod admission;
mod aggregator;
mod allocate;
mod answers;
pub mod audit;
mod authorities;
mod authorize;
mod backup;
mod behind;
mod bootstrap;
mod burdens;
mod cache;
mod calls;
pub mod certificates;
mod component_status;
mod config;
mod connect;
mod create;
mod custom;
mod delete;
mod deletecollection;
mod dial;
mod discover;
mod documents;
mod encode;
pub mod encryption;
mod endpoints;
mod ends;
mod evict;
mod external_ips;
mod extract;
mod faces;
mod fields;
mod frames;
pub mod fuzz;
mod get;
mod health;
mod hello;
mod housekeeping;
mod impersonate;
mod in_flight;
mod large;
mod lately;
mod limits;
mod linger;
mod list;
pub mod listen;
mod lookups;
mod messages;
mod metrics;
mod notes;
mod patch;
mod pipeline;
pub mod pki;
pub mod profiling;
mod protections;
mod reservation;
mod resolved_request;
pub mod rest;
pub mod restored;
mod retries;
mod review;
pub mod rpc;
mod sessions;
mod slis;
mod streams;
mod subresources;
mod tasks;
mod timestamp;
mod tokens;
mod trace;
mod traced;
mod transact;
mod unopened;
mod unread;
mod update;
mod usage;
mod versions;
mod watch;
mod webhook;
mod why;
mod write_scope;

pub use admission::{Disabled as DisabledAdmission, PluginsError, PodSecurity, TolerationSeconds};
pub use authorize::{Mode as AuthorizationMode, ModeError};
pub use bootstrap::default_dns_address;
pub use component_status::Runs;
pub use config::{Config, Confinement};
pub use endpoints::AdvertiseAddress;
pub use impersonate::Impersonation;
pub use limits::Limits;
pub use sessions::SessionLimits;
pub use tokens::{Authenticated, ISSUER, Oidc, OidcConfig, StaticTokens};

use authorize::Authorizer;
use cache::Cache;
use streams::Streams;
use tokens::Signer;
use trace::Trace;

/// Events of one watch, in order. The channel closes when the watch ends; an `Error` event has the reason.
pub type Watch = tokio::sync::mpsc::Receiver<WatchEvent>;

/// An API server over a store. Share it with `Arc`.
pub struct Server {
    store: Arc<dyn Store>,
    /// The store below encryption, with the raw values.
    raw: Arc<dyn Store>,
    env: Env,
    config: Config,
    cache: Arc<Cache>,
    authorizer: Arc<Authorizer>,
    streams: Arc<Streams>,
    sessions: Arc<sessions::Sessions>,
    signer: Signer,
    verified: tokens::Verified,
    trace: Trace,
    advertised: tokio::sync::watch::Sender<Option<AdvertiseAddress>>,
    namespace_locks: admission::NamespaceLocks,
    programs: admission::Programs,
    limiters: limits::Limiters,
    answers: Arc<answers::Answers>,
    large: large::LargeRequests,
    /// Objects in other versions and forms, and as JSON-RPC sends them.
    shown: lately::Lately<Bytes>,
    for_rpc: lately::Lately<Arc<RawValue>>,
    away: limits::Away,
    usages: usage::Usages,
    parts: component_status::Parts,
    aggregator: aggregator::Aggregator,
    documents: documents::Slots,
    slis: slis::Slis,
    tasks: tasks::Tasks,
    /// A reference to itself, for background tasks.
    me: std::sync::Weak<Server>,
}

impl Server {
    /// Opens the server: fills the watch cache and creates what must always exist (namespaces, the `kubernetes` Service).
    pub async fn open(store: Arc<dyn Store>, env: Env, config: Config) -> Result<Arc<Server>, Status> {
        let raw = store.clone();
        let sealed =
            config.encryption.clone().map(|rules| Arc::new(encryption::Sealed::over(store.clone(), rules, &env)));
        let store = sealed.clone().map_or(store, |sealed| sealed as Arc<dyn Store>);
        let (cache, feed) = Cache::open(store.clone()).await?;
        let tasks = tasks::Tasks::default();
        tasks.add(tokio::spawn(feed));
        let authorizer = Arc::new(Authorizer::new(&cache, config.authorization.clone()));
        let streams = Arc::default();
        let sessions = sessions::Sessions::new(config.limits.sessions);
        let signer = Signer::open(&*store, &env).await?;
        let trace = Trace::default();
        let (verified, advertised, namespace_locks, programs, usages, parts, aggregator, slis) = Default::default();
        let limiters = limits::Limiters::new(&config.limits);
        let answers = answers::Answers::new(&config.limits);
        let large = large::LargeRequests::new(&config.limits);
        let away = limits::Away::new(&config.limits, large.places());
        let server = Arc::new_cyclic(|me| Server {
            store,
            raw,
            env,
            config,
            cache,
            authorizer,
            streams,
            sessions,
            signer,
            verified,
            trace,
            advertised,
            namespace_locks,
            programs,
            limiters,
            answers,
            large,
            shown: lately::Lately::default(),
            for_rpc: lately::Lately::default(),
            away,
            usages,
            parts,
            aggregator,
            documents: documents::Slots::default(),
            slis,
            tasks,
            me: me.clone(),
        });
        server.create_initial_objects().await?;
        server.start_housekeeping();
        if let Some(sealed) = sealed {
            server.start_resealing(sealed);
        }
        server.start_aggregation();
        server.start_certificates();
        server.start_endpoints();
        server.start_definitions();
        server.start_aggregator();
        Ok(server)
    }

    /// The current kinds.
    pub fn kinds(&self) -> Arc<Kinds> {
        self.cache.kinds.now()
    }

    /// Ends the server's own loops. After that only its callers use the store, which may be closed.
    pub async fn stop(&self) {
        self.tasks.end().await;
    }
}

/// A store error as the client sees it.
fn store_error(error: podwright_store::Error) -> Status {
    use podwright_store::Error;
    match error {
        Error::Compacted { .. } => Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter.",
        ),
        Error::Future { asked, now } => Status::timeout(format!("Too large resource version: {asked}, current: {now}")),
        Error::Lagged => Status::expired("the watch fell too far behind"),
        Error::TooLarge(why) => {
            Status::failure(413, "RequestEntityTooLarge", format!("Request entity too large: {why}"))
        }
        Error::Unavailable(_) => Status::timeout(error.to_string()),
        Error::Damaged(_) | Error::Io(_) => Status::internal(error),
    }
}
