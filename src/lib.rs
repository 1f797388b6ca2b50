//! Podwright: Kubernetes manifests on a bare Linux host, with no container runtime.
//!
//! The modules in reading order:
//!
//! - [`api`]: the objects: kinds, schemas, defaults, validation, selectors, patches. Pure; no I/O.
//! - [`store`]: revisioned keys to JSON bytes; knows no kinds.
//! - [`server`]: the API server: one request/response pipeline over the store, and its faces.
//! - [`client`]: typed calls over two transports, informers, leases.
//! - [`controllers`], [`scheduler`]: loops that read informers, compute a plan, and write through the client.
//! - [`node`]: the agent: one worker per Pod; observe, plan (pure), execute on `podwright-runtime`.
//! - [`proxy`]: Services and EndpointSlices compiled to what `podwright-net` loads.
//! - [`cli`], [`cmd`]: the client's commands; the processes that put the parts together.

pub mod api;
pub mod cli;
pub mod client;
pub mod cmd;
pub mod controllers;
pub mod node;
pub mod proxy;
pub mod scheduler;
pub mod server;
pub mod store;
