//! Authorization: `auth can-i`, `whoami` and `reconcile`, tokens and certificates that are then used.

use super::{Cluster, Fails, Has, Is};

const ROLES: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules: [{apiGroups: [''], resources: [secrets], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: more, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: User, name: jane, apiGroup: rbac.authorization.k8s.io}]
";

/// A certificate for a person, through a CertificateSigningRequest.
const REQUEST: &str = "
openssl req -new -newkey rsa:2048 -nodes -keyout $1.key -out $1.csr -subj /O=devs/CN=$1 2>/dev/null
kubectl create -f - <<Y
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: $1}
spec: {request: $(base64 -w0 < $1.csr), signerName: kubernetes.io/kube-apiserver-client, usages: [client auth]}
Y
";

#[test]
fn rights_are_told_and_credentials_work() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.file("roles.yaml", ROLES);
    cluster.file("request", REQUEST);
    // The same server, without credentials.
    cluster.file(
        "as",
        "exec kubectl --kubeconfig=/dev/null --insecure-skip-tls-verify \
         --server=$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}') \"$@\"\n",
    );
    let robot = "--as=system:serviceaccount:default:robot";
    let can = |question: &str| format!("kubectl auth can-i {question} {robot}");
    cluster.drill(&[
        ("kubectl create sa robot", Is("serviceaccount/robot created")),
        ("kubectl create role reader --verb=get,list --resource=pods", Has(&["created"])),
        ("kubectl create rolebinding readers --role=reader --serviceaccount=default:robot", Has(&["created"])),
        ("kubectl auth can-i '*' '*'", Is("yes")),
        (&can("list pods"), Is("yes")),
        (&can("get pods --subresource=log"), Fails(1, "no")),
        (&can("create deployments.apps"), Fails(1, "no")),
        (&can("list pods -A"), Fails(1, "no")),
        (&can("list pods -n kube-system -q"), Fails(1, "")),
        (&can("get /version"), Is("yes")),
        (&can("get /metrics"), Fails(1, "no")),
        (&can("--list"), Has(&["pods                                            []", "[get list]", "[/healthz]"])),
        ("kubectl auth can-i get pods --as=eve --as-group=system:masters", Is("yes")),
        ("kubectl auth whoami -o jsonpath='{.status.userInfo.username} {.status.userInfo.groups}'", Is("kubernetes-admin [\"system:masters\",\"system:authenticated\"]")),
        ("kubectl auth whoami --as=eve --as-group=g", Has(&["Username    eve", "Groups      [g system:authenticated]"])),
        ("kubectl get pods --as=eve", Fails(1, "Error from server (Forbidden): pods is forbidden: User \"eve\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"")),
        // Roles as files.
        ("kubectl auth reconcile -f roles.yaml", Has(&["role.rbac.authorization.k8s.io/reader reconciled", "missing rules added", "rolebinding.rbac.authorization.k8s.io/more reconciled", "reconciliation required create"])),
        ("kubectl auth can-i get secrets --as=jane", Is("yes")),
        (&can("list pods"), Is("yes")),
        ("kubectl auth reconcile -f roles.yaml --remove-extra-permissions", Has(&["extra rules removed"])),
        (&can("list pods"), Fails(1, "no")),
        // A token carries its account's permissions.
        ("kubectl create token robot > token && sh as --token=$(cat token) auth whoami", Has(&["Username", "system:serviceaccount:default:robot"])),
        ("sh as --token=$(cat token) get cm", Fails(1, "User \"system:serviceaccount:default:robot\" cannot list resource \"configmaps\"")),
        ("sh as --token=$(cat token) get secret nothing", Fails(1, "secrets \"nothing\" not found")),
        ("sh as --token=$(kubectl create token robot --audience=vault) auth whoami", Fails(1, "error: You must be logged in to the server (Unauthorized)")),
        ("sh as --token=forged get pods", Fails(1, "error: You must be logged in to the server (Unauthorized)")),
        ("kubectl delete sa robot && sh as --token=$(cat token) auth whoami", Fails(1, "(Unauthorized)")),
        // A certificate is signed once it is approved.
        ("sh -c \"$(cat request)\" - jane", Is("certificatesigningrequest.certificates.k8s.io/jane created")),
        ("kubectl get csr jane --no-headers", Has(&["kubernetes.io/kube-apiserver-client   kubernetes-admin", "Pending"])),
        ("kubectl certificate approve jane", Is("certificatesigningrequest.certificates.k8s.io/jane approved")),
        ("kubectl wait --for=jsonpath='{.status.certificate}' csr/jane --timeout=20s", Has(&["met"])),
        ("kubectl get csr jane --no-headers", Has(&["Approved,Issued"])),
        ("kubectl describe csr jane", Has(&["Common Name:    jane", "Organization:   devs"])),
        ("kubectl get csr jane -o jsonpath='{.status.certificate}' | base64 -d > jane.crt", Is("")),
        ("sh as --client-certificate=jane.crt --client-key=jane.key auth whoami", Has(&["Username", "jane", "[devs system:authenticated]"])),
        ("sh as --client-certificate=jane.crt --client-key=jane.key get secret nothing", Fails(1, "secrets \"nothing\" not found")),
        ("sh -c \"$(cat request)\" - bob && kubectl certificate deny bob", Has(&["bob denied"])),
        ("kubectl get csr bob --no-headers", Has(&["Denied"])),
        ("kubectl certificate approve nobody", Fails(1, "\"nobody\" not found")),
    ]);
}
