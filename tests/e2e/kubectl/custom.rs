//! The real kubectl with custom resources: defined, explained, applied, scaled, watched, and gone with their definition.

use super::{Cluster, Fails, Has, Is};
use crate::support::contains;

pub(super) const DEFINITION: &str = "
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
pub(super) const OBJECT: &str = "
apiVersion: stable.example.com/v1
kind: CronTab
metadata: {name: nightly}
spec: {cronSpec: '0 3 * * *', ports: [{name: a, port: 1}]}
";

// For server-side apply; kubectl parses what begins with a brace as JSON.
const PORTS: &str = "
apiVersion: stable.example.com/v1
kind: CronTab
metadata: {name: nightly}
spec: {ports: [{name: b, port: 2}]}
";

#[test]
fn custom_resources_are_like_others_to_kubectl() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.file("crd.yaml", DEFINITION);
    cluster.file("nightly.yaml", OBJECT);
    cluster.file("ports.yaml", PORTS);
    cluster.drill(&[
        ("kubectl apply -f crd.yaml", Is("customresourcedefinition.apiextensions.k8s.io/crontabs.stable.example.com created")),
        ("kubectl wait --for=condition=Established crd/crontabs.stable.example.com --timeout=20s", Has(&["met"])),
        ("kubectl api-resources --api-group=stable.example.com --no-headers", Has(&["crontabs   ct    stable.example.com/v1   true   CronTab"])),
        ("kubectl get crd -o name", Has(&["crontabs.stable.example.com"])),
        // Explain.
        ("kubectl explain crontab", Has(&["GROUP:      stable.example.com", "KIND:       CronTab", "spec\t<Object>"])),
        ("kubectl explain crontab.spec", Has(&["cronSpec\t<string> -required-", "When it runs.", "replicas\t<integer>"])),
        ("kubectl explain ct.spec.ports --recursive", Has(&["FIELD: ports <[]Object>", "name\t<string> -required-"])),
        ("kubectl explain ct.spec.nothing", Fails(1, "field \"nothing\" does not exist")),
        // Apply and columns.
        ("kubectl apply -f nightly.yaml", Is("crontab.stable.example.com/nightly created")),
        ("kubectl apply -f nightly.yaml", Is("crontab.stable.example.com/nightly unchanged")),
        ("kubectl get ct", Has(&["NAME      SPEC        REPLICAS   AGE\nnightly   0 3 * * *   1"])),
        ("kubectl get ct -o custom-columns=WHEN:.spec.cronSpec --no-headers", Is("0 3 * * *")),
        ("sed 's/0 3/5 4/' nightly.yaml | kubectl apply -f -", Is("crontab.stable.example.com/nightly configured")),
        ("kubectl get crontab nightly -o jsonpath='{.spec.image} {.spec.cronSpec}'", Is("busybox 5 4 * * *")),
        ("kubectl get all -o name", Has(&["crontab.stable.example.com/nightly"])),
        ("kubectl describe ct nightly", Has(&["Cron Spec:", "5 4 * * *"])),
        ("kubectl get ct --field-selector=spec.image=busybox -o name", Is("crontab.stable.example.com/nightly")),
        ("kubectl get ct --field-selector=spec.image=other -o name", Is("")),
        ("kubectl diff -f nightly.yaml", Fails(1, "+  cronSpec: 0 3 * * *")),
        // Rejected by its schema and its rules.
        ("sed 's/cronSpec/cronSpek/' nightly.yaml | kubectl apply -f -", Fails(1, "unknown field \"spec.cronSpek\"")),
        ("sed 's/0 3 \\* \\* \\*/daily/' nightly.yaml | kubectl apply -f -", Fails(1, "spec.cronSpec in body should match")),
        ("kubectl patch ct nightly --type=merge -p '{\"spec\":{\"replicas\":9}}'", Fails(1, "at most five")),
        ("kubectl patch ct nightly --type=strategic -p '{}'", Fails(1, "strategic")),
        // Changes.
        ("kubectl patch ct nightly --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":2}]'", Has(&["patched"])),
        ("kubectl scale ct/nightly --replicas=3 && kubectl label ct nightly tier=back", Has(&["scaled", "labeled"])),
        ("kubectl get ct nightly -o jsonpath='{.spec.replicas}{.metadata.labels.tier}{.metadata.generation}'", Is("3back4")),
        ("KUBE_EDITOR=\"sed -i 's/image: busybox/image: other/'\" kubectl edit ct nightly", Has(&["nightly edited"])),
        (
            "kubectl patch ct nightly --subresource=status --type=merge -p '{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}'",
            Has(&["patched"]),
        ),
        ("kubectl wait --for=condition=Ready ct/nightly --timeout=10s", Has(&["met"])),
        ("kubectl apply --server-side --field-manager=other -f ports.yaml", Has(&["serverside-applied"])),
        ("kubectl get ct nightly -o jsonpath='{.spec.ports[*].name}'", Is("a b")),
        // (kubectl migrates client-side applied fields to the first manager.)
        ("sed \"s/{ports/{cronSpec: '1 1 1 1 1', ports/\" ports.yaml | kubectl apply --server-side --field-manager=third -f -", Fails(1, "conflict")),
        ("kubectl auth can-i create crontabs --as=eve", Fails(1, "no")),
    ]);
    // Our own command supports it too.
    assert_eq!(cluster.node.ok(&["get", "ct", "-o", "name"]).trim(), "crontab.stable.example.com/nightly");
    contains(&cluster.node.ok(&["api-resources"]), "crontabs").unwrap();
    cluster.drill(&[
        ("kubectl delete crd crontabs.stable.example.com --timeout=20s", Has(&["deleted"])),
        ("kubectl get --raw /apis/stable.example.com/v1/crontabs", Fails(1, "could not find the requested resource")),
        ("kubectl api-resources --api-group=stable.example.com -o name", Is("")),
    ]);
}
