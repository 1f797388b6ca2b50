//! Tests without privilege: pure functions, golden files, properties, the simulated control plane. Seconds.

mod api;
mod proxy;
mod server;
mod store;
mod stream;
