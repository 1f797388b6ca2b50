//! What watches, guards and composes: Prometheus' operator, OpenTelemetry's, Kyverno, Crossplane, External and Sealed Secrets,
//! Grafana.

pub const SHAPES: &str = r#"
kind: ServiceMonitor
names: {shortNames: [smon], categories: [prometheus-operator]}
root: {required: [spec]}
spec:
  type: object
  required: [endpoints, selector]
  properties:
    endpoints:
      type: array
      items:
        type: object
        properties:
          port: {type: string}
          targetPort: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
          interval: {type: string, pattern: '^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$'}
          params: {type: object, additionalProperties: {type: array, items: {type: string}}}
          scheme: {type: string, enum: [http, https]}
          basicAuth: {type: object, properties: {username: {type: object, x-kubernetes-map-type: atomic, required: [key], properties: {key: {type: string}, name: {type: string, default: ''}, optional: {type: boolean}}}}}
          relabelings: {type: array, items: {type: object, properties: {action: {type: string, default: replace, enum: [replace, Replace, keep, Keep]}, modulus: {type: integer, format: int64}, sourceLabels: {type: array, items: {type: string, pattern: '^[a-zA-Z_][a-zA-Z0-9_]*$'}}}}}
    selector: {type: object, x-kubernetes-map-type: atomic, properties: {matchLabels: {type: object, additionalProperties: {type: string}}}}
    bodySizeLimit: {type: string, pattern: '(^0|([0-9]*[.])?[0-9]+((K|M|G|T|E|P)i?)?B)$'}
object: {spec: {selector: {matchLabels: {a: b}}, bodySizeLimit: 10MB, endpoints: [{port: web, interval: 30s, params: {a: [b]}, basicAuth: {username: {key: u}}, relabelings: [{sourceLabels: [__name__]}]}, {targetPort: 8080}, {targetPort: http}]}}
stored: {spec: {selector: {matchLabels: {a: b}}, bodySizeLimit: 10MB, endpoints: [{port: web, interval: 30s, params: {a: [b]}, basicAuth: {username: {key: u, name: ''}}, relabelings: [{sourceLabels: [__name__], action: replace}]}, {targetPort: 8080}, {targetPort: http}]}}
wrong:
- [/spec/endpoints/0/interval, half an hour, should match]
- [/spec/endpoints/1/targetPort, true, 'must be of type integer,string: "boolean"']
- [/spec/endpoints/0/params, {a: b}, 'must be of type array: "string"']
explained: {spec.endpoints.targetPort: {x-kubernetes-int-or-string: true}}
---
kind: Prometheus
version: {subresources: {status: {}, scale: {specReplicasPath: .spec.shards, statusReplicasPath: .status.shards, labelSelectorPath: .status.selector}}}
columns: [[Version, string, .spec.version], [Desired, integer, .spec.replicas], [Ready, integer, .status.availableReplicas], [Reconciled, string, ".status.conditions[?(@.type == 'Reconciled')].status"], [Paused, boolean, .status.paused]]
spec:
  type: object
  properties:
    version: {type: string}
    replicas: {type: integer, format: int32}
    shards: {type: integer, format: int32}
    evaluationInterval: {type: string, default: 30s}
    volumes: {type: array, items: {type: object, required: [name], properties: {name: {type: string}, emptyDir: {type: object, properties: {sizeLimit: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}}, ephemeral: {type: object, properties: {volumeClaimTemplate: {type: object, required: [spec], properties: {metadata: {type: object}, spec: {type: object, properties: {accessModes: {type: array, x-kubernetes-list-type: atomic, items: {type: string}}}}}}}}}}}
    hostAliases: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [ip], items: {type: object, required: [hostnames, ip], properties: {ip: {type: string}, hostnames: {type: array, items: {type: string}}}}}
status:
  type: object
  required: [availableReplicas, paused]
  properties:
    availableReplicas: {type: integer, format: int32}
    paused: {type: boolean}
    shards: {type: integer, format: int32}
    selector: {type: string}
    conditions: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [type], items: {type: object, required: [status, type], properties: {type: {type: string, minLength: 1}, status: {type: string, minLength: 1}}}}
object:
  spec: {version: v3.0.0, replicas: 2, shards: 1, volumes: [{name: a, emptyDir: {sizeLimit: 1Gi}, ephemeral: {volumeClaimTemplate: {metadata: {}, spec: {accessModes: [ReadWriteOnce]}}}}], hostAliases: [{ip: 192.0.2.1, hostnames: [a]}]}
  status: {availableReplicas: 2, paused: false, shards: 1, selector: a=b, conditions: [{type: Reconciled, status: 'True'}]}
stored:
  spec: {version: v3.0.0, replicas: 2, shards: 1, evaluationInterval: 30s, volumes: [{name: a, emptyDir: {sizeLimit: 1Gi}, ephemeral: {volumeClaimTemplate: {metadata: {}, spec: {accessModes: [ReadWriteOnce]}}}}], hostAliases: [{ip: 192.0.2.1, hostnames: [a]}]}
cells: [v3.0.0, 2, 2, 'True', false]
wrong:
- [/spec/hostAliases, [{ip: a, hostnames: []}, {ip: a, hostnames: []}], 'spec.hostAliases[1]: Duplicate value: {"ip":"a"}']
explained: {spec.evaluationInterval: {default: 30s}}
---
kind: PrometheusRule
spec:
  type: object
  properties:
    groups:
      type: array
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [name]
      items:
        type: object
        required: [name]
        properties:
          name: {type: string, minLength: 1}
          rules:
            type: array
            items:
              type: object
              required: [expr]
              properties:
                alert: {type: string}
                expr: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
                labels: {type: object, additionalProperties: {type: string}}
object: {spec: {groups: [{name: a, rules: [{alert: Down, expr: up == 0, labels: null}, {expr: 1}]}]}}
stored: {spec: {groups: [{name: a, rules: [{alert: Down, expr: up == 0}, {expr: 1}]}]}}
wrong: [[/spec/groups, [{name: ''}], 'spec.groups[0].name in body should be at least 1 chars long']]
---
kind: OpenTelemetryCollector
names: {shortNames: [otelcol, otelcols]}
version: {subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.scale.replicas, labelSelectorPath: .status.scale.selector}}}
columns: [[Mode, string, .spec.mode], [Ready, string, .status.scale.statusReplicas], [Management, string, .spec.managementState]]
others:
- name: v1alpha1
  served: true
  storage: false
  deprecated: true
  deprecationWarning: shapes.example.com/v1alpha1 OpenTelemetryCollector is deprecated. Migrate to v1.
  schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {config: {type: string}}}}}}
conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1, v1beta1], clientConfig: {service: {name: otel, namespace: default, path: /convert}}}}
spec:
  type: object
  required: [config, managementState]
  properties:
    mode: {type: string, enum: [daemonset, deployment, sidecar, statefulset], default: deployment}
    managementState: {type: string, enum: [managed, unmanaged], default: managed}
    replicas: {type: integer, format: int32}
    config:
      type: object
      required: [exporters, receivers, service]
      x-kubernetes-preserve-unknown-fields: true
      properties:
        receivers: {type: object, x-kubernetes-preserve-unknown-fields: true}
        exporters: {type: object, x-kubernetes-preserve-unknown-fields: true}
        service: {type: object, required: [pipelines], properties: {pipelines: {type: object, x-kubernetes-preserve-unknown-fields: true, additionalProperties: {type: object, required: [exporters, receivers], properties: {exporters: {type: array, items: {type: string}}, receivers: {type: array, items: {type: string}}, processors: {type: array, items: {type: string}}}}}}}
    ports: {type: array, x-kubernetes-list-type: atomic, items: {type: object, required: [port], properties: {name: {type: string}, port: {type: integer, format: int32}, protocol: {type: string, default: TCP}}}}
status: {type: object, properties: {scale: {type: object, properties: {replicas: {type: integer}, statusReplicas: {type: string}, selector: {type: string}}}}}
object:
  spec: {config: {receivers: {otlp: {protocols: {grpc: null}}}, exporters: {debug: {}}, extra: {a: 1}, service: {pipelines: {traces: {exporters: [debug], receivers: [otlp], processors: null}}}}, ports: [{port: 4317}]}
  status: {scale: {statusReplicas: 1/1}}
stored:
  spec: {mode: deployment, managementState: managed, config: {receivers: {otlp: {protocols: {grpc: null}}}, exporters: {debug: {}}, extra: {a: 1}, service: {pipelines: {traces: {exporters: [debug], receivers: [otlp]}}}}, ports: [{port: 4317, protocol: TCP}]}
cells: [deployment, 1/1, managed]
wrong: [[/spec/config/service, {}, 'spec.config.service.pipelines: Required value']]
explained: {spec.config.service.pipelines: {type: object}}
---
kind: ClusterPolicy
scope: Cluster
names: {shortNames: [cpol], categories: [kyverno]}
version: {subresources: {status: {}}}
columns: [[Admission, boolean, .spec.admission], [Ready, string, '.status.conditions[?(@.type == "Ready")].status'], [Action, string, .spec.validationFailureAction], [First, string, '.spec.rules[0].name']]
spec:
  type: object
  required: [rules]
  properties:
    admission: {type: boolean, default: true}
    validationFailureAction: {type: string, default: Audit, enum: [audit, enforce, Audit, Enforce]}
    rules:
      type: array
      items:
        type: object
        required: [match, name]
        properties:
          name: {type: string, maxLength: 63}
          match:
            type: object
            not: {required: [any, all]}
            properties:
              any: {type: array, items: {type: object, properties: {resources: {type: object, not: {required: [name, names]}, properties: {kinds: {type: array, items: {type: string}}, name: {type: string}, names: {type: array, items: {type: string}}}}}}}
              all: {type: array, items: {type: object, properties: {resources: {type: object, properties: {kinds: {type: array, items: {type: string}}}}}}}
          validate:
            type: object
            properties:
              message: {type: string}
              pattern: {x-kubernetes-preserve-unknown-fields: true}
              anyPattern: {x-kubernetes-preserve-unknown-fields: true}
              deny: {type: object, properties: {conditions: {x-kubernetes-preserve-unknown-fields: true}}}
status: {type: object, properties: {conditions: {type: array, items: {type: object, required: [status, type], properties: {type: {type: string}, status: {type: string}}}}, autogen: {type: object, properties: {rules: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}
object:
  spec: {rules: [{name: a, match: {any: [{resources: {kinds: [Pod]}}]}, validate: {message: no!, pattern: {spec: {'=(containers)': [{image: '!*:latest'}]}}, anyPattern: [{a: null}], deny: {conditions: {any: [{key: 1, operator: Equals, value: [x]}]}}}}]}
  status: {conditions: [{type: Ready, status: 'True'}]}
stored:
  spec: {admission: true, validationFailureAction: Audit, rules: [{name: a, match: {any: [{resources: {kinds: [Pod]}}]}, validate: {message: no!, pattern: {spec: {'=(containers)': [{image: '!*:latest'}]}}, anyPattern: [{a: null}], deny: {conditions: {any: [{key: 1, operator: Equals, value: [x]}]}}}}]}
cells: [true, 'True', Audit, a]
wrong:
- [/spec/rules/0/match/all, [], '"spec.rules[0].match" must not validate the schema (not)']
- [/spec/rules/0/match/any/0/resources, {name: a, names: [b]}, must not validate the schema (not)]
explained: {spec.rules.validate.pattern: {x-kubernetes-preserve-unknown-fields: true}}
---
kind: Composition
scope: Cluster
names: {shortNames: [comp], categories: [crossplane]}
columns: [[XR-KIND, string, .spec.compositeTypeRef.kind], [XR-APIVERSION, string, .spec.compositeTypeRef.apiVersion], [AGE, date, .metadata.creationTimestamp]]
spec:
  type: object
  required: [compositeTypeRef]
  x-kubernetes-validations: [{rule: "self.mode == 'Pipeline' && has(self.pipeline)", message: an array of pipeline steps is required in Pipeline mode}]
  properties:
    mode: {type: string, default: Pipeline, enum: [Pipeline]}
    compositeTypeRef:
      type: object
      required: [apiVersion, kind]
      properties:
        apiVersion: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: Value is immutable}]}
        kind: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: Value is immutable}]}
    pipeline:
      type: array
      maxItems: 99
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [step]
      items:
        type: object
        required: [functionRef, step]
        properties:
          step: {type: string}
          functionRef: {type: object, required: [name], properties: {name: {type: string}}}
          input: {type: object, description: What it is given., x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          credentials:
            type: array
            maxItems: 10
            x-kubernetes-list-type: map
            x-kubernetes-list-map-keys: [name]
            items: {type: object, required: [name, source], properties: {name: {type: string}, source: {type: string, enum: [None, Secret]}, secretRef: {type: object, required: [name, namespace], properties: {name: {type: string}, namespace: {type: string}}}}, x-kubernetes-validations: [{rule: "self.source == 'Secret' ? has(self.secretRef) : true", message: the Secret source requires a secretRef}]}
object: {spec: {compositeTypeRef: {apiVersion: x/v1, kind: XDB}, pipeline: [{step: a, functionRef: {name: f}, input: {apiVersion: pt.example.com/v1, kind: Resources, resources: [{name: b}]}}]}}
stored: {spec: {mode: Pipeline, compositeTypeRef: {apiVersion: x/v1, kind: XDB}, pipeline: [{step: a, functionRef: {name: f}, input: {apiVersion: pt.example.com/v1, kind: Resources, resources: [{name: b}]}}]}}
cells: [XDB, x/v1, AGE]
wrong:
- [/spec/pipeline/0/input, {resources: []}, 'spec.pipeline[0].input.apiVersion: Required value']
- [/spec/pipeline/0/credentials, [{name: a, source: Secret}], the Secret source requires a secretRef]
kept: [[/spec/compositeTypeRef/kind, XOther, Value is immutable]]
explained: {spec.pipeline.input: {x-kubernetes-embedded-resource: true, required: [kind, apiVersion]}, spec.pipeline.input.kind: {type: string, description: 'kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds'}}
---
kind: SecretStore
names: {shortNames: [ss], categories: [external-secrets]}
version: {subresources: {status: {}}}
columns: [[AGE, date, .metadata.creationTimestamp], [Status, string, '.status.conditions[?(@.type=="Ready")].reason'], [Capabilities, string, .status.capabilities]]
others:
- {name: v1beta1, served: true, storage: false, deprecated: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
- {name: v1alpha1, served: false, storage: false, schema: {openAPIV3Schema: {type: object}}}
spec:
  type: object
  required: [provider]
  properties:
    refreshInterval: {type: integer}
    provider:
      type: object
      minProperties: 1
      maxProperties: 1
      properties:
        fake: {type: object, required: [data], properties: {data: {type: array, items: {type: object, required: [key], properties: {key: {type: string}, value: {type: string}}}}}}
        vault: {type: object, required: [server], properties: {server: {type: string}, version: {type: string, default: v2, enum: [v1, v2]}, headers: {type: object, additionalProperties: {type: string}}}}
status: {type: object, properties: {capabilities: {type: string}, conditions: {type: array, items: {type: object, required: [status, type], properties: {type: {type: string}, status: {type: string}, reason: {type: string}}}}}}
object:
  spec: {provider: {vault: {server: https://vault, headers: null}}}
  status: {capabilities: ReadWrite, conditions: [{type: Ready, status: 'True', reason: Valid}]}
stored: {spec: {provider: {vault: {server: https://vault, version: v2}}}}
cells: [AGE, Valid, ReadWrite]
wrong:
- [/spec/provider/fake, {data: []}, 'spec.provider: Too many: 2: must have at most 1 items']
- [/spec/provider, {}, 'spec.provider in body should have at least 1 properties']
---
kind: SealedSecret
version: {subresources: {status: {}}}
columns: [[Status, string, '.status.conditions[?(@.type=="Synced")].message'], [Synced, string, '.status.conditions[?(@.type=="Synced")].status']]
spec:
  type: object
  required: [encryptedData]
  properties:
    encryptedData: {type: object, additionalProperties: {type: string}, x-kubernetes-preserve-unknown-fields: true}
    template: {type: object, properties: {data: {type: object, nullable: true, additionalProperties: {type: string}}, metadata: {type: object, nullable: true, x-kubernetes-preserve-unknown-fields: true, properties: {annotations: {type: object, nullable: true, additionalProperties: {type: string}}}}}}
status: {type: object, properties: {conditions: {type: array, items: {type: object, required: [status, type], properties: {type: {type: string}, status: {type: string}, message: {type: string}}}}}}
object: {spec: {encryptedData: {a: AgB}, template: {data: null, metadata: {creationTimestamp: null, annotations: null, name: x}}}}
cells: [null, null]
---
kind: Grafana
version: {subresources: {status: {}}}
columns: [[Version, string, .status.version], [Stage, string, .status.stage]]
spec:
  type: object
  x-kubernetes-validations:
  - {rule: "!has(self.version) || self.version.matches('^[0-9]+\\\\.[0-9]+')", messageExpression: "'version ' + self.version + ' is none'", fieldPath: .version, reason: FieldValueInvalid}
  properties:
    version: {type: string, maxLength: 64}
    external: {type: object, nullable: true, required: [url], properties: {url: {type: string, format: uri}}}
    config: {type: object, additionalProperties: {type: object, additionalProperties: {type: string}}}
    scale: {type: number, multipleOf: 0.5, minimum: 0, exclusiveMinimum: true}
    secret: {type: string, format: byte}
    mail: {type: string, format: email}
    id: {type: string, format: uuid}
status: {type: object, properties: {version: {type: string}, stage: {type: string}}}
object: {spec: {version: '12.1', config: {server: {root_url: x}}, scale: 1.5, secret: aGk=, mail: a@example.com, id: 123e4567-e89b-12d3-a456-426614174000}, status: {version: '12.1'}}
cells: ['12.1', null]
wrong:
- [/spec/version, latest, 'spec.version: Invalid value: "object": version latest is none']
- [/spec/scale, 1.3, should be a multiple of 0.5]
- [/spec/scale, 0, should be greater than 0]
- [/spec/secret, '?', 'must be of type byte: "?"']
- [/spec/mail, nobody, must be of type email]
- [/spec/id, x, must be of type uuid]
"#;
