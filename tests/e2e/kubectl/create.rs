//! `kubectl create`: every generator, and its result.

use super::{Cluster, Fails, Has, Is};

#[test]
fn every_generator_makes_what_it_says() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.file("word.txt", "hello");
    cluster.file("vars.env", "A=1\nB=2\n");
    cluster.drill(&[
        ("openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -subj /CN=a.example -days 2", Has(&[])),
        ("kubectl create namespace lab", Is("namespace/lab created")),
        ("kubectl create namespace lab", Fails(1, "Error from server (AlreadyExists): namespaces \"lab\" already exists")),
        (
            "kubectl create deployment web --image=$IMAGE --replicas=2 --port=80 -- sleep 9",
            Is("deployment.apps/web created"),
        ),
        (
            "kubectl get deploy web -o jsonpath='{.spec.replicas} {.spec.selector.matchLabels} {.spec.template.spec.containers[0].command}'",
            Is("2 {\"app\":\"web\"} [\"sleep\",\"9\"]"),
        ),
        ("kubectl create service clusterip plain --tcp=80:8080", Is("service/plain created")),
        ("kubectl create service clusterip none --clusterip=None --tcp=80", Is("service/none created")),
        ("kubectl create service nodeport np --tcp=80 --node-port=31000", Is("service/np created")),
        (
            "kubectl create service nodeport np2 --tcp=80 --node-port=31000",
            Fails(1, "spec.ports[0].nodePort: Invalid value: 31000: provided port is already allocated"),
        ),
        ("kubectl create service loadbalancer lb --tcp=443", Is("service/lb created")),
        ("kubectl create service externalname far --external-name=example.com", Is("service/far created")),
        ("kubectl get svc plain -o jsonpath='{.spec.ports[0].targetPort} {.spec.selector.app}'", Is("8080 plain")),
        ("kubectl get svc none np far --no-headers", Has(&["None", "80:31000/TCP", "ExternalName   <none>"])),
        (
            "kubectl create configmap words --from-literal=a=1 --from-file=word.txt --from-file=key=word.txt",
            Is("configmap/words created"),
        ),
        ("kubectl get cm words -o jsonpath='{.data}'", Is("{\"a\":\"1\",\"key\":\"hello\",\"word.txt\":\"hello\"}")),
        ("kubectl create configmap vars --from-env-file=vars.env --append-hash -o name", Has(&["configmap/vars-"])),
        ("kubectl create secret generic hidden --from-literal=p=q", Is("secret/hidden created")),
        ("kubectl get secret hidden -o jsonpath='{.type} {.data.p}'", Is("Opaque cQ==")),
        (
            "kubectl create secret docker-registry pull --docker-username=u --docker-password=p --docker-server=r.io",
            Is("secret/pull created"),
        ),
        ("kubectl get secret pull -o jsonpath='{.data.\\.dockerconfigjson}' | base64 -d", Has(&["\"r.io\":{\"username\":\"u\""])),
        ("kubectl create secret tls pair --cert=c.pem --key=k.pem", Is("secret/pair created")),
        ("kubectl get secret pair -o jsonpath='{.type}'", Is("kubernetes.io/tls")),
        ("kubectl create job once --image=$IMAGE -- true", Is("job.batch/once created")),
        ("kubectl create cronjob often --image=$IMAGE --schedule='*/5 * * * *' -- true", Is("cronjob.batch/often created")),
        (
            "kubectl create cronjob never --image=$IMAGE --schedule='61 * * * *'",
            Fails(1, "spec.schedule: Invalid value: \"61 * * * *\""),
        ),
        ("kubectl create job now --from=cronjob/often", Is("job.batch/now created")),
        (
            "kubectl get job now -o jsonpath='{.metadata.ownerReferences[0].kind} {.metadata.annotations.cronjob\\.kubernetes\\.io/instantiate}'",
            Is("CronJob manual"),
        ),
        (
            "kubectl create role reader --verb=get,list --resource=pods,deployments.apps,pods/log --resource-name=one",
            Is("role.rbac.authorization.k8s.io/reader created"),
        ),
        ("kubectl describe role reader", Has(&["deployments.apps", "pods/log", "[one]", "[get list]"])),
        (
            "kubectl create rolebinding readers --role=reader --serviceaccount=default:robot --group=g",
            Is("rolebinding.rbac.authorization.k8s.io/readers created"),
        ),
        (
            "kubectl get rolebinding readers -o jsonpath='{.roleRef.name} {.subjects[*].name}'",
            Is("reader g robot"),
        ),
        (
            "kubectl create clusterrole metrics --verb=get --non-resource-url=/metrics",
            Is("clusterrole.rbac.authorization.k8s.io/metrics created"),
        ),
        (
            "kubectl create clusterrole sum --aggregation-rule=part=sum",
            Is("clusterrole.rbac.authorization.k8s.io/sum created"),
        ),
        (
            "kubectl create clusterrolebinding watchers --clusterrole=metrics --user=bob",
            Is("clusterrolebinding.rbac.authorization.k8s.io/watchers created"),
        ),
        ("kubectl create serviceaccount robot", Is("serviceaccount/robot created")),
        ("kubectl create quota few --hard=pods=20,requests.cpu=10 -n lab", Is("resourcequota/few created")),
        ("kubectl -n lab wait --for=jsonpath='{.status.hard.pods}'=20 quota/few --timeout=20s", Has(&["met"])),
        ("kubectl -n lab describe quota few", Has(&["Resource", "pods", "requests.cpu  0     10"])),
        (
            "kubectl create ingress front --rule='a.example/c*=plain:80,tls=pair' --class=x --annotation=k=v",
            Is("ingress.networking.k8s.io/front created"),
        ),
        ("kubectl get ingress front --no-headers", Has(&["x", "a.example", "80, 443"])),
        ("kubectl create pdb budget --selector=app=web --min-available=50%", Is("poddisruptionbudget.policy/budget created")),
        ("kubectl get pdb budget -o jsonpath='{.spec.minAvailable} {.spec.selector.matchLabels.app}'", Is("50% web")),
        (
            "kubectl create priorityclass high --value=1000 --preemption-policy=Never --description=first",
            Is("priorityclass.scheduling.k8s.io/high created"),
        ),
        ("kubectl get pc high -o jsonpath='{.value} {.preemptionPolicy}'", Is("1000 Never")),
        // A token has three parts; the middle one contains subject and lifetime.
        (
            "kubectl create token robot --duration=20m --audience=vault | cut -d. -f2 | tr _- /+ | base64 -d 2>/dev/null; true",
            Has(&["\"aud\":[\"vault\"]", "\"sub\":\"system:serviceaccount:default:robot\""]),
        ),
        ("kubectl create token nobody", Fails(1, "serviceaccounts \"nobody\" not found")),
        ("kubectl create token robot --bound-object-kind=Secret --bound-object-name=hidden", Has(&["ey"])),
        // Manifests, and dry runs.
        ("kubectl create cm shown --from-literal=a=1 --dry-run=client -o yaml", Has(&["kind: ConfigMap", "a: \"1\""])),
        ("kubectl create cm shown --from-literal=a=1 --dry-run=server", Is("configmap/shown created (server dry run)")),
        ("kubectl get cm shown", Fails(1, "Error from server (NotFound): configmaps \"shown\" not found")),
        (
            "kubectl create cm made --from-literal=a=1 --dry-run=client -o yaml | sed 's/a: \"1\"/a: \"2\"/' | kubectl create -f - --save-config",
            Is("configmap/made created"),
        ),
        ("kubectl apply view-last-applied cm/made", Has(&["a: \"2\""])),
        ("kubectl get cm made --show-managed-fields -o jsonpath='{.metadata.managedFields[*].manager}'", Is("kubectl-create")),
    ]);
}

/// Each with a different error, and the field named in the response.
#[test]
fn what_is_wrong_is_named() {
    let Some(cluster) = Cluster::without_node() else { return };
    let pod = |inside: &str| {
        format!("kubectl create -f - <<'Y'\napiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {inside}\nY")
    };
    for (inside, why) in [
        ("{containers: []}", "The Pod \"p\" is invalid: spec.containers: Required value"),
        (
            "{containers: [{name: c, image: i, imagePullPolicy: Sometimes}]}",
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            "{containers: [{name: c, image: i, imagePullPolic: Never}]}",
            "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.containers[0].imagePullPolic\"",
        ),
        (
            "{containers: [{name: c, image: i, ports: [{containerPort: many}]}]}",
            "cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
    ] {
        let answer = cluster.sh(&pod(inside));
        Fails(1, why).check(&answer).unwrap_or_else(|words| panic!("{inside}: {words}"));
    }
    let unknown = "{containers: [{name: c, image: i, imagePullPolic: Never}]}";
    let with = |flag: &str| pod(unknown).replace("create -f -", &format!("create {flag} --dry-run=server -f - 2>&1"));
    let warned = cluster.says(&with("--validate=warn"));
    assert!(warned.contains("Warning: unknown field \"spec.containers[0].imagePullPolic\""), "{warned}");
    let ignored = cluster.says(&with("--validate=false"));
    assert_eq!(ignored, "pod/p created (server dry run)\n");
}
