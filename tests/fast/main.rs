//! Unprivileged tests: pure functions, golden files, properties, the simulated control plane. They take seconds.

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
