//! What an object becomes in memory where it is decoded into its type, as controllers, scheduler and agents keep it: estimated from its
//! schema. An empty volume has 30 bytes of JSON, and the type of a volume, which has a place for each kind of source, thousands.
//!
//! Each struct lies within what it is a field of, as k8s-openapi has it; lists have grown by doubling, and maps are B-trees of which
//! each node has room for eleven entries.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{Struct, Type};
use crate::{Kind, Object};

/// What an object may become without being a burden: so many times its JSON ..
const TIMES: usize = 16;
/// .. and so much more, whatever its size.
const ALWAYS: usize = 64 << 10;

/// The kinds that are kept as types for all of the cluster, and have lists of what is large.
const KEPT: &[&str] = &[
    "CronJob",
    "DaemonSet",
    "Deployment",
    "EndpointSlice",
    "Endpoints",
    "Job",
    "PersistentVolumeClaim",
    "Pod",
    "ReplicaSet",
    "ReplicationController",
    "Service",
    "StatefulSet",
];

/// The kinds whose objects may be burdens.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    crate::kinds::KINDS.iter().filter(|kind| is_kept(kind))
}

/// Whether a kind's objects may be burdens.
pub fn is_kept(kind: &Kind) -> bool {
    KEPT.binary_search(&kind.built_in()).is_ok()
}

/// How much more than it may an object becomes in memory; 0 for most.
pub fn of(kind: &Kind, object: &Object) -> usize {
    if !is_kept(kind) {
        return 0;
    }
    Seed(&Type::Struct(kind.schema())).deserialize(&object.0).unwrap_or_default().excess()
}

/// The same of an object's JSON.
pub fn of_stored(kind: &Kind, json: &[u8]) -> usize {
    if !is_kept(kind) {
        return 0;
    }
    let of = Type::Struct(kind.schema());
    let size = Seed(&of).deserialize(&mut serde_json::Deserializer::from_slice(json));
    size.unwrap_or_default().excess()
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    /// The bytes of its JSON.
    json: usize,
    /// The bytes that it takes besides those within what it is a field of.
    memory: usize,
}

impl Size {
    fn add(&mut self, more: Size) {
        self.json += more.json;
        self.memory += more.memory;
    }

    fn excess(self) -> usize {
        self.memory.saturating_sub(TIMES * self.json + ALWAYS)
    }
}

/// What the allocator takes for so many bytes.
fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        _ => (bytes + 8).next_multiple_of(16).max(32),
    }
}

/// What a `Vec` takes that has grown to so many items.
fn listed(items: usize, of: usize) -> usize {
    let first = if of > 1024 { 1 } else { 4 };
    allocated(if items == 0 { 0 } else { items.next_power_of_two().max(first) * of })
}

/// What a `BTreeMap` takes whose keys came in order: its nodes are half full.
fn mapped(entries: usize, of: usize) -> usize {
    let node = allocated(16 + 11 * (size_of::<String>() + of));
    match entries {
        0 => 0,
        1..=11 => node,
        _ => entries.div_ceil(5) * node,
    }
}

/// The bytes of a value within what it is a field of.
fn inline(of: &Type) -> usize {
    inline_within(of, &mut Vec::new())
}

fn inline_within<'a>(of: &'a Type, path: &mut Vec<&'a str>) -> usize {
    match of {
        Type::Any | Type::Unknown => size_of::<Option<Value>>(),
        Type::String | Type::Bytes | Type::Quantity | Type::IntOrString | Type::List(_) => size_of::<String>(),
        Type::Time { .. } => size_of::<Option<jiff::Timestamp>>(),
        Type::Integer { bits: 64 } | Type::Number => size_of::<Option<i64>>(),
        Type::Integer { .. } => size_of::<Option<i32>>(),
        Type::Boolean => 1,
        Type::Map(_) => 32,
        // What contains itself is in a box.
        Type::Struct(of) if path.contains(&of.name.as_str()) => size_of::<usize>(),
        Type::Struct(of) => *of.inline.get_or_init(|| {
            path.push(&of.name);
            let fields: usize = of.fields().map(|(_, field)| inline_within(&field.of, path)).sum();
            path.pop();
            fields.next_multiple_of(8)
        }),
    }
}

/// Reads a value of this type.
struct Seed<'a>(&'a Type);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Size;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Size, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E: Error>(self, _: bool) -> Result<Size, E> {
        Ok(Size { json: 5, memory: 0 })
    }
    fn visit_i64<E: Error>(self, _: i64) -> Result<Size, E> {
        Ok(Size { json: 2, memory: 0 })
    }
    fn visit_u64<E: Error>(self, _: u64) -> Result<Size, E> {
        Ok(Size { json: 2, memory: 0 })
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<Size, E> {
        Ok(Size { json: 2, memory: 0 })
    }
    fn visit_unit<E: Error>(self) -> Result<Size, E> {
        Ok(Size { json: 5, memory: 0 })
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        let memory = match self.0 {
            Type::Bytes => allocated(text.len() / 4 * 3),
            Type::Time { .. } | Type::Integer { .. } | Type::Number | Type::Boolean => 0,
            _ => allocated(text.len()),
        };
        Ok(Size { json: text.len() + 3, memory })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Size, A::Error> {
        let of = if let Type::List(list) = self.0 { &list.item } else { &Type::Any };
        let (mut size, mut count) = (Size { json: 3, memory: 0 }, 0);
        while let Some(item) = items.next_element_seed(Seed(of))? {
            size.add(item);
            count += 1;
        }
        size.memory += listed(count, inline(of));
        Ok(size)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Size, A::Error> {
        let (mut size, mut count) = (Size { json: 3, memory: 0 }, 0);
        let of = match self.0 {
            Type::Struct(of) => return within(of, entries, size),
            Type::Map(of) => &**of,
            _ => &Type::Any,
        };
        while let Some(key) = entries.next_key_seed(Key)? {
            size.add(Size { json: key.len() + 3, memory: allocated(key.len()) });
            size.add(entries.next_value_seed(Seed(of))?);
            count += 1;
        }
        size.memory += mapped(count, inline(of));
        Ok(size)
    }
}

fn within<'de, A: MapAccess<'de>>(of: &Struct, mut fields: A, mut size: Size) -> Result<Size, A::Error> {
    while let Some(key) = fields.next_key_seed(Key)? {
        size.json += key.len() + 3;
        match of.field(&key) {
            // Nobody keeps them.
            Some(_) if key == "managedFields" => drop(fields.next_value::<IgnoredAny>()?),
            Some(field) => size.add(fields.next_value_seed(Seed(&field.of))?),
            None => drop(fields.next_value::<IgnoredAny>()?),
        }
    }
    Ok(size)
}

/// A key, copied only where it has escapes.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1 as apps, batch::v1 as batch, core::v1 as core, discovery::v1::Endpoint};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
    use serde_json::json;

    use super::*;
    use crate::{kinds, schema};

    #[test]
    fn the_table_is_sorted_and_of_kinds() {
        assert!(KEPT.is_sorted());
        assert_eq!(super::kinds().count(), KEPT.len());
    }

    /// The estimate is what the compiler says, or a little more.
    #[test]
    fn structs_are_as_large_as_their_types() {
        super::kinds().for_each(|kind| drop(kind.schema()));
        let of = |name: &str| {
            let all = schema::compiled();
            let found = all.iter().find(|of| of.name == name).unwrap_or_else(|| panic!("{name}"));
            inline(&Type::Struct(found.clone()))
        };
        for (name, real) in [
            ("Container", size_of::<core::Container>()),
            ("ContainerPort", size_of::<core::ContainerPort>()),
            ("ContainerStatus", size_of::<core::ContainerStatus>()),
            ("CronJobSpec", size_of::<batch::CronJobSpec>()),
            ("Deployment", size_of::<apps::Deployment>()),
            ("Endpoint", size_of::<Endpoint>()),
            ("EnvVar", size_of::<core::EnvVar>()),
            ("EphemeralContainer", size_of::<core::EphemeralContainer>()),
            ("LabelSelectorRequirement", size_of::<meta::LabelSelectorRequirement>()),
            ("ObjectMeta", size_of::<meta::ObjectMeta>()),
            ("PersistentVolumeClaim", size_of::<core::PersistentVolumeClaim>()),
            ("PodAffinityTerm", size_of::<core::PodAffinityTerm>()),
            ("PodSpec", size_of::<core::PodSpec>()),
            ("Probe", size_of::<core::Probe>()),
            ("ServicePort", size_of::<core::ServicePort>()),
            ("Toleration", size_of::<core::Toleration>()),
            ("TopologySpreadConstraint", size_of::<core::TopologySpreadConstraint>()),
            ("Volume", size_of::<core::Volume>()),
            ("VolumeMount", size_of::<core::VolumeMount>()),
            ("VolumeProjection", size_of::<core::VolumeProjection>()),
        ] {
            let estimate = of(name);
            println!("{name}: {real} bytes, estimated {estimate}");
            assert!(
                estimate * 10 >= real * 9 && estimate * 2 <= real * 3,
                "{name}: {real} bytes, estimated {estimate}"
            );
        }
    }

    fn pod(spec: Value) -> Object {
        Object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a"}, "spec": spec}))
    }

    /// The shapes that become the most, of the least JSON.
    #[test]
    fn what_becomes_many_times_its_json_is_a_burden_and_honest_objects_are_none() {
        let kind = kinds::lookup("pods").expect("Pods");
        let many = |n: usize, of: Value| vec![of; n];
        let container = json!({"name": "c", "image": "i"});
        let honest = json!({
            "name": "web", "image": "registry.example.com/team/web:1.2.3", "ports": [{"containerPort": 8080, "protocol": "TCP"}],
            "env": many(30, json!({"name": "SOME_NAME", "value": "some value"})),
            "volumeMounts": many(30, json!({"name": "config-volume", "mountPath": "/etc/config", "readOnly": true})),
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
        });
        let volume = json!({"name": "config-volume", "configMap": {"name": "some-config", "defaultMode": 420}});
        for (shape, spec, is_burden) in [
            // Just after a list has doubled.
            ("half as many volumes", json!({"volumes": many(513, json!({"name": "a", "emptyDir": {}}))}), true),
            ("volumes", json!({"volumes": many(1024, json!({"name": "a", "emptyDir": {}}))}), true),
            ("containers", json!({"containers": many(512, container.clone())}), true),
            ("variables", json!({"containers": [{"name": "c", "env": many(4096, json!({"name": "A"}))}]}), true),
            (
                "ports",
                json!({"containers": [{"name": "c", "ports": many(10_000, json!({"containerPort": 1}))}]}),
                false,
            ),
            ("tolerations", json!({"tolerations": many(1000, json!({"operator": "Exists"}))}), false),
            (
                "maps",
                json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": many(10_000,
                json!({"weight": 1, "podAffinityTerm": {"topologyKey": "a", "labelSelector": {"matchLabels": {"a": "b"}}}}))}}}),
                false,
            ),
            ("honest", json!({"containers": many(10, honest), "volumes": many(20, volume)}), false),
            ("one", json!({"containers": [container]}), false),
        ] {
            let object = pod(spec);
            let (text, mut size) = (object.0.to_string(), Size::default());
            size.add(Seed(&Type::Struct(kind.schema())).deserialize(&object.0).expect("JSON"));
            println!("{shape}: {} bytes become {}, {} times", text.len(), size.memory, size.memory / text.len());
            assert!(size.json * 10 >= text.len() * 8 && size.json * 10 <= text.len() * 12, "{shape}: {size:?}");
            assert_eq!(of(kind, &object) > 0, is_burden, "{shape}: {size:?}");
            assert_eq!(of(kind, &object), of_stored(kind, text.as_bytes()), "{shape}");
        }
        let map = kinds::lookup("configmaps").expect("ConfigMaps");
        assert_eq!(of_stored(map, br#"{"data":{"a":"b"}}"#), 0);
    }
}
