//! Properties of every kind in the table, checked on one manifest of each.

use podwright::api::kinds::{self, KINDS, Storage};
use podwright::api::{FieldValidation, Object, strategy, yaml};
use serde_json::Value;

use super::manifests::MANIFESTS;
use super::validation::created;

fn manifest(text: &str) -> Value {
    yaml::documents(text).unwrap_or_else(|e| panic!("{text}: {e}")).remove(0)
}

#[test]
fn every_kind_has_a_manifest() {
    let has = |kind: &kinds::Kind| {
        MANIFESTS.iter().any(|(_, text)| {
            let manifest = manifest(text);
            manifest["kind"] == kind.kind && manifest["apiVersion"] == kind.api_version()
        })
    };
    let missing: Vec<_> = KINDS
        .iter()
        .filter(|kind| !matches!(kind.storage, Storage::Nowhere | Storage::View(_)) && !has(kind))
        .map(|k| (k.kind, k.api_version()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn what_is_stored_is_valid_and_stays_as_it_is() {
    for (name, _) in MANIFESTS {
        let (kind, object) = created(name, "{}");
        let (again, unknown) = kind.decode(object.0.clone(), FieldValidation::Warn).expect("decodes");
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
        let mut again = Object(again.0);
        strategy::prepare_update(kind, &mut again, &object);
        assert_eq!(again, object, "{name}: an update with itself changes it");
    }
}

#[test]
fn every_kind_has_a_table() {
    let now = "2026-01-01T01:00:00Z".parse().unwrap();
    for (name, text) in MANIFESTS {
        let shown = manifest(text);
        let kind = kinds::of(shown["apiVersion"].as_str().unwrap(), shown["kind"].as_str().unwrap()).unwrap();
        let (_, stored) = created(name, "{}");
        let object = if kind.is_stored() { stored } else { Object(shown) };
        let cells: Vec<String> = kind.columns.iter().map(|column| column.text(&object, now)).collect();
        assert!(kind.columns.iter().any(|column| column.name == "NAME"), "{name}");
        assert!(cells.contains(&object.name().to_owned()), "{name}: {cells:?}");
    }
}

#[test]
fn names_find_exactly_their_row() {
    for kind in KINDS {
        let found = kinds::lookup(&kind.resource()).expect("a row");
        assert!(std::ptr::eq(found, kind), "{} finds {} {}", kind.resource(), found.kind, found.api_version());
        assert!(std::ptr::eq(kinds::of(&kind.api_version(), kind.kind).expect("a row"), kind));
    }
    for (name, version) in
        [("hpa", "autoscaling/v2"), ("ev", "v1"), ("sts", "apps/v1"), ("pvc", "v1"), ("ing", "networking.k8s.io/v1")]
    {
        assert_eq!(kinds::lookup(name).map(|k| k.api_version()).as_deref(), Some(version), "{name}");
    }
}

/// Nothing is lost between two versions of a kind.
#[test]
fn versions_convert_both_ways() {
    for (name, text) in MANIFESTS {
        let shown = manifest(text);
        let kind = kinds::of(shown["apiVersion"].as_str().unwrap(), shown["kind"].as_str().unwrap()).unwrap();
        let Storage::As(conversion) = kind.storage else { continue };
        let (before, _) = kind.decode(shown, FieldValidation::Strict).expect("decodes");
        let mut object = before.clone();
        (conversion.to_stored)(&mut object);
        let mut stored = object.0.clone();
        stored["apiVersion"] = kind.stored().api_version().into();
        stored["kind"] = kind.stored().kind.into();
        kind.stored().decode(stored, FieldValidation::Strict).unwrap_or_else(|e| panic!("{name}: {e}"));
        (conversion.from_stored)(&mut object);
        assert_eq!(object, before, "{name}");
    }
    // Fields that v1 lacks are kept in annotations.
    let (v2, v1) = (kinds::lookup("hpa").unwrap(), kinds::lookup("hpa.v1.autoscaling").unwrap());
    let Storage::As(conversion) = v1.storage else { panic!("a conversion") };
    let (_, stored) = created(
        "hpa",
        "{spec: {metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}, \
         {type: Pods, pods: {metric: {name: m}, target: {type: AverageValue, averageValue: 1}}}], \
         behavior: {scaleDown: {stabilizationWindowSeconds: 60}}}}",
    );
    let mut shown = stored.clone();
    (conversion.from_stored)(&mut shown);
    assert_eq!(shown.0["spec"]["targetCPUUtilizationPercentage"], 50);
    assert!(shown.annotation("autoscaling.alpha.kubernetes.io/metrics").is_some());
    (conversion.to_stored)(&mut shown);
    assert_eq!(shown.0["spec"], stored.0["spec"]);
    assert_eq!(v2.stored().kind, v1.stored().kind);
}
