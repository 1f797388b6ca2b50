//! Our own commands beside kubectl's: the same objects, the same output.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
};

use serde_json::Value;

use super::{
    Cluster,
    Expect::{Fails, Has, Is},
};
use crate::support::{TestNode, contains};

/// Lines with the same output from `podwright` and `kubectl`.
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

/// A text, or its JSON: that may be ordered and indented differently, and newer versions omit nulls.
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

    // Using a file that contains only names.
    cluster.drill(&[(&request.replace("a b", "c d"), Has(&["d created"]))]);
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let named = |name: &str| {
        format!(
            "{{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {{name: {name}}}}}\n---\n"
        )
    };
    let both = file("both", &(named("c") + &named("d")));
    let approved = "certificatesigningrequest.certificates.k8s.io/c approved\n\
                    certificatesigningrequest.certificates.k8s.io/d approved\n";
    assert_eq!(cluster.node.ok(&["certificate", "approve", "-f", &both]), approved);
    cluster.drill(&[("kubectl get csr c d --no-headers", Has(&["Approved"]))]);
    let other =
        file("other", "{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt, namespace: default}}");
    let grouped =
        file("grouped", "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: view}}");
    let lines = [&other, &grouped].map(|file| format!("certificate deny -f {file}"));
    for line in lines.into_iter().chain(["certificate deny".to_owned()]) {
        let theirs = cluster.sh(&format!("kubectl {line}"));
        let ours = cluster.node.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((ours.code, ours.err), (theirs.code, theirs.err), "{line}");
    }
}

#[test]
fn tokens_are_bound_to_what_they_end_with() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.node.apply("{apiVersion: v1, kind: Secret, metadata: {name: held}}");
    let claims = |token: &str| -> Value {
        use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
        let claims = token.trim().split('.').nth(1).expect("a token has three parts");
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
    };
    let bound = ["create", "token", "default", "--bound-object-kind=Secret", "--bound-object-name=held"];
    let token = cluster.node.ok(&bound);
    let uid = cluster.node.field(&["secret", "held"], ".metadata.uid");
    assert_eq!(claims(&token)["kubernetes.io"]["secret"], serde_json::json!({"name": "held", "uid": uid}));
    cluster.node.ok(&[&bound[..], &[&format!("--bound-object-uid={uid}")]].concat());
    for line in [
        "create token default --bound-object-name=a",
        "create token default --bound-object-kind=Foo --bound-object-name=a",
        "create token default --bound-object-kind=Secret --bound-object-name=none",
        "create token default --bound-object-kind=Secret --bound-object-name=held --bound-object-uid=other",
        "create token default --duration=-1s",
    ] {
        let theirs = cluster.sh(&format!("kubectl {line}"));
        let ours = cluster.node.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((ours.code, plain(&ours.err)), (theirs.code, plain(&theirs.err)), "{line}");
        assert_eq!(ours.code, 1, "{line}");
    }
    // It is valid as long as the Secret exists.
    let server = "$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}')";
    let whoami = format!(
        "kubectl --kubeconfig=/dev/null --insecure-skip-tls-verify --server={server} --token={} auth whoami \
         -o jsonpath={{.status.userInfo.username}}",
        token.trim()
    );
    cluster.drill(&[
        (&whoami, Is("system:serviceaccount:default:default")),
        ("kubectl delete secret held", Has(&["deleted"])),
        (&whoami, Fails(1, "Unauthorized")),
    ]);
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

/// A TLS server: `openssl s_server` returns requested files.
struct Sealed {
    server: std::process::Child,
    port: u16,
}

impl Sealed {
    /// Serves the files of `folder`, with the certificate that is in it.
    fn serve(folder: &std::path::Path) -> Sealed {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = std::process::Command::new("openssl");
        server.args(["s_server", "-quiet", "-WWW", "-cert", "cert.pem", "-key", "key.pem", "-accept"]);
        server.arg(format!("127.0.0.1:{port}")).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
        let server = server.stdin(Stdio::piped()).spawn().unwrap();
        crate::support::eventually("it listens", std::time::Duration::from_secs(10), || {
            TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|e| e.to_string())
        });
        Sealed { server, port }
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        // It may have exited by itself.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn manifests_come_by_tls_from_who_is_trusted() {
    let node = TestNode::server(&[]);
    let folder = tempfile::tempdir().unwrap();
    crate::support::registry::certify(folder.path(), "web");
    let manifest = "{apiVersion: v1, kind: ConfigMap, metadata: {name: sealed}}";
    std::fs::write(folder.path().join("x.yaml"), manifest).unwrap();
    let server = Sealed::serve(folder.path());
    let url = format!("https://127.0.0.1:{}/x.yaml", server.port);
    let ask = |trusted: bool| {
        let mut command = node.command(&["apply", "-f", &url]);
        if trusted {
            command.env("SSL_CERT_FILE", folder.path().join("ca.pem"));
        }
        crate::support::Answer::of(command.output().unwrap())
    };
    let stranger = ask(false);
    assert_eq!(stranger.code, 1, "{}", stranger.all());
    contains(&stranger.err, &format!("unable to read URL \"{url}\", ")).unwrap();
    contains(&stranger.err.to_lowercase(), "certificate").unwrap();
    assert_eq!(node.run(&["get", "configmap", "sealed"]).code, 1);
    let trusted = ask(true);
    assert_eq!(trusted.out, "configmap/sealed created\n", "{}", trusted.all());
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
    // A failing server is retried.
    assert_eq!(cluster.node.ok(&["apply", "-f", &url]), "configmap/fetched unchanged\n");
    server.join().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let silent = folder.path().join("silent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let silent = format!("unix://{}", silent.display());
    let late = cluster.node.run(&["--server", &silent, "--request-timeout=300ms", "get", "pods"]);
    contains(&late.err, "the server did not answer within 300ms").unwrap();
    for (shell, word) in [("bash", "complete -F"), ("zsh", "#compdef podwright"), ("fish", "complete -c podwright")] {
        contains(&cluster.node.ok(&["completion", shell]), word).unwrap();
    }
    contains(&cluster.node.ok(&["cluster-info"]), "Kubernetes control plane is running at unix://").unwrap();
}
