//! Archives with links in place of blobs: their content does not match the digest.

use serde_json::{Value, json};

use super::images::{Entry, layer};
use super::private_images::made;
use super::world::{End, NODE, OURS, World};
use super::{POD, Pod, Target, Verdict};
use crate::support::registry::{digest, tar};

/// A link of either kind from a blob to a file at the archive's top.
const KINDS: [(&str, for<'a> fn(&'a str, &'a str) -> Entry<'a>, &str); 2] =
    [("symbolic", |name, to| Entry::Link(name, to), "../../"), ("hard", |name, to| Entry::Hard(name, to), "")];

fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn described(kind: &str, document: &str) -> Value {
    let media_type = format!("application/vnd.oci.image.{kind}+json");
    json!({"mediaType": media_type, "digest": digest(document.as_bytes()), "size": document.len()})
}

/// An index.json that names a document.
fn index(kind: &str, document: &str, name: &str) -> String {
    let mut entry = described(kind, document);
    entry["annotations"] = json!({"io.containerd.image.name": name});
    json!({"schemaVersion": 2, "manifests": [entry]}).to_string()
}

/// This many layers of the author's own, and the config of an image with them.
fn own(layers: usize) -> (Vec<String>, String) {
    let layer = |n: usize| String::from_utf8(tar(&[(&n.to_string(), b"own")])).unwrap();
    let layers: Vec<String> = (0..layers).map(layer).collect();
    let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer.as_bytes())).collect();
    let rootfs = json!({"type": "layers", "diff_ids": diff_ids});
    let config = json!({"architecture": super::world::architecture(), "os": "linux", "rootfs": rootfs});
    (layers, config.to_string())
}

/// Loads an archive; returns the output.
fn load(world: &World, entries: &[Entry<'_>]) -> String {
    let archive = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(archive.path(), layer(entries)).unwrap();
    world.node.run(&["image", "--node", NODE, "load", archive.path().to_str().unwrap()]).all()
}

/// Whether the node has nothing by this name; returns the output.
fn has_none(world: &World, target: &Target, name: &str, kind: &str) -> Result<String, String> {
    let mut object = world.pod(target, &Pod { namespace: OURS, script: "cat /word", ..POD });
    object["metadata"]["name"] = json!(format!("{}-{kind}", target.id));
    object["spec"]["containers"][0]["image"] = json!(name);
    object["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    match world.run_to_the_end(&object) {
        End::Refused(why) if why.contains("ErrImageNeverPull") => Ok(why),
        End::Refused(why) | End::Said(why) => Err(why),
    }
}

pub fn manifest(world: &World, target: &Target) -> Verdict {
    let mut seen = Vec::new();
    for (kind, link, up) in KINDS {
        let ((layers, config), evil_layer) = (own(1), json!("application/vnd.oci.image.layer.v1.tar"));
        let part = json!({"mediaType": evil_layer, "digest": digest(layers[0].as_bytes()), "size": layers[0].len()});
        let evil = json!({"schemaVersion": 2, "config": described("config.v1", &config), "layers": [part]}).to_string();
        // Someone else's, with a publicly known digest.
        let honest = json!({"schemaVersion": 2, "config": described("config.v1", kind), "layers": []}).to_string();
        let mut platform = described("manifest.v1", &honest);
        platform["platform"] = json!({"os": "linux", "architecture": super::world::architecture()});
        let honest_index = json!({"schemaVersion": 2, "manifests": [platform]}).to_string();
        let name = format!("registry.example/{kind}@{}", digest(honest_index.as_bytes()));
        let index = index("index.v1", &honest_index, &name);
        let (to, at) = (format!("{up}evil.json"), |content: &str| blob(&digest(content.as_bytes())));
        let said = load(
            world,
            &[
                Entry::File("index.json", &index, 0o644),
                Entry::File(&at(&honest_index), &honest_index, 0o644),
                Entry::File("evil.json", &evil, 0o644),
                Entry::File(&at(&config), &config, 0o644),
                Entry::File(&at(&layers[0]), &layers[0], 0o644),
                link(&at(&honest), &to),
            ],
        );
        match has_none(world, target, &name, kind) {
            Ok(why) => seen.push(format!("{said}: {why}")),
            Err(why) => return Verdict::Breach(format!("{name}: {said}: {why}")),
        }
    }
    Verdict::Held(seen.join("; "))
}

pub fn config(world: &World, target: &Target) -> Verdict {
    let private = match made(world, target) {
        Ok(private) => private,
        Err(verdict) => return verdict,
    };
    let document = private.document();
    let manifest: Value = serde_json::from_str(&document).unwrap();
    let digests = |part: &Value| blob(part["digest"].as_str().unwrap());
    let (config_at, layers_at): (String, Vec<String>) =
        (digests(&manifest["config"]), manifest["layers"].as_array().unwrap().iter().map(digests).collect());
    let (layers, config) = own(layers_at.len());
    let steal = |when: &str| {
        KINDS.map(|(kind, link, up)| {
            let name = format!("localhost/{kind}-{when}:1");
            let index = index("manifest.v1", &document, &name);
            let files: Vec<String> = (0..layers.len()).map(|n| format!("own-{n}.tar")).collect();
            let targets: Vec<String> = files.iter().map(|file| format!("{up}{file}")).collect();
            let (at, to) = (blob(&digest(document.as_bytes())), format!("{up}own.json"));
            let mut entries = vec![
                Entry::File("index.json", &index, 0o644),
                Entry::File(&at, &document, 0o644),
                Entry::File("own.json", &config, 0o644),
                link(&config_at, &to),
            ];
            entries.extend(files.iter().zip(&layers).map(|(file, layer)| Entry::File(file, layer, 0o644)));
            entries.extend(layers_at.iter().zip(&targets).map(|(at, to)| link(at, to)));
            (name, load(world, &entries))
        })
    };
    let before = steal("before");
    if let Err(why) = private.is_here(world, target) {
        return Verdict::Untried(format!("its owner cannot use it: {why}"));
    }
    let mut seen = Vec::new();
    for (number, (name, said)) in before.into_iter().chain(steal("after")).enumerate() {
        match has_none(world, target, &name, &number.to_string()) {
            Ok(why) => seen.push(format!("{said}: {why}")),
            Err(why) => return Verdict::Breach(format!("{name}: {said}: {why}")),
        }
    }
    Verdict::Held(seen.join("; "))
}
