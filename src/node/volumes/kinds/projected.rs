//! projected volumes: the files of several sources in one folder in memory, including tokens of the Pod's ServiceAccount.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, Volume, VolumeProjection};

use super::{
    super::{
        atomic::{File, Payload},
        error::Result,
        fs_group,
    },
    Location, Making, Reference, Row, SetUp, always, config_map, downward_api, nothing, secret,
};
use crate::{objects::What, spec::PodExt};

pub const ROW: Row = Row {
    field: "projected",
    is: |volume| volume.projected.is_some(),
    location: Location::PodMemory,
    set_up: SetUp::Files(|making| Box::pin(files(making))),
    measured: nothing,
    refers_to,
    shows_pod: |volume| sources(volume).any(|source| source.downward_api.is_some()),
    read_only: always,
    scratch: false,
    unsupported: &[
        ("sources.clusterTrustBundle", |volume| sources(volume).any(|source| source.cluster_trust_bundle.is_some())),
        ("sources.podCertificate", |volume| sources(volume).any(|source| source.pod_certificate.is_some())),
    ],
};

fn sources(volume: &Volume) -> impl Iterator<Item = &VolumeProjection> {
    volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten())
}

fn refers_to(_: &Pod, volume: &Volume) -> Vec<Reference> {
    let objects = |source: &VolumeProjection| {
        let map = source.config_map.iter().map(|map| (What::ConfigMap, map.name.clone()));
        let secret = source.secret.iter().map(|secret| (What::Secret, secret.name.clone()));
        map.chain(secret).collect::<Vec<_>>()
    };
    sources(volume).flat_map(objects).collect()
}

async fn files(mut making: Making<'_>) -> Result<Payload> {
    let mut all = Payload::new();
    for source in sources(making.volume) {
        all.extend(projection(&mut making, source)?);
        if let Some(token) = &source.service_account_token {
            let user = common_user(making.pod);
            let private = user.is_some() || fs_group(making.pod).is_some();
            let mode = if private { 0o600 } else { default_mode(making.volume).unwrap_or(0o644) as u32 };
            let data = making.tokens.get(making.pod, token).await?.into_bytes();
            making.room.take(Path::new(&token.path), data.len())?;
            all.insert(PathBuf::from(&token.path), File { data, mode, uid: user });
        }
    }
    Ok(all)
}

fn default_mode(volume: &Volume) -> Option<i32> {
    volume.projected.as_ref().and_then(|projected| projected.default_mode)
}

/// The files of one source other than a token.
fn projection(making: &mut Making<'_>, source: &VolumeProjection) -> Result<Payload> {
    let (mode, room) = (default_mode(making.volume), &mut *making.room);
    if let Some(s) = &source.config_map {
        return config_map::files(making.sources, &s.name, s.items.as_deref(), mode, s.optional, room);
    }
    if let Some(s) = &source.secret {
        return secret::files(making.sources, &s.name, s.items.as_deref(), mode, s.optional, room);
    }
    if let Some(s) = &source.downward_api {
        return downward_api::files(making.pod, making.facts, s.items.as_deref(), mode, room);
    }
    Ok(Payload::new())
}

/// The user of all containers, if the manifest sets the same one for each.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|c| c.run_as_user);
    let parts = pod.parts();
    let mut users = parts.iter().map(|p| p.container.security_context.as_ref().and_then(|c| c.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then(|| u32::try_from(first).ok())?
}
