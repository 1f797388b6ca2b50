//! What objects become in memory, where controllers keep them as types, has bounds for each namespace.

use podwright::api::{Object, Options, Request, Status, Verb};
use serde_json::{Value, json};

use super::{Api, object_of, request};

/// A Deployment whose template has so many volumes of the least JSON; nothing runs.
fn deployment(namespace: &str, name: &str, volumes: usize) -> Value {
    let volumes: Vec<Value> = (0..volumes).map(|n| json!({"name": format!("v{n}"), "emptyDir": {}})).collect();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"volumes": volumes, "containers": [{"name": "c", "image": "i:1"}]},
            },
        },
    })
}

async fn make(api: &Api, object: Value) -> Result<Object, Status> {
    api.create("deployments.apps", object).await
}

#[tokio::test]
async fn a_namespace_has_room_for_so_much_that_becomes_many_times_its_size() {
    let api = Api::new().await;
    api.create("namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}}))
        .await
        .unwrap();
    let (mut made, mut stored) = (Vec::new(), 0);
    let refused = loop {
        match make(&api, deployment("default", &format!("d{}", made.len()), 1024)).await {
            Ok(object) => {
                stored += object.0.to_string().len();
                made.push(object);
            }
            Err(refused) => break refused,
        }
        assert!(made.len() < 1000, "{stored} bytes are stored, and nothing is refused");
    };
    println!("{} objects of {stored} bytes were stored", made.len());
    assert!(refused.code == 403 && made.len() > 16, "{} {refused}", made.len());
    assert!(refused.message.contains("beyond what is usual for its size"), "{refused}");
    assert!(refused.message.contains("the objects of namespace \"default\" take"), "{refused}");
    // What is as most objects are has room; so has another namespace.
    make(&api, deployment("default", "plain", 8)).await.unwrap();
    make(&api, deployment("b", "other", 1024)).await.unwrap();
    // What is there may be written, and shrink, but does not grow.
    let mut first = api.get("deployments.apps", "d0").await.unwrap();
    first.0["metadata"]["labels"] = json!({"written": "again"});
    let mut first = api.update("deployments.apps", &first).await.unwrap();
    let patch = json!({"spec": {"template": {"spec": {"volumes": deployment("default", "", 1024)["spec"]["template"]["spec"]["volumes"]}}}});
    assert_eq!(api.patch("deployments.apps", "plain", patch).await.unwrap_err().code, 403);
    first.0["spec"]["template"]["spec"]["volumes"] = json!([]);
    api.update("deployments.apps", &first).await.unwrap();
    // Its room is free at once, as is a deleted one's.
    make(&api, deployment("default", "next", 1024)).await.unwrap();
    assert_eq!(make(&api, deployment("default", "one-more", 1024)).await.unwrap_err().code, 403);
    let gone = request(Verb::Delete, "deployments.apps", "next", None, Options::default());
    api.0.handle(Request { namespace: Some("default".into()), ..gone }).await.unwrap();
    let last = api.0.handle(request(
        Verb::Create,
        "deployments.apps",
        "",
        Some(deployment("default", "last", 1024)),
        Options::default(),
    ));
    assert_eq!(object_of(last.await.unwrap()).name(), "last");
}
