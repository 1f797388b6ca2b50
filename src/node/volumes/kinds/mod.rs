//! The kinds of volumes that this node can set up: one row here, one file each. Whoever does something with a volume asks its row.
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
//! Files follow the objects that they are made of, and come back when somebody damages them; the others are set up once. Whatever the
//! kind, the end of a Pod unmounts all below its folder and removes its links.

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

/// The table. Each volume is of one kind, as the server sees to.
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

/// What is particular to a kind of volume.
pub struct Row {
    /// The field of upstream's `VolumeSource`.
    pub field: &'static str,
    /// Whether a volume has that field.
    pub is: fn(&Volume) -> bool,
    pub location: Location,
    pub set_up: SetUp,
    pub measured: fn(&Volume) -> Measured,
    /// The objects of the API whose change concerns the volume. Files are made of these and no others.
    pub refers_to: fn(&Pod, &Volume) -> Vec<Reference>,
    /// Whether it shows the Pod's own labels and annotations, and changes with them.
    pub shows_pod: fn(&Volume) -> bool,
    /// Whether containers may only read it, whatever their mounts say.
    pub read_only: fn(&Volume) -> bool,
    /// Whether its content goes as soon as the Pod has ended: nobody will read it any more.
    pub scratch: bool,
    /// What of its fields this node does not act upon, by their paths below `field`: a Pod that has one gets a Warning event.
    pub unsupported: &'static [(&'static str, fn(&Volume) -> bool)],
}

/// What an object is, and its name in the Pod's namespace.
pub type Reference = (What, String);

/// Where a volume is on the host.
#[derive(Clone, Copy)]
pub enum Location {
    /// `<state>/pods/<uid>/volumes/<name>`
    PodFolder,
    /// `<run>/volumes/<uid>/<name>`, in the tmpfs of the Pod.
    PodMemory,
    /// Where the link `<state>/pods/<uid>/volumes/<name>` leads.
    Link,
    /// Where the manifest says.
    Host(fn(&Volume) -> PathBuf),
}

/// How a volume comes to be.
#[derive(Clone, Copy)]
pub enum SetUp {
    /// By a call that may wait for a disk. What is there already stays as it is.
    Once(Make),
    /// As files, which are written again whenever they are to be otherwise, or are.
    Files(Files),
    /// As a link to the volume that its claim is bound to: see `volume_claims`.
    Claim,
}

pub type Make = fn(&Order) -> Result<()>;
pub type Files = for<'a> fn(Making<'a>) -> BoxFuture<'a, Result<Payload>>;

/// What a volume that is set up once is made of.
pub struct Order {
    pub pod: Arc<Pod>,
    pub volume: Volume,
    pub path: PathBuf,
    /// Tells the Pod's journal of what is made.
    pub kernel: Kernel,
    /// Where mounts are noted that are to stay.
    pub held: HeldVolumes,
}

/// What files are made of.
pub struct Making<'a> {
    pub pod: &'a Pod,
    pub volume: &'a Volume,
    pub facts: &'a Facts,
    /// The objects that `refers_to` names, those that exist.
    pub sources: &'a Sources,
    pub tokens: &'a Tokens,
    /// What is left for the Pod's files.
    pub room: &'a mut Room,
}

/// As what a volume counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// What containers write there is the Pod's use of the node's disk, and shown by the volume's name.
    Disk,
    /// It is of the Pod's use of the node's disk, and the agent writes it.
    Managed,
    /// Its file system says it all.
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

/// What a volume of the Pod refers to.
pub fn references_of(pod: &Pod, volume: &Volume) -> Vec<Reference> {
    find(volume).map_or_else(Vec::new, |row| (row.refers_to)(pod, volume))
}

/// Whether a volume of the Pod shows its own labels and annotations.
pub fn shows_pod(pod: &Pod) -> bool {
    let mut volumes = pod.spec().volumes.iter().flatten();
    volumes.any(|volume| find(volume).is_some_and(|row| (row.shows_pod)(volume)))
}

/// The paths of the fields of a volume that this node does not act upon.
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
