"""Objects with the typed clients: made, listed, replaced, patched, deleted, made from YAML."""

import tempfile

from kubernetes import client, utils

from support import IMAGE, config_map, eventually, main, refused

MANIFEST = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: yaml}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings, namespace: yaml}}
data: {{a: '1'}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: yaml}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      schedulerName: nobody
      containers: [{{name: c, image: '{IMAGE}'}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: reader, namespace: yaml}}
rules: [{{apiGroups: [''], resources: [pods], verbs: [get]}}]
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {{name: web, namespace: yaml}}
  spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
"""


def names(found):
    return [item.metadata.name for item in found.items]


def objects(api):
    """Create, read, list, replace, patch in the types of the typed client, delete."""
    core = client.CoreV1Api(api)
    assert client.VersionApi(api).get_code().minor == "35"
    groups = {group.name for group in client.ApisApi(api).get_api_versions().groups}
    assert {"apps", "batch", "networking.k8s.io", "rbac.authorization.k8s.io"} <= groups, groups

    made = core.create_namespaced_config_map("default", config_map("a", {"k": "1"}), field_manager="tester")
    assert made.metadata.uid and made.metadata.resource_version and made.metadata.creation_timestamp
    assert made.metadata.managed_fields[0].manager == "tester"
    with refused(409, "AlreadyExists", 'configmaps "a" already exists'):
        core.create_namespaced_config_map("default", config_map("a"))
    with refused(404, "NotFound", 'configmaps "b" not found'):
        core.read_namespaced_config_map("b", "default")
    with refused(422, "Invalid", "metadata.name: Invalid value"):
        core.create_namespaced_config_map("default", config_map("Not_A_Name"))
    core.create_namespaced_config_map("default", config_map("dry"), dry_run="All")
    with refused(404, "NotFound", "dry"):
        core.read_namespaced_config_map("dry", "default")

    newer = core.read_namespaced_config_map("a", "default")
    newer.data["k"] = "2"
    assert core.replace_namespaced_config_map("a", "default", newer).data == {"k": "2"}
    with refused(409, "Conflict", "the object has been modified"):
        core.replace_namespaced_config_map("a", "default", made)

    # A map is a strategic merge, a list a JSON patch.
    assert core.patch_namespaced_config_map("a", "default", {"data": {"l": "3"}}).data == {"k": "2", "l": "3"}
    operations = [
        {"op": "test", "path": "/data/k", "value": "2"},
        {"op": "remove", "path": "/data/k"},
        {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
    ]
    patched = core.patch_namespaced_config_map("a", "default", operations)
    assert (patched.data, patched.metadata.labels) == ({"l": "3"}, {"x": "y"}), patched
    with refused(422, "Invalid", "the server rejected our request"):
        core.patch_namespaced_config_map("a", "default", operations)

    for number in range(7):
        labels = {"tier": "even" if number % 2 == 0 else "odd"}
        core.create_namespaced_config_map("default", config_map(f"m{number}", labels=labels))
    assert names(core.list_namespaced_config_map("default", label_selector="tier=odd")) == ["m1", "m3", "m5"]
    assert names(core.list_namespaced_config_map("default", field_selector="metadata.name=m4")) == ["m4"]
    found, token = [], None
    while token != "":
        page = core.list_namespaced_config_map("default", label_selector="tier", limit=3, _continue=token)
        assert len(page.items) <= 3
        found, token = found + names(page), page.metadata._continue or ""
    assert found == [f"m{number}" for number in range(7)], found
    assert "kube-system" in names(core.list_namespace())
    assert core.list_node().items[0].status.node_info.kubelet_version

    gone = core.delete_namespaced_config_map("a", "default")
    assert (gone.status, gone.details.name, gone.details.uid) == ("Success", "a", made.metadata.uid), gone
    core.delete_collection_namespaced_config_map("default", label_selector="tier=odd")
    assert names(core.list_namespaced_config_map("default", label_selector="tier")) == ["m0", "m2", "m4", "m6"]


def yaml(api):
    """utils.create_from_yaml; scale and status; deletion with each propagation."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(MANIFEST)
        file.flush()
        utils.create_from_yaml(api, file.name)
        try:
            utils.create_from_yaml(api, file.name)
        except utils.FailToCreateError as error:
            assert {why.status for why in error.api_exceptions} == {409}, error
        else:
            raise AssertionError("all of it is there already")
    apps, core = client.AppsV1Api(api), client.CoreV1Api(api)
    assert core.read_namespaced_config_map("settings", "yaml").data == {"a": "1"}
    assert core.read_namespaced_service("web", "yaml").spec.cluster_ip
    assert client.RbacAuthorizationV1Api(api).read_namespaced_role("reader", "yaml").rules[0].verbs == ["get"]

    def replicas():
        return apps.read_namespaced_deployment_status("web", "yaml").status.replicas

    eventually("there are two Pods", lambda: replicas() == 2)
    strategic = {"spec": {"template": {"spec": {"containers": [{"name": "d", "image": IMAGE}]}}}}
    patched = apps.patch_namespaced_deployment("web", "yaml", strategic)
    assert {c.name for c in patched.spec.template.spec.containers} == {"c", "d"}, patched
    scale = apps.patch_namespaced_deployment_scale("web", "yaml", {"spec": {"replicas": 1}})
    assert scale.spec.replicas == 1 and scale.status.selector == "app=web", scale
    scale = apps.read_namespaced_deployment_scale("web", "yaml")
    # Whatever its controller has written meanwhile.
    scale.spec.replicas, scale.metadata.resource_version = 0, None
    assert apps.replace_namespaced_deployment_scale("web", "yaml", scale).spec.replicas == 0
    eventually("it is scaled to none", lambda: not replicas())

    apps.delete_namespaced_deployment("web", "yaml", propagation_policy="Orphan")
    eventually("it is gone", lambda: not apps.list_namespaced_deployment("yaml").items)
    sets = apps.list_namespaced_replica_set("yaml", label_selector="app=web")
    eventually(
        "its ReplicaSets are nobody's",
        lambda: not any(s.metadata.owner_references for s in apps.list_namespaced_replica_set("yaml").items),
    )
    for name in names(sets):
        apps.delete_namespaced_replica_set(name, "yaml", body=client.V1DeleteOptions(propagation_policy="Foreground"))
    eventually("they are gone", lambda: not apps.list_namespaced_replica_set("yaml").items)
    core.delete_namespace("yaml")
    eventually("the namespace is gone", lambda: "yaml" not in names(core.list_namespace()))


if __name__ == "__main__":
    main({"objects": objects, "yaml": yaml})
