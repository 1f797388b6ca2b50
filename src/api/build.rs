//! The build script: writes the JSON schemas of k8s-openapi's types for `schema`.
//!
//! k8s-openapi provides a schema as code that builds it. That code runs here, once; the program contains its result.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::{env, fs};

use flate2::{Compression, write::DeflateEncoder};
use k8s_openapi::schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

/// A type that the program requests by name; the types that it refers to are included.
struct Root {
    path: &'static str,
    name: String,
    schema: fn(&mut SchemaGenerator) -> k8s_openapi::schemars::Schema,
}

macro_rules! roots {
    ($($module:tt { $($name:ident)+ })+) => { [$($(root!($module $name)),+),+] };
}

macro_rules! root {
    ([$($module:ident)::+] $name:ident) => {
        Root {
            path: concat!("k8s_openapi", $("::", stringify!($module),)+ "::", stringify!($name)),
            name: <k8s_openapi::$($module)::+::$name>::schema_name().into_owned(),
            schema: <k8s_openapi::$($module)::+::$name>::json_schema,
        }
    };
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR").expect("cargo names a folder for what is made");
    write_definitions(Path::new(&out), &roots());
}

/// The kinds of the table `api::kinds::KINDS`, and other bodies of requests and responses.
fn roots() -> impl AsRef<[Root]> {
    roots! {
        [api::admissionregistration::v1] {
            MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
            ValidatingWebhookConfiguration
        }
        [api::apps::v1] { ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet }
        [api::authentication::v1] { SelfSubjectReview TokenRequest TokenReview }
        [api::authorization::v1] {
            LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview
        }
        [api::autoscaling::v1] { HorizontalPodAutoscaler Scale }
        [api::autoscaling::v2] { HorizontalPodAutoscaler }
        [api::batch::v1] { CronJob Job }
        [api::certificates::v1] { CertificateSigningRequest }
        [api::coordination::v1] { Lease }
        [api::core::v1] {
            Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume
            PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount
        }
        [api::discovery::v1] { EndpointSlice }
        [api::events::v1] { Event }
        [api::flowcontrol::v1] { FlowSchema PriorityLevelConfiguration }
        [api::networking::v1] { IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR }
        [api::node::v1] { RuntimeClass }
        [api::policy::v1] { Eviction PodDisruptionBudget }
        [api::rbac::v1] { ClusterRole ClusterRoleBinding Role RoleBinding }
        [api::resource::v1] { DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice }
        [api::scheduling::v1] { PriorityClass }
        [api::storage::v1] {
            CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass
        }
        [apiextensions_apiserver::pkg::apis::apiextensions::v1] { CustomResourceDefinition }
        [kube_aggregator::pkg::apis::apiregistration::v1] { APIService }
        [apimachinery::pkg::apis::meta::v1] { DeleteOptions ListMeta ObjectMeta Status }
    }
}

/// The schemas of `metrics.k8s.io/v1beta1`, which k8s-openapi lacks.
fn metrics() -> [(&'static str, Value); 3] {
    let refer = |name: &str| json!({"$ref": format!("#/$defs/io.k8s.{name}")});
    let text = |description: &str| json!({"type": "string", "description": description});
    let usage = json!({
        "type": "object", "additionalProperties": refer("apimachinery.pkg.api.resource.Quantity"),
        "description": "The CPU that was used on average, and the memory working set.",
    });
    let object = |description: &str, field: &str, schema: &Value| {
        json!({
            "type": "object", "description": description, "required": ["timestamp", "window", field],
            "properties": {
                "apiVersion": text("APIVersion defines the versioned schema of this representation of an object."),
                "kind": text("Kind is a string value representing the REST resource this object represents."),
                "metadata": refer("apimachinery.pkg.apis.meta.v1.ObjectMeta"),
                "timestamp": {
                    "type": "string", "format": "date-time",
                    "description": "The usage was measured in the interval [timestamp-window, timestamp].",
                },
                "window": text("The length of the interval."),
                field: schema,
            },
        })
    };
    let container = json!({
        "type": "object", "description": "ContainerMetrics sets resource usage metrics of a container.",
        "required": ["name", "usage"],
        "properties": {"name": text("The container's name in the Pod."), "usage": usage},
    });
    let containers = json!({
        "type": "array", "items": refer("metrics.pkg.apis.metrics.v1beta1.ContainerMetrics"),
        "description": "The running containers, all measured in the same interval.",
    });
    [
        ("ContainerMetrics", container),
        ("NodeMetrics", object("NodeMetrics sets resource usage metrics of a node.", "usage", &usage)),
        ("PodMetrics", object("PodMetrics sets resource usage metrics of a pod.", "containers", &containers)),
    ]
}

/// The schemas of `network.podwright.io/v1`.
fn network() -> [(&'static str, Value); 3] {
    let text = |description: &str| json!({"type": "string", "description": description});
    let port = json!({
        "type": "object", "description": "NamedPort is a port of a container that has a name.",
        "required": ["name", "containerPort", "protocol"],
        "properties": {
            "name": text("The name, as NetworkPolicies use it."),
            "containerPort": {"type": "integer", "format": "int32", "description": "The number that the name stands for."},
            "protocol": text("TCP, UDP or SCTP."),
        },
    });
    let object = |description: &str, required: &[&str], more: Value| {
        let mut properties = json!({
            "apiVersion": text("APIVersion defines the versioned schema of this representation of an object."),
            "kind": text("Kind is a string value representing the REST resource this object represents."),
            "metadata": {"$ref": "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
        });
        for (field, schema) in more.as_object().into_iter().flatten() {
            properties[field] = schema.clone();
        }
        json!({"type": "object", "description": description, "required": required, "properties": properties})
    };
    let namespace = "NamespaceIdentity is what NetworkPolicies go by of a Namespace. It is derived from the Namespace.";
    let pod = "PodIdentity is who a Pod is to NetworkPolicies. It is derived from the Pod.";
    let of_pod = json!({
        "nodeName": text("The Pod's node."),
        "podIPs": {"type": "array", "items": {"type": "string"}, "description": "The Pod's addresses, one of a family at most."},
        "ports": {
            "type": "array", "items": {"$ref": "#/$defs/io.podwright.network.v1.NamedPort"},
            "description": "The named ports of its containers.",
        },
    });
    [
        ("NamedPort", port),
        ("NamespaceIdentity", object(namespace, &[], json!({}))),
        ("PodIdentity", object(pod, &["nodeName", "podIPs"], of_pod)),
    ]
}

/// Writes `definitions`, a concatenation of individually compressed schemas, and `definitions.rs`: the position of each, sorted by
/// name, and the name of each root's.
fn write_definitions(out: &Path, roots: &impl AsRef<[Root]>) {
    let mut definitions: BTreeMap<String, Value> = BTreeMap::new();
    let mut code = String::new();
    for root in roots.as_ref() {
        let mut generator = SchemaSettings::draft2020_12().into_generator();
        definitions.insert(root.name.clone(), (root.schema)(&mut generator).to_value());
        definitions.extend(generator.take_definitions(false));
        writeln!(code, "impl Defined for {} {{ const NAME: &'static str = {:?}; }}", root.path, root.name)
            .expect("a String takes it");
    }
    definitions
        .extend(metrics().map(|(name, schema)| (format!("io.k8s.metrics.pkg.apis.metrics.v1beta1.{name}"), schema)));
    definitions.extend(network().map(|(name, schema)| (format!("io.podwright.network.v1.{name}"), schema)));
    let mut packed = Vec::new();
    writeln!(code, "static DEFINITIONS: &[(&str, std::ops::Range<u32>)] = &[").expect("a String takes it");
    for (name, definition) in &definitions {
        let start = packed.len();
        let mut encoder = DeflateEncoder::new(&mut packed, Compression::best());
        encoder.write_all(definition.to_string().as_bytes()).expect("memory takes it");
        encoder.finish().expect("memory takes it");
        writeln!(code, "    ({name:?}, {start}..{}),", packed.len()).expect("a String takes it");
    }
    writeln!(code, "];").expect("a String takes it");
    fs::write(out.join("definitions"), packed).expect("the folder takes files");
    fs::write(out.join("definitions.rs"), code).expect("the folder takes files");
}
