//! Objects with lists as long as a body can hold: whoever writes them may make nobody else wait, nor get an answer that is much
//! larger than the question.

use std::time::Instant;

use podwright::api::request::PatchType;
use podwright::api::{Object, Options, Request, Status, User, Verb};
use serde_json::{Value, json};

use super::{Api, config_map, object_of, pod, request, service};

/// `n` items.
fn list(n: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..n).map(item).collect()
}

fn with(mut object: Value, path: &str, value: Value) -> Value {
    let (parent, field) = path.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[field] = value;
    object
}

fn of(group: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": group, "kind": kind, "metadata": {"name": "long"}, "spec": spec})
}

/// Objects with one long list each (of NodePorts there are 2768; where few may be written, as many as may): what it is, the
/// resource, the object, and whether it may be written.
fn objects(n: usize) -> Vec<(&'static str, &'static str, Value, bool)> {
    let name = |i: usize| format!("n{i}");
    let pod = || pod("long");
    let meta = |field: &str, value: Value| with(config_map("long"), &format!("/metadata/{field}"), value);
    let spec = |field: &str, value: Value| with(pod(), &format!("/spec/{field}"), value);
    let container = |field: &str, value: Value| with(pod(), &format!("/spec/containers/0/{field}"), value);
    let keyed = |n: usize| -> Value {
        (0..n).map(|i| (format!("k{i}"), Value::from("v"))).collect::<serde_json::Map<_, _>>().into()
    };
    let selector = json!({
        "matchLabels": {"app": "a"}, "matchExpressions": list(n, |i| json!({"key": name(i), "operator": "DoesNotExist"})),
    });
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": pod()["spec"]});
    let (containers, volumes, secrets) = (n.min(512), n.min(1024), n.min(256));
    let mut mounted = spec("volumes", list(volumes, |i| json!({"name": name(i), "emptyDir": {}})));
    mounted["spec"]["containers"][0]["volumeMounts"] =
        list(n, |i| json!({"name": name(i % volumes), "mountPath": format!("/{i}")}));
    let owner =
        |i: usize| json!({"apiVersion": "v1", "kind": "Pod", "name": name(i), "uid": name(i), "controller": true});
    vec![
        ("keys", "configmaps", with(config_map("long"), "/data", keyed(n)), true),
        ("finalizers", "configmaps", meta("finalizers", list(n, |i| json!(format!("a.b/{i}")))), true),
        ("ownerReferences", "configmaps", meta("ownerReferences", list(n, owner)), false),
        ("labels", "configmaps", meta("labels", keyed(n.min(1024))), true),
        ("containers", "pods", spec("containers", list(containers, |i| json!({"name": name(i), "image": "i"}))), true),
        ("bad containers", "pods", spec("containers", list(n, |_| json!({"name": "UPPER"}))), false),
        (
            "initContainers",
            "pods",
            spec("initContainers", list(containers, |i| json!({"name": name(i), "image": "i"}))),
            true,
        ),
        ("volumes and mounts", "pods", mounted, true),
        ("env", "pods", container("env", list(n, |i| json!({"name": name(i), "value": "v"}))), n <= 4616),
        (
            "ports",
            "pods",
            container("ports", list(n, |i| json!({"name": name(i), "containerPort": i % 60000 + 1}))),
            n <= 1024,
        ),
        (
            "tolerations",
            "pods",
            spec("tolerations", list(n, |i| json!({"key": name(i), "operator": "Exists"}))),
            n <= 2014,
        ),
        ("gates", "pods", spec("schedulingGates", list(n, |i| json!({"name": name(i)}))), true),
        ("pull secrets", "pods", spec("imagePullSecrets", list(secrets, |i| json!({"name": name(i)}))), true),
        (
            "host aliases",
            "pods",
            spec(
                "hostAliases",
                list(n, |i| json!({"ip": format!("10.0.{}.{}", i / 250 % 250, i % 250), "hostnames": ["a"]})),
            ),
            true,
        ),
        (
            "ports of a Service",
            "services",
            service("long", json!({"ports": list(n, |i| json!({"name": name(i), "port": i % 60000 + 1}))})),
            true,
        ),
        (
            "node ports",
            "services",
            service(
                "long",
                json!({"type": "NodePort", "ports": list(n, |i| json!({"name": name(i), "port": i % 60000 + 1}))}),
            ),
            n <= 2768,
        ),
        (
            "external IPs",
            "services",
            service("long", json!({"externalIPs": list(n, |i| json!(format!("192.0.{}.{}", i / 250 % 250, i % 250)))})),
            true,
        ),
        ("cluster IPs", "services", service("long", json!({"clusterIPs": list(n, |_| json!("10.96.7.7"))})), false),
        (
            "selector",
            "deployments.apps",
            of("apps/v1", "Deployment", json!({"selector": selector, "template": template})),
            n < 256,
        ),
        (
            "Ingress rules",
            "ingresses.networking.k8s.io",
            of(
                "networking.k8s.io/v1",
                "Ingress",
                json!({"rules": list(n, |i| json!({"host": format!("h{i}.example"), "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}))}),
            ),
            true,
        ),
        (
            "peers",
            "networkpolicies.networking.k8s.io",
            of(
                "networking.k8s.io/v1",
                "NetworkPolicy",
                json!({"podSelector": {}, "ingress": [{"from": list(n, |i| json!({"podSelector": {"matchLabels": {"a": name(i)}}}))}]}),
            ),
            true,
        ),
        (
            "endpoints",
            "endpointslices.discovery.k8s.io",
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "long"}, "addressType": "IPv4", "endpoints": list(n, |i| json!({"addresses": [format!("10.1.{}.{}", i / 250 % 250, i % 250)]}))}),
            n <= 1000,
        ),
    ]
}

fn written(
    api: &Api,
    verb: Verb,
    resource: &str,
    body: Value,
    options: Options,
) -> impl Future<Output = Result<Object, Status>> {
    let named = if verb == Verb::Create { "" } else { "long" };
    let request = Request { user: User::system("test"), ..request(verb, resource, named, Some(body), options) };
    let server = api.0.clone();
    async move { server.handle(request).await.map(object_of) }
}

fn by(patch_type: PatchType) -> Options {
    let manager = Some("m".to_owned()).filter(|_| patch_type == PatchType::Apply);
    Options {
        patch_type: Some(patch_type),
        field_manager: manager,
        force: patch_type == PatchType::Apply,
        ..Options::default()
    }
}

/// All writes of each object; each is told to `tell` with what it was and how it went.
async fn write_all(n: usize, mut tell: impl FnMut(&str, &str, bool, f64, Result<Object, Status>)) {
    let api = Api::new().await;
    for (what, resource, object, fits) in objects(n) {
        let mut timed = async |how: &str, verb, body: Value, options| {
            let begun = Instant::now();
            let outcome = written(&api, verb, resource, body, options).await;
            let made = outcome.as_ref().ok().cloned();
            tell(what, how, fits, begun.elapsed().as_secs_f64() * 1000.0, outcome);
            made
        };
        let made = timed("create", Verb::Create, object.clone(), Options::default()).await;
        if let Some(made) = made {
            timed("update", Verb::Update, made.0, Options::default()).await;
            timed("apply", Verb::Patch, object.clone(), by(PatchType::Apply)).await;
            timed("apply again", Verb::Patch, object.clone(), by(PatchType::Apply)).await;
            timed("merge", Verb::Patch, object.clone(), by(PatchType::Merge)).await;
            timed("strategic", Verb::Patch, object.clone(), by(PatchType::Strategic)).await;
            timed("three-way", Verb::Patch, object.clone(), by(PatchType::ThreeWay)).await;
            let gone = json!({"metadata": {"finalizers": null}});
            written(&api, Verb::Patch, resource, gone, by(PatchType::Merge)).await.unwrap();
            let now = Options { grace_period_seconds: Some(0), ..Options::default() };
            api.0.handle(request(Verb::Delete, resource, "long", None, now)).await.unwrap();
        }
    }
}

/// The hardest that a client can do to the pipeline. Before look-ups by key, this took minutes.
#[tokio::test]
async fn objects_with_long_lists_are_written_or_refused_in_few_words() {
    write_all(1200, |what, how, fits, _, outcome| match outcome {
        Ok(_) => assert!(fits, "{how} {what}"),
        Err(why) => {
            // What a patch may not change of a Pod is refused in due form.
            assert!(!fits || how != "create", "{how} {what}: {}", why.message.chars().take(300).collect::<String>());
            let told = serde_json::to_string(&why).unwrap().len();
            assert!(told < 2 << 20, "{how} {what} is refused in {told} bytes");
            let causes = why.details.map_or(0, |details| details.causes.len());
            assert!(causes <= 1000, "{how} {what}: {causes} causes");
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "prints milliseconds, of lists of a length and of twice that, for a person to compare"]
async fn times() {
    let n: usize = std::env::var("LENGTH").map_or(20_000, |n| n.parse().unwrap());
    let mut first = Vec::new();
    write_all(n, |what, how, _, took, outcome| first.push((format!("{how} {what}"), took, outcome.is_ok()))).await;
    let mut second = first.into_iter();
    write_all(2 * n, |what, how, _, took, _| {
        if let Some((name, before, ok)) = second.find(|(name, ..)| *name == format!("{how} {what}")) {
            println!(
                "{name:32} {before:8.1} ms {took:8.1} ms  x {:4.1} {}",
                took / before,
                if ok { "" } else { "refused" }
            );
        }
    })
    .await;
}

#[tokio::test]
async fn an_object_does_not_grow_without_end_by_small_patches() {
    let api = Api::new().await;
    api.create("configmaps", with(config_map("long"), "/metadata/finalizers", json!([]))).await.unwrap();
    let mut refused = None;
    for round in 0..20 {
        let finalizers = list(8000, |i| json!(format!("{}/{round}-{i}", "f".repeat(60))));
        let patch = json!({"metadata": {"finalizers": finalizers}});
        if let Err(why) = written(&api, Verb::Patch, "configmaps", patch, by(PatchType::Strategic)).await {
            refused = Some(why);
            break;
        }
    }
    let refused = refused.expect("there is an end");
    assert_eq!((refused.code, refused.reason.as_str()), (413, "RequestEntityTooLarge"), "{}", refused.message);
    let kept = api.get("configmaps", "long").await.unwrap();
    assert!(kept.0.to_string().len() < 4 << 20);
}
