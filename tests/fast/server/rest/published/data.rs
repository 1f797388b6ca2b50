//! What keeps data: Strimzi, CloudNativePG, operators of Redis, MongoDB, Elasticsearch and RabbitMQ, Rook, Longhorn, Velero.

pub const SHAPES: &str = r#"
kind: Kafka
names: {shortNames: [k], categories: [strimzi]}
version: {subresources: {status: {}}}
columns:
- [Desired Kafka replicas, integer, .spec.kafka.replicas]
- [Ready, string, '.status.conditions[?(@.type=="Ready")].status']
- [Warnings, string, '.status.conditions[?(@.type=="Warning")].status']
- [Kafka Version, string, .status.kafkaVersion]
- [Listener, string, '.status.listeners[0].addresses[*].host']
spec:
  type: object
  required: [kafka]
  properties:
    kafka:
      type: object
      required: [listeners]
      properties:
        replicas: {type: integer, minimum: 1}
        config: {x-kubernetes-preserve-unknown-fields: true, type: object}
        listeners:
          type: array
          minItems: 1
          items:
            type: object
            required: [name, port, type, tls]
            properties:
              name: {type: string, pattern: '^[a-z0-9]{1,11}$'}
              port: {type: integer, minimum: 9092}
              type: {type: string, enum: [internal, route, loadbalancer, nodeport, ingress]}
              tls: {type: boolean}
        storage:
          type: object
          required: [type]
          oneOf: [{properties: {type: {enum: [ephemeral]}}}, {properties: {type: {enum: [persistent-claim]}}, required: [size]}]
          properties: {type: {type: string, enum: [ephemeral, persistent-claim]}, size: {type: string}, sizeLimit: {type: string, pattern: '^([0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'}}
        authorization: {type: object, properties: {superUsers: {type: array, items: {type: string}}, connectTimeoutSeconds: {type: integer, minimum: 1}, supportsAdminApi: {type: boolean}}}
status:
  type: object
  properties:
    kafkaVersion: {type: string}
    conditions: {type: array, items: {type: object, properties: {type: {type: string}, status: {type: string}}}}
    listeners: {type: array, items: {type: object, properties: {addresses: {type: array, items: {type: object, properties: {host: {type: string}, port: {type: integer}}}}}}}
object:
  spec: {kafka: {replicas: 3, config: {default.replication.factor: 3}, listeners: [{name: plain, port: 9092, type: internal, tls: false}], storage: {type: persistent-claim, size: 1Gi}}}
  status: {kafkaVersion: 4.0.0, conditions: [{type: Ready, status: 'True'}], listeners: [{addresses: [{host: a, port: 1}, {host: b, port: 2}]}]}
cells: [3, 'True', null, 4.0.0, a]
wrong:
- [/spec/kafka/storage, {type: persistent-claim}, '"spec.kafka.storage" must validate one and only one schema (oneOf). Found none valid']
- [/spec/kafka/listeners/0/name, plain-listener, should match]
- [/spec/kafka/listeners/0/port, 80, should be greater than or equal to 9092]
explained: {spec.kafka.config: {x-kubernetes-preserve-unknown-fields: true}}
---
kind: Cluster
names: {shortNames: [], categories: []}
version: {subresources: {status: {}, scale: {specReplicasPath: .spec.instances, statusReplicasPath: .status.instances}}}
columns: [[Age, date, .metadata.creationTimestamp], [Instances, integer, .status.instances], [Ready, integer, .status.readyInstances], [Status, string, .status.phase]]
root: {required: [spec]}
spec:
  type: object
  required: [instances]
  x-kubernetes-validations: [{rule: '!(has(self.imageCatalogRef) && has(self.imageName))', message: imageName and imageCatalogRef are mutually exclusive}]
  properties:
    instances: {type: integer, default: 1, minimum: 1}
    imageName: {type: string}
    imageCatalogRef: {type: object, x-kubernetes-map-type: atomic, required: [kind, name], properties: {kind: {type: string, x-kubernetes-validations: [{rule: "self == 'ImageCatalog' || self == 'ClusterImageCatalog'", message: Only image catalogs are supported}]}, name: {type: string}}}
    enableSuperuserAccess: {type: boolean, default: false}
    startDelay: {type: integer, format: int32, default: 3600}
    primaryUpdateStrategy: {type: string, default: unsupervised, enum: [unsupervised, supervised]}
    superuserSecret: {type: object, required: [name], properties: {name: {type: string}}}
    resources:
      type: object
      properties:
        limits:
          type: object
          additionalProperties:
            anyOf: [{type: integer}, {type: string}]
            pattern: '^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$'
            x-kubernetes-int-or-string: true
    managed: {type: object, properties: {roles: {type: array, items: {type: object, required: [name], properties: {name: {type: string}, connectionLimit: {type: integer, format: int64, default: -1}, ensure: {type: string, enum: [present, absent], default: present}, inherit: {type: boolean, default: true}}}}}}
status: {type: object, properties: {instances: {type: integer}, readyInstances: {type: integer}, phase: {type: string}, instancesStatus: {type: object, additionalProperties: {type: array, items: {type: string}}}}}
object:
  spec: {instances: 3, resources: {limits: {cpu: 2, memory: 1.5Gi}}, managed: {roles: [{name: app}]}}
  status: {instances: 3, readyInstances: 2, phase: Creating a new replica, instancesStatus: {healthy: [a, b]}}
stored:
  spec: {instances: 3, enableSuperuserAccess: false, startDelay: 3600, primaryUpdateStrategy: unsupervised, resources: {limits: {cpu: 2, memory: 1.5Gi}}, managed: {roles: [{name: app, connectionLimit: -1, ensure: present, inherit: true}]}}
cells: [AGE, 3, 2, Creating a new replica]
wrong:
- [/spec/resources/limits/memory, lots, should match]
- [/spec/instances, 0, should be greater than or equal to 1]
- [/spec/imageCatalogRef, {kind: Other, name: x}, Only image catalogs are supported]
explained: {spec.resources.limits: {type: object}, spec.managed.roles.connectionLimit: {default: -1}}
---
kind: MongoDB
version: {subresources: {status: {}}}
columns: [[Phase, string, .status.phase], [Version, string, .status.version]]
spec:
  type: object
  required: [type, users]
  properties:
    type: {type: string, enum: [ReplicaSet]}
    members: {type: integer}
    additionalMongodConfig: {type: object, nullable: true, x-kubernetes-preserve-unknown-fields: true}
    users: {type: array, items: {type: object, required: [name], properties: {name: {type: string}, db: {type: string, default: admin}, roles: {type: array, items: {type: object, required: [db, name], properties: {db: {type: string}, name: {type: string}}}}, scramCredentialsSecretName: {type: string, pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'}}}}
    security: {type: object, properties: {authentication: {type: object, required: [modes], properties: {ignoreUnknownUsers: {type: boolean, default: true, nullable: true}, modes: {type: array, items: {type: string, enum: [SCRAM, SCRAM-SHA-256, X509]}}}}}}
status: {type: object, required: [phase], properties: {phase: {type: string}, version: {type: string}}}
object:
  spec: {type: ReplicaSet, members: 3, additionalMongodConfig: null, users: [{name: a}], security: {authentication: {modes: [SCRAM], ignoreUnknownUsers: null}}}
  status: {phase: Running}
stored:
  spec: {type: ReplicaSet, members: 3, additionalMongodConfig: null, users: [{name: a, db: admin}], security: {authentication: {modes: [SCRAM], ignoreUnknownUsers: null}}}
cells: [Running, null]
wrong: [[/spec/type, Sharded, 'Unsupported value: "Sharded": supported values: "ReplicaSet"']]
explained: {spec.additionalMongodConfig: {nullable: true}}
---
kind: Elasticsearch
names: {shortNames: [es], categories: [elastic]}
version: {subresources: {status: {}}}
columns: [[health, string, .status.health], [nodes, integer, .status.availableNodes], [version, string, .status.version]]
spec:
  type: object
  required: [nodeSets, version]
  properties:
    version: {type: string}
    nodeSets:
      type: array
      minItems: 1
      items:
        type: object
        required: [name]
        properties:
          name: {type: string, maxLength: 23, pattern: '[a-zA-Z0-9-]+'}
          count: {type: integer, format: int32}
          config: {type: object, x-kubernetes-preserve-unknown-fields: true}
          podTemplate: {type: object, x-kubernetes-preserve-unknown-fields: true}
          volumeClaimTemplates: {type: array, items: {type: object, properties: {apiVersion: {type: string}, kind: {type: string}, metadata: {type: object, properties: {name: {type: string}}}, spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
    secureSettings: {type: array, items: {type: object, required: [secretName], properties: {secretName: {type: string}, entries: {type: array, items: {type: object, required: [key], properties: {key: {type: string}}}}}}}
status: {x-kubernetes-preserve-unknown-fields: true}
object:
  spec: {version: 9.0.0, nodeSets: [{name: default, count: 1, config: {node.store.allow_mmap: false}, podTemplate: {spec: {containers: []}}, volumeClaimTemplates: [{metadata: {name: data}, spec: {x: 1}}]}]}
  status: {health: green, availableNodes: 1}
cells: [green, 1, null]
wrong:
- [/spec/nodeSets/0/name, a-name-that-is-far-too-long, 'spec.nodeSets[0].name: Too long: may not be more than 23 bytes']
- [/spec/nodeSets/0/volumeClaimTemplates/0/metadata, {name: a, creationTimestamp: now}, 'unknown field "spec.nodeSets[0].volumeClaimTemplates[0].metadata.creationTimestamp"']
explained: {spec.nodeSets.volumeClaimTemplates.kind: {type: string}}
---
kind: RabbitMQ
names: {shortNames: [rmq], categories: [all]}
version: {subresources: {status: {}}}
columns: [[AllReplicasReady, string, ".status.conditions[?(@.type == 'AllReplicasReady')].status"]]
spec:
  type: object
  default: {delayStartSeconds: 30}
  properties:
    replicas: {type: integer, format: int32, default: 1, minimum: 0}
    delayStartSeconds: {type: integer, format: int32, default: 30, minimum: 0}
    rabbitmq: {type: object, properties: {additionalPlugins: {type: array, maxItems: 100, items: {type: string, maxLength: 100, pattern: '^\w+$'}}, additionalConfig: {type: string, maxLength: 2000}}}
    persistence: {type: object, default: {storage: 10Gi}, properties: {storage: {x-kubernetes-int-or-string: true, default: 10Gi, anyOf: [{type: integer}, {type: string}], pattern: '^([0-9.]+)([numkMGTPE]i?)?$'}}}
    override: {type: object, properties: {statefulSet: {type: object, properties: {spec: {type: object, properties: {podManagementPolicy: {type: string}, template: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}}
status: {type: object, properties: {conditions: {type: array, items: {type: object, required: [status, type], properties: {type: {type: string}, status: {type: string}}}}}}
object: {status: {conditions: [{type: AllReplicasReady, status: 'True'}]}}
stored: {spec: {delayStartSeconds: 30, replicas: 1, persistence: {storage: 10Gi}}}
cells: ['True']
wrong:
- [/spec, {rabbitmq: {additionalPlugins: [é]}}, 'spec.rabbitmq.additionalPlugins[0] in body should match']
- [/spec, {replicas: -1}, 'spec.replicas in body should be greater than or equal to 0']
---
kind: CephCluster
names: {shortNames: [ceph]}
version: {subresources: {status: {}}}
columns: [[DataDirHostPath, string, .spec.dataDirHostPath], [MonCount, string, .spec.mon.count], [Phase, string, .status.phase], [Health, string, .status.ceph.health], [External, boolean, .spec.external.enable]]
spec:
  type: object
  properties:
    dataDirHostPath: {type: string, pattern: '^/(\S+)', x-kubernetes-validations: [{message: DataDirHostPath is immutable, rule: self == oldSelf}]}
    mon: {type: object, nullable: true, x-kubernetes-validations: [{message: zones must be less than or equal to count, rule: '!has(self.zones) || (has(self.zones) && (size(self.zones) <= self.count))'}], properties: {count: {type: integer, maximum: 9, minimum: 0}, zones: {type: array, items: {type: object, properties: {name: {type: string}}}}}}
    placement: {type: object, nullable: true, x-kubernetes-preserve-unknown-fields: true, additionalProperties: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {tolerations: {type: array, items: {type: object, properties: {key: {type: string}}}}}}}
    external: {type: object, nullable: true, x-kubernetes-preserve-unknown-fields: true, properties: {enable: {type: boolean}}}
    storage:
      type: object
      nullable: true
      properties:
        devices: {type: array, nullable: true, x-kubernetes-preserve-unknown-fields: true, items: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {name: {type: string}}}}
        config: {type: object, nullable: true, x-kubernetes-preserve-unknown-fields: true, additionalProperties: {type: string}}
        useAllNodes: {type: boolean}
    security: {type: object, nullable: true, properties: {keyRotation: {type: object, nullable: true, properties: {enabled: {type: boolean, default: false}, schedule: {type: string}}}}}
status: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {phase: {type: string}, ceph: {type: object, properties: {health: {type: string}}}}}
object:
  spec: {dataDirHostPath: /var/lib/x, mon: {count: 3, zones: [{name: a}]}, storage: {devices: [{name: sdb, extra: 1}], config: null, useAllNodes: true}, security: {keyRotation: {}}, placement: {all: {tolerations: [{key: x, more: y}]}}}
  status: {phase: Ready, ceph: {health: HEALTH_OK}, new: {kept: 1}}
stored:
  spec: {dataDirHostPath: /var/lib/x, mon: {count: 3, zones: [{name: a}]}, storage: {devices: [{name: sdb, extra: 1}], config: null, useAllNodes: true}, security: {keyRotation: {enabled: false}}, placement: {all: {tolerations: [{key: x}]}}}
cells: [/var/lib/x, '3', Ready, HEALTH_OK, null]
wrong:
- [/spec/mon, {count: 1, zones: [{name: a}, {name: b}]}, zones must be less than or equal to count]
- [/spec/dataDirHostPath, relative, should match]
kept: [[/spec/dataDirHostPath, /other, DataDirHostPath is immutable]]
---
kind: Volume
names: {shortNames: [lhv]}
version: {subresources: {status: {}}}
columns: [[Data Engine, string, .spec.dataEngine], [State, string, .status.state], [Scheduled, string, "..status.conditions[?(@.type=='Scheduled')].status"], [Size, string, .spec.size], [Age, date, .metadata.creationTimestamp]]
spec:
  type: object
  properties:
    size: {type: string, format: int64}
    dataEngine: {type: string, enum: [v1, v2]}
    numberOfReplicas: {type: integer}
    diskSelector: {type: array, items: {type: string}}
    snapshotMaxCount: {type: integer}
    restoreVolumeRecurringJob: {type: string, enum: [ignored, enabled, disabled]}
status:
  type: object
  properties:
    state: {type: string}
    conditions: {type: array, nullable: true, items: {type: object, properties: {type: {type: string}, status: {type: string}, lastProbeTime: {type: string}}}}
    kubernetesStatus: {type: object, properties: {workloadsStatus: {type: array, nullable: true, items: {type: object, properties: {podName: {type: string}}}}}}
    cloneStatus: {type: object, additionalProperties: {type: object, nullable: true, properties: {error: {type: string}}}}
object:
  spec: {size: '1073741824', dataEngine: v1, numberOfReplicas: 3, diskSelector: []}
  status: {state: attached, conditions: [{type: Scheduled, status: 'True', lastProbeTime: ''}], kubernetesStatus: {workloadsStatus: null}, cloneStatus: {a: null}}
cells: [v1, attached, 'True', '1073741824', AGE]
wrong: [[/spec/dataEngine, v3, 'Unsupported value: "v3"']]
---
kind: Backup
spec:
  type: object
  properties:
    includedNamespaces: {type: array, nullable: true, items: {type: string}}
    snapshotVolumes: {type: boolean, nullable: true}
    ttl: {type: string}
    labelSelector: {type: object, nullable: true, x-kubernetes-map-type: atomic, properties: {matchLabels: {type: object, additionalProperties: {type: string}}, matchExpressions: {type: array, x-kubernetes-list-type: atomic, items: {type: object, required: [key, operator], properties: {key: {type: string}, operator: {type: string}, values: {type: array, x-kubernetes-list-type: atomic, items: {type: string}}}}}}}
    hooks: {type: object, properties: {resources: {type: array, nullable: true, items: {type: object, required: [name], properties: {name: {type: string}, post: {type: array, items: {type: object, required: [exec], properties: {exec: {type: object, required: [command], properties: {command: {type: array, minItems: 1, items: {type: string}}, onError: {type: string, enum: [Continue, Fail]}}}}}}}}}}}
    itemOperationTimeout: {type: string}
status: {type: object, properties: {phase: {type: string, enum: [New, InProgress, Completed]}, startTimestamp: {type: string, format: date-time, nullable: true}, validationErrors: {type: array, nullable: true, items: {type: string}}}}
object:
  spec: {includedNamespaces: ['*'], snapshotVolumes: null, ttl: 720h0m0s, hooks: {resources: null}, itemOperationTimeout: null}
  status: {phase: New, startTimestamp: null, validationErrors: null}
stored:
  spec: {includedNamespaces: ['*'], snapshotVolumes: null, ttl: 720h0m0s, hooks: {resources: null}}
  status: {phase: New, startTimestamp: null, validationErrors: null}
cells: [AGE]
wrong: [[/spec/hooks/resources, [{name: a, post: [{exec: {command: []}}]}], 'command in body should have at least 1 items']]
"#;
