//! ConfigMap.

use super::{Kind, Strategy};
use crate::api::Object;
use crate::api::columns::{AGE, NAME, column};
use crate::api::schema::of_type;

pub const KIND: Kind = Kind {
    kind: "ConfigMap",
    group: "",
    version: "v1",
    plural: "configmaps",
    singular: "configmap",
    short_names: &["cm"],
    namespaced: true,
    categories: &[],
    subresources: &[],
    selectable: &[],
    schema: of_type::<k8s_openapi::api::core::v1::ConfigMap>(),
    columns: &[NAME, column("DATA", |o, _| entries(o).to_string()), AGE],
    scale: None,
    strategy: Strategy { ..Strategy::PLAIN },
};

fn entries(map: &Object) -> usize {
    ["data", "binaryData"].iter().filter_map(|f| map.at(f)?.as_object()).map(|m| m.len()).sum()
}
