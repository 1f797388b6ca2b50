//! downwardAPI volumes: fields of a Pod and resources of its containers, as files in memory.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Pod};

use super::{
    super::{
        atomic::{File, Payload},
        error::Result,
        payload::{Room, mode},
    },
    Location, Making, Row, SetUp, always, no_objects, nothing,
};
use crate::translate::env::{Facts, field, resource};

pub const ROW: Row = Row {
    field: "downwardAPI",
    is: |volume| volume.downward_api.is_some(),
    location: Location::PodMemory,
    set_up: SetUp::Files(|making| Box::pin(async move { made(making) })),
    measured: nothing,
    refers_to: no_objects,
    shows_pod: always,
    read_only: always,
    scratch: false,
    unsupported: &[],
};

fn made(making: Making<'_>) -> Result<Payload> {
    let Some(s) = &making.volume.downward_api else { return Ok(Payload::new()) };
    files(making.pod, making.facts, s.items.as_deref(), s.default_mode, making.room)
}

/// The files of one volume or source.
///
/// # Errors
///
/// An item requests an unknown value, or the Pod's files exceed their limit.
pub fn files(
    pod: &Pod,
    facts: &Facts,
    items: Option<&[DownwardAPIVolumeFile]>,
    default_mode: Option<i32>,
    room: &mut Room,
) -> Result<Payload> {
    let mut payload = Payload::new();
    for item in items.unwrap_or_default() {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(selector), _) => field(pod, facts, &selector.field_path),
            (None, Some(selector)) => resource(pod, None, facts, selector),
            (None, None) => continue,
        };
        let text = text?;
        room.take(Path::new(&item.path), text.len())?;
        let file = File { data: text.into_bytes(), mode: mode(item.mode, default_mode), uid: None };
        payload.insert(PathBuf::from(&item.path), file);
    }
    Ok(payload)
}
