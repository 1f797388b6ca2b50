//! What shares out machines and disks: Kueue, Volcano, Karpenter, Cluster API, the VerticalPodAutoscaler, volume snapshots, Spark.

pub const SHAPES: &str = r#"
kind: ClusterQueue
scope: Cluster
names: {shortNames: [cq]}
version: {subresources: {status: {}}}
columns: [[Cohort, string, .spec.cohort], [Strategy, string, .spec.queueingStrategy], [Pending Workloads, integer, .status.pendingWorkloads]]
root: {x-kubernetes-validations: [{rule: '!has(self.spec.cohort) || self.metadata.name != self.spec.cohort', message: a queue is not its own cohort}]}
spec:
  type: object
  x-kubernetes-validations: [{rule: '!has(self.cohort) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, f.resources.all(r, !has(r.borrowingLimit)))) : true', message: borrowingLimit must be nil when cohort is empty}]
  properties:
    cohort: {type: string, maxLength: 253, pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'}
    queueingStrategy: {type: string, default: BestEffortFIFO, enum: [StrictFIFO, BestEffortFIFO]}
    flavorFungibility: {type: object, default: {}, properties: {whenCanBorrow: {type: string, default: Borrow, enum: [Borrow, TryNextFlavor]}}}
    preemption: {type: object, default: {}, x-kubernetes-validations: [{rule: "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) && self.borrowWithinCohort.policy != 'Never')", message: reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never}], properties: {reclaimWithinCohort: {type: string, default: Never, enum: [Never, LowerPriority, Any]}, borrowWithinCohort: {type: object, default: {}, properties: {policy: {type: string, default: Never, enum: [Never, LowerPriority]}}}}}
    resourceGroups:
      type: array
      maxItems: 16
      x-kubernetes-list-type: atomic
      items:
        type: object
        required: [coveredResources, flavors]
        x-kubernetes-validations: [{rule: 'self.flavors.all(x, size(x.resources) == size(self.coveredResources))', message: flavors must have the same number of resources as the coveredResources}]
        properties:
          coveredResources: {type: array, maxItems: 16, minItems: 1, items: {type: string, maxLength: 64}}
          flavors:
            type: array
            maxItems: 16
            minItems: 1
            x-kubernetes-list-type: map
            x-kubernetes-list-map-keys: [name]
            items:
              type: object
              required: [name, resources]
              properties:
                name: {type: string, maxLength: 253}
                resources:
                  type: array
                  maxItems: 16
                  minItems: 1
                  x-kubernetes-list-type: map
                  x-kubernetes-list-map-keys: [name]
                  items:
                    type: object
                    required: [name, nominalQuota]
                    properties:
                      name: {type: string, maxLength: 64}
                      nominalQuota: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}], pattern: '^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$'}
                      borrowingLimit: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
status: {type: object, properties: {pendingWorkloads: {type: integer, format: int32}}}
object:
  spec: {resourceGroups: [{coveredResources: [cpu], flavors: [{name: default, resources: [{name: cpu, nominalQuota: 9}]}]}]}
  status: {pendingWorkloads: 0}
stored:
  spec: {queueingStrategy: BestEffortFIFO, flavorFungibility: {whenCanBorrow: Borrow}, preemption: {reclaimWithinCohort: Never, borrowWithinCohort: {policy: Never}}, resourceGroups: [{coveredResources: [cpu], flavors: [{name: default, resources: [{name: cpu, nominalQuota: 9}]}]}]}
cells: [null, BestEffortFIFO, 0]
wrong:
- [/spec/resourceGroups/0/coveredResources, [cpu, memory], flavors must have the same number of resources]
- [/spec/resourceGroups/0/flavors/0/resources/0/borrowingLimit, 1, borrowingLimit must be nil when cohort is empty]
- [/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota, 1.5x, should match]
- [/spec/cohort, other, a queue is not its own cohort]
- [/spec/preemption, {borrowWithinCohort: {policy: LowerPriority}}, 'reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never']
explained: {spec.resourceGroups.flavors.resources.nominalQuota: {x-kubernetes-int-or-string: true}}
---
kind: Job
names: {shortNames: [vcjob, vj], singular: job}
version: {subresources: {status: {}}}
columns: [[STATUS, string, .status.state.phase], [minAvailable, integer, .status.minAvailable], [RUNNINGS, integer, .status.running], [QUEUE, string, .spec.queue]]
spec:
  type: object
  properties:
    minAvailable: {type: integer, format: int32}
    queue: {type: string}
    plugins: {type: object, additionalProperties: {type: array, items: {type: string}}}
    tasks: {type: array, items: {type: object, properties: {name: {type: string}, replicas: {type: integer, format: int32}, policies: {type: array, items: {type: object, properties: {action: {type: string}, event: {type: string}, exitCode: {type: integer, format: int32, nullable: true}}}}, template: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
status: {type: object, properties: {state: {type: object, properties: {phase: {type: string}}}, minAvailable: {type: integer}, running: {type: integer}}}
object:
  spec: {minAvailable: 1, queue: default, plugins: {ssh: [], env: null}, tasks: [{name: a, replicas: 2, policies: [{event: X, exitCode: null}], template: {spec: {containers: [{name: c}]}}}]}
  status: {state: {phase: Running}, minAvailable: 1}
stored:
  spec: {minAvailable: 1, queue: default, plugins: {ssh: []}, tasks: [{name: a, replicas: 2, policies: [{event: X, exitCode: null}], template: {spec: {containers: [{name: c}]}}}]}
cells: [Running, 1, null, default]
---
kind: NodePool
scope: Cluster
names: {categories: [karpenter]}
version: {subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.nodes}}}
columns: [[NodeClass, string, .spec.template.spec.nodeClassRef.name], [Nodes, string, .status.resources.nodes], [Ready, string, '.status.conditions[?(@.type=="Ready")].status'], [Weight, integer, .spec.weight], [CPU, string, .status.resources.cpu]]
spec:
  type: object
  required: [template]
  x-kubernetes-validations: [{rule: '!has(self.replicas) || !has(self.weight)', message: replicas and weight are exclusive}]
  properties:
    replicas: {type: integer, format: int64, minimum: 0}
    weight: {type: integer, format: int32, minimum: 1, maximum: 100}
    limits: {type: object, additionalProperties: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}
    disruption:
      type: object
      default: {consolidateAfter: 0s}
      required: [consolidateAfter]
      properties:
        consolidateAfter: {type: string, pattern: '^(([0-9]+(s|m|h))+|Never)$'}
        consolidationPolicy: {type: string, default: WhenEmptyOrUnderutilized, enum: [WhenEmpty, WhenEmptyOrUnderutilized]}
        budgets:
          type: array
          maxItems: 50
          default: [{nodes: 10%}]
          x-kubernetes-validations: [{rule: 'self.all(x, has(x.schedule) == has(x.duration))', message: "'schedule' must be set with 'duration'"}]
          items: {type: object, required: [nodes], properties: {nodes: {type: string, default: 10%, pattern: '^((100|[0-9]{1,2})%|[0-9]+)$'}, schedule: {type: string, pattern: '^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$'}, duration: {type: string, pattern: '^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$'}}}
    template:
      type: object
      required: [spec]
      properties:
        metadata: {type: object, properties: {labels: {type: object, maxProperties: 100, additionalProperties: {type: string, maxLength: 63}, x-kubernetes-validations: [{rule: "self.all(x, x in ['app', 'tier'] || !x.startsWith('node.'))", message: label domain is restricted}]}}}
        spec:
          type: object
          required: [nodeClassRef, requirements]
          properties:
            expireAfter: {type: string, default: 720h, pattern: '^(([0-9]+(s|m|h))+|Never)$'}
            nodeClassRef: {type: object, required: [group, kind, name], x-kubernetes-validations: [{rule: self.group == oldSelf.group, message: nodeClassRef.group is immutable}], properties: {group: {type: string, pattern: '^[^/]*$', x-kubernetes-validations: [{rule: "self != ''", message: group may not be empty}]}, kind: {type: string}, name: {type: string}}}
            requirements:
              type: array
              maxItems: 100
              x-kubernetes-validations:
              - {rule: "self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)", message: "requirements with operator 'In' must have a value defined"}
              - {rule: "self.all(x, (x.operator == 'Gt' || x.operator == 'Lt') ? (x.values.size() == 1 && int(x.values[0]) >= 0) : true)", message: Gt and Lt need one number}
              items: {type: object, required: [key, operator], properties: {key: {type: string, maxLength: 316}, operator: {type: string, enum: [Gt, Lt, In, NotIn, Exists, DoesNotExist]}, values: {type: array, x-kubernetes-list-type: atomic, maxLength: 63, maxItems: 50, items: {type: string, maxLength: 63}}, minValues: {type: integer, minimum: 1, maximum: 50}}}
status: {type: object, properties: {nodes: {type: integer, format: int64, default: 0}, resources: {type: object, additionalProperties: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}, conditions: {type: array, items: {type: object, required: [status, type], properties: {type: {type: string}, status: {type: string}}}}}}
object:
  spec: {weight: 10, limits: {cpu: 1000}, disruption: {consolidateAfter: 1m30s}, template: {metadata: {labels: {app: x}}, spec: {nodeClassRef: {group: g, kind: K, name: nc}, requirements: [{key: arch, operator: In, values: [amd64]}, {key: gen, operator: Gt, values: ['2'], minValues: 2}]}}}
  status: {resources: {nodes: '3', cpu: 12}, conditions: [{type: Ready, status: 'True'}]}
stored:
  spec: {weight: 10, limits: {cpu: 1000}, disruption: {consolidateAfter: 1m30s, consolidationPolicy: WhenEmptyOrUnderutilized, budgets: [{nodes: 10%}]}, template: {metadata: {labels: {app: x}}, spec: {expireAfter: 720h, nodeClassRef: {group: g, kind: K, name: nc}, requirements: [{key: arch, operator: In, values: [amd64]}, {key: gen, operator: Gt, values: ['2'], minValues: 2}]}}}
  status: {nodes: 0, resources: {nodes: '3', cpu: 12}, conditions: [{type: Ready, status: 'True'}]}
cells: [nc, '3', 'True', 10, '12']
wrong:
- [/spec/template/spec/requirements/0/values, [], must have a value defined]
- [/spec/template/spec/requirements/1/values, [a], Gt and Lt need one number]
- [/spec/template/metadata/labels, {node.x: z}, label domain is restricted]
- [/spec/disruption/budgets, [{nodes: 101%}], should match]
- [/spec/disruption/budgets, [{nodes: '1', schedule: '@daily'}], "'schedule' must be set with 'duration'"]
- [/spec/replicas, 1, replicas and weight are exclusive]
kept: [[/spec/template/spec/nodeClassRef/group, other, nodeClassRef.group is immutable]]
explained: {spec.disruption.consolidateAfter: {pattern: '^(([0-9]+(s|m|h))+|Never)$'}}
---
kind: Machine
names: {shortNames: [ma], categories: [cluster-api]}
version: {subresources: {status: {}}, selectableFields: [{jsonPath: .spec.clusterName}]}
columns: [[Cluster, string, .spec.clusterName], [Node Name, string, .status.nodeRef.name], [Available, string, '.status.conditions[?(@.type=="Available")].status'], [Phase, string, .status.phase], [Internal IP, string, '.status.addresses[?(@.type=="InternalIP")].address']]
spec:
  type: object
  required: [bootstrap, clusterName, infrastructureRef]
  properties:
    clusterName: {type: string, minLength: 1, maxLength: 63}
    bootstrap: {type: object, minProperties: 1, properties: {dataSecretName: {type: string, minLength: 0, maxLength: 253}, configRef: {type: object, required: [apiGroup, kind, name], properties: {apiGroup: {type: string, maxLength: 253, minLength: 1}, kind: {type: string}, name: {type: string}}}}, x-kubernetes-validations: [{rule: '!has(oldSelf.dataSecretName) || has(self.dataSecretName)', message: dataSecretName is required once set}]}
    infrastructureRef: {type: object, required: [apiGroup, kind, name], properties: {apiGroup: {type: string}, kind: {type: string}, name: {type: string}}}
    readinessGates: {type: array, maxItems: 32, minItems: 1, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [conditionType], items: {type: object, required: [conditionType], properties: {conditionType: {type: string, maxLength: 316}, polarity: {type: string, enum: [Positive, Negative]}}}}
status:
  type: object
  minProperties: 1
  properties:
    phase: {type: string, enum: [Pending, Provisioning, Running]}
    nodeRef: {type: object, required: [name], properties: {name: {type: string}}}
    addresses: {type: array, maxItems: 128, x-kubernetes-list-type: atomic, items: {type: object, required: [address, type], properties: {address: {type: string}, type: {type: string, enum: [Hostname, ExternalIP, InternalIP]}}}}
    conditions: {type: array, maxItems: 32, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [type], items: {type: object, required: [type, status], properties: {type: {type: string}, status: {type: string}}}}
object:
  spec: {clusterName: c, bootstrap: {dataSecretName: ''}, infrastructureRef: {apiGroup: x, kind: K, name: nc}, readinessGates: [{conditionType: A}]}
  status: {phase: Running, nodeRef: {name: node}, addresses: [{type: Hostname, address: h}, {type: InternalIP, address: 192.0.2.9}], conditions: [{type: Available, status: 'False'}]}
cells: [c, node, 'False', Running, 192.0.2.9]
wrong:
- [/spec/bootstrap, {}, 'spec.bootstrap in body should have at least 1 properties']
- [/spec/readinessGates, [], 'spec.readinessGates in body should have at least 1 items']
kept: [[/spec/bootstrap, {configRef: {apiGroup: a, kind: b, name: c}}, dataSecretName is required once set]]
---
kind: VerticalPodAutoscaler
names: {shortNames: [vpa]}
version: {subresources: {status: {}}}
columns: [[Mode, string, .spec.updatePolicy.updateMode], [CPU, string, '.status.recommendation.containerRecommendations[0].target.cpu'], [Mem, string, '.status.recommendation.containerRecommendations[0].target.memory'], [Provided, string, ".status.conditions[?(@.type=='RecommendationProvided')].status"]]
root: {required: [spec]}
spec:
  type: object
  required: [targetRef]
  properties:
    targetRef: {type: object, x-kubernetes-map-type: atomic, required: [kind, name], properties: {apiVersion: {type: string}, kind: {type: string}, name: {type: string}}}
    updatePolicy: {type: object, properties: {updateMode: {type: string, enum: ['Off', Initial, Recreate, Auto]}}}
    resourcePolicy: {type: object, properties: {containerPolicies: {type: array, items: {type: object, properties: {containerName: {type: string}, minAllowed: {type: object, additionalProperties: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}}}}}}
status: {type: object, properties: {conditions: {type: array, items: {type: object, required: [status, type], properties: {type: {type: string}, status: {type: string}}}}, recommendation: {type: object, properties: {containerRecommendations: {type: array, items: {type: object, required: [target], properties: {containerName: {type: string}, target: {type: object, additionalProperties: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}}}}}}}}
object:
  spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, updatePolicy: {updateMode: 'Off'}, resourcePolicy: {containerPolicies: [{containerName: '*', minAllowed: {cpu: 1, memory: 50Mi}}]}}
  status: {recommendation: {containerRecommendations: [{target: {cpu: 25m, memory: 262144000}}]}}
cells: ['Off', 25m, '262144000', null]
wrong: [[/spec/resourcePolicy/containerPolicies/0/minAllowed, {cpu: 0.5}, 'must be of type integer,string: "number"']]
---
kind: VolumeSnapshot
names: {shortNames: [vs]}
version: {subresources: {status: {}}}
columns: [[ReadyToUse, boolean, .status.readyToUse], [SourcePVC, string, .spec.source.persistentVolumeClaimName], [RestoreSize, string, .status.restoreSize], [CreationTime, date, .status.creationTime]]
root: {required: [spec]}
spec:
  type: object
  required: [source]
  properties:
    source:
      type: object
      oneOf: [{required: [persistentVolumeClaimName]}, {required: [volumeSnapshotContentName]}]
      properties:
        persistentVolumeClaimName: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: persistentVolumeClaimName is immutable}]}
        volumeSnapshotContentName: {type: string}
      x-kubernetes-validations: [{rule: '!has(oldSelf.persistentVolumeClaimName) || has(self.persistentVolumeClaimName)', message: persistentVolumeClaimName is required once set}]
    volumeSnapshotClassName: {type: string, x-kubernetes-validations: [{rule: 'size(self) > 0', message: volumeSnapshotClassName must not be the empty string when set}]}
status: {type: object, properties: {readyToUse: {type: boolean}, creationTime: {type: string, format: date-time}, restoreSize: {type: string, x-kubernetes-int-or-string: true, pattern: '^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$'}}}
object:
  spec: {source: {persistentVolumeClaimName: data}, volumeSnapshotClassName: fast}
  status: {readyToUse: true, restoreSize: 1Gi}
cells: [true, data, 1Gi, null]
wrong:
- [/spec/source, {}, must validate one and only one schema (oneOf). Found none valid]
- [/spec/volumeSnapshotClassName, '', volumeSnapshotClassName must not be the empty string when set]
kept: [[/spec/source/persistentVolumeClaimName, other, persistentVolumeClaimName is immutable]]
explained: {status.restoreSize: {type: string, x-kubernetes-int-or-string: true}}
---
kind: SparkApplication
names: {shortNames: [sparkapp]}
version: {subresources: {status: {}}}
columns: [[Status, string, .status.applicationState.state], [Attempts, string, .status.executionAttempts], [Pattern, string, ".spec.deps.excludes[?(@ != 'x')]"]]
spec:
  type: object
  required: [sparkVersion]
  properties:
    sparkVersion: {type: string, pattern: '^[^[\]]+$'}
    deps: {type: object, properties: {excludes: {type: array, items: {type: string}}}}
    driver: {type: object, properties: {coreLimit: {type: string, pattern: '\Q.\E|^a{,2}$|^[0-9]+m?$'}, memory: {type: string, pattern: '^[\d&&\w]+[a-z]?$'}, env: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name, container], items: {type: object, required: [name], properties: {name: {type: string}, container: {type: string, default: all}, value: {type: string}}}}}}
status: {type: object, required: [driverInfo], properties: {applicationState: {type: object, required: [state], properties: {state: {type: string}}}, driverInfo: {type: object}, executionAttempts: {type: integer, format: int32}}}
object:
  spec: {sparkVersion: 4.0.0, deps: {excludes: [x, z]}, driver: {coreLimit: 'a{,2}', memory: 5&1g, env: [{name: a, value: b}, {name: a, container: c}]}}
  status: {applicationState: {state: RUNNING}, driverInfo: {}, executionAttempts: 1}
stored:
  spec: {sparkVersion: 4.0.0, deps: {excludes: [x, z]}, driver: {coreLimit: 'a{,2}', memory: 5&1g, env: [{name: a, value: b, container: all}, {name: a, container: c}]}}
cells: [RUNNING, '1', z]
wrong:
- [/spec/sparkVersion, 'a[b', should match]
- [/spec/driver/memory, ٥g, should match]
- [/spec/driver/env, [{name: a}, {name: a, container: all}], 'spec.driver.env[1]: Duplicate value']
"#;
