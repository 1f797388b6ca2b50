//! What anyone's update of a Pod's status may say: upstream's status strategy and its rules.

use podwright::api::{Object, Verb};
use serde_json::{Value, json};

use super::{Api, object_of, pod};

async fn patched(api: &Api, name: &str, status: Value) -> Result<Object, podwright::api::Status> {
    api.sub(Verb::Patch, "pods", name, "status", json!({"status": status})).await.map(object_of)
}

/// The state of a container `c`.
fn state(list: &str, name: &str, state: Value) -> Value {
    let mut status = json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0});
    status["state"] = state;
    json!({list: [status]})
}

#[tokio::test]
async fn what_a_status_may_not_say() {
    let api = Api::new().await;
    let mut once = pod("p");
    once["spec"]["restartPolicy"] = "OnFailure".into();
    api.create("pods", once).await.unwrap();
    let ips = |field: &str, all: &[&str]| {
        let mut list = json!({field: all.iter().map(|ip| json!({"ip": ip})).collect::<Value>()});
        if field == "hostIPs" {
            list["hostIP"] = all[0].into();
        }
        list
    };
    let family = "may specify no more than one IP for each IP family";
    let cases = [
        (json!({"podIP": "127.0.0.1"}), "status.podIPs[0].ip", "may not be in the loopback range"),
        (json!({"podIP": "::1"}), "status.podIPs[0].ip", "may not be in the loopback range"),
        (json!({"podIP": "::ffff:127.0.0.1"}), "status.podIPs[0].ip", "may not be in the loopback range"),
        (json!({"podIP": "169.254.169.254"}), "status.podIPs[0].ip", "may not be in the link-local range"),
        (json!({"podIP": "0.0.0.0"}), "status.podIPs[0].ip", "may not be unspecified"),
        (json!({"podIP": "x"}), "status.podIPs[0].ip", "must be a valid IP address"),
        (json!({"podIP": "127.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}), "status.podIPs[0].ip", "loopback"),
        (ips("podIPs", &["10.0.0.1", "127.0.0.1"]), "status.podIPs[1].ip", "loopback"),
        (ips("podIPs", &["10.0.0.1", "10.0.0.2"]), "status.podIPs", family),
        (ips("podIPs", &["10.0.0.1", "fd00::1", "fd00::2"]), "status.podIPs", family),
        (ips("hostIPs", &["10.0.0.1", "10.0.0.2"]), "status.hostIPs", family),
        (ips("hostIPs", &["127.0.0.1"]), "status.hostIPs[0].ip", "loopback"),
        (
            json!({"hostIP": "10.0.0.2", "hostIPs": [{"ip": "10.0.0.1"}]}),
            "status.hostIPs[0].ip",
            "must be equal to `hostIP`",
        ),
        (json!({"qosClass": "Guaranteed"}), "status.qosClass", "field is immutable"),
        (json!({"nominatedNodeName": "No Node"}), "status.nominatedNodeName", "a lowercase RFC 1123 subdomain"),
        (json!({"observedGeneration": -1}), "status.observedGeneration", "must be greater than or equal to 0"),
        (json!({"conditions": [{"type": "a b", "status": "True"}]}), "status.conditions[0].type", "name part must"),
        (
            json!({"resourceClaimStatuses": [{"name": "x", "resourceClaimName": "y"}]}),
            "status.resourceClaimStatuses[0].name",
            "must match the name of an entry in `spec.resourceClaims`",
        ),
    ];
    for (status, field, why) in cases {
        let refused = patched(&api, "p", status.clone()).await.unwrap_err();
        let causes = refused.details.unwrap().causes;
        let found = causes.iter().any(|cause| cause.field == field && cause.message.contains(why));
        assert!(refused.code == 422 && found, "{status}: {causes:?}");
    }
    assert!(patched(&api, "p", ips("podIPs", &["10.0.0.1", "fd00::1"])).await.is_ok());
}

#[tokio::test]
async fn what_has_ended_for_good_stays_ended() {
    let api = Api::new().await;
    for (name, policy) in [("never", "Never"), ("failure", "OnFailure"), ("always", "Always")] {
        let mut pod = pod(name);
        pod["spec"]["restartPolicy"] = policy.into();
        pod["spec"]["initContainers"] =
            json!([{"name": "i", "image": "i"}, {"name": "s", "image": "i", "restartPolicy": "Always"}]);
        api.create("pods", pod).await.unwrap();
        let debug = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}});
        api.sub(Verb::Patch, "pods", name, "ephemeralcontainers", debug).await.unwrap();
    }
    let cases = [
        ("containerStatuses", "c", 0, ["never", "failure"].as_slice()),
        ("containerStatuses", "c", 1, &["never"]),
        ("initContainerStatuses", "i", 0, &["never", "failure"]),
        ("initContainerStatuses", "i", 1, &["never"]),
        ("initContainerStatuses", "s", 0, &[]),
        ("ephemeralContainerStatuses", "e", 0, &["never", "failure", "always"]),
        ("ephemeralContainerStatuses", "e", 1, &["never", "failure", "always"]),
    ];
    for (list, container, code, ended) in cases {
        for name in ["never", "failure", "always"] {
            patched(&api, name, json!({list: null})).await.unwrap();
            let over = state(list, container, json!({"terminated": {"exitCode": code}}));
            patched(&api, name, over).await.unwrap();
            for again in [json!({"running": {}}), Value::Null] {
                let answer = patched(&api, name, state(list, container, again.clone())).await;
                let told = answer.as_ref().err().map(|status| status.details.as_ref().unwrap().causes[0].clone());
                let told = told.map(|cause| (cause.field, cause.message));
                let why = "Forbidden: may not be transitioned to non-terminated state".to_owned();
                let expected = ended.contains(&name).then(|| (format!("status.{list}[0].state"), why));
                assert_eq!(told, expected, "{name} {list} {code} {again}");
            }
        }
    }
}

#[tokio::test]
async fn what_a_writer_leaves_out_is_kept_and_one_thing_is_said_once() {
    let api = Api::new().await;
    let mut owned = pod("p");
    owned["metadata"]["finalizers"] = json!(["example.com/f"]);
    api.create("pods", owned).await.unwrap();
    let condition = json!([{"type": "Ready", "status": "True", "observedGeneration": 1}]);
    patched(&api, "p", json!({"observedGeneration": 1, "conditions": condition, "podIP": "10.0.0.1"})).await.unwrap();
    let mut whole = api.get("pods", "p").await.unwrap();
    assert_eq!(whole.0["status"]["podIPs"], json!([{"ip": "10.0.0.1"}]));
    // An update of the status changes neither spec, nor owners, nor whether it is being deleted.
    whole.0["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "podIPs": [{"ip": "10.0.0.2"}]});
    whole.0["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]);
    whole.0["metadata"]["finalizers"] = json!([]);
    whole.0["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    whole.0["spec"]["nodeName"] = "n".into();
    let now = object_of(api.sub(Verb::Update, "pods", "p", "status", whole.0).await.unwrap());
    let status = &now.0["status"];
    assert_eq!((&status["observedGeneration"], &status["qosClass"]), (&json!(1), &json!("BestEffort")));
    assert_eq!(status["conditions"][0]["observedGeneration"], 1);
    assert_eq!(status["podIP"], "10.0.0.2");
    let metadata = &now.0["metadata"];
    assert_eq!((&metadata["ownerReferences"], &metadata["deletionTimestamp"]), (&Value::Null, &Value::Null));
    assert_eq!((&metadata["finalizers"], &now.0["spec"]["nodeName"]), (&Value::Null, &Value::Null));
}
