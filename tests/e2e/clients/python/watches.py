"""Watches: from a list on, selected, to their end in time, resumed by version, also after the server's death."""

import threading

from kubernetes import client, watch

from support import config_map, eventually, main, refused


def told(event):
    return event["type"], event["object"].metadata.name


def watches(api):
    core = client.CoreV1Api(api)
    begin = core.list_namespaced_config_map("default").metadata.resource_version
    for name, tier in (("a", "x"), ("b", "y"), ("c", "x")):
        core.create_namespaced_config_map("default", config_map(name, labels={"tier": tier}))
    core.patch_namespaced_config_map("b", "default", {"metadata": {"labels": {"tier": "x"}}})
    core.delete_namespaced_config_map("c", "default")

    # What was, from a version on; it ends after its time.
    history = [("ADDED", "a"), ("ADDED", "c"), ("ADDED", "b"), ("DELETED", "c")]
    events = watch.Watch().stream(
        core.list_namespaced_config_map, "default", label_selector="tier=x", resource_version=begin, timeout_seconds=1
    )
    assert [told(event) for event in events] == history

    # From the last that another watch saw.
    one = watch.Watch()
    for event in one.stream(core.list_namespaced_config_map, "default", label_selector="tier=x", resource_version=begin):
        if told(event) == ("ADDED", "c"):
            one.stop()
    rest = watch.Watch().stream(
        core.list_namespaced_config_map,
        "default",
        label_selector="tier=x",
        resource_version=one.resource_version,
        timeout_seconds=1,
    )
    assert [told(event) for event in rest] == history[2:]

    # Without a version: what is there, then what comes.
    heard = []

    def listen():
        stream = watch.Watch()
        for event in stream.stream(core.list_namespaced_config_map, "default", label_selector="tier"):
            heard.append(told(event))
            if event["object"].metadata.name == "last":
                stream.stop()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    eventually("what is there is told", lambda: len(heard) == 2)
    assert sorted(heard) == [("ADDED", "a"), ("ADDED", "b")], heard
    core.patch_namespaced_config_map("a", "default", {"data": {"k": "v"}})
    core.delete_namespaced_config_map("a", "default")
    core.create_namespaced_config_map("default", config_map("last", labels={"tier": "z"}))
    eventually("the rest is told", lambda: not listener.is_alive())
    assert heard[2:] == [("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "last")], heard

    with refused(400, "BadRequest", "resourceVersion"):
        core.list_namespaced_config_map("default", resource_version="no version", watch=True)


def resumed(api):
    """One half before the server's death, one half after it: the caller restarts it between two lines of this output."""
    core = client.CoreV1Api(api)
    made = core.create_namespaced_config_map("default", config_map("counter"))
    version, seen = made.metadata.resource_version, []
    core.patch_namespaced_config_map("counter", "default", {"data": {"n": "1"}})
    print("before", flush=True)
    input()
    core.patch_namespaced_config_map("counter", "default", {"data": {"n": "2"}})
    stream = watch.Watch()
    for event in stream.stream(
        core.list_namespaced_config_map, "default", field_selector="metadata.name=counter", resource_version=version
    ):
        seen.append((event["type"], event["object"].data["n"]))
        if seen[-1][1] == "2":
            core.patch_namespaced_config_map("counter", "default", {"data": {"n": "3"}})
        if seen[-1][1] == "3":
            stream.stop()
    assert seen == [("MODIFIED", "1"), ("MODIFIED", "2"), ("MODIFIED", "3")], seen


if __name__ == "__main__":
    main({"watches": watches, "resumed": resumed})
