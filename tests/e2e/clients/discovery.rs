//! Discovery with `kube`: every group and kind that is GA upstream, custom ones, and whether everything discovered is served.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Discovery,
    core::{DynamicObject, GroupVersionKind},
    discovery::{self, Scope, verbs},
    runtime::watcher,
};

use super::{Cluster, board};

/// Groups and their required kinds, in upstream's GA version.
const KINDS: &[(&str, &str, &[&str])] = &[
    ("", "v1", &["Pod", "Service", "Node", "Namespace", "ConfigMap", "Secret", "ServiceAccount", "ResourceQuota"]),
    ("", "v1", &["PersistentVolume", "PersistentVolumeClaim", "LimitRange", "ReplicationController", "PodTemplate"]),
    ("apps", "v1", &["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ControllerRevision"]),
    ("batch", "v1", &["Job", "CronJob"]),
    ("autoscaling", "v2", &["HorizontalPodAutoscaler"]),
    ("policy", "v1", &["PodDisruptionBudget"]),
    ("networking.k8s.io", "v1", &["Ingress", "IngressClass", "NetworkPolicy"]),
    ("discovery.k8s.io", "v1", &["EndpointSlice"]),
    ("events.k8s.io", "v1", &["Event"]),
    ("rbac.authorization.k8s.io", "v1", &["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]),
    ("storage.k8s.io", "v1", &["StorageClass", "VolumeAttachment", "CSIDriver", "CSINode", "CSIStorageCapacity"]),
    ("scheduling.k8s.io", "v1", &["PriorityClass"]),
    ("coordination.k8s.io", "v1", &["Lease"]),
    ("node.k8s.io", "v1", &["RuntimeClass"]),
    ("certificates.k8s.io", "v1", &["CertificateSigningRequest"]),
    ("admissionregistration.k8s.io", "v1", &["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"]),
    ("admissionregistration.k8s.io", "v1", &["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]),
    ("apiextensions.k8s.io", "v1", &["CustomResourceDefinition"]),
    ("authentication.k8s.io", "v1", &["TokenReview", "SelfSubjectReview"]),
    ("authorization.k8s.io", "v1", &["SubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview"]),
    ("apiregistration.k8s.io", "v1", &["APIService"]),
    (board::GROUP, "v1", &["Board"]),
];

/// Everything discovered: group, version, kind, plural, whether namespaced, verbs, subresources.
fn told(discovery: &Discovery) -> Vec<String> {
    let mut lines = Vec::new();
    for group in discovery.groups() {
        for version in group.versions() {
            for (resource, able) in group.versioned_resources(version) {
                let mut parts: Vec<String> = able.subresources.iter().map(|(part, _)| part.plural.clone()).collect();
                let (mut verbs, scope) = (able.operations.clone(), able.scope.clone());
                parts.sort();
                verbs.sort();
                let (kind, plural) = (&resource.kind, &resource.plural);
                lines.push(format!("{} {version} {kind} {plural} {scope:?} {verbs:?} {parts:?}", group.name()));
            }
        }
    }
    lines.sort();
    lines
}

#[test]
fn what_discovery_tells_is_whole_and_served() {
    let cluster = Cluster::start();
    let client = cluster.client.clone();
    cluster.run(async {
        board::define(&client).await;
        let version = client.apiserver_version().await.unwrap();
        assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "35"));
        let found = Discovery::new(client.clone()).run().await.unwrap();
        let aggregated = Discovery::new(client.clone()).run_aggregated().await.unwrap();
        assert_eq!(told(&found), told(&aggregated), "both formats tell the same");
        for (group, version, kinds) in KINDS {
            for kind in *kinds {
                let gvk = GroupVersionKind::gvk(group, version, kind);
                let (resource, _) = found.resolve_gvk(&gvk).unwrap_or_else(|| panic!("{gvk:?} is not told"));
                let pinned = discovery::pinned_kind(&client, &gvk).await.unwrap().0;
                assert_eq!((resource.plural, resource.api_version), (pinned.plural, pinned.api_version));
            }
        }
        let mut listed = 0;
        for group in found.groups() {
            for (resource, able) in group.versions().flat_map(|version| group.versioned_resources(version)) {
                if !able.supports_operation(verbs::LIST) {
                    continue;
                }
                let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
                let list = api.list(&Default::default()).await;
                let list = list.unwrap_or_else(|why| panic!("{} {}: {why}", resource.api_version, resource.plural));
                assert_eq!(list.types.kind, format!("{}List", resource.kind));
                // Usage is measured continuously: like upstream's metrics-server, it cannot be watched. Neither can component
                // statuses.
                if group.name() == "metrics.k8s.io" || resource.plural == "componentstatuses" {
                    assert!(!able.supports_operation(verbs::WATCH), "{}", resource.plural);
                    listed += 1;
                    continue;
                }
                assert!(able.supports_operation(verbs::WATCH), "{}", resource.plural);
                // Existing objects are streamed too, up to the bookmark at the end.
                let events = watcher(api, watcher::Config::default().streaming_lists());
                let wanted = |event: &watcher::Event<_>| !matches!(event, watcher::Event::InitDone);
                let first: Vec<_> = events
                    .try_take_while(|event| std::future::ready(Ok(wanted(event))))
                    .try_collect()
                    .await
                    .unwrap_or_else(|why| panic!("{} {}: {why}", resource.api_version, resource.plural));
                assert!(matches!(first[0], watcher::Event::Init));
                listed += 1;
            }
        }
        assert!(listed > 40, "{listed}");
    });
}

#[test]
fn a_custom_kind_is_told_with_what_it_can_and_goes_with_its_definition() {
    let cluster = Cluster::start();
    let client = cluster.client.clone();
    let gvk = GroupVersionKind::gvk(board::GROUP, "v1", "Board");
    cluster.run(async {
        assert!(discovery::group(&client, board::GROUP).await.is_err(), "not told before it is defined");
        board::define(&client).await;
        let (resource, able) = discovery::pinned_kind(&client, &gvk).await.unwrap();
        assert_eq!((resource.plural.as_str(), able.scope), ("boards", Scope::Namespaced));
        for verb in [verbs::CREATE, verbs::GET, verbs::LIST, verbs::WATCH, verbs::UPDATE, verbs::PATCH, verbs::DELETE] {
            assert!(able.operations.iter().any(|known| known == verb), "{verb}: {:?}", able.operations);
        }
        let parts: Vec<&str> = able.subresources.iter().map(|(part, _)| part.plural.as_str()).collect();
        assert!(parts.contains(&"status") && parts.contains(&"scale"), "{parts:?}");
        let boards: Api<board::Board> = Api::default_namespaced(client.clone());
        boards.create(&Default::default(), &board::Board::new("a", 1, "x")).await.unwrap();
        let mut events = watcher(boards.clone(), watcher::Config::default()).boxed();
        while !matches!(events.next().await.unwrap().unwrap(), watcher::Event::InitDone) {}
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions.delete(&format!("boards.{}", board::GROUP), &Default::default()).await.unwrap();
        let event = events.next().await.unwrap();
        assert!(matches!(&event, Ok(watcher::Event::Delete(gone)) if gone.spec.text == "x"), "{event:?}");
    });
    cluster.until("the kind is gone", async || match discovery::pinned_kind(&client, &gvk).await {
        Err(_) => Ok(()),
        Ok((resource, _)) => Err(format!("{resource:?}")),
    });
    cluster.until("its group is gone", async || {
        let found = Discovery::new(client.clone()).run_aggregated().await.map_err(|why| why.to_string())?;
        if found.has_group(board::GROUP) { Err("still told".to_owned()) } else { Ok(()) }
    });
}
