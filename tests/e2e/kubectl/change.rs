//! Changes of existing objects: patch, replace, edit, label, annotate, scale, set, rollout, autoscale, expose.

use super::{Cluster, Fails, Has, Is};

const APP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 1
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: localhost/busybox:1
        command: [sleep, infinity]
        env: [{name: A, value: '1'}]
";

/// An editor that breaks the file the first time, and fixes it the second time.
const EDITOR: &str = "#!/bin/sh
n=$(cat turns 2>/dev/null || echo 0); n=$((n+1)); echo $n > turns; cp $1 turn.$n
case $n in
  1) sed -i 's/replicas: 1/replicas: -5/' $1 ;;
  2) sed -i 's/replicas: -5/replicas: 2/' $1 ;;
esac
";

#[test]
fn objects_are_patched_replaced_and_edited() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.file("app.yaml", APP);
    cluster.file("editor", EDITOR);
    let env = "kubectl get deploy app -o jsonpath='{.spec.template.spec.containers[*].env[*].name}'";
    cluster.drill(&[
        ("chmod +x editor && kubectl create -f app.yaml", Is("deployment.apps/app created")),
        // A strategic patch merges lists by their keys, a merge patch replaces them.
        (
            "kubectl patch deploy app -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"c\",\"env\":[{\"name\":\"Z\",\"value\":\"z\"}]}]}}}}'",
            Is("deployment.apps/app patched"),
        ),
        (env, Is("Z A")),
        (
            "kubectl patch deploy app -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"c\",\"env\":[{\"$patch\":\"delete\",\"name\":\"Z\"}]}]}}}}'",
            Is("deployment.apps/app patched"),
        ),
        (env, Is("A")),
        (
            "kubectl patch deploy app --type=merge -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"d\",\"image\":\"i\"}]}}}}'",
            Is("deployment.apps/app patched"),
        ),
        ("kubectl get deploy app -o jsonpath='{.spec.template.spec.containers[*].name}'", Is("d")),
        (
            "kubectl patch deploy app --type=json -p '[{\"op\":\"test\",\"path\":\"/spec/replicas\",\"value\":1},{\"op\":\"add\",\"path\":\"/metadata/labels\",\"value\":{\"j\":\"1\"}}]'",
            Is("deployment.apps/app patched"),
        ),
        (
            "kubectl patch deploy app --type=json -p '[{\"op\":\"test\",\"path\":\"/spec/replicas\",\"value\":9}]'",
            Fails(1, "The request is invalid: the server rejected our request due to an error in our request"),
        ),
        ("kubectl patch deploy app -p '{\"spec\":{\"replicas\":1}}'", Is("deployment.apps/app patched (no change)")),
        ("kubectl patch deploy app -p '{\"spec\":{\"selector\":null}}'", Fails(1, "spec.selector")),
        ("kubectl patch deploy app --subresource=scale --type=merge -p '{\"spec\":{\"replicas\":4}}'", Is("scale.autoscaling/app patched")),
        ("kubectl get deploy app --subresource=scale -o jsonpath='{.kind} {.spec.replicas} {.status.selector}'", Is("Scale 4 app=app")),
        (
            "kubectl patch deploy app --subresource=status --type=merge -p '{\"status\":{\"collisionCount\":3},\"spec\":{\"replicas\":9}}'",
            Is("deployment.apps/app patched"),
        ),
        ("kubectl get deploy app -o jsonpath='{.status.collisionCount} {.spec.replicas}'", Is("3 4")),
        // replace.
        ("kubectl create cm words --from-literal=a=1", Is("configmap/words created")),
        ("kubectl get cm words -o yaml > old.yaml; sed 's/a: \"1\"/a: \"2\"/' old.yaml | kubectl replace -f -", Is("configmap/words replaced")),
        (
            "kubectl replace -f old.yaml",
            Fails(1, "Error from server (Conflict): error when replacing \"old.yaml\": Operation cannot be fulfilled on configmaps \"words\": the object has been modified; please apply your changes to the latest version and try again"),
        ),
        ("kubectl replace --force -f old.yaml", Has(&["configmap \"words\" deleted", "configmap/words replaced"])),
        ("kubectl get cm words -o jsonpath='{.data.a}'", Is("1")),
        ("sed 's/name: words/name: other/; /uid/d; /resourceVersion/d' old.yaml | kubectl replace -f -", Fails(1, "(NotFound)")),
        // edit.
        ("KUBE_EDITOR=\"sed -i 's/a: \\\"1\\\"/a: \\\"edited\\\"/'\" kubectl edit cm words", Is("configmap/words edited")),
        ("kubectl get cm words -o jsonpath='{.data.a}'", Is("edited")),
        ("KUBE_EDITOR=true kubectl edit cm words", Has(&["Edit cancelled, no changes made."])),
        ("kubectl edit cm words", Fails(1, "there was a problem with the editor \"false\"")),
        ("KUBE_EDITOR=\"sed -i 's/^kind.*/kind: Nothing/'\" kubectl edit cm words", Fails(1, "")),
        ("KUBE_EDITOR=\"sed -i 's/collisionCount: 3/collisionCount: 4/'\" kubectl edit deploy app --subresource=status", Is("deployment.apps/app edited")),
        ("kubectl patch deploy app -p '{\"spec\":{\"replicas\":1}}'", Has(&["patched"])),
        ("KUBE_EDITOR=$PWD/editor kubectl edit deploy app", Has(&["deployment.apps/app edited"])),
        // A rejected edit is reopened, with the reason at the top.
        ("cat turns turn.2", Has(&["2\n", "# deployments.apps \"app\" was not valid:\n# * spec.replicas: Invalid value: -5"])),
        ("kubectl get deploy app -o jsonpath='{.spec.replicas}'", Is("2")),
    ]);
}

#[test]
fn labels_annotations_and_scales_are_set() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.file("app.yaml", APP);
    cluster.drill(&[
        ("kubectl create -f app.yaml", Is("deployment.apps/app created")),
        ("kubectl label deploy app tier=back env=test", Is("deployment.apps/app labeled")),
        ("kubectl label deploy app tier=front", Fails(1, "error: 'tier' already has a value (back), and --overwrite is false")),
        ("kubectl label deploy app tier=front --overwrite", Is("deployment.apps/app labeled")),
        ("kubectl label deploy app --list | sort", Is("env=test\ntier=front")),
        ("kubectl get deploy -l 'tier in (front),env!=prod' -o name", Is("deployment.apps/app")),
        ("kubectl label deploy app tier- env-", Is("deployment.apps/app unlabeled")),
        ("kubectl get deploy app -o jsonpath='{.metadata.labels}'", Is("")),
        ("kubectl label deploy app 'bad key=1'", Fails(1, "metadata.labels: Invalid value: \"bad key\": name part must consist of")),
        ("kubectl label deploy app k='not a value'", Fails(1, "error: invalid label value: \"k=not a value\"")),
        ("kubectl annotate deploy app note='some text'", Is("deployment.apps/app annotated")),
        ("kubectl annotate deploy app --list", Has(&["note=some text"])),
        ("kubectl annotate deploy app note-", Is("deployment.apps/app annotated")),
        ("kubectl scale deploy app --replicas=2 --current-replicas=9", Fails(1, "error: Expected replicas to be 9, was 1")),
        ("kubectl scale deploy/app --replicas=2", Is("deployment.apps/app scaled")),
        ("kubectl scale --replicas=-1 deploy/app", Fails(1, "")),
        ("kubectl set image deploy/app c=localhost/busybox:2", Is("deployment.apps/app image updated")),
        ("kubectl set image deploy/app zz=i", Fails(1, "error: unable to find container named \"zz\"")),
        ("kubectl set resources deploy app --limits=cpu=200m,memory=64Mi --requests=cpu=10m", Is("deployment.apps/app resource requirements updated")),
        ("kubectl set resources deploy app --requests=cpu=1", Fails(1, "must be less than or equal to cpu limit of 200m")),
        ("kubectl set env deploy/app B=2 A-", Is("deployment.apps/app env updated")),
        ("kubectl create cm vars --from-literal=word=x && kubectl set env deploy/app --from=cm/vars --prefix=P_", Has(&["env updated"])),
        ("kubectl set env deploy/app --list", Has(&["# Deployment app, container c", "B=2", "# P_WORD from configmap vars, key word"])),
        ("kubectl create sa robot && kubectl set serviceaccount deploy app robot", Has(&["deployment.apps/app serviceaccount updated"])),
        (
            "kubectl get deploy app -o jsonpath='{.spec.replicas} {.spec.template.spec.serviceAccountName} {.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].resources.limits.memory}'",
            Is("2 robot localhost/busybox:2 64Mi"),
        ),
        ("kubectl create clusterrolebinding b --clusterrole=view --user=bob && kubectl set subject clusterrolebinding b --user=eve", Has(&["subjects updated"])),
        ("kubectl get clusterrolebinding b -o jsonpath='{.subjects[*].name}'", Is("bob eve")),
        ("kubectl expose deploy app --port=80 --target-port=8080 --name=front --type=NodePort", Is("service/front exposed")),
        ("kubectl get svc front -o jsonpath='{.spec.type} {.spec.ports[0].targetPort} {.spec.selector.app}'", Is("NodePort 8080 app")),
        ("kubectl set selector svc front 'app=other'", Is("service/front selector updated")),
        ("kubectl autoscale deploy app --min=1 --max=3 --cpu-percent=50", Has(&["horizontalpodautoscaler.autoscaling/app autoscaled"])),
        ("kubectl get hpa app --no-headers", Has(&["Deployment/app", "cpu: <unknown>/50%   1     3"])),
    ]);
}

#[test]
fn rollouts_are_followed_held_back_and_undone() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.file("app.yaml", APP);
    let value = "kubectl get deploy app -o jsonpath='{.spec.template.spec.containers[0].env[?(@.name==\"A\")].value}'";
    cluster.drill(&[
        ("kubectl create -f app.yaml", Is("deployment.apps/app created")),
        ("kubectl rollout status deploy/app --timeout=60s", Has(&["deployment \"app\" successfully rolled out"])),
        ("kubectl annotate deploy app kubernetes.io/change-cause=first", Has(&["annotated"])),
        (
            "kubectl set env deploy/app A=2 && kubectl rollout status deploy/app --timeout=60s",
            Has(&["successfully rolled out"]),
        ),
        ("kubectl rollout history deploy/app", Has(&["REVISION  CHANGE-CAUSE\n1         first\n2         first\n"])),
        ("kubectl rollout history deploy/app --revision=2", Has(&["deployment.apps/app with revision #2", "A:\t2"])),
        ("kubectl rollout undo deploy/app", Is("deployment.apps/app rolled back")),
        (value, Is("1")),
        ("kubectl rollout undo deploy/app --to-revision=2", Is("deployment.apps/app rolled back")),
        (value, Is("2")),
        (
            "kubectl rollout undo deploy/app --to-revision=99",
            Fails(1, "error: unable to find specified revision 99 in history"),
        ),
        ("kubectl rollout pause deploy/app", Is("deployment.apps/app paused")),
        ("kubectl rollout pause deploy/app", Fails(1, "error: deployments.apps \"app\" is already paused")),
        ("kubectl rollout restart deploy/app", Fails(1, "can't restart paused deployment")),
        ("kubectl set env deploy/app A=3", Has(&["env updated"])),
        ("kubectl rollout status deploy/app --timeout=60s --watch=false", Has(&["Waiting for deployment"])),
        ("kubectl rollout resume deploy/app", Is("deployment.apps/app resumed")),
        ("kubectl rollout status deploy/app --timeout=60s", Has(&["successfully rolled out"])),
        ("kubectl get pods -l app=app -o jsonpath='{.items[*].spec.containers[0].env[0].value}'", Has(&["3"])),
        ("kubectl rollout restart deploy/app", Is("deployment.apps/app restarted")),
        ("kubectl rollout status deploy/app --timeout=60s", Has(&["successfully rolled out"])),
        ("kubectl get deploy app -o yaml", Has(&["kubectl.kubernetes.io/restartedAt"])),
        // A missing image stalls the rollout; the old Pod stays.
        ("kubectl set image deploy/app c=localhost/nothing:1", Has(&["image updated"])),
        ("kubectl rollout status deploy/app --timeout=1s", Fails(1, "error: timed out waiting for the condition")),
        ("kubectl get deploy app --no-headers", Has(&["1/1"])),
        (
            "kubectl rollout undo deploy/app && kubectl rollout status deploy/app --timeout=60s",
            Has(&["successfully rolled out"]),
        ),
    ]);
}
