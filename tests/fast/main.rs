//! Tests without privilege: pure functions, golden files, properties, the simulated control plane. Seconds.

mod api;
mod architecture;
mod controllers;
#[path = "../support/etcd.rs"]
mod etcd;
mod events;
mod fuzz;
mod informer;
mod node;
mod older;
mod proxy;
mod scheduler;
mod server;
mod simulation;
mod store;
mod stream;
#[path = "../support/twisted.rs"]
mod twisted;
mod work;
