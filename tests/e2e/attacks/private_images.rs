//! Another tenant's private image that a Pod has brought to the node.

use serde_json::{Value, json};

use super::world::{End, IMAGE, OURS, THEIRS, World, architecture};
use super::{POD, Pod, Target, Verdict};
use crate::support::{
    node::busybox_tar,
    registry::{Layout, Liar, Lie, Registry, digest, tar},
};

/// A tenant's image, in a registry that only accepts that tenant; and the Pod that brought it to the node.
pub(super) struct Private {
    registry: Registry,
    name: String,
    owner: Value,
}

fn private(world: &World, target: &Target) -> Result<Private, Verdict> {
    let private = made(world, target)?;
    match private.is_here(world, target) {
        Ok(()) => Ok(private),
        Err(why) => Err(Verdict::Untried(format!("its owner cannot use it: {why}"))),
    }
}

/// The same, before the Pod has pulled it.
pub(super) fn made(world: &World, target: &Target) -> Result<Private, Verdict> {
    let registry = Registry::start_with(true);
    let mut layout = Layout::new();
    let layers = [std::fs::read(busybox_tar()).unwrap(), tar(&[("word", target.text.as_bytes())])];
    let made = layout.image(architecture(), &layers, json!({"Env": ["PATH=/bin"]}));
    layout.tag(made, "it");
    let name = registry.push(&layout, "it", "team/private:1");
    let pull = format!("pull-{}", target.id);
    let login = json!({"auths": {&registry.addr: {"username": "user", "password": "secret"}}}).to_string();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": pull, "namespace": THEIRS},
        "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": login}});
    if let Err(why) = world.create("secrets", THEIRS, secret) {
        return Err(Verdict::Untried(why));
    }
    let mut owner = world.pod(target, &Pod { namespace: THEIRS, script: "cat /word", ..POD });
    owner["spec"]["imagePullSecrets"] = json!([{"name": pull}]);
    owner["spec"]["containers"][0]["image"] = json!(name);
    Ok(Private { registry, name, owner })
}

impl Private {
    /// Whether its owner can use it.
    pub(super) fn is_here(&self, world: &World, target: &Target) -> Result<(), String> {
        match world.run_to_the_end(&self.owner) {
            End::Said(said) if said.contains(&target.text) => Ok(()),
            End::Said(why) | End::Refused(why) => Err(why),
        }
    }

    /// As stored.
    pub(super) fn document(&self) -> String {
        std::fs::read_to_string(self.registry.blob_file(&self.digest())).unwrap()
    }

    fn manifest(&self) -> Value {
        self.registry.manifest("team/private", "1")
    }

    /// The image id.
    fn id(&self) -> String {
        self.manifest()["config"]["digest"].as_str().unwrap().to_owned()
    }

    fn digest(&self) -> String {
        self.registry.manifest_digest("team/private", "1")
    }
}

/// Another tenant's Pod, with an image from that tenant's own registry with these documents and no layers.
fn with_a_registry_of_ones_own(world: &World, target: &Target, manifest: &Value, config: Option<Value>) -> End {
    let (manifest, config) = (manifest.to_string(), config.map(|config| config.to_string()));
    let registry = Liar::start(move |head| match &config {
        _ if head.contains("/manifests/") => Lie::answer("200 OK", "", manifest.as_bytes()),
        Some(config) if head.contains(&digest(config.as_bytes())) => Lie::answer("200 OK", "", config.as_bytes()),
        _ if head.contains("/blobs/") => Lie::answer("404 Not Found", "", b"{}"),
        _ => Lie::answer("200 OK", "", b"{}"),
    });
    let mut object = world.pod(target, &Pod { namespace: OURS, script: "cat /word", ..POD });
    object["spec"]["containers"][0]["image"] = json!(format!("{}/own:1", registry.addr));
    world.run_to_the_end(&object)
}

pub fn by_id(world: &World, target: &Target) -> Verdict {
    let private = match private(world, target) {
        Ok(private) => private,
        Err(verdict) => return verdict,
    };
    // A nonexistent layer: the image is identified by its config.
    let mut manifest = private.manifest();
    for layer in manifest["layers"].as_array_mut().unwrap() {
        layer["digest"] = json!(digest(b"invented"));
    }
    match with_a_registry_of_ones_own(world, target, &manifest, None) {
        End::Said(said) => Verdict::Breach(said),
        End::Refused(why) => match why.contains("not found") {
            true => Verdict::Held(why),
            false => Verdict::Untried(why),
        },
    }
}

pub fn documents_as_layers(world: &World, target: &Target) -> Verdict {
    let private = match private(world, target) {
        Ok(private) => private,
        Err(verdict) => return verdict,
    };
    let mut seen = Vec::new();
    for document in [private.id(), private.digest()] {
        let rootfs = json!({"type": "layers", "diff_ids": [digest(target.text.as_bytes())]});
        let config = json!({"architecture": architecture(), "os": "linux", "rootfs": rootfs});
        let text = config.to_string();
        let manifest = json!({"schemaVersion": 2,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(text.as_bytes()), "size": text.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": document, "size": 9}]});
        match with_a_registry_of_ones_own(world, target, &manifest, Some(config)) {
            End::Said(said) => return Verdict::Breach(said),
            End::Refused(why) => seen.push(why),
        }
    }
    let mut owner = private.owner.clone();
    owner["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    match (Private { owner, ..private }).is_here(world, target) {
        Ok(()) => Verdict::Held(seen.join("; ")),
        Err(why) => Verdict::Breach(format!("{}: its owner cannot use it any more: {why}", seen.join("; "))),
    }
}

pub fn without_credentials(world: &World, target: &Target) -> Verdict {
    let private = match private(world, target) {
        Ok(private) => private,
        Err(verdict) => return verdict,
    };
    let (name, id) = (&private.name, private.id());
    let digest = format!("{}/team/private@{}", private.registry.addr, private.digest());
    let thief = Pod { namespace: OURS, script: "echo held: nothing was tried; cat /word", ..POD };
    let mut seen = Vec::new();
    for (number, (image, policy)) in
        [(name, "Never"), (name, "IfNotPresent"), (&digest, "Never"), (&digest, "IfNotPresent"), (&id, "Never")]
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
