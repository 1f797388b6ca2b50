//! Another tenant's private image, which his Pod has brought to the node.

use serde_json::json;

use super::world::{End, IMAGE, OURS, THEIRS, World, architecture};
use super::{POD, Pod, Target, Verdict};
use crate::support::{
    node::busybox_tar,
    registry::{Layout, Registry, tar},
};

pub fn without_credentials(world: &World, target: &Target) -> Verdict {
    let registry = Registry::start_with(true);
    let mut layout = Layout::new();
    let layers = [std::fs::read(busybox_tar()).unwrap(), tar(&[("word", target.text.as_bytes())])];
    let made = layout.image(architecture(), &layers, json!({"Env": ["PATH=/bin"]}));
    layout.tag(made, "it");
    let name = registry.push(&layout, "it", "team/private:1");
    let login = json!({"auths": {&registry.addr: {"username": "user", "password": "secret"}}}).to_string();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull", "namespace": THEIRS},
        "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": login}});
    if let Err(why) = world.create("secrets", THEIRS, secret) {
        return Verdict::Untried(why);
    }
    // Its owner uses it, and by that it is on the node.
    let owner = Pod { namespace: THEIRS, spec: "imagePullSecrets: [{name: pull}]", script: "cat /word", ..POD };
    let mut object = world.pod(target, &owner);
    object["spec"]["containers"][0]["image"] = json!(name);
    match world.run_to_the_end(&object) {
        End::Said(said) if said.contains(&target.text) => {}
        End::Said(why) | End::Refused(why) => return Verdict::Untried(format!("its owner cannot use it: {why}")),
    }
    let manifest = registry.manifest("team/private", "1");
    let id = manifest["config"]["digest"].as_str().unwrap().to_owned();
    let digest = format!("{}/team/private@{}", registry.addr, registry.manifest_digest("team/private", "1"));
    let thief = Pod { namespace: OURS, script: "echo held: nothing was tried; cat /word", ..POD };
    let mut seen = Vec::new();
    for (number, (image, policy)) in
        [(&name, "Never"), (&name, "IfNotPresent"), (&digest, "Never"), (&digest, "IfNotPresent"), (&id, "Never")]
            .into_iter()
            .enumerate()
    {
        for init in [false, true] {
            let mut object = world.pod(target, &thief);
            object["metadata"]["name"] = json!(format!("{}-{number}-{init}", target.id));
            let mut container = object["spec"]["containers"][0].clone();
            container["image"] = json!(image);
            container["imagePullPolicy"] = json!(policy);
            if init {
                container["name"] = json!("i");
                object["spec"]["initContainers"] = json!([container]);
            } else {
                object["spec"]["containers"][0] = container;
            }
            match world.run_to_the_end(&object) {
                End::Said(said) => return Verdict::Breach(format!("{image} {policy} init {init}: {said}")),
                End::Refused(why) => seen.push(why),
            }
        }
    }
    // A Pod that may use its image, and cannot start yet, is changed to the private one.
    let waiting = Pod { container: "env: [{name: A, valueFrom: {configMapKeyRef: {name: late, key: a}}}]", ..thief };
    let mut object = world.pod(target, &waiting);
    object["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    object["spec"]["containers"][0]["image"] = json!(IMAGE);
    if let Err(why) = world.create("pods", OURS, object) {
        return Verdict::Untried(why);
    }
    if !matches!(world.wait_end(OURS, target.id), End::Refused(why) if why.contains("CreateContainerConfigError")) {
        return Verdict::Untried("the Pod without its ConfigMap does not wait for it".to_owned());
    }
    let image = json!({"spec": {"containers": [{"name": "c", "image": name}]}}).to_string();
    let meta = json!({"name": "late", "namespace": OURS});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}});
    let patched = world.node.run(&["-n", OURS, "patch", "pod", target.id, "-p", &image]);
    if patched.code != 0 || world.create("configmaps", OURS, map).is_err() {
        return Verdict::Untried(patched.all());
    }
    let reason = ".status.containerStatuses[0].state.waiting.reason";
    let stuck = format!("--for=jsonpath={{{reason}}}=ErrImageNeverPull");
    let waited = world.node.run(&["-n", OURS, "wait", &stuck, "--timeout=40s", &format!("pod/{}", target.id)]);
    let said = world.logs(target, OURS);
    if said.contains(&target.text) || waited.code != 0 {
        return Verdict::Breach(format!("after the change of its image: {said} {}", waited.all()));
    }
    Verdict::Held(seen.join("; "))
}
