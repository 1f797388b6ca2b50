//! Field managers and server-side apply: the scenarios of KEP-555, and the laws that field sets obey.

use podwright::api::managed_fields::{Apply, Conflict, Managed, Operation, Scope, Set, Who, check, refusal, update};
use podwright::api::{FieldValidation, Kind, Object, kinds, yaml};
use podwright_runtime::sys::own::thread_time;
use proptest::prelude::*;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-02T00:00:00Z";

/// An object changed by several managers.
struct Story {
    kind: &'static Kind,
    live: Option<Object>,
}

fn value(text: &str) -> Value {
    yaml::documents(text).unwrap_or_else(|e| panic!("{text}: {e}")).remove(0)
}

impl Story {
    fn of(kind: &str) -> Story {
        Story { kind: kinds::lookup(kind).expect("a kind"), live: None }
    }

    fn who(&self, manager: &str, operation: Operation) -> Who {
        Who { manager: manager.into(), operation, api_version: self.kind.api_version(), subresource: String::new() }
    }

    fn decoded(&self, fragment: &str) -> Object {
        let mut value = value(fragment);
        value["apiVersion"] = self.kind.api_version().into();
        value["kind"] = self.kind.kind.into();
        value["metadata"]["name"] = "a".into();
        value["metadata"]["namespace"] = "d".into();
        self.kind.decode(value, FieldValidation::Strict).unwrap_or_else(|e| panic!("{fragment}: {e}")).0
    }

    fn try_apply(&self, manager: &str, fragment: &str, force: bool, now: &str) -> Result<Object, Vec<Conflict>> {
        let config = self.decoded(fragment);
        let schema = self.kind.schema();
        check(&schema, &config.0).unwrap();
        let managed = self.live.as_ref().and_then(Managed::of).unwrap_or_default();
        let who = self.who(manager, Operation::Apply);
        Apply { schema: &schema, scope: Scope::Main, who: &who, now }.run(self.live.as_ref(), &config, managed, force)
    }

    fn apply(mut self, manager: &str, fragment: &str) -> Story {
        let applied = self.try_apply(manager, fragment, false, NOW);
        self.live = Some(applied.unwrap_or_else(|c| panic!("{manager} applies {fragment}: {}", refusal(&c).message)));
        self
    }

    fn force(mut self, manager: &str, fragment: &str) -> Story {
        self.live = Some(self.try_apply(manager, fragment, true, NOW).expect("force never conflicts"));
        self
    }

    /// Rejected with this message.
    fn conflicts(self, manager: &str, fragment: &str, words: &str) -> Story {
        let conflicts = self.try_apply(manager, fragment, false, NOW).expect_err("a conflict");
        let status = refusal(&conflicts);
        assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (409, "Conflict", words));
        self
    }

    /// A plain write: a merge patch.
    fn write(self, manager: &str, fragment: &str) -> Story {
        self.write_at(manager, fragment, Scope::Main, NOW)
    }

    fn write_at(mut self, manager: &str, fragment: &str, scope: Scope, now: &str) -> Story {
        let old = self.live.clone();
        let base = old.as_ref().map_or_else(|| self.decoded("{}").0, |o| o.0.clone());
        let mut patch = value(fragment);
        if let Some(metadata) = patch["metadata"].as_object_mut() {
            metadata.shift_remove("name");
        } else {
            patch.as_object_mut().unwrap().shift_remove("metadata");
        }
        let merged = podwright::api::patch::merge(&base, &patch);
        let (mut new, _) = self.kind.decode(merged, FieldValidation::Strict).unwrap();
        let managed = old.as_ref().and_then(Managed::of).unwrap_or_default();
        let mut who = self.who(manager, Operation::Update);
        if scope == Scope::Status {
            who.subresource = "status".into();
        }
        let managed = update(&self.kind.schema(), scope, old.as_ref(), &new, managed, &who, now);
        new.set_meta("managedFields", managed.to_json());
        self.live = Some(new);
        self
    }

    /// The object without its metadata except labels and annotations.
    fn is(self, expected: &str) -> Story {
        let mut shown = self.live.clone().unwrap().0;
        let map = shown.as_object_mut().unwrap();
        map.shift_remove("apiVersion");
        map.shift_remove("kind");
        let kept = |m: &mut serde_json::Map<String, Value>| {
            m.retain(|k, _| matches!(k.as_str(), "labels" | "annotations" | "finalizers"));
        };
        kept(map["metadata"].as_object_mut().unwrap());
        if map["metadata"].as_object().unwrap().is_empty() {
            map.shift_remove("metadata");
        }
        assert_eq!(shown, value(expected), "\n{shown:#}");
        self
    }

    /// The paths that a manager owns.
    fn owns(self, manager: &str, expected: &[&str]) -> Story {
        let managed = Managed::of(self.live.as_ref().unwrap()).expect("well formed");
        let mut paths: Vec<String> =
            managed.0.iter().filter(|e| e.who.manager == manager).flat_map(|e| e.set.paths()).collect();
        let mut expected: Vec<String> = expected.iter().map(|s| s.to_string()).collect();
        paths.sort();
        expected.sort();
        assert_eq!(paths, expected, "what {manager} owns");
        self
    }
}

#[test]
fn an_apply_creates_and_repeats_without_a_change() {
    let story = Story::of("configmap").apply("a", "{metadata: {labels: {x: v}}, data: {k: v}}");
    let first = story.live.clone();
    let story = story.is("{metadata: {labels: {x: v}}, data: {k: v}}").owns("a", &[".metadata.labels.x", ".data.k"]);
    assert_eq!(
        first.as_ref().unwrap().0["metadata"]["managedFields"],
        json!([{"apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "a", "operation": "Apply", "time": NOW,
            "fieldsV1": {"f:data": {"f:k": {}}, "f:metadata": {"f:labels": {"f:x": {}}}}}])
    );
    let again = story.try_apply("a", "{metadata: {labels: {x: v}}, data: {k: v}}", false, LATER).unwrap();
    assert_eq!(Some(again), first, "the time of an entry is that of its last change");
}

#[test]
fn what_is_applied_no_longer_goes() {
    Story::of("configmap")
        .apply("a", "{metadata: {labels: {x: v, z: w}}, data: {k: v, l: w}}")
        .apply("a", "{metadata: {labels: {x: v}}, data: {k: v}}")
        .is("{metadata: {labels: {x: v}}, data: {k: v}}")
        .apply("a", "{data: {k: v}}")
        .is("{data: {k: v}}")
        .owns("a", &[".data.k"])
        .apply("a", "{}")
        .is("{}")
        .owns("a", &[]);
}

#[test]
fn others_fields_stay_and_conflict() {
    Story::of("configmap")
        .apply("a", "{data: {k: v}}")
        .write("kubectl-edit", "{data: {k: w, m: p}}")
        .owns("a", &[])
        .owns("kubectl-edit", &[".data.k", ".data.m"])
        .conflicts(
            "a",
            "{data: {k: v}}",
            "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1: .data.k",
        )
        .conflicts(
            "a",
            "{data: {k: v, m: o}}",
            "Apply failed with 2 conflicts: conflicts with \"kubectl-edit\" using v1:\n- .data.k\n- .data.m",
        )
        // The same value does not conflict: both own it afterwards.
        .apply("a", "{data: {k: w}}")
        .owns("a", &[".data.k"])
        .owns("kubectl-edit", &[".data.k", ".data.m"])
        // Fields that another manager owns too are only released.
        .apply("a", "{}")
        .is("{data: {k: w, m: p}}")
        .force("a", "{data: {k: v}}")
        .is("{data: {k: v, m: p}}")
        .owns("kubectl-edit", &[".data.m"]);
}

#[test]
fn two_appliers_own_together() {
    Story::of("configmap")
        .apply("a", "{data: {k: v, own: a}}")
        .apply("b", "{data: {k: v}}")
        .conflicts("b", "{data: {k: w}}", "Apply failed with 1 conflict: conflict with \"a\": .data.k")
        .apply("a", "{data: {own: a}}")
        .is("{data: {k: v, own: a}}")
        .apply("b", "{}")
        .is("{data: {own: a}}")
        .force("b", "{data: {own: b}}")
        .owns("a", &[])
        .is("{data: {own: b}}");
}

const POD: &str = "{metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [";

fn deployment(containers: &str) -> String {
    format!("{POD}{containers}]}}}}}}}}")
}

#[test]
fn items_of_lists_are_told_apart_by_their_keys() {
    let c = ".spec.template.spec.containers";
    Story::of("deployment")
        .apply("a", &deployment("{name: c, image: 'i:1', ports: [{containerPort: 80}], env: [{name: X, value: '1'}]}"))
        .owns(
            "a",
            &[
                ".spec.selector",
                ".spec.template.metadata.labels.a",
                &format!("{c}[name=\"c\"]"),
                &format!("{c}[name=\"c\"].name"),
                &format!("{c}[name=\"c\"].image"),
                &format!("{c}[name=\"c\"].ports[containerPort=80,protocol=\"TCP\"]"),
                &format!("{c}[name=\"c\"].ports[containerPort=80,protocol=\"TCP\"].containerPort"),
                &format!("{c}[name=\"c\"].env[name=\"X\"]"),
                &format!("{c}[name=\"c\"].env[name=\"X\"].name"),
                &format!("{c}[name=\"c\"].env[name=\"X\"].value"),
            ],
        )
        // Another manager adds its own container, port and variable.
        .apply("b", "{spec: {template: {spec: {containers: [{name: side, image: 's:1'}, {name: c, env: [{name: W, value: '2'}]}]}}}}")
        .apply("a", &deployment("{name: c, image: 'i:2', env: [{name: X, value: '1'}]}"))
        .is(
            "{spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [\
             {name: side, image: 's:1'}, {name: c, image: 'i:2', env: [{name: X, value: '1'}, {name: W, value: '2'}]}]}}}}",
        )
        .conflicts(
            "b",
            "{spec: {template: {spec: {containers: [{name: c, image: 'i:3'}]}}}}",
            "Apply failed with 1 conflict: conflict with \"a\": .spec.template.spec.containers[name=\"c\"].image",
        )
        .apply("b", "{}")
        .is(
            "{spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [\
             {name: c, image: 'i:2', env: [{name: X, value: '1'}]}]}}}}",
        );
}

#[test]
fn atomic_values_are_one() {
    Story::of("deployment")
        .apply("a", &deployment("{name: c, args: [x, u]}"))
        .conflicts(
            "b",
            "{spec: {selector: {matchLabels: {c: d}}}}",
            "Apply failed with 1 conflict: conflict with \"a\": .spec.selector",
        )
        .conflicts(
            "b",
            "{spec: {template: {spec: {containers: [{name: c, args: [x, u, z]}]}}}}",
            "Apply failed with 1 conflict: conflict with \"a\": .spec.template.spec.containers[name=\"c\"].args",
        )
        .apply("b", "{spec: {template: {spec: {nodeSelector: {disk: ssd}}}}}")
        .owns("b", &[".spec.template.spec.nodeSelector"]);
}

#[test]
fn sets_are_owned_by_value() {
    Story::of("configmap")
        .apply("a", "{metadata: {finalizers: [a/x, a/y]}}")
        .apply("b", "{metadata: {finalizers: [b/x, a/y]}}")
        .owns("b", &[".metadata.finalizers[=\"a/y\"]", ".metadata.finalizers[=\"b/x\"]"])
        .apply("a", "{metadata: {finalizers: [a/x]}}")
        .apply("b", "{metadata: {finalizers: [b/x]}}")
        .is("{metadata: {finalizers: [a/x, b/x]}}");
}

#[test]
fn what_nobody_applied_stays() {
    // A default, or a value that a controller set before fields were tracked.
    let mut story = Story::of("deployment").apply("a", &deployment("{name: c, image: 'i:1'}"));
    story.live.as_mut().unwrap().0["spec"]["replicas"] = 1.into();
    story
        .apply("a", &deployment("{name: c, image: 'i:1'}"))
        .apply("b", "{spec: {replicas: 3}}")
        // Handing over: b leaves it to the autoscaler, which wrote it in the meantime.
        .write("hpa", "{spec: {replicas: 5}}")
        .owns("b", &[])
        .apply("b", "{}")
        .write("hpa", "{spec: {replicas: 6}}")
        .owns("hpa", &[".spec.replicas"]);
}

/// An applied empty struct filled by its defaults: they stay when it is applied again.
#[test]
fn what_fills_an_applied_struct_stays() {
    let config = "{spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {}}}}}";
    let mut story = Story::of("prioritylevelconfigurations").apply("a", config);
    let filled = json!({"queues": 64, "handSize": 8});
    story.live.as_mut().unwrap().0["spec"]["limited"]["limitResponse"]["queuing"] = filled;
    let story = story
        .apply("a", config)
        .is("{spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {queues: 64, handSize: 8}}}}}");
    story
        .apply("a", "{spec: {type: Limited, limited: {limitResponse: {type: Queue}}}}")
        .is("{spec: {type: Limited, limited: {limitResponse: {type: Queue}}}}");
}

#[test]
fn what_was_there_before_the_first_apply_has_an_owner() {
    let mut story = Story::of("configmap").write("x", "{data: {k: v, l: w}}");
    story.live.as_mut().unwrap().set_meta("managedFields", None);
    story
        .conflicts(
            "a",
            "{data: {k: w}}",
            "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.k",
        )
        .apply("a", "{data: {k: v}}")
        .owns("before-first-apply", &[".data", ".data.k", ".data.l"])
        .apply("a", "{}")
        .is("{data: {k: v, l: w}}");
}

/// Client-side `kubectl apply`, then `kubectl apply --server-side`.
#[test]
fn kubectl_takes_over_what_it_applied_itself() {
    let text =
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"d"},"data":{"k":"v","l":"w"}}"#;
    let write = format!(
        "{{metadata: {{annotations: {{kubectl.kubernetes.io/last-applied-configuration: '{text}'}}}}, data: {{k: v, l: w}}}}"
    );
    let story = Story::of("configmap").write("kubectl-client-side-apply", &write);
    // Under another manager's name nothing is taken over.
    let words = "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .data.k";
    let story = story.conflicts("someone", "{data: {k: x, l: w}}", words).apply("kubectl", "{data: {k: x, l: w}}");
    let live = story.live.clone().unwrap();
    assert_eq!(live.0["data"], json!({"k": "x", "l": "w"}));
    let annotation = live.annotation("kubectl.kubernetes.io/last-applied-configuration").unwrap();
    assert_eq!(serde_json::from_str::<Value>(annotation).unwrap()["data"]["k"], "x", "{annotation}");
    // Fields changed since then conflict as usual.
    Story { live: Some(live), ..story }.write("kubectl-edit", "{data: {l: z}}").conflicts(
        "kubectl",
        "{data: {k: x, l: w}}",
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1: .data.l",
    );
}

#[test]
fn a_plain_write_owns_what_it_changes() {
    let story = Story::of("deployment").write(
        "kubectl-create",
        "{spec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: \
         [{name: c, image: 'i:1', resources: {}, ports: [{containerPort: 80, protocol: TCP}]}]}}}}",
    );
    let fields = &story.live.as_ref().unwrap().0["metadata"]["managedFields"][0]["fieldsV1"];
    assert_eq!(
        *fields,
        json!({"f:spec": {"f:replicas": {}, "f:selector": {}, "f:template": {
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {}, "f:resources": {},
                "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}}}}}}}}),
        "{fields:#}"
    );
    story
        .write("kubectl-set", "{spec: {replicas: 2}}")
        .owns("kubectl-set", &[".spec.replicas"])
        .write_at("deployment-controller", "{status: {replicas: 2}}", Scope::Status, NOW)
        .owns("deployment-controller", &[".status.replicas"])
        // Removed fields have no owner.
        .write("kubectl-edit", "{spec: {replicas: ~}}")
        .owns("kubectl-set", &[])
        .owns("kubectl-edit", &[]);
}

#[test]
fn a_status_is_applied_by_itself() {
    let story = Story::of("deployment").apply("a", &deployment("{name: c}"));
    let applied = story.try_apply("a", "{spec: {replicas: 2}, status: {replicas: 7}}", false, NOW).unwrap();
    let managed = Managed::of(&applied).unwrap();
    let paths: Vec<String> = managed.0.iter().flat_map(|e| e.set.paths()).collect();
    assert!(!paths.iter().any(|path| path.starts_with(".status")), "{paths:?}");
}

#[test]
fn many_updaters_become_ancient() {
    let mut story = Story::of("configmap");
    for i in 0..13 {
        let now = format!("2026-01-01T00:00:{i:02}Z");
        story = story.write_at(&format!("m{i}"), &format!("{{data: {{k{i}: v}}}}"), Scope::Main, &now);
    }
    let managed = Managed::of(story.live.as_ref().unwrap()).unwrap();
    let names: Vec<&str> = managed.0.iter().map(|e| e.who.manager.as_str()).collect();
    assert_eq!(names, ["ancient-changes", "m4", "m5", "m6", "m7", "m8", "m9", "m10", "m11", "m12"]);
    story.owns("ancient-changes", &[".data", ".data.k0", ".data.k1", ".data.k2", ".data.k3"]);
}

#[test]
fn lists_that_cannot_be_merged_are_refused() {
    let story = Story::of("deployment");
    for (containers, why) in [
        (
            "{image: x}",
            ".spec.template.spec.containers: element 0: associative list with keys has an element that omits all key fields \
             [\"name\"] (and doesn't have default values for any key fields)",
        ),
        ("{name: c}, {name: c}", ".spec.template.spec.containers: duplicate entries for key [name=\"c\"]"),
    ] {
        let config = story.decoded(&deployment(containers));
        assert_eq!(check(&story.kind.schema(), &config.0).map_err(|e| e.to_string()), Err(why.to_owned()));
    }
}

// The laws.

fn any_set() -> impl Strategy<Value = Set> {
    let element = prop::sample::select(vec!["f:a", "f:b", "k:{\"name\":\"x\"}", "v:1", "v:\"s\""]);
    let path = prop::collection::vec(element, 1..4);
    prop::collection::vec(path, 0..8).prop_map(|paths| {
        let mut set = Set::default();
        for path in paths {
            set.insert(path.into_iter().map(Box::from));
        }
        set
    })
}

/// A ConfigMap's and a Deployment's fields, few enough that two of them meet.
fn any_config() -> impl Strategy<Value = String> {
    let word = || prop::sample::select(vec!["p", "q", "r"]);
    let map = move || prop::collection::btree_map(word(), word(), 0..3).prop_map(|m| json!(m).to_string());
    let env = prop::collection::btree_map(word(), word(), 0..3).prop_map(|m| {
        let all: Vec<Value> = m.iter().map(|(k, v)| json!({"name": k, "value": v})).collect();
        json!(all).to_string()
    });
    let container = (word(), word(), env, prop::collection::vec(word(), 0..3)).prop_map(|(name, image, env, args)| {
        format!("{{name: {name}, image: {image}, env: {env}, args: {}}}", json!(args))
    });
    let containers = prop::collection::vec(container, 0..3).prop_map(|mut all| {
        all.dedup_by_key(|c| c[..9].to_owned());
        all.sort();
        all.dedup_by_key(|c| c[..9].to_owned());
        all.join(", ")
    });
    (map(), containers, map()).prop_map(|(labels, containers, node)| {
        format!(
            "{{metadata: {{labels: {labels}}}, spec: {{template: {{spec: {{containers: [{containers}], nodeSelector: {node}}}}}}}}}"
        )
    })
}

proptest! {
    #[test]
    fn sets_obey_their_laws(a in any_set(), b in any_set(), c in any_set()) {
        let nothing = Set::default();
        prop_assert_eq!(a.clone().union(&b), b.clone().union(&a));
        prop_assert_eq!(a.clone().union(&b).union(&c), a.clone().union(&b.clone().union(&c)));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&a), nothing.clone());
        prop_assert_eq!(a.difference(&nothing), a.clone());
        prop_assert_eq!(a.intersection(&b.clone().union(&c)), a.intersection(&b).union(&a.intersection(&c)));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert_eq!(a.difference(&b).intersection(&b), nothing);
        prop_assert_eq!(Set::from_json(&a.to_json()), Some(a.clone()));
    }

    /// Applying twice is applying once, and letting go of everything leaves what others have.
    #[test]
    fn an_apply_is_idempotent_and_reversible(theirs in any_config(), ours in any_config()) {
        let before = Story::of("deployment").apply("them", &theirs);
        let other = before.live.clone();
        let after = before.force("us", &ours);
        let again = after.try_apply("us", &ours, false, LATER).expect("no conflict with oneself");
        prop_assert_eq!(Some(&again), after.live.as_ref());
        // All applied fields are there.
        let merged = after.try_apply("third", &ours, false, NOW);
        prop_assert!(merged.is_ok(), "what we applied is what is there");
        // Without force, releasing everything restores the previous object.
        let gentle = Story { kind: after.kind, live: other.clone() };
        if let Ok(applied) = gentle.try_apply("us", &ours, false, NOW) {
            let released = Story { kind: after.kind, live: Some(applied) }.force("us", "{}").live.unwrap();
            let bare = |o: &Object| { let mut o = o.clone(); o.set_meta("managedFields", None); sorted(o.0) };
            prop_assert_eq!(bare(&released), bare(other.as_ref().unwrap()));
        }
    }
}

/// Sorts lists: restored items may be in another place. Empty lists and maps count as absent.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let all = map.into_iter().map(|(k, v)| (k, sorted(v)));
            Value::Object(
                all.filter(|(_, v)| !matches!(v, Value::Null) && *v != json!([]) && *v != json!({})).collect(),
            )
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.into_iter().map(sorted).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        plain => plain,
    }
}

/// A subtree is not traversed again at each level above it.
#[test]
fn an_apply_of_what_is_nested_deeply_costs_little_more() {
    use podwright::api::kinds::registry::Registry;

    let registry = Registry::default();
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    registry.put(&Object(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open}}}}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]}})));
    let schema = registry.now().lookup("widgets.example.com").unwrap().schema();
    let object = |levels: usize, last: &str| {
        let fields = (0..3_000).map(|i| (format!("k{i}"), json!(if i == 2_999 { last } else { "v" })));
        let leaves = Value::Object(fields.collect());
        let spec = (0..levels).fold(leaves, |below, _| json!({"a": below}));
        Object(json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec}))
    };
    let who = Who {
        manager: "m".into(),
        operation: Operation::Apply,
        api_version: "example.com/v1".into(),
        subresource: String::new(),
    };
    let apply = Apply { schema: &schema, scope: Scope::Main, who: &who, now: "2020-01-01T00:00:00Z" };
    let took = |levels: usize| {
        let first = apply.run(None, &object(levels, "v"), Managed::default(), false).unwrap();
        let (managed, changed) = (Managed::of(&first).unwrap(), object(levels, "w"));
        let times = (0..5).map(|_| {
            let begun = thread_time();
            let merged = apply.run(Some(&first), &changed, managed.clone(), false).unwrap();
            let took = thread_time() - begun;
            assert_eq!(merged.0["spec"], changed.0["spec"]);
            took
        });
        times.min().unwrap()
    };
    // Fields without a schema are owned too: a manager that changes a value there takes it over.
    let first = apply.run(None, &object(1, "v"), Managed::default(), false).unwrap();
    let (other, before) = (Who { manager: "o".into(), ..who.clone() }, Managed::of(&first).unwrap());
    let after = update(&schema, Scope::Main, Some(&first), &object(1, "w"), before, &other, NOW);
    assert_eq!(after.find(&other).unwrap().set.paths(), [".spec.a.k2999"]);

    let (flat, deep) = (took(1), took(100));
    assert!(deep < flat * 8, "{flat:?} flat, {deep:?} a hundred levels deep");
}
