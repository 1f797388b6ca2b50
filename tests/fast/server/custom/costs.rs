//! What the rules of a definition may cost: estimated from the sizes that its schema allows, in upstream's words.

use serde_json::{Value, json};

use super::{Api, DEFINITIONS, causes, definition, spec};

const HINT: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and \
                    strings are declared)";

fn ruled(mut schema: Value, rule: &str) -> Value {
    schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
    schema
}

fn list(item: Value, most: Option<u64>) -> Value {
    let mut list = json!({"type": "array", "items": item});
    if let Some(most) = most {
        list["maxItems"] = most.into();
    }
    list
}

fn text(most: Option<u64>) -> Value {
    let mut text = json!({"type": "string"});
    if let Some(most) = most {
        text["maxLength"] = most.into();
    }
    text
}

/// What is said of the cost of a definition with this one property.
async fn told(property: Value) -> Vec<String> {
    let api = Api::new().await;
    match api.create(DEFINITIONS, definition(spec(json!({"x": property})))).await {
        Ok(_) => Vec::new(),
        Err(why) => causes(&why),
    }
}

#[tokio::test]
async fn a_rule_that_may_cost_too_much_is_refused_until_its_values_are_bounded() {
    let number = || json!({"type": "integer"});
    let place = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[x]";
    let map = |most: Option<u64>| {
        let mut map = json!({"type": "object", "additionalProperties": text(Some(10))});
        if let Some(most) = most {
            map["maxProperties"] = most.into();
        }
        map
    };
    for (property, below, factor) in [
        // As many numbers as a request holds, looked at once and twice.
        (ruled(list(number(), None), "self.all(x, x > 0)"), "", ""),
        (ruled(list(number(), None), "self.all(x, x > 0 && x < 10)"), "", "1.101004x"),
        (ruled(list(number(), Some(1000)), "self.all(x, x > 0 && x < 10)"), "", ""),
        (ruled(list(number(), None), "self.all(x, self.exists(y, y == x))"), "", "more than 100x"),
        (ruled(list(number(), Some(100)), "self.all(x, self.exists(y, y == x))"), "", ""),
        // Texts, by their length.
        (ruled(text(None), "self.matches('^[a-z]+$')"), "", ""),
        (ruled(text(None), "self.contains(self)"), "", "more than 100x"),
        (ruled(text(Some(256)), "self.contains(self)"), "", ""),
        (ruled(list(text(None), Some(200)), "self.all(x, x.matches('^[a-z]+$'))"), "", "12.6x"),
        (ruled(list(text(Some(63)), Some(200)), "self.all(x, x.matches('^[a-z]+$'))"), "", ""),
        // A rule is evaluated in every place that there may be.
        (list(ruled(text(None), "self.matches('^[a-z]+$')"), None), ".items", "more than 100x"),
        (list(ruled(text(Some(63)), "self.matches('^[a-z]+$')"), Some(50)), ".items", ""),
        (
            list(ruled(number(), "self > 1 && self < 9 && self != 2 && self != 3 && self != 4"), None),
            ".items",
            "1.101005x",
        ),
        (ruled(map(None), "self.all(k, self[k].startsWith('abc') && k in self)"), "", ""),
        (ruled(map(None), "self.all(k, self.all(l, k == l))"), "", "more than 100x"),
        (ruled(map(Some(64)), "self.all(k, self.all(l, k == l))"), "", ""),
    ] {
        let wanted: Vec<String> = match factor {
            "" => Vec::new(),
            factor => vec![format!(
                "{place}{below}.x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor \
                 of {factor} {HINT}"
            )],
        };
        let mut found = told(property.clone()).await;
        // What is beyond all bounds is also too much for the schema as a whole.
        found.retain(|cause| cause.contains("estimated rule cost exceeds"));
        assert_eq!(found, wanted, "{property}");
    }
}

#[tokio::test]
async fn all_rules_of_a_version_together_have_a_limit_of_their_own() {
    // Each below the limit of one.
    let rules = |count: usize| {
        let rule = json!({"rule": "self.all(x, x > 0)", "messageExpression": "'no'"});
        let mut property = list(json!({"type": "integer"}), None);
        property["x-kubernetes-validations"] = vec![rule; count].into();
        property
    };
    assert_eq!(told(rules(12)).await, Vec::<String>::new());
    let found = told(rules(13)).await;
    assert_eq!(found.len(), 5, "the dearest four, and all: {found:?}");
    let why = "Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
    assert!(found[..4].iter().all(|cause| cause.ends_with(why)), "{found:?}");
    let total =
        "Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by";
    assert_eq!(found[4], format!("spec.versions[0].schema.openAPIV3Schema: {total} factor of 1.022361x {HINT}"));
}

#[tokio::test]
async fn what_was_let_in_may_stay_and_what_is_new_is_judged() {
    let api = Api::new().await;
    let cheap = ruled(list(json!({"type": "integer"}), Some(9)), "self.all(x, self.exists(y, y == x))");
    api.create(DEFINITIONS, definition(spec(json!({"x": cheap})))).await.unwrap();
    let mut changed = api.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/x";
    changed.0.pointer_mut(schema).unwrap().as_object_mut().unwrap().remove("maxItems");
    let refused = api.update(DEFINITIONS, &changed).await.unwrap_err();
    assert!(
        causes(&refused)[0].contains("estimated rule cost exceeds budget by factor of more than 100x"),
        "{refused:?}"
    );
}
