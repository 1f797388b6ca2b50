//! Tests of one kernel primitive at a time, as root, each in its own namespaces.

mod claims;
mod confine;
mod hidden;
mod image;
mod image_archives;
mod image_hostile;
mod image_limits;
mod image_pulls;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../support/registry.rs"]
mod image_registry;
mod local_volumes;
mod memory_volumes;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../support/missing.rs"]
mod missing;
mod net_announce;
mod net_carriers;
mod net_conflicts;
mod net_dns;
mod net_errors;
mod net_forged;
mod net_given;
mod net_gone;
mod net_healing;
mod net_hostile;
mod net_links;
mod net_overlay;
mod net_partition;
mod net_policies;
mod net_proxy;
mod net_scarce;
mod net_services;
mod net_shares;
mod net_world;
mod power_cut;
mod removals;
mod runtime;
mod runtime_child;
mod runtime_damage;
mod runtime_more;
mod runtime_newborn;
mod runtime_pause;
mod runtime_peers;
mod runtime_removal;
mod runtime_sessions;
mod runtime_usage;
mod runtime_users;
mod sockets;
mod storage;
mod store_full;
#[path = "../support/sweep.rs"]
mod sweep;
mod volumes;
