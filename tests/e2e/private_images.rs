//! Private images already on a node: permission by Secrets, policies, restarts and damage.

use std::{fs, path::PathBuf, time::Duration};

use crate::images::image;
use crate::support::{TestNode, contains, eventually, leftovers::Machine, registry::Registry};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A Pod of one container; `more` goes into the spec.
fn pod(name: &str, image: &str, policy: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: '{image}', imagePullPolicy: {policy}}}]
{more}
---
"
    )
}

/// A namespace of the node, as used by its tenant.
struct Tenant<'a> {
    node: &'a TestNode,
    namespace: &'static str,
}

const SECRET: &str = "  imagePullSecrets: [{name: pull}]";

impl Tenant<'_> {
    fn ok(&self, args: &[&str]) -> String {
        self.node.ok(&[&["-n", self.namespace], args].concat())
    }

    fn apply(&self, manifest: &str) {
        let answer = self.node.run_with(&["-n", self.namespace, "apply", "-f", "-"], manifest.as_bytes());
        assert_eq!(answer.code, 0, "{}", answer.all());
    }

    /// Sets the Secret `pull` to this password.
    fn secret(&self, registry: &Registry, password: &str) {
        let (server, password) =
            (format!("--docker-server={}", registry.addr), format!("--docker-password={password}"));
        self.ok(&["create", "secret", "docker-registry", "pull", &server, "--docker-username=user", &password]);
    }

    /// The Pod has read the word.
    #[track_caller]
    fn reads(&self, name: &str, image: &str, policy: &str, more: &str) {
        self.apply(&pod(name, image, policy, more));
        eventually(&format!("{}/{name} reads it", self.namespace), TIMEOUT, || {
            let said = self.node.run(&["-n", self.namespace, "logs", name]);
            if said.out == "private\n" { Ok(()) } else { Err(said.all() + &self.events(name)) }
        });
    }

    /// The Pod waits with this reason, and an event explains it.
    #[track_caller]
    fn is_refused(&self, name: &str, manifest: &str, reason: &str, why: &str) {
        self.apply(manifest);
        eventually(&format!("{}/{name} is refused", self.namespace), TIMEOUT, || {
            let status = self.ok(&["get", "pod", name, "-o", "jsonpath={.status}"]);
            contains(&status, reason)?;
            contains(&self.events(name), why)
        });
        let said = self.node.run(&["-n", self.namespace, "logs", name]).all();
        assert!(!said.contains("private\n"), "{said}");
    }

    fn events(&self, name: &str) -> String {
        self.node.run(&["-n", self.namespace, "events", "--for", &format!("pod/{name}")]).all()
    }

    fn delete_pods(&self) {
        self.ok(&["delete", "pods", "--all"]);
    }
}

fn tenants<'a>(node: &'a TestNode, names: &[&'static str]) -> Vec<Tenant<'a>> {
    names
        .iter()
        .map(|namespace| {
            node.ok(&["create", "namespace", namespace]);
            eventually("its ServiceAccount is there", TIMEOUT, || {
                let got = node.run(&["-n", namespace, "get", "serviceaccount", "default"]);
                if got.code == 0 { Ok(()) } else { Err(got.all()) }
            });
            Tenant { node, namespace }
        })
        .collect()
}

fn record(node: &TestNode, id: &str) -> PathBuf {
    node.dir.path().join("images/pulled").join(id.trim_start_matches("sha256:"))
}

#[track_caller]
fn killed_and_started(node: &mut TestNode) {
    node.kill();
    node.spawn();
    node.wait_ready();
}

#[test]
fn what_one_tenant_has_pulled_another_does_not_get() {
    let mut node = TestNode::start(&[]);
    let untouched = Machine::untouched(node.dir.path());
    node.import_busybox();
    let registry = Registry::start_with(true);
    let name = registry.push(&image("private"), "it", "team/private:1");
    let id = registry.manifest("team/private", "1")["config"]["digest"].as_str().unwrap().to_owned();
    let all = ["owner", "thief", "friend", "guesser"];
    let never = format!("Container image \"{name}\" is not present with pull policy of Never");
    let (asked, blobs);
    {
        let tenants = tenants(&node, &all);
        let [owner, thief, friend, guesser] = &tenants[..] else { unreachable!("four were made") };
        owner.secret(&registry, "secret");
        friend.secret(&registry, "secret");
        guesser.secret(&registry, "guess");
        owner.reads("first", &name, "IfNotPresent", SECRET);
        let digest = owner.ok(&["get", "pod", "first", "-o", "jsonpath={.status.containerStatuses[0].imageID}"]);
        contains(&digest, "team/private@sha256:").unwrap();
        // By tag, by digest, by id, with a wrong credential; in another container than the first.
        thief.is_refused("never", &pod("never", &name, "Never", ""), "ErrImageNeverPull", &never);
        thief.is_refused(
            "present",
            &pod("present", &name, "IfNotPresent", ""),
            "ImagePullBackOff",
            "pull access denied",
        );
        thief.is_refused(
            "digest",
            &pod("digest", &digest, "IfNotPresent", ""),
            "ImagePullBackOff",
            "pull access denied",
        );
        thief.is_refused("id", &pod("id", &id, "Never", ""), "ErrImageNeverPull", "is not present with pull policy");
        guesser.is_refused(
            "guess",
            &pod("guess", &name, "IfNotPresent", SECRET),
            "ImagePullBackOff",
            "pull access denied",
        );
        guesser.is_refused("guess-never", &pod("guess-never", &name, "Never", SECRET), "ErrImageNeverPull", &never);
        let init = format!("  initContainers: [{{name: i, image: '{name}', imagePullPolicy: Never}}]");
        thief.is_refused("init", &pod("init", "localhost/busybox:1", "Never", &init), "ErrImageNeverPull", &never);
        // Imported images are available to all, and ephemeral containers are treated like others. (That image has no command of its
        // own.)
        thief.apply(
            &pod("host", "localhost/busybox:1", "Never", "").replace("name: c,", "name: c, command: [sleep, '1000'],"),
        );
        thief.ok(&["wait", "--for=condition=Ready", "pod/host", "--timeout=60s"]);
        thief.ok(&["debug", "host", "-q", &format!("--image={name}"), "-c", "look", "--", "cat", "/word"]);
        eventually("the debugger is refused", TIMEOUT, || contains(&thief.events("host"), "pull access denied"));
        // From here on refused Pods no longer ask the registry.
        thief.delete_pods();
        guesser.delete_pods();
        // The same credential in another Secret needs no registry. Then that Secret is recorded, too.
        (asked, blobs) = (registry.gets("/manifests/"), registry.gets("/blobs/"));
        friend.reads("friend", &name, "Never", SECRET);
        owner.reads("second", &name, "Never", SECRET);
        contains(&owner.events("second"), "already present on machine and can be accessed by the pod").unwrap();
        let known = fs::read_to_string(record(&node, &id)).unwrap();
        for part in ["\"namespace\":\"owner\"", "\"namespace\":\"friend\"", "sha256:"] {
            contains(&known, part).unwrap();
        }
        for other in ["guesser", "thief", "\"user\"", "\"secret\"", "dXNlcjpzZWNyZXQ"] {
            assert!(!known.contains(other), "{other}: {known}");
        }
        // A ServiceAccount's Secrets apply to its Pods.
        friend.ok(&["patch", "serviceaccount", "default", "-p", "{\"imagePullSecrets\": [{\"name\": \"pull\"}]}"]);
        friend.reads("heir", &name, "Never", "");
        assert_eq!(registry.gets("/manifests/"), asked, "nobody had to ask");
    }
    // All of it is persistent.
    killed_and_started(&mut node);
    let [owner, thief, friend, guesser] = all.map(|namespace| Tenant { node: &node, namespace });
    friend.reads("friend2", &name, "Never", SECRET);
    owner.reads("third", &name, "IfNotPresent", SECRET);
    assert_eq!(registry.gets("/manifests/"), asked);
    thief.is_refused("never2", &pod("never2", &name, "Never", ""), "ErrImageNeverPull", &never);
    // If a record is damaged, or missing because the agent died before writing it, the registry is asked, and it is repaired.
    let path = record(&node, &id);
    for damage in [Some("{\"image\""), None] {
        match damage {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        owner.delete_pods();
        owner.is_refused("never", &pod("never", &name, "Never", SECRET), "ErrImageNeverPull", &never);
        thief.delete_pods();
        thief.is_refused("never", &pod("never", &name, "Never", ""), "ErrImageNeverPull", &never);
        owner.reads("again", &name, "IfNotPresent", SECRET);
        contains(&fs::read_to_string(&path).unwrap(), "\"namespace\":\"owner\"").unwrap();
        // What `Never` waited for may be used now.
        owner.ok(&["wait", "--for=condition=Ready", "pod/never", "--timeout=90s"]);
    }
    assert!(registry.gets("/manifests/") > asked);
    assert_eq!(registry.gets("/blobs/"), blobs, "what is here is not fetched again");
    // It is removed with the image.
    for tenant in [owner, thief, friend, guesser] {
        tenant.delete_pods();
    }
    node.ok(&["image", "rm", &id]);
    assert!(!path.exists());
    drop(node);
    untouched.assert_unchanged();
}

#[test]
fn what_the_operator_brings_is_for_all_and_a_policy_says_otherwise() {
    let registry = Registry::start_with(true);
    let name = registry.push(&image("private"), "it", "team/private:1");
    let open = Registry::start();
    let public = open.push(&image("private"), "it", "public:1");
    let by_hand = |node: &TestNode| {
        let pulled = node
            .command(&["image", "pull", &name, "--username", "user"])
            .env("PODWRIGHT_REGISTRY_PASSWORD", "secret")
            .output()
            .unwrap();
        assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
    };
    let untouched;
    {
        let node = TestNode::start(&[]);
        untouched = Machine::untouched(node.dir.path());
        let tenants = tenants(&node, &["one", "two"]);
        by_hand(&node);
        tenants[0].reads("by-hand", &name, "Never", "");
        tenants[0].reads("public", &public, "IfNotPresent", "");
        tenants[1].reads("public", &public, "Never", "");
        // After a Pod has pulled it, the operator's grant remains.
        tenants[0].secret(&registry, "secret");
        tenants[0].reads("always", &name, "Always", SECRET);
        tenants[1].reads("by-hand", &name, "Never", "");
        tenants.iter().for_each(Tenant::delete_pods);
    }
    untouched.assert_unchanged();

    let flag = "--image-pull-credentials-verification-policy";
    let list = "--preloaded-images-verification-allowlist";
    let host = format!("{}/team/*", registry.addr);
    for (args, private, imported) in [
        (&[flag, "NeverVerify"][..], true, true),
        (&[flag, "AlwaysVerify"], false, false),
        (&[flag, "NeverVerifyAllowlistedImages", list, &host], true, false),
        (&[flag, "NeverVerifyAllowlistedImages", list, "localhost/busybox"], false, true),
    ] {
        let node = TestNode::start(args);
        node.import_busybox();
        let tenants = tenants(&node, &["one", "two"]);
        tenants[0].secret(&registry, "secret");
        tenants[0].reads("owner", &name, "IfNotPresent", SECRET);
        match private {
            true => tenants[1].reads("other", &name, "Never", ""),
            false => tenants[1].is_refused(
                "other",
                &pod("other", &name, "Never", ""),
                "ErrImageNeverPull",
                "is not present with pull policy of Never",
            ),
        }
        let run =
            pod("imported", "localhost/busybox:1", "Never", "").replace("name: c,", "name: c, command: [sleep, '99'],");
        tenants[1].apply(&run);
        let wanted = if imported { ".state.running" } else { "ErrImageNeverPull" };
        eventually(&format!("{args:?}: {wanted}"), TIMEOUT, || {
            let all = ["-n", "two", "get", "pod", "imported", "-o", "json"];
            let object: serde_json::Value = serde_json::from_str(&node.ok(&all)).map_err(|e| e.to_string())?;
            let state = &object["status"]["containerStatuses"][0]["state"];
            let is = if imported { state["running"].is_object() } else { state["waiting"]["reason"] == wanted };
            if is { Ok(()) } else { Err(state.to_string()) }
        });
        tenants.iter().for_each(Tenant::delete_pods);
    }
    for args in [&[flag, "Sometimes"][..], &[list, "r.io/a"], &[flag, "NeverVerifyAllowlistedImages", list, "*"]] {
        let mut node = TestNode::stopped(args);
        node.spawn();
        node.wait_ended();
        contains(&node.log(), "--image-pull-credentials-verification-policy").unwrap();
    }
}
