//! The volumes of a Pod or template, and the source of any volume.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    containers::Layout,
    text::{LONG, list, or, shortened, text},
};
use crate::page::Page;

pub fn section(page: &mut Page, volumes: &Value, place: Layout) {
    if list(volumes).is_empty() {
        return page.line(0, format!("{}Volumes:\t<none>", place.title()));
    }
    page.line(0, format!("{}Volumes:", place.title()));
    for volume in list(volumes) {
        page.line(1, format!("{}{}:", place.name(), text(&volume["name"])));
        source(page, volume);
    }
}

/// The supported sources of a PersistentVolume.
pub const SOURCES: &[&str] = &["csi", "hostPath", "local", "nfs"];

/// The source of a volume: its only field besides its name.
pub fn source(page: &mut Page, volume: &Value) {
    fields(volume).into_iter().for_each(|line| page.line(2, line));
}

fn optional(source: &Value) -> bool {
    source["optional"] == true
}

fn fields(volume: &Value) -> Vec<String> {
    let source = volume.as_object().into_iter().flatten().find(|(key, _)| *key != "name");
    let Some((kind, source)) = source else { return Vec::new() };
    let field = |name: &str| text(&source[name]);
    match kind.as_str() {
        "emptyDir" => vec![
            "Type:\tEmptyDir (a temporary directory that shares a pod's lifetime)".to_owned(),
            format!("Medium:\t{}", field("medium")),
            format!("SizeLimit:\t{}", or(&source["sizeLimit"], "<unset>")),
        ],
        "hostPath" => vec![
            "Type:\tHostPath (bare host directory volume)".to_owned(),
            format!("Path:\t{}", field("path")),
            format!("HostPathType:\t{}", field("type")),
        ],
        "secret" => vec![
            "Type:\tSecret (a volume populated by a Secret)".to_owned(),
            format!("SecretName:\t{}", field("secretName")),
            format!("Optional:\t{}", optional(source)),
        ],
        "configMap" => vec![
            "Type:\tConfigMap (a volume populated by a ConfigMap)".to_owned(),
            format!("Name:\t{}", field("name")),
            format!("Optional:\t{}", optional(source)),
        ],
        "downwardAPI" => {
            let item = |i: &Value| format!("  {} -> {}", text(&i["fieldRef"]["fieldPath"]), text(&i["path"]));
            let head = "Type:\tDownwardAPI (a volume populated by information about the pod)";
            let items = list(&source["items"]).iter().map(item);
            [head.to_owned(), "Items:".to_owned()].into_iter().chain(items).collect()
        }
        "projected" => {
            let head = "Type:\tProjected (a volume that contains injected data from multiple sources)".to_owned();
            let sources = list(&source["sources"]).iter().flat_map(projected);
            std::iter::once(head).chain(sources).collect()
        }
        "persistentVolumeClaim" => vec![
            "Type:\tPersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)".to_owned(),
            format!("ClaimName:\t{}", field("claimName")),
            format!("ReadOnly:\t{}", source["readOnly"] == true),
        ],
        "local" => vec![
            "Type:\tLocalVolume (a persistent volume backed by local storage on a node)".to_owned(),
            format!("Path:\t{}", field("path")),
        ],
        "nfs" => vec![
            "Type:\tNFS (an NFS mount that lasts the lifetime of a pod)".to_owned(),
            format!("Server:\t{}", field("server")),
            format!("Path:\t{}", field("path")),
            format!("ReadOnly:\t{}", source["readOnly"] == true),
        ],
        "csi" => csi(source),
        other => vec![format!("Type:\t{other}")],
    }
}

fn csi(source: &Value) -> Vec<String> {
    let mut all = vec!["Type:\tCSI (a Container Storage Interface (CSI) volume source)".to_owned()];
    all.push(format!("Driver:\t{}", text(&source["driver"])));
    all.push(format!("FSType:\t{}", text(&source["fsType"])));
    // A Pod's inline volume of this kind has no handle.
    all.extend(source["volumeHandle"].as_str().map(|handle| format!("VolumeHandle:\t{handle}")));
    all.push(format!("ReadOnly:\t{}", source["readOnly"] == true));
    let attributes: BTreeMap<_, _> = source["volumeAttributes"].as_object().into_iter().flatten().collect();
    let mut title = "VolumeAttributes:";
    for (key, value) in &attributes {
        let line = shortened(&format!("{key}={}", text(value)), LONG);
        // kubectl indents the values like their title.
        all.push(format!("{}\t    {line}", std::mem::take(&mut title)));
    }
    if attributes.is_empty() {
        all.push(format!("{title}\t<none>"));
    }
    all
}

fn projected(source: &Value) -> Vec<String> {
    let (secret, config, token) = (&source["secret"], &source["configMap"], &source["serviceAccountToken"]);
    if secret.is_object() {
        let name = format!("SecretName:\t{}", text(&secret["name"]));
        return vec![name, format!("Optional:\t{}", optional(secret))];
    }
    if config.is_object() {
        let name = format!("ConfigMapName:\t{}", text(&config["name"]));
        return vec![name, format!("Optional:\t{}", optional(config))];
    }
    if token.is_object() {
        return vec![format!("TokenExpirationSeconds:\t{}", or(&token["expirationSeconds"], "3600"))];
    }
    vec!["DownwardAPI:\ttrue".to_owned()]
}
