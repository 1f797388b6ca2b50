//! Generated objects, compared with kubectl's.

use expect_test::{Expect, expect};

use super::*;
use podwright_api::yaml;

fn check(line: &str, wanted: Expect) {
    let args: Args = crate::flags(line.split(' '));
    let Some(What::Object(generator)) = args.what else { panic!("no generator") };
    let made = match generator.object() {
        Ok(object) => yaml::to_string(&object.0).expect("it encodes"),
        Err(Failure::Client(why)) => why,
        Err(other) => format!("{other:?}"),
    };
    wanted.assert_eq(&made);
}

#[test]
fn deployments() {
    check(
        "deployment x --image=reg:5000/a/web:1,b --port=80",
        expect![[r#"
        apiVersion: apps/v1
        kind: Deployment
        metadata:
          creationTimestamp: null
          labels:
            app: x
          name: x
        spec:
          replicas: 1
          selector:
            matchLabels:
              app: x
          strategy: {}
          template:
            metadata:
              creationTimestamp: null
              labels:
                app: x
            spec:
              containers:
              - image: reg:5000/a/web:1
                name: web
                ports:
                - containerPort: 80
                resources: {}
              - image: b
                name: b
                resources: {}
        status: {}
    "#]],
    );
    check("deployment x --image=a,b -- sleep 5", expect!["cannot specify multiple --image options and command"]);
}

#[test]
fn services() {
    check(
        "service nodeport x --tcp=80:8080 --tcp=90",
        expect![[r#"
        apiVersion: v1
        kind: Service
        metadata:
          creationTimestamp: null
          labels:
            app: x
          name: x
        spec:
          ports:
          - name: 80-8080
            port: 80
            protocol: TCP
            targetPort: 8080
          - name: "90"
            port: 90
            protocol: TCP
            targetPort: 90
          selector:
            app: x
          type: NodePort
        status:
          loadBalancer: {}
    "#]],
    );
    check("service clusterip x", expect!["at least one tcp port specifier must be provided"]);
}

#[test]
fn data() {
    check(
        "configmap x --from-literal=a=b",
        expect![[r#"
        apiVersion: v1
        data:
          a: b
        kind: ConfigMap
        metadata:
          creationTimestamp: null
          name: x
    "#]],
    );
    check(
        "configmap x --from-literal=a=b --from-literal=a=c",
        expect!["cannot add key a, another key by that name already exists"],
    );
    check(
        "secret docker-registry x --docker-server=s --docker-username=u --docker-password=p",
        expect![[r#"
            apiVersion: v1
            data:
              .dockerconfigjson: eyJhdXRocyI6eyJzIjp7InVzZXJuYW1lIjoidSIsInBhc3N3b3JkIjoicCIsImF1dGgiOiJkVHB3In19fQ==
            kind: Secret
            metadata:
              creationTimestamp: null
              name: x
            type: kubernetes.io/dockerconfigjson
        "#]],
    );
}

#[test]
fn jobs() {
    check(
        "job pi --image=perl -- perl -v",
        expect![[r#"
        apiVersion: batch/v1
        kind: Job
        metadata:
          creationTimestamp: null
          name: pi
        spec:
          template:
            metadata:
              creationTimestamp: null
            spec:
              containers:
              - command:
                - perl
                - -v
                image: perl
                name: pi
                resources: {}
              restartPolicy: Never
        status: {}
    "#]],
    );
    check("job pi", expect!["either --image or --from must be specified"]);
    check("job pi --image=a --from=cronjob/b", expect!["either --image or --from must be specified"]);
    check("job pi --from=cronjob/b -- perl", expect!["cannot specify --from and command"]);
    check(
        "cronjob often --image=perl --schedule=@hourly --restart=Never",
        expect![[r#"
        apiVersion: batch/v1
        kind: CronJob
        metadata:
          creationTimestamp: null
          name: often
        spec:
          jobTemplate:
            metadata:
              creationTimestamp: null
              name: often
            spec:
              template:
                metadata:
                  creationTimestamp: null
                spec:
                  containers:
                  - image: perl
                    name: often
                    resources: {}
                  restartPolicy: Never
          schedule: "@hourly"
        status: {}
    "#]],
    );
}
