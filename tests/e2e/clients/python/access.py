"""A ServiceAccount's token as a bearer: what RBAC lets it do, and how it is told what it may not."""

import base64
import json

from kubernetes import client

from support import config_map, eventually, main, refused


def bearer(api, token):
    """A client of the same server that has nothing but a token."""
    configuration = client.Configuration()
    configuration.host = api.configuration.host
    configuration.ssl_ca_cert = api.configuration.ssl_ca_cert
    configuration.api_key = {"authorization": "Bearer " + token}
    return client.ApiClient(configuration)


def access(api):
    core, rbac = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api)
    core.create_namespaced_service_account("default", {"metadata": {"name": "robot"}})
    asked = {"spec": {"expirationSeconds": 3600}}
    token = core.create_namespaced_service_account_token("robot", "default", asked).status.token
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["sub"] == "system:serviceaccount:default:robot", claims
    robot = bearer(api, token)
    as_robot = client.CoreV1Api(robot)
    user = 'User "system:serviceaccount:default:robot"'
    why = f'configmaps is forbidden: {user} cannot list resource "configmaps" in API group "" in the namespace "default"'
    with refused(403, "Forbidden", why):
        as_robot.list_namespaced_config_map("default")

    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create"]}]
    rbac.create_namespaced_role("default", {"metadata": {"name": "maps"}, "rules": rules})
    binding = {
        "metadata": {"name": "maps"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "maps"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
    }
    rbac.create_namespaced_role_binding("default", binding)

    def allowed():
        attributes = {"namespace": "default", "verb": "create", "resource": "configmaps"}
        review = {"spec": {"resourceAttributes": attributes}}
        return client.AuthorizationV1Api(robot).create_self_subject_access_review(review).status.allowed

    eventually("the binding is known", allowed)
    as_robot.create_namespaced_config_map("default", config_map("made"))
    assert "made" in [item.metadata.name for item in as_robot.list_namespaced_config_map("default").items]
    with refused(403, "Forbidden", f'configmaps "made" is forbidden: {user} cannot delete resource "configmaps"'):
        as_robot.delete_namespaced_config_map("made", "default")
    with refused(403, "Forbidden", 'in the namespace "kube-system"'):
        as_robot.list_namespaced_config_map("kube-system")
    with refused(403, "Forbidden", "at the cluster scope"):
        as_robot.list_config_map_for_all_namespaces()
    with refused(403, "Forbidden", 'nodes is forbidden'):
        as_robot.list_node()

    with refused(401, "Unauthorized", "Unauthorized"):
        client.CoreV1Api(bearer(api, token[:-8] + "AAAAAAAA")).list_namespaced_config_map("default")
    review = client.AuthenticationV1Api(api).create_token_review({"spec": {"token": token}})
    assert review.status.authenticated and review.status.user.username == "system:serviceaccount:default:robot", review
    core.delete_namespaced_service_account("robot", "default")
    eventually(
        "its token ends with it",
        lambda: not client.AuthenticationV1Api(api).create_token_review({"spec": {"token": token}}).status.authenticated,
    )


if __name__ == "__main__":
    main({"access": access})
