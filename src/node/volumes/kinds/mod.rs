//! The kinds of volumes that this node can set up: one row here, one file each. All operations on volumes go through these rows.
//!
//! ```text
//!   kind                                  where on the host       set up as   measured as
//!   emptyDir                              the Pod's folder        a folder    the Pod's use of the disk, or a file system of its own
//!   hostPath                              where it says           checked     nothing
//!   configMap                             the Pod's folder        files       the Pod's use of the disk
//!   secret, downwardAPI, projected        the Pod's tmpfs         files       nothing: `shares` bounds them
//!   persistentVolumeClaim, ephemeral      a link in the folder    a claim     a file system of its own
//! ```
//!
//! Files are updated with their objects, and restored when changed externally; other volumes are set up once. Whatever the kind,
//! the end of a Pod unmounts everything below its folder and removes its links.

pub mod config_map;
pub mod downward_api;
pub mod empty_dir;
mod ephemeral;
pub mod host_path;
mod persistent_volume_claim;
mod projected;
pub mod secret;

use std::{path::PathBuf, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Volume};
use podwright_runtime::sys::Kernel;

use super::{atomic::Payload, error::Result, held::HeldVolumes, payload::Room, tokens::Tokens};
use crate::{
    objects::What,
    spec::PodExt,
    translate::env::{Facts, Sources},
};

/// The table. Each volume is of exactly one kind; the server validates that.
pub static KINDS: &[Row] = &[
    config_map::ROW,
    downward_api::ROW,
    empty_dir::ROW,
    ephemeral::ROW,
    host_path::ROW,
    persistent_volume_claim::ROW,
    projected::ROW,
    secret::ROW,
];

/// The properties of a kind of volume.
pub struct Row {
    /// The field of upstream's `VolumeSource`.
    pub field: &'static str,
    /// Whether a volume has that field.
    pub is: fn(&Volume) -> bool,
    pub location: Location,
    pub set_up: SetUp,
    pub measured: fn(&Volume) -> Measured,
    /// The API objects whose changes affect the volume. Its files are made only of these.
    pub refers_to: fn(&Pod, &Volume) -> Vec<Reference>,
    /// Whether it shows the Pod's own labels and annotations, and changes with them.
    pub shows_pod: fn(&Volume) -> bool,
    /// Whether containers may only read it, whatever their mounts specify.
    pub read_only: fn(&Volume) -> bool,
    /// Whether its content is deleted as soon as the Pod has ended: nothing will read it any more.
    pub scratch: bool,
    /// Fields that this node does not act upon, by path below `field`: a Pod that sets one gets a Warning event.
    pub unsupported: &'static [(&'static str, fn(&Volume) -> bool)],
}

/// The kind of an object, and its name in the Pod's namespace.
pub type Reference = (What, String);

/// The location of a volume on the host.
#[derive(Clone, Copy)]
pub enum Location {
    /// `<state>/pods/<uid>/volumes/<name>`
    PodFolder,
    /// `<run>/volumes/<uid>/<name>`, in the tmpfs of the Pod.
    PodMemory,
    /// The target of the link `<state>/pods/<uid>/volumes/<name>`.
    Link,
    /// As specified in the manifest.
    Host(fn(&Volume) -> PathBuf),
}

/// How a volume is set up.
#[derive(Clone, Copy)]
pub enum SetUp {
    /// By a call that may block on a disk. Existing content stays.
    Once(Make),
    /// As files, rewritten whenever they differ from what they should be.
    Files(Files),
    /// As a link to the volume of its bound claim: see `volume_claims`.
    Claim,
}

pub type Make = fn(&Order) -> Result<()>;
pub type Files = for<'a> fn(Making<'a>) -> BoxFuture<'a, Result<Payload>>;

/// The inputs for a volume that is set up once.
pub struct Order {
    pub pod: Arc<Pod>,
    pub volume: Volume,
    pub path: PathBuf,
    /// Records in the Pod's journal what is created.
    pub kernel: Kernel,
    /// Records mounts that must be kept.
    pub held: HeldVolumes,
}

/// The inputs for files.
pub struct Making<'a> {
    pub pod: &'a Pod,
    pub volume: &'a Volume,
    pub facts: &'a Facts,
    /// The existing objects among those named by `refers_to`.
    pub sources: &'a Sources,
    pub tokens: &'a Tokens,
    /// The remaining space for the Pod's files.
    pub room: &'a mut Room,
}

/// What a volume's usage counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// Written by containers: counts as the Pod's disk usage, shown under the volume's name.
    Disk,
    /// Counts as the Pod's disk usage, but is written by the agent.
    Managed,
    /// Measured by its file system.
    FileSystem,
    Nothing,
}

/// The row of a volume; none: this node does not support its kind.
pub fn find(volume: &Volume) -> Option<&'static Row> {
    KINDS.iter().find(|row| (row.is)(volume))
}

pub fn measured(volume: &Volume) -> Measured {
    find(volume).map_or(Measured::Nothing, |row| (row.measured)(volume))
}

pub fn is_read_only(volume: &Volume) -> bool {
    find(volume).is_some_and(|row| (row.read_only)(volume))
}

/// The objects that a volume of the Pod refers to.
pub fn references_of(pod: &Pod, volume: &Volume) -> Vec<Reference> {
    find(volume).map_or_else(Vec::new, |row| (row.refers_to)(pod, volume))
}

/// Whether a volume of the Pod shows its own labels and annotations.
pub fn shows_pod(pod: &Pod) -> bool {
    let mut volumes = pod.spec().volumes.iter().flatten();
    volumes.any(|volume| find(volume).is_some_and(|row| (row.shows_pod)(volume)))
}

/// The paths of a volume's fields that this node does not act upon.
pub fn unsupported(volume: &Volume) -> Vec<String> {
    let Some(row) = find(volume) else { return Vec::new() };
    let set = row.unsupported.iter().filter(|(_, is_set)| is_set(volume));
    set.map(|(path, _)| format!("{}.{path}", row.field)).collect()
}

fn nothing(_: &Volume) -> Measured {
    Measured::Nothing
}

fn no_objects(_: &Pod, _: &Volume) -> Vec<Reference> {
    Vec::new()
}

fn always(_: &Volume) -> bool {
    true
}

fn never(_: &Volume) -> bool {
    false
}
