//! Strict decoding.

use podwright::api::{FieldValidation, kinds, yaml};
use serde_json::{Value, json};

fn attempt(text: &str, validation: FieldValidation) -> Result<(Value, Vec<String>), String> {
    let value = yaml::documents(text).expect("valid YAML").remove(0);
    let kind = kinds::of(value["apiVersion"].as_str().unwrap(), value["kind"].as_str().unwrap()).unwrap();
    kind.decode(value, validation).map(|(o, w)| (o.0, w)).map_err(|s| s.message)
}

fn pod(spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {spec}")
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let text = pod("{containers: [{name: c, imagee: x}], foo: 1}");
    let error = attempt(&text, FieldValidation::Strict).unwrap_err();
    let expected = "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: \
                    unknown field \"spec.containers[0].imagee\", unknown field \"spec.foo\"";
    assert_eq!(error, expected);

    let (value, warnings) = attempt(&text, FieldValidation::Warn).unwrap();
    assert_eq!(warnings, ["unknown field \"spec.containers[0].imagee\"", "unknown field \"spec.foo\""]);
    assert_eq!(value["spec"], json!({"containers": [{"name": "c"}]}));
    assert!(attempt(&text, FieldValidation::Ignore).unwrap().1.is_empty());
}

#[test]
fn wrong_types_are_refused_with_their_path() {
    for (spec, expected) in [
        (
            "{containers: [{ports: [{containerPort: x}]}]}",
            "json: cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            "{containers: 1}",
            "json: cannot unmarshal number into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            "{hostNetwork: 'yes'}",
            "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
        (
            "{terminationGracePeriodSeconds: 1.5}",
            "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64",
        ),
        ("{priority: 3000000000}", "of type int32"),
        (
            "{nodeSelector: {a: 1}}",
            "json: cannot unmarshal number into Go struct field PodSpec.spec.nodeSelector of type string",
        ),
        (
            "{containers: [{resources: {limits: {cpu: 1x}}}]}",
            "spec.containers[0].resources.limits.cpu: quantities must match",
        ),
    ] {
        let error = attempt(&pod(spec), FieldValidation::Strict).unwrap_err();
        assert!(error.starts_with("Pod in version \"v1\" cannot be handled as a Pod: "), "{error}");
        assert!(error.contains(expected), "{error}\n  should contain\n{expected}");
    }
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {x: '!!'}}";
    assert!(
        attempt(secret, FieldValidation::Strict).unwrap_err().contains("data.x: illegal base64 data at input byte 0")
    );
}

#[test]
fn values_are_brought_into_upstreams_form() {
    let spec = "{activeDeadlineSeconds: null, containers: [{name: c, command: [null], \
                resources: {limits: {cpu: 0.5, memory: 1024Mi}}}]}";
    let text = pod(spec).replace("name: a", "name: a, creationTimestamp: null");
    let (value, _) = attempt(&text, FieldValidation::Strict).unwrap();
    assert_eq!(
        value,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [
            {"name": "c", "command": [""], "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]}})
    );
    let lease = "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: a}, \
                 spec: {renewTime: '2026-01-02T03:04:05+01:00'}}";
    let (value, _) = attempt(lease, FieldValidation::Strict).unwrap();
    assert_eq!(value["spec"]["renewTime"], "2026-01-02T02:04:05.000000Z");
}

#[test]
fn octal_modes_are_numbers() {
    let text = pod("\n  containers: []\n  volumes: [{name: v, configMap: {name: m, defaultMode: 0644}}]");
    let (value, _) = attempt(&text, FieldValidation::Strict).unwrap();
    assert_eq!(value["spec"]["volumes"][0]["configMap"]["defaultMode"], 420);
}

#[test]
fn another_kind_in_the_data_is_refused() {
    let pod = kinds::lookup("pods").unwrap();
    let of = |value| pod.decode(value, FieldValidation::Strict);
    let error = of(json!({"apiVersion": "v1", "kind": "Service"})).unwrap_err().message;
    let why = "Service in version \"v1\" cannot be handled as a Pod: converting (v1.Service) to (core.Pod): unknown conversion";
    assert_eq!(error, why);
    let (object, _) = of(json!({"metadata": {"name": "a"}})).unwrap();
    assert_eq!((object.api_version(), object.kind()), ("v1", "Pod"));
}

#[test]
fn a_time_is_normal_or_refused() {
    let lease = |time: &str| {
        let head = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: a}\nspec: ";
        attempt(&format!("{head}{{renewTime: '{time}'}}"), FieldValidation::Strict)
    };
    let normal = lease("2026-01-01T01:00:00+01:00").unwrap().0;
    assert_eq!(normal["spec"]["renewTime"], "2026-01-01T00:00:00.000000Z");
    for bad in ["garbage", "2026-01-01", "-009999-01-02T01:59:59Z", "9999-12-31T23:59:59-01:00"] {
        let error = lease(bad).unwrap_err();
        assert!(error.contains("spec.renewTime: parsing time"), "{bad}: {error}");
    }
}
