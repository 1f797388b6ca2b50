//! Tests of one kernel primitive at a time, as root, each in namespaces of its own.

mod net_links;
mod net_services;
mod net_world;
