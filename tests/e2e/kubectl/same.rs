//! Our own commands beside kubectl's: the same objects, the same words.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
};

use serde_json::Value;

use super::{Cluster, Has};
use crate::support::contains;

/// Lines that say the same with `podwright` and with `kubectl`.
const SAME: &[&str] = &[
    "explain pods",
    "explain pods.spec.containers",
    "explain deployments.apps.spec --recursive",
    "explain pods.spec.restartPolicy",
    "explain svc.spec.ports.targetPort",
    "explain configmaps.data",
    "explain hpa --api-version=autoscaling/v1",
    "api-versions",
    "create role r --verb=get,list --verb=watch --resource=pods,deployments.apps,pods/log --dry-run=client -o json",
    "create role r --verb=get --resource=pods --resource-name=a --resource-name=b --dry-run=client -o json",
    "create clusterrole r --verb=* --resource=* --dry-run=client -o json",
    "create clusterrole r --verb=get --non-resource-url=/metrics --dry-run=client -o json",
    "create clusterrole r --aggregation-rule=a=b --dry-run=client -o json",
    "create rolebinding b --role=r --user=u --group=g --serviceaccount=ns:n --dry-run=client -o json",
    "create rolebinding b --role=r --serviceaccount=n --dry-run=client -o json",
    "create rolebinding b",
    "create clusterrolebinding b --clusterrole=r --user=u --dry-run=client -o json",
    "create quota q --hard=cpu=1,pods=2 --scopes=BestEffort --dry-run=client -o json",
    "create pdb p --selector=a=b --min-available=50% --dry-run=client -o json",
    "create pdb p --selector=a=b --max-unavailable=1 --dry-run=client -o json",
    "create pdb p --selector=a=b",
    "create priorityclass p --value=-5 --description=x --global-default --dry-run=client -o json",
    "create ingress i --rule=a.com/x*=s:80,tls=sec --rule=a.com/y=s:http --rule=b.com/=t:1,tls --class=c --annotation=a=b --dry-run=client -o json",
    "create ingress i --default-backend=s:80 --dry-run=client -o json",
    "create ingress i --rule=foo",
    "set resources deploy/d",
];

/// Changes of a Deployment, each by one command for `d` and by the other for `e`.
const CHANGES: &[&str] = &[
    "create deployment D --image=x:1 --image=y:1",
    "set env deploy/D A=b C=d",
    "set env deploy/D A- -c x X=1",
    "set env deploy/D --from=secret/s --prefix=P_",
    "set resources deploy/D --limits=cpu=1,memory=1Gi -c y",
    "set resources deploy/D --requests=cpu=100m",
    "set serviceaccount deploy/D sa1",
    "set image deploy/D x=x:2",
];

/// A text, or the JSON that it is: that may be ordered and indented differently, and newer ones leave out what is null.
fn plain(text: &str) -> Value {
    fn without_nulls(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|_, field| !field.is_null());
                fields.values_mut().for_each(without_nulls);
            }
            Value::Array(items) => items.iter_mut().for_each(without_nulls),
            _ => {}
        }
    }
    let mut value = serde_json::from_str(text).unwrap_or_else(|_| text.trim().into());
    without_nulls(&mut value);
    value
}

#[test]
fn our_commands_say_what_kubectl_says() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.drill(&[
        ("kubectl create secret generic s --from-literal=only=1", Has(&["created"])),
        ("kubectl create deployment d --image=x && kubectl delete deployment d", Has(&["deleted"])),
    ]);
    for change in CHANGES {
        let ours: Vec<String> = change.replace('D', "d").split(' ').map(str::to_owned).collect();
        let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
        cluster.node.ok(&ours);
        cluster.drill(&[(&format!("kubectl {}", change.replace('D', "e")), Has(&[]))]);
        let spec = |name: &str| cluster.node.ok(&["get", "deployment", name, "-o", "jsonpath={.spec.template.spec}"]);
        let sorted = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        assert_eq!(sorted(spec("d")), sorted(spec("e")), "{change}");
    }
    for line in SAME {
        let theirs = cluster.sh(&format!("kubectl {line}"));
        let ours = cluster.node.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(
            (ours.code, plain(&ours.out), plain(&ours.err)),
            (theirs.code, plain(&theirs.out), plain(&theirs.err)),
            "{line}"
        );
    }
}

#[test]
fn certificates_are_approved_and_denied() {
    let Some(cluster) = Cluster::without_node() else { return };
    let request = "
        openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -subj /CN=joe -out r.pem
        for name in a b; do kubectl apply -f - <<E
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: $name}
spec: {signerName: kubernetes.io/kube-apiserver-client, usages: [client auth], request: $(base64 -w0 r.pem)}
E
        done";
    cluster.drill(&[(request, Has(&["b created"]))]);
    let approved = cluster.node.run(&["certificate", "approve", "a", "none"]);
    contains(&approved.out, "certificatesigningrequest.certificates.k8s.io/a approved").unwrap();
    contains(&approved.err, "\"none\" not found").unwrap();
    assert_eq!(approved.code, 1);
    cluster.node.ok(&["certificate", "deny", "b"]);
    let refused = cluster.node.run(&["certificate", "approve", "b"]);
    contains(&refused.err, "mutually exclusive").unwrap();
    cluster.drill(&[("kubectl get csr a", Has(&["Approved"])), ("kubectl get csr b", Has(&["Denied"]))]);
}

#[test]
fn a_proxy_serves_this_machine_alone() {
    let Some(cluster) = Cluster::without_node() else { return };
    let mut proxy = cluster.node.command(&["proxy", "-p", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("Starting to serve on ").unwrap().to_owned();
    let lines = [
        (format!("kubectl --server http://{address} get namespaces"), "kube-system"),
        (format!("kubectl --server http://{address} create configmap c --from-literal=a=b"), "created"),
        (format!("timeout 3 kubectl --server http://{address} get configmaps -w"), "kube-root-ca.crt"),
    ];
    let answers = lines.map(|(line, wanted)| (contains(&cluster.sh(&line).out, wanted), line));
    let asked = |head: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "{head}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let codes = [
        "GET /version HTTP/1.1\r\nHost: localhost",
        "GET /version HTTP/1.1\r\nHost: example.com",
        "GET /version HTTP/1.1\r\nHost: localhost\r\nOrigin: https://example.com",
        "GET http://example.com/version HTTP/1.1\r\nHost: localhost",
        "POST /api/v1/namespaces/default/pods/x/exec?command=id HTTP/1.1\r\nHost: localhost",
    ]
    .map(asked);
    proxy.kill().unwrap();
    proxy.wait().unwrap();
    assert_eq!(codes, ["200", "403", "403", "403", "403"]);
    answers.into_iter().for_each(|(seen, line)| seen.unwrap_or_else(|why| panic!("{line}: {why}")));
}

#[test]
fn manifests_come_from_the_web_and_answers_in_time() {
    let Some(cluster) = Cluster::without_node() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let manifest = "{apiVersion: v1, kind: ConfigMap, metadata: {name: fetched}}";
        let answers = [("200 OK", manifest), ("404 Not Found", ""), ("503 Busy", ""), ("200 OK", manifest)];
        for (code, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).unwrap();
            write!(stream, "HTTP/1.1 {code}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
                .unwrap();
        }
    });
    let url = format!("http://{at}/x.yaml");
    assert_eq!(cluster.node.ok(&["apply", "-f", &url]), "configmap/fetched created\n");
    let missing = cluster.node.run(&["apply", "-f", &url]);
    contains(&missing.err, "server reported 404 Not Found, status code=404").unwrap();
    // A server that is in trouble is asked again.
    assert_eq!(cluster.node.ok(&["apply", "-f", &url]), "configmap/fetched unchanged\n");
    server.join().unwrap();
    let late = cluster.node.run(&["--request-timeout=1ns", "get", "pods"]);
    contains(&late.err, "the server did not answer within 1ns").unwrap();
    for (shell, word) in [("bash", "complete -F"), ("zsh", "#compdef podwright"), ("fish", "complete -c podwright")] {
        contains(&cluster.node.ok(&["completion", shell]), word).unwrap();
    }
    contains(&cluster.node.ok(&["cluster-info"]), "Kubernetes control plane is running at unix://").unwrap();
}
