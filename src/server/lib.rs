//! The API server: one pipeline for every request, generic over kind.
//!
//! A request is resolved ([`resolved_request`]) and authorized ([`authorize`]), then its verb's file runs it. A write passes
//! admission ([`admission`]), decoding, defaulting and validation (`api`), and ends in one store transaction ([`transact`]). Reads
//! and watches are served from the watch cache ([`cache`]), metrics from what nodes report ([`usage`]). [`aggregator`] covers what
//! others serve. Faces ([`rpc`], [`rest`]) are codecs onto [`Server::handle`] and [`Server::watch`]; the [`audit`] log records what
//! passes there. [`limits`] bound concurrent work, [`large`] requests run beside the others, and [`encryption`] sits between all of
//! it and the store.
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
use tokio::sync::mpsc;

use podwright_api::kinds::{Storage, registry::Kinds};
use podwright_api::load_balancer::Pool;
use podwright_api::request::Body;
use podwright_api::rpc::Session;
use podwright_api::spans::Span;
use podwright_api::{Env, Object, Request, Response, Status, User, Verb, WatchEvent};
use podwright_store::Store;

mod admission;
mod aggregator;
mod allocate;
mod answers;
pub mod audit;
mod authorities;
mod authorize;
mod behind;
pub mod bench;
mod bootstrap;
mod cache;
mod calls;
pub mod certificates;
mod component_status;
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
mod messages;
mod metrics;
mod notes;
mod patch;
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
mod write_scope;

pub use admission::{Disabled as DisabledAdmission, PluginsError, PodSecurity, TolerationSeconds};
pub use authorize::{Mode as AuthorizationMode, ModeError};
pub use bootstrap::default_dns_address;
pub use component_status::Runs;
pub use endpoints::AdvertiseAddress;
pub use impersonate::Impersonation;
pub use limits::Limits;
pub use sessions::SessionLimits;
pub use tokens::{Authenticated, ISSUER, Oidc, OidcConfig, StaticTokens};

use authorize::{Attributes, Authorizer};
use cache::Cache;
use resolved_request::ResolvedRequest;
use sessions::With;
use streams::{Come, Streams};
use tokens::Signer;
use trace::Trace;

/// Events of one watch, in order. The channel closes when the watch ends; an `Error` event has the reason.
pub type Watch = tokio::sync::mpsc::Receiver<WatchEvent>;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The ranges of ClusterIPs, in order of preference (dual-stack: two).
    pub service_cidrs: Vec<ipnet::IpNet>,
    /// Where nodes answer DNS, as far as the server knows, besides the address of `kube-dns`: reserved for Services in
    /// `kube-system`.
    pub cluster_dns: Vec<std::net::IpAddr>,
    /// The range of NodePorts.
    pub node_ports: std::ops::RangeInclusive<u16>,
    /// Static bearer tokens.
    pub tokens: StaticTokens,
    /// An external issuer of bearer tokens.
    pub oidc: Option<Oidc>,
    /// The CA that signs certificates; without it none are signed.
    pub authority: Option<pki::Authority>,
    /// The client certificate for extension API servers; without it the server does not authenticate to them.
    pub front_proxy: Option<pki::FrontProxy>,
    /// The default tolerationSeconds of Pods for nodes that are not ready or not reachable.
    pub toleration_seconds: TolerationSeconds,
    /// The default Pod security standards, and exemptions.
    pub pod_security: PodSecurity,
    /// The disabled admission plugins.
    pub disabled_admission: DisabledAdmission,
    /// The authorizers, in order.
    pub authorization: Vec<AuthorizationMode>,
    /// What is encrypted in the store; `None`: nothing.
    pub encryption: Option<Arc<encryption::Rules>>,
    /// The audit log; `None`: no log.
    pub audit: Option<Arc<audit::Audit>>,
    pub limits: Limits,
    /// The ranges of Pods' addresses: no node may report one of these, nor one of `service_cidrs`, as its own.
    pub cluster_cidrs: Vec<ipnet::IpNet>,
    /// The addresses that are given to Services of type LoadBalancer, if there are such: no Service names one as its own otherwise.
    pub load_balancer_pool: Option<Pool>,
    /// The TLS listen addresses, and how far the process is confined: reported to clients that ask for its protections.
    pub listening: Vec<std::net::SocketAddr>,
    pub confinement: Confinement,
    /// Whether a new cluster gets a StorageClass of the built-in provisioner.
    pub local_storage_class: bool,
    /// The process' flags, sorted by name, without secrets.
    pub flags: Vec<(String, String)>,
    /// The profiler of the process, if any.
    pub profiler: Option<Arc<dyn profiling::Profiler>>,
}

/// How far the server's process is confined, as far as the kernel does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    pub runs_node: bool,
    pub landlock: bool,
}

impl Default for Config {
    fn default() -> Config {
        // The invariant: a literal that parses.
        let service_cidrs = vec!["10.96.0.0/16".parse().expect("a valid CIDR")];
        Config {
            service_cidrs,
            cluster_dns: Vec::new(),
            node_ports: 30000..=32767,
            tokens: StaticTokens::default(),
            oidc: None,
            authority: None,
            front_proxy: None,
            toleration_seconds: TolerationSeconds::default(),
            pod_security: PodSecurity::default(),
            disabled_admission: DisabledAdmission::default(),
            authorization: AuthorizationMode::DEFAULT.to_vec(),
            encryption: None,
            audit: None,
            limits: Limits::default(),
            cluster_cidrs: Vec::new(),
            load_balancer_pool: None,
            listening: Vec::new(),
            confinement: Confinement::default(),
            local_storage_class: false,
            flags: Vec::new(),
            profiler: None,
        }
    }
}

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

    /// Ends the server's own loops. After that only its callers use the store, which may be closed.
    pub async fn stop(&self) {
        self.tasks.end().await;
    }

    /// All verbs but watch.
    pub async fn handle(&self, request: Request) -> Result<Response, Status> {
        match traced::begin(&request) {
            None => self.handle_audited(request).await,
            Some(span) => {
                // On the heap: untraced callers keep a small stack.
                let outcome = Box::pin(span.around(self.handle_audited(request))).await;
                traced::end(&span, &outcome);
                outcome
            }
        }
    }

    /// On the heap: callers keep a small stack.
    async fn handle_audited(&self, request: Request) -> Result<Response, Status> {
        let Some(entry) = self.config.audit.as_ref().and_then(|audit| audit.begin(&request, &self.kinds())) else {
            return Box::pin(self.dispatch(request, None)).await;
        };
        let (connects, origin) = (request.verb == Verb::Connect, request.origin.clone());
        let outcome = Box::pin(self.dispatch(request, Some(&entry))).await;
        match &outcome {
            Ok(_) if connects => entry.goes_on(101, origin.as_deref()),
            outcome => entry.end(outcome),
        }
        outcome
    }

    async fn dispatch(&self, request: Request, entry: Option<&audit::Entry>) -> Result<Response, Status> {
        let span = Span::current();
        let kinds = self.kinds();
        if let Some(to) = self.elsewhere(&request.resource, kinds.lookup(&request.resource)) {
            // On the heap: requests served here keep a small stack.
            return Box::pin(self.pass_on(to, request, entry)).await;
        }
        let call = ResolvedRequest::resolve(&kinds, request)?;
        span.part("Authorize", self.allow(&call.attributes(), entry)).await?;
        authorize::guard(self, &call).await?;
        let defines = matches!(call.kind.built_in(), "CustomResourceDefinition" | "APIService")
            && !matches!(call.verb, Verb::Get | Verb::List);
        let notes = call.notes.clone();
        let answer = match (call.version, custom::webhook_of(&call)) {
            // Boxed to save stack: it is moved into the measurement.
            (None, _) => span.part(traced::name(call.verb), Box::pin(self.run(call))).await,
            (Some(_), webhook) => {
                let asked = call.again();
                let answer = match webhook {
                    Some(webhook) => Box::pin(self.run_converted(call, &webhook)).await,
                    None => match self.run(call).await {
                        Ok(response) => Box::pin(self.answered(&asked, response)).await,
                        Err(why) => Err(why),
                    },
                };
                answer.map(|mut response| {
                    response.warnings.extend(custom::warning(&asked));
                    response
                })
            }
        };
        if defines {
            // Clients that changed what is served see the change in their next request.
            self.cache.fresh().await?;
        }
        if let Some(entry) = entry {
            entry.annotate(notes.annotations());
        }
        match answer {
            Ok(mut response) => {
                response.warnings.extend(notes.warnings());
                Ok(response)
            }
            Err(status) => Err(Status { warnings: notes.warnings(), ..status }),
        }
    }

    async fn run(&self, call: ResolvedRequest) -> Result<Response, Status> {
        if matches!(call.verb, Verb::Create | Verb::Update) {
            call.check_manager()?;
        }
        match (call.verb, call.subresource.as_deref()) {
            (Verb::Connect, _) => self.connect(&call).await,
            (_, Some(_)) => self.subresource(call).await,
            (Verb::Get | Verb::List, None) if call.kind.built_in() == "ComponentStatus" => {
                self.read_components(&call).await
            }
            (Verb::Get | Verb::List, None) if matches!(call.kind.storage, Storage::Nowhere) => {
                self.read_usage(&call).await
            }
            (Verb::Get, None) => self.get(&call).await,
            (Verb::List, None) => self.list(&call).await,
            (Verb::Create, None) => self.create(call).await,
            (Verb::Update, None) => self.update(call).await,
            (Verb::Patch, None) => self.patch(call).await,
            (Verb::Delete, None) => self.delete(&call).await,
            (Verb::DeleteCollection, None) => self.delete_collection(&call).await,
            (Verb::Watch, None) => Err(Status::bad_request("watch is a subscription")),
        }
    }

    /// Watches the objects that the request selects; see `api::Options` for where it starts.
    pub async fn watch(&self, request: Request) -> Result<Watch, Status> {
        let request = Request { verb: Verb::Watch, ..request };
        let entry = self.config.audit.as_ref().and_then(|audit| audit.begin(&request, &self.kinds()));
        let origin = request.origin.clone();
        let watch = Box::pin(self.dispatch_watch(request, entry.as_ref())).await;
        match (entry, &watch) {
            (Some(entry), Ok(_)) => entry.goes_on(200, origin.as_deref()),
            (Some(entry), Err(why)) => entry.end(&Err(why.clone())),
            (None, _) => {}
        }
        watch
    }

    async fn dispatch_watch(&self, request: Request, entry: Option<&audit::Entry>) -> Result<Watch, Status> {
        let kinds = self.kinds();
        if let Some(to) = self.elsewhere(&request.resource, kinds.lookup(&request.resource)) {
            return Box::pin(self.watch_elsewhere(to, request, entry)).await;
        }
        let mut call = ResolvedRequest::resolve(&kinds, request)?;
        self.allow(&call.attributes(), entry).await?;
        let fields = custom::own_fields(&mut call)?;
        let watch = self.open_watch(&call).await?;
        Ok(match custom::webhook_of(&call) {
            Some(webhook) => self.told_converted(call, webhook, fields, watch),
            None => self.told(call, watch),
        })
    }

    /// Authorizes, and records the decision for the audit log.
    async fn allow(&self, asked: &Attributes<'_>, entry: Option<&audit::Entry>) -> Result<(), Status> {
        let decided = self.authorize(asked).await;
        if let Some(entry) = entry {
            match &decided {
                Ok(()) => entry.decided(true, &self.authorizer.reason(asked)),
                Err(why) => entry.decided(false, audit::reason_of(why, asked)),
            }
        }
        decided
    }
}

/// For faces, in addition to the verbs.
impl Server {
    /// How many turns large requests have had so far.
    pub fn large_turns(&self) -> u64 {
        self.large.turns()
    }

    /// Refuses what its user may not do, before its body is read.
    async fn may_send(&self, request: &Request) -> Result<(), Status> {
        let call = ResolvedRequest::resolve(&self.kinds(), request.clone())?;
        let asked = call.attributes();
        let Err(why) = self.authorize(&asked).await else { return Ok(()) };
        if let Some(entry) = self.config.audit.as_ref().and_then(|audit| audit.begin(request, &self.kinds())) {
            entry.decided(false, audit::reason_of(&why, &asked));
            entry.end(&Err(why.clone()));
        }
        Err(why)
    }

    /// The current kinds.
    pub fn kinds(&self) -> Arc<Kinds> {
        self.cache.kinds.now()
    }

    /// Whether a request is for an existing kind, and its user is authorized.
    async fn may(&self, request: &Request) -> Result<(), Status> {
        self.authorize(&ResolvedRequest::resolve(&self.kinds(), request.clone())?.attributes()).await
    }

    /// The same with another verb: requests to nodes use the HTTP method's.
    async fn may_by(&self, request: &Request, verb: &str) -> Result<(), Status> {
        let call = ResolvedRequest::resolve(&self.kinds(), request.clone())?;
        self.authorize(&Attributes { verb, ..call.attributes() }).await
    }

    /// The account of a user's WebSocket, with the maximum size of its messages.
    fn messages(&self, user: &User, most: usize) -> messages::Messages {
        messages::Messages::new(self.limiters.bodies.of(user), most, self.config.limits.body)
    }

    /// The account of another connection of a user, for data that is buffered until it is consumed.
    fn account(&self, user: &User) -> Arc<limits::Account> {
        limits::Account::new(self.limiters.bodies.of(user), self.config.limits.body)
    }

    /// Reads an object with the server's own rights, and looks into it on behalf of the request's user.
    async fn read_as_server<T>(&self, request: Request, look: impl FnOnce(Object) -> T) -> Result<T, Status> {
        let (user, of) = (User::system("system:apiserver"), request.user.clone());
        match self.handle(Request { verb: Verb::Get, user, origin: None, ..request }).await?.body {
            Body::Object { bytes, .. } => {
                let looked = |_| async { Object::from_slice(&bytes).map(look) };
                self.large.part(&of, bytes.len(), looked).await?
            }
            _ => Err(Status::internal("get answered with no object")),
        }
    }

    /// The same for all objects of a list.
    async fn list_as_server(&self, request: Request) -> Result<Vec<Object>, Status> {
        let (user, of) = (User::system("system:apiserver"), request.user.clone());
        match self.handle(Request { verb: Verb::List, user, origin: None, ..request }).await?.body {
            Body::List(list) => {
                let size = list.items.iter().map(|item| item.len()).sum();
                let looked = |_| async { list.items.iter().map(|item| Object::from_slice(item)).collect() };
                self.large.part(&of, size, looked).await?
            }
            _ => Err(Status::internal("list answered with no list")),
        }
    }
}

/// Operations on the server as a whole.
impl Server {
    /// A node's new sessions from now on, for its agent.
    pub fn sessions(&self, user: &User, node: &str) -> Result<mpsc::Receiver<Session>, Status> {
        self.may_serve(user, node)?;
        Ok(self.streams.subscribe(node, &user.name))
    }

    /// Whether a user may serve the sessions of a node. A subscription is long-running: this is checked again.
    pub fn may_serve(&self, user: &User, node: &str) -> Result<(), Status> {
        let request = Request {
            verb: Verb::Connect,
            resource: "nodes".into(),
            name: Some(node.to_owned()),
            user: user.clone(),
            ..Request::default()
        };
        self.authorizer.authorize(&ResolvedRequest::resolve(&self.kinds(), request)?.attributes())
    }

    /// A consistent online backup of the store, as a stream to dial, which starts the copy. The caller stores it: the server writes
    /// to no path from a request.
    pub async fn backup(&self, user: &User) -> Result<String, Status> {
        let asked = Attributes::of_path(user, "post", "/backup");
        self.authorizer.authorize(&asked)?;
        let withdrawn = self.withdrawn(vec![asked.keep()]);
        let counted = self.sessions.enter(user, With { namespace: "", object: "backup", shared: false })?;
        let (id, caller) = self.streams.offer(&self.env, &user.name);
        let store = self.store.clone();
        let lost = counted.lasting();
        tokio::spawn(async move {
            let _counted = counted;
            let whole = async {
                let Some(Come { half, ended }) = caller.await else { return };
                let told = async {
                    match store.backup().await {
                        Ok(copy) => streams::send_file(half, copy).await,
                        Err(why) => streams::refuse(half, &store_error(why)).await,
                    }
                };
                tokio::select! {
                    () = told => {}
                    () = ended => {}
                }
            };
            tokio::select! {
                () = whole => {}
                () = withdrawn => {}
                () = lost.cancelled() => {}
            }
        });
        Ok(id)
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
