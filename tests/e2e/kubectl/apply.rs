//! `kubectl apply` in all its forms: field ownership, and fields removed from a manifest.

use super::{Cluster, Fails, Has, Is, Lacks};

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, labels: {own: '1', gone: '1'}}
spec:
  replicas: 1
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      containers:
      - name: c
        image: localhost/busybox:1
        env: [{name: A, value: '1'}, {name: B, value: '1'}]
";

fn config_map(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: words}}\ndata: {data}\n")
}

#[test]
fn a_three_way_merge_removes_its_own_and_keeps_what_others_wrote() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.file("app.yaml", DEPLOYMENT);
    cluster.file("less.yaml", &DEPLOYMENT.replace(", gone: '1'", "").replace(", {name: B, value: '1'}", ""));
    cluster.file("wrong.yaml", &DEPLOYMENT.replace("replicas:", "replica:"));
    let fields = "kubectl get deploy app -o jsonpath='{.metadata.labels} {.spec.template.spec.containers[0].env} {.spec.replicas}'";
    cluster.drill(&[
        ("kubectl apply -f app.yaml", Is("deployment.apps/app created")),
        ("kubectl apply -f app.yaml", Is("deployment.apps/app unchanged")),
        ("kubectl apply -f app.yaml --dry-run=server", Is("deployment.apps/app unchanged (server dry run)")),
        // Another manager edits: a variable, a label and the scale.
        ("kubectl set env deploy/app FOREIGN=x", Is("deployment.apps/app env updated")),
        ("kubectl label deploy app foreign=y", Is("deployment.apps/app labeled")),
        ("kubectl apply -f less.yaml", Is("deployment.apps/app configured")),
        (
            fields,
            Is("{\"foreign\":\"y\",\"own\":\"1\"} [{\"name\":\"A\",\"value\":\"1\"},{\"name\":\"FOREIGN\",\"value\":\"x\"}] 1"),
        ),
        // Fields in the manifest are restored; nothing else is.
        ("kubectl scale deploy app --replicas=3 && kubectl label deploy app own=2 --overwrite", Has(&["scaled", "labeled"])),
        ("kubectl apply -f less.yaml", Is("deployment.apps/app configured")),
        ("kubectl get deploy app -o jsonpath='{.spec.replicas} {.metadata.labels.own}'", Is("1 1")),
        ("kubectl apply -f wrong.yaml", Fails(1, "strict decoding error: unknown field \"spec.replica\"")),
        ("kubectl apply -f wrong.yaml --validate=warn", Has(&["Warning: unknown field \"spec.replica\"", "configured"])),
        ("kubectl apply view-last-applied deploy/app -o json", Has(&["\"own\": \"1\""])),
        ("kubectl apply set-last-applied -f app.yaml", Has(&["deployment.apps/app configured"])),
        (
            "KUBE_EDITOR=\"sed -i 's/gone: .*/gone: \\\"3\\\"/'\" kubectl apply edit-last-applied deploy/app",
            Has(&["deployment.apps/app edited"]),
        ),
        ("kubectl apply view-last-applied deploy/app", Has(&["gone: \"3\""])),
        ("kubectl apply -f nothing.yaml", Fails(1, "the path \"nothing.yaml\" does not exist")),
        ("kubectl apply -f less.yaml && kubectl diff -f less.yaml", Is("deployment.apps/app configured")),
        ("sed 's/replicas: 1/replicas: 7/' less.yaml | kubectl diff -f -", Fails(1, "+  replicas: 7")),
        ("sed 's/replicas: 1/replicas: 7/' less.yaml | kubectl diff --server-side --force-conflicts -f -", Fails(1, "+  replicas: 7")),
        ("kubectl get deploy app -o jsonpath='{.spec.replicas}'", Is("1")),
    ]);
}

#[test]
fn server_side_apply_tells_of_conflicts_and_takes_over_when_forced() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.file("mine.yaml", &config_map("{a: '1', b: '1'}"));
    cluster.file("less.yaml", &config_map("{a: '1'}"));
    cluster.file("theirs.yaml", &config_map("{a: '2', c: '1'}"));
    let managers = "kubectl get cm words --show-managed-fields -o jsonpath='{range .metadata.managedFields[*]}{.manager} {.operation} {.fieldsV1}{\"\\n\"}{end}'";
    cluster.drill(&[
        ("kubectl apply --server-side -f mine.yaml", Is("configmap/words serverside-applied")),
        (
            "kubectl apply --server-side --field-manager=other -f theirs.yaml",
            Fails(1, "error: Apply failed with 1 conflict: conflict with \"kubectl\": .data.a\nPlease review the fields above"),
        ),
        ("kubectl apply --server-side --field-manager=other --force-conflicts -f theirs.yaml", Has(&["serverside-applied"])),
        ("kubectl get cm words -o jsonpath='{.data}'", Is("{\"a\":\"2\",\"b\":\"1\",\"c\":\"1\"}")),
        (
            managers,
            Is("kubectl Apply {\"f:data\":{\"f:b\":{}}}\nother Apply {\"f:data\":{\"f:a\":{},\"f:c\":{}}}"),
        ),
        // A field dropped by its only manager is removed; one with another manager stays.
        ("kubectl apply --server-side --field-manager=other --force-conflicts -f mine.yaml", Has(&["serverside-applied"])),
        ("kubectl get cm words -o jsonpath='{.data}'", Is("{\"a\":\"1\",\"b\":\"1\"}")),
        ("kubectl apply --server-side --field-manager=other -f less.yaml", Has(&["serverside-applied"])),
        ("kubectl get cm words -o jsonpath='{.data}'", Is("{\"a\":\"1\",\"b\":\"1\"}")),
        ("kubectl apply --server-side -f less.yaml", Has(&["serverside-applied"])),
        ("kubectl get cm words -o jsonpath='{.data}'", Is("{\"a\":\"1\"}")),
        // Writes other than apply have managers, too.
        ("kubectl patch cm words --type=merge -p '{\"data\":{\"a\":\"7\"}}'", Has(&["patched"])),
        ("kubectl apply --server-side -f less.yaml", Fails(1, "conflict with \"kubectl-patch\" using v1: .data.a")),
        // A previous client-side manager hands its fields over: those no longer applied are removed.
        ("kubectl delete cm words", Has(&["deleted"])),
        ("kubectl apply -f mine.yaml", Is("configmap/words created")),
        (managers, Has(&["kubectl-client-side-apply Update"])),
        ("kubectl apply --server-side -f less.yaml", Has(&["serverside-applied"])),
        (managers, Has(&["kubectl Apply {\"f:data\":{\"f:a\":{}}}"])),
        (managers, Lacks(&["kubectl-client-side-apply"])),
        ("kubectl get cm words -o jsonpath='{.data}'", Is("{\"a\":\"1\"}")),
        ("kubectl apply --server-side -f less.yaml --dry-run=server", Has(&["serverside-applied (server dry run)"])),
    ]);
}

#[test]
fn what_a_folder_no_longer_holds_is_pruned() {
    let Some(cluster) = Cluster::without_node() else { return };
    let one = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{set: x}}}}\n");
    cluster.file("both/a.yaml", &one("a"));
    cluster.file("both/b.yaml", &one("b"));
    cluster.file("rest/a.yaml", &one("a"));
    cluster.file("kustom/kustomization.yaml", "namePrefix: pre-\nlabels: [{pairs: {kz: '1'}}]\nresources: [cm.yaml]\nconfigMapGenerator: [{name: gen, literals: [a=b]}]\n");
    cluster.file("kustom/cm.yaml", &config_map("{a: '1'}"));
    cluster.drill(&[
        ("kubectl apply -f both --prune -l set=x", Has(&["configmap/a created", "configmap/b created"])),
        ("kubectl create cm bystander --from-literal=a=b && kubectl label cm bystander set=x", Has(&["labeled"])),
        (
            "kubectl apply -f rest --prune -l set=x --prune-allowlist=core/v1/ConfigMap",
            Has(&["configmap/a unchanged", "configmap/b pruned"]),
        ),
        ("kubectl get cm -l set=x -o name", Is("configmap/a\nconfigmap/bystander")),
        // With an ApplySet that remembers its members.
        (
            "KUBECTL_APPLYSET=true kubectl -n default apply -f both --prune --applyset=members",
            Has(&["configmap/b created"]),
        ),
        (
            "KUBECTL_APPLYSET=true kubectl -n default apply -f rest --prune --applyset=members",
            Has(&["configmap/b pruned"]),
        ),
        ("kubectl get cm b", Fails(1, "NotFound")),
        // kustomize.
        ("kubectl kustomize kustom", Has(&["name: pre-words", "kz: \"1\""])),
        ("kubectl apply -k kustom", Has(&["configmap/pre-words created", "configmap/pre-gen-4h2mbtbbt6 created"])),
        ("kubectl get -k kustom -o name", Is("configmap/pre-gen-4h2mbtbbt6\nconfigmap/pre-words")),
        ("kubectl diff -k kustom", Is("")),
        ("kubectl delete -k kustom", Has(&["configmap \"pre-words\" deleted"])),
    ]);
}
