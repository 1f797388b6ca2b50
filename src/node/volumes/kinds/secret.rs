//! secret volumes: the keys of a Secret as files, in memory.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{KeyToPath, Pod, Secret, Volume};

use super::{
    super::{
        atomic::Payload,
        error::Result,
        payload::{Room, found},
    },
    Location, Making, Reference, Row, SetUp, always, never, nothing,
};
use crate::{objects::What, translate::env::Sources};

pub const ROW: Row = Row {
    field: "secret",
    is: |volume| volume.secret.is_some(),
    location: Location::PodMemory,
    set_up: SetUp::Files(|making| Box::pin(async move { made(making) })),
    measured: nothing,
    refers_to,
    shows_pod: never,
    read_only: always,
    scratch: false,
    unsupported: &[],
};

fn refers_to(_: &Pod, volume: &Volume) -> Vec<Reference> {
    let names = volume.secret.iter().filter_map(|source| source.secret_name.clone());
    names.map(|name| (What::Secret, name)).collect()
}

fn made(making: Making<'_>) -> Result<Payload> {
    let Some(s) = &making.volume.secret else { return Ok(Payload::new()) };
    let name = s.secret_name.as_deref().unwrap_or_default();
    files(making.sources, name, s.items.as_deref(), s.default_mode, s.optional, making.room)
}

/// The files of one volume or source.
///
/// # Errors
///
/// Those of [`found`].
pub fn files(
    sources: &Sources,
    name: &str,
    items: Option<&[KeyToPath]>,
    default_mode: Option<i32>,
    optional: Option<bool>,
    room: &mut Room,
) -> Result<Payload> {
    let data = sources.secrets.get(name).map(|object| data(object));
    found(data, items, default_mode, optional, ("secret", "secret"), name, room)
}

fn data(object: &Secret) -> BTreeMap<String, Vec<u8>> {
    object.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect()
}
