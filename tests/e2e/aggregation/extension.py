"""An extension API server as people write them: it believes a front proxy alone, whose CA it has from the cluster itself, and serves
`things.ext.example.com`, kept in memory: get, list, watch, create, update, patch, delete, exec; with discovery and OpenAPI v2
alone. It tells of a custom metric, too: of each Service how many things there are for each of its Pods.

Things of some names misbehave when they are read: `redirect`, `endless`, `hang`.
"""

import hashlib
import json
import ssl
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

GROUP, VERSION = "ext.example.com", "v1"
ROOT = f"/apis/{GROUP}/{VERSION}"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TRUST = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


def trust():
    """Whom to believe, by the word of the API server."""
    token = open(f"{ACCOUNT}/token").read()
    request = urllib.request.Request(f"https://kubernetes.default.svc{TRUST}", headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    while True:
        try:
            return json.load(urllib.request.urlopen(request, context=context, timeout=5))["data"]
        except OSError as why:
            print("not yet:", why, flush=True)
            time.sleep(0.2)


class Things:
    """The objects, and what has happened to them."""

    def __init__(self):
        self.changed, self.revision, self.objects, self.events = threading.Condition(), 1, {}, []

    def put(self, kind, namespace, name, thing):
        with self.changed:
            self.revision += 1
            thing["metadata"]["resourceVersion"] = str(self.revision)
            if kind == "DELETED":
                del self.objects[namespace, name]
            else:
                self.objects[namespace, name] = thing
            self.events.append((self.revision, namespace, {"type": kind, "object": json.loads(json.dumps(thing))}))
            self.changed.notify_all()
            return thing

    def listed(self, namespace):
        with self.changed:
            items = [o for (ns, _), o in sorted(self.objects.items()) if namespace in (None, ns)]
            return {"kind": "ThingList", "apiVersion": f"{GROUP}/{VERSION}",
                    "metadata": {"resourceVersion": str(self.revision)}, "items": items}


THINGS = Things()
RESOURCES = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": [
    {"name": "things", "singularName": "thing", "namespaced": True, "kind": "Thing", "shortNames": ["th"],
     "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"]},
    {"name": "things/exec", "singularName": "", "namespaced": True, "kind": "Thing", "verbs": ["create", "get"]},
]}
METRICS = "/apis/custom.metrics.k8s.io/v1beta2"
METRIC_RESOURCES = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": METRICS[6:], "resources": [
    {"name": "services/things", "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}]}
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def schemas():
    text = {"type": "string"}
    return {
        "com.example.ext.v1.Thing": {
            "description": "Thing is served by somebody else.", "type": "object",
            "properties": {
                "apiVersion": text, "kind": text, "metadata": {"$ref": f"#/definitions/{META}"},
                "spec": {"type": "object", "description": "What the thing is to be.",
                         "properties": {"size": {"type": "integer", "description": "How large it is."},
                                        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                                        "by": {"type": "string", "description": "Who has made it."}}},
            },
            "x-kubernetes-group-version-kind": [{"group": GROUP, "version": VERSION, "kind": "Thing"}],
        },
        META: {"description": "ObjectMeta as this server has it.", "type": "object",
               "properties": {"name": text, "namespace": text, "labels": {"type": "object", "additionalProperties": text}}},
    }


def openapi_v2():
    of = {"x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": "Thing"}}
    answer = {"200": {"description": "OK", "schema": {"$ref": "#/definitions/com.example.ext.v1.Thing"}}}
    return {"swagger": "2.0", "info": {"title": "ext", "version": "1"},
            "paths": {**{f"{ROOT}/namespaces/{{namespace}}/things{rest}": {"get": {"responses": answer, **of}} for rest in ("", "/{name}")},
                      "/api/v1/pods": {"get": {"responses": {}}}},
            "definitions": schemas()}


def merged(target, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    allowed = []

    def log_message(self, *_):
        pass

    def user(self):
        """Who asks, if a front proxy says so."""
        shown = self.connection.getpeercert() or {}
        names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
        return self.headers.get("X-Remote-User") if any(name in self.allowed for name in names) else None

    def send(self, code, value, headers=()):
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in headers:
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def fail(self, code, reason, message, name=None):
        details = {"details": {"group": GROUP, "kind": "things", "name": name}} if name else {}
        self.send(code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                         "reason": reason, "message": message, **details})

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")

    def do_GET(self):
        self.answer("GET")

    def do_POST(self):
        self.answer("POST")

    def do_PUT(self):
        self.answer("PUT")

    def do_PATCH(self):
        self.answer("PATCH")

    def do_DELETE(self):
        self.answer("DELETE")

    def answer(self, method):
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if self.user() is None:
            return self.fail(401, "Unauthorized", "Unauthorized")
        documents = {ROOT: RESOURCES, METRICS: METRIC_RESOURCES, "/openapi/v2": openapi_v2()}
        if url.path.startswith(METRICS + "/namespaces/"):
            return self.metric(url.path.split("/")[5:])
        if method == "GET" and url.path in documents:
            return self.send(200, documents[url.path])
        parts = url.path[len(ROOT):].strip("/").split("/") if url.path.startswith(ROOT + "/") else []
        namespace = None
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        if parts[:1] != ["things"]:
            return self.fail(404, "NotFound", "the server could not find the requested resource")
        name = parts[1] if len(parts) > 1 else None
        if parts[2:] == ["exec"]:
            return self.switch()
        if name is None and method == "GET":
            return self.watch(namespace, query) if query.get("watch") in ("1", "true") else self.send(200, THINGS.listed(namespace))
        if name in ("redirect", "endless", "hang") and method == "GET":
            return self.misbehave(name)
        if name is None and method == "POST":
            thing = self.body()
            name = thing["metadata"]["name"]
            if (namespace, name) in THINGS.objects:
                return self.fail(409, "AlreadyExists", f'things.{GROUP} "{name}" already exists')
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            thing["metadata"].update(namespace=namespace, uid=hashlib.sha1(f"{namespace}/{name}/{now}".encode()).hexdigest(), creationTimestamp=now)
            thing.setdefault("spec", {})["by"] = self.user()
            thing["spec"]["groups"] = self.headers.get_all("X-Remote-Group") or []
            thing["spec"]["extra"] = {key: value for key, value in self.headers.items() if key.lower().startswith("x-remote-extra-")}
            thing["spec"]["secrets"] = [key for key in self.headers if key.lower().startswith(("authorization", "impersonate-"))]
            return self.send(201, THINGS.put("ADDED", namespace, name, thing))
        thing = THINGS.objects.get((namespace, name))
        if thing is None:
            return self.fail(404, "NotFound", f'things.{GROUP} "{name}" not found', name)
        if method == "GET":
            return self.send(200, thing)
        if method == "PATCH":
            new = merged(thing, self.body())
            return self.send(200, THINGS.put("MODIFIED", namespace, name, new) if new != thing else thing)
        if method == "PUT":
            new = self.body()
            new["metadata"] = {**thing["metadata"], **new["metadata"]}
            return self.send(200, THINGS.put("MODIFIED", namespace, name, new))
        self.body()
        return self.send(200, THINGS.put("DELETED", namespace, name, thing))

    def metric(self, parts):
        """`services/NAME/things`, of a namespace: how many things there are in it."""
        namespace, resource, name, metric = parts
        if (resource, metric) != ("services", "things"):
            return self.fail(404, "NotFound", f"the server could not find the metric {metric} for {resource} {name}")
        count = len(THINGS.listed(namespace)["items"])
        about = {"kind": "Service", "namespace": namespace, "name": name, "apiVersion": "/v1"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        item = {"describedObject": about, "metric": {"name": metric}, "timestamp": now, "value": str(count)}
        self.send(200, {"kind": "MetricValueList", "apiVersion": METRICS[6:], "metadata": {}, "items": [item]})

    def watch(self, namespace, query):
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        seen = int(query.get("resourceVersion") or 0)
        end = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        while time.monotonic() < end:
            with THINGS.changed:
                told = [(at, event) for at, ns, event in THINGS.events if at > seen and namespace in (None, ns)]
                if not told:
                    THINGS.changed.wait(0.2)
            for seen, event in told:
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()

    def switch(self):
        """Sends back what it hears, in capitals, by a protocol of its own."""
        if self.headers.get("Upgrade") != "shout":
            return self.fail(400, "BadRequest", "Upgrade: shout is needed")
        self.close_connection = True
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "shout")
        self.end_headers()
        while heard := self.rfile.read1(4096):
            self.wfile.write(heard.upper())
            self.wfile.flush()

    def misbehave(self, how):
        self.close_connection = True
        if how == "redirect":
            return self.send(302, "", [("Location", "https://169.254.169.254/latest/meta-data/")])
        if how == "hang":
            return time.sleep(600)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        while True:
            self.wfile.write(b" " * 65536)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def get_request(self):
        connection, address = super().get_request()
        connection.settimeout(600)
        # The handshake is the thread's.
        return self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address


data = trust()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
context.load_verify_locations(cadata=data["requestheader-client-ca-file"])
context.verify_mode = ssl.CERT_OPTIONAL
Handler.allowed = json.loads(data["requestheader-allowed-names"])
Server.context = context
print("serving", flush=True)
Server(("", 6443), Handler).serve_forever()
