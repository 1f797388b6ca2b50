//! Which definitions are taken, whose names are accepted, and how a definition ends.

use podwright::api::Options;
use serde_json::{Value, json};

use super::{DEFINITIONS, causes, definition, spec, widget};
use crate::server::Api;

/// What is changed in a good definition (a path and a value), and what is said of it.
fn wrong() -> Vec<(&'static str, Value, &'static str)> {
    let property = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a";
    let root = "/spec/versions/0/schema/openAPIV3Schema";
    let version = "/spec/versions/0";
    let at = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[a]";
    let _ = (root, version, at);
    vec![
        (
            "/metadata/name",
            json!("other.example.com"),
            "metadata.name: Invalid value: \"other.example.com\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            "/spec/scope",
            json!("World"),
            "spec.scope: Unsupported value: \"World\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        (
            "/spec/names/kind",
            json!("Wid get"),
            "spec.names.kind: Invalid value: \"Wid get\": may have mixed case, but should otherwise match: a DNS-1035 label",
        ),
        (
            "/spec/preserveUnknownFields",
            json!(true),
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true",
        ),
        ("/spec/versions/0/storage", json!(false), "must have exactly one version marked as storage version"),
        ("/spec/versions/0/name", json!("V 1"), "spec.versions[0].name: Invalid value: \"V 1\""),
        ("/spec/versions/0/schema", json!({}), "openAPIV3Schema: Required value"),
        (root, json!({}), "openAPIV3Schema.type: Required value: must not be empty at the root"),
        (root, json!({"type": "string"}), "type: Invalid value: \"string\": must be object at the root"),
        (
            root,
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            "additionalProperties: Forbidden: must not be used at the root",
        ),
        (
            root,
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            "properties[metadata]: Forbidden: must not specify anything other than name and generateName",
        ),
        (property, json!({}), "properties[a].type: Required value: must not be empty for specified object fields"),
        (property, json!({"type": "thing"}), "properties[a].type: Unsupported value: \"thing\""),
        (property, json!({"type": "array"}), "properties[a].items: Required value: must be specified"),
        (
            property,
            json!({"type": "array", "items": {}}),
            "properties[a].items.type: Required value: must not be empty for specified array items",
        ),
        (
            property,
            json!({"type": "object", "additionalProperties": false}),
            "additionalProperties cannot be set to false",
        ),
        (
            property,
            json!({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            "additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            property,
            json!({"x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-int-or-string": true}),
            "properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if \
             x-kubernetes-int-or-string is true",
        ),
        (
            property,
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "string"}, {"type": "integer"}]}),
            "anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            property,
            json!({"type": "string", "x-kubernetes-embedded-resource": true}),
            "must be object if x-kubernetes-embedded-resource is true",
        ),
        (
            property,
            json!({"type": "object", "x-kubernetes-embedded-resource": true}),
            "properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without",
        ),
        (
            property,
            json!({"type": "string", "x-kubernetes-preserve-unknown-fields": false}),
            "must be true or undefined",
        ),
        (
            property,
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            "uniqueItems: Forbidden: uniqueItems cannot be set to true",
        ),
        (property, json!({"type": "string", "$ref": "#/x"}), "$ref: Forbidden: $ref is not supported"),
        (
            property,
            json!({"type": "string", "pattern": "("}),
            "pattern: Invalid value: \"(\": must be a valid regular expression",
        ),
        (
            property,
            json!({"type": "string", "x-kubernetes-list-type": "set"}),
            "must be array if x-kubernetes-list-type is specified",
        ),
        (
            property,
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "bag"}),
            "x-kubernetes-list-type: Unsupported value: \"bag\"",
        ),
        (
            property,
            json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"}),
            "must be atomic as item of a list with x-kubernetes-list-type=set",
        ),
        (
            property,
            json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}),
            "x-kubernetes-list-map-keys: Required value: must not be empty",
        ),
        (
            property,
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object"}}),
            "entries must all be names of item properties",
        ),
        (
            property,
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
            "so it must have a default or be a required property",
        ),
        (
            property,
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-map-keys": ["k"]}),
            "must be map if x-kubernetes-list-map-keys is non-empty",
        ),
        (
            property,
            json!({"type": "string", "x-kubernetes-map-type": "atomic"}),
            "must be object if x-kubernetes-map-type is specified",
        ),
        (property, json!({"type": "string", "default": 5}), "default: Invalid value: \"integer\""),
        (
            property,
            json!({"type": "object", "default": {"x": 1}}),
            "default: Invalid value: {\"x\":1}: must not have unknown fields",
        ),
        (
            property,
            json!({"type": "string", "anyOf": [{"type": "string"}]}),
            "anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            property,
            json!({"type": "object", "anyOf": [{"properties": {"q": {"minimum": 1}}}]}),
            "properties[a].properties[q]: Required value: because it is defined in",
        ),
        (
            property,
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self.nope > 1"}]}),
            "type 'int' does not support field selection",
        ),
        (
            property,
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 'a'"}]}),
            "found no matching overload for '_>_' applied to '(int, string)'",
        ),
        (
            property,
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self + 1"}]}),
            "cel expression must evaluate to a bool",
        ),
        (property, json!({"type": "integer", "x-kubernetes-validations": [{"rule": " "}]}), "rule is not specified"),
        (
            property,
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self >"}]}),
            "compilation failed: ERROR: <input>:1:",
        ),
        (
            property,
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0", "reason": "Because"}]}),
            "reason: Unsupported value: \"Because\"",
        ),
        (
            property,
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0", "message": "a\nb"}]}),
            "must not contain line breaks",
        ),
        (
            property,
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0", "messageExpression": "1"}]}),
            "messageExpression must evaluate to a string",
        ),
        (
            property,
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0", "optionalOldSelf": true}]}),
            "may not be set if oldSelf is not used in rule",
        ),
        (
            property,
            json!({"type": "object", "properties": {"b": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.b > 0", "fieldPath": ".c"}]}),
            "must be a valid path",
        ),
        (
            property,
            json!({"type": "object", "properties": {"b": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.c > 0"}]}),
            "undefined field 'c'",
        ),
        (
            property,
            json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}),
            "oldSelf cannot be used on the uncorrelatable portion of the schema within spec.versions[0]",
        ),
        (
            "/spec/versions/0/subresources",
            json!({"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".status.replicas"}}),
            "should be a json path under .spec",
        ),
        ("/spec/versions/0/subresources", json!({"scale": {"specReplicasPath": ".spec.x"}}), "statusReplicasPath: "),
        (
            "/spec/versions/0/additionalPrinterColumns",
            json!([{"name": "A", "type": "text", "jsonPath": ".spec.a"}]),
            "additionalPrinterColumns[0].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns",
            json!([{"name": "A", "type": "string", "jsonPath": "spec a"}]),
            "additionalPrinterColumns[0].JSONPath: Invalid value: \"spec a\": must be a simple json path starting with .",
        ),
        (
            "/spec/versions/0/selectableFields",
            json!([{"jsonPath": ".spec.zzz"}]),
            "is an invalid path: does not refer to a valid field",
        ),
        (
            "/spec/versions/0/selectableFields",
            json!([{"jsonPath": ".spec"}]),
            "must point to a field of type string, boolean or integer",
        ),
        (
            "/spec/versions/0/selectableFields",
            json!([{"jsonPath": ".spec.a"}, {"jsonPath": ".spec.a"}]),
            "selectableFields[1].jsonPath: Duplicate value",
        ),
        ("/spec/conversion", json!({"strategy": "Webhook"}), "required when strategy is set to Webhook"),
        ("/spec/conversion", converted(json!({})), "exactly one of url or service is required"),
        ("/spec/conversion", converted(json!({"url": "http://x/"})), "'https' is the only allowed URL scheme"),
        (
            "/spec/conversion",
            converted(json!({"url": "https://u:p@x/"})),
            "user information is not permitted in the URL",
        ),
        (
            "/spec/conversion",
            converted(json!({"url": "https://x/?q"})),
            "query parameters are not permitted in the URL",
        ),
        (
            "/spec/conversion",
            converted(json!({"service": {"name": "s", "namespace": "d", "path": "/../x"}})),
            "segment[0]: a lowercase RFC 1123 subdomain",
        ),
        (
            "/spec/conversion",
            converted(json!({"service": {"name": "s", "path": "/x"}})),
            "service namespace is required",
        ),
    ]
}

fn converted(client_config: Value) -> Value {
    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client_config}})
}

#[tokio::test]
async fn wrong_definitions_are_refused_with_the_field() {
    let api = Api::new().await;
    for (path, value, why) in wrong() {
        let mut it = definition(spec(json!({"a": {"type": "string"}})));
        let (parent, field) = path.rsplit_once('/').unwrap();
        it.pointer_mut(parent).unwrap()[field] = value.clone();
        let refused = api.create(DEFINITIONS, it).await.expect_err(&format!("{path} {value}"));
        assert!(
            causes(&refused).iter().any(|cause| cause.contains(why)) || refused.message.contains(why),
            "{path} {value}: {} ({why})",
            refused.message
        );
    }
    let mut protected = definition(spec(json!({})));
    protected["metadata"]["name"] = "widgets.stuff.k8s.io".into();
    protected["spec"]["group"] = "stuff.k8s.io".into();
    let refused = api.create(DEFINITIONS, protected.clone()).await.unwrap_err();
    assert!(refused.message.contains("protected groups must have approval annotation"), "{}", refused.message);
    protected["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, testing"});
    api.create(DEFINITIONS, protected).await.unwrap();
}

#[tokio::test]
async fn names_are_accepted_once() {
    let api = Api::new().await;
    api.create(DEFINITIONS, definition(spec(json!({})))).await.unwrap();
    let accepted = api.until("widgets.example.com", "NamesAccepted", "True").await;
    assert_eq!((&accepted["reason"], &accepted["message"]), (&json!("NoConflicts"), &json!("no conflicts found")));
    let established = api.until("widgets.example.com", "Established", "True").await;
    assert_eq!(established["reason"], "InitialNamesAccepted");
    assert_eq!(established["message"], "the initial names have been accepted");
    let status = api.get(DEFINITIONS, "widgets.example.com").await.unwrap().0["status"].clone();
    assert_eq!(status["acceptedNames"]["listKind"], "WidgetList");
    assert_eq!(status["storedVersions"], json!(["v1"]));

    let mut second = definition(spec(json!({})));
    second["metadata"]["name"] = "gadgets.example.com".into();
    second["spec"]["names"] = json!({"plural": "gadgets", "kind": "Widget", "shortNames": ["wd"]});
    api.create(DEFINITIONS, second).await.unwrap();
    let refused = api.until("gadgets.example.com", "NamesAccepted", "False").await;
    assert_eq!(refused["reason"], "ShortNamesConflict");
    assert_eq!(refused["message"], "\"wd\" is already in use");
    let not = api.until("gadgets.example.com", "Established", "False").await;
    assert_eq!((&not["reason"], &not["message"]), (&json!("NotAccepted"), &json!("not all names are accepted")));
    assert!(api.list("gadgets.example.com", Options::default()).await.unwrap_err().is_not_found());

    // Who waits gets what becomes free.
    api.delete(DEFINITIONS, "widgets.example.com", Options::default()).await.unwrap();
    api.until("gadgets.example.com", "Established", "True").await;
    api.list("gadgets.example.com", Options::default()).await.unwrap();
}

#[tokio::test]
async fn a_definition_takes_its_objects_with_it() {
    let api = Api::new().await;
    api.define(definition(spec(json!({"a": {"type": "string"}})))).await;
    api.create("widgets", widget("one", json!({}))).await.unwrap();
    let mut held = widget("held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    api.create("widgets", held).await.unwrap();
    api.delete(DEFINITIONS, "widgets.example.com", Options::default()).await.unwrap();

    let gone = || async { api.get("widgets", "one").await.is_err() };
    for _ in 0..500 {
        if gone().await {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(api.get("widgets", "one").await.unwrap_err().is_not_found());
    let terminating = api.until("widgets.example.com", "Terminating", "True").await;
    assert_eq!(terminating["reason"], "InstanceDeletionInProgress");
    // What is held is still served; nothing new is taken.
    assert!(api.get("widgets", "held").await.unwrap().is_terminating());
    let refused = api.create("widgets", widget("late", json!({}))).await.unwrap_err();
    assert_eq!(refused.code, 405, "{refused}");
    assert!(refused.message.contains("create not allowed while custom resource definition is terminating"));

    api.patch("widgets", "held", json!({"metadata": {"finalizers": null}})).await.unwrap();
    for _ in 0..500 {
        if api.get(DEFINITIONS, "widgets.example.com").await.is_err() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(api.get(DEFINITIONS, "widgets.example.com").await.unwrap_err().is_not_found());
    assert_eq!(api.list("widgets", Options::default()).await.unwrap_err().code, 404);

    // The same name can be taken again, empty.
    api.define(definition(spec(json!({"b": {"type": "string"}})))).await;
    assert!(api.list("widgets", Options::default()).await.unwrap().items.is_empty());
    api.create("widgets", widget("one", json!({"b": "x"}))).await.unwrap();
}

#[tokio::test]
async fn what_is_stored_keeps_its_version() {
    let api = Api::new().await;
    api.define(definition(spec(json!({"a": {"type": "string"}})))).await;
    let mut changed = api.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    changed.0["spec"]["versions"][0]["name"] = "v2".into();
    let refused = api.update(DEFINITIONS, &changed).await.unwrap_err();
    assert!(refused.message.contains("v1 was previously a storage version"), "{}", refused.message);
    let mut changed = api.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    changed.0["spec"]["scope"] = "Cluster".into();
    assert!(api.update(DEFINITIONS, &changed).await.unwrap_err().message.contains("field is immutable"));
}

/// Whoever changes a definition again and again leaves nothing behind in memory but its newest state.
#[test]
fn what_a_definition_once_said_is_forgotten() {
    use podwright::api::Object;
    use podwright::api::kinds::registry::Registry;
    use std::sync::Arc;

    let registry = Registry::default();
    let defined = |change: &dyn Fn(&mut Value)| {
        let mut it = definition(spec(json!({"size": {"type": "integer"}})));
        it["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        change(&mut it);
        registry.put(&Object(it));
        let kinds = registry.now();
        let kind = kinds.lookup("widgets.example.com");
        kind.map(|kind| (std::ptr::from_ref(kind) as usize, kind, Arc::downgrade(&kind.custom().unwrap())))
    };
    let (first, kind, mut last) = defined(&|_| {}).unwrap();
    for n in 0..50 {
        let (at, kind, version) = defined(&|it| {
            let text = format!("{n}{}", "x".repeat(1_000));
            it["spec"]["names"]["shortNames"] = json!([format!("w{n}")]);
            it["spec"]["names"]["categories"] = json!([format!("c{n}")]);
            let version = &mut it["spec"]["versions"][0];
            version["schema"]["openAPIV3Schema"]["description"] = text.as_str().into();
            version["additionalPrinterColumns"] =
                json!([{"name": text, "type": "string", "jsonPath": format!(".spec.{n}"), "description": text}]);
        })
        .unwrap();
        assert_eq!(at, first, "it is the same row");
        assert_eq!((kind.short_names(), kind.categories()), (vec![format!("w{n}")], vec![format!("c{n}")]));
        assert!(kind.columns()[1].name.starts_with(&n.to_string()));
        assert!(last.upgrade().is_none(), "what it said before is gone");
        last = version;
    }
    // Another shape is another row; the first one says what the definition says, as long as there is one.
    let (other, _, version) = defined(&|it| it["spec"]["versions"][0]["subresources"] = json!({"status": {}})).unwrap();
    assert!(other != first && last.upgrade().is_none());
    assert!(Arc::ptr_eq(&kind.custom().unwrap(), &version.upgrade().unwrap()));
    registry.remove("widgets.example.com");
    assert!(version.upgrade().is_none() && kind.custom().unwrap().terminating);
}

/// There is an end to what is kept for good.
#[test]
fn definitions_have_so_many_shapes_and_no_more() {
    use podwright::api::Object;
    use podwright::api::kinds::registry::Registry;

    let registry = Registry::default();
    let served = |n: usize| {
        let mut it = definition(json!({"type": "object"}));
        it["spec"]["names"] = json!({"plural": format!("p{n}"), "singular": format!("s{n}"), "kind": format!("K{n}")});
        it["metadata"]["name"] = format!("p{n}.example.com").into();
        it["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        let object = Object(it);
        registry.put(&object);
        let served = registry.now().lookup(object.name()).is_some();
        if n > 0 {
            registry.remove(object.name());
        }
        served
    };
    assert!((0..10_000).all(&served));
    assert!(!served(10_000));
    assert!(served(0) && served(9_999), "one that there was before is served again");
}
