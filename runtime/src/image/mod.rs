//! Images: a content-addressed store of configs and unpacked layers, filled from registries and archives.
//!
//! ```text
//! <dir>/lock                        one process at a time owns the store
//! <dir>/blobs/sha256/<hex>          manifests, indexes and configs
//! <dir>/downloads/<hex>.<hex>       layers by source, until they are unpacked: a manifest's layer is never mistaken for a document
//! <dir>/layers/<chainID hex>/fs     a layer unpacked for overlayfs
//! <dir>/layers/<chainID hex>/done   written after the layer has reached the disk: without it the layer is a leftover
//! <dir>/refs/<sha256 of name>       one name (a tag or a digest) -> target and manifest digest, whether it was pulled,
//!                                   and the image in few words
//! <dir>/pulled/<image id hex>       whose credentials a registry has accepted for the image
//! <dir>/tmp/                        temporary items; emptied by `open`
//! ```
//!
//! Reading order: [`name`] (what people write), [`model`] and [`store`] (what others see), [`disk`], [`folders`] and [`top`] (what is
//! there), [`refs`] and [`publish`] (what it is called), [`collect`] (what goes), [`manifest`], [`config`], [`unpack`], [`attributes`], [`directories`] and [`view`] (layers), [`limits`] (what an image may cost),
//! [`archive`] (import, load), [`pulls`], [`job`], [`pull`], [`download`], [`registry`] and [`http`] (registries), [`guard`] (where they may lead us),
//! [`auth`] (docker configs), [`pulled`] (who may use what was pulled), [`user`] (`USER`).

mod archive;
mod attributes;
pub mod auth;
mod collect;
mod config;
mod digest;
mod directories;
mod disk;
mod download;
mod error;
mod folders;
pub mod fuzz;
mod guard;
mod http;
mod job;
mod limits;
mod lock;
mod manifest;
mod model;
mod name;
mod publish;
mod pull;
mod pulled;
mod pulls;
mod refs;
mod registry;
mod store;
mod tarball;
mod top;
mod unpack;
mod user;
mod view;

pub use auth::{Auth, Keyring, SecretRef};
pub use error::ImageError;
pub use limits::Options;
pub use model::{Image, ImageInfo, ImportOptions, Progress, PullEvent, Removed};
pub use name::ImageName;
pub use pulled::{Access, Grant, MAX_SECRETS, Provenance, PullSecret};
pub use store::ImageStore;
pub use user::{UserIds, resolve_user};

pub type Result<T, E = ImageError> = std::result::Result<T, E>;

/// Makes ring the process's TLS provider; does nothing when one is installed already.
pub fn install_crypto() {
    // Err means that one was installed concurrently, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
