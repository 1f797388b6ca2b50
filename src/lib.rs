//! Podwright: Kubernetes manifests on a bare Linux host, with no container runtime.
//!
//! Each folder of `src/` but `cmd` is a crate, and so are `runtime`, `net` and those within them: Cargo keeps the edges between them
//! (its manifest names what a crate may know), and a change builds what depends on it alone. In reading order:
//!
//! - [`api`]: the objects: kinds, schemas, defaults, validation, selectors, patches. Pure; no I/O.
//! - [`store`]: revisioned keys to JSON bytes; knows no kinds. It judges the certificates of an etcd by `podwright-tls`, as all do.
//! - [`server`]: the API server: one request/response pipeline over the store, and its faces: JSON-RPC, and the REST that
//!   kubectl and the client libraries speak.
//! - [`client`]: typed calls over two transports, informers, leases.
//! - [`controllers`], [`scheduler`]: loops that read informers, compute a plan, and write through the client.
//! - [`node`]: the agent: one worker per Pod; observe, plan (pure), execute on `podwright-runtime`.
//! - [`proxy`]: Services and EndpointSlices compiled to what `podwright-net` loads.
//! - [`cli`]: the client's commands.
//! - [`cmd`], in this package: the processes that put the parts together.
//!
//! A request comes in by the Unix socket or by TLS (`server::listen`), and is recognized (`server::rest::authenticate`). A
//! face turns it into the one `api::Request`; `Server::handle` authorizes, admits, validates, writes; the face turns the
//! answer back. What needs a node (logs, exec, port-forward, proxy) becomes a session: the node's agent dials back, and the
//! face re-frames the bytes.

#![deny(unsafe_code)]

pub mod cmd;

pub use podwright_api as api;
pub use podwright_cli as cli;
pub use podwright_client as client;
pub use podwright_controllers as controllers;
pub use podwright_node as node;
pub use podwright_proxy as proxy;
pub use podwright_scheduler as scheduler;
pub use podwright_server as server;
pub use podwright_store as store;

/// A write's memory is taken by the task that reads it, and given back by the store's thread or the watch cache, a little
/// later. With glibc's allocator these wait for each other's arenas: on two CPUs half as many writes a second.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How the allocator begins: able to sample who allocates, which it does only while a heap profile is asked for. What stands in
/// `_RJEM_MALLOC_CONF` comes after it.
#[allow(unsafe_code, reason = "the allocator reads its settings from a symbol of this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &[u8; 46] = b"prof:true,prof_active:false,lg_prof_sample:19\0";
