"""Sessions into a Pod: exec with its streams and return code, logs that are followed, port-forward."""

import threading
import time

from kubernetes import client, stream, watch

from support import PATIENCE, eventually, main, refused, run_pod


def execute(core, *command, **options):
    """A session that has ended: all that it said, and the client."""
    options = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
    session = stream.stream(
        core.connect_get_namespaced_pod_exec, "p", "default", command=list(command), _preload_content=False, **options
    )
    session.run_forever(timeout=PATIENCE)
    return session


def exec_(api):
    core = client.CoreV1Api(api)
    run_pod(core, "p", "sleep infinity")
    # The shortest form gives all that is said.
    said = stream.stream(
        core.connect_get_namespaced_pod_exec,
        "p",
        "default",
        command=["echo", "hello"],
        stdin=False,
        stdout=True,
        stderr=True,
        tty=False,
    )
    assert said == "hello\n", repr(said)

    session = execute(core, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (session.read_stdout(), session.read_stderr()) == ("out\n", "err\n")
    assert session.returncode == 7, session.returncode
    assert execute(core, "true").returncode == 0
    much = execute(core, "sh", "-c", "yes | head -c 1000000").read_stdout()
    assert len(much) == 1_000_000, len(much)

    session = stream.stream(
        core.connect_post_namespaced_pod_exec,
        "p",
        "default",
        command=["sh"],
        stdin=True,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
    )
    session.write_stdin("echo one\n")
    assert session.readline_stdout(timeout=PATIENCE) == "one"
    session.write_stdin("echo two >&2; read line; echo got $line\n")
    assert session.readline_stderr(timeout=PATIENCE) == "two"
    session.write_stdin("more\n")
    assert session.readline_stdout(timeout=PATIENCE) == "got more"
    session.write_stdin("exit 3\n")
    session.run_forever(timeout=PATIENCE)
    assert session.returncode == 3, session.returncode

    terminal = stream.stream(
        core.connect_get_namespaced_pod_exec,
        "p",
        "default",
        command=["sh"],
        stdin=True,
        stdout=True,
        stderr=False,
        tty=True,
        _preload_content=False,
    )
    terminal.write_channel(4, '{"Height": 33, "Width": 101}')
    deadline, said = time.monotonic() + PATIENCE, ""
    while "33 101" not in said:
        assert time.monotonic() < deadline and terminal.is_open(), said
        terminal.write_stdin("stty size\n")
        terminal.update(timeout=1000)
        said += terminal.read_stdout()
    terminal.write_stdin("exit\n")
    terminal.run_forever(timeout=PATIENCE)

    try:
        execute(core, "true", container="none")
    except client.exceptions.ApiException as error:
        assert "400" in error.reason, error
    else:
        raise AssertionError("there is no such container")


def logs(api):
    core = client.CoreV1Api(api)
    run_pod(core, "p", "echo first; echo second; while read line; do echo $line; done", stdin=True)
    eventually("it has said both", lambda: core.read_namespaced_pod_log("p", "default") == "first\nsecond\n")
    assert core.read_namespaced_pod_log("p", "default", tail_lines=1) == "second\n"
    stamped = core.read_namespaced_pod_log("p", "default", timestamps=True, limit_bytes=1000)
    assert [line.split(" ")[1] for line in stamped.splitlines()] == ["first", "second"], stamped
    heard = []

    def listen():
        for line in watch.Watch().stream(core.read_namespaced_pod_log, "p", "default", follow=True):
            heard.append(line)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    eventually("what is there is told", lambda: len(heard) == 2)
    session = stream.stream(
        core.connect_get_namespaced_pod_attach,
        "p",
        "default",
        stdin=True,
        stdout=True,
        stderr=False,
        tty=False,
        _preload_content=False,
    )
    session.write_stdin("third\n")
    assert session.readline_stdout(timeout=PATIENCE) == "third"
    session.close()
    eventually("what comes is told", lambda: heard == ["first", "second", "third"])
    core.delete_namespaced_pod("p", "default")
    eventually("a followed log ends with its container", lambda: not listener.is_alive())
    with refused(404, "NotFound", 'pods "p" not found'):
        core.read_namespaced_pod_log("p", "default")


def forward(api):
    core = client.CoreV1Api(api)
    run_pod(core, "p", "mkdir -p /www; echo it serves > /www/index.html; exec httpd -f -p 80 -h /www")
    eventually("it listens", lambda: execute(core, "wget", "-qO-", "http://127.0.0.1/").returncode == 0)
    for _ in range(2):
        forwarded = stream.portforward(core.connect_get_namespaced_pod_portforward, "p", "default", ports="80")
        socket = forwarded.socket(80)
        socket.settimeout(PATIENCE)
        socket.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
        answer = b""
        while part := socket.recv(4096):
            answer += part
        assert b" 200 OK\r\n" in answer and answer.endswith(b"it serves\n"), answer
        assert forwarded.error(80) is None, forwarded.error(80)
    nobody = stream.portforward(core.connect_get_namespaced_pod_portforward, "p", "default", ports="7")
    eventually("the error is told", lambda: nobody.error(7))
    proxied = core.connect_get_namespaced_pod_proxy_with_path("p:80", "default", "index.html")
    assert proxied == "it serves\n", proxied


if __name__ == "__main__":
    main({"exec": exec_, "logs": logs, "forward": forward})
