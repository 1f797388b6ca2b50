//! Whole nodes on one machine, each in a network namespace of its own, driven as a user drives them.

#[path = "../support/mod.rs"]
mod support;

mod api_access;
mod attacks;
mod autoscale;
mod bad_input;
mod chaos;
mod clients;
mod commands;
mod confined_server;
mod containers;
mod control_plane;
mod descriptors;
mod disruption;
mod ephemeral_storage;
mod healing;
mod host;
mod images;
mod jobs;
mod kubectl;
mod large_requests;
mod leader;
mod limits;
mod local_volumes;
mod main_path;
mod metrics;
mod names;
mod node;
mod node_loss;
mod private_images;
mod probes;
mod project_quotas;
mod refused_pods;
mod reset;
mod resize;
mod rolling;
mod scheduling;
mod security;
mod services;
mod sets;
mod several_nodes;
mod static_pods;
mod storage;
mod user_namespaces;
mod volumes;
