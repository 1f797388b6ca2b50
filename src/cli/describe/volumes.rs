//! The volumes of a Pod or of a template.

use serde_json::Value;

use super::{
    containers::Place,
    text::{list, or, text},
};
use crate::cli::page::Page;

pub fn section(page: &mut Page, volumes: &Value, place: Place) {
    if list(volumes).is_empty() {
        return page.line(0, format!("{}Volumes:\t<none>", place.title()));
    }
    page.line(0, format!("{}Volumes:", place.title()));
    for volume in list(volumes) {
        page.line(1, format!("{}{}:", place.name(), text(&volume["name"])));
        fields(volume).into_iter().for_each(|line| page.line(2, line));
    }
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
        other => vec![format!("Type:\t{other}")],
    }
}

fn projected(source: &Value) -> Vec<String> {
    let (secret, config, token) = (&source["secret"], &source["configMap"], &source["serviceAccountToken"]);
    if secret.is_object() {
        let name = format!("SecretName:\t{}", text(&secret["name"]));
        return vec![name, format!("SecretOptionalName:\t{}", or(&secret["optional"], "<nil>"))];
    }
    if config.is_object() {
        let name = format!("ConfigMapName:\t{}", text(&config["name"]));
        return vec![name, format!("ConfigMapOptional:\t{}", or(&config["optional"], "<nil>"))];
    }
    if token.is_object() {
        return vec![format!("TokenExpirationSeconds:\t{}", or(&token["expirationSeconds"], "3600"))];
    }
    vec!["DownwardAPI:\ttrue".to_owned()]
}
