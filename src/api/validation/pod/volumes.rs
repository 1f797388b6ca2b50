//! Volumes of all types.

use std::collections::HashSet;

use super::super::{At, Errors, names};
use super::paths::{descending, no_backsteps};
use super::{Scope, env};
use crate::quantity::Quantity;

pub fn all(scope: &Scope<'_>, errs: &mut Errors) {
    let mut seen: HashSet<&str> = HashSet::new();
    for volume in scope.spec.get("volumes").items() {
        let name = volume.get("name");
        if name.is_empty() {
            errs.required(&name.path, "");
        } else {
            errs.invalid_each(&name.path, name.str(), names::dns1123_label(name.str()));
            if seen.contains(&name.str()) {
                errs.duplicate(&name.path, name.str());
            }
            seen.insert(name.str());
        }
        source(&volume, errs);
    }
}

/// The required fields of each source.
const REQUIRED: &[(&str, &[&str])] = &[
    ("awsElasticBlockStore", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("azureFile", &["secretName", "shareName"]),
    ("cephfs", &["monitors"]),
    ("cinder", &["volumeID"]),
    ("configMap", &["name"]),
    ("csi", &["driver"]),
    ("ephemeral", &["volumeClaimTemplate"]),
    ("flexVolume", &["driver"]),
    ("gcePersistentDisk", &["pdName"]),
    ("gitRepo", &["repository"]),
    ("glusterfs", &["endpoints", "path"]),
    ("hostPath", &["path"]),
    ("image", &["reference"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("nfs", &["server", "path"]),
    ("persistentVolumeClaim", &["claimName"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("quobyte", &["registry", "volume"]),
    ("rbd", &["monitors", "image"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("secret", &["secretName"]),
    ("storageos", &["volumeName"]),
    ("vsphereVolume", &["volumePath"]),
];

const HOST_PATH_TYPES: &[&str] =
    &["DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];

/// Exactly one valid source.
fn source(volume: &At<'_>, errs: &mut Errors) {
    let fields = volume.value.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let sources: Vec<&str> = fields.filter(|f| *f != "name").collect();
    let [first, more @ ..] = sources.as_slice() else {
        errs.required(&volume.path, "must specify a volume type");
        return;
    };
    for other in more {
        errs.forbidden(volume.path(other), "may not specify more than 1 volume type");
    }
    let at = volume.get(first);
    let required = REQUIRED.iter().find(|(name, _)| name == first).map_or(&[][..], |(_, fields)| fields);
    for field in required {
        let it = at.get(field);
        if !it.is_set() || it.value == "" {
            errs.required(&it.path, "");
        }
    }
    match *first {
        "emptyDir" => empty_dir(&at, errs),
        "hostPath" => host_path(&at, errs),
        "secret" | "configMap" => {
            mode(&at.get("defaultMode"), errs);
            items(&at, errs);
        }
        "downwardAPI" => downward(&at, errs),
        "projected" => projected(&at, errs),
        "nfs" if !at.get("path").is_empty() && !at.get("path").str().starts_with('/') => {
            errs.invalid(at.path("path"), at.get("path").str(), "must be an absolute path");
        }
        "image" if at.get("pullPolicy").is_set() => {
            errs.one_of(&at.get("pullPolicy"), &["Always", "IfNotPresent", "Never"]);
        }
        "gitRepo" => descending(&at.get("directory"), errs),
        _ => {}
    }
}

fn empty_dir(at: &At<'_>, errs: &mut Errors) {
    let limit = at.get("sizeLimit");
    if Quantity::from_json(limit.value).is_some_and(|q| q.is_negative()) {
        errs.forbidden(&limit.path, "SizeLimit field must be a valid resource quantity");
    }
}

fn host_path(at: &At<'_>, errs: &mut Errors) {
    no_backsteps(&at.get("path"), errs);
    let kind = at.get("type");
    if !kind.is_empty() {
        errs.one_of(&kind, HOST_PATH_TYPES);
    }
}

fn mode(at: &At<'_>, errs: &mut Errors) {
    if let Some(n) = at.int().filter(|n| !(0..=0o777).contains(n)) {
        errs.invalid(&at.path, n, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

/// A relative path for a file: it must not resemble those used for updates (`..data`).
fn file_path(at: &At<'_>, errs: &mut Errors) {
    if at.is_empty() {
        errs.required(&at.path, "");
        return;
    }
    descending(at, errs);
    if at.str().starts_with("..") && !at.str().starts_with("../") && at.str() != ".." {
        errs.invalid(&at.path, at.str(), "must not start with '..'");
    }
}

/// `items` of a configMap or secret source.
fn items(at: &At<'_>, errs: &mut Errors) {
    for item in at.get("items").items() {
        if item.get("key").is_empty() {
            errs.required(item.path("key"), "");
        }
        file_path(&item.get("path"), errs);
        mode(&item.get("mode"), errs);
    }
}

fn downward(at: &At<'_>, errs: &mut Errors) {
    mode(&at.get("defaultMode"), errs);
    for item in at.get("items").items() {
        file_path(&item.get("path"), errs);
        mode(&item.get("mode"), errs);
        let (field, resource) = (item.get("fieldRef"), item.get("resourceFieldRef"));
        match (field.is_set(), resource.is_set()) {
            (true, true) => {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errs.invalid(&item.path, "resource", why);
            }
            (true, false) => env::field_ref(&field, env::VOLUME_FIELDS, errs),
            (false, true) => env::resource_field_ref(&resource, true, errs),
            (false, false) => {
                errs.required(&item.path, "one of fieldRef and resourceFieldRef is required");
            }
        }
    }
}

fn projected(at: &At<'_>, errs: &mut Errors) {
    mode(&at.get("defaultMode"), errs);
    let mut paths: HashSet<&str> = HashSet::new();
    for source in at.get("sources").items() {
        let kinds: Vec<&str> = source.value.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        let [kind, more @ ..] = kinds.as_slice() else {
            errs.required(&source.path, "must specify one of the volume projection types");
            continue;
        };
        for other in more {
            errs.forbidden(source.path(other), "may not specify more than 1 volume type per source");
        }
        let it = source.get(kind);
        match *kind {
            "configMap" | "secret" => {
                if it.get("name").is_empty() {
                    errs.required(it.path("name"), "");
                }
                items(&it, errs);
            }
            "downwardAPI" => downward(&it, errs),
            "serviceAccountToken" => token(&it, errs),
            _ => {}
        }
        let own = if *kind == "serviceAccountToken" { vec![it.get("path")] } else { vec![] };
        let listed = it.get("items").items().map(|i| i.get("path"));
        for path in own.into_iter().chain(listed).filter(|p| !p.is_empty()) {
            if paths.contains(&path.str()) {
                errs.invalid(&it.path, path.str(), "conflicting duplicate paths");
            }
            paths.insert(path.str());
        }
    }
}

fn token(at: &At<'_>, errs: &mut Errors) {
    const MIN: i64 = 10 * 60;
    let seconds = at.get("expirationSeconds");
    if let Some(n) = seconds.int() {
        if n < MIN {
            errs.invalid(&seconds.path, n, "may not specify a duration less than 10 minutes");
        } else if n > 1 << 32 {
            errs.invalid(&seconds.path, n, "may not specify a duration larger than 2^32 seconds");
        }
    }
    file_path(&at.get("path"), errs);
}
