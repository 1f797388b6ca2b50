//! A corpus of invalid manifests of the kinds beyond Pods and Services: the field, reason and message expected of each.

use podwright::api::{patch, strategy};
use serde_json::Value;

use super::validation::{Case, created, decoded, merged, refused_at_creation, report, unmet, value};

#[rustfmt::skip]
const CREATE: &[Case] = &[
    // StatefulSet
    ("statefulset", "{spec: {selector: ~}}", "spec.selector", "Required", ""),
    ("statefulset", "{spec: {selector: {matchLabels: {a: x}}}}", "spec.template.metadata.labels", "Invalid", "`selector` does not match template `labels`"),
    ("statefulset", "{spec: {podManagementPolicy: X}}", "spec.podManagementPolicy", "Invalid", "must be 'OrderedReady' or 'Parallel'"),
    ("statefulset", "{spec: {updateStrategy: {type: X}}}", "spec.updateStrategy", "Invalid", "must be 'RollingUpdate' or 'OnDelete'"),
    ("statefulset", "{spec: {updateStrategy: {type: OnDelete, rollingUpdate: {partition: 1}}}}", "spec.updateStrategy.rollingUpdate", "Invalid", "only allowed for updateStrategy 'RollingUpdate'"),
    ("statefulset", "{spec: {updateStrategy: {rollingUpdate: {partition: -1}}}}", "spec.updateStrategy.rollingUpdate.partition", "Invalid", "must be greater than or equal to 0"),
    ("statefulset", "{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 0}}}}", "spec.updateStrategy.rollingUpdate.maxUnavailable", "Invalid", "cannot be 0"),
    ("statefulset", "{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 101%}}}}", "spec.updateStrategy.rollingUpdate.maxUnavailable", "Invalid", "must not be greater than 100%"),
    ("statefulset", "{spec: {replicas: -1}}", "spec.replicas", "Invalid", "must be greater than or equal to 0"),
    ("statefulset", "{spec: {minReadySeconds: -1}}", "spec.minReadySeconds", "Invalid", "must be greater than or equal to 0"),
    ("statefulset", "{spec: {ordinals: {start: -1}}}", "spec.ordinals.start", "Invalid", "must be greater than or equal to 0"),
    ("statefulset", "{spec: {persistentVolumeClaimRetentionPolicy: {whenScaled: X}}}", "spec.persistentVolumeClaimRetentionPolicy.whenScaled", "NotSupported", "\"Delete\", \"Retain\""),
    ("statefulset", "{spec: {template: {spec: {restartPolicy: Never}}}}", "spec.template.spec.restartPolicy", "NotSupported", "\"Always\""),
    ("statefulset", "{spec: {template: {spec: {activeDeadlineSeconds: 3}}}}", "spec.template.spec.activeDeadlineSeconds", "Forbidden", "activeDeadlineSeconds in StatefulSet is not Supported"),
    ("statefulset", "{spec: {volumeClaimTemplates: ~}}", "spec.template.spec.containers[0].volumeMounts[0].name", "NotFound", "data"),
    ("statefulset", "{spec: {template: {spec: {containers: [{name: c}]}}}}", "spec.template.spec.containers[0].image", "Required", ""),
    // APIService
    ("apiservice", "{spec: {version: v2}}", "metadata.name", "Invalid", "must be `spec.version+\".\"+spec.group`: \"v2.example.com\""),
    ("apiservice", "{spec: {group: ~}}", "metadata.name", "Invalid", "\"v1.\""),
    ("apiservice", "{spec: {group: ~, version: v2}}", "spec.group", "Required", "only v1 may have an empty group and it better be legacy kube"),
    ("apiservice", "{spec: {group: A_b}}", "spec.group", "Invalid", "a lowercase RFC 1123 subdomain"),
    ("apiservice", "{spec: {version: '1'}}", "spec.version", "Invalid", "a DNS-1035 label"),
    ("apiservice", "{spec: {groupPriorityMinimum: 0}}", "spec.groupPriorityMinimum", "Invalid", "must be positive and less than 20000"),
    ("apiservice", "{spec: {groupPriorityMinimum: 20001}}", "spec.groupPriorityMinimum", "Invalid", "must be positive and less than 20000"),
    ("apiservice", "{spec: {versionPriority: 1001}}", "spec.versionPriority", "Invalid", "must be positive and less than 1000"),
    ("apiservice", "{spec: {service: {name: ~}}}", "spec.service.name", "Required", ""),
    ("apiservice", "{spec: {service: {port: 65536}}}", "spec.service.port", "Invalid", "port is not valid: must be between 1 and 65535, inclusive"),
    ("apiservice", "{spec: {service: ~}}", "spec.insecureSkipTLSVerify", "Invalid", "local APIServices may not have insecureSkipTLSVerify"),
    ("apiservice", "{spec: {service: ~, caBundle: YWJj}}", "spec.caBundle", "Invalid", "\"3 bytes\": local APIServices may not have a caBundle"),
    ("apiservice", "{spec: {caBundle: YWJj}}", "spec.insecureSkipTLSVerify", "Invalid", "may not be true if caBundle is present"),
    ("apiservice", "{spec: {insecureSkipTLSVerify: false, caBundle: YWJj}}", "spec.caBundle", "Invalid", "data does not contain any valid RSA or ECDSA certificates"),
    // DaemonSet
    ("daemonset", "{spec: {selector: {matchLabels: ~}}}", "spec.selector", "Invalid", "empty selector is invalid for daemonset"),
    ("daemonset", "{spec: {updateStrategy: {type: X}}}", "spec.updateStrategy", "NotSupported", "\"OnDelete\", \"RollingUpdate\""),
    ("daemonset", "{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 1}}}}", "spec.updateStrategy.rollingUpdate.maxSurge", "Invalid", "may not be set when maxUnavailable is non-zero"),
    ("daemonset", "{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 0}}}}", "spec.updateStrategy.rollingUpdate.maxUnavailable", "Required", "cannot be 0 when maxSurge is 0"),
    ("daemonset", "{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 1x}}}}", "spec.updateStrategy.rollingUpdate.maxUnavailable", "Invalid", "a valid percent string"),
    ("daemonset", "{spec: {template: {spec: {restartPolicy: OnFailure}}}}", "spec.template.spec.restartPolicy", "NotSupported", "\"Always\""),
    ("daemonset", "{spec: {revisionHistoryLimit: -1}}", "spec.revisionHistoryLimit", "Invalid", "must be greater than or equal to 0"),
    // ControllerRevision
    ("controllerrevision", "{data: ~}", "data", "Required", "data is mandatory"),
    ("controllerrevision", "{revision: -1}", "revision", "Invalid", "must be greater than or equal to 0"),
    // ReplicationController
    ("replicationcontroller", "{spec: {selector: {a: c}}}", "spec.template.metadata.labels", "Invalid", "`selector` does not match template `labels`"),
    ("replicationcontroller", "{spec: {template: ~}}", "spec.template", "Required", ""),
    ("replicationcontroller", "{spec: {template: {spec: {restartPolicy: Never}}}}", "spec.template.spec.restartPolicy", "NotSupported", "\"Always\""),
    ("podtemplate", "{template: {spec: {containers: []}}}", "template.spec.containers", "Required", ""),
    // Job
    ("job", "{spec: {template: {spec: {restartPolicy: ~}}}}", "spec.template.spec.restartPolicy", "Required", "valid values: \"OnFailure\", \"Never\""),
    ("job", "{spec: {template: {spec: {restartPolicy: X}}}}", "spec.template.spec.restartPolicy", "NotSupported", "\"Never\", \"OnFailure\""),
    ("job", "{spec: {parallelism: -1}}", "spec.parallelism", "Invalid", "must be greater than or equal to 0"),
    ("job", "{spec: {completions: -1}}", "spec.completions", "Invalid", "must be greater than or equal to 0"),
    ("job", "{spec: {backoffLimit: -1}}", "spec.backoffLimit", "Invalid", "must be greater than or equal to 0"),
    ("job", "{spec: {ttlSecondsAfterFinished: -1}}", "spec.ttlSecondsAfterFinished", "Invalid", "must be greater than or equal to 0"),
    ("job", "{spec: {activeDeadlineSeconds: -1}}", "spec.activeDeadlineSeconds", "Invalid", "must be greater than or equal to 0"),
    ("job", "{spec: {completionMode: X}}", "spec.completionMode", "NotSupported", "\"Indexed\", \"NonIndexed\""),
    ("job", "{spec: {completionMode: Indexed, parallelism: 1}}", "spec.completions", "Required", "when completion mode is Indexed"),
    ("job", "{spec: {completionMode: Indexed, completions: 1, parallelism: 100001}}", "spec.parallelism", "Invalid", "must be less than or equal to 100000"),
    ("job", "{spec: {backoffLimitPerIndex: 1}}", "spec.backoffLimitPerIndex", "Invalid", "requires indexed completion mode"),
    ("job", "{spec: {completionMode: Indexed, completions: 1, maxFailedIndexes: 1}}", "spec.backoffLimitPerIndex", "Required", "when maxFailedIndexes is specified"),
    ("job", "{spec: {successPolicy: {rules: [{succeededCount: 1}]}}}", "spec.successPolicy", "Invalid", "requires indexed completion mode"),
    ("job", "{spec: {completionMode: Indexed, completions: 1, successPolicy: {rules: [{}]}}}", "spec.successPolicy.rules[0]", "Required", "at least one of succeededCount or succeededIndexes must be specified"),
    ("job", "{spec: {completionMode: Indexed, completions: 1, successPolicy: {rules: []}}}", "spec.successPolicy.rules", "Required", "at least one rules must be specified when the successPolicy is specified"),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededIndexes: invalid-format}]}}}", "spec.successPolicy.rules[0].succeededIndexes", "Invalid", "error parsing succeededIndexes: cannot convert string to integer for index: \"invalid\""),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededIndexes: '0-x'}]}}}", "spec.successPolicy.rules[0].succeededIndexes", "Invalid", "cannot convert string to integer for index: \"x\""),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededIndexes: '7'}]}}}", "spec.successPolicy.rules[0].succeededIndexes", "Invalid", "error parsing succeededIndexes: too large index: \"7\""),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededIndexes: '3-5'}]}}}", "spec.successPolicy.rules[0].succeededIndexes", "Invalid", "too large index: \"5\""),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededIndexes: '0-1-2'}]}}}", "spec.successPolicy.rules[0].succeededIndexes", "Invalid", "the fragment \"0-1-2\" violates the requirement that an index interval can have at most two parts"),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededIndexes: '3,1'}]}}}", "spec.successPolicy.rules[0].succeededIndexes", "Invalid", "non-increasing order, previous: 3, current: 1"),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededIndexes: '0-2,2'}]}}}", "spec.successPolicy.rules[0].succeededIndexes", "Invalid", "non-increasing order, previous: 2, current: 2"),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededIndexes: '2-2'}]}}}", "spec.successPolicy.rules[0].succeededIndexes", "Invalid", "non-increasing order, previous: 2, current: 2"),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededCount: -1}]}}}", "spec.successPolicy.rules[0].succeededCount", "Invalid", "must be greater than or equal to 0"),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededCount: 6}]}}}", "spec.successPolicy.rules[0].succeededCount", "Invalid", "must be less than or equal to 5 (the number of specified completions)"),
    ("job", "{spec: {completionMode: Indexed, completions: 5, successPolicy: {rules: [{succeededCount: 4, succeededIndexes: '0-2'}]}}}", "spec.successPolicy.rules[0].succeededCount", "Invalid", "must be less than or equal to 3 (the number of indexes in the specified succeededIndexes field)"),
    ("job", "{spec: {completionMode: Indexed, completions: 5, backoffLimitPerIndex: 1, maxFailedIndexes: 6}}", "spec.maxFailedIndexes", "Invalid", "must be less than or equal to completions"),
    ("job", "{spec: {completionMode: Indexed, completions: 200000, backoffLimitPerIndex: 1, maxFailedIndexes: 100001}}", "spec.maxFailedIndexes", "Invalid", "must be less than or equal to 100000"),
    ("job", "{spec: {completionMode: Indexed, completions: 100001, backoffLimitPerIndex: 1}}", "spec.maxFailedIndexes", "Required", "must be specified when completions is above 100000"),
    ("job", "{spec: {completionMode: Indexed, completions: 100001, backoffLimitPerIndex: 1, maxFailedIndexes: 10001}}", "spec.maxFailedIndexes", "Invalid", "must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index"),
    ("job", "{spec: {completionMode: Indexed, completions: 100001, backoffLimitPerIndex: 1, maxFailedIndexes: 1, parallelism: 10001}}", "spec.parallelism", "Invalid", "must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index"),
    ("job", "{spec: {podReplacementPolicy: X}}", "spec.podReplacementPolicy", "NotSupported", "\"Failed\", \"TerminatingOrFailed\""),
    ("job", "{spec: {podFailurePolicy: {rules: [{action: X, onExitCodes: {operator: In, values: [1]}}]}}}", "spec.podFailurePolicy.rules[0].action", "NotSupported", "\"Count\", \"FailIndex\", \"FailJob\", \"Ignore\""),
    ("job", "{spec: {podFailurePolicy: {rules: [{action: FailJob}]}}}", "spec.podFailurePolicy.rules[0]", "Invalid", "specifying one of OnExitCodes and OnPodConditions is required"),
    ("job", "{spec: {podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [0]}}]}}}", "spec.podFailurePolicy.rules[0].onExitCodes.values[0]", "Invalid", "must not be 0 for the In operator"),
    ("job", "{spec: {podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [2, 1]}}]}}}", "spec.podFailurePolicy.rules[0].onExitCodes.values", "Invalid", "must be ordered"),
    ("job", "{spec: {podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [1, 1]}}]}}}", "spec.podFailurePolicy.rules[0].onExitCodes.values[1]", "Duplicate", "1"),
    ("job", "{spec: {podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {containerName: x, operator: In, values: [1]}}]}}}", "spec.podFailurePolicy.rules[0].onExitCodes.containerName", "Invalid", "must be one of the container or initContainer names"),
    ("job", "{spec: {podFailurePolicy: {rules: []}, template: {spec: {restartPolicy: OnFailure}}}}", "spec.template.spec.restartPolicy", "Invalid", "only \"Never\" is supported when podFailurePolicy is specified"),
    ("job", "{spec: {selector: {matchLabels: {controller-uid: x}}}}", "spec.selector", "Invalid", "`selector` not auto-generated"),
    ("job", "{spec: {manualSelector: true}}", "spec.selector", "Required", ""),
    ("job", "{spec: {manualSelector: true, selector: {matchLabels: {a: b}}}}", "spec.template.metadata.labels", "Invalid", "`selector` does not match template `labels`"),
    ("job", "{spec: {template: {metadata: {labels: {job-name: x}}}}}", "spec.template.metadata.labels[job-name]", "Invalid", "must be 'a'"),
    ("job", "{spec: {managedBy: x}}", "spec.managedBy", "Invalid", "must be a domain-prefixed path"),
    ("job", "{metadata: {name: a.b}, spec: {completionMode: Indexed, completions: 2}}", "metadata.name", "Invalid", "will not able to create pod with invalid DNS label: a.b-1"),
    // CronJob
    ("cronjob", "{spec: {schedule: ~}}", "spec.schedule", "Required", ""),
    ("cronjob", "{spec: {schedule: '* * * *'}}", "spec.schedule", "Invalid", "expected exactly 5 fields, found 4: [* * * *]"),
    ("cronjob", "{spec: {schedule: '61 * * * *'}}", "spec.schedule", "Invalid", "end of range (61) above maximum (59): 61"),
    ("cronjob", "{spec: {schedule: 'TZ=UTC 0 * * * *'}}", "spec.schedule", "Invalid", "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
    ("cronjob", "{spec: {timeZone: Mars/Olympus}}", "spec.timeZone", "Invalid", "unknown time zone Mars/Olympus"),
    ("cronjob", "{spec: {timeZone: ''}}", "spec.timeZone", "Invalid", "timeZone must be nil or non-empty string"),
    ("cronjob", "{spec: {timeZone: Local}}", "spec.timeZone", "Invalid", "timeZone must be an explicit time zone"),
    ("cronjob", "{spec: {concurrencyPolicy: X}}", "spec.concurrencyPolicy", "NotSupported", "\"Allow\", \"Forbid\", \"Replace\""),
    ("cronjob", "{spec: {startingDeadlineSeconds: -1}}", "spec.startingDeadlineSeconds", "Invalid", "must be greater than or equal to 0"),
    ("cronjob", "{spec: {failedJobsHistoryLimit: -1}}", "spec.failedJobsHistoryLimit", "Invalid", "must be greater than or equal to 0"),
    ("cronjob", "{spec: {jobTemplate: {spec: {selector: {matchLabels: {a: b}}}}}}", "spec.jobTemplate.spec.selector", "Invalid", "`selector` will be auto-generated"),
    ("cronjob", "{spec: {jobTemplate: {spec: {manualSelector: true}}}}", "spec.jobTemplate.spec.manualSelector", "NotSupported", "\"false\", \"nil\""),
    ("cronjob", "{spec: {jobTemplate: {spec: {template: {spec: {restartPolicy: Always}}}}}}", "spec.jobTemplate.spec.template.spec.restartPolicy", "Required", "valid values"),
    ("cronjob", "{metadata: {name: a12345678901234567890123456789012345678901234567890123}}", "metadata.name", "Invalid", "must be no more than 52 characters"),
    // volumes and claims
    ("pvc", "{spec: {accessModes: []}}", "spec.accessModes", "Required", "at least 1 access mode is required"),
    ("pvc", "{spec: {accessModes: [X]}}", "spec.accessModes", "NotSupported", "\"ReadWriteOnce\""),
    ("pvc", "{spec: {accessModes: [ReadWriteOnce, ReadWriteOncePod]}}", "spec.accessModes", "Forbidden", "may not use ReadWriteOncePod with other access modes"),
    ("pvc", "{spec: {resources: ~}}", "spec.resources[storage]", "Required", ""),
    ("pvc", "{spec: {resources: {requests: {storage: 0}}}}", "spec.resources.requests[storage]", "Invalid", "must be greater than zero"),
    ("pvc", "{spec: {volumeMode: X}}", "spec.volumeMode", "NotSupported", "\"Block\", \"Filesystem\""),
    ("pvc", "{spec: {storageClassName: A}}", "spec.storageClassName", "Invalid", "RFC 1123 subdomain"),
    ("pvc", "{spec: {dataSource: {kind: X, name: z}}}", "spec.dataSource", "Invalid", "must be 'PersistentVolumeClaim' when referencing the default apiGroup"),
    ("pv", "{spec: {capacity: ~}}", "spec.capacity", "Required", ""),
    ("pv", "{spec: {capacity: {cpu: 1}}}", "spec.capacity", "NotSupported", "\"storage\""),
    ("pv", "{spec: {capacity: {storage: 0}}}", "spec.capacity[storage]", "Invalid", "must be greater than zero"),
    ("pv", "{spec: {accessModes: []}}", "spec.accessModes", "Required", ""),
    ("pv", "{spec: {hostPath: ~}}", "spec", "Required", "must specify a volume type"),
    ("pv", "{spec: {nfs: {server: a, path: /b}}}", "spec.nfs", "Forbidden", "may not specify more than 1 volume type"),
    ("pv", "{spec: {hostPath: ~, nfs: {server: '', path: b}}}", "spec.nfs.server", "Required", ""),
    ("pv", "{spec: {hostPath: ~, nfs: {server: a, path: b}}}", "spec.nfs.path", "Invalid", "must be an absolute path"),
    ("pv", "{spec: {hostPath: {path: /a/../b}}}", "spec.hostPath.path", "Invalid", "must not contain '..'"),
    ("pv", "{spec: {hostPath: ~, csi: {driver: d, volumeHandle: ''}}}", "spec.csi.volumeHandle", "Required", ""),
    ("pv", "{spec: {hostPath: ~, local: {path: /a}}}", "metadata.annotations", "Required", "Local volume requires node affinity"),
    ("pv", "{spec: {persistentVolumeReclaimPolicy: X}}", "spec.persistentVolumeReclaimPolicy", "NotSupported", "\"Delete\", \"Recycle\", \"Retain\""),
    ("storageclass", "{provisioner: ''}", "provisioner", "Required", ""),
    ("storageclass", "{reclaimPolicy: Recycle}", "reclaimPolicy", "NotSupported", "\"Delete\", \"Retain\""),
    ("storageclass", "{volumeBindingMode: X}", "volumeBindingMode", "NotSupported", "\"Immediate\", \"WaitForFirstConsumer\""),
    ("csidriver", "{spec: {fsGroupPolicy: X}}", "spec.fsGroupPolicy", "NotSupported", "\"File\", \"None\", \"ReadWriteOnceWithFSType\""),
    ("csidriver", "{spec: {volumeLifecycleModes: [X]}}", "spec.volumeLifecycleModes[0]", "NotSupported", "\"Ephemeral\", \"Persistent\""),
    ("csidriver", "{spec: {tokenRequests: [{audience: a, expirationSeconds: 5}]}}", "spec.tokenRequests[0].expirationSeconds", "Invalid", "may not specify a duration less than 10 minutes"),
    ("csinode", "{spec: {drivers: [{name: a, nodeID: ''}]}}", "spec.drivers[0].nodeID", "Required", ""),
    ("csinode", "{spec: {drivers: [{name: a, nodeID: b}, {name: a, nodeID: b}]}}", "spec.drivers[1].name", "Duplicate", "a"),
    ("csistoragecapacity", "{capacity: '-1'}", "capacity", "Invalid", "must be greater than or equal to 0"),
    ("volumeattachment", "{spec: {source: {persistentVolumeName: ~}}}", "spec.source", "Required", "must specify exactly one of inlineVolumeSpec and persistentVolumeName"),
    ("vac", "{parameters: ~}", "parameters", "Required", "must contain at least one key/value pair"),
    // limits, quotas, budgets, autoscalers
    ("limitrange", "{spec: {limits: [{type: Container}, {type: Container}]}}", "spec.limits[1].type", "Duplicate", "Container"),
    ("limitrange", "{spec: {limits: [{type: Container, min: {cpu: 3}, max: {cpu: 2}}]}}", "spec.limits[0].min[cpu]", "Invalid", "min value 3 is greater than max value 2"),
    ("limitrange", "{spec: {limits: [{type: Container, default: {cpu: 3}, max: {cpu: 2}}]}}", "spec.limits[0].default[cpu]", "Invalid", "default value 3 is greater than max value 2"),
    ("limitrange", "{spec: {limits: [{type: Pod, default: {cpu: 3}}]}}", "spec.limits[0].default", "Forbidden", "may not be specified when `type` is 'Pod'"),
    ("limitrange", "{spec: {limits: [{type: PersistentVolumeClaim}]}}", "spec.limits[0].limits", "Required", "either minimum or maximum storage value is required"),
    ("limitrange", "{spec: {limits: [{type: Container, maxLimitRequestRatio: {cpu: 500m}}]}}", "spec.limits[0].maxLimitRequestRatio[cpu]", "Invalid", "ratio 500m is less than 1"),
    ("limitrange", "{spec: {limits: [{type: Container, min: {cpu: 1}, max: {cpu: 2}, maxLimitRequestRatio: {cpu: 3}}]}}", "spec.limits[0].maxLimitRequestRatio[cpu]", "Invalid", "ratio 3 is greater than max/min = 2.000000"),
    ("limitrange", "{spec: {limits: [{type: Container, default: {a.com/gpu: 2}, defaultRequest: {a.com/gpu: 1}}]}}", "spec.limits[0].defaultRequest[a.com/gpu]", "Invalid", "default value 2 must equal to defaultRequest value 1 in a.com/gpu"),
    ("quota", "{spec: {hard: {apples: 1}}}", "spec.hard[apples]", "Invalid", "must be a standard resource for quota"),
    ("quota", "{spec: {hard: {pods: -1}}}", "spec.hard[pods]", "Invalid", "must be greater than or equal to 0"),
    ("quota", "{spec: {scopes: [X]}}", "spec.scopes", "Invalid", "unsupported scope"),
    ("quota", "{spec: {scopes: [BestEffort, NotBestEffort]}}", "spec.scopes", "Invalid", "conflicting scopes"),
    ("quota", "{spec: {hard: {cpu: 1}, scopes: [BestEffort]}}", "spec.scopes", "Invalid", "unsupported scope applied to resource"),
    ("quota", "{spec: {hard: {services: 1}, scopes: [Terminating]}}", "spec.scopes", "Invalid", "unsupported scope applied to resource"),
    ("quota", "{spec: {hard: {secrets: 1}, scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: Exists}]}}}", "spec.scopeSelector.matchExpressions[0]", "Invalid", "unsupported scope applied to resource"),
    ("quota", "{spec: {scopeSelector: {matchExpressions: [{scopeName: BestEffort, operator: DoesNotExist}]}}}", "spec.scopeSelector.matchExpressions[0].operator", "Invalid", "must be 'Exist' when scope is any of"),
    ("quota", "{spec: {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In}]}}}", "spec.scopeSelector.matchExpressions[0].values", "Required", "must be at least one value"),
    ("pdb", "{spec: {maxUnavailable: 1}}", "spec", "Invalid", "minAvailable and maxUnavailable cannot be both set"),
    ("pdb", "{spec: {minAvailable: 101%}}", "spec.minAvailable", "Invalid", "must not be greater than 100%"),
    ("pdb", "{spec: {minAvailable: -1}}", "spec.minAvailable", "Invalid", "must be greater than or equal to 0"),
    ("pdb", "{spec: {unhealthyPodEvictionPolicy: X}}", "spec.unhealthyPodEvictionPolicy", "NotSupported", "\"AlwaysAllow\", \"IfHealthyBudget\""),
    ("hpa", "{spec: {maxReplicas: 0}}", "spec.maxReplicas", "Invalid", "must be greater than 0"),
    ("hpa", "{spec: {minReplicas: 0}}", "spec.minReplicas", "Invalid", "must be greater than or equal to 1"),
    ("hpa", "{spec: {minReplicas: 6}}", "spec.maxReplicas", "Invalid", "must be greater than or equal to `minReplicas`"),
    ("hpa", "{spec: {scaleTargetRef: {kind: ''}}}", "spec.scaleTargetRef.kind", "Required", ""),
    ("hpa", "{spec: {metrics: [{type: X}]}}", "spec.metrics[0].type", "NotSupported", "\"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\""),
    ("hpa", "{spec: {metrics: [{type: Resource}]}}", "spec.metrics[0].resource", "Required", "must populate information for the given metric source"),
    ("hpa", "{spec: {metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization}}}]}}", "spec.metrics[0].resource.target.averageUtilization", "Required", "must set either a target raw value or a target utilization"),
    ("hpa", "{spec: {metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 0}}}]}}", "spec.metrics[0].resource.target.averageUtilization", "Invalid", "must be greater than 0"),
    ("hpa", "{spec: {metrics: [{type: Pods, pods: {metric: {name: m}, target: {type: Value, value: 1}}}]}}", "spec.metrics[0].pods.target.averageValue", "Required", "must specify a positive target averageValue"),
    ("hpa", "{spec: {behavior: {scaleUp: {stabilizationWindowSeconds: 4000}}}}", "spec.behavior.scaleUp.stabilizationWindowSeconds", "Invalid", "must be less than or equal to 3600"),
    ("hpa", "{spec: {behavior: {scaleDown: {policies: [{type: Pods, value: 0, periodSeconds: 1}]}}}}", "spec.behavior.scaleDown.policies[0].value", "Invalid", "must be greater than zero"),
    ("hpa", "{spec: {behavior: {scaleUp: {tolerance: '-0.1'}}}}", "spec.behavior.scaleUp.tolerance", "Invalid", "must be greater or equal to zero"),
    ("hpa", "{spec: {minReplicas: 0, metrics: [{type: External, external: {metric: {name: m}, target: {type: Value, value: 1}}}]}}", "spec.minReplicas", "Invalid", "must be greater than or equal to 1"),
    ("hpa.v1", "{spec: {targetCPUUtilizationPercentage: 0}}", "spec.metrics[0].resource.target.averageUtilization", "Invalid", "must be greater than 0"),
    ("priorityclass", "{value: 1000000001}", "value", "Forbidden", "maximum allowed value of a user defined priority is 1000000000"),
    ("priorityclass", "{metadata: {name: system-x}}", "metadata.name", "Forbidden", "reserved for system use only"),
    ("priorityclass", "{preemptionPolicy: X}", "preemptionPolicy", "NotSupported", "\"Never\", \"PreemptLowerPriority\""),
    // rbac
    ("role", "{rules: [{verbs: [], apiGroups: [''], resources: [pods]}]}", "rules[0].verbs", "Required", "verbs must contain at least one value"),
    ("role", "{rules: [{verbs: [get], nonResourceURLs: [/x]}]}", "rules[0].nonResourceURLs", "Invalid", "namespaced rules cannot apply to non-resource URLs"),
    ("role", "{rules: [{verbs: [get], resources: [pods]}]}", "rules[0].apiGroups", "Required", "resource rules must supply at least one api group"),
    ("role", "{rules: [{verbs: [get], apiGroups: ['']}]}", "rules[0].resources", "Required", "resource rules must supply at least one resource"),
    ("role", "{metadata: {name: a/b}}", "metadata.name", "Invalid", "may not contain '/'"),
    ("clusterrole", "{rules: [{verbs: [get], nonResourceURLs: [/x], resources: [pods]}]}", "rules[0].nonResourceURLs", "Invalid", "rules cannot apply to both regular resources and non-resource URLs"),
    ("clusterrole", "{aggregationRule: {}}", "aggregationRule.clusterRoleSelectors", "Required", "at least one clusterRoleSelector required"),
    ("rolebinding", "{roleRef: {kind: X}}", "roleRef.kind", "NotSupported", "\"ClusterRole\", \"Role\""),
    ("rolebinding", "{roleRef: {name: ''}}", "roleRef.name", "Required", ""),
    ("rolebinding", "{roleRef: {apiGroup: x}}", "roleRef.apiGroup", "NotSupported", "\"rbac.authorization.k8s.io\""),
    ("rolebinding", "{subjects: [{kind: X, name: a}]}", "subjects[0].kind", "NotSupported", "\"Group\", \"ServiceAccount\", \"User\""),
    ("rolebinding", "{subjects: [{kind: User, name: ''}]}", "subjects[0].name", "Required", ""),
    ("rolebinding", "{subjects: [{kind: ServiceAccount, apiGroup: x, name: a}]}", "subjects[0].apiGroup", "NotSupported", "\"\""),
    ("clusterrolebinding", "{roleRef: {kind: Role}}", "roleRef.kind", "NotSupported", "\"ClusterRole\""),
    ("clusterrolebinding", "{subjects: [{kind: ServiceAccount, name: a}]}", "subjects[0].namespace", "Required", ""),
    // networking
    ("ingress", "{spec: {rules: ~}}", "spec", "Invalid", "either `defaultBackend` or `rules` must be specified"),
    ("ingress", "{spec: {rules: [{host: 10.0.0.1}]}}", "spec.rules[0].host", "Invalid", "must be a DNS name, not an IP address"),
    ("ingress", "{spec: {rules: [{host: '*x'}]}}", "spec.rules[0].host", "Invalid", "a wildcard DNS-1123 subdomain must start with '*.'"),
    ("ingress", "{spec: {rules: [{http: {paths: []}}]}}", "spec.rules[0].http.paths", "Required", ""),
    ("ingress", "{spec: {rules: [{http: {paths: [{path: a, pathType: Prefix, backend: {service: {name: s, port: {number: 1}}}}]}}]}}", "spec.rules[0].http.paths[0].path", "Invalid", "must be an absolute path"),
    ("ingress", "{spec: {rules: [{http: {paths: [{path: /a//b, pathType: Exact, backend: {service: {name: s, port: {number: 1}}}}]}}]}}", "spec.rules[0].http.paths[0].path", "Invalid", "must not contain '//'"),
    ("ingress", "{spec: {rules: [{http: {paths: [{path: /, backend: {service: {name: s, port: {number: 1}}}}]}}]}}", "spec.rules[0].http.paths[0].pathType", "Required", "pathType must be specified"),
    ("ingress", "{spec: {rules: [{http: {paths: [{path: /, pathType: X, backend: {service: {name: s, port: {number: 1}}}}]}}]}}", "spec.rules[0].http.paths[0].pathType", "NotSupported", "\"Exact\", \"ImplementationSpecific\", \"Prefix\""),
    ("ingress", "{spec: {defaultBackend: {service: {name: s}}}}", "spec.defaultBackend.service.port", "Required", "port name or number is required"),
    ("ingress", "{spec: {defaultBackend: {service: {name: s, port: {name: a, number: 1}}}}}", "spec.defaultBackend.service.port", "Invalid", "cannot set both port name & port number"),
    ("ingress", "{spec: {defaultBackend: {}}}", "spec.defaultBackend", "Required", "resource or service backend is required"),
    ("ingress", "{spec: {tls: [{hosts: [A]}]}}", "spec.tls[0].hosts[0]", "Invalid", "RFC 1123 subdomain"),
    ("ingress", "{metadata: {annotations: {kubernetes.io/ingress.class: a}}, spec: {ingressClassName: b}}", "metadata.annotations.kubernetes.io/ingress.class", "Invalid", "can not be set when the class field is also set"),
    ("ingressclass", "{spec: {controller: ''}}", "spec.controller", "Required", ""),
    ("ingressclass", "{spec: {controller: x}}", "spec.controller", "Invalid", "must be a domain-prefixed path"),
    ("ingressclass", "{spec: {parameters: {kind: a, name: b, scope: Namespace}}}", "spec.parameters.namespace", "Required", "`parameters.scope` is set to 'Namespace'"),
    ("networkpolicy", "{spec: {policyTypes: [X]}}", "spec.policyTypes[0]", "NotSupported", "\"Egress\", \"Ingress\""),
    ("networkpolicy", "{spec: {policyTypes: [Ingress, Egress, Egress]}}", "spec.policyTypes", "Invalid", "may not specify more than two policyTypes"),
    ("networkpolicy", "{spec: {ingress: [{from: [{}]}]}}", "spec.ingress[0].from[0]", "Required", "must specify a peer"),
    ("networkpolicy", "{spec: {ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]}}", "spec.ingress[0].from[0]", "Forbidden", "may not specify both ipBlock and another peer"),
    ("networkpolicy", "{spec: {ingress: [{from: [{ipBlock: {cidr: x}}]}]}}", "spec.ingress[0].from[0].ipBlock.cidr", "Invalid", "must be a valid CIDR value"),
    ("networkpolicy", "{spec: {ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]}}", "spec.ingress[0].from[0].ipBlock.except[0]", "Invalid", "must be a strict subset of `cidr`"),
    ("networkpolicy", "{spec: {egress: [{ports: [{port: 80, endPort: 79}]}]}}", "spec.egress[0].ports[0].endPort", "Invalid", "must be greater than or equal to `port`"),
    ("networkpolicy", "{spec: {egress: [{ports: [{port: 0}]}]}}", "spec.egress[0].ports[0].port", "Invalid", "must be between 1 and 65535"),
    ("networkpolicy", "{spec: {egress: [{ports: [{endPort: 79}]}]}}", "spec.egress[0].ports[0].port", "Required", "must be specified when endPort is set"),
    ("networkpolicy", "{spec: {egress: [{ports: [{port: 1, protocol: X}]}]}}", "spec.egress[0].ports[0].protocol", "NotSupported", "\"SCTP\", \"TCP\", \"UDP\""),
    ("servicecidr", "{spec: {cidrs: []}}", "spec.cidrs", "Required", "at least one CIDR required"),
    ("servicecidr", "{spec: {cidrs: [10.0.0.1/16]}}", "spec.cidrs[0]", "Invalid", "must not have bits set beyond the prefix length"),
    ("servicecidr", "{spec: {cidrs: [10.0.0.0/16, 10.1.0.0/16]}}", "spec.cidrs", "Invalid", "may specify no more than one IP for each IP family"),
    ("ipaddress", "{metadata: {name: x}}", "metadata.name", "Invalid", "must be a valid IP address"),
    ("ipaddress", "{metadata: {name: '2001:db8:0::1'}}", "metadata.name", "Invalid", "must be in canonical form (\"2001:db8::1\")"),
    ("ipaddress", "{spec: {parentRef: ~}}", "spec.parentRef", "Required", ""),
    ("endpoints", "{subsets: [{ports: [{port: 1}]}]}", "subsets[0]", "Required", "must specify `addresses` or `notReadyAddresses`"),
    ("endpoints", "{subsets: [{addresses: [{ip: 127.0.0.1}]}]}", "subsets[0].addresses[0].ip", "Invalid", "may not be in the loopback range"),
    ("endpoints", "{subsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 1}, {port: 2}]}]}", "subsets[0].ports[0].name", "Required", ""),
    // admission and extension
    ("validatingwebhook", "{webhooks: [{name: a.b, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://a'}}]}", "webhooks[0].name", "Invalid", "should be a domain with at least three segments separated by dots"),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], clientConfig: {url: 'https://a'}}]}", "webhooks[0].sideEffects", "Required", "must specify one of None, NoneOnDryRun"),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: Some, admissionReviewVersions: [v1], clientConfig: {url: 'https://a'}}]}", "webhooks[0].sideEffects", "NotSupported", "\"None\", \"NoneOnDryRun\""),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, admissionReviewVersions: [], clientConfig: {url: 'https://a'}}]}", "webhooks[0].admissionReviewVersions", "Required", "must specify one of v1, v1beta1"),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {}}]}", "webhooks[0].clientConfig", "Required", "exactly one of url or service is required"),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'http://a'}}]}", "webhooks[0].clientConfig.url", "Invalid", "'https' is the only allowed URL scheme"),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {service: {name: s}}}]}", "webhooks[0].clientConfig.service.namespace", "Required", "service namespace is required"),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, timeoutSeconds: 31, admissionReviewVersions: [v1], clientConfig: {url: 'https://a'}}]}", "webhooks[0].timeoutSeconds", "Invalid", "the timeout value must be between 1 and 30 seconds"),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, failurePolicy: X, admissionReviewVersions: [v1], clientConfig: {url: 'https://a'}}]}", "webhooks[0].failurePolicy", "NotSupported", "\"Fail\", \"Ignore\""),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://a'}, rules: [{operations: ['*', CREATE], apiGroups: [''], apiVersions: [v1], resources: [pods]}]}]}", "webhooks[0].rules[0].operations", "Invalid", "if '*' is present, must not specify other operations"),
    ("validatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://a'}, rules: [{operations: [GET], apiGroups: [''], apiVersions: [v1], resources: [pods]}]}]}", "webhooks[0].rules[0].operations[0]", "NotSupported", "\"CREATE\""),
    ("mutatingwebhook", "{webhooks: [{name: a.b.c, sideEffects: None, reinvocationPolicy: X, admissionReviewVersions: [v1], clientConfig: {url: 'https://a'}}]}", "webhooks[0].reinvocationPolicy", "NotSupported", "\"IfNeeded\", \"Never\""),
    ("vap", "{spec: {validations: ~}}", "spec.validations", "Required", "validations or auditAnnotations must be specified"),
    ("vap", "{spec: {matchConstraints: ~}}", "spec.matchConstraints", "Required", ""),
    ("vap", "{spec: {failurePolicy: X}}", "spec.failurePolicy", "NotSupported", "\"Fail\", \"Ignore\""),
    ("vap", "{spec: {validations: [{expression: ''}]}}", "spec.validations[0].expression", "Required", "expression is not specified"),
    ("vap", "{spec: {validations: [{expression: x, reason: X}]}}", "spec.validations[0].reason", "NotSupported", "\"Forbidden\", \"Invalid\", \"RequestEntityTooLarge\", \"Unauthorized\""),
    ("vap", "{spec: {variables: [{name: a-b, expression: x}]}}", "spec.variables[0].name", "Invalid", "name is not a valid CEL identifier"),
    ("vapb", "{spec: {validationActions: []}}", "spec.validationActions", "Required", "at least one validation action is required"),
    ("vapb", "{spec: {validationActions: [Deny, Warn]}}", "spec.validationActions", "Invalid", "must not contain both Deny and Warn"),
    ("vapb", "{spec: {paramRef: {name: a}}}", "spec.paramRef.parameterNotFoundAction", "Required", ""),
    ("vapb", "{spec: {policyName: ''}}", "spec.policyName", "Required", ""),
    ("crd", "{metadata: {name: x.example.com}}", "metadata.name", "Invalid", "must be spec.names.plural+\".\"+spec.group"),
    ("crd", "{spec: {scope: X}}", "spec.scope", "NotSupported", "\"Cluster\", \"Namespaced\""),
    ("crd", "{spec: {versions: [{name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}]}}", "spec.versions", "Invalid", "must have exactly one version marked as storage version"),
    ("crd", "{spec: {versions: [{name: v1, served: true, storage: true}]}}", "spec.versions[0].schema.openAPIV3Schema", "Required", "Required value"),
    ("crd", "{spec: {versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: string}}}]}}", "spec.versions[0].schema.openAPIV3Schema.type", "Invalid", "must be object at the root"),
    ("crd", "{spec: {conversion: {strategy: Webhook}}}", "spec.conversion.webhook.clientConfig", "Required", "required when strategy is set to Webhook"),
    ("crd", "{spec: {names: {kind: ''}}}", "spec.names.kind", "Required", ""),
    // the rest
    ("runtimeclass", "{handler: A}", "handler", "Invalid", "RFC 1123 label"),
    ("csr", "{spec: {signerName: x}}", "spec.signerName", "Invalid", "must be a fully qualified domain and path of the form 'example.com/signer-name'"),
    ("csr", "{spec: {usages: []}}", "spec.usages", "Required", "usages must not be empty"),
    ("csr", "{spec: {usages: [x]}}", "spec.usages[0]", "NotSupported", "\"client auth\""),
    ("csr", "{spec: {expirationSeconds: 5}}", "spec.expirationSeconds", "Invalid", "may not specify a duration less than 600 seconds (10 minutes)"),
    ("csr", "{spec: {request: YQ==}}", "spec.request", "Invalid", "PEM block type must be CERTIFICATE REQUEST"),
    ("flowschema", "{spec: {matchingPrecedence: 10001}}", "spec.matchingPrecedence", "Invalid", "must not be greater than 10000"),
    ("flowschema", "{spec: {priorityLevelConfiguration: ~}}", "spec.priorityLevelConfiguration.name", "Required", "must reference a priority level"),
    ("flowschema", "{spec: {rules: [{subjects: []}]}}", "spec.rules[0].subjects", "Required", "subjects must contain at least one value"),
    ("flowschema", "{spec: {rules: [{subjects: [{kind: X}]}]}}", "spec.rules[0].subjects[0].kind", "NotSupported", "\"Group\", \"ServiceAccount\", \"User\""),
    ("prioritylevel", "{spec: {type: X}}", "spec.type", "NotSupported", "\"Exempt\", \"Limited\""),
    ("prioritylevel", "{spec: {limited: ~}}", "spec.limited", "Required", "must not be empty when type is Limited"),
    ("prioritylevel", "{spec: {limited: {limitResponse: {queuing: {handSize: 100}}}}}", "spec.limited.limitResponse.queuing.handSize", "Invalid", "should not be greater than queues (64)"),
    ("resourceclaim", "{spec: {devices: {requests: [{name: r}]}}}", "spec.devices.requests[0]", "Required", "exactly one of `exactly` or `firstAvailable` is required"),
    ("resourceclaim", "{spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ''}}]}}}", "spec.devices.requests[0].exactly.deviceClassName", "Required", ""),
    ("resourceclaim", "{spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c, allocationMode: X}}]}}}", "spec.devices.requests[0].exactly.allocationMode", "NotSupported", "\"All\", \"ExactCount\""),
    ("resourceclaimtemplate", "{spec: {spec: {devices: {requests: [{name: R, exactly: {deviceClassName: c}}]}}}}", "spec.spec.devices.requests[0].name", "Invalid", "RFC 1123 label"),
    ("resourceslice", "{spec: {nodeName: ~}}", "spec", "Required", "exactly one of `nodeName`"),
    ("resourceslice", "{spec: {pool: {resourceSliceCount: 0}}}", "spec.pool.resourceSliceCount", "Invalid", "must be greater than zero"),
    ("deviceclass", "{spec: {selectors: [{}]}}", "spec.selectors[0].cel", "Required", ""),
    ("event.events", "{reportingController: ''}", "reportingController", "Required", ""),
];

#[test]
fn what_may_not_be_created() {
    refused_at_creation(CREATE);
}

#[rustfmt::skip]
const UPDATE: &[Case] = &[
    ("statefulset", "{spec: {serviceName: b}}", "spec", "Forbidden", "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy'"),
    ("statefulset", "{spec: {volumeClaimTemplates: ~}}", "spec", "Forbidden", "updates to statefulset spec"),
    ("daemonset", "{spec: {selector: {matchLabels: {c: d}}, template: {metadata: {labels: {c: d}}}}}", "spec.selector", "Invalid", "field is immutable"),
    ("controllerrevision", "{data: {x: z}}", "data", "Invalid", "field is immutable"),
    ("job", "{spec: {completions: 2}}", "spec.completions", "Invalid", "field is immutable"),
    ("job", "{spec: {completionMode: Indexed, completions: 1}}", "spec.completionMode", "Invalid", "field is immutable"),
    ("job", "{spec: {template: {spec: {containers: [{name: c, image: other}]}}}}", "spec.template", "Invalid", "field is immutable"),
    ("pvc", "{spec: {accessModes: [ReadWriteMany]}}", "spec", "Forbidden", "spec is immutable after creation except resources.requests"),
    ("pv", "{spec: {hostPath: {path: /other}}}", "spec.persistentvolumesource", "Forbidden", "spec.persistentvolumesource is immutable after creation"),
    ("pv", "{spec: {volumeMode: Block}}", "spec.volumeMode", "Invalid", "field is immutable"),
    ("storageclass", "{provisioner: other}", "provisioner", "Forbidden", "updates to provisioner are forbidden."),
    ("storageclass", "{parameters: {a: b}}", "parameters", "Forbidden", "updates to parameters are forbidden."),
    ("storageclass", "{volumeBindingMode: WaitForFirstConsumer}", "volumeBindingMode", "Invalid", "field is immutable"),
    ("csidriver", "{spec: {attachRequired: false}}", "spec.attachRequired", "Invalid", "field is immutable"),
    ("csinode", "{spec: {drivers: [{name: a.example.com, nodeID: m}]}}", "spec.drivers[0].nodeID", "Invalid", "field is immutable"),
    ("volumeattachment", "{spec: {nodeName: m}}", "spec", "Invalid", "field is immutable"),
    ("vac", "{parameters: {a: c}}", "parameters", "Forbidden", "updates to parameters are forbidden."),
    ("priorityclass", "{value: 11}", "value", "Forbidden", "may not be changed in an update."),
    ("runtimeclass", "{handler: i}", "handler", "Invalid", "field is immutable"),
    ("quota", "{spec: {scopes: [BestEffort]}}", "spec.scopes", "Invalid", "field is immutable"),
    ("rolebinding", "{roleRef: {name: b}}", "roleRef", "Invalid", "cannot change roleRef"),
    ("ingressclass", "{spec: {controller: example.com/d}}", "spec.controller", "Invalid", "field is immutable"),
    ("servicecidr", "{spec: {cidrs: [10.1.0.0/16]}}", "spec.cidrs", "Invalid", "field is immutable"),
    ("ipaddress", "{spec: {parentRef: {name: t}}}", "spec.parentRef", "Invalid", "field is immutable"),
    ("crd", "{spec: {scope: Cluster}}", "spec.scope", "Invalid", "field is immutable"),
    ("crd", "{spec: {versions: [{name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}", "status.storedVersions[0]", "Invalid", "v1 was previously a storage version"),
    ("resourceclaim", "{spec: {devices: {requests: [{name: s, exactly: {deviceClassName: c}}]}}}", "spec", "Invalid", "field is immutable"),
];

#[test]
fn what_may_not_be_changed() {
    let mut wrong = Vec::new();
    for (base, change, field, reason, words) in UPDATE {
        let (kind, mut old) = created(base, "{}");
        old.set_meta("uid", Value::from("u"));
        let mut new = old.clone();
        new.0 = patch::merge(&new.0, &value(change));
        let (mut new, _) = kind.decode(new.0, Default::default()).unwrap_or_else(|e| panic!("{base} {change}: {e}"));
        strategy::prepare_update(kind, &mut new, &old);
        let outcome = strategy::validate_update(kind, &new, &old);
        wrong.extend(unmet(outcome, &format!("{base} {change}"), field, reason, words));
    }
    report(wrong);
}

#[test]
fn success_policies_that_can_be_met_are_valid() {
    let job = |rule: &str| {
        let spec = format!("{{completionMode: Indexed, completions: 5, successPolicy: {{rules: [{{{rule}}}]}}}}");
        created("job", &format!("{{spec: {spec}}}"))
    };
    for rule in [
        "succeededIndexes: '0'",
        "succeededIndexes: '0-2,4'",
        "succeededIndexes: '1,2,4', succeededCount: 3",
        "succeededIndexes: ''",
        "succeededCount: 5",
    ] {
        let (kind, object) = job(rule);
        strategy::validate_create(kind, &object).unwrap_or_else(|e| panic!("{rule}: {e}"));
    }
    let (kind, object) = job(&format!("succeededIndexes: '{}0'", "0".repeat(64 * 1024)));
    let field = "spec.successPolicy.rules[0].succeededIndexes";
    report(unmet(strategy::validate_create(kind, &object), "long", field, "TooLong", "65536").into_iter().collect());
}

#[rustfmt::skip]
const STATUS: &[Case] = &[
    ("statefulset", "{status: {replicas: 1, readyReplicas: 2}}", "status.readyReplicas", "Invalid", "cannot be greater than status.replicas"),
    ("daemonset", "{status: {currentNumberScheduled: -1, desiredNumberScheduled: 0, numberMisscheduled: 0, numberReady: 0}}", "status.currentNumberScheduled", "Invalid", "must be greater than or equal to 0"),
    ("job", "{status: {active: -1}}", "status.active", "Invalid", "must be greater than or equal to 0"),
    ("job", "{status: {completionTime: '2026-01-01T00:00:00Z'}}", "status.completionTime", "Invalid", "cannot set completionTime when there is no Complete=True condition"),
    ("job", "{status: {conditions: [{type: Complete, status: 'True'}, {type: Failed, status: 'True'}]}}", "status.conditions", "Invalid", "cannot set Complete=True and Failed=true conditions"),
    ("pdb", "{status: {disruptionsAllowed: -1}}", "status.disruptionsAllowed", "Invalid", "must be greater than or equal to 0"),
    ("csr", "{status: {conditions: [{type: Approved, status: 'True'}, {type: Denied, status: 'True'}]}}", "status.conditions", "Invalid", "Approved and Denied conditions are mutually exclusive"),
    ("hpa", "{status: {currentReplicas: -1, desiredReplicas: 0}}", "status.currentReplicas", "Invalid", "must be greater than or equal to 0"),
];

#[test]
fn what_no_status_may_say() {
    let mut wrong = Vec::new();
    for (base, change, field, reason, words) in STATUS {
        let (kind, old) = created(base, "{}");
        let (_, mut new) = decoded(merged(base, change));
        strategy::prepare_status_update(kind, &mut new, &old);
        let outcome = strategy::validate_status_update(kind, &new, &old);
        wrong.extend(unmet(outcome, &format!("{base} {change}"), field, reason, words));
    }
    report(wrong);
}
