//! Objects, and what is done to them: decoding, defaults, validation, patches, applies, definitions, policies.

use podwright::api::kinds::registry::Registry;
use podwright::api::managed_fields::{Apply, Managed, Operation, Scope, Set, Who, check};
use podwright::api::patch::{self, strategic};
use podwright::api::{FieldValidation, Kind, Object, duplicates, kinds, policy, protobuf, strategy, yaml};
use podwright::server::fuzz::{converted, webhook_answer};
use podwright::server::rest::body::{self, Meant};
use podwright::server::rest::negotiate::Written;
use serde_json::{Value, json};

use super::Target;

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"d","labels":{"a":"b"},"finalizers":["a/b"],"ownerReferences":[{"apiVersion":"v1","kind":"A","name":"b","uid":"u"}]},"spec":{"nodeName":"n","hostNetwork":true,"containers":[{"name":"c","image":"i:1","ports":[{"containerPort":1}],"env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a']"}}}],"resources":{"limits":{"cpu":"1"}},"livenessProbe":{"httpGet":{"port":"a"}},"volumeMounts":[{"name":"v","mountPath":"/a"}]}],"volumes":[{"name":"v","projected":{"sources":[{"secret":{"name":"s"}}]}}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}]}}},"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"a","whenUnsatisfiable":"DoNotSchedule"}],"securityContext":{"sysctls":[{"name":"a.b","value":"1"}]}}}"#;
const DEPLOYMENT: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"replicas":1,"strategy":{"rollingUpdate":{"maxSurge":"25%"}},"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#;
const SERVICE: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"type":"NodePort","clusterIPs":["10.0.0.1"],"ports":[{"port":1,"nodePort":30000,"targetPort":"http"}],"externalIPs":["1.1.1.1"]}}"#;
const DEFINITION: &str = r#"[{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","shortNames":["wd"]},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.n","statusReplicasPath":".status.n"}},"selectableFields":[{"jsonPath":".spec.s"}],"additionalPrinterColumns":[{"name":"N","type":"integer","jsonPath":".spec.n"}],"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","required":["n"],"x-kubernetes-validations":[{"rule":"self.n < 5 && oldSelf.n <= self.n","messageExpression":"'n is ' + string(self.n)"}],"properties":{"n":{"type":"integer","minimum":1,"default":2},"s":{"type":"string","pattern":"^a","enum":["a","ab"]},"l":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"]},"x":{"x-kubernetes-int-or-string":true},"e":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true},"m":{"type":"object","additionalProperties":{"type":"number","nullable":true}}}}}}}}]},"status":{"acceptedNames":{"plural":"widgets","kind":"Widget","listKind":"WidgetList"},"conditions":[{"type":"Established","status":"True"},{"type":"NamesAccepted","status":"True"}]}},{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","namespace":"d"},"spec":{"n":3,"s":"ab","l":[{"k":"a"}],"x":"5%","m":{"a":1.5,"b":null},"e":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}}}]"#;
const POLICY: &str = r#"{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"p"},"spec":{"failurePolicy":"Fail","paramKind":{"apiVersion":"v1","kind":"ConfigMap"},"matchConstraints":{"resourceRules":[{"apiGroups":["apps"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["deployments"]}]},"matchConditions":[{"name":"c","expression":"request.userInfo.username != 'x'"}],"variables":[{"name":"v","expression":"object.spec.replicas"}],"validations":[{"expression":"variables.v <= int(params.data.max)","messageExpression":"'at most ' + params.data.max","reason":"Invalid"}],"auditAnnotations":[{"key":"k","valueExpression":"string(variables.v)"}]}}"#;

pub const TARGETS: &[Target] = &[
    Target::text(
        "manifest",
        manifest,
        &[
            "a: 1\n---\nb: [x, {y: 'z'}]\n",
            "a: &x {b: 1}\nc: *x\nd: |\n  text\n  more\n",
            "{\"a\": {\"a\": 1, \"b\": 2, \"a\": 3}}",
            "<<: {a: 1}\nk: !!str 5\nn: 0o17\nt: 2001-01-01\nf: .inf\nnull: ~\n? [a]\n: b\n",
        ],
    ),
    Target::json(
        "object",
        object,
        &[
            POD,
            DEPLOYMENT,
            SERVICE,
            POLICY,
            r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{"taints":[{"key":"a","effect":"NoSchedule"}],"podCIDRs":["10.0.0.0/24"]},"status":{"capacity":{"cpu":"1"}}}"#,
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"type":"kubernetes.io/tls","data":{"a":"eA=="},"stringData":{"b":"c"}}"#,
            r#"{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"a"},"spec":{"schedule":"* * * * *","timeZone":"UTC","jobTemplate":{"spec":{"completions":2,"completionMode":"Indexed","successPolicy":{"rules":[{"succeededIndexes":"0-1"}]},"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}"#,
            r#"{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"a"},"spec":{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"port":1,"endPort":2}]}]}}"#,
            r#"{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"a"},"spec":{"rules":[{"host":"*.a.b","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":1}}}}]}}]}}"#,
            r#"{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"a"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}]}}"#,
            r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"a"},"rules":[{"verbs":["*"],"nonResourceURLs":["/x/*"]}],"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]}}"#,
            r#"{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"a"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}"#,
        ],
    ),
    Target::json(
        "patch",
        patches,
        &[
            r#"[{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i","args":["a","b"]}],"tolerations":[{"key":"a"}]}},{"metadata":{"finalizers":["x"],"$deleteFromPrimitiveList/finalizers":["y"]},"spec":{"containers":[{"name":"c","$patch":"delete"},{"name":"d","image":"j"}],"$setElementOrder/containers":[{"name":"d"}],"$retainKeys":["containers"]}}]"#,
            r#"[{"a":{"b":[1,2]}},[{"op":"add","path":"/a/b/-","value":3},{"op":"test","path":"/a/b/0","value":1},{"op":"move","from":"/a/b","path":"/c"},{"op":"copy","from":"/c","path":"/d~1e"},{"op":"replace","path":"","value":{}},{"op":"remove","path":"/a"}]]"#,
            r#"[{"a":[1]},[{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"},{"op":"copy","from":"","path":"/a/-"}]]"#,
            r#"[{"a":{"b":[1,"move"]}},[{"op":"add","path":"/a/b/-","value":3},{"op":"test","path":"/a/b/0","value":1},{"op":"move","from":"/a/b","path":"/a/b/0"}]]"#,
            r#"[{"a":{"b":[1,"move"]}},[{"op":"add","path":"/a/b/-","value":3},{"op":"move","from":"/a/b","path":"/d"},{"op":"replace","path":"","value":{}},{"op":"remove","path":"/a"}]]"#,
            r#"[{"a":1,"b":{"c":2}},{"a":null,"b":{"d":{"e":null}}}]"#,
        ],
    ),
    Target::json(
        "apply",
        applies,
        &[
            r#"[{"metadata":{"name":"a"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"E","value":"v"}],"ports":[{"containerPort":80,"protocol":"UDP"}]}],"tolerations":[{"key":"x"}]}}}},{"metadata":{"name":"a","labels":{"x":"y"}},"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"c","image":"j","args":["a"]},{"name":"d","image":"k"}]}}}}]"#,
        ],
    ),
    Target::json(
        "field_set",
        field_set,
        &[
            r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}}},"f:finalizers":{"v:\"x\"":{}},"i:0":{}}}"#,
        ],
    ),
    Target::json("definition", definition, &[DEFINITION]),
    Target::json("admission_policy", admission_policy, &[POLICY]),
    Target::json(
        "webhook_answer",
        webhook,
        &[
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W10="}}"#,
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"status":{"code":403,"message":"no"},"warnings":["w"],"auditAnnotations":{"k":"v"}}}"#,
            "[]",
        ],
    ),
    Target::json(
        "conversion_answer",
        conversion,
        &[
            r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{"uid":"u","result":{"status":"Success"},"convertedObjects":[{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"w"},"spec":{"n":1}}]}}"#,
            r#"{"response":{"uid":"u","result":{"status":"Failed","message":"no"}}}"#,
        ],
    ),
    Target::bytes("protobuf", protobuf_body, protobuf_seeds),
];

fn manifest(text: &str) {
    if let Ok(documents) = yaml::documents(text) {
        for document in documents {
            let written = yaml::to_string(&document).expect("what was read can be written");
            let again = yaml::documents(&written).expect("what was written can be read");
            assert_eq!(again, [document], "{written}");
        }
    }
    drop(duplicates::fields(text));
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        let twice = duplicates::fields(&value.to_string());
        assert!(twice.is_empty(), "what was read has each name once: {twice:?}");
    }
    for form in [Written::Json, Written::Yaml] {
        if let Err(status) = body::parse(text.as_bytes(), form, Meant::Object("Pod")) {
            assert_eq!(status.code, 400, "{}", status.message);
        }
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or("")
}

fn object(value: Value) {
    let Some(kind) = kinds::of(text(&value, "apiVersion"), text(&value, "kind")) else { return };
    // As a damaged or foreign store may hold it.
    let raw = Object(value.clone());
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    kind.columns().iter().for_each(|column| drop(column.text(&raw, now)));
    drop(kind.fields(&raw));
    for validation in [FieldValidation::Strict, FieldValidation::Ignore] {
        let Ok((decoded, _)) = kind.decode(value.clone(), validation) else { continue };
        let (again, _) = kind.decode(decoded.0.clone(), FieldValidation::Strict).expect("what was decoded decodes");
        assert_eq!(again.0, decoded.0, "decoding is idempotent");
        let mut created = decoded.clone();
        strategy::prepare_create(kind, &mut created);
        if strategy::validate_create(kind, &created).is_ok() {
            is_stable(kind, &created);
        }
        let mut status = decoded.clone();
        strategy::prepare_status_update(kind, &mut status, &created);
        drop(strategy::validate_status_update(kind, &status, &created));
        let _ = (kind.strategy.default_grace)(&created);
    }
}

/// What was created may be written back as it is: it is valid, and unchanged.
fn is_stable(kind: &'static Kind, created: &Object) {
    let (mut same, _) = kind.decode(created.0.clone(), FieldValidation::Strict).expect("what was made decodes");
    strategy::prepare_update(kind, &mut same, created);
    assert!(strategy::is_unchanged(&same, created), "{}\nbecame\n{}", created.0, same.0);
    if let Err(status) = strategy::validate_update(kind, &same, created) {
        panic!("{} as it was: {}", created.0, status.message);
    }
}

fn pair(value: Value) -> Option<(Value, Value)> {
    match value {
        Value::Array(mut two) if two.len() == 2 => two.pop().and_then(|second| Some((two.pop()?, second))),
        _ => None,
    }
}

fn patches(value: Value) {
    let Some((target, change)) = pair(value) else { return };
    if let Ok(patched) = patch::json(&target, &change) {
        let text = patched.to_string();
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "what was patched can be read again: {text}");
    }
    if change.is_object() {
        let once = patch::merge(&target, &change);
        assert_eq!(patch::merge(&once, &change), once, "a merge patch is idempotent");
    }
    for kind in ["pods", "deployments", "services", "configmaps"] {
        let kind = kinds::lookup(kind).unwrap();
        let _ = strategic::merge(&kind.schema(), &target, &change);
        let _ = patch::apply::merge(kind, &change, Some(&Object(target.clone())));
    }
}

fn applies(value: Value) {
    let Some((live, config)) = pair(value) else { return };
    let kind = kinds::lookup("deployments").unwrap();
    let decode = |mut value: Value| {
        let map = value.as_object_mut()?;
        map.insert("apiVersion".into(), kind.api_version().into());
        map.insert("kind".into(), kind.kind.into());
        kind.decode(value, FieldValidation::Strict).ok().map(|(object, _)| object)
    };
    let (Some(live), Some(config)) = (decode(live), decode(config)) else { return };
    let schema = kind.schema();
    if check(&schema, &config.0).is_err() || check(&schema, &live.0).is_err() {
        return;
    }
    let who = |manager: &str| Who {
        manager: manager.into(),
        operation: Operation::Apply,
        api_version: kind.api_version(),
        subresource: String::new(),
    };
    let run = |manager: &str, live: Option<&Object>, config: &Object, force| {
        let managed = live.and_then(Managed::of).unwrap_or_default();
        let who = who(manager);
        Apply { schema: &schema, scope: Scope::Main, who: &who, now: "2026-01-01T00:00:00Z" }
            .run(live, config, managed, force)
    };
    let Ok(first) = run("them", None, &live, false) else { return };
    let Ok(forced) = run("us", Some(&first), &config, true) else { panic!("force never conflicts") };
    if Managed::of(&forced).is_none_or(|managed| managed.is_empty()) {
        // Of what nobody has said anything, all is said to be there before the first apply.
        return;
    }
    match run("us", Some(&forced), &config, false) {
        Ok(again) => assert_eq!(again.0, forced.0, "an apply is idempotent"),
        Err(_) => panic!("a conflict with oneself"),
    }
}

fn field_set(value: Value) {
    let Some(set) = Set::from_json(&value) else { return };
    assert_eq!(Set::from_json(&set.to_json()).as_ref(), Some(&set));
    set.paths();
    assert_eq!(set.clone().union(&set), set);
    assert!(set.difference(&set).is_empty());
}

fn definition(value: Value) {
    let Some((definition, object)) = pair(value) else { return };
    let kind = kinds::of("apiextensions.k8s.io/v1", "CustomResourceDefinition").unwrap();
    let Ok((mut definition, _)) = kind.decode(definition, FieldValidation::Strict) else { return };
    let status = definition.0["status"].clone();
    strategy::prepare_create(kind, &mut definition);
    if strategy::validate_create(kind, &definition).is_err() {
        return;
    }
    // As its controller leaves it.
    definition.0["status"] = status;
    let registry = Registry::default();
    registry.put(&definition);
    let kinds = registry.now();
    let Some(kind) = kinds.of(text(&object, "apiVersion"), text(&object, "kind")) else { return };
    let Ok((mut made, _)) = kind.decode(object, FieldValidation::Ignore) else { return };
    kind.default(&mut made);
    strategy::prepare_create(kind, &mut made);
    if strategy::validate_create(kind, &made).is_ok() {
        is_stable(kind, &made);
    }
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    kind.columns().iter().for_each(|column| drop(column.text(&made, now)));
    drop(kind.fields(&made));
}

fn admission_policy(value: Value) {
    let spec = &value["spec"];
    let compiled =
        policy::Policy::compile(spec, &policy::Known { params: Some(Default::default()), ..Default::default() });
    for expression in compiled.expressions() {
        let _ = expression.program.as_ref().map_err(ToString::to_string);
    }
    drop(policy::type_check(spec, &[]));
}

fn webhook(value: Value) {
    for mutating in [true, false] {
        if let Ok(response) = webhook_answer(value.clone(), mutating) {
            assert!(response.is_object() && response["uid"] == json!("u"), "{response}");
        }
    }
}

fn conversion(value: Value) {
    if let Ok(object) = converted(value) {
        assert_eq!((object.api_version(), object.kind()), ("example.com/v2", "Widget"));
    }
}

fn protobuf_body(bytes: &[u8]) {
    let Ok(value) = protobuf::decode(bytes) else { return };
    let Some(kind) = kinds::of(text(&value, "apiVersion"), text(&value, "kind")) else { return };
    if let Ok((mut object, _)) = kind.decode(value, FieldValidation::Ignore) {
        strategy::prepare_create(kind, &mut object);
        drop(strategy::validate_create(kind, &object));
    }
}

/// A length-delimited field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![number << 3 | 2, (length & 0x7f) as u8 | 0x80, (length >> 7) as u8];
    out.extend_from_slice(content);
    out
}

/// An envelope around an object's bytes.
fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let of = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &of), field(2, raw)].concat()
}

fn protobuf_seeds() -> Vec<Vec<u8>> {
    let metadata =
        [field(1, b"a"), field(3, b"default"), field(11, &[field(1, b"k"), field(2, b"v")].concat())].concat();
    let map = [field(1, &metadata), field(2, &[field(1, b"a"), field(2, b"1")].concat())].concat();
    let container = [field(1, b"c"), field(2, b"busybox:1"), field(6, &[0x18, 0x50])].concat();
    let pod = [field(1, &metadata), field(2, &field(2, &container))].concat();
    vec![
        envelope("v1", "ConfigMap", &map),
        envelope("v1", "Pod", &pod),
        envelope("meta.k8s.io/v1", "DeleteOptions", &[8, 5]),
    ]
}
