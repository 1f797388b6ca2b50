"""The dynamic client: kinds known at run time, all patch types, server-side apply, a custom resource."""

import json

from kubernetes import client
from kubernetes.dynamic import DynamicClient, exceptions

from support import eventually, main, refused

DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "boards.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "boards", "singular": "board", "kind": "Board"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "text": {"type": "string"},
                                    "copies": {"type": "integer", "default": 1, "maximum": 10},
                                },
                            },
                            "status": {"type": "object", "properties": {"copies": {"type": "integer"}}},
                        },
                    }
                },
            }
        ],
    },
}


def server_side_apply(kind, wish, **options):
    """Applies a wish. Old releases of the client cannot encode it for this media type, and take it encoded alone."""
    name = wish["metadata"]["name"]
    try:
        return kind.server_side_apply(wish, name=name, namespace="default", **options)
    except exceptions.DynamicApiError as error:
        if error.status != 0:
            raise
        return kind.server_side_apply(json.dumps(wish), name=name, namespace="default", **options)


def dynamic(api):
    found = DynamicClient(api)
    maps = found.resources.get(api_version="v1", kind="ConfigMap")
    made = maps.create({"metadata": {"name": "a"}, "data": {"k": "1"}}, namespace="default")
    assert made.to_dict()["data"] == {"k": "1"}
    merge = "application/merge-patch+json"
    for content_type, patch, data in (
        ("application/strategic-merge-patch+json", {"data": {"s": "2"}}, {"k": "1", "s": "2"}),
        (merge, {"data": {"s": None, "m": "3"}}, {"k": "1", "m": "3"}),
        ("application/json-patch+json", [{"op": "remove", "path": "/data/m"}], {"k": "1"}),
    ):
        patched = maps.patch(patch, name="a", namespace="default", content_type=content_type)
        assert patched.to_dict()["data"] == data, (content_type, patched)
    assert [item.metadata.name for item in maps.get(namespace="default", field_selector="metadata.name=a").items] == ["a"]

    def apply(manager, data, force=None):
        wish = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": data}
        return server_side_apply(maps, wish, field_manager=manager, force_conflicts=force).to_dict().get("data")

    assert apply("alpha", {"a": "1", "b": "1"}) == {"a": "1", "b": "1"}
    assert apply("beta", {"c": "1"}) == {"a": "1", "b": "1", "c": "1"}
    try:
        apply("beta", {"a": "2", "c": "1"})
    except exceptions.ConflictError as error:
        assert error.summary().find('conflict with "alpha"') >= 0, error.summary()
    else:
        raise AssertionError("alpha has a")
    assert apply("beta", {"a": "2", "c": "1"}, force=True) == {"a": "2", "b": "1", "c": "1"}
    assert apply("alpha", {}) == {"a": "2", "c": "1"}

    # A custom resource, by both clients.
    client.ApiextensionsV1Api(api).create_custom_resource_definition(DEFINITION)

    def served():
        found.resources.invalidate_cache()
        try:
            return found.resources.get(api_version="example.com/v1", kind="Board")
        except exceptions.ResourceNotFoundError:
            return None

    boards = eventually("boards are served", served)
    custom = client.CustomObjectsApi(api)
    of = ("example.com", "v1", "default", "boards")
    board = {"apiVersion": "example.com/v1", "kind": "Board", "metadata": {"name": "b"}, "spec": {"text": "x"}}
    assert boards.create(board, namespace="default").spec.copies == 1
    assert custom.get_namespaced_custom_object(*of, "b")["spec"] == {"text": "x", "copies": 1}
    patched = boards.patch({"spec": {"copies": 2}}, name="b", namespace="default", content_type=merge)
    assert patched.spec.copies == 2 and patched.metadata.generation == 2, patched
    with refused(422, "Invalid", "spec.copies"):
        board["spec"]["copies"], board["metadata"]["name"] = 11, "c"
        custom.create_namespaced_custom_object(*of, board)
    status = {"apiVersion": "example.com/v1", "kind": "Board", "metadata": {"name": "b"}, "status": {"copies": 2}}
    told = boards.status.patch(status, name="b", namespace="default", content_type=merge)
    assert told.status.copies == 2, told
    wish = {"apiVersion": "example.com/v1", "kind": "Board", "metadata": {"name": "applied"}, "spec": {"text": "y"}}
    assert server_side_apply(boards, wish, field_manager="alpha").spec.text == "y"
    heard = [
        (event["type"], event["object"].metadata.name)
        for event in boards.watch(namespace="default", resource_version="0", timeout=1)
    ]
    assert sorted(heard) == [("ADDED", "applied"), ("ADDED", "b")], heard
    boards.delete(name="b", namespace="default")
    custom.delete_namespaced_custom_object(*of, "applied")
    assert custom.list_namespaced_custom_object(*of)["items"] == []


if __name__ == "__main__":
    main({"dynamic": dynamic})
