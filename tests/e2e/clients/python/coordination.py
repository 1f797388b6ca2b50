"""Leases, the client's own leader election, and Jobs: what several processes settle among themselves through the API."""

import datetime
import threading

from kubernetes import client
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock

from support import IMAGE, eventually, main, refused


def leases(api):
    coordination, core = client.CoordinationV1Api(api), client.CoreV1Api(api)
    now = datetime.datetime.now(datetime.timezone.utc)
    spec = client.V1LeaseSpec(holder_identity="one", lease_duration_seconds=15, acquire_time=now, renew_time=now)
    lease = client.V1Lease(metadata=client.V1ObjectMeta(name="turn"), spec=spec)
    made = coordination.create_namespaced_lease("default", lease)
    assert made.spec.renew_time == now, (made.spec.renew_time, now)
    stale = coordination.read_namespaced_lease("turn", "default")
    made.spec.holder_identity, made.spec.lease_transitions = "two", 1
    assert coordination.replace_namespaced_lease("turn", "default", made).spec.holder_identity == "two"
    stale.spec.holder_identity = "three"
    with refused(409, "Conflict", "the object has been modified"):
        coordination.replace_namespaced_lease("turn", "default", stale)
    with refused(422, "Invalid", "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"):
        coordination.patch_namespaced_lease("turn", "default", {"spec": {"leaseDurationSeconds": 0}})
    dry = coordination.patch_namespaced_lease("turn", "default", {"spec": {"holderIdentity": "dry"}}, dry_run="All")
    assert dry.spec.holder_identity == "dry"
    assert coordination.read_namespaced_lease("turn", "default").spec.holder_identity == "two"

    # Two candidates: the client's lock is an annotation of a ConfigMap. It knows no way to end but by losing.
    client.Configuration.set_default(api.configuration)
    leads, ended = [], threading.Event()

    def candidate(name):
        def leading():
            leads.append(name)
            ended.wait()

        config = electionconfig.Config(
            ConfigMapLock("election", "default", name),
            lease_duration=3,
            renew_deadline=2,
            retry_period=1,
            onstarted_leading=leading,
            onstopped_leading=lambda: None,
        )
        threading.Thread(target=leaderelection.LeaderElection(config).run, daemon=True).start()

    candidate("a")
    eventually("the first leads", lambda: leads == ["a"])
    candidate("b")

    def holder():
        found = core.read_namespaced_config_map("election", "default").metadata.annotations
        return found["control-plane.alpha.kubernetes.io/leader"]

    first = holder()
    eventually("its lease is renewed", lambda: holder() != first)
    assert '"a"' in holder() and leads == ["a"], (holder(), leads)
    ended.set()


def jobs(api):
    batch, core = client.BatchV1Api(api), client.CoreV1Api(api)
    container = {"name": "c", "image": IMAGE, "command": ["sh", "-c", "echo it ran"]}
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}}
    batch.create_namespaced_job("default", {"metadata": {"name": "once"}, "spec": {"template": template, "completions": 2}})
    done = eventually("it completes", lambda: batch.read_namespaced_job_status("once", "default").status.completion_time)
    assert done.tzinfo is not None, done
    pods = core.list_namespaced_pod("default", label_selector="batch.kubernetes.io/job-name=once").items
    assert len(pods) == 2 and {pod.status.phase for pod in pods} == {"Succeeded"}, pods
    assert core.read_namespaced_pod_log(pods[0].metadata.name, "default") == "it ran\n"
    with refused(422, "Invalid", "field is immutable"):
        batch.patch_namespaced_job("once", "default", {"spec": {"completions": 3, "completionMode": "Indexed"}})
    batch.delete_namespaced_job("once", "default", propagation_policy="Foreground")
    eventually("its Pods are gone", lambda: not core.list_namespaced_pod("default").items)

    cron = {"schedule": "* * * * *", "suspend": True, "jobTemplate": {"spec": {"template": template}}}
    batch.create_namespaced_cron_job("default", {"metadata": {"name": "often"}, "spec": cron})
    patched = batch.patch_namespaced_cron_job("often", "default", {"spec": {"schedule": "@hourly"}})
    assert patched.spec.schedule == "@hourly" and patched.spec.concurrency_policy == "Allow", patched.spec
    with refused(422, "Invalid", "spec.schedule"):
        batch.patch_namespaced_cron_job("often", "default", {"spec": {"schedule": "now and then"}})
    batch.delete_namespaced_cron_job("often", "default")


if __name__ == "__main__":
    main({"leases": leases, "jobs": jobs})
