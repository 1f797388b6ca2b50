//! Our own `describe` beside kubectl's: identical pages.

use std::time::Duration;

use super::{Cluster, TIMEOUT};
use crate::support::eventually;

/// What the manifests do not include.
const MORE: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk, labels: {tier: fast}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce, ReadOnlyMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: manual
  local: {path: /mnt/disk}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: kubernetes.io/hostname, operator: In, values: [a, b]}
        - {key: disk, operator: Exists}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: driven}
spec:
  capacity: {storage: 2Gi}
  accessModes: [ReadWriteMany]
  volumeMode: Block
  csi: {driver: d.example.com, volumeHandle: h, volumeAttributes: {b: '2', a: '1'}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: host}
spec: {capacity: {storage: 2Gi}, accessModes: [ReadWriteMany], hostPath: {path: /tmp}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared}
spec: {capacity: {storage: 2Gi}, accessModes: [ReadWriteMany], nfs: {server: s, path: /p}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: mine, annotations: {a: b}}
spec: {storageClassName: manual, accessModes: [ReadWriteOnce], resources: {requests: {storage: 500Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: waiting}
spec:
  storageClassName: other
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 5Gi}}
  dataSource: {kind: PersistentVolumeClaim, name: mine}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  containers: [{name: c, image: 'i:1'}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: mine}}
  - {name: inline, csi: {driver: d.example.com, readOnly: true}}
  - {name: several, projected: {sources: [{secret: {name: s}}, {secret: {name: t, optional: true}}, {configMap: {name: m, optional: true}}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  updateStrategy: {rollingUpdate: {partition: 1}}
  template:
    metadata: {labels: {app: db}, annotations: {note: it}}
    spec: {containers: [{name: c, image: 'i:1'}], nodeSelector: {disk: fast}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: manual, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: many}
spec:
  completions: 3
  completionMode: Indexed
  activeDeadlineSeconds: 300
  ttlSecondsAfterFinished: 60
  suspend: true
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'i:1'}]}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: often, labels: {app: often}}
spec:
  schedule: '*/5 * * * *'
  timeZone: Europe/Berlin
  suspend: true
  startingDeadlineSeconds: 20
  jobTemplate: {spec: {activeDeadlineSeconds: 9, template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'i:1'}]}}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: least}
spec: {minAvailable: 50%, selector: {matchLabels: {app: db}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hand-made}
addressType: IPv4
ports: [{name: web, port: 80}, {port: 443}]
endpoints:
- addresses: [10.0.0.1]
  hostname: one
  nodeName: node-a
  zone: zone-a
  conditions: {ready: false}
  targetRef: {kind: Pod, name: user}
- addresses: [10.0.0.2]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: nothing}
addressType: IPv4
endpoints: []
";

const MANIFESTS: [&str; 4] = ["daemon-set.yaml", "disruption-budget.yaml", "cron-job.yaml", "job.yaml"];

#[test]
fn our_pages_are_kubectls() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.node.apply(MORE);
    for manifest in MANIFESTS {
        let path = format!("{}/manifests/{manifest}", env!("CARGO_MANIFEST_DIR"));
        cluster.node.ok(&["apply", "-f", &path]);
    }
    cluster.node.wait("jsonpath={.status.phase}=Bound", &["pvc/mine"], TIMEOUT);
    let kinds =
        ["statefulset", "daemonset", "job", "cronjob", "endpointslice", "replicaset", "pdb", "pv", "pvc", "pod"];
    for kind in kinds {
        // Controllers keep writing for a while.
        eventually(&format!("the pages of {kind} are the same"), Duration::from_secs(20), || {
            let theirs = cluster.says(&format!("kubectl describe {kind} -A --show-events=false"));
            let ours = cluster.node.ok(&["describe", kind, "-A", "--show-events=false"]);
            let differ = |(ours, theirs): &(&str, &str)| ours != theirs;
            match ours.lines().zip(theirs.lines()).find(differ) {
                None if ours.lines().count() == theirs.lines().count() && ours.contains("Name:") => Ok(()),
                found => Err(format!("{found:?}\n--- ours:\n{ours}\n--- kubectl's:\n{theirs}")),
            }
        });
    }
}
