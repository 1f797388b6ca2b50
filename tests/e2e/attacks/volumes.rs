//! Volumes: subPaths, links and races in them, files written by the agent.

use serde_json::{Value, json};

use super::world::{BASELINE, EDIT, IMAGE, NODE, OPEN, OURS, THEIRS, World};
use super::{Attack, Expect, POD, Pod, Target, Try, Verdict, judge};
use crate::support::eventually;

/// An emptyDir filled by an init container.
macro_rules! prepared {
    ($script:literal) => {
        concat!(
            "{volumes: [{name: v, emptyDir: {}}], initContainers: [{name: i, image: 'localhost/attack:1', volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, '",
            $script,
            "']}]}"
        )
    };
}

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "sub-path-link",
        class: "sub-path",
        cves: &["CVE-2017-1002101"],
        how: "`subPath` through an absolute link that a container made in the volume",
        held: "sub-paths are opened below the volume, with no link followed out of it",
        attempt: Try::Pod(Pod {
            spec: prepared!("ln -s / /v/out"),
            container: "volumeMounts: [{name: v, mountPath: /m, subPath: 'out@FOLDER@'}]",
            script: "cat /m/sub-path-link; echo held: $(ls /m 2>&1 | wc -l)",
            expect: Expect::HeldOrRefused("Invalid cross-device link"),
            ..POD
        }),
    },
    Attack {
        id: "sub-path-relative-link",
        class: "sub-path",
        cves: &["CVE-2017-1002101"],
        how: "the same through a link of many `..`, its last part the host's folder itself",
        held: "as above",
        attempt: Try::Pod(Pod {
            spec: prepared!("ln -s ../../../../../../../../../../../../../..@FOLDER@ /v/out"),
            container: "volumeMounts: [{name: v, mountPath: /m, subPath: out}]",
            script: "cat /m/sub-path-relative-link; echo held: $(ls /m 2>&1 | wc -l)",
            expect: Expect::HeldOrRefused("Invalid cross-device link"),
            ..POD
        }),
    },
    Attack {
        id: "sub-path-magic-link",
        class: "sub-path",
        cves: &["CVE-2017-1002101", "CVE-2021-25741"],
        how: "the same through `/proc/self/root` and `/proc/self/cwd`, which lead elsewhere for who resolves them",
        held: "as above",
        attempt: Try::Pod(Pod {
            spec: prepared!("ln -s /proc/self/root@FOLDER@ /v/out"),
            container: "volumeMounts: [{name: v, mountPath: /m, subPath: out}]",
            script: "cat /m/sub-path-magic-link; echo held: $(ls /m 2>&1 | wc -l)",
            expect: Expect::HeldOrRefused("Invalid cross-device link"),
            ..POD
        }),
    },
    Attack {
        id: "sub-path-race",
        class: "sub-path",
        cves: &["CVE-2021-25741"],
        how: "a sidecar exchanges a folder and a link out of the volume all the time, while twelve containers mount it by `subPath`",
        held: "what was opened and checked is what is mounted, by its descriptor",
        attempt: Try::Code(|world, target| {
            race(
                world,
                target,
                "[{name: v, mountPath: /m, subPath: d}]",
                "cat /m/sub-path-race /m@CANARY@; echo held: $(ls /m | wc -l)",
            )
        }),
    },
    Attack {
        id: "mount-race",
        class: "mount race",
        cves: &["CVE-2021-30465", "CVE-2019-19921"],
        how: "the same sidecar, while twelve containers mount a second volume on that folder below the first",
        held: "the mount point is opened below the root, and the mount is attached to that descriptor",
        attempt: Try::Code(|world, target| {
            let mounts = "[{name: v, mountPath: /v}, {name: w, mountPath: '/v/d/made-by-mount-race'}]";
            race(world, target, mounts, "attack climb @CANARY@")
        }),
    },
    Attack {
        id: "sub-path-parent",
        class: "sub-path",
        cves: &[],
        how: "`subPath: ../../..`",
        held: "refused by validation",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, emptyDir: {}}]",
            container: "volumeMounts: [{name: v, mountPath: /m, subPath: '../../../../../../..@FOLDER@'}]",
            expect: Expect::Refused("must not contain '..'"),
            ..POD
        }),
    },
    Attack {
        id: "sub-path-expression-parent",
        class: "sub-path",
        cves: &[],
        how: "`subPathExpr` of a variable whose value is `../../..`, and one that is absolute",
        held: "what the expression gives is checked too, and opened below the volume",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, emptyDir: {}}]",
            container: "{env: [{name: X, value: '../../../../../../../../..@FOLDER@'}], volumeMounts: [{name: v, mountPath: /m, subPathExpr: $(X)}]}",
            script: "cat /m/sub-path-expression-parent; echo held: $(ls /m | wc -l)",
            expect: Expect::Refused("leads out of its folder"),
            ..POD
        }),
    },
    Attack {
        id: "proc-volume",
        class: "mount over procfs",
        cves: &["CVE-2019-16884", "CVE-2019-19921", "CVE-2023-27561", "CVE-2025-52881"],
        how: "an emptyDir at `/proc`, with links of its own at `self/attr/exec` and `sys`",
        held: "what is at `/proc` must be procfs",
        attempt: Try::Pod(Pod {
            spec: prepared!(
                "mkdir -p /v/self/attr /v/self/fd /v/sys/kernel; for f in attr/exec oom_score_adj attr/current; do ln -s @CANARY@ /v/self/$f; done"
            ),
            container: "volumeMounts: [{name: v, mountPath: /proc}]",
            expect: Expect::Refused("not of type proc"),
            ..POD
        }),
    },
    Attack {
        id: "volume-scrub",
        class: "agent's writes",
        cves: &["CVE-2017-1002102"],
        how: "a volume of the StorageClass `local`, full of links to the host's files and folders, of folders nested a thousand deep and of names that look like the agent's own, is deleted with its claim",
        held: "what is removed is removed by descriptors below the volume's own folder, whose mark only the node can write: links are removed, never followed",
        attempt: Try::Code(volume_scrub),
    },
    Attack {
        id: "volume-of-another",
        class: "claims",
        cves: &[],
        how: "who holds `edit` in a namespace claims the volume of another's: by its name, by annotations of binder and provisioner, by a uid and a name that lead elsewhere; and asks for a folder of the host by the class's parameters",
        held: "a volume is its claim's by uid, which the server makes; of a claim nothing else reaches a path; classes are the administrator's",
        attempt: Try::Code(volume_of_another),
    },
    Attack {
        id: "config-map-write",
        class: "agent's writes",
        cves: &["CVE-2017-1002102", "CVE-2025-9566"],
        how: "writes, links and removals in ConfigMap, Secret, projected and downward volumes, which the agent updates",
        held: "they are mounted read-only",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: c, configMap: {name: kube-root-ca.crt}}, {name: p, projected: {sources: [{configMap: {name: kube-root-ca.crt}}]}}, {name: d, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]",
            container: "volumeMounts: [{name: c, mountPath: /c}, {name: p, mountPath: /p}, {name: d, mountPath: /d}]",
            script: "
for f in /c /p /d /var/run/secrets/kubernetes.io/serviceaccount; do
  for try in \"ln -s @FOLDER@ $f/x\" \"rm -rf $f/..data\" \"touch $f/y\" \"mount -o remount,rw $f\"; do
    if $try 2>/tmp/why; then echo \"BREACH: $try\"; else echo \"held: $(tail -n 1 /tmp/why)\"; fi
  done
done",
            ..POD
        }),
    },
    Attack {
        id: "config-map-key",
        class: "agent's writes",
        cves: &["CVE-2017-1002102"],
        how: "items of ConfigMap, projected, downward and token volumes whose paths lead up",
        held: "refused by validation",
        attempt: Try::Code(item_paths),
    },
    Attack {
        id: "git-repo",
        class: "agent's programs",
        cves: &["CVE-2024-10220", "CVE-2025-1767"],
        how: "a gitRepo volume, of a local repository and with a folder `..`",
        held: "no such volume is made: the Pod does not start",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: g, gitRepo: {repository: '@FOLDER@', directory: '.'}}]",
            container: "volumeMounts: [{name: g, mountPath: /g}]",
            script: "ls -lR /g",
            expect: Expect::Refused("not supported by this node"),
            ..POD
        }),
    },
    Attack {
        id: "host-path-baseline",
        class: "hostPath",
        cves: &[],
        how: "hostPath of a socket (as docker.sock), a folder and `/` in a `baseline` namespace",
        held: "Pod Security",
        attempt: Try::Pod(Pod {
            namespace: BASELINE,
            spec: "volumes: [{name: v, hostPath: {path: /}}]",
            container: "volumeMounts: [{name: v, mountPath: /v}]",
            script: "cat /v@CANARY@",
            expect: Expect::Refused("hostPath"),
            ..POD
        }),
    },
    Attack {
        id: "host-path-parent",
        class: "hostPath",
        cves: &[],
        how: "a hostPath with `..`, by which an allow-list of prefixes is passed",
        held: "refused by validation",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, hostPath: {path: '/tmp/../@FOLDER@'}}]",
            container: "volumeMounts: [{name: v, mountPath: /v}]",
            script: "cat /v/*",
            expect: Expect::Refused("must not contain '..'"),
            ..POD
        }),
    },
    Attack {
        id: "propagation",
        class: "hostPath",
        cves: &[],
        how: "`mountPropagation: Bidirectional` without privilege",
        held: "refused by validation",
        attempt: Try::Pod(Pod {
            spec: "volumes: [{name: v, emptyDir: {}}]",
            container: "volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]",
            expect: Expect::Refused("Bidirectional mount propagation is available only to privileged containers"),
            ..POD
        }),
    },
];
/// Many containers of one Pod mount what a sidecar keeps swapping.
fn race(world: &World, target: &Target, mounts: &str, script: &'static str) -> Verdict {
    let pod = Pod { script, container: "", ..POD };
    let mut object = world.pod(target, &pod);
    let template = object["spec"]["containers"][0].clone();
    let mounts = super::yaml(mounts, target);
    let containers = (0..12).map(|n| {
        let mut container = template.clone();
        container["name"] = json!(format!("c{n}"));
        container["volumeMounts"] = mounts.clone();
        container
    });
    let up = format!("../../../../../../../../../../../..{}", world.folder().display());
    let swap = format!("mkdir /v/d; ln -s {up} /v/l; touch /v/up; attack swap /v/d /v/l 60000");
    object["spec"]["containers"] = containers.collect();
    object["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]);
    object["spec"]["initContainers"] = json!([{
        "name": "swap", "image": template["image"], "restartPolicy": "Always", "command": ["sh", "-c", swap],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "startupProbe": {"exec": {"command": ["test", "-e", "/v/up"]}, "periodSeconds": 1},
    }]);
    if let Err(why) = world.create("pods", OPEN, object) {
        return Verdict::Untried(why);
    }
    eventually("all containers have been tried", super::TIMEOUT, || {
        let pod = world.get("pods", OPEN, target.id).unwrap_or_default();
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let tried = |c: &serde_json::Value| {
            let waiting = c["state"]["waiting"]["reason"].as_str().unwrap_or_default();
            !c["state"]["terminated"].is_null() || waiting.ends_with("Error")
        };
        if all.len() == 12 && all.iter().all(tried) { Ok(()) } else { Err(pod["status"].to_string()) }
    });
    let mut said = world.get("pods", OPEN, target.id).unwrap_or_default()["status"].to_string();
    for n in 0..12 {
        said.push_str(&world.node.run(&["-n", OPEN, "logs", target.id, "-c", &format!("c{n}")]).out);
    }
    world.delete("pods", OPEN, target.id);
    match judge(target, &said) {
        Verdict::Untried(_) => Verdict::Held("no container started".into()),
        other => other,
    }
}

fn item_paths(world: &World, target: &Target) -> Verdict {
    let mut seen = Vec::new();
    for (number, path) in ["../../x", "/x", "a/../../x", "..x/../../y", "..data"].iter().enumerate() {
        let item = json!([{"key": "ca.crt", "path": path}]);
        let volumes = [
            json!({"name": "v", "configMap": {"name": "kube-root-ca.crt", "items": item}}),
            json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt", "items": item}}]}}),
            json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": path}}]}}),
            json!({"name": "v", "downwardAPI": {"items": [{"path": path, "fieldRef": {"fieldPath": "metadata.name"}}]}}),
        ];
        for (kind, volume) in volumes.into_iter().enumerate() {
            let mut object = world.pod(target, &POD);
            object["metadata"]["name"] = json!(format!("{}-{number}-{kind}", target.id));
            object["spec"]["volumes"] = json!([volume]);
            match world.create("pods", OPEN, object) {
                Ok(_) => return Verdict::Breach(format!("accepted: {volume}")),
                Err(why) => seen.push(why),
            }
        }
    }
    Verdict::Held(format!("{} were refused; {}", seen.len(), seen[0]))
}

/// A Pod with a claim of the class `local`; runs a command, then waits.
fn with_claim(target: &Target, does: &str) -> (Value, String) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": target.id, "namespace": OPEN},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}},
    });
    (claim, format!("{does}; echo up; sleep 1000"))
}

fn volume_scrub(world: &World, target: &Target) -> Verdict {
    let (claim, script) = with_claim(
        target,
        "cd /v && ln -s @FOLDER@ out && ln -s @CANARY@ file && ln -s / root && ln -s ../../../../../../../..@FOLDER@ up && mkdir -p a/b && \
         ln -s @FOLDER@ a/b/out && ln -s @FOLDER@ .removed-1 && ln -s @FOLDER@ .removed-2 && ln -s @CANARY@ volume.json && \
         mkfifo fifo && chmod 0 a && i=0; while [ $i -lt 1000 ]; do mkdir d && cd d && ln -s @FOLDER@ l; i=$((i+1)); done; touch /v/full",
    );
    let script: &'static str = Box::leak(script.into_boxed_str());
    let pod = Pod {
        spec: "volumes: [{name: v, persistentVolumeClaim: {claimName: volume-scrub}}]",
        container: "volumeMounts: [{name: v, mountPath: /v}]",
        script,
        ..POD
    };
    let tried = world.create("persistentvolumeclaims", OPEN, claim).and_then(|_| world.start_pod(target, &pod));
    if let Err(why) = tried {
        return Verdict::Untried(why);
    }
    let volume = world.node.field(&["-n", OPEN, "pvc", target.id], ".spec.volumeName");
    let data = world.node.dir.path().join("local-volumes").join(&volume).join("data");
    eventually("the volume is full", super::TIMEOUT, || {
        data.join("full").symlink_metadata().map_err(|e| format!("{e} {}", world.logs(target, OPEN)))
    });
    let links = std::fs::read_dir(&data).unwrap().flatten().filter(|entry| entry.path().is_symlink()).count();
    world.delete("pods", OPEN, target.id);
    world.delete("persistentvolumeclaims", OPEN, target.id);
    let root = world.node.dir.path().join("local-volumes");
    eventually("the volume is gone", super::TIMEOUT, || {
        let left = std::fs::read_dir(&root)
            .unwrap()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().contains(&volume));
        match world.get("persistentvolumes", "", &volume) {
            None if !left => Ok(()),
            found => Err(format!("{left} {found:?}")),
        }
    });
    // The canary and its folder are checked by the caller.
    match target.canary.symlink_metadata() {
        Ok(_) => Verdict::Held(format!("{links} links went, and what they lead to stays")),
        Err(why) => Verdict::Breach(format!("the canary: {why}")),
    }
}

fn volume_of_another(world: &World, target: &Target) -> Verdict {
    // A tenant's, with data.
    let claim = |name: &str, namespace: &str, changes: Value| {
        let mut claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
        });
        json_patch::merge(&mut claim, &changes);
        claim
    };
    let (text, canary) = (&target.text, &target.canary);
    let pod = |name: &str, namespace: &str, claim: &str, does: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": {
            "terminationGracePeriodSeconds": 0, "restartPolicy": "Never",
            "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", does], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})
    };
    let victim = world.create("persistentvolumeclaims", THEIRS, claim("mine", THEIRS, json!({}))).and_then(|_| {
        world.create("pods", THEIRS, pod("keeper", THEIRS, "mine", &format!("echo '{text}' > /v/word; sleep 1000")))
    });
    if let Err(why) = victim {
        return Verdict::Untried(why);
    }
    world.node.wait("condition=Ready", &["-n", THEIRS, "pod/keeper"], super::TIMEOUT);
    let volume = world.node.field(&["-n", THEIRS, "pvc", "mine"], ".spec.volumeName");
    let uid = volume.trim_start_matches("pvc-").to_owned();
    let bound = json!({"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
        "volume.kubernetes.io/selected-node": NODE, "volume.kubernetes.io/storage-provisioner": "podwright.dev/local"});
    let tries = [
        ("by-name", json!({"spec": {"volumeName": volume}})),
        ("bound", json!({"spec": {"volumeName": volume}, "metadata": {"annotations": bound}})),
        ("uid", json!({"metadata": {"uid": uid, "annotations": {"volume.kubernetes.io/selected-node": NODE}}})),
        ("out", json!({"metadata": {"uid": format!("../../../../../../..{}", canary.display())}})),
        ("node", json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "../../../etc"}}})),
    ];
    let path = format!("/api/v1/namespaces/{OURS}");
    let mut seen = Vec::new();
    for (name, changes) in tries {
        let (code, said) =
            world.ask(EDIT, "POST", &format!("{path}/persistentvolumeclaims"), &claim(name, OURS, changes));
        seen.push(format!("{name}: {code}"));
        if !matches!(code, 201 | 400 | 422) {
            return Verdict::Untried(said);
        }
        // Its status is not controlled by the tenant either.
        let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Mi"}}});
        let (code, said) = world.ask(EDIT, "PATCH", &format!("{path}/persistentvolumeclaims/{name}/status"), &status);
        if code == 200 {
            return Verdict::Breach(format!("he writes the status of {name}: {said}"));
        }
        world.ask(EDIT, "POST", &format!("{path}/pods"), &pod(name, OURS, name, "cat /v/word; ls -la /v; echo over"));
    }
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "host"},
        "provisioner": "podwright.dev/local", "parameters": {"path": "/"}, "volumeBindingMode": "WaitForFirstConsumer"});
    let (code, said) = world.ask(EDIT, "POST", "/apis/storage.k8s.io/v1/storageclasses", &class);
    if code != 403 {
        return Verdict::Breach(format!("he makes classes: {code} {said}"));
    }
    // A legitimate one, to measure how long a volume takes.
    let honest = [
        ("persistentvolumeclaims", claim("honest", OURS, json!({}))),
        ("pods", pod("honest", OURS, "honest", "ls /v; sleep 1000")),
    ];
    for (kind, object) in honest {
        world.ask(EDIT, "POST", &format!("{path}/{kind}"), &object);
    }
    world.node.wait("condition=Ready", &["-n", OURS, "pod/honest"], super::TIMEOUT);
    let said: String = ["by-name", "bound", "uid", "out", "node"]
        .iter()
        .map(|name| world.node.run(&["-n", OURS, "logs", name]).all())
        .collect();
    let word = world.node.run(&["-n", THEIRS, "exec", "keeper", "--", "cat", "/v/word"]).out;
    let root = world.node.dir.path().join("local-volumes");
    let strange = || -> Vec<String> {
        let entries = std::fs::read_dir(&root).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| world.get("persistentvolumes", "", name).is_none()).collect()
    };
    // Another attack's volume may be disappearing just now: real anomalies persist.
    let (begin, mut strangers) = (std::time::Instant::now(), strange());
    while !strangers.is_empty() && begin.elapsed() < super::TIMEOUT {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let now = strange();
        strangers.retain(|name| now.contains(name));
    }
    for (namespace, kind) in [(OURS, "pods"), (THEIRS, "pods"), (OURS, "pvc"), (THEIRS, "pvc")] {
        let names: &[&str] = if namespace == OURS {
            &["by-name", "bound", "uid", "out", "node", "honest"]
        } else if kind == "pods" {
            &["keeper"]
        } else {
            &["mine"]
        };
        world.node.run(&[&["-n", namespace, "delete", kind, "--ignore-not-found", "--wait=false"], names].concat());
    }
    match () {
        () if said.contains(text.as_str()) => Verdict::Breach(format!("another's data was read: {said}")),
        () if word.trim() != text.as_str() => Verdict::Breach(format!("another's data is now {word:?}")),
        () if !strangers.is_empty() => Verdict::Breach(format!("folders that are no volume's: {strangers:?}")),
        () => Verdict::Held(seen.join(", ")),
    }
}
