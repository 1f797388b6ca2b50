//! configMap volumes: the keys of a ConfigMap as files, on the Pods' disk.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, KeyToPath, Pod, Volume};

use super::{
    super::{
        atomic::Payload,
        error::Result,
        payload::{Room, found},
    },
    Location, Making, Measured, Reference, Row, SetUp, always, never,
};
use crate::{objects::What, translate::env::Sources};

pub const ROW: Row = Row {
    field: "configMap",
    is: |volume| volume.config_map.is_some(),
    location: Location::PodFolder,
    set_up: SetUp::Files(|making| Box::pin(async move { made(making) })),
    measured: |_| Measured::Managed,
    refers_to,
    shows_pod: never,
    read_only: always,
    scratch: false,
    unsupported: &[],
};

fn refers_to(_: &Pod, volume: &Volume) -> Vec<Reference> {
    volume.config_map.iter().map(|source| (What::ConfigMap, source.name.clone())).collect()
}

fn made(making: Making<'_>) -> Result<Payload> {
    let Some(s) = &making.volume.config_map else { return Ok(Payload::new()) };
    files(making.sources, &s.name, s.items.as_deref(), s.default_mode, s.optional, making.room)
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
    let data = sources.config_maps.get(name).map(|object| data(object));
    found(data, items, default_mode, optional, ("configmap", "config"), name, room)
}

fn data(object: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = object.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    text.chain(binary).collect()
}
