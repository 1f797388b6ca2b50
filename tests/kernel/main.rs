//! Tests of one kernel primitive at a time, as root, each in namespaces of its own.

mod claims;
mod image;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../support/registry.rs"]
mod image_registry;
mod net_dns;
mod net_links;
mod net_proxy;
mod net_services;
mod net_world;
mod runtime;
mod runtime_more;
mod runtime_removal;
mod runtime_usage;
mod volumes;
