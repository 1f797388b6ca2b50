//! Objects of custom kinds: pruned, defaulted, validated, ruled.

use podwright::api::request::PatchType;
use podwright::api::{FieldValidation, Options, Verb};
use serde_json::{Value, json};

use super::{DEFINITIONS, causes, definition, spec, widget};
use crate::server::{Api, object_of, request};

/// A property `a` of this schema, a value of it, and what is said of that; "": it is fine.
fn cases() -> Vec<(Value, Value, &'static str)> {
    let ports = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
        "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "string"}, "p": {"type": "integer"}}}});
    vec![
        (
            json!({"type": "integer"}),
            json!("x"),
            "spec.a: Invalid value: \"string\": spec.a in body must be of type integer: \"string\"",
        ),
        (json!({"type": "integer"}), json!(1.5), "spec.a in body must be of type integer: \"number\""),
        (json!({"type": "integer"}), json!(2.0), ""),
        (json!({"type": "number"}), json!(2), ""),
        // Where no null may be, one says nothing.
        (json!({"type": "string"}), json!(null), ""),
        (json!({"type": "string", "nullable": true}), json!(null), ""),
        (json!({"type": "boolean"}), json!("true"), "must be of type boolean"),
        (json!({"type": "object"}), json!([]), "must be of type object: \"array\""),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%"), ""),
        (json!({"x-kubernetes-int-or-string": true}), json!(5), ""),
        (json!({"x-kubernetes-int-or-string": true}), json!(true), "must be of type integer,string: \"boolean\""),
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            "spec.a: Invalid value: 0: spec.a in body should be greater than or equal to 1",
        ),
        (json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}), json!(1), "should be greater than 1"),
        (json!({"type": "integer", "maximum": 5}), json!(6), "spec.a in body should be less than or equal to 5"),
        (json!({"type": "number", "maximum": 5, "exclusiveMaximum": true}), json!(5), "should be less than 5"),
        (json!({"type": "integer", "multipleOf": 5}), json!(6), "should be a multiple of 5"),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3), ""),
        (json!({"type": "string", "minLength": 2}), json!("x"), "spec.a in body should be at least 2 chars long"),
        (json!({"type": "string", "maxLength": 2}), json!("xyz"), "spec.a: Too long: may not be more than 2 bytes"),
        (json!({"type": "string", "maxLength": 2}), json!("éé"), ""),
        (json!({"type": "string", "pattern": "^[a-z]+$"}), json!("A"), "spec.a in body should match '^[a-z]+$'"),
        (
            json!({"type": "string", "enum": ["L", "S"]}),
            json!("XL"),
            "spec.a: Unsupported value: \"XL\": supported values: \"L\", \"S\"",
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("today"),
            "spec.a in body must be of type date-time: \"today\"",
        ),
        (json!({"type": "string", "format": "ipv4"}), json!("1.2.3"), "must be of type ipv4"),
        (json!({"type": "string", "format": "uuid"}), json!("123e4567-e89b-12d3-a456-426614174000"), ""),
        (json!({"type": "string", "format": "whatever"}), json!("x"), ""),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            "spec.a: Too many: 2: must have at most 1 items",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            json!([]),
            "spec.a in body should have at least 1 items",
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}}),
            json!([1, "b"]),
            "spec.a[1]: Invalid value: \"string\": spec.a[1] in body must be of type integer",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
            json!(["a", "a"]),
            "spec.a[1]: Duplicate value: \"a\"",
        ),
        (ports.clone(), json!([{"n": "x"}, {"n": "x"}]), "spec.a[1]: Duplicate value: {\"n\":\"x\"}"),
        (ports, json!([{"p": 1}]), "spec.a[0].n: Required value"),
        (
            json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}}),
            json!({}),
            "spec.a.x: Required value",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"k": "v"}),
            "spec.a.k in body must be of type integer",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1}),
            json!({"k": 1, "l": 2}),
            "spec.a: Too many: 2",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}),
            json!({}),
            "should have at least 1 properties",
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 5}, {"multipleOf": 2}]}),
            json!(3),
            "\"spec.a\" must validate one and only one schema (oneOf). Found none valid",
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 5}, {"multipleOf": 2}]}),
            json!(6),
            "must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ),
        (
            json!({"type": "integer", "anyOf": [{"minimum": 5}, {"multipleOf": 2}]}),
            json!(3),
            "\"spec.a\" must validate at least one schema (anyOf)",
        ),
        (json!({"type": "integer", "anyOf": [{"minimum": 5}, {"multipleOf": 2}]}), json!(6), ""),
        (json!({"type": "integer", "allOf": [{"minimum": 5}]}), json!(3), "should be greater than or equal to 5"),
        (json!({"type": "integer", "not": {"enum": [3]}}), json!(3), "\"spec.a\" must not validate the schema (not)"),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"spec": {}}),
            "spec.a.apiVersion: Required value: must not be empty",
        ),
        // rules
        (
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3"}]}),
            json!(2),
            "spec.a: Invalid value: \"integer\": failed rule: self > 3",
        ),
        (
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3", "message": "too small", "reason": "FieldValueForbidden"}]}),
            json!(2),
            "spec.a: Forbidden: too small",
        ),
        (
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3", "messageExpression": "'%d is small'.format([self])"}]}),
            json!(2),
            "spec.a: Invalid value: \"integer\": 2 is small",
        ),
        (
            json!({"type": "object", "properties": {"x": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.x > 3", "fieldPath": ".x"}]}),
            json!({"x": 1}),
            "spec.a.x: Invalid value: \"object\": failed rule",
        ),
        (
            json!({"type": "object", "properties": {"x": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.x > 3"}]}),
            json!({}),
            "spec.a: Invalid value: \"object\": no such key: x evaluating rule",
        ),
        (
            json!({"type": "object", "properties": {"min-x": {"type": "integer"}, "for": {"type": "string"}}, "x-kubernetes-validations": [{"rule": "self.min__dash__x > 3 && self.__for__ == 'a'"}]}),
            json!({"min-x": 4, "for": "a"}),
            "",
        ),
        (
            json!({"type": "string", "format": "date-time", "x-kubernetes-validations": [{"rule": "self.getFullYear() > 2000"}]}),
            json!("1999-01-01T00:00:00Z"),
            "failed rule",
        ),
        (
            json!({"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self.size() < 3"}]}}),
            json!(["ab", "abc"]),
            "spec.a[1]: Invalid value: \"string\": failed rule",
        ),
        (
            // What is estimated is within bounds; what is spent is not.
            json!({"type": "array", "maxItems": 80, "items": {"type": "integer"}, "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, self.all(z, x + y + z < 0 || true)))"}]}),
            json!((0..80).collect::<Vec<i32>>()),
            "call cost exceeds limit for rule",
        ),
    ]
}

#[tokio::test]
async fn values_are_validated() {
    let api = Api::new().await;
    let cases = cases();
    let properties: serde_json::Map<String, Value> =
        cases.iter().enumerate().map(|(i, (schema, ..))| (format!("a{i}"), schema.clone())).collect();
    api.define(definition(spec(Value::Object(properties)))).await;
    for (i, (schema, value, why)) in cases.iter().enumerate() {
        let field = format!("a{i}");
        let made = api.create("widgets", widget(&format!("w{i}"), json!({ &field: value }))).await;
        let why = why.replace("spec.a.", &format!("spec.{field}.")).replace("spec.a ", &format!("spec.{field} "));
        let why = why
            .replace("spec.a:", &format!("spec.{field}:"))
            .replace("spec.a[", &format!("spec.{field}["))
            .replace("spec.a\"", &format!("spec.{field}\""));
        match (made, why.is_empty()) {
            (Ok(_), true) => {}
            (Ok(_), false) => panic!("{schema} took {value}"),
            (Err(refused), _) => {
                assert!(
                    !why.is_empty() && causes(&refused).iter().any(|cause| cause.contains(&why)),
                    "{schema} {value}: {:?} ({why})",
                    causes(&refused)
                );
                assert_eq!(refused.code, 422);
            }
        }
    }
}

#[tokio::test]
async fn unknown_fields_are_pruned_or_kept_or_refused() {
    let api = Api::new().await;
    let schema = spec(json!({
        "a": {"type": "string"},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"b": {"type": "object", "properties": {}}}},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }));
    api.define(definition(schema)).await;
    let given = json!({"a": "1", "zz": 1, "open": {"any": {"thing": [1]}, "b": {"lost": 1}}, "list": [{"x": 1, "y": 2}],
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}, "nope": 1}, "spec": {"x": 1}}});
    let refused = api.create("widgets", widget("w", given.clone())).await.unwrap_err();
    assert_eq!(refused.code, 400);
    for unknown in ["spec.zz", "spec.open.b.lost", "spec.list[0].y", "spec.template.metadata.nope"] {
        assert!(refused.message.contains(&format!("unknown field \"{unknown}\"")), "{unknown}: {}", refused.message);
    }
    assert!(
        refused.message.starts_with("Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: ")
    );
    let options = Options { field_validation: Some(FieldValidation::Warn), ..Options::default() };
    let response = api.0.handle(request(Verb::Create, "widgets", "", Some(widget("w", given)), options)).await.unwrap();
    assert_eq!(response.warnings.len(), 4, "{:?}", response.warnings);
    let made = object_of(response);
    assert_eq!(
        made.0["spec"],
        json!({"a": "1", "open": {"any": {"thing": [1]}, "b": {}}, "list": [{"x": 1}],
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"x": 1}}})
    );
    let mut wrong = widget("x", json!({}));
    wrong["metadata"]["labels"] = json!({"a": 1});
    assert!(
        api.create("widgets", wrong)
            .await
            .unwrap_err()
            .message
            .contains("cannot unmarshal number into Go struct field")
    );
}

#[tokio::test]
async fn defaults_are_filled() {
    let api = Api::new().await;
    let schema = spec(json!({
        "a": {"type": "string", "default": "x"},
        "inner": {"type": "object", "default": {}, "properties": {"n": {"type": "integer", "default": 3}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
        "null": {"type": "string", "nullable": true, "default": "y"},
    }));
    api.define(definition(schema)).await;
    let made =
        api.create("widgets", widget("w", json!({"list": [{}, {"p": "UDP"}], "null": null, "a": null}))).await.unwrap();
    assert_eq!(
        made.0["spec"],
        json!({"list": [{"p": "TCP"}, {"p": "UDP"}], "null": null, "a": "x", "inner": {"n": 3}})
    );
    assert_eq!(made.generation(), 1);
    let again = api.patch("widgets", "w", json!({"spec": {"a": null}})).await.unwrap();
    assert_eq!((again.generation(), again.resource_version()), (1, made.resource_version()), "nothing has changed");
}

/// However small the object is.
#[tokio::test]
async fn rules_that_may_take_long_run_in_the_turns_of_what_is_large() {
    let api = Api::new().await;
    let rule = json!([{"rule": "'x'.matches(self) || true"}]);
    let quick = json!([{"rule": "'x'.matches('^[a-z]+$') && self != ''"}]);
    let items = |rule: &Value| json!({"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 40, "x-kubernetes-validations": rule}});
    api.define(definition(spec(json!({"p": items(&rule)})))).await;
    let patterns: Vec<String> = (0..100).map(|n| format!(r"((((\pL{{9}}){{9}}){{9}})){n}")).collect();
    let before = api.0.large_turns();
    api.create("widgets", widget("a", json!({"p": patterns}))).await.unwrap();
    assert!(api.0.large_turns() > before);
    let before = api.0.large_turns();
    api.patch("widgets", "a", json!({"spec": {"p": ["a"]}})).await.unwrap();
    assert!(api.0.large_turns() > before);

    let api = Api::new().await;
    api.define(definition(spec(json!({"p": items(&quick)})))).await;
    let before = api.0.large_turns();
    api.create("widgets", widget("a", json!({"p": ["a"]}))).await.unwrap();
    assert_eq!(api.0.large_turns(), before, "others take part in them for nothing");
}

#[tokio::test]
async fn rules_about_change_see_the_old_value() {
    let api = Api::new().await;
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
        "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "string"},
            "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "may only grow"}]}}}});
    let schema = spec(json!({
        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is immutable"}]},
        "once": {"type": "string", "x-kubernetes-validations": [{"rule": "oldSelf.hasValue() || self == 'first'", "optionalOldSelf": true}]},
        "list": keyed,
    }));
    api.define(definition(schema)).await;
    let refused = api.create("widgets", widget("w", json!({"once": "second"}))).await.unwrap_err();
    assert!(causes(&refused)[0].starts_with("spec.once: "), "{:?}", causes(&refused));
    api.create(
        "widgets",
        widget("w", json!({"fixed": "a", "once": "first", "list": [{"n": "x", "v": 2}, {"n": "y", "v": 5}]})),
    )
    .await
    .unwrap();
    let refused = api.patch("widgets", "w", json!({"spec": {"fixed": "b"}})).await.unwrap_err();
    assert_eq!(causes(&refused), ["spec.fixed: Invalid value: \"string\": is immutable"]);
    let refused = api
        .patch("widgets", "w", json!({"spec": {"list": [{"n": "y", "v": 4}, {"n": "x", "v": 3}]}}))
        .await
        .unwrap_err();
    assert_eq!(causes(&refused), ["spec.list[0].v: Invalid value: \"integer\": may only grow"]);
    api.patch("widgets", "w", json!({"spec": {"list": [{"n": "y", "v": 6}, {"n": "z", "v": 1}], "once": "second"}}))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_stricter_schema_tolerates_what_was_there() {
    let api = Api::new().await;
    api.define(definition(spec(json!({"a": {"type": "string"}, "b": {"type": "string"}})))).await;
    api.create("widgets", widget("w", json!({"a": "long value", "b": "x"}))).await.unwrap();
    let mut stricter = api.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    stricter.0["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["a"]["maxLength"] =
        3.into();
    api.update(DEFINITIONS, &stricter).await.unwrap();
    let refused = api.create("widgets", widget("v", json!({"a": "long value"}))).await.unwrap_err();
    assert!(causes(&refused)[0].starts_with("spec.a: Too long"));
    api.patch("widgets", "w", json!({"spec": {"b": "y"}})).await.unwrap();
    assert!(api.patch("widgets", "w", json!({"spec": {"a": "other"}})).await.is_err());
}

#[tokio::test]
async fn lists_merge_by_the_schema_in_server_side_apply() {
    let api = Api::new().await;
    let schema = spec(json!({
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n", "proto"],
            "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"},
                "proto": {"type": "string", "default": "TCP"}, "v": {"type": "string"}}}},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "plain": {"type": "array", "items": {"type": "string"}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }));
    api.define(definition(schema)).await;
    let apply = |manager: &str, spec: Value| {
        let options =
            Options { patch_type: Some(PatchType::Apply), field_manager: Some(manager.into()), ..Options::default() };
        api.0.handle(request(Verb::Patch, "widgets", "w", Some(widget("w", spec)), options))
    };
    apply("a", json!({"ports": [{"n": 80, "v": "a"}], "tags": ["x"], "plain": ["p"], "open": {"k": {"a": 1}}}))
        .await
        .unwrap();
    let both = apply("b", json!({"ports": [{"n": 443, "v": "b"}, {"n": 80}], "tags": ["y"], "open": {"k": {"b": 2}}}))
        .await
        .unwrap();
    let both = object_of(both).0["spec"].clone();
    assert_eq!(both["tags"], json!(["x", "y"]));
    assert_eq!(both["ports"].as_array().unwrap().len(), 2, "{both}");
    assert_eq!(both["open"], json!({"k": {"a": 1, "b": 2}}));
    let conflict = apply("b", json!({"plain": ["q"]})).await.unwrap_err();
    assert_eq!((conflict.code, conflict.reason.as_str()), (409, "Conflict"));
    assert!(conflict.message.contains(".spec.plain"), "{}", conflict.message);
    let left = object_of(apply("a", json!({"plain": ["p"]})).await.unwrap()).0["spec"].clone();
    assert_eq!((&left["tags"], &left["open"]), (&json!(["y"]), &json!({"k": {"b": 2}})));
}

#[tokio::test]
async fn an_apply_is_refused_in_the_words_of_upstream() {
    let api = Api::new().await;
    let schema = spec(json!({
        "n": {"type": "integer"}, "s": {"type": "string"}, "on": {"type": "boolean"}, "l": {"type": "array", "items": {"type": "string"}},
        "either": {"x-kubernetes-int-or-string": true}, "any": {"type": "object"}, "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"], "items": {"type": "object",
            "required": ["name", "port"], "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    }));
    api.define(definition(schema)).await;
    for (spec, why) in [
        (json!({"n": "x"}), ".spec.n: expected numeric (int or float), got string"),
        (json!({"s": 5}), ".spec.s: expected string, got &value.valueUnstructured{Value:5}"),
        (json!({"on": "yes"}), ".spec.on: expected boolean, got &{yes}"),
        (json!({"l": {"b": 1, "a": [true]}}), ".spec.l: expected list, got &{map[a:[true] b:1]}"),
        (json!({"any": 1}), ".spec.any: expected map, got &{1}"),
        (json!({"either": [1]}), ".spec.either: expected any scalar, got &{[1]}"),
        (json!({"nope": 1}), ".spec.nope: field not declared in schema"),
        (
            json!({"n": "x", "s": 1}),
            "errors:\n  .spec.n: expected numeric (int or float), got string\n  .spec.s: expected string, \
                                     got &value.valueUnstructured{Value:1}",
        ),
        (
            json!({"ports": [{}]}),
            ".spec.ports: element 0: associative list with keys has an element that omits all key fields \
                                  [\"name\" \"port\"] (and doesn't have default values for any key fields)",
        ),
        (
            json!({"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 1}]}),
            ".spec.ports: duplicate entries for key [name=\"a\",port=1]",
        ),
        (
            json!({"ports": [{"name": "a", "port": "b"}]}),
            ".spec.ports[name=\"a\",port=\"b\"].port: expected numeric (int or float), got string",
        ),
        (
            json!({"set": [{"a": 1}]}),
            ".spec.set: element 0: associative list without keys has an element that's a map type",
        ),
    ] {
        let refused = api.apply("widgets", "me", widget("w", spec.clone()), false).await.unwrap_err();
        let whole = format!("failed to create typed patch object (default/w; example.com/v1, Kind=Widget): {why}");
        assert_eq!(
            (refused.code, refused.reason.as_str(), refused.message.as_str()),
            (500, "", whole.as_str()),
            "{spec}"
        );
    }
    let fine =
        json!({"n": 1.5, "s": null, "either": 1, "open": {"y": {}}, "set": ["a"], "ports": [{"name": "a", "port": 1}]});
    let refused = api.apply("widgets", "me", widget("w", fine), false).await.unwrap_err();
    assert_eq!(refused.code, 422, "1.5 is a number, but not an integer: {}", refused.message);
}
