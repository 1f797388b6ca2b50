"""What the drills share: a client of the node's kubeconfig, waiting for conditions, and expecting refusals."""

import contextlib
import json
import os
import sys
import time

from kubernetes import client, config

IMAGE = "localhost/busybox:1"
PATIENCE = 60 * int(os.environ.get("PODWRIGHT_TEST_SLOWNESS", "1"))


def connect():
    """A client as the administrator."""
    return config.new_client_from_config(os.environ["KUBECONFIG"])


def eventually(what, check):
    """Waits until `check` gives something true; fails with what it gave last."""
    deadline = time.monotonic() + PATIENCE
    while True:
        last = check()
        if last:
            return last
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {PATIENCE} s; last seen: {last!r}")
        time.sleep(0.05)


@contextlib.contextmanager
def refused(status, reason, part):
    """Expects an ApiException with this code, reason (of the Status in its body) and part of the message."""
    try:
        yield
    except client.exceptions.ApiException as error:
        said = json.loads(error.body)
        assert said["kind"] == "Status" and said["status"] == "Failure", said
        assert (error.status, said["code"], said["reason"]) == (status, status, reason), (error, said)
        assert part in said["message"], said
        return
    raise AssertionError(f"not refused with {status} {reason}")


def config_map(name, data=None, labels=None):
    metadata = client.V1ObjectMeta(name=name, labels=labels)
    return client.V1ConfigMap(metadata=metadata, data=data)


def run_pod(core, name, script, **more):
    """A Pod with a shell that runs `script`; it runs when this returns."""
    container = {"name": "c", "image": IMAGE, "command": ["sh", "-c", script], **more}
    spec = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container]}
    core.create_namespaced_pod("default", {"metadata": {"name": name}, "spec": spec})
    eventually(f"{name} runs", lambda: core.read_namespaced_pod(name, "default").status.phase == "Running")


def main(drills):
    """Runs the drill that the command line names."""
    drills[sys.argv[1]](connect())
    print("passed")
