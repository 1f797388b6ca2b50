//! What builds, delivers and scales: Argo CD and Workflows, Flux, cert-manager, Knative, Tekton, KEDA.

pub const SHAPES: &str = r#"
kind: Application
names: {shortNames: [app, apps]}
columns:
- [Sync Status, string, .status.sync.status]
- [Health Status, string, .status.health.status]
- [Revision, string, .status.sync.revision]
root: {required: [spec]}
spec:
  type: object
  required: [destination, project]
  properties:
    project: {type: string}
    destination: {type: object, properties: {server: {type: string}, namespace: {type: string}}}
    ignoreDifferences: {type: array, items: {type: object, required: [kind], properties: {kind: {type: string}, jsonPointers: {type: array, items: {type: string}}}}}
    info: {type: array, items: {type: object, required: [name, value], properties: {name: {type: string}, value: {type: string}}}}
    revisionHistoryLimit: {type: integer, format: int64}
    sources:
      type: array
      items:
        type: object
        required: [repoURL]
        properties:
          repoURL: {type: string}
          helm:
            type: object
            properties:
              valuesObject: {type: object, x-kubernetes-preserve-unknown-fields: true}
              parameters: {type: array, items: {type: object, properties: {name: {type: string}, value: {type: string}, forceString: {type: boolean}}}}
          kustomize:
            type: object
            properties:
              commonLabels: {type: object, additionalProperties: {type: string}}
              replicas: {type: array, items: {type: object, required: [count, name], properties: {name: {type: string}, count: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}}}
    syncPolicy: {type: object, properties: {automated: {type: object, properties: {prune: {type: boolean}}}, syncOptions: {type: array, items: {type: string}}}}
status:
  type: object
  properties:
    health: {type: object, properties: {status: {type: string}}}
    sync: {type: object, required: [status], properties: {status: {type: string}, revision: {type: string}}}
    reconciledAt: {type: string, format: date-time}
object:
  spec:
    project: default
    destination: {server: https://kubernetes.default.svc, namespace: x}
    sources: [{repoURL: https://example.com/r.git, helm: {valuesObject: {any: [{thing: 1}]}}, kustomize: {replicas: [{name: a, count: 2}, {name: b, count: '3'}], commonLabels: {a: b}}}]
    syncPolicy: {automated: {}, syncOptions: null}
  status: {health: {status: Healthy}, sync: {status: Synced}}
stored:
  spec:
    project: default
    destination: {server: https://kubernetes.default.svc, namespace: x}
    sources: [{repoURL: https://example.com/r.git, helm: {valuesObject: {any: [{thing: 1}]}}, kustomize: {replicas: [{name: a, count: 2}, {name: b, count: '3'}], commonLabels: {a: b}}}]
    syncPolicy: {automated: {}}
cells: [Synced, Healthy, null]
wrong:
- [/status/reconciledAt, yesterday, 'status.reconciledAt in body must be of type date-time: "yesterday"']
- [/spec/sources/0/kustomize/commonLabels, {a: 1}, 'spec.sources[0].kustomize.commonLabels.a in body must be of type string: "integer"']
- [/spec/project, null, 'spec.project: Required value']
explained: {spec.sources.helm.valuesObject: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
kind: Workflow
names: {shortNames: [wf]}
columns: [[Status, string, .status.phase], [Age, date, .status.startedAt], [Message, string, .status.message]]
spec: {type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-map-type: atomic}
status: {type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-map-type: atomic}
root: {required: [metadata, spec]}
object:
  spec: {entrypoint: main, templates: [{name: main, container: {image: x}}], arguments: null}
  status: {phase: Running, startedAt: soon}
cells: [Running, <invalid>, null]
explained: {spec: {x-kubernetes-map-type: atomic}}
---
kind: HelmRelease
names: {shortNames: [hr]}
version: {subresources: {status: {}}}
columns:
- [Age, date, .metadata.creationTimestamp]
- [Ready, string, '.status.conditions[?(@.type=="Ready")].status']
- [Status, string, '.status.conditions[?(@.type=="Ready")].message']
spec:
  type: object
  required: [interval]
  x-kubernetes-validations: [{rule: '(has(self.chart) && !has(self.chartRef)) || (!has(self.chart) && has(self.chartRef))', message: either chart or chartRef must be set}]
  properties:
    interval: {type: string, pattern: '^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$'}
    chart: {type: object, required: [spec], properties: {spec: {type: object, properties: {chart: {type: string, maxLength: 2048, minLength: 1}, version: {type: string, default: '*'}, valuesFiles: {type: array, items: {type: string}}}}}}
    chartRef: {type: object, required: [kind, name], properties: {kind: {type: string, enum: [OCIRepository, HelmChart]}, name: {type: string, maxLength: 253, minLength: 1}}}
    targetNamespace: {type: string, minLength: 1, maxLength: 63}
    values: {x-kubernetes-preserve-unknown-fields: true}
    valuesFrom: {type: array, items: {type: object, required: [kind, name], properties: {kind: {type: string, enum: [Secret, ConfigMap]}, name: {type: string}, optional: {type: boolean}}}}
    upgrade: {type: object, properties: {remediation: {type: object, properties: {strategy: {type: string, enum: [rollback, uninstall]}, retries: {type: integer}}}}}
status:
  type: object
  default: {observedGeneration: -1}
  properties:
    observedGeneration: {type: integer, format: int64}
    conditions: {type: array, items: {type: object, required: [type, status], properties: {type: {type: string, maxLength: 316, pattern: '^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$'}, status: {type: string}, message: {type: string, maxLength: 32768}}}}
object:
  spec: {interval: 5m0.5s, chart: {spec: {chart: podinfo}}, values: {replicas: 2, deep: {list: [null, {}]}}}
  status: {conditions: [{type: Ready, status: 'True', message: Installed}]}
stored:
  spec: {interval: 5m0.5s, chart: {spec: {chart: podinfo, version: '*'}}, values: {replicas: 2, deep: {list: [null, {}]}}}
  status: {observedGeneration: -1, conditions: [{type: Ready, status: 'True', message: Installed}]}
cells: [AGE, 'True', Installed]
wrong:
- [/spec/chartRef, {kind: HelmChart, name: x}, 'spec: Invalid value: "object": either chart or chartRef must be set']
- [/spec/interval, 5 m, "spec.interval in body should match '^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$'"]
explained: {spec.values: {x-kubernetes-preserve-unknown-fields: true}, status.observedGeneration: {format: int64}}
---
kind: Certificate
names: {shortNames: [cert, certs], categories: [cert-manager], singular: certificate}
version: {subresources: {status: {}}, selectableFields: [{jsonPath: .spec.secretName}]}
columns:
- [Ready, string, '.status.conditions[?(@.type == "Ready")].status']
- [Secret, string, .spec.secretName]
- [Issuer, string, .spec.issuerRef.name]
- [Status, string, '.status.conditions[?(@.type == "Ready")].message']
- [Age, date, .metadata.creationTimestamp]
spec:
  type: object
  required: [issuerRef, secretName]
  properties:
    secretName: {type: string}
    duration: {type: string}
    dnsNames: {type: array, x-kubernetes-list-type: atomic, items: {type: string}}
    issuerRef: {type: object, required: [name], properties: {name: {type: string}, kind: {type: string}, group: {type: string}}}
    revisionHistoryLimit: {type: integer, format: int32, minimum: 1}
    usages: {type: array, items: {type: string, enum: [signing, digital signature, content commitment, any]}}
    privateKey: {type: object, properties: {algorithm: {type: string, enum: [RSA, ECDSA, Ed25519]}, size: {type: integer}, rotationPolicy: {type: string, enum: [Never, Always]}}}
status:
  type: object
  properties:
    notAfter: {type: string, format: date-time}
    conditions:
      type: array
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [type]
      items: {type: object, required: [status, type], properties: {type: {type: string}, status: {type: string, enum: ['True', 'False', Unknown]}, message: {type: string}}}
object:
  spec: {secretName: tls, dnsNames: [a.example.com], issuerRef: {name: ca, kind: Issuer}, usages: [digital signature], privateKey: {algorithm: ECDSA, size: 256}}
  status: {notAfter: '2030-01-01T00:00:00Z', conditions: [{type: Issuing, status: 'False'}, {type: Ready, status: 'True', message: up to date}]}
cells: ['True', tls, ca, up to date, AGE]
wrong:
- [/spec/usages, [knitting], 'spec.usages[0]: Unsupported value: "knitting"']
- [/spec/issuerRef, {}, 'spec.issuerRef.name: Required value']
explained: {spec.issuerRef.name: {type: string}}
---
kind: Service
names: {shortNames: [kservice, ksvc], categories: [all, knative, serving]}
version: {subresources: {status: {}}}
columns:
- [URL, string, .status.url]
- [LatestCreated, string, .status.latestCreatedRevisionName]
- [Ready, string, ".status.conditions[?(@.type=='Ready')].status"]
- [Reason, string, ".status.conditions[?(@.type=='Ready')].reason"]
spec:
  type: object
  x-kubernetes-preserve-unknown-fields: true
  properties:
    template:
      type: object
      properties:
        metadata: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {annotations: {type: object, additionalProperties: {type: string}}, labels: {type: object, additionalProperties: {type: string}}}}
        spec: {type: object, required: [containers], properties: {containers: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {image: {type: string}}}}, timeoutSeconds: {type: integer, format: int64}}}
    traffic: {type: array, items: {type: object, properties: {percent: {type: integer, format: int64}, latestRevision: {type: boolean}}}}
status: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {url: {type: string}}}
object:
  spec: {template: {metadata: {annotations: {a: b}, creationTimestamp: null}, spec: {containers: [{image: x, env: [{name: A}]}], timeoutSeconds: 300}}, unknown: {kept: true}}
  status: {url: http://x, conditions: [{type: Ready, status: 'False', reason: Why}]}
cells: [http://x, null, 'False', Why]
wrong:
- [/spec/template/spec/timeoutSeconds, x, 'must be of type integer: "string"']
- [/spec/template/spec/nope, 1, 'unknown field "spec.template.spec.nope"']
explained: {spec.template.spec.timeoutSeconds: {type: integer}}
---
kind: Task
names: {categories: [tekton, tekton-pipelines]}
root: {x-kubernetes-preserve-unknown-fields: true}
version: {subresources: {status: {}}}
object: {spec: {steps: [{image: x, script: 'echo'}], params: [{name: a, default: null}]}, other: {root: field}}
---
kind: ScaledObject
names: {shortNames: [so]}
version: {subresources: {status: {}}}
columns:
- [ScaleTargetKind, string, .status.scaleTargetKind]
- [Min, integer, .spec.minReplicaCount]
- [Triggers, string, '.spec.triggers[*].type']
- [Authentication, string, '.spec.triggers[*].authenticationRef.name']
- [Ready, string, '.status.conditions[?(@.type=="Ready")].status']
- [Paused, string, '.status.conditions[?(@.type=="Paused")].status']
- [First name, string, '..name']
- [Whole, string, '.']
root: {required: [spec]}
spec:
  type: object
  required: [scaleTargetRef, triggers]
  properties:
    minReplicaCount: {type: integer, format: int32}
    cooldownPeriod: {type: integer, format: int32}
    scaleTargetRef: {type: object, required: [name], properties: {name: {type: string}, kind: {type: string}, apiVersion: {type: string}}}
    fallback: {type: object, required: [failureThreshold, replicas], properties: {failureThreshold: {type: integer, format: int32}, replicas: {type: integer, format: int32}, behavior: {type: string, enum: [static, currentReplicas], default: static}}}
    triggers:
      type: array
      items:
        type: object
        required: [metadata, type]
        properties:
          type: {type: string}
          metadata: {type: object, additionalProperties: {type: string}}
          authenticationRef: {type: object, required: [name], properties: {name: {type: string}}}
          metricType: {type: string}
status:
  type: object
  properties:
    scaleTargetKind: {type: string}
    conditions: {type: array, items: {type: object, required: [status, type], properties: {type: {type: string}, status: {type: string}}}}
    health: {type: object, additionalProperties: {type: object, properties: {numberOfFailures: {type: integer, format: int32}}}}
object:
  spec: {minReplicaCount: 0, scaleTargetRef: {name: web}, fallback: {failureThreshold: 3, replicas: 1}, triggers: [{type: cron, metadata: {start: '0 8 * * *'}}, {type: kafka, metadata: {topic: t}, authenticationRef: {name: auth}}]}
  status: {scaleTargetKind: apps/v1.Deployment, conditions: [{type: Ready, status: 'True'}], health: {s0-cron: {numberOfFailures: 0}}}
stored:
  spec: {minReplicaCount: 0, scaleTargetRef: {name: web}, fallback: {failureThreshold: 3, replicas: 1, behavior: static}, triggers: [{type: cron, metadata: {start: '0 8 * * *'}}, {type: kafka, metadata: {topic: t}, authenticationRef: {name: auth}}]}
cells: [apps/v1.Deployment, 0, cron, auth, 'True', null, one, null]
wrong:
- [/spec/triggers/0/metadata, {start: 8}, 'must be of type string: "integer"']
explained: {spec.triggers.metadata: {type: object}}
"#;
