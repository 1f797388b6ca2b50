//! The real kubectl with custom resources: defined, explained, applied, scaled, watched, and gone with their definition.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{Answer, TestNode, contains};

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [cronSpec]
            x-kubernetes-validations:
            - {rule: 'self.replicas <= 5', message: at most five}
            properties:
              cronSpec: {type: string, description: When it runs., pattern: '^(\\S+ ){4}\\S+$'}
              image: {type: string, default: busybox}
              replicas: {type: integer, minimum: 0, default: 1}
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, port: {type: integer}}
          status:
            type: object
            properties:
              replicas: {type: integer}
              conditions: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    selectableFields: [{jsonPath: .spec.image}]
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
";
const OBJECT: &str = "
apiVersion: stable.example.com/v1
kind: CronTab
metadata: {name: nightly}
spec: {cronSpec: '0 3 * * *', ports: [{name: a, port: 1}]}
";

struct Kubectl {
    node: TestNode,
    kubectl: String,
}

impl Kubectl {
    fn run(&self, args: &[&str], input: &str) -> Answer {
        let dir = self.node.dir.path();
        let mut child = Command::new(&self.kubectl)
            .env("KUBECONFIG", dir.join("admin.kubeconfig"))
            .env("HOME", dir)
            .env("KUBECACHEDIR", dir.join("kubecache"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Answer::of(child.wait_with_output().unwrap())
    }

    #[track_caller]
    fn ok(&self, args: &[&str], input: &str) -> String {
        let answer = self.run(args, input);
        assert_eq!(answer.code, 0, "kubectl {}: {}\n{}", args.join(" "), answer.all(), self.node.log());
        answer.out
    }

    #[track_caller]
    fn says(&self, args: &[&str], parts: &[&str]) {
        let out = self.ok(args, "");
        parts
            .iter()
            .for_each(|part| contains(&out, part).unwrap_or_else(|why| panic!("kubectl {}: {why}", args.join(" "))));
    }

    #[track_caller]
    fn refuses(&self, args: &[&str], input: &str, part: &str) {
        let answer = self.run(args, input);
        assert_ne!(answer.code, 0, "kubectl {}: {}", args.join(" "), answer.all());
        contains(&answer.err, part).unwrap_or_else(|why| panic!("kubectl {}: {why}", args.join(" ")));
    }
}

#[test]
fn custom_resources_are_like_others_to_kubectl() {
    let kubectl = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into());
    if Command::new(&kubectl).args(["version", "--client"]).stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: there is no kubectl here; `./dev test` installs one");
        return;
    }
    let k = Kubectl { node: TestNode::start(&[]), kubectl };
    k.ok(&["apply", "-f", "-"], DEFINITION);
    k.ok(&["wait", "--for=condition=Established", "crd/crontabs.stable.example.com", "--timeout=20s"], "");
    k.says(&["api-resources", "--api-group=stable.example.com"], &["crontabs", "ct", "CronTab", "true"]);
    k.says(&["explain", "crontab.spec"], &["cronSpec", "When it runs.", "replicas"]);
    k.says(&["get", "crd"], &["crontabs.stable.example.com"]);

    assert_eq!(k.ok(&["apply", "-f", "-"], OBJECT), "crontab.stable.example.com/nightly created\n");
    assert_eq!(k.ok(&["apply", "-f", "-"], OBJECT), "crontab.stable.example.com/nightly unchanged\n");
    let changed = OBJECT.replace("0 3", "5 4");
    k.says(&["get", "ct"], &["SPEC", "REPLICAS", "AGE", "0 3 * * *"]);
    assert_eq!(k.ok(&["apply", "-f", "-"], &changed), "crontab.stable.example.com/nightly configured\n");
    assert_eq!(
        k.ok(&["get", "crontab", "nightly", "-o", "jsonpath={.spec.image} {.spec.cronSpec}"], ""),
        "busybox 5 4 * * *"
    );
    k.says(&["get", "all"], &["crontab.stable.example.com/nightly"]);
    k.says(&["describe", "ct", "nightly"], &["Cron Spec:", "5 4 * * *"]);
    k.says(
        &["get", "ct", "--field-selector=spec.image=busybox", "-o", "name"],
        &["crontab.stable.example.com/nightly"],
    );
    assert_eq!(k.ok(&["get", "ct", "--field-selector=spec.image=other", "-o", "name"], ""), "");

    k.refuses(&["apply", "-f", "-"], &OBJECT.replace("cronSpec", "cronSpek"), "cronSpek\"");
    k.refuses(&["apply", "-f", "-"], &OBJECT.replace("0 3 * * *", "daily"), "spec.cronSpec in body should match");
    k.refuses(&["patch", "ct", "nightly", "--type=merge", "-p", "{\"spec\":{\"replicas\":9}}"], "", "at most five");
    k.refuses(&["patch", "ct", "nightly", "--type=strategic", "-p", "{}"], "", "in an unknown format");
    k.ok(
        &[
            "patch",
            "ct",
            "nightly",
            "--type=json",
            "-p",
            "[{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":2}]",
        ],
        "",
    );
    k.ok(&["scale", "ct/nightly", "--replicas=3"], "");
    k.ok(&["label", "ct", "nightly", "tier=back"], "");
    assert_eq!(
        k.ok(
            &["get", "ct", "nightly", "-o", "jsonpath={.spec.replicas}{.metadata.labels.tier}{.metadata.generation}"],
            ""
        ),
        "3back4"
    );
    // Since 1.24.
    if k.ok(&["patch", "--help"], "").contains("--subresource") {
        k.ok(
            &[
                "patch",
                "ct",
                "nightly",
                "--subresource=status",
                "--type=merge",
                "-p",
                "{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}",
            ],
            "",
        );
        k.ok(&["wait", "--for=condition=Ready", "ct/nightly", "--timeout=10s"], "");
    }

    // What begins with a brace is JSON to kubectl.
    let applied = "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: nightly}\nspec: {ports: [{name: b, port: 2}]}\n";
    // (An old one misses what others have given, where it is let look.)
    k.ok(&["apply", "--server-side", "--validate=false", "--field-manager=other", "-f", "-"], applied);
    assert_eq!(k.ok(&["get", "ct", "nightly", "-o", "jsonpath={.spec.ports[*].name}"], ""), "a b");
    let conflict = applied.replace("{ports", "{cronSpec: '1 1 1 1 1', ports");
    // (What was applied on the client's side has become the first manager's, as kubectl does it.)
    k.refuses(&["apply", "--server-side", "--field-manager=third", "-f", "-"], &conflict, "conflict");

    // The command of ours knows it too.
    assert_eq!(k.node.ok(&["get", "ct", "-o", "name"]).trim(), "crontab.stable.example.com/nightly");
    contains(&k.node.ok(&["api-resources"]), "crontabs").unwrap();

    k.ok(&["delete", "crd", "crontabs.stable.example.com", "--timeout=20s"], "");
    k.refuses(&["get", "--raw", "/apis/stable.example.com/v1/crontabs"], "", "could not find the requested resource");
    assert_eq!(k.ok(&["api-resources", "--api-group=stable.example.com", "-o", "name"], ""), "");
}
