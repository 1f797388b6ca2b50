//! The objects of the API: kinds, schemas, defaults, validation, selectors, quantities, patches. Pure: no I/O.
//!
//! `Object` is an object as the server and the store represent it, an untyped JSON tree; the `k8s_openapi` types are views of it
//! for controllers, scheduler and agent. `kinds::KINDS` is the table that everything generic reads.
//!
//! A write goes through these in order: `Kind::decode` (field types, unknown fields), `strategy::prepare_*` (fields that a writer
//! may not set), the kind's defaults, `strategy::validate_*` (all rules), and back to JSON.

#![forbid(unsafe_code)]

pub mod app_armor;
pub mod bootstrap_token;
pub mod bounded;
pub mod capabilities;
pub mod cel;
pub mod cluster_info;
pub mod columns;
pub mod configuration;
pub mod cron;
pub mod defaults;
pub mod discovered;
pub mod duplicates;
pub mod duration;
pub mod env;
pub mod field_path;
pub mod instruments;
pub mod int_or_string;
pub mod jsonpath;
pub mod kinds;
pub mod load_balancer;
pub mod managed_fields;
pub mod metrics;
pub mod namespace_identity;
pub mod node_networks;
pub mod node_selector;
pub mod object;
pub mod patch;
pub mod pattern;
pub mod persistent_volume;
pub mod pod;
pub mod pod_identity;
pub mod pod_references;
pub mod pod_resources;
pub mod pod_totals;
pub mod pod_warnings;
pub mod policy;
pub mod process;
pub mod protections;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod request;
pub mod root_ca;
pub mod rpc;
pub mod scale;
pub mod schema;
pub mod selector;
pub mod shares;
pub mod signal;
pub mod spans;
pub mod status;
pub mod strategy;
pub mod stream;
pub mod structural;
pub mod sysctls;
pub mod validation;
pub mod version;
mod view;
pub mod watermark;
pub mod yaml;

pub use env::Env;
pub use kinds::Kind;
pub use object::Object;
pub use quantity::Quantity;
pub use request::{FieldValidation, Options, Request, Response, User, Verb, WatchEvent};
pub use status::{Cause, Status};
pub use watermark::Watermark;
